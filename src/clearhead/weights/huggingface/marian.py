"""Marian translation models in Hugging Face's format, to and from our Transformer.

    ours (models/transformer.py)           theirs
    encoder.embed.table                    model.shared.weight, or one table for each side
    encoder.blocks.0.attn.query            model.encoder.layers.0.self_attn.q_proj
    decoder.blocks.0.cross.out             model.decoder.layers.0.encoder_attn.out_proj
    head.bias                              final_logits_bias

Marian (Junczys-Dowmunt et al. 2018) has post-norm blocks as in Vaswani et al. 2017, puts the sines of a position into
the first half of the columns and the cosines into the second, and starts decoding from the padding token. Folders of
opus-mt (Tiedemann and Thottingal 2020) split text by two SentencePiece models, source.spm and target.spm, and take the
ids from vocab.json, or from vocab.json and target_vocab.json if source and target have vocabularies of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ... import config
from ...atomic_files import atomic_write
from ...checks import at_least
from ...errors import InputError
from ...layers import Sinusoid
from ...models.transformer import Config, Transformer
from ...tokens import Pair, Pieces, Subwords, Tokenizer
from ...tokens.marian import SPECIAL_TOKENS, read_marian
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import ROW, Layout, Row, check_options, pairs
from .tokenizers import ended, read_subwords, write_subwords

# Layers of a block. Ours: theirs. Only the decoder has cross-attention.
PARTS = {
    "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj", "attn_norm": "self_attn_layer_norm",
    "cross.query": "encoder_attn.q_proj", "cross.key": "encoder_attn.k_proj", "cross.value": "encoder_attn.v_proj",
    "cross.out": "encoder_attn.out_proj", "cross_norm": "encoder_attn_layer_norm",
    "mlp.up": "fc1", "mlp.down": "fc2", "mlp_norm": "final_layer_norm",
}  # fmt: skip
SHARED, SOURCE, TARGET = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
READOUT, BIAS = "lm_head.weight", "final_logits_bias"
FREE = {
    "vocab", "target_vocab", "context", "width", "depth", "decoder_depth", "heads", "kv_heads", "hidden", "mlp",
    "scaled", "tied", "readout_bias", "dropout", "inner_dropout",
}  # fmt: skip
# Theirs: ours.
ACTIVATIONS = {
    "swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "tanh": "tanh",
}  # fmt: skip
# Variants of Marian that old files mention, and that neither Hugging Face's model nor ours has.
FIXED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 58101
    decoder_vocab_size: int | None = None
    max_position_embeddings: int = 1024
    d_model: int = 1024
    encoder_layers: int = 12
    decoder_layers: int = 12
    encoder_attention_heads: int = 16
    decoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    decoder_ffn_dim: int = 4096
    activation_function: Literal["swish", "silu", "relu", "gelu", "gelu_new", "tanh"] = "gelu"
    dropout: float = 0.1
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int = 58100
    decoder_start_token_id: int = 58100
    eos_token_id: int = 0

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab_size",
            "decoder_vocab_size",
            "max_position_embeddings",
            "d_model",
            "decoder_layers",
            "encoder_attention_heads",
            "encoder_ffn_dim",
        )
        at_least(self, 0, "encoder_layers")
        for name in ("attention_heads", "ffn_dim"):
            one, other = getattr(self, f"encoder_{name}"), getattr(self, f"decoder_{name}")
            if one != other:
                raise InputError(
                    f"encoder_{name}={one} and decoder_{name}={other}: expected equal ones"
                )
        if self.share_encoder_decoder_embeddings and not self.tie_word_embeddings:
            raise InputError(
                "share_encoder_decoder_embeddings with tie_word_embeddings=False: versions of transformers disagree on "
                "which tables that shares; expected both, or share_encoder_decoder_embeddings=False"
            )
        for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
            if not 0 <= getattr(self, name) < (self.decoder_vocab_size or self.vocab_size):
                raise InputError(
                    f"{name}={getattr(self, name)}: there is no such token in the vocabulary"
                )

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config. Of their dropout rates only that of the residual stream is kept."""
        return Config(
            vocab=self.vocab_size,
            target_vocab=None
            if self.share_encoder_decoder_embeddings
            else self.decoder_vocab_size or self.vocab_size,
            context=self.max_position_embeddings,
            width=self.d_model,
            depth=self.encoder_layers,
            decoder_depth=self.decoder_layers,
            heads=self.encoder_attention_heads,
            hidden=self.encoder_ffn_dim,
            positions="sinusoid",
            pairs="halves",
            order="post",
            norm="layer",
            mlp=ACTIVATIONS[self.activation_function],  # type: ignore[arg-type]
            scaled=self.scale_embedding,
            tied=self.tie_word_embeddings,
            readout_bias=BIAS in shapes,
            dropout=self.dropout,
        )

    @staticmethod
    def of(c: Config, special: Special) -> Theirs:
        """Their keys of a Config of ours; raises for options that a Marian model does not have."""
        check_options(c, "a Marian model", FREE, {"pairs": "halves"})
        if c.kv_heads not in (None, c.heads):
            raise WeightsError(
                f"kv_heads={c.kv_heads}: a Marian model has as many as heads={c.heads}"
            )
        words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
        if c.mlp not in words:
            raise WeightsError(f"mlp={c.mlp!r}: a Marian model has one of {', '.join(words)}")
        hidden = c.hidden or 4 * c.width
        pad, start, (end, *_) = special.pad, special.start, special.ends or (None,)
        if pad is None or end is None:
            raise WeightsError(f"pad={pad}, end={end}: a Marian model has an id for each")
        return Theirs(
            vocab_size=c.vocab,
            decoder_vocab_size=c.target_vocab or c.vocab,
            max_position_embeddings=c.context,
            d_model=c.width,
            encoder_layers=c.depth,
            decoder_layers=c.decoder_depth or c.depth,
            encoder_attention_heads=c.heads,
            decoder_attention_heads=c.heads,
            encoder_ffn_dim=hidden,
            decoder_ffn_dim=hidden,
            activation_function=words[c.mlp],  # type: ignore[arg-type]
            dropout=c.dropout,
            scale_embedding=c.scaled,
            share_encoder_decoder_embeddings=c.target_vocab is None,
            tie_word_embeddings=c.tied,
            pad_token_id=pad,
            decoder_start_token_id=pad if start is None else start,
            eos_token_id=end,
        )


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    if c.target_vocab is None:
        yield Row(("encoder.embed.table",), (SHARED, SOURCE, TARGET, READOUT))
    else:
        yield Row(("encoder.embed.table",), (SOURCE,))
        yield Row(("decoder.embed.table",), (TARGET, READOUT) if c.tied else (TARGET,))
    if not c.tied:
        yield Row(("head.weight",), (READOUT,))
    if c.readout_bias:
        yield Row(("head.bias",), (BIAS,), ROW)
    for side, depth in (("encoder", c.depth), ("decoder", c.decoder_depth or c.depth)):
        for i in range(depth):
            names = {
                f"{side}.blocks.{i}.{ours}": f"model.{side}.layers.{i}.{theirs}"
                for ours, theirs in PARTS.items()
                if side == "decoder" or "cross" not in ours
            }
            yield from pairs(names)


def read_tokens(folder: Path, theirs: Theirs) -> Pair | None:
    """The tokenizers of source and target; None if the folder has none."""
    if not (folder / "source.spm").is_file():
        both = read_subwords(folder)
        return None if both is None else Pair(both, both)
    try:  # decoding starts from the padding token, unless the model was not trained by Marian
        tokens = read_marian(folder, start=theirs.decoder_start_token_id)
    except InputError as cause:
        raise WeightsError(str(cause)) from cause
    for name, i in (("pad", theirs.pad_token_id), ("end", theirs.eos_token_id)):
        found = getattr(tokens.target, name)
        if found != i:
            raise WeightsError(
                f"{folder / 'config.json'}: the {name} token is {i}, but {found} in the vocabulary"
            )
    return tokens


def write_tokens(tokens: Tokenizer | Pair, folder: Path, special: Special) -> None:
    """Write the files of MarianTokenizer; for one Subwords tokenizer for both sides, a tokenizer.json."""
    if not isinstance(tokens, Pair):
        raise WeightsError(f"{tokens!r}: a Marian model has a pair of tokenizers")
    source, target = tokens.source, tokens.target
    if isinstance(source, Subwords) and tokens.joint:
        write_subwords(ended(source), folder, special)
        return
    if not isinstance(source, Pieces) or not isinstance(target, Pieces):
        raise WeightsError(
            f"{source!r} and {target!r}: a Marian folder has SentencePiece models, or one tokenizer for both"
        )
    atomic_write(folder / "source.spm", source.model.to_bytes())
    atomic_write(folder / "target.spm", target.model.to_bytes())
    config.write(source.vocab, folder / "vocab.json")
    separate = source.vocab != target.vocab
    if separate:
        config.write(target.vocab, folder / "target_vocab.json")
    names = {i: piece for piece, i in target.vocab.items()}
    special_tokens = {
        key: names[getattr(target, name)] for name, (key, _) in SPECIAL_TOKENS.items()
    }
    config.write(
        {"tokenizer_class": "MarianTokenizer", **special_tokens, "separate_vocabs": separate},
        folder / "tokenizer_config.json",
    )


def _is_sinusoid(table: Tensor, c: Config) -> bool:
    """Whether a table of positions holds the sinusoids that our model computes."""
    waves = Sinusoid(c.width, pairs="halves").vectors(torch.arange(len(table)))
    return table.shape == waves.shape and torch.allclose(
        table.float(), waves.float(), rtol=0.0, atol=1e-3
    )


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a Marian model does not have."""
    theirs = Theirs.of(c, special)
    kind = {"architectures": ["MarianMTModel"], "model_type": "marian", "is_encoder_decoder": True}
    dropout = {"attention_dropout": theirs.dropout, "activation_dropout": theirs.dropout}
    return {**kind, **asdict(theirs), **dropout, **FIXED}


def _zero_bias(model: Transformer) -> dict[str, Tensor]:
    """The bias of the output, which a folder of theirs always has: zeros if our model has none."""
    if model.config.readout_bias:
        return {}
    return {BIAS: torch.zeros(1, *model.head.weight.shape[:1]).to(model.head.weight)}


def _reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The logits of transformers."""
    out = pretrained("AutoModelForSeq2SeqLM")(
        input_ids=inputs["source"], decoder_input_ids=inputs["ids"]
    )
    return cast(Tensor, out.logits)


LAYOUT = Layout(
    model="transformer",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=read_tokens,
    write_tokens=write_tokens,
    fixed=FIXED,
    extra_tensors=_zero_bias,
    reference=_reference,
    ignored=lambda c: {
        f"model.{side}.embed_positions.weight": _is_sinusoid for side in ("encoder", "decoder")
    },
)

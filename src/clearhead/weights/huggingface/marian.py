"""Marian, BART and their relatives in Hugging Face's format, to and from our Transformer.

    ours (models/transformer.py)           theirs
    encoder.embed.table                    model.shared.weight, or in a Marian one table for each side
    encoder.blocks.0.attn.query            model.encoder.layers.0.self_attn.q_proj
    decoder.blocks.0.cross.out             model.decoder.layers.0.encoder_attn.out_proj
    encoder.positions.table                model.encoder.embed_positions.weight: BART, mBART and Pegasus
    encoder.embed_norm                     model.encoder.layernorm_embedding: BART and mBART
    encoder.norm                           model.encoder.layer_norm: mBART, M2M-100 and Pegasus
    head.bias                              final_logits_bias: all but M2M-100

marian     (Junczys-Dowmunt et al. 2018) norms after each addition as in Vaswani et al. 2017; the sines of positions are
           in the first half of the columns and the cosines in the second; decoding starts from the padding token.
           Folders of opus-mt (Tiedemann and Thottingal 2020) split text by two SentencePiece models, source.spm and
           target.spm, and take the ids from vocab.json, or from vocab.json and target_vocab.json if source and target
           have vocabularies of their own
bart       (Lewis et al. 2020) norms after each addition, and of the embeddings; learned positions that begin with the
           third row of a table
mbart      (Liu et al. 2020) the same with norms before each sublayer
m2m_100    (Fan et al. 2020; NLLB team 2022) norms before each sublayer, sinusoids that begin at the position after that
           of the padding id, and whose longest wave has exactly 2 pi 10,000 tokens
pegasus    (Zhang et al. 2020) norms before each sublayer, and a table of positions in the file, which may hold any: our
           sinusoids are written into it, and read as a learned table; a file without it has the sinusoids of the paper
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
from ..table import (
    ACTIVATIONS,
    ROW,
    Activation,
    Layout,
    Row,
    blocks,
    check_options,
    pairs,
    read_options,
    their_activation,
    write_options,
)
from .tokenizer_classes import read_pair, write_pair
from .tokenizers import ended, read_subwords, write_subwords

# The layers of a block, one per line. Ours: theirs. Only the decoder has cross-attention.
SELF_ATTENTION = {
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "attn_norm": "self_attn_layer_norm",
}
CROSS_ATTENTION = {
    "cross.query": "encoder_attn.q_proj",
    "cross.key": "encoder_attn.k_proj",
    "cross.value": "encoder_attn.v_proj",
    "cross.out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}
MLP = {
    "mlp.up": "fc1",
    "mlp.down": "fc2",
    "mlp_norm": "final_layer_norm",
}
SHARED = "model.shared.weight"
SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
READOUT, BIAS = "lm_head.weight", "final_logits_bias"
POSITIONS = "model.{}.embed_positions.weight"
# Keys of config.json, and the options of our Config that they are.
SIZES = {
    "vocab_size": "vocab",
    "max_position_embeddings": "context",
    "d_model": "width",
    "encoder_layers": "depth",
    "encoder_attention_heads": "heads",
    "dropout": "dropout",
    "scale_embedding": "scaled",
}
# Options of our Config that all of them have.
FREE = {*SIZES.values(), "decoder_depth", "hidden", "mlp", "readout_bias", "inner_dropout"}


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoder:
    """The keys of config.json that all of them have, with their defaults."""

    vocab_size: int = 50265
    max_position_embeddings: int = 1024
    d_model: int = 1024
    encoder_layers: int = 12
    decoder_layers: int = 12
    encoder_attention_heads: int = 16
    decoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    decoder_ffn_dim: int = 4096
    activation_function: Activation = "gelu"
    dropout: float = 0.1
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    pad_token_id: int = 1

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "max_position_embeddings", "d_model", "decoder_layers")
        at_least(self, 1, *sizes, "encoder_attention_heads", "encoder_ffn_dim")
        at_least(self, 0, "encoder_layers")
        for name in ("attention_heads", "ffn_dim"):
            encoder, decoder = getattr(self, f"encoder_{name}"), getattr(self, f"decoder_{name}")
            if encoder != decoder:
                # encoder and decoder of ours have the same heads and hidden width
                raise InputError(
                    f"encoder_{name}={encoder} and decoder_{name}={decoder}: expected equal ones"
                )

    def sizes(self, shapes: Shapes) -> dict[str, Any]:
        """The options of our Config that all have. Of their dropout rates only that of the residual stream is kept."""
        return read_options(self, SIZES) | {
            "decoder_depth": self.decoder_layers,
            "hidden": self.encoder_ffn_dim,
            "mlp": ACTIVATIONS[self.activation_function],
            # no key tells whether there is a bias: the tensors do
            "readout_bias": BIAS in shapes,
        }


def their_sizes(c: Config, owner: str) -> dict[str, Any]:
    """The keys of config.json for the sizes of our Config; `owner` is the model, for messages."""
    hidden = c.hidden or 4 * c.width
    return write_options(c, SIZES) | {
        # None is as deep as the encoder
        "decoder_layers": c.decoder_depth or c.depth,
        "decoder_attention_heads": c.heads,
        "encoder_ffn_dim": hidden,
        "decoder_ffn_dim": hidden,
        "activation_function": their_activation(c.mlp, owner),
    }


def block_rows(c: Config, side: str) -> Iterator[Row]:
    """The rows of the blocks of the "encoder" or the "decoder"."""
    layers, depth = SELF_ATTENTION | MLP, c.depth
    if side == "decoder":
        # only the decoder reads the output of the encoder
        layers, depth = layers | CROSS_ATTENTION, c.decoder_depth or c.depth
    ours, theirs = f"{side}.blocks.{{}}", f"model.{side}.layers.{{}}"
    yield from blocks({f"{ours}.{a}": f"{theirs}.{b}" for a, b in layers.items()}, depth)


def zero_bias(model: Transformer) -> dict[str, Tensor]:
    """The bias of the output, which a folder of theirs always has: zeros if our model has none."""
    if model.config.readout_bias:
        # it is in the table already
        return {}
    weight = model.head.weight
    # (1, v), as it is stored in their files
    return {BIAS: torch.zeros(1, len(weight)).to(weight)}


def reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The logits of the same model in transformers, for parity certificates."""
    model = pretrained("AutoModelForSeq2SeqLM")
    out = model(input_ids=inputs["source"], decoder_input_ids=inputs["ids"])
    return cast(Tensor, out.logits)


# Marian

# Variants of Marian that old files mention, and that neither Hugging Face's model nor ours has.
MARIAN_FIXED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Marian(EncoderDecoder):
    """The keys of a Marian's config.json that we read, with their defaults."""

    vocab_size: int = 58101
    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    pad_token_id: int = 58100
    decoder_start_token_id: int = 58100
    eos_token_id: int = 0

    def __post_init__(self) -> None:
        EncoderDecoder.__post_init__(self)
        at_least(self, 1, "decoder_vocab_size")
        if self.share_encoder_decoder_embeddings and not self.tie_word_embeddings:
            raise InputError(
                "share_encoder_decoder_embeddings with tie_word_embeddings=False: versions of transformers disagree on "
                "which tables that shares; expected both, or share_encoder_decoder_embeddings=False"
            )
        for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
            # the decoder reads them, so that they are ids of the target
            if not 0 <= getattr(self, name) < self.target_vocab:
                raise InputError(
                    f"{name}={getattr(self, name)}: there is no such token in the vocabulary"
                )

    @property
    def target_vocab(self) -> int:
        """The number of tokens of the target."""
        return self.decoder_vocab_size or self.vocab_size

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        is_shared = self.share_encoder_decoder_embeddings
        return Config(
            **self.sizes(shapes),
            # None: both sides read one table
            target_vocab=None if is_shared else self.target_vocab,
            positions="sinusoid",
            # the sines of all frequencies come first, then the cosines
            pairs="halves",
            order="post",
            norm="layer",
            tied=self.tie_word_embeddings,
        )


def marian_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that a Marian model does not have."""
    free = FREE | {"target_vocab", "kv_heads", "tied"}
    check_options(c, "a Marian model", free, {"pairs": "halves"})
    # as many key heads as heads is what None means
    if c.kv_heads not in (None, c.heads):
        raise WeightsError(f"kv_heads={c.kv_heads}: a Marian model has as many as heads={c.heads}")
    sizes = their_sizes(c, "a Marian model")
    pad, end = special.pad, special.end
    if pad is None or end is None:
        raise WeightsError(f"pad={pad}, end={end}: a Marian model has an id for each")
    theirs = Marian(
        **sizes,
        decoder_vocab_size=c.target_vocab or c.vocab,
        share_encoder_decoder_embeddings=c.target_vocab is None,
        tie_word_embeddings=c.tied,
        pad_token_id=pad,
        # without a BOS decoding starts from padding, as Marian does
        decoder_start_token_id=pad if special.start is None else special.start,
        eos_token_id=end,
    )
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        **asdict(theirs),
        "attention_dropout": c.dropout,
        "activation_dropout": c.dropout,
        **MARIAN_FIXED,
    }


def marian_rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    if c.target_vocab is None:
        # one table, which a file holds under one or several of these names
        yield Row(("encoder.embed.table",), (SHARED, SOURCE, TARGET, READOUT))
    else:
        yield Row(("encoder.embed.table",), (SOURCE,))
        yield Row(("decoder.embed.table",), (TARGET, READOUT) if c.tied else (TARGET,))
    if not c.tied:
        yield Row(("head.weight",), (READOUT,))
    if c.readout_bias:
        # (v) in our model, (1, v) in the file
        yield Row(("head.bias",), (BIAS,), ROW)
    for side in ("encoder", "decoder"):
        yield from block_rows(c, side)


def read_marian_tokens(folder: Path, theirs: Marian) -> Pair | None:
    """The tokenizers of source and target; None if the folder has none."""
    # folders that we wrote may have one tokenizer.json for both sides
    if not (folder / "source.spm").is_file():
        both = read_subwords(folder)
        return None if both is None else Pair(both, both)
    try:  # decoding starts from the padding token, unless the model was not trained by Marian
        tokens = read_marian(folder, start=theirs.decoder_start_token_id)
    except InputError as cause:
        raise WeightsError(str(cause)) from cause
    for name, expected in (("pad", theirs.pad_token_id), ("end", theirs.eos_token_id)):
        token_id = getattr(tokens.target, name)
        if token_id != expected:
            raise WeightsError(
                f"{folder / 'config.json'}: the {name} token is {expected}, but {token_id} in the vocabulary"
            )
    return tokens


def write_marian_tokens(tokens: Tokenizer | Pair, folder: Path, special: Special) -> None:
    """Write the files of MarianTokenizer; for one Subwords tokenizer for both sides, a tokenizer.json."""
    if not isinstance(tokens, Pair):
        raise WeightsError(f"{tokens!r}: a Marian model has a pair of tokenizers")
    source, target = tokens.source, tokens.target
    if isinstance(source, Subwords) and tokens.joint:
        # no SentencePiece models: one tokenizer.json for both sides, which ends every text with EOS
        write_subwords(ended(source), folder, special)
        return
    if not isinstance(source, Pieces) or not isinstance(target, Pieces):
        raise WeightsError(
            f"{source!r} and {target!r}: a Marian folder has SentencePiece models, or one tokenizer for both"
        )
    atomic_write(folder / "source.spm", source.model.to_bytes())
    atomic_write(folder / "target.spm", target.model.to_bytes())
    config.write(source.vocab, folder / "vocab.json")
    is_separate = source.vocab != target.vocab
    if is_separate:
        config.write(target.vocab, folder / "target_vocab.json")
    pieces = {i: piece for piece, i in target.vocab.items()}
    settings: dict[str, Any] = {"tokenizer_class": "MarianTokenizer"}
    for name, (key, _) in SPECIAL_TOKENS.items():
        # by name: MarianTokenizer looks their ids up in the vocabulary
        settings[key] = pieces[getattr(target, name)]
    settings["separate_vocabs"] = is_separate
    config.write(settings, folder / "tokenizer_config.json")


def is_marian_table(table: Tensor, c: Config) -> bool:
    """True if a table of positions holds the sinusoids that our model computes."""
    return _equals(table, Sinusoid(c.width, pairs="halves").vectors(torch.arange(len(table))))


def _equals(table: Tensor, waves: Tensor) -> bool:
    """True if a table holds these sinusoids, as far as files of half precision can tell."""
    if table.shape != waves.shape:
        return False
    return torch.allclose(table.float(), waves.float(), rtol=0.0, atol=1e-3)


# BART, mBART, M2M-100 and NLLB, Pegasus

OFFSET = 2  # rows of a table of learned positions that are not used
WAVE = 10_000.0  # the longest wave of M2M-100's sinusoids, divided by 2 pi
CLASSES = {
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
}
OWNERS = {"bart": "a BART", "mbart": "an mBART", "m2m_100": "an M2M-100", "pegasus": "a Pegasus"}
# Classes of tokenizers of a folder that names none: keys of SCHEMES.
TOKENIZERS: dict[str, tuple[str, ...]] = {
    "bart": ("BartTokenizer",),
    "mbart": ("MBartTokenizer",),
    "m2m_100": ("M2M100Tokenizer", "NllbTokenizer"),
    "pegasus": (),
}
# Defaults that differ from a BART's.
DEFAULTS: dict[str, dict[str, Any]] = {
    "m2m_100": {"vocab_size": 128112, "activation_function": "relu", "scale_embedding": True},
    "pegasus": {"pad_token_id": 0},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bart(EncoderDecoder):
    """The keys of their config.json that we read, with their defaults."""

    model_type: Literal["bart", "mbart", "m2m_100", "pegasus"] = "bart"

    def __post_init__(self) -> None:
        EncoderDecoder.__post_init__(self)
        at_least(self, 0, "pad_token_id")
        if not self.tie_word_embeddings:
            raise InputError(
                "tie_word_embeddings=False: expected one table for source, target and output"
            )
        if self.model_type == "m2m_100":
            # the base of its sinusoids divides by width - 2
            at_least(self, 3, "d_model")
            if self.d_model % 2:
                raise InputError(
                    f"d_model={self.d_model}: expected an even width, for as many sines as cosines"
                )

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert these keys of config.json to the Config of our model."""
        positions: dict[str, Any] = {}
        if self.model_type == "pegasus":  # whose files may leave the table of positions out
            has_table = POSITIONS.format("encoder") in shapes
            # without the table the sinusoids are those of the paper
            positions = {"positions": "learned"} if has_table else {"pairs": "halves"}
        fixed = bart_fixed(self.model_type, self.d_model, self.pad_token_id)
        return Config(**self.sizes(shapes), **positions, **fixed)


def bart_fixed(model_type: str, width: int, pad: int) -> dict[str, Any]:
    """The options of our Config that are the same for all models of a type, width and padding id."""
    if model_type == "m2m_100":
        # WAVE^(-i / (width/2 - 1)) = base^(-2i / width)
        base = WAVE ** (width / (width - 2))
        waves = {"positions": "sinusoid", "pairs": "halves", "base": base}
        # the first position is the one after the padding id
        return {"order": "pre", "offset": pad + 1, **waves}
    if model_type == "pegasus":
        # positions may be learned or sinusoids
        return {"order": "pre"}
    order = "pre" if model_type == "mbart" else "post"
    return {"order": order, "embed_norm": True, "positions": "learned", "offset": OFFSET}


def _nearest(c: Config) -> Literal["bart", "mbart", "m2m_100", "pegasus"]:
    """The type of these models that is most like ours: the others lack a whole layer of it, or have one more."""
    if c.positions == "sinusoid" and c.offset:
        # sinusoids that begin behind the padding id
        return "m2m_100"
    if c.order == "pre":
        # only an mBART has a norm of the embeddings
        return "mbart" if c.embed_norm else "pegasus"
    return "bart"


def bart_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that none of these models has."""
    model_type = _nearest(c)
    # messages speak of the model that is nearest
    owner = OWNERS[model_type]
    free = FREE | ({"positions", "pairs", "base"} if model_type == "pegasus" else set())
    # a width below 3, for which the base would divide by 0, is refused further down
    check_options(c, owner, free, bart_fixed(model_type, max(c.width, 3), c.offset - 1))
    if model_type == "pegasus" and c.positions not in ("learned", "sinusoid"):
        raise WeightsError(f"positions={c.positions!r}: {owner} has learned, sinusoid")
    sizes = their_sizes(c, owner)
    pad = special.pad
    if model_type == "m2m_100":  # whose positions follow the padding id
        if c.readout_bias or c.offset < 1 or pad not in (None, c.offset - 1):
            raise WeightsError(
                f"readout_bias={c.readout_bias}, offset={c.offset}, pad={pad}: {owner} has no readout bias, and the "
                "padding id offset - 1"
            )
        pad = c.offset - 1
    if pad is None:
        # the default of their class
        pad = DEFAULTS.get(model_type, {}).get("pad_token_id", 1)
    theirs = {
        "architectures": [CLASSES[model_type]],
        "is_encoder_decoder": True,
        **asdict(Bart(model_type=model_type, pad_token_id=pad, **sizes)),
        "attention_dropout": c.dropout,
        "forced_eos_token_id": special.last,  # whose default is a token in their classes
    }
    ids = {
        "decoder_start_token_id": special.start,
        "eos_token_id": special.end,
        "forced_bos_token_id": special.first,
    }
    # a key that is left out has the default of their class
    return theirs | {key: i for key, i in ids.items() if i is not None}


def bart_rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    yield Row(("encoder.embed.table",), (SHARED, SOURCE, TARGET, READOUT))
    if c.readout_bias:
        yield Row(("head.bias",), (BIAS,), ROW)
    for side in ("encoder", "decoder"):
        if c.positions == "learned":
            # sinusoids are computed, and have no parameter
            yield Row((f"{side}.positions.table",), (POSITIONS.format(side),))
        if c.embed_norm:
            yield from pairs({f"{side}.embed_norm": f"model.{side}.layernorm_embedding"})
        if c.order == "pre":
            # a norm before each sublayer leaves the last output unnormalised: one more follows
            yield from pairs({f"{side}.norm": f"model.{side}.layer_norm"})
        yield from block_rows(c, side)


def bart_extra(model: Transformer) -> dict[str, Tensor]:
    """Tensors that their models need and ours lacks: an output bias of zeros, and a Pegasus's sinusoids as tables."""
    c, weight = model.config, model.head.weight
    if _nearest(c) == "m2m_100":
        # its outputs have no bias, and its positions are computed
        return {}
    tensors = zero_bias(model)
    if c.positions == "sinusoid":
        # their Pegasus reads the table from the file, whatever it holds
        waves = cast(Sinusoid, model.encoder.positions).vectors(torch.arange(c.context)).to(weight)
        for side in ("encoder", "decoder"):
            tensors[POSITIONS.format(side)] = waves.clone()
    return tensors


def bart_reference(
    pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config
) -> Tensor:
    """The logits of the same model in transformers, for parity certificates."""
    if _nearest(c) != "m2m_100":
        return reference(pretrained, inputs, c)
    # Given ids, an M2M-100 does not count those that look like padding; given embeddings, it counts all.
    model = pretrained("AutoModelForSeq2SeqLM")
    embed = model.get_input_embeddings()
    source, target = embed(inputs["source"]), embed(inputs["ids"])
    return cast(Tensor, model(inputs_embeds=source, decoder_inputs_embeds=target).logits)


def is_m2m_table(table: Tensor, c: Config) -> bool:
    """True if a table of positions, which old files of M2M-100 have, holds the sinusoids that our model computes."""
    waves = Sinusoid(c.width, pairs="halves", base=c.base).vectors(torch.arange(len(table))).float()
    waves[c.offset - 1] = 0.0  # the row of the padding id
    return _equals(table, waves)


def bart_ignored(c: Config) -> dict[str, Callable[[Tensor, Any], bool]]:
    """The sinusoids that old files of M2M-100 have."""
    if c.positions == "learned":
        return {}
    return {"model.*.embed_positions.weights": is_m2m_table}


BART = Layout(
    model="transformer",
    theirs=Bart,
    to_ours=Bart.to_ours,
    to_theirs=bart_keys,
    rows=bart_rows,
    read_tokens=lambda folder, theirs: read_pair(folder, *TOKENIZERS[theirs.model_type]),
    write_tokens=write_pair,
    defaults=DEFAULTS,
    prefix="model.",
    extra_tensors=bart_extra,
    reference=bart_reference,
    ignored=bart_ignored,
)
LAYOUTS = {
    "marian": Layout(
        model="transformer",
        theirs=Marian,
        to_ours=Marian.to_ours,
        to_theirs=marian_keys,
        rows=marian_rows,
        read_tokens=read_marian_tokens,
        write_tokens=write_marian_tokens,
        fixed=MARIAN_FIXED,
        extra_tensors=zero_bias,
        reference=reference,
        ignored=lambda c: dict.fromkeys(
            map(POSITIONS.format, ("encoder", "decoder")), is_marian_table
        ),
    ),
    **dict.fromkeys(("bart", "mbart", "m2m_100", "pegasus"), BART),
}

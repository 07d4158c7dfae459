"""BART (Lewis et al. 2020), mBART, M2M-100 (NLLB) and Pegasus in Hugging Face's format, to and from our Transformer.

    ours (models/transformer.py)           theirs
    encoder.embed.table                    model.shared.weight
    encoder.positions.table                model.encoder.embed_positions.weight: BART, mBART and Pegasus
    encoder.embed_norm                     model.encoder.layernorm_embedding: BART and mBART
    encoder.norm                           model.encoder.layer_norm: mBART, M2M-100 and Pegasus
    head.bias                              final_logits_bias: all but M2M-100

bart       norms after each addition, and of the embeddings; learned positions that begin with the third row of a table
mbart      the same with norms before each sublayer (Liu et al. 2020)
m2m_100    also NLLB: norms before each sublayer, sinusoids that begin at the position after that of the padding id, and
           whose longest wave has exactly 2 pi 10,000 tokens (Fan et al. 2020; NLLB team 2022)
pegasus    norms before each sublayer, and a table of positions in the file, which may hold any (Zhang et al. 2020): our
           sinusoids are written into it, and read as a learned table; a file without it has the sinusoids of the paper
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...layers import Sinusoid
from ...models.transformer import Config, Transformer
from ...tokens import Pair
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import ROW, Layout, Row, check_options, pairs
from .marian import ACTIVATIONS, BIAS, PARTS, READOUT, SHARED, SOURCE, TARGET
from .tokenizers import read_pair, write_pair

OFFSET = 2  # rows of a table of learned positions that are not used
WAVE = 10_000.0  # the longest wave of M2M-100's sinusoids, divided by 2 pi
KINDS = {
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
}
# Classes of tokenizers of a folder that names none: keys of SCHEMES.
TOKENIZERS = {
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
TABLE = "model.{}.embed_positions.weight"
FREE = {
    "vocab", "context", "width", "depth", "decoder_depth", "heads", "hidden", "mlp", "scaled", "readout_bias",
    "dropout", "inner_dropout",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    model_type: Literal["bart", "mbart", "m2m_100", "pegasus"] = "bart"
    vocab_size: int = 50265
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
    tie_word_embeddings: bool = True
    pad_token_id: int = 1

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab_size",
            "max_position_embeddings",
            "decoder_layers",
            "encoder_attention_heads",
            "encoder_ffn_dim",
        )
        at_least(self, 3 if self.model_type == "m2m_100" else 1, "d_model")
        at_least(self, 0, "encoder_layers", "pad_token_id")
        for name in ("attention_heads", "ffn_dim"):
            one, other = getattr(self, f"encoder_{name}"), getattr(self, f"decoder_{name}")
            if one != other:
                raise InputError(
                    f"encoder_{name}={one} and decoder_{name}={other}: expected equal ones"
                )
        if not self.tie_word_embeddings:
            raise InputError(
                "tie_word_embeddings=False: expected one table for source, target and output"
            )
        if self.model_type == "m2m_100" and self.d_model % 2:
            raise InputError(
                f"d_model={self.d_model}: expected an even width, for as many sines as cosines"
            )

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config. Of their dropout rates only that of the residual stream is kept."""
        return Config(
            vocab=self.vocab_size,
            context=self.max_position_embeddings,
            width=self.d_model,
            depth=self.encoder_layers,
            decoder_depth=self.decoder_layers,
            heads=self.encoder_attention_heads,
            hidden=self.encoder_ffn_dim,
            mlp=ACTIVATIONS[self.activation_function],  # type: ignore[arg-type]
            scaled=self.scale_embedding,
            readout_bias=BIAS in shapes,
            dropout=self.dropout,
            **self._positions(shapes),
            **_fixed(self.model_type, self.d_model, self.pad_token_id),
        )

    def _positions(self, shapes: Shapes) -> dict[str, Any]:
        """The positions of a Pegasus, which its files may leave out."""
        if self.model_type != "pegasus":
            return {}
        if TABLE.format("encoder") in shapes:
            return {"positions": "learned"}
        return {"pairs": "halves"}


def _fixed(kind: str, width: int, pad: int) -> dict[str, Any]:
    """The options of our Config that are the same for all models of a type, width and padding id."""
    if kind == "m2m_100":  # WAVE^(-i / (width/2 - 1)) = base^(-2i / width)
        waves = {"positions": "sinusoid", "pairs": "halves", "base": WAVE ** (width / (width - 2))}
        return {"order": "pre", "offset": pad + 1, **waves}
    if kind == "pegasus":
        return {"order": "pre"}
    return {
        "order": "pre" if kind == "mbart" else "post",
        "embed_norm": True,
        "positions": "learned",
        "offset": OFFSET,
    }


def _nearest(c: Config) -> str:
    """The type of these models that is most like ours: the others lack a whole layer of it, or have one more."""
    if c.positions == "sinusoid" and c.offset:
        return "m2m_100"
    if c.order == "pre":
        return "mbart" if c.embed_norm else "pegasus"
    return "bart"


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that none of these models has."""
    kind = _nearest(c)
    name = {"bart": "a BART", "mbart": "an mBART", "m2m_100": "an M2M-100", "pegasus": "a Pegasus"}[
        kind
    ]
    pad = c.offset - 1 if kind == "m2m_100" else special.pad
    places = {"positions", "pairs", "base"} if kind == "pegasus" else set()
    check_options(c, name, FREE | places, _fixed(kind, max(c.width, 3), c.offset - 1))
    if kind == "pegasus" and c.positions not in ("learned", "sinusoid"):
        raise WeightsError(f"positions={c.positions!r}: {name} has learned, sinusoid")
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    if c.mlp not in words:
        raise WeightsError(f"mlp={c.mlp!r}: {name} has one of {', '.join(words)}")
    if kind == "m2m_100" and (c.readout_bias or c.offset < 1 or special.pad not in (None, pad)):
        raise WeightsError(
            f"readout_bias={c.readout_bias}, offset={c.offset}, pad={special.pad}: {name} has no readout bias, and the "
            "padding id offset - 1"
        )
    hidden = c.hidden or 4 * c.width
    theirs = Theirs(
        model_type=kind,  # type: ignore[arg-type]
        vocab_size=c.vocab,
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
        pad_token_id=DEFAULTS.get(kind, {}).get("pad_token_id", 1) if pad is None else pad,
    )
    ends = special.ends[0] if special.ends else None
    ids = {
        "decoder_start_token_id": special.start,
        "eos_token_id": ends,
        "forced_bos_token_id": special.first,
    }
    rest = {
        "architectures": [KINDS[kind]],
        "is_encoder_decoder": True,
        "attention_dropout": c.dropout,
    }
    rest |= {"forced_eos_token_id": special.last}  # whose default is a token in their classes
    return {**asdict(theirs), **rest, **{key: i for key, i in ids.items() if i is not None}}


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    yield Row(("encoder.embed.table",), (SHARED, SOURCE, TARGET, READOUT))
    if c.readout_bias:
        yield Row(("head.bias",), (BIAS,), ROW)
    for side, depth in (("encoder", c.depth), ("decoder", c.decoder_depth or c.depth)):
        if c.positions == "learned":
            yield Row((f"{side}.positions.table",), (TABLE.format(side),))
        if c.embed_norm:
            yield from pairs({f"{side}.embed_norm": f"model.{side}.layernorm_embedding"})
        if c.order == "pre":
            yield from pairs({f"{side}.norm": f"model.{side}.layer_norm"})
        parts = {
            ours: theirs
            for ours, theirs in PARTS.items()
            if side == "decoder" or "cross" not in ours
        }
        for i in range(depth):
            yield from pairs(
                {f"{side}.blocks.{i}.{a}": f"model.{side}.layers.{i}.{b}" for a, b in parts.items()}
            )


def read_tokens(folder: Path, theirs: Theirs) -> Pair | None:
    """One tokenizer for source and target; None if the folder has none."""
    return read_pair(folder, *TOKENIZERS[theirs.model_type])


def extra_tensors(model: Transformer) -> dict[str, Tensor]:
    """The tables of a Pegasus's positions where we compute them, and the bias of an output that has none: zeros."""
    c, weight = model.config, model.head.weight
    if _nearest(c) == "m2m_100":
        return {}
    if c.readout_bias:
        tensors = {}
    else:
        tensors = {BIAS: torch.zeros(1, len(weight)).to(weight)}
    if c.positions == "sinusoid":
        waves = cast(Sinusoid, model.encoder.positions).vectors(torch.arange(c.context)).to(weight)
        tensors |= {TABLE.format(side): waves.clone() for side in ("encoder", "decoder")}
    return tensors


def reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The logits of transformers."""
    model = pretrained("AutoModelForSeq2SeqLM")
    if _nearest(c) == "m2m_100":  # given embeddings, it also counts ids that look like padding
        embed = model.get_input_embeddings()
        out = model(
            inputs_embeds=embed(inputs["source"]), decoder_inputs_embeds=embed(inputs["ids"])
        )
    else:
        out = model(input_ids=inputs["source"], decoder_input_ids=inputs["ids"])
    return cast(Tensor, out.logits)


def _is_wave(table: Tensor, c: Config) -> bool:
    """Whether a table of positions, which old files of M2M-100 have, holds the sinusoids that our model computes."""
    waves = Sinusoid(c.width, pairs="halves", base=c.base).vectors(torch.arange(len(table))).float()
    waves[c.offset - 1] = 0.0
    return table.shape == waves.shape and torch.allclose(table.float(), waves, rtol=0.0, atol=1e-3)


LAYOUT = Layout(
    model="transformer",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=read_tokens,
    write_tokens=write_pair,
    defaults=DEFAULTS,
    prefix="model.",
    extra_tensors=extra_tensors,
    reference=reference,
    ignored=lambda c: (
        {} if c.positions == "learned" else {"model.*.embed_positions.weights": _is_wave}
    ),
)

"""A ViT whose tokens a GPT-2 attends to, the usual captioner in Hugging Face's format, to and from our captioner.

    ours (models/captioner.py)             theirs
    encoder.blocks.0.attn.query            encoder.encoder.layer.0.attention.attention.query; see vit.py
    memory.project                         enc_to_dec_proj, where the widths differ
    decoder.blocks.0.attn.query ...        decoder.transformer.h.0.attn.c_attn; see gpt2.py
    decoder.blocks.0.cross.query           decoder.transformer.h.0.crossattention.q_attn
    decoder.blocks.0.cross.key, .value     decoder.transformer.h.0.crossattention.c_attn: both concatenated
    decoder.blocks.0.cross_norm            decoder.transformer.h.0.ln_cross_attn

config.json has a section for each of the two, in the format of their own folders. Only a ViT and a GPT-2 are read:
other encoders and decoders (Swin, TrOCR, BERT ...) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from torch import Tensor

from ... import config
from ...models import gpt
from ...models.captioner import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import JOINED_TRANSPOSED, TRANSPOSED, Layout, Row, blocks, pairs, require
from . import gpt2, vit
from .folder import read_theirs
from .tokenizers import folder_tokens, write_subwords

# The layers of cross-attention, one per line. Ours: theirs.
CROSS_KEY_VALUE = {
    "decoder.blocks.{}.cross.key+value": "decoder.transformer.h.{}.crossattention.c_attn"
}
CROSS_LINEAR = {
    "decoder.blocks.{}.cross.query": "decoder.transformer.h.{}.crossattention.q_attn",
    "decoder.blocks.{}.cross.out": "decoder.transformer.h.{}.crossattention.c_proj",
}
CROSS_NORM = {"decoder.blocks.{}.cross_norm": "decoder.transformer.h.{}.ln_cross_attn"}
# fixed keys of the decoder
CROSS = {"add_cross_attention": True, "cross_attention_hidden_size": None}
# The sections of config.json: the only model type of each, and the layout that reads it.
SECTIONS = {
    "encoder": ("vit", vit.LAYOUTS["vit"]),
    "decoder": ("gpt2", replace(gpt2.GPT2, fixed=gpt2.FIXED | CROSS)),
}
# What all such captioners have. Ours: its only value.
PLAIN: dict[str, Any] = {
    "decoder": "transformer", "encoder_depth": 0, "places": "none", "special": True, "positions": "learned",
    "order": "pre", "scaled": False,
}  # fmt: skip
# with our GPT
SHARED = ("vocab", "context", "width", "depth", "heads", "hidden", "mlp", "eps", "tied", "dropout")
MASKS = ("bias", "masked_bias")  # causal masks in old files


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionerKeys:
    """The sections of their config.json."""

    encoder: dict[str, Any] = field(default_factory=dict)
    decoder: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sections()

    def sections(self) -> list[Any]:
        """The keys of each section that we read; raises if it is of a model that we do not support."""
        return [_section(name, getattr(self, name)) for name in SECTIONS]

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert to our Config; of their dropout rates only that of the decoder's residual stream is kept."""
        # without shapes: neither has a head here
        encoder, decoder = (theirs.to_ours({}) for theirs in self.sections())
        shared = {name: getattr(decoder, name) for name in SHARED}
        return Config(
            # the options of the encoder with the name of its family
            encoder={"name": "vit", **config.dump(encoder)},
            bridge=_bridge(encoder.width, decoder.width),
            inner_dropout=decoder.dropout,
            **PLAIN,
            **shared,
        )


def _section(name: str, values: Mapping[str, Any]) -> Any:
    expected, layout = SECTIONS[name]
    model_type = values.get("model_type")
    if model_type != expected:
        raise WeightsError(
            f"{name}.model_type is {model_type!r}, expected {expected!r}: of vision-encoder-decoder models, those with "
            "a ViT (vit) and a GPT-2 (gpt2) are supported"
        )
    return read_theirs(layout, config.Table(values, key=(name,)))  # the caller names the file


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """The config.json for our Config; raises for options that such a captioner does not have."""
    require(c, "a ViT and GPT-2 captioner", PLAIN)
    if c.encoder["name"] != "vit":
        raise WeightsError(
            f"encoder.name={c.encoder['name']!r}: a ViT and GPT-2 captioner has a 'vit'"
        )
    encoder = c.encoder_config()
    bridge = _bridge(encoder.width, c.width)
    if c.bridge != bridge:
        raise WeightsError(
            f"bridge={c.bridge!r}: a ViT and GPT-2 captioner of widths {encoder.width} and {c.width} has "
            f"bridge={bridge!r}"
        )
    # GPT-2 has one special token, which begins and ends a text
    start = special.end if special.start is None else special.start
    ids = {
        "decoder_start_token_id": start, "eos_token_id": special.end, "pad_token_id": special.pad,
    }  # fmt: skip
    decoder = gpt2.to_theirs(_gpt(c), special) | {"is_decoder": True, "add_cross_attention": True}
    return {
        "architectures": ["VisionEncoderDecoderModel"],
        "model_type": "vision-encoder-decoder",
        "is_encoder_decoder": True,
        # about encoder and decoder together; the decoder's own section has its tying
        "tie_word_embeddings": False,
        "encoder": vit.vit_keys(encoder),
        "decoder": decoder,
        **ids,
    }


def _bridge(encoder: int, decoder: int) -> Literal["linear", "none"]:
    """How encoder tokens become the decoder's memory: by a linear map if the widths differ, else unchanged."""
    return "none" if encoder == decoder else "linear"


def _gpt(c: Config) -> gpt.Config:
    """The Config of our GPT with the sizes of the decoder."""
    return gpt.Config(**{name: getattr(c, name) for name in SHARED})


def rows(c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    for row in vit.vit_rows("encoder", c.encoder_config()):
        # their names begin with the prefix already, ours do not
        yield Row(tuple(f"encoder.{name}" for name in row.ours), row.theirs, row.conversion)
    if c.bridge == "linear":
        yield from pairs({"memory.project": "enc_to_dec_proj"})
    for row in gpt2.rows(_gpt(c)):
        ours = row.ours
        if not ours[0].startswith("head."):
            # ours has the output layer beside the decoder
            ours = tuple(f"decoder.{name}" for name in ours)
        yield Row(ours, tuple(f"decoder.{name}" for name in row.theirs), row.conversion)
    yield from blocks(CROSS_KEY_VALUE, c.depth, conversion=JOINED_TRANSPOSED)
    yield from blocks(CROSS_LINEAR, c.depth, conversion=TRANSPOSED)
    yield from blocks(CROSS_NORM, c.depth)


def ignored(c: Config) -> dict[str, None]:
    """The pooler and the mask token of the encoder, for other tasks, and the causal masks of old files."""
    masks = []
    for part in ("attn", "crossattention"):
        masks += [f"decoder.transformer.h.*.{part}.{name}" for name in MASKS]
    return vit.vit_ignored("encoder") | dict.fromkeys(masks)


def _reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The logits of the same model in transformers, for parity certificates."""
    height, width = c.encoder_config().shape
    out = pretrained("VisionEncoderDecoderModel")(
        pixel_values=inputs["images"],
        decoder_input_ids=inputs["ids"],
        # transformers can only interpolate positions to a square grid
        interpolate_pos_encoding=height == width,
    )
    return cast(Tensor, out.logits)


CAPTIONER = Layout(
    model="captioner",
    theirs=CaptionerKeys,
    to_ours=CaptionerKeys.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    reference=_reference,
    read_tokens=folder_tokens,
    write_tokens=write_subwords,
    ignored=ignored,
)
LAYOUTS = {"vision-encoder-decoder": CAPTIONER}

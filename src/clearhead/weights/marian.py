"""Marian's translators as Hugging Face keeps them, to and from our Transformer.

    ours (models/transformer.py)           theirs
    encoder.embed.table                    model.shared.weight, or one table each side
    encoder.blocks.0.attn.query            model.encoder.layers.0.self_attn.q_proj
    decoder.blocks.0.cross.out             model.decoder.layers.0.encoder_attn.out_proj
    head.bias                              final_logits_bias

A folder holds config.json (model_type "marian") and model.safetensors or pytorch_model.bin. Marian
(Junczys-Dowmunt et al. 2018) has Vaswani's order of norms, puts sines into the first half of a position's columns and
cosines into the second, and begins to write from the padding token. Every tensor of a file is used, or it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from .. import config
from ..layers import Sinusoid
from ..models.transformer import Config, Transformer
from .native import WeightsError, _compare, _device, _dtype, _opened, _slots
from .tensors import write_tensors

# Of a block, of both sides unless it looks at the source: ours, theirs.
PARTS = {
    "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj", "attn_norm": "self_attn_layer_norm",
    "cross.query": "encoder_attn.q_proj", "cross.key": "encoder_attn.k_proj", "cross.value": "encoder_attn.v_proj",
    "cross.out": "encoder_attn.out_proj", "cross_norm": "encoder_attn_layer_norm",
    "mlp.up": "fc1", "mlp.down": "fc2", "mlp_norm": "final_layer_norm",
}  # fmt: skip
SHARED, SOURCE, TARGET = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
READOUT, BIAS = "lm_head.weight", "final_logits_bias"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")  # constants, in old files
ACTIVATIONS = {
    "swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "tanh": "tanh",
}  # fmt: skip
# What old files say of Marian's other wirings, which neither Hugging Face's model nor ours has.
WIRING = {"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
          "static_position_embeddings": True}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Special:
    """The ids that a search needs to know."""

    pad: int  # fills short rows
    start: int  # what the decoder goes on from; in Marian's models the padding
    end: int  # ends a source and a translation


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """What their config.json says of a model, in their words; what it leaves out is as here."""

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
        for name in ("attention_heads", "ffn_dim"):
            one, other = getattr(self, f"encoder_{name}"), getattr(self, f"decoder_{name}")
            if one != other:
                raise ValueError(f"encoder_{name}={one} and decoder_{name}={other}: expected equal ones")
        if self.share_encoder_decoder_embeddings and not self.tie_word_embeddings:
            raise ValueError(
                "share_encoder_decoder_embeddings with tie_word_embeddings=False: versions of their library disagree "
                "on which tables that shares; expected both, or share_encoder_decoder_embeddings=False"
            )
        for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
            if not 0 <= getattr(self, name) < (self.decoder_vocab_size or self.vocab_size):
                raise ValueError(f"{name}={getattr(self, name)}: there is no such token in the vocabulary")

    def ours(self, *, bias: bool) -> Config:
        """The same in our words. Only one share of dropout is kept, that of what is added to the stream."""
        return Config(
            vocab=self.vocab_size,
            target_vocab=None if self.share_encoder_decoder_embeddings else self.decoder_vocab_size or self.vocab_size,
            context=self.max_position_embeddings, width=self.d_model, depth=self.encoder_layers,
            decoder_depth=self.decoder_layers, heads=self.encoder_attention_heads, hidden=self.encoder_ffn_dim,
            positions="sinusoid", pairs="halves", order="post", norm="layer",
            mlp=ACTIVATIONS[self.activation_function],  # type: ignore[arg-type]
            scaled=self.scale_embedding, tied=self.tie_word_embeddings, readout_bias=bias, dropout=self.dropout,
        )  # fmt: skip

    @staticmethod
    def of(c: Config, special: Special) -> Theirs:
        """Ours in their words; raises for what they have no word for."""
        expected = {
            "positions": "sinusoid", "pairs": "halves", "order": "post", "norm": "layer", "eps": 1e-5, "bias": True,
        }  # fmt: skip
        for name, value in expected.items():
            if getattr(c, name) != value:
                raise WeightsError(f"{name}={getattr(c, name)!r}: a Marian model has {name}={value!r}")
        if c.kv_heads not in (None, c.heads):
            raise WeightsError(f"kv_heads={c.kv_heads}: a Marian model has as many as heads={c.heads}")
        words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
        if c.mlp not in words:
            raise WeightsError(f"mlp={c.mlp!r}: a Marian model has one of {', '.join(words)}")
        hidden = c.hidden or 4 * c.width
        return Theirs(
            vocab_size=c.vocab, decoder_vocab_size=c.target_vocab or c.vocab, max_position_embeddings=c.context,
            d_model=c.width, encoder_layers=c.depth, decoder_layers=c.decoder_depth or c.depth,
            encoder_attention_heads=c.heads, decoder_attention_heads=c.heads, encoder_ffn_dim=hidden,
            decoder_ffn_dim=hidden, activation_function=words[c.mlp],  # type: ignore[arg-type]
            dropout=c.dropout, scale_embedding=c.scaled, share_encoder_decoder_embeddings=c.target_vocab is None,
            tie_word_embeddings=c.tied, pad_token_id=special.pad, decoder_start_token_id=special.start,
            eos_token_id=special.end,
        )  # fmt: skip


def load(
    folder: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype | None = None
) -> tuple[Transformer, Special]:
    """The translator of a folder, in evaluation mode, and the ids that a search of it needs."""
    folder, device, dtype = Path(folder), _device(device), _dtype(dtype)
    table = config.load(folder / "config.json")
    if table.get("model_type") != "marian":
        raise WeightsError(f"{folder / 'config.json'}: model_type is {table.get('model_type')!r}, expected 'marian'")
    for name, value in WIRING.items():
        if table.get(name, value) != value:
            raise WeightsError(f"{table.source.place((name,))}{name} is {table[name]}: expected {value}")
    known = {field.name for field in fields(Theirs)}
    theirs = config.read(Theirs, table.without(*(name for name in table if name not in known or table[name] is None)))
    path, given = _tensors(folder)
    chosen = theirs.ours(bias=BIAS in given)
    with torch.device("meta"):  # numbers that are about to be replaced are neither drawn nor stored
        model = Transformer(chosen)
    _fill(model, path, given, device, dtype)
    special = Special(pad=theirs.pad_token_id, start=theirs.decoder_start_token_id, end=theirs.eos_token_id)
    return model.eval(), special


def save(model: Transformer, folder: str | Path, special: Special) -> Path:
    """Write a Transformer as their folder, which MarianMTModel.from_pretrained reads; returns the folder."""
    folder, theirs = Path(folder), Theirs.of(model.config, special)
    slots = {name: x.detach().cpu().contiguous() for name, (x, _) in _slots(model).items()}
    tensors = {names[0]: slots[ours] for ours, names in _names(model.config) if ours in slots}
    tensors[BIAS] = slots["head.bias"] if "head.bias" in slots else torch.zeros_like(model.head.weight[:, 0]).cpu()
    tensors[BIAS] = tensors[BIAS].detach()[None]
    folder.mkdir(parents=True, exist_ok=True)
    with config.replacing(folder / "model.safetensors") as temporary:
        write_tensors(temporary, tensors)
    ids = {name: getattr(theirs, name) for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id")}
    config.write({**ids, "bad_words_ids": [[special.pad]]}, folder / "generation_config.json")
    words = {"architectures": ["MarianMTModel"], "model_type": "marian", "is_encoder_decoder": True}
    # They drop in three places, we in the same three, by one share.
    dropped = {"attention_dropout": theirs.dropout, "activation_dropout": theirs.dropout}
    kind = str(model.head.weight.dtype).removeprefix("torch.")
    config.write({**words, **asdict(theirs), **dropped, **WIRING, "dtype": kind}, folder / "config.json")
    return folder


def _names(c: Config) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each parameter of ours with its names there: the first is the usual one, the others must be equal to it."""
    if c.target_vocab is None:
        yield "encoder.embed.table", (SHARED, SOURCE, TARGET, READOUT)
    else:
        yield "encoder.embed.table", (SOURCE,)
        yield "decoder.embed.table", (TARGET, READOUT) if c.tied else (TARGET,)
    if not c.tied:
        yield "head.weight", (READOUT,)
    if c.readout_bias:
        yield "head.bias", (BIAS,)
    for side, depth in (("encoder", c.depth), ("decoder", c.decoder_depth or c.depth)):
        for ours, theirs in PARTS.items():
            if side == "decoder" or "cross" not in ours:
                for i in range(depth):
                    for leaf in ("weight", "bias"):
                        yield f"{side}.blocks.{i}.{ours}.{leaf}", (f"model.{side}.layers.{i}.{theirs}.{leaf}",)


def _tensors(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The numbers of a folder, on the host."""
    path = folder / "model.safetensors"
    if path.exists():
        with _opened(path):  # whole, or an error that says so
            return path, load_file(path)
    path = folder / "pytorch_model.bin"
    if not path.exists():
        raise WeightsError(f"{folder}: there is no model.safetensors and no pytorch_model.bin in this folder")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:  # whatever a broken or a dangerous file makes it raise
        raise WeightsError(f"{path}: is not a file of weights ({type(cause).__name__}: {cause})") from cause
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise WeightsError(f"{path}: holds something else than tensors by their names")
    return path, found


@torch.no_grad()
def _fill(
    model: Transformer, path: Path, given: dict[str, Tensor], device: torch.device, dtype: torch.dtype | None
) -> None:
    """Give a model without numbers theirs."""
    given = dict(given)
    _check_positions(given, model.config.width, path)
    names, slots = dict(_names(model.config)), _slots(model)
    assert names.keys() == slots.keys()
    for ours, aliases in names.items():
        there = [name for name in aliases if name in given]
        for other in there[1:]:
            if not torch.equal(given[there[0]], given[other]):
                raise WeightsError(f"{path}: {there[0]} and {other} differ, and the model has one table for both")
            del given[other]
        names[ours] = (there[0] if there else aliases[0],)
    expected = {names[ours][0]: tuple(x.shape) for ours, (x, _) in slots.items()}
    if BIAS in expected:
        expected[BIAS] = (1, *expected[BIAS])
    _compare({name: tuple(x.shape) for name, x in given.items()}, expected, path)
    for ours, (slot, holders) in slots.items():
        tensor = given[names[ours][0]]
        if not tensor.is_floating_point():
            raise WeightsError(f"{path}: the tensor {names[ours][0]} is {tensor.dtype}, expected one like {slot.dtype}")
        new = nn.Parameter(tensor.reshape(slot.shape).to(device, dtype or tensor.dtype, copy=True))
        for module, leaf in holders:
            setattr(module, leaf, new)
    model.to(device)  # constants, which are no part of the state


def _check_positions(given: dict[str, Tensor], width: int, path: Path) -> None:
    """Take the tables of positions out, which are constants, after a look that they are the ones we compute."""
    for name in POSITIONS:
        table = given.pop(name, None)
        if table is None:
            continue
        waves = Sinusoid(width, pairs="halves").vectors(torch.arange(len(table)))
        if table.shape != waves.shape or not torch.allclose(table.float(), waves.float(), rtol=0.0, atol=1e-3):
            raise WeightsError(f"{path}: {name} is not the table of sines and cosines that Marian's models have")

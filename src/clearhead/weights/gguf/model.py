"""GGUF files, llama.cpp's format for models of the Llama family: sizes, weights, tokenizer and chat template in one.

Quantised weights become float32. The rows of the query and key matrices are in another order than
ours: rotary positions rotate pairs of neighbouring columns there (Su et al. 2021), and columns i and i + e/2 here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...layers import Rotary
from ...models.gpt import Config
from ..bundle import Bundle
from ..fill import WeightsError
from ..huggingface import folder as huggingface
from ..huggingface import llama
from ..table import Conversion, Row, Used
from ..tensor_files import Tensors
from .file import read_file
from .tokens import read_special, read_tokens

# Layer names. GGUF's: Hugging Face's.
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"  # by how much Llama 3 slows each rotary frequency down ...
LLAMA3_CONTEXT = 8192  # ... and the context that it was trained on before that
# keys of the factor of linear scaling, today's first
SCALES = ("rope.scaling.factor", "rope.scale_linear")
CHAT = "tokenizer.chat_template"


def load(path: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """Load a GGUF file; returns the bundle, and which tensors it was loaded from."""
    metadata, tensors = read(path)
    parts = metadata.get("split.count", 1)
    if parts != 1:
        raise WeightsError(
            f"{path}: is one of {parts} parts: expected one file (llama-gguf-split --merge joins them)"
        )
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise WeightsError(f"{path}: general.architecture is {architecture!r}: expected 'llama'")
    model, used = huggingface.build(
        LAYOUT, read_theirs(metadata, tensors, path), tensors, device, dtype, path
    )
    tokens, special, chat = (
        read_tokens(metadata, path),
        read_special(metadata, path),
        metadata.get(CHAT),
    )
    return Bundle(
        model, tokens, model.config, path, special, chat if isinstance(chat, str) else None
    ), used


def read(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The metadata of a file, and its tensors under Hugging Face's names."""
    metadata, stored = read_file(path)
    entries = {_hf_name(name): entry for name, entry in stored.items()}
    if len(entries) < len(stored):
        raise WeightsError(f"{path}: two tensors have the same name")
    return metadata, Tensors(
        path,
        {name: entry.shape for name, entry in entries.items()},
        dict.fromkeys(entries, path),
        lambda name: torch.from_numpy(entries[name].read()),
        {name: entry.type for name, entry in entries.items()},
    )


def read_theirs(metadata: dict[str, Any], tensors: Tensors, path: Path) -> llama.Llama:
    """The metadata of a file as the keys of a Llama's config.json."""
    get = _Metadata(metadata, path)
    heads, width = get.size("attention.head_count"), get.size("embedding_length")
    rotated = get.size("rope.dimension_count", max(width // heads, 1))
    head = get.size("attention.key_length", rotated)
    if rotated != head:
        raise WeightsError(
            f"{path}: {rotated} of {head} columns of a head are rotated: expected all of them"
        )
    vocab = len(metadata.get("tokenizer.ggml.tokens") or ()) or get.size("vocab_size")
    return llama.Llama(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=get.size("feed_forward_length"),
        num_hidden_layers=get.size("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get.size("attention.head_count_kv", heads),
        head_dim=head,
        max_position_embeddings=get.size("context_length"),
        rms_norm_eps=get.number("attention.layer_norm_rms_epsilon"),
        rope_parameters=_rope_parameters(get, tensors),
        tie_word_embeddings="lm_head.weight" not in tensors.shapes,
    )


class _Metadata:
    """The values of "llama." keys; what is missing or has no meaning is refused with the name of its key."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def size(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if type(value) is not int or value < 1:
            raise WeightsError(
                f"{self.path}: llama.{key} is {value!r}: expected a whole number, 1 or more"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ):
            raise WeightsError(f"{self.path}: llama.{key} is {value!r}: expected a number above 0")
        return float(f"{value:.7g}")  # the decimal number that was rounded to float32 in the file

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(f"llama.{key}", default)
        if value is None:
            raise WeightsError(f"{self.path}: there is no llama.{key}")
        return value


def _rope_parameters(get: _Metadata, tensors: Tensors) -> dict[str, Any]:
    """As in llama.cpp: a factor without a type is one of linear scaling, and 0 is none."""
    base = {"rope_theta": get.number("rope.freq_base", llama.BASE)}
    scaling = get.values.get("llama.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise WeightsError(
            f"{get.path}: llama.rope.scaling.type is {scaling!r}: expected none or linear"
        )
    key = next((key for key in SCALES if get.values.get(f"llama.{key}")), None)
    factor = 1.0 if key is None or scaling == "none" else get.number(key)
    if 0 not in tensors.shapes.get(ROPE_FACTORS, (0,)):
        if factor != 1.0:
            raise WeightsError(
                f"{get.path}: {ROPE_FACTORS} with llama.{key}={factor}: expected one kind of scaling"
            )
        factor = float(tensors[ROPE_FACTORS].max())
        return base | {
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": LLAMA3_CONTEXT,
        }
    return base | (
        {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    )


def rows(c: Config) -> Iterator[Row]:
    """Llama's table, with the rows of queries and keys in GGUF's order."""
    for row in llama.llama_rows(c):
        heads = {"query": c.heads, "key": c.kv_heads or c.heads}.get(row.ours[0].split(".")[-2])
        yield row if heads is None else Row(row.ours, row.theirs, neighbours(heads))


def neighbours(heads: int) -> Conversion:
    """Rows of query or key heads: rotated as two halves here, as pairs of neighbours there."""

    def to_theirs(x: Tensor) -> Tensor:
        return x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)

    def to_ours(x: Tensor, _: Any) -> list[Tensor]:
        return [x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)]

    return Conversion(to_theirs, to_ours)


def _hf_name(name: str) -> str:
    """Hugging Face's name of a tensor."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if block and block[2] in NAMES:
        return f"model.layers.{block[1]}.{NAMES[block[2]]}.{block[3]}"
    first, _, leaf = name.rpartition(".")
    return f"{NAMES[first]}.{leaf}" if first in NAMES else name


def _are_llama3_factors(factors: Tensor, c: Config) -> bool:
    """Whether the rotary factors of a file are those that we compute for Llama 3."""
    plain = Rotary(c.head_width, base=c.base)
    slowed = Rotary(
        c.head_width, base=c.base, scaling=c.scaling, factor=c.factor, context=c.trained
    )
    expected = (plain.speed / slowed.speed).float()
    return factors.shape == expected.shape and torch.allclose(expected, factors.float(), rtol=1e-4)


LAYOUT = replace(
    llama.LLAMA, rows=rows, prefix="", ignored=lambda c: {ROPE_FACTORS: _are_llama3_factors}
)

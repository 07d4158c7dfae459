"""GGUF files, as llama.cpp keeps models of the Llama family: sizes, numbers, tokens and chat template in one file.

Quantised numbers (Q8_0, Q4_0, Q4_1) are given back as float32, which they were rounded from. The rows of queries and
keys stand there as rotary positions turn them in neighbouring pairs (Su et al. 2021), here in halves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from torch import Tensor

from ..layers import Rotary
from ..models.gpt import Config
from ..tokens import Pieces, Subwords, Tokenizer
from ..tokens.sentencepiece import CONTROL, DEFINED, Model
from . import huggingface, llama
from .bundle import Bundle, Special
from .files import Tensors
from .fill import WeightsError
from .table import Row, Used, Way

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
# The file's name of a layer, and Hugging Face's.
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
ANGLES, TRAINED = "rope_freqs.weight", 8192  # how much slower each pair of columns turns: Llama 3's, and its context
# How a text is cut before bytes are joined: what `tokenizer.ggml.pre` calls it.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS = {
    "default": (GPT2,), "gpt-2": (GPT2,), "smollm": (r"\p{N}", GPT2), "starcoder": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,), "llama3": (LLAMA3,), "qwen2": (LLAMA3.replace("{1,3}", ""),),
}  # fmt: skip


def load(path: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """The model of a file with its tokens, and what became of the file's tensors."""
    said, tensors = read(path)
    kind = said.get("general.architecture")
    if kind != "llama":
        raise WeightsError(f"{path}: general.architecture is {kind!r}: expected 'llama'")
    theirs = sizes(said, tensors, path)
    model, used = huggingface.build(FAMILY, theirs, tensors, device, dtype, path)
    tokens = tokens_of(said, path)
    ends = tuple(said[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in said)
    special = Special(
        pad=said.get("tokenizer.ggml.padding_token_id"), start=said.get("tokenizer.ggml.bos_token_id"),
        ends=tuple(dict.fromkeys(ends)),
    )  # fmt: skip
    return Bundle(model, tokens, model.config, path, special, said.get("tokenizer.chat_template")), used


def read(path: Path) -> tuple[dict[str, Any], Tensors]:
    """What a file says, and its numbers by Hugging Face's names."""
    try:
        import gguf
    except ImportError as cause:
        raise WeightsError(f"{path}: GGUF files are read by the gguf package: pip install clearhead[gguf]") from cause
    try:
        file = gguf.GGUFReader(path)
        said = {name: field.contents() for name, field in file.fields.items()}
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as cause:
        raise WeightsError(f"{path}: is not a whole GGUF file ({type(cause).__name__}: {cause})") from cause
    found = {_named(tensor.name): tensor for tensor in file.tensors}
    for name, tensor in found.items():
        if tensor.tensor_type.name not in TYPES:
            kind = tensor.tensor_type.name
            raise WeightsError(f"{path}: the tensor {name} is {kind}: expected one of {', '.join(TYPES)}")
    shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in found.items()}

    def numbers(name: str) -> Tensor:
        tensor = found[name]
        return torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)).reshape(
            shapes[name]
        )

    return said, Tensors(
        path, shapes, dict.fromkeys(found, path), numbers, {n: t.tensor_type.name for n, t in found.items()}
    )


def sizes(said: dict[str, Any], tensors: Tensors, path: Path) -> llama.Theirs:
    """What a file says of its model, in Hugging Face's words."""

    def get(name: str, usual: Any = None) -> Any:
        found = said.get(f"llama.{name}", usual)
        if found is None:
            raise WeightsError(f"{path}: there is no llama.{name}")
        return float(f"{found:.7g}") if isinstance(found, float) else found  # as it was before it was rounded

    heads, width = get("attention.head_count"), get("embedding_length")
    angles: dict[str, Any] = {"rope_type": "default"}
    kind = said.get("llama.rope.scaling.type", "none")
    if ANGLES in tensors.shapes:
        factor = float(tensors[ANGLES].max())
        angles = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": TRAINED}
    elif kind == "linear":
        angles = {"rope_type": "linear", "factor": get("rope.scaling.factor")}
    elif kind != "none":
        raise WeightsError(f"{path}: llama.rope.scaling.type is {kind!r}: expected none or linear")
    turned = get("rope.dimension_count", width // heads)
    head = get("attention.key_length", turned)
    if turned != head:
        raise WeightsError(f"{path}: {turned} of {head} columns of a head turn: expected all of them")
    return llama.Theirs(
        vocab_size=len(said.get("tokenizer.ggml.tokens") or ()) or get("vocab_size"), hidden_size=width,
        intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"), num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads), head_dim=head,
        max_position_embeddings=get("context_length"), rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_parameters=angles | {"rope_theta": get("rope.freq_base", llama.BASE)},
        tie_word_embeddings="lm_head.weight" not in tensors.shapes,
    )  # fmt: skip


def rows(c: Config) -> Iterator[Row]:
    """Llama's table, but for the order of the rows of queries and keys."""
    for row in llama.rows(c):
        heads = {"query": c.heads, "key": c.kv_heads or c.heads}.get(row.ours[0].split(".")[-2])
        yield row if heads is None else Row(row.ours, row.theirs, neighbours(heads))


def neighbours(heads: int) -> Way:
    """Rows of heads whose halves turn together here, and whose neighbours there."""

    def give(x: Tensor) -> Tensor:
        return x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)

    def take(x: Tensor, _: Any) -> list[Tensor]:
        return [x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)]

    return Way(give, take)


def tokens_of(said: dict[str, Any], path: Path) -> Tokenizer | None:
    """How a file reads text."""
    kind, names = said.get("tokenizer.ggml.model"), said.get("tokenizer.ggml.tokens")
    if kind is None or not names:
        return None
    if kind == "gpt2":
        return _byte_pairs(said, names, path)
    if kind == "llama":
        return _sentence_pieces(said, names)
    raise WeightsError(f"{path}: tokenizer.ggml.model is {kind!r}: expected gpt2 or llama")


def _byte_pairs(said: dict[str, Any], names: list[str], path: Path) -> Subwords:
    cut = said.get("tokenizer.ggml.pre", "default")
    if cut not in CUTS:
        raise WeightsError(f"{path}: tokenizer.ggml.pre is {cut!r}: expected one of {', '.join(CUTS)}")
    merges = [tuple(line.split(" ", 1)) for line in said.get("tokenizer.ggml.merges", ())]
    made = Backend(models.BPE({name: i for i, name in enumerate(names)}, merges))
    if cut == "qwen2":
        made.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in CUTS[cut]]
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    types = said.get("tokenizer.ggml.token_type") or [1] * len(names)
    for name, kind in zip(names, types, strict=True):
        if kind in (CONTROL, DEFINED):
            made.add_tokens([AddedToken(name, special=kind == CONTROL, normalized=False)])
    start = said.get("tokenizer.ggml.bos_token_id")
    if said.get("tokenizer.ggml.add_bos_token") and start is not None:
        first = names[start]
        made.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1", special_tokens=[(first, start)]
        )
    return Subwords(made.to_str())


def _sentence_pieces(said: dict[str, Any], names: list[str]) -> Pieces:
    scores = said.get("tokenizer.ggml.scores") or [0.0] * len(names)
    types = said.get("tokenizer.ggml.token_type") or [1] * len(names)
    model = Model(
        pieces=tuple(names), scores=tuple(map(float, scores)), types=tuple(types), kind="bpe", bytewise=True,
        lead=bool(said.get("tokenizer.ggml.add_space_prefix", True)), tidy=False,
    )  # fmt: skip
    words = {"start": "bos", "end": "eos", "unknown": "unknown", "pad": "padding"}
    ids = {name: said.get(f"tokenizer.ggml.{word}_token_id") for name, word in words.items()}
    special = {name: int(i) for name, i in ids.items() if i is not None and 0 <= i < len(names)}
    return Pieces(model, special=special, first=bool(said.get("tokenizer.ggml.add_bos_token", True)))


def _named(name: str) -> str:
    """Hugging Face's name of a tensor."""
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if block and block[2] in NAMES:
        return f"model.layers.{block[1]}.{NAMES[block[2]]}.{block[3]}"
    first, _, leaf = name.rpartition(".")
    return f"{NAMES[first]}.{leaf}" if first in NAMES else name


def _is_slowed(found: Tensor, c: Config) -> bool:
    """Whether a file's angles are those that Llama 3's way of slowing down gives."""
    plain = Rotary(c.head_width, base=c.base)
    slowed = Rotary(c.head_width, base=c.base, scaling=c.scaling, factor=c.factor, context=c.trained)
    return torch.allclose((plain.speed / slowed.speed).float(), found.float(), rtol=1e-4)


FAMILY = replace(llama.FAMILY, rows=rows, prefix="", ignored=lambda c: {ANGLES: _is_slowed})

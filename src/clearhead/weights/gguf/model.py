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
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from torch import Tensor

from ...layers import Rotary
from ...models.gpt import Config
from ...tokens import Pieces, Subwords, Tokenizer
from ...tokens.sentencepiece import CONTROL, DEFINED, SentencePieceModel
from ...tokens.special import Special
from ..bundle import Bundle
from ..fill import WeightsError
from ..huggingface import folder as huggingface
from ..huggingface import llama
from ..table import Conversion, Row, UsedTensors
from ..tensor_files import Tensors
from .file import read_file

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


def load(path: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, UsedTensors]:
    """Load a GGUF file; returns the bundle, and which tensors it was loaded from."""
    metadata, tensors = read(path)
    # large models come in several files, each with its own header
    parts = metadata.get("split.count", 1)
    if parts != 1:
        raise WeightsError(
            f"{path}: is one of {parts} parts: expected one file (llama-gguf-split --merge joins them)"
        )
    # many models of the Llama family are converted under this name
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise WeightsError(f"{path}: general.architecture is {architecture!r}: expected 'llama'")
    theirs = read_theirs(metadata, tensors, path)
    model, used = huggingface.build(LAYOUT, theirs, tensors, device, dtype, path)
    tokens, special = read_tokens(metadata, path), read_special(metadata, path)
    chat = metadata.get(CHAT)
    if not isinstance(chat, str):
        chat = None
    return Bundle(model, tokens, model.config, path, special, chat), used


def read(path: Path) -> tuple[dict[str, Any], Tensors]:
    """The metadata of a file, and its tensors under Hugging Face's names."""
    metadata, stored = read_file(path)
    # the table of a Llama then serves for both
    entries = {_hf_name(name): entry for name, entry in stored.items()}
    if len(entries) < len(stored):
        raise WeightsError(f"{path}: two tensors have the same name")
    return metadata, Tensors(
        path,
        {name: entry.shape for name, entry in entries.items()},
        dict.fromkeys(entries, path),
        # a tensor is dequantised when it is read
        lambda name: torch.from_numpy(entries[name].read()),
        # how each is stored in the file, for the certificate
        {name: entry.type for name, entry in entries.items()},
    )


def read_theirs(metadata: dict[str, Any], tensors: Tensors, path: Path) -> llama.Llama:
    """The metadata of a file as the keys of a Llama's config.json."""
    get = _Metadata(metadata, path)
    heads, width = get.size("attention.head_count"), get.size("embedding_length")
    # the head dimension follows from the width unless the file gives it
    rotated = get.size("rope.dimension_count", max(width // heads, 1))
    head = get.size("attention.key_length", rotated)
    if rotated != head:
        raise WeightsError(
            f"{path}: {rotated} of {head} columns of a head are rotated: expected all of them"
        )
    # the key vocab_size is missing in most files
    vocab = len(metadata.get("tokenizer.ggml.tokens") or ()) or get.size("vocab_size")
    return llama.Llama(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=get.size("feed_forward_length"),
        num_hidden_layers=get.size("block_count"),
        num_attention_heads=heads,
        # as many key heads as heads, unless the file says fewer
        num_key_value_heads=get.size("attention.head_count_kv", heads),
        head_dim=head,
        max_position_embeddings=get.size("context_length"),
        rms_norm_eps=get.number("attention.layer_norm_rms_epsilon"),
        rope_parameters=_rope_parameters(get, tensors),
        # without an output layer the embeddings are read as one
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
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise WeightsError(f"{self.path}: llama.{key} is {value!r}: expected a number above 0")
        return float(f"{value:.7g}")  # the decimal number that was rounded to float32 in the file

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(f"llama.{key}", default)
        if value is None:
            raise WeightsError(f"{self.path}: there is no llama.{key}")
        return value


def _rope_parameters(get: _Metadata, tensors: Tensors) -> dict[str, Any]:
    """The rotary options of a file, read as in llama.cpp: a factor without a type is linear scaling, and 0 is none."""
    base = {"rope_theta": get.number("rope.freq_base", llama.BASE)}
    scaling = get.values.get("llama.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise WeightsError(
            f"{get.path}: llama.rope.scaling.type is {scaling!r}: expected none or linear"
        )
    # 0 stands for no scaling
    key = next((key for key in SCALES if get.values.get(f"llama.{key}")), None)
    factor = 1.0 if key is None or scaling == "none" else get.number(key)
    # Llama 3 has one factor per frequency, as a tensor; the largest is that of the slowest
    if 0 not in tensors.shapes.get(ROPE_FACTORS, (0,)):
        if factor != 1.0:
            raise WeightsError(
                f"{get.path}: {ROPE_FACTORS} with llama.{key}={factor}: expected one kind of scaling"
            )
        # the lowest frequency is divided by the whole factor, the others by less
        factor = float(tensors[ROPE_FACTORS].max())
        return base | {
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": LLAMA3_CONTEXT,
        }
    if factor == 1.0:
        return base | {"rope_type": "default"}
    return base | {"rope_type": "linear", "factor": factor}


def rows(c: Config) -> Iterator[Row]:
    """Llama's table, with the rows of queries and keys in GGUF's order."""
    heads = {"query": c.heads, "key": c.kv_heads or c.heads}
    for row in llama.llama_rows(c):
        # blocks.0.attn.query.weight -> query
        layer = row.ours[0].split(".")[-2]
        if layer in heads:
            yield Row(row.ours, row.theirs, neighbours(heads[layer]))
        else:
            # all other matrices are stored as Hugging Face has them
            yield row


def neighbours(heads: int) -> Conversion:
    """The conversion of query or key rows: rows i and i + e/2 of a head are rotated together here, neighbours there."""

    # (heads, halves, columns of a half) <-> (heads, columns of a half, pairs)
    def to_theirs(x: Tensor) -> Tensor:
        return x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)

    def to_ours(x: Tensor, _: Any) -> list[Tensor]:
        return [x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)]

    return Conversion(to_theirs, to_ours)


def _hf_name(name: str) -> str:
    """Hugging Face's name of a tensor."""
    # blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if block and block[2] in NAMES:
        return f"model.layers.{block[1]}.{NAMES[block[2]]}.{block[3]}"
    first, _, leaf = name.rpartition(".")
    return f"{NAMES[first]}.{leaf}" if first in NAMES else name


def _are_llama3_factors(factors: Tensor, c: Config) -> bool:
    """Whether the rotary factors of a file are those that we compute for Llama 3."""
    scaling: Any = {"scaling": c.scaling, "factor": c.factor, "context": c.trained}
    # factors are those between the plain and the slowed speeds
    plain = Rotary(c.head_width, base=c.base)
    slowed = Rotary(c.head_width, base=c.base, **scaling)
    expected = (plain.speed / slowed.speed).float()
    return factors.shape == expected.shape and torch.allclose(expected, factors.float(), rtol=1e-4)


LAYOUT = replace(
    llama.LLAMA, rows=rows, prefix="", ignored=lambda c: {ROPE_FACTORS: _are_llama3_factors}
)


# The tokenizer in the metadata: byte-pair encoding ("gpt2") or SentencePiece ("llama").

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre: the patterns that split a text before bytes are merged.
# Llama 3's: a word of the vocabulary is not split
WHOLE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral")
SPLITS = {
    "default": (GPT2,), "gpt-2": (GPT2,), "smollm": (r"\p{N}", GPT2), "starcoder": (r"\p{N}", GPT2),
    **dict.fromkeys(WHOLE, (LLAMA3,)), "qwen2": (LLAMA3.replace("{1,3}", ""),),
}  # fmt: skip


def read_tokens(metadata: dict[str, Any], path: Path) -> Tokenizer | None:
    """The tokenizer of a file; None if it has none."""
    model, names = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if model is None or not names:
        return None
    if model not in ("gpt2", "llama"):
        raise WeightsError(f"{path}: tokenizer.ggml.model is {model!r}: expected gpt2 or llama")
    try:
        if model == "gpt2":
            return _byte_pairs(metadata, names, path)
        return _sentence_pieces(metadata, names)
    except WeightsError:
        raise
    except Exception as cause:  # the tokenizers library raises plain Exceptions
        raise WeightsError(
            f"{path}: the tokenizer cannot be built ({type(cause).__name__}: {cause})"
        ) from cause


def read_special(metadata: dict[str, Any], path: Path) -> Special:
    """The special ids of a file."""

    def token(name: str) -> int | None:
        i = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if i is not None and type(i) is not int:
            raise WeightsError(
                f"{path}: tokenizer.ggml.{name}_token_id is {i!r}: expected a token id"
            )
        return i

    ends = dict.fromkeys(i for i in (token("eos"), token("eot")) if i is not None)
    return Special(pad=token("padding"), start=token("bos"), ends=tuple(ends))


def _byte_pairs(metadata: dict[str, Any], names: list[str], path: Path) -> Subwords:
    split = metadata.get("tokenizer.ggml.pre", "default")
    if split not in SPLITS:
        raise WeightsError(
            f"{path}: tokenizer.ggml.pre is {split!r}: expected one of {', '.join(SPLITS)}"
        )
    # a merge is two tokens with a space between them
    merges = [tuple(line.split(" ", 1)) for line in metadata.get("tokenizer.ggml.merges", ())]
    vocab = {name: i for i, name in enumerate(names)}
    backend = Backend(models.BPE(vocab, merges, ignore_merges=split in WHOLE))
    # Qwen normalises its texts to NFC
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    # several patterns split one after the other, then bytes are written as letters
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[split]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        # the patterns above have split the text already
        [*splits, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    # 1 is the type of an ordinary token
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(names)
    for name, type_ in zip(names, types, strict=True):
        # control tokens are no text: decoding leaves them out, unlike those that a user defined
        if type_ in (CONTROL, DEFINED):
            backend.add_tokens([AddedToken(name, special=type_ == CONTROL, normalized=False)])
    # Llama 3 begins every text with BOS, GPT-2 none
    first = _end(metadata, "bos", usual=split in WHOLE)
    last = _end(metadata, "eos", usual=False)
    if first or last:
        before, after = ([names[i] for i in ids] for ids in (first, last))
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            # each once: BOS and EOS may be the same token
            special_tokens=[(names[i], i) for i in dict.fromkeys(first + last)],
        )
    return Subwords(backend.to_str())


def _end(metadata: dict[str, Any], name: str, *, usual: bool) -> list[int]:
    """The special id before ("bos") or after ("eos") a text, if there is one; `usual`: if the file does not say."""
    i = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if i is not None and metadata.get(f"tokenizer.ggml.add_{name}_token", usual):
        return [i]
    return []


def _sentence_pieces(metadata: dict[str, Any], names: list[str]) -> Pieces:
    scores = metadata.get("tokenizer.ggml.scores") or [0.0] * len(names)
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(names)
    model = SentencePieceModel(
        pieces=tuple(names),
        scores=tuple(map(float, scores)),
        types=tuple(types),
        # what GGUF calls "llama" is the BPE of SentencePiece
        kind="bpe",
        # an unknown character becomes the pieces of its bytes
        bytewise=True,
        lead=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        # runs of spaces are kept, as in code
        tidy=False,
    )
    special = {}
    for name, key in (("start", "bos"), ("end", "eos"), ("unknown", "unknown"), ("pad", "padding")):
        i = metadata.get(f"tokenizer.ggml.{key}_token_id")
        # an id outside of the vocabulary stands for none
        if i is not None and 0 <= i < len(names):
            special[name] = int(i)
    # llama.cpp puts BOS before a text unless the file says otherwise
    first = bool(metadata.get("tokenizer.ggml.add_bos_token", True))
    last = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    return Pieces(model, special=special, first=first, last=last)

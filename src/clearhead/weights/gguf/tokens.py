"""The tokenizer in the metadata of a GGUF file: byte-pair encoding ("gpt2") or SentencePiece ("llama")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ...tokens import Pieces, Subwords, Tokenizer
from ...tokens.sentencepiece import CONTROL, DEFINED, SentencePieceModel
from ...tokens.special import Special
from ..fill import WeightsError

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
    kind, names = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind is None or not names:
        return None
    if kind not in ("gpt2", "llama"):
        raise WeightsError(f"{path}: tokenizer.ggml.model is {kind!r}: expected gpt2 or llama")
    try:
        if kind == "gpt2":
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
    merges = [tuple(line.split(" ", 1)) for line in metadata.get("tokenizer.ggml.merges", ())]
    backend = Backend(
        models.BPE({name: i for i, name in enumerate(names)}, merges, ignore_merges=split in WHOLE)
    )
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[split]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(names)
    for name, kind in zip(names, types, strict=True):
        if kind in (CONTROL, DEFINED):
            backend.add_tokens([AddedToken(name, special=kind == CONTROL, normalized=False)])
    first = _end(metadata, "bos", usual=split in WHOLE)
    last = _end(metadata, "eos", usual=False)
    if first or last:
        around = [[names[i] for i in ids] for ids in (first, last)]
        backend.post_processor = processors.TemplateProcessing(
            single=[*around[0], "$A", *around[1]],
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
        kind="bpe",
        bytewise=True,
        lead=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        tidy=False,
    )
    keys = {"start": "bos", "end": "eos", "unknown": "unknown", "pad": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    special = {name: int(i) for name, i in ids.items() if i is not None and 0 <= i < len(names)}
    first, last = (
        bool(metadata.get(f"tokenizer.ggml.add_{name}_token", name == "bos"))
        for name in ("bos", "eos")
    )
    return Pieces(model, special=special, first=first, last=last)

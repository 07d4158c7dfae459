"""Texts to try a model with, if its card has none."""

from __future__ import annotations

from ..data.text_rows import MASKS
from ..errors import UserError
from ..tokens import Pair, Symbols, Tokenizer
from ..weights import Bundle

TEXTS = {  # by what the model can do ("chat": with a chat template); the first that fits is used
    "translate": ("I know that you like it.", "Two dogs run across the green field."),
    "chat": ("What is the capital of France?", "Write a sentence about the sea.", "Who are you?"),
    "generate": ("Once upon a time", "The man", "It was"),
    "fill": ("The capital of France is [MASK].", "A dog is [MASK] across the field."),
    "classify": ("A wonderful film from beginning to end.", "I have rarely been so bored."),
    "embed": ("A man is playing the guitar.", "Somebody makes music."),
}
LENGTH = 8  # symbols of an example of generated sequences
MOST = ((0, 1, 0, 2, 0), (2, 1, 1, 0, 1))  # examples of rows whose most frequent symbol is asked for


def mask_name(bundle: Bundle) -> str | None:
    """How a mask is written in the texts of a model; None if it does not predict masked tokens."""
    if "fill" not in bundle.can or bundle.tokens is None:
        return None
    return next((name for name in MASKS if name in bundle.tokenizer().special_names), MASKS[0])


def examples_of(bundle: Bundle, task: str | None = None) -> list[str]:
    """Texts that a model can read; `task` is the name of the data set that it was trained on, if that is known."""
    tokens = bundle.tokens.source if isinstance(bundle.tokens, Pair) else bundle.tokens
    if tokens is None:
        return []
    if isinstance(tokens, Symbols):
        return _of_symbols(tokens, bundle.max_tokens or 2 * LENGTH, task)
    able = bundle.can | ({"chat"} if bundle.chat is not None else set())
    texts = next((texts for capability, texts in TEXTS.items() if capability in able), ())
    mask = mask_name(bundle)
    found = [text if mask is None else text.replace(MASKS[0], mask) for text in texts]
    return [text for text in found if _fits(tokens, text)] or _of_vocabulary(tokens, mask)


def answer_length(bundle: Bundle, task: str | None = None) -> int | None:
    """The number of tokens that answer an example of generated sequences; None for texts."""
    if not isinstance(bundle.tokens, Symbols):
        return None
    one = task in ("most", "recall") or (task is None and bundle.tokens.marks != ("|",))
    return 1 if one else _length(bundle.tokens, bundle.max_tokens or 2 * LENGTH)


def _length(tokens: Symbols, context: int) -> int:
    return max(1, min(LENGTH, tokens.count, context // 2))


def _of_symbols(tokens: Symbols, context: int, task: str | None) -> list[str]:
    n, sep = _length(tokens, context), tokens.count
    rows: list[list[int]] = [list(range(n)), [*range(1, n, 2), *range(0, n, 2)]]
    if task == "most" and tokens.count > 2 and context > len(MOST[0]):
        rows = [list(row) for row in MOST]
    if len(tokens.marks) == 2:  # recall: a mark before one of the guests, and the question at the end
        rows = [[*row[: n // 2], sep, *row[n // 2 :], sep + 1] for row in rows]
    elif tokens.marks:
        rows = [[*row, sep] for row in rows]
    return [tokens.decode(row) for row in rows]


def _fits(tokens: Tokenizer, text: str) -> bool:
    """Whether every part of a text is in the vocabulary."""
    for mask in MASKS:
        text = text.replace(mask, "")
    try:
        ids = tokens.encode(text).tolist()
    except UserError:
        return False
    return bool(ids) and (tokens.unknown is None or tokens.unknown not in ids)


def _of_vocabulary(tokens: Tokenizer, mask: str | None) -> list[str]:
    """A text of the first tokens of a vocabulary, and a mask."""
    special = {tokens.pad, tokens.start, tokens.end, tokens.unknown, *tokens.special_names.values()}
    text = tokens.decode([i for i in range(len(tokens)) if i not in special][:LENGTH]).strip()
    return [text if mask is None else f"{text} {mask}"] if text and _fits(tokens, text) else []

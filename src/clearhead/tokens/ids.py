"""What all tokenizers share: the special ids, the check of a row of ids, and how a text is split into words."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Int

from ..errors import InputError, TextError

SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")  # the first ids of our own tokenizers
PAD, START, END, UNKNOWN = range(len(SPECIAL))
NAMES = {  # names of the special tokens in other vocabularies; the first that exists is used
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "start": ("<start>", "<s>", "[CLS]", "<bos>"),
    "end": ("<end>", "</s>", "[SEP]", "<eos>", "<|endoftext|>"),
    "unknown": ("<unk>", "[UNK]"),
}

Ids = np.ndarray | Iterable[SupportsIndex]  # a row of ids

APOSTROPHES = "'\u2019"
_CLITIC = "(?i:s|t|re|ve|ll|d|m)"


def as_row(ids: Ids, size: int) -> Int[np.ndarray, "t"]:
    """Return ids as one row of int64; raise with the position of the first that is not in range(size)."""
    row = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
    if row.size and row.dtype.kind not in "iu":
        raise InputError(f"ids of type {row.dtype}: expected whole numbers")
    if row.ndim != 1:
        raise InputError(f"ids of shape {row.shape}: expected one row")
    # numpy would take a negative id from the end
    wrong = np.flatnonzero((row < 0) | (row >= size))
    if len(wrong):
        raise InputError(f"id {row[wrong[0]]} at {wrong[0]}: expected 0 to {size - 1}")
    return row.astype(np.int64)


def as_json(values: dict[str, Any]) -> bytes:
    """The content of a JSON file with these values; in ASCII, so that lone surrogates survive."""
    return (json.dumps(values) + "\n").encode()


def checked(text: str) -> str:
    """Return the text, or raise if UTF-8 cannot write it because it has a lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            raise TextError(
                f"{text[cause.start]!r} at {cause.start} is half a character (a lone surrogate): expected whole ones"
            ) from cause
    return text


def split(text: str) -> list[str]:
    """Split a text into words: runs of letters and digits, and each punctuation mark by itself.

    Accents and joiners stay with their letter, an emoji with its modifiers. An apostrophe goes with the clitic after
    it where that is English (dog 's, don 't), else with the word before it (l' homme, qu' il). 3.5 is one word.

    Args:
        text: Any text; its white space is dropped.

    Examples:
        >>> split("The dog's bowl, 3.5 litres.")
        ['The', 'dog', "'s", 'bowl', ',', '3.5', 'litres', '.']
        >>> split("l'homme")
        ["l'", 'homme']
    """
    return _pattern().findall(text)


def words_of(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each span of a text, the index of the word in which it begins; -1 if it is empty or all white space."""
    # the number of the word at each character
    word = np.full(len(text), -1, np.int64)
    for number, match in enumerate(_pattern().finditer(text)):
        word[match.start() : match.end()] = number
    return [next((int(n) for n in word[start:end] if n >= 0), -1) for start, end in spans]


@cache
def _pattern() -> re.Pattern[str]:
    mark = f"[{_marks()}\u200c\u200d]"
    letter = rf"(?:[^\W_]|{mark})"
    return re.compile(
        rf"\d+(?:[.,]\d+)+(?!{letter})"  # 3.5 and 1,000
        rf"|{letter}++[{APOSTROPHES}](?!{_CLITIC}(?!{letter}))(?={letter})"  # l' and qu'
        rf"|(?<=[^\W_])[{APOSTROPHES}]{_CLITIC}(?!{letter})"  # 's and 't
        rf"|{letter}++"
        r"|[\U0001F1E6-\U0001F1FF]{2}"  # a flag
        rf"|\S(?:{mark}|[\U0001F3FB-\U0001F3FF]|(?<=\u200d)\S)*"
    )


def _marks() -> str:
    """The combining marks of Unicode as ranges of a character class, because \\w does not match them."""
    points = [p for part in ((0x300, 0x20000), (0xE0100, 0xE01F0)) for p in range(*part)]
    marks = [p for p in points if unicodedata.category(chr(p))[0] == "M"]
    ranges = []
    # within a run of neighbours the code point grows as the index does
    for _, group in groupby(enumerate(marks), key=lambda pair: pair[1] - pair[0]):
        run = [point for _, point in group]
        ranges.append(f"{chr(run[0])}-{chr(run[-1])}")
    return "".join(ranges)

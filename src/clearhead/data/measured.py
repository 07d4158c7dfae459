"""Statistics of streamed rows in bounded memory: lengths, labels, and rows that are empty or there twice."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ..tokens import Tokenizer

CLASSES = 1000  # labels that are counted; a column with more is not one of labels
BATCH = 256  # texts that are tokenized at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of the texts of a column in one unit."""

    median: int
    most: int  # 95 % of the texts are no longer
    largest: int


class Measured:
    """Lengths of the texts of some columns, in characters, words and tokens."""

    def __init__(self, columns: Sequence[str], tokenizers: dict[str, Tokenizer]) -> None:
        self.tokenizers = tokenizers
        units = ("characters", "words", "tokens")
        self._sizes = {name: {unit: array("q") for unit in units} for name in columns}
        self._waiting: dict[str, list[str]] = {name: [] for name in tokenizers}
        self._seen: set[bytes] = set()
        self.labels: Counter[str] = Counter()
        self.rows = self.empty = self.duplicates = self.characters = 0

    def add(self, values: dict[str, str], label: str | None) -> None:
        """Add a row: its texts by column, and its label."""
        self.rows += 1
        if not all(text.strip() for text in values.values()) or label == "":
            self.empty += 1
            return
        key = blake2b("\0".join(values.values()).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self.duplicates += key in self._seen
        self._seen.add(key)
        if label is not None and (label in self.labels or len(self.labels) < CLASSES):
            self.labels[label] += 1
        for name, text in values.items():
            self.characters += len(text)
            self._sizes[name]["characters"].append(len(text))
            self._sizes[name]["words"].append(len(text.split()))
            if name in self._waiting:
                self._waiting[name].append(text)
                if len(self._waiting[name]) >= BATCH:
                    self._tokenize(name)

    def lengths(self) -> dict[str, dict[str, Lengths]]:
        """Return the lengths by column and unit."""
        self._finish()
        found = {name: {u: _lengths(x) for u, x in units.items() if len(x)} for name, units in self._sizes.items()}
        return {name: units for name, units in found.items() if units}

    def longer(self, limit: int, unit: str, more: Mapping[str, int]) -> int:
        """Return the number of rows in which a text is longer than a limit.

        Args:
            limit: The largest length.
            unit: characters, words or tokens.
            more: By column, what is added to the length of each text.
        """
        self._finish()
        columns = [
            np.asarray(units[unit]) + more.get(name, 0) > limit
            for name, units in self._sizes.items()
            if len(units[unit])
        ]
        return int(np.logical_or.reduce(columns).sum()) if columns else 0

    def _finish(self) -> None:
        for name in self._waiting:
            self._tokenize(name)

    def _tokenize(self, name: str) -> None:
        rows = self.tokenizers[name].encode_all(self._waiting[name])
        self._sizes[name]["tokens"].extend(len(row) for row in rows)
        self._waiting[name].clear()


def _lengths(sizes: Sequence[int]) -> Lengths:
    ordered = np.sort(np.asarray(sizes))
    at: Callable[[float], Any] = lambda share: int(ordered[min(int(share * len(ordered)), len(ordered) - 1)])  # noqa: E731
    return Lengths(median=at(0.5), most=at(0.95), largest=int(ordered[-1]))

"""Statistics of streamed rows in bounded memory: lengths, labels, and rows that are empty or there twice."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ...tokens import Tokenizer
from ...tokens.chat_template import read_template, token_names
from ...tokens.decoder_prompt import decoder_prompt
from ...tokens.special import read_special
from ..text.chats import Rendering
from ..text.conversations import Chats, Columns, message_reader
from ..text.labelled import with_special
from ..text.tokenizers import find_tokenizer, open_pair, open_tokenizer
from .kinds import Guess
from .reading import TableFile, TableRow

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
        # "" is a missing label; None means that this kind has none
        if not all(text.strip() for text in values.values()) or label == "":
            # an empty row counts in no other statistic, as a training leaves it out
            self.empty += 1
            return
        # eight bytes per row, whatever its length, so that memory is bounded
        # NUL between the columns: ("a b", "") and ("a", "b") must differ
        key = blake2b(
            "\0".join(values.values()).encode("utf-8", "surrogatepass"), digest_size=8
        ).digest()
        self.duplicates += key in self._seen
        self._seen.add(key)
        # a column of many different values is no column of labels: its further ones are not kept
        if label is not None and (label in self.labels or len(self.labels) < CLASSES):
            self.labels[label] += 1
        for name, text in values.items():
            self.characters += len(text)
            self._sizes[name]["characters"].append(len(text))
            self._sizes[name]["words"].append(len(text.split()))
            # tokenized in batches, since encode_all works in parallel
            if name in self._waiting:
                self._waiting[name].append(text)
                if len(self._waiting[name]) >= BATCH:
                    self._tokenize(name)

    def lengths(self) -> dict[str, dict[str, Lengths]]:
        """Return the lengths by column and unit."""
        # texts that still wait for their batch
        self._finish()
        found = {
            name: {u: _lengths(x) for u, x in units.items() if len(x)}
            for name, units in self._sizes.items()
        }
        return {name: units for name, units in found.items() if units}

    def longer(self, limit: int, unit: str, more: Mapping[str, int]) -> int:
        """Return the number of rows in which a text is longer than a limit.

        Args:
            limit: The largest length.
            unit: characters, words or tokens.
            more: By column, what is added to the length of each text.
        """
        self._finish()
        # a boolean per row and column; `more` has the special tokens of a column
        columns = [
            np.asarray(units[unit]) + more.get(name, 0) > limit
            for name, units in self._sizes.items()
            if len(units[unit])
        ]
        if columns:
            # a row counts once, even if several of its texts are too long
            return int(np.logical_or.reduce(columns).sum())
        return 0

    def _finish(self) -> None:
        for name in self._waiting:
            self._tokenize(name)

    def _tokenize(self, name: str) -> None:
        rows = self.tokenizers[name].encode_all(self._waiting[name])
        self._sizes[name]["tokens"].extend(len(row) for row in rows)
        self._waiting[name].clear()


def _lengths(sizes: Sequence[int]) -> Lengths:
    ordered = np.sort(np.asarray(sizes))

    def at(share: float) -> int:
        # a length that occurs, without interpolation
        return int(ordered[min(int(share * len(ordered)), len(ordered) - 1)])

    return Lengths(median=at(0.5), most=at(0.95), largest=int(ordered[-1]))


# What a context would cut: how many rows of a file have more tokens than a model reads, as a training counts them.
#
# labelled    a text with its start and end tokens
# pairs       the longer side, with the tokens that end it
# chats       the conversation as the chat template writes it


LONG = {  # by kind: what happens to rows that are longer than `longest`
    "labelled": "longest cuts them",
    "pairs": "longest leaves them out",
    "chats": "longest takes their oldest turns, or leaves them out",
}


class Cut:
    """Counts the rows that a context would cut; this base class counts none."""

    def __init__(self, sentence: str = "") -> None:
        self.sentence = sentence

    def add(self, row: TableRow) -> None:
        """Look at a row."""

    def told(self, measured: Measured) -> str:
        """Return a sentence about the rows that are cut; "" without a context."""
        return self.sentence


class Longer(Cut):
    """Counts texts that are longer than a context: in words, or in tokens with the special ones around them."""

    def __init__(self, context: int, kind: str, special: Mapping[str, int] | None) -> None:
        # special: tokens around a text, by column
        self.context, self.kind, self.special = context, kind, special

    def told(self, measured: Measured) -> str:
        unit = "words" if self.special is None else "tokens"
        number = measured.longer(self.context, unit, self.special or {})
        # words are a lower bound of the number of tokens
        if self.special is None:
            note = "; a word is a token or more, which --tokens FOLDER counts"
        else:
            note = ""
        return f"{_share(number, measured)} have more than {self.context} {unit}: {LONG[self.kind]}{note}"


class LongChats(Cut):
    """Counts conversations that are longer than a context, as a chat template writes them."""

    def __init__(
        self, context: int, rendering: Rendering, messages: Callable[[TableRow], Any]
    ) -> None:
        self.context, self.rendering, self.messages = context, rendering, messages

    def add(self, row: TableRow) -> None:
        # conversations without an answer are left out by the training, too
        chat = Chats().take(self.messages(row), row.where)
        if chat is not None:
            self.rendering.tokenized(chat)

    def told(self, measured: Measured) -> str:
        shortened, left_out = self.rendering.shortened, self.rendering.left_out
        return (
            f"{_share(shortened + left_out, measured)} have more than {self.context} tokens with the chat template: "
            f"{shortened:,} lose their oldest turns, {left_out:,} are left out"
        )


def what_is_cut(
    guessed: Guess,
    table: TableFile | None,
    context: int | None,
    tokens: str | None,
    root: Path | None,
) -> Cut:
    """Return the counter of rows that a context would cut.

    Args:
        guessed: The kind of data and its columns.
        table: The table; None for text.
        context: The number of tokens; None: nothing is counted.
        tokens: The folder of a tokenizer; None: words are counted.
        root: A data folder in which the tokenizer is searched too.
    """
    if context is None:
        return Cut()
    if guessed.kind == "text" or table is None:
        # windows cross the borders of texts: nothing is cut
        return Cut(f"nothing: text is read in windows of {context} tokens")
    if tokens is None:
        return Longer(context, guessed.kind, None)
    if guessed.kind == "pairs":
        # a tokenizer per side, with different tokens around a text
        pair, special = open_pair(tokens, root)
        # the last token is written, not read
        read = len(decoder_prompt(pair, special)) + len(pair.written("")) - 1
        # by side: the tokens around a text
        sizes = {"source": len(pair.read("")), "target": read}
        return Longer(
            context, "pairs", {guessed.options[side]: size for side, size in sizes.items()}
        )
    folder = find_tokenizer(tokens, root)
    tokenizer: Tokenizer = open_tokenizer(tokens, folder)
    template = read_template(folder)
    # a chat template adds its own tokens between turns: they are counted by rendering
    if guessed.kind == "chats" and template is not None:
        # templates refer to special tokens by name
        names = token_names(read_special(folder, tokenizer), tokenizer)
        columns = Columns(
            **{option: guessed.options.get(option) for option in ("messages", "prompt", "answer")}
        )
        rendering = Rendering(template, names, tokenizer, context)
        return LongChats(context, rendering, message_reader(table, columns))
    # the special tokens around an empty text are those around any text
    if guessed.kind == "labelled":
        around = len(with_special(tokenizer, tokenizer.encode("")))
    else:
        around = 0
    return Longer(context, guessed.kind, dict.fromkeys(guessed.columns, around))


def _share(number: int, measured: Measured) -> str:
    return f"{number:,} of {measured.rows:,} rows ({number / max(measured.rows, 1):.1%})"

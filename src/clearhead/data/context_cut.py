"""What a context would cut: how many rows of a file have more tokens than a model reads, as a training counts them.

labelled    a text with its start and end tokens
pairs       the longer side, with the tokens that end it
chats       the conversation as the chat template writes it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..tokens import Tokenizer
from ..tokens.chat_template import read_template, token_names
from ..tokens.special import decoder_prompt, read_special
from .answers import Rendering
from .conversations import Chats, Columns, message_reader
from .kinds import Guess
from .measured import Measured
from .tables import Row, Table
from .text_rows import with_special
from .tokenizer_folder import find_tokenizer, open_pair, open_tokenizer

LONG = {  # by kind: what happens to rows that are longer than `longest`
    "labelled": "longest cuts them",
    "pairs": "longest leaves them out",
    "chats": "longest takes their oldest turns, or leaves them out",
}


class Cut:
    """Counts the rows that a context would cut; this one cuts nothing."""

    def __init__(self, sentence: str = "") -> None:
        self.sentence = sentence

    def add(self, row: Row) -> None:
        """Look at a row."""

    def told(self, measured: Measured) -> str:
        """Return a sentence about the rows that are cut; "" without a context."""
        return self.sentence


class Longer(Cut):
    """Texts whose lengths are measured: in words, or in tokens with the special ones around them."""

    def __init__(self, context: int, kind: str, special: Mapping[str, int] | None) -> None:
        self.context, self.kind, self.special = context, kind, special  # special: tokens around a text, by column

    def told(self, measured: Measured) -> str:
        unit = "words" if self.special is None else "tokens"
        number = measured.longer(self.context, unit, self.special or {})
        note = "; a word is a token or more, which --tokens FOLDER counts" if self.special is None else ""
        return f"{_share(number, measured)} have more than {self.context} {unit}: {LONG[self.kind]}{note}"


class LongChats(Cut):
    """Conversations as a chat template writes them."""

    def __init__(self, context: int, rendering: Rendering, messages: Callable[[Row], Any]) -> None:
        self.context, self.rendering, self.messages = context, rendering, messages

    def add(self, row: Row) -> None:
        chat = Chats().take(self.messages(row), row.where)
        if chat is not None:
            self.rendering.answered(chat)

    def told(self, measured: Measured) -> str:
        shortened, left_out = self.rendering.shortened, self.rendering.left_out
        return (
            f"{_share(shortened + left_out, measured)} have more than {self.context} tokens with the chat template: "
            f"{shortened:,} lose their oldest turns, {left_out:,} are left out"
        )


def what_is_cut(guessed: Guess, table: Table | None, context: int | None, tokens: str | None, root: Path | None) -> Cut:
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
        return Cut(f"nothing: text is read in windows of {context} tokens")
    if tokens is None:
        return Longer(context, guessed.kind, None)
    if guessed.kind == "pairs":
        pair, special = open_pair(tokens, root)
        read = len(decoder_prompt(pair, special)) + len(pair.written("")) - 1  # the last token is written, not read
        sizes = {"source": len(pair.read("")), "target": read}
        return Longer(context, "pairs", {guessed.options[side]: size for side, size in sizes.items()})
    folder = find_tokenizer(tokens, root)
    tokenizer: Tokenizer = open_tokenizer(tokens, folder)
    template = read_template(folder)
    if guessed.kind == "chats" and template is not None:
        names = token_names(read_special(folder, tokenizer), tokenizer)
        columns = Columns(**{option: guessed.options.get(option) for option in ("messages", "prompt", "answer")})
        rendering = Rendering(template, names, tokenizer, context)
        return LongChats(context, rendering, message_reader(table, columns))
    around = len(with_special(tokenizer, tokenizer.encode(""))) if guessed.kind == "labelled" else 0
    return Longer(context, guessed.kind, dict.fromkeys(guessed.columns, around))


def _share(number: int, measured: Measured) -> str:
    return f"{number:,} of {measured.rows:,} rows ({number / max(measured.rows, 1):.1%})"

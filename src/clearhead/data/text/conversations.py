"""Conversations from the rows of a table: lists of messages, or a question and an answer in two columns.

messages        [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}]
conversations   [{"from": "human", "value": "Hello!"}, {"from": "gpt", "value": "Hi."}]     (ShareGPT)
two columns     prompt and answer, question and answer, or instruction (with input) and output; system may be a third
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import nearest
from ..files import DataError
from ..tables.reading import TableFile, TableRow, open_table, whole_characters

Message = dict[str, str]  # {"role": "user", "content": "..."}

ROLES = {  # our name of each role that files name
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "human": "user",
    "gpt": "assistant",
}
LISTS = ("messages", "conversations")  # columns of lists of messages
QUESTIONS = ("prompt", "question", "instruction")  # columns of questions
ANSWERS = ("answer", "completion", "response", "output")  # and of answers
KEYS = (("role", "content"), ("from", "value"))  # keys of a message


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns of a table that have its conversations; None: those with the usual names."""

    messages: str | None = None
    prompt: str | None = None
    answer: str | None = None
    # whether the first row of a CSV or TSV file names the columns; None: recognised
    header: bool | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that ends with an answer."""

    messages: tuple[Message, ...]
    where: str  # file:line

    @property
    def question(self) -> str:
        """The first message of the user."""
        return next((one["content"] for one in self.messages if one["role"] == "user"), "")


@dataclass
class Chats:
    """The conversations of a file, and the number of those that were left out."""

    chats: list[Chat] = field(default_factory=list)
    unanswered: int = 0  # without an answer
    empty: int = 0  # with an empty message

    def take(self, messages: list[Message], where: str) -> Chat | None:
        """Add a conversation up to its last answer, and return it; without an answer it is counted, and left out."""
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers:
            self.unanswered += 1
            return None
        # nothing is learned from what follows the last answer
        kept = messages[: answers[-1] + 1]
        # after the cut: an empty message behind the last answer does no harm
        if not all(message["content"].strip() for message in kept):
            self.empty += 1
            return None
        self.chats.append(Chat(tuple(kept), where))
        return self.chats[-1]


def read_chats(path: Path, columns: Columns) -> Chats:
    """Read the conversations of a table.

    What follows the last answer is dropped. A conversation without an answer, or with an empty message, is left out
    and counted; an unknown role, a second or a late system message, and anything that is no message raise.
    """
    # names that help to recognise a header
    given = [name for name in (columns.messages, columns.prompt, columns.answer) if name]
    table = open_table(path, header=columns.header, named=[*given, *LISTS, *QUESTIONS, *ANSWERS])
    found = Chats()
    messages = message_reader(table, columns)
    for row in table.rows():
        found.take(messages(row), row.where)
    if not found.chats:
        raise DataError(
            f"{path} has no conversation with an answer: {found.unanswered} without one, and {found.empty} with an "
            "empty message"
        )
    return found


def message_reader(table: TableFile, columns: Columns) -> Callable[[TableRow], list[Message]]:
    """Return the function that reads the messages of a row."""
    given = columns.prompt or columns.answer
    # messages in one column, if it is named, or if it is there and no other is named
    if columns.messages is not None or (given is None and table.usual(*LISTS)):
        # each row has a list of messages
        column = table.column(columns.messages, *LISTS)
        return lambda row: _messages(row, column)
    prompt, answer = (
        table.column(columns.prompt, *QUESTIONS),
        table.column(columns.answer, *ANSWERS),
    )
    parts, system_column = (prompt, *question_parts(table, prompt)), table.usual("system")

    def read(row: TableRow) -> list[Message]:
        # an instruction and its input are one question, in two lines
        question = "\n".join(text for name in parts if (text := _text(row, name)))
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": _text(row, answer)},
        ]
        system = _text(row, system_column)
        if system:
            # before the question, where templates expect it
            messages.insert(0, {"role": "system", "content": system})
        return messages

    return read


def question_parts(table: TableFile, prompt: str) -> tuple[str, ...]:
    """Return the columns whose texts continue a question: the input of an instruction."""
    # only "instruction" has an input; "input" beside a prompt is something else
    if prompt.lower() != "instruction":
        return ()
    column = table.usual("input")
    return () if column is None else (column,)


def _text(row: TableRow, column: str | None) -> str:
    if column is None or row.values.get(column) is None:
        return ""
    return row.text(column)


def _messages(row: TableRow, column: str) -> list[Message]:
    """Return the messages of a row; raises with its place for anything else."""
    given = row.values.get(column)
    if given is None:  # a missing value: a conversation without an answer
        return []
    if not isinstance(given, list | tuple):
        raise DataError(
            f"{row.where}: the column {column!r} has {type(given).__name__}: expected a list of messages, "
            'like [{"role": "user", "content": "Hello!"}]'
        )
    messages = [
        _message(one, f"{row.where}: message {number}") for number, one in enumerate(given, 1)
    ]
    # templates write a system message at the beginning only
    if any(one["role"] == "system" for one in messages[1:]):
        raise DataError(
            f"{row.where}: a system message that is not the first: expected one at most, at the beginning"
        )
    return messages


def message_keys(given: Any) -> tuple[str, str] | None:
    """Return the keys of the role and of the text of a message; None if it is none."""
    return next(
        (keys for keys in KEYS if isinstance(given, Mapping) and set(keys) <= set(given)), None
    )


def _message(given: Any, where: str) -> Message:
    keys = message_keys(given)
    if keys is None:
        raise DataError(
            f"{where} is {given!r:.100}: expected an object with role and content, or from and value"
        )
    role, content = (given[key] for key in keys)
    if not isinstance(role, str) or role not in ROLES:
        near = nearest(role, ROLES) if isinstance(role, str) else ""
        raise DataError(
            f"{where}: {keys[0]} = {role!r:.100}: expected one of {', '.join(ROLES)}{near}"
        )
    if not isinstance(content, str):
        raise DataError(f"{where}: {keys[1]} is {content!r:.100}: expected text")
    return {"role": ROLES[role], "content": whole_characters(content, where)}

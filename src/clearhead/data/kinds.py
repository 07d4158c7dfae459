"""What kind of data a table is: by the names of its columns, or, where they tell nothing, by its first rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .column_names import LABELS, OTHERS, SOURCES, TARGETS, TEXTS, is_language
from .conversations import ANSWERS, LISTS, QUESTIONS
from .files import DataError
from .tables import Row, Table

Kind = Literal["text", "labelled", "pairs", "chats"]
CLASSES = 50  # a column with more different values is not one of labels, unless its name says so
WORDS = 4  # a label has fewer words on average


@dataclass(frozen=True, slots=True)
class Guess:
    """A kind of data, the columns that it reads, and why."""

    kind: Kind
    options: dict[str, Any]  # for the [data] section: the columns by the options that name them
    why: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(name for option, name in self.options.items() if option != "join")


def guess(table: Table, rows: Sequence[Row]) -> Guess:
    """Return the kind of a table; raises if nothing tells it.

    Args:
        table: The table.
        rows: Its first rows.
    """
    for rule in _RULES:
        found = rule(table, rows)
        if found is not None:
            return found
    raise DataError(
        f"{table.path}: the columns {', '.join(table.columns)} do not tell what is in them: expected columns called "
        "text; text and label; source and target, or two languages; messages; or prompt and answer"
    )


def _chats(table: Table, rows: Sequence[Row]) -> Guess | None:
    messages = _named(table, LISTS)
    if messages and all(isinstance(row.values.get(messages), list | str) for row in rows):
        return Guess("chats", {"messages": messages}, f"the column {messages} has conversations")
    prompt, answer = _named(table, QUESTIONS), _named(table, ANSWERS)
    if prompt and answer:
        options = {"prompt": prompt, "answer": answer}
        return Guess("chats", options, f"the columns {prompt} and {answer} are a question and its answer")
    return None


def _pairs(table: Table, rows: Sequence[Row]) -> Guess | None:
    source, target = _named(table, SOURCES), _named(table, TARGETS)
    languages = [name for name in table.columns if is_language(name)]
    if not (source and target) and len(languages) == 2:
        source, target = languages
    if source and target:
        return _pair(source, target, f"the columns {source} and {target} are texts and their translations")
    return None


def _labelled(table: Table, rows: Sequence[Row]) -> Guess | None:
    text, label = _named(table, TEXTS), _named(table, LABELS)
    others = [name for name in table.columns if name != text and name.lower() not in OTHERS]
    if text and not label and len(others) == 1 and _is_label(others[0], rows):
        label = others[0]
    if text and label:
        return Guess("labelled", {"text": text, "label": label}, f"the columns {text} and {label} are texts and labels")
    return None


def _texts(table: Table, rows: Sequence[Row]) -> Guess | None:
    text = table.columns[0] if len(table.columns) == 1 else _named(table, TEXTS)
    if text is None:
        return None
    return Guess("text", {"column": text}, f"the column {text} has texts, and no other has labels or translations")


def _two(table: Table, rows: Sequence[Row]) -> Guess | None:
    """Two columns whose names tell nothing; a file of pairs may have a third with its source."""
    if len(table.columns) != 2 and (table.header or len(table.columns) != 3):
        return None
    first, second = table.columns[:2]
    if any(not isinstance(row.values.get(first), str) for row in rows):
        return None
    if _is_label(second, rows):
        why = f"the column {second} has few different values, which are short"
        return Guess("labelled", {"text": first, "label": second}, why)
    if all(isinstance(row.values.get(second), str) for row in rows):
        return _pair(first, second, f"the columns {first} and {second} are two texts, of which none is a label")
    return None


def _pair(source: str, target: str, why: str) -> Guess:
    return Guess("pairs", {"source": source, "target": target, "join": False}, why)


# The first rule that finds something decides.
_RULES: tuple[Callable[[Table, Sequence[Row]], Guess | None], ...] = (_chats, _pairs, _labelled, _texts, _two)


def _named(table: Table, usual: Sequence[str]) -> str | None:
    return table.usual(*usual) if table.header else None


def _is_label(column: str, rows: Sequence[Row]) -> bool:
    """Whether a column has few different values, and short ones."""
    given = [row.values[column] for row in rows if row.values.get(column) is not None]
    if not given or not all(isinstance(value, str | int) for value in given):
        return False
    values = [str(value) for value in given]
    different, words = len(set(values)), sum(len(value.split()) for value in values)
    if different == len(values):  # none is there twice
        return different <= 2 and words == len(values) and all(value[-1:].isalnum() for value in values)
    return words < WORDS * len(values) and different <= min(CLASSES, max(2, len(values) // 2))

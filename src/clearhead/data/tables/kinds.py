"""What kind of data a table is: by the names of its columns, or, where they tell nothing, by its first rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal

from ..files import DataError
from ..text.conversations import ANSWERS, LISTS, QUESTIONS, question_parts
from .column_names import LABELS, OTHERS, SOURCES, TARGETS, TEXTS, is_language
from .formats import looks_like_labels
from .reading import LABELLED, PARALLEL, TableFile, TableRow, two_columns

Kind = Literal["text", "labelled", "pairs", "chats"]
CLASSES = 50  # a column with more different values is not one of labels, unless its name says so
WORDS = 4  # a label has fewer words on average
COLUMNS: dict[Kind, tuple[str, ...]] = {  # by kind: the options that name its columns
    "labelled": ("text", "label"),
    "pairs": ("source", "target"),
    "chats": ("messages", "prompt", "answer"),
    "text": ("column",),
}


@dataclass(frozen=True, slots=True)
class Guess:
    """A kind of data, the columns that it reads, and why."""

    kind: Kind
    options: dict[str, Any]  # for the [data] section: the columns by the options that name them
    why: str
    # columns whose texts continue those of the first, as input does instruction
    more: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(name for option, name in self.options.items() if option in COLUMNS[self.kind])


def named_kind(given: Mapping[str, Any]) -> Kind | None:
    """Return the kind of data that has the columns which the user names; None if none is named.

    Args:
        given: Options of the [data] section, such as {"text": "utterance", "label": "intent"}.

    Examples:
        >>> named_kind({"text": "utterance", "label": "intent"}), named_kind({"header": True})
        ('labelled', None)
    """
    named = {
        kind: [option for option in options if option in given] for kind, options in COLUMNS.items()
    }
    # `data.name` alone also decides, without any column
    kinds: list[Kind] = [
        kind for kind, options in named.items() if options or given.get("name") == kind
    ]
    if len(kinds) > 1:
        words = [
            f"data.{option} = {given[option]}"
            for kind in kinds
            for option in named[kind] or ["name"]
        ]
        listed = [f"{kind} ({' and '.join(COLUMNS[kind])})" for kind in kinds]
        raise DataError(
            f"{', '.join(words)}: expected columns of one kind of data, {' or '.join(listed)}"
        )
    return kinds[0] if kinds else None


def guess(
    table: TableFile, rows: Sequence[TableRow], given: Mapping[str, Any] | None = None
) -> Guess:
    """Return the kind of a table; raises if nothing tells it.

    Args:
        table: The table.
        rows: Its first rows.
        given: Options of the [data] section that name columns: they decide before anything is guessed.
    """
    words = given or {}
    # what the user names decides: nothing is guessed
    kind = named_kind(words)
    if kind is not None:
        # a column may be given as a number, such as data.text=1
        columns = {option: str(words[option]) for option in COLUMNS[kind] if option in words}
        return Guess(
            kind,
            _NAMED[kind](table, columns),
            "its columns are named so" if columns else "data.name says it",
        )
    # rules by the names of columns come first, the rule by values last
    for rule in _RULES:
        found = rule(table, rows)
        if found is not None:
            return found
    raise DataError(
        f"{table.path}: the columns {', '.join(table.columns)} do not tell what is in them: expected columns called "
        "text; text and label; source and target, or two languages; messages; or prompt and answer. Columns with other "
        "names are named by data.text=COLUMN data.label=COLUMN, data.source and data.target, data.messages, "
        "data.prompt and data.answer, or data.column"
    )


def candidates(
    table: TableFile, rows: Sequence[TableRow], found: Guess, given: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Return other columns that could be meant, by the option that would name them; none where the user named one.

    Args:
        table: The table.
        rows: Its first rows.
        found: The columns that are read.
        given: Options of the [data] section that name columns.
    """
    read = {*found.columns, *found.more}
    others = [
        name
        for name in table.columns
        if name not in read and name.lower() not in (*OTHERS, "system")
    ]
    # columns that look like labels are offered for labels only, the others for texts
    labels = tuple(name for name in others if _is_label(name, rows))
    texts = tuple(name for name in others if name not in labels and _has_texts(name, rows))
    by_option = {}
    for option in COLUMNS[found.kind]:
        names = labels if option == "label" else texts
        # an option that the user gave is not in doubt
        if names and option in found.options and option not in given:
            by_option[option] = names
    return by_option


def _named_labelled(table: TableFile, columns: dict[str, str]) -> dict[str, Any]:
    # the user may have named one of the two: the other is found by its usual names
    text, label = two_columns(table, LABELLED, (columns.get("text"), columns.get("label")))
    return {"text": text, "label": label}


def _named_pairs(table: TableFile, columns: dict[str, str]) -> dict[str, Any]:
    source, target = two_columns(table, PARALLEL, (columns.get("source"), columns.get("target")))
    return {"source": source, "target": target, "join": False}


def _named_chats(table: TableFile, columns: dict[str, str]) -> dict[str, Any]:
    # a question and its answer in two columns, of which at least one is named
    if "prompt" in columns or "answer" in columns:
        prompt, answer = columns.get("prompt"), columns.get("answer")
        return {
            "prompt": table.column(prompt, *QUESTIONS),
            "answer": table.column(answer, *ANSWERS),
        }
    return {"messages": table.column(columns.get("messages"), *LISTS)}


def _named_text(table: TableFile, columns: dict[str, str]) -> dict[str, Any]:
    if "column" not in columns and len(table.columns) == 1:
        return {"column": table.columns[0]}
    return {"column": table.column(columns.get("column"), *TEXTS)}


# By kind: all its columns, given those that the user names.
_NAMED: dict[Kind, Callable[[TableFile, dict[str, str]], dict[str, Any]]] = {
    "labelled": _named_labelled,
    "pairs": _named_pairs,
    "chats": _named_chats,
    "text": _named_text,
}


def _chats(table: TableFile, rows: Sequence[TableRow]) -> Guess | None:
    messages = _named(table, LISTS)
    if messages and _all_are(list | str, messages, rows):
        return Guess("chats", {"messages": messages}, f"the column {messages} has conversations")
    # without such a column: a question and an answer
    prompt, answer = _named(table, QUESTIONS), _named(table, ANSWERS)
    if prompt and answer:
        options, more = {"prompt": prompt, "answer": answer}, question_parts(table, prompt)
        asked = ", ".join((prompt, *more))
        return Guess(
            "chats",
            options,
            f"the columns {asked} and {answer} are a question and its answer",
            more,
        )
    return None


def _pairs(table: TableFile, rows: Sequence[TableRow]) -> Guess | None:
    # usual names first; else two columns named after languages, in their order in the file
    source, target = _named(table, SOURCES), _named(table, TARGETS)
    languages = [name for name in table.columns if is_language(name)]
    # with three or more languages nothing says which two are meant
    if not (source and target) and len(languages) == 2:
        # in the order of the file
        source, target = languages
    if source and target:
        return _pair(
            source, target, f"the columns {source} and {target} are texts and their translations"
        )
    return None


def _labelled(table: TableFile, rows: Sequence[TableRow]) -> Guess | None:
    text, label = _named(table, TEXTS), _named(table, LABELS)
    # a text beside one single other column, whatever its name: its values decide
    others = [name for name in table.columns if name != text and name.lower() not in OTHERS]
    if text and not label and len(others) == 1 and _is_label(others[0], rows):
        # few short values: they are labels under an unusual name
        label = others[0]
    if text and label:
        return Guess(
            "labelled",
            {"text": text, "label": label},
            f"the columns {text} and {label} are texts and labels",
        )
    return None


def _texts(table: TableFile, rows: Sequence[TableRow]) -> Guess | None:
    # a single column needs no usual name
    text = table.columns[0] if len(table.columns) == 1 else _named(table, TEXTS)
    if text is None:
        return None
    return Guess(
        "text",
        {"column": text},
        f"the column {text} has texts, and no other has labels or translations",
    )


def _two(table: TableFile, rows: Sequence[TableRow]) -> Guess | None:
    """Two columns whose names tell nothing; a file of pairs may have a third with its source."""
    if len(table.columns) != 2 and (table.header or len(table.columns) != 3):
        return None
    first, second = table.columns[:2]
    values = [str(value) for value in _given(first, rows)]
    # a label may come first, with the texts in the second or third column
    texts = [name for name in table.columns[1:] if _all_are(str, name, rows)]
    if texts and looks_like_labels(values) and not _is_label(second, rows):
        # of several text columns the one with the most characters
        longest = max(texts, key=lambda name: sum(map(len, _given(name, rows))))
        why = f"the column {first} has few different values, which are short"
        return Guess("labelled", {"text": longest, "label": first}, why)
    # numbers and lists can be no text
    if not _all_are(str, first, rows):
        return None
    # the usual order: text, then label
    if _is_label(second, rows):
        why = f"the column {second} has few different values, which are short"
        return Guess("labelled", {"text": first, "label": second}, why)
    if _all_are(str, second, rows):
        return _pair(
            first,
            second,
            f"the columns {first} and {second} are two texts, of which none is a label",
        )
    return None


def _pair(source: str, target: str, why: str) -> Guess:
    return Guess("pairs", {"source": source, "target": target, "join": False}, why)


# The first rule that finds something decides.
_RULES: tuple[Callable[[TableFile, Sequence[TableRow]], Guess | None], ...] = (
    _chats,
    _pairs,
    _labelled,
    _texts,
    _two,
)


def _named(table: TableFile, usual: Sequence[str]) -> str | None:
    # without a header the names are numbers, which say nothing
    return table.usual(*usual) if table.header else None


def _given(column: str, rows: Sequence[TableRow]) -> list[Any]:
    """The values of a column, without missing ones."""
    return [row.values[column] for row in rows if row.values.get(column) is not None]


def _all_are(kind: type | UnionType, column: str, rows: Sequence[TableRow]) -> bool:
    """Whether a column has values, and all of this type."""
    values = _given(column, rows)
    return bool(values) and all(isinstance(value, kind) for value in values)


def _has_texts(column: str, rows: Sequence[TableRow]) -> bool:
    """Whether a column has texts, of more than a word on average."""
    return _all_are(str, column, rows) and sum(
        len(text.split()) for text in _given(column, rows)
    ) > len(rows)


def _names_class(value: Any) -> bool:
    """Whether a value is text or a whole number; in a data frame with missing values 1 is 1.0."""
    return isinstance(value, str | int) or (isinstance(value, float) and value.is_integer())


def _is_label(column: str, rows: Sequence[TableRow]) -> bool:
    """Whether a column has few different values, and short ones."""
    given = _given(column, rows)
    if not given or not all(map(_names_class, given)):
        return False
    values = [str(value) for value in given]
    different, words = len(set(values)), sum(len(value.split()) for value in values)
    # two different words in two rows may be labels; two sentences are not
    if different == len(values):  # none is there twice
        return (
            different <= 2
            and words == len(values)
            and all(value[-1:].isalnum() for value in values)
        )
    # values repeat: at least two rows per value on average, and at most CLASSES values
    return words < WORDS * len(values) and different <= min(CLASSES, max(2, len(values) // 2))

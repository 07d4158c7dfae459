"""The fields of a dataclass, with their defaults and the comments beside them in its source."""

from __future__ import annotations

import inspect
import json
import re
import typing
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Literal

from ..config import dump


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """One field: its name, its default, and what it means."""

    name: str
    needed: bool  # it has no default
    default: Any  # a plain value
    choices: tuple[str, ...]  # the words of a Literal
    meaning: str  # the comment beside it

    def row(self) -> tuple[str, str, str]:
        """For a table: the name, the default as TOML would have it, the meaning and the choices."""
        default = "needed" if self.needed else "" if self.default is None else json.dumps(self.default)
        return self.name, default, self.meaning + (f" ({' '.join(self.choices)})" if self.choices else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        found = {} if self.needed else {"default": self.default}
        return found | ({"choices": list(self.choices)} if self.choices else {}) | {"meaning": self.meaning}


def words_of(kind: type[Any]) -> list[Word]:
    """The fields of a dataclass, in their order, each with the comment beside it."""
    source = "\n".join(inspect.getsource(one) for one in kind.__mro__ if one is not object)
    hints = typing.get_type_hints(kind)
    return [_word(field, hints[field.name], source) for field in fields(kind)]


def _word(field: Any, hint: Any, source: str) -> Word:
    said = re.search(rf"^    {field.name}: [^#]*# (.*)$", source, re.MULTILINE)
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    default = dump(default) if is_dataclass(default) else default
    return Word(
        name=field.name, needed=default is MISSING, default=None if default is MISSING else default,
        choices=tuple(_choices(hint)), meaning=said[1] if said else "",
    )  # fmt: skip


def _choices(hint: Any) -> list[str]:
    """The words of a Literal, wherever in a type it stands."""
    parts = typing.get_args(hint)
    return (
        list(map(str, parts)) if typing.get_origin(hint) is Literal else [w for part in parts for w in _choices(part)]
    )

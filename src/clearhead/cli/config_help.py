"""The words that a dataclass of choices takes, as its own source explains them."""

from __future__ import annotations

import inspect
import json
import re
import typing
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """One choice: what it is called, what it is if nobody says, and what it means."""

    name: str
    needed: bool  # it has no default
    default: Any  # a plain value
    choices: tuple[str, ...]  # where it is one of a few words
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
    """The words of a dataclass, in their order. What they mean stands beside each field, and nowhere else."""
    source = "\n".join(inspect.getsource(one) for one in kind.__mro__ if one is not object)
    hints = typing.get_type_hints(kind)
    return [_word(field, hints[field.name], source) for field in fields(kind)]


def _word(field: Any, hint: Any, source: str) -> Word:
    said = re.search(rf"^    {field.name}: [^#]*# (.*)$", source, re.MULTILINE)
    default = field.default_factory() if field.default_factory is not MISSING else field.default
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

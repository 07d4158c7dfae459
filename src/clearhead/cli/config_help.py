"""The fields of a config dataclass, with their defaults and the comments beside them in its source."""

from __future__ import annotations

import inspect
import json
import re
import typing
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal

from ..config import dump


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigField:
    """One field of a config: its name, its default, and its meaning."""

    name: str
    required: bool  # it has no default
    default: Any  # a plain value; a dict if the field is a config itself
    choices: tuple[str, ...]  # the words of a Literal
    meaning: str  # the comment beside or above it

    def row(self) -> tuple[str, str, str]:
        """A row of a table: the name, the default as TOML has it, the meaning with the choices."""
        if self.required:
            default = "needed"
        elif self.default is None:
            # TOML has no null: a value that is not set is shown as empty.
            default = ""
        elif self.is_section:
            default = "{...}"
        else:
            default = json.dumps(self.default)
        choices = f" ({' '.join(self.choices)})" if self.choices else ""
        return self.name, default, self.meaning + choices

    @property
    def is_section(self) -> bool:
        """Whether it is a config of its own, with defaults of its own."""
        return isinstance(self.default, dict) and bool(self.default)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values: dict[str, Any] = {}
        if not self.required:
            values["default"] = self.default
        if self.choices:
            values["choices"] = list(self.choices)
        return values | {"meaning": self.meaning}


def config_fields(kind: type[Any]) -> list[ConfigField]:
    """The fields of a config dataclass in their order, with inherited fields."""
    source = "\n".join(inspect.getsource(one) for one in kind.__mro__ if one is not object)
    hints = typing.get_type_hints(kind)
    return [_config_field(field, hints[field.name], source) for field in fields(kind)]


def _config_field(field: Field[Any], hint: Any, source: str) -> ConfigField:
    if field.default_factory is not MISSING:
        # Factories are called, because their result is the default that users see.
        default = field.default_factory()
    else:
        default = field.default
    if is_dataclass(default):
        # A config inside a config becomes a dict, as its section in TOML.
        default = dump(default)
    return ConfigField(
        name=field.name,
        required=default is MISSING,
        default=None if default is MISSING else default,
        choices=tuple(_choices(hint)),
        meaning=_comment(field.name, source),
    )


def _comment(name: str, source: str) -> str:
    """The comment beside a field of a class, or else the lines of comment directly above it."""
    # The first comment after the name, unless the next member of the class begins before it.
    beside = re.search(rf"^    {name}: (?:(?!\n    [\w#])[^#])*# (.*)$", source, re.MULTILINE)
    if beside:
        # A comment on the same line is preferred; formatting may have moved a long one above.
        return beside[1]
    above = re.search(rf"((?:^    # .*\n)+)    {name}: ", source, re.MULTILINE)
    if not above:
        return ""
    return " ".join(line.strip("# ") for line in above[1].splitlines())


def _choices(hint: Any) -> list[str]:
    """The words of the Literals in a type."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        # A Literal of words; numbers are shown as they are written.
        return [str(word) for word in parts]
    # Such as Literal["a", "b"] | None: the words of all parts.
    return [word for part in parts for word in _choices(part)]

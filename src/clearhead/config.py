"""Frozen dataclasses <-> TOML and JSON files, with dotted overrides; every error names its file and line.

    table = override(load("recipe.toml"), "optim.lr=1e-3", "model.positions=rotary")
    recipe = read(Recipe, table)
    write(recipe, "again.toml")

Reading is strict: a key that the dataclass does not have, a value of another type or a missing value is an error,
and its message begins with the file and line, or with "on the command line". Files are written completely or not at
all.
"""

from __future__ import annotations

import json
import re
import reprlib
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date, time
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from .atomic_files import atomic_write
from .errors import InputError, nearest

T = TypeVar("T")
Key = tuple[str, ...]  # a dotted key, split: a name may itself contain dots

_COMMAND_LINE = "on the command line: "
_WORDS = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "nothing",
    Any: "anything",
}  # fmt: skip


class ConfigError(InputError):
    """A mistake in a config file or an override."""


@dataclass(frozen=True)
class Origin:
    """Where the values of a Table came from: a file, and the keys that overrides have set since.

    Examples:
        >>> Origin("run.toml", "[optim]\\nlr = 1").place(("optim", "lr"))
        'run.toml:2: '
    """

    path: str | None = None  # the file as the user named it; None for values from Python
    text: str = ""  # the content of the file
    # keys set on the command line, and sections created there
    changed: frozenset[Key] = frozenset()

    @cached_property
    def lines(self) -> dict[Key, int]:
        """The line number of every key; computed only when a message needs it."""
        find_lines = _json_lines if str(self.path).lower().endswith(".json") else _toml_lines
        return {(): 1, **find_lines(self.text)}

    def place(self, key: Key) -> str:
        """Return how a message about a key begins: "file:line: " (of the key or its section) or the command line."""
        if any(key[: len(other)] == other for other in self.changed):
            return _COMMAND_LINE
        if self.path is None:
            return ""
        while key not in self.lines:  # a key that is missing is reported at its section
            key = key[:-1]
        return f"{self.path}:{self.lines[key]}: "


class Table(dict[str, Any]):
    """A dict with the values of a file, or of one of its sections, that knows the line number of each key.

    Inner dicts become Tables too.

    Args:
        values: The keys and values.
        origin: The file that they come from; by default none.
        key: The dotted key of this section in the file, split.

    Examples:
        >>> _ = (tmp / "run.toml").write_text("[optim]\\nlr = 1")
        >>> table = load(tmp / "run.toml")
        >>> table, table.line("optim.lr")
        ({'optim': {'lr': 1}}, 2)
    """

    def __init__(
        self,
        values: Mapping[str, Any] | Iterable[Any] = (),
        *,
        origin: Origin | None = None,
        key: Key = (),
    ) -> None:
        self.origin, self.key = origin or Origin(), key
        super().__init__({n: self._inside(x, (*key, str(n))) for n, x in dict(values).items()})

    def _inside(self, value: Any, key: Key) -> Any:
        if isinstance(value, Mapping):
            # every section is a Table, so that it can tell its own lines
            return Table(value, origin=self.origin, key=key)
        if isinstance(value, list | tuple):
            # items are keyed by their number: "data.files.0"
            return [self._inside(x, (*key, str(i))) for i, x in enumerate(value)]
        return value

    @property
    def path(self) -> str | None:
        """The file as the user named it; None for values from Python."""
        return self.origin.path

    def line(self, name: str = "") -> int | None:
        """Return the line number of a dotted name in this table, or None if the file does not have it."""
        key = (*self.key, *name.split(".")) if name else self.key
        if self.path is None:
            return None
        return self.origin.lines.get(key)

    def place(self, *names: str) -> str:
        """Return how a message about a key in this table begins: "file:line: ", or "on the command line: "."""
        return self.origin.place((*self.key, *names))

    def without(self, *names: str) -> Table:
        """Return this table without some of its keys."""
        kept = {name: value for name, value in self.items() if name not in names}
        return Table(kept, origin=self.origin, key=self.key)

    def with_defaults(self, defaults: Mapping[str, Any]) -> Table:
        """Return this table with default values for the keys that it does not have."""
        return Table({**defaults, **self}, origin=self.origin, key=self.key)


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with the package, by name.

    Examples:
        >>> shipped_recipes()["reverse"].name
        'reverse.toml'
    """
    package = Path(__file__).parent
    folder = package / "configs"  # in the wheel
    if not folder.is_dir():
        folder = package.parents[1] / "configs"  # in a checkout
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_recipe(source: str | Path) -> Path:
    """Return the file of a recipe.

    Args:
        source: A path, or the name of a recipe that comes with the package, such as reverse or configs/reverse.toml.

    Examples:
        >>> find_recipe("reverse").name
        'reverse.toml'
    """
    path = Path(source)
    is_name = path.parts in ((path.name,), ("configs", path.name)) and path.suffix in ("", ".toml")
    if path.exists() or not is_name:
        return path
    return shipped_recipes().get(path.stem, path)


def load(path: str | Path) -> Table:
    """Read a .toml or .json file.

    Args:
        path: The file.

    Raises:
        ConfigError: The file is missing or malformed; the message names the file and the line.

    Examples:
        >>> _ = (tmp / "run.toml").write_text("steps = 3")
        >>> load(tmp / "run.toml")
        {'steps': 3}
    """
    name, suffix = str(path), _suffix(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as cause:
        folder = Path(path).parent
        others = [str(p) for p in folder.glob("*" + suffix)] if folder.is_dir() else []
        raise ConfigError(f"{name}: there is no such file{nearest(name, others)}") from cause
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{name}: cannot be read: {cause}") from cause
    try:
        if suffix == ".toml":
            values = tomllib.loads(text)
        else:
            values = _json_values(text)
    except (ValueError, RecursionError) as cause:
        # the parsers name the line in their messages, if not at the end of the file
        line = ""
        at = re.search(r" line (\d+)", str(cause))
        if at:
            line = f":{at[1]}"
        elif str(cause).endswith("(at end of document)"):
            line = f":{text.count(chr(10)) + 1}"
        raise ConfigError(f"{name}{line}: {cause}") from cause
    return Table(values, origin=Origin(name, text))


def override(table: Mapping[str, Any], *words: str) -> Table:
    """Return a copy of a table with values changed by words like "optim.lr=1e-3".

    Args:
        table: The values to start from.
        words: Overrides name=value, with dots between sections. A value is read as TOML, or else as plain text.

    Examples:
        >>> override({"optim": {"lr": 1}}, "optim.lr=1e-3", "model.positions=rotary")
        {'optim': {'lr': 0.001}, 'model': {'positions': 'rotary'}}
    """
    if not isinstance(table, Table):
        table = Table(table)
    out = Table(table, origin=Origin(), key=table.key)
    changed = set(table.origin.changed)
    for word in words:
        key, value = _assignment(word)
        inner: dict[str, Any] = out  # the section that the key is in, made if it does not exist
        for depth, name in enumerate(key[:-1], 1):
            # a section that the command line creates has no line in the file
            if name not in inner:
                changed.add((*table.key, *key[:depth]))
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"{_COMMAND_LINE}{word}: {'.'.join(key[:depth])} = {reprlib.repr(inner)} is not a table"
                )
        inner[key[-1]] = value
        changed.add((*table.key, *key))
    origin = Origin(table.path, table.origin.text, frozenset(changed))
    return Table(out, origin=origin, key=table.key)


def read(kind: type[T], table: Mapping[str, Any], *, where: str = "") -> T:
    """Return an instance of a dataclass with the values of a table.

    Args:
        kind: The dataclass. Values are checked against its annotations.
        table: The values; fields with defaults may be missing.
        where: The dotted name of the table, for messages, if the table is not a Table.

    Raises:
        ConfigError: A key is unknown or missing, or a value does not fit; the message names its place.

    Examples:
        >>> Optim = dataclasses.make_dataclass("Optim", [("lr", float), ("steps", int, 100)])
        >>> read(Optim, {"lr": 1})
        Optim(lr=1.0, steps=100)
        >>> read(Optim, {"lr": "fast"}, where="optim")
        Traceback (most recent call last):
        ...
        clearhead.config.ConfigError: optim.lr = 'fast': expected a number, got text
    """
    origin = table.origin if isinstance(table, Table) else Origin()
    key = table.key if isinstance(table, Table) else ()
    if where:
        key = tuple(where.split("."))
    return _read_dataclass(kind, table, key, origin)


def dump(config: Any) -> dict[str, Any]:
    """Return a config as plain dicts, lists and values; fields that are None are omitted.

    Args:
        config: An instance of a dataclass, or a mapping.

    Examples:
        >>> Model = dataclasses.make_dataclass("Model", [("sizes", tuple), ("note", str, None)])
        >>> dump(Model((3, 4)))
        {'sizes': [3, 4]}
    """
    if not isinstance(config, Mapping) and (not is_dataclass(config) or isinstance(config, type)):
        raise ConfigError(f"{reprlib.repr(config)}: expected a dataclass's instance or a mapping")
    return _to_plain(config, ())


def dumps(config: Any) -> str:
    """Return a config as the text of a TOML file.

    Args:
        config: An instance of a dataclass, or a mapping.

    Examples:
        >>> print(dumps({"steps": 9, "optim": {"lr": 0.001}}))
        steps = 9
        <BLANKLINE>
        [optim]
        lr = 0.001
        <BLANKLINE>
    """
    return tomli_w.dumps(dump(config))


def write(config: Any, path: str | Path) -> None:
    """Write a config to a .toml or .json file, completely or not at all.

    Args:
        config: An instance of a dataclass, or a mapping.
        path: The file to write or replace.

    Raises:
        ConfigError: A value cannot be written in this format.
        OSError: The file cannot be written; `filename` is `path`.

    Examples:
        >>> write({"optim": {"lr": 0.001}}, tmp / "run.toml")
        >>> (tmp / "run.toml").read_text()
        '[optim]\\nlr = 0.001\\n'
    """
    path, suffix, values = Path(path), _suffix(path), dump(config)
    try:
        if suffix == ".toml":
            text = dumps(values)
        else:
            text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        data = text.encode()
    except (TypeError, ValueError) as cause:
        # None in TOML, dates and infinity in JSON, half of a surrogate pair
        raise ConfigError(f"{path}: cannot be written as {suffix[1:].upper()}: {cause}") from cause
    atomic_write(path, data)


def _read_dataclass(kind: Any, table: Mapping[str, Any], key: Key, origin: Origin) -> Any:
    """Return a dataclass with the values of one table."""
    # unknown keys first: a misspelt key would otherwise be reported as a missing one
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind) if f.init}
    for name in table:
        # fields with init=False are computed, and cannot be given
        if name not in known:
            place, hint = origin.place((*key, name)), _hint(name, hints, known)
            raise ConfigError(f"{place}unknown key {'.'.join((*key, name))}{hint}")

    # all missing keys in one message
    missing = []
    for name, f in known.items():
        has_default = f.default is not MISSING or f.default_factory is not MISSING
        if name not in table and not has_default:
            missing.append(f"{'.'.join((*key, name))} ({_describe(hints[name])})")
    if missing:
        raise ConfigError(f"{origin.place(key)}missing {', '.join(missing)}")

    # convert the values one by one, so that an error names its key and line
    values = {}
    for name, value in table.items():
        values[name] = _read_value(hints[name], value, (*key, name), origin)
    try:
        return kind(**values)
    except ValueError as cause:
        # the line of the first field that the message of __post_init__ names
        named = [word for word in re.findall(r"\w+", str(cause)) if word in table]
        section = f"{'.'.join(key)}: " if key else ""
        raise ConfigError(f"{origin.place((*key, *named[:1]))}{section}{cause}") from cause


def _hint(name: str, hints: Mapping[str, Any], known: Iterable[str]) -> str:
    """Return a hint for an unknown key: the same key in another section, a similar one, or all known ones."""
    inside = []
    for section in known:
        # a key that was given at the wrong level, such as lr outside of optim
        for member in _alternatives(hints[section]):
            if is_dataclass(member) and name in get_type_hints(member):
                inside.append(f"{section}.{name}")
    if inside:
        return f"; there is {', '.join(inside)}"
    return nearest(name, known) or f"; the known keys are {', '.join(known)}"


def _read_value(kind: Any, value: Any, key: Key, origin: Origin) -> Any:
    """Convert one value to its annotation: containers here, so that errors name the item, the rest by msgspec."""
    members = _alternatives(kind)
    # of several containers, such as a list of two kinds, the first that fits; the last one raises
    containers = [member for member in members if isinstance(value, _container_types(member))]
    for member in containers[:-1]:
        with suppress(ConfigError):
            return _read_container(member, value, key, origin)
    if containers:
        return _read_container(containers[-1], value, key, origin)
    scalars = tuple(member for member in members if not _container_types(member))
    if Any in scalars:
        return value
    try:
        if scalars:
            return msgspec.convert(value, Union[scalars], strict=True)  # noqa: UP007
    except msgspec.ValidationError:
        pass
    except UnicodeEncodeError as cause:  # the command line may have bytes that are not UTF-8
        raise _mismatch(key, origin, value, "text of whole characters") from cause
    # such as a column called 2: the command line has no quotes
    if str in scalars and type(value) is int:
        return str(value)

    # nothing fits: say what was expected and what was given, or the nearest word
    words = []
    for member in members:
        if get_origin(member) is Literal:
            words += [word for word in get_args(member) if isinstance(word, str)]
    if words and isinstance(value, str):
        hint = nearest(value, words)
    elif isinstance(value, float | bool):
        hint = f", got {json.dumps(value)}"
    else:
        hint = f", got {_describe(type(value))}"
    raise _mismatch(key, origin, value, f"{_describe(kind)}{hint}")


def _read_container(kind: Any, value: Any, key: Key, origin: Origin) -> Any:
    """Convert a mapping or list to a dataclass, dict, list or tuple."""
    if is_dataclass(kind):
        return _read_dataclass(kind, value, key, origin)
    box, inner = get_origin(kind) or kind, get_args(kind) or (Any, Any)
    if box in (dict, Mapping):
        # untyped options are checked later, by the family that reads them
        if inner[1] is Any and isinstance(value, dict):
            return value  # a Table keeps its line numbers
        return {n: _read_value(inner[1], v, (*key, n), origin) for n, v in value.items()}
    # tuple[A, B] has a kind for each item, list[A] and tuple[A, ...] one for all
    kinds = inner[:1] * len(value)
    if box is tuple and get_args(kind) and Ellipsis not in inner:
        kinds = inner
    if len(kinds) != len(value):
        raise _mismatch(key, origin, value, f"{_describe(kind)}, got {len(value)}")
    items = []
    for i, (item_kind, item) in enumerate(zip(kinds, value, strict=True)):
        items.append(_read_value(item_kind, item, (*key, str(i)), origin))
    return items if box is list else tuple(items)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) in (Union, types.UnionType):
        return get_args(kind)
    return (kind,)


def _container_types(kind: Any) -> tuple[type, ...]:
    """Return the Python types that a parsed file has for a kind of container; () for other kinds."""
    box = get_origin(kind) or kind
    if is_dataclass(kind) or box in (dict, Mapping):
        return (Mapping,)
    if box in (list, tuple, Sequence):
        return (list, tuple)
    return ()


def _mismatch(key: Key, origin: Origin, value: Any, expected: str) -> ConfigError:
    return ConfigError(
        f"{origin.place(key)}{'.'.join(key)} = {reprlib.repr(value)}: expected {expected}"
    )


def _describe(kind: Any) -> str:
    """Return a type in plain words, for messages."""
    box, inner = get_origin(kind) or kind, get_args(kind)
    if len(_alternatives(kind)) > 1:
        return " or ".join(_describe(member) for member in inner if member is not type(None))
    if box is Literal:
        return "one of " + ", ".join(repr(word) for word in inner)
    if box is tuple and inner and Ellipsis not in inner:
        return f"a list of {len(inner)} ({', '.join(map(_describe, inner))})"
    if _container_types(kind) == (list, tuple):
        if inner and inner[0] is not Any:
            return f"a list (each {_describe(inner[0])})"
        return "a list"
    if is_dataclass(kind) or (isinstance(box, type) and issubclass(box, Mapping)):
        return "a table"
    return _WORDS.get(kind) or f"a {kind.__name__}"


def _to_plain(value: Any, key: Key) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        values = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        for field in fields(value):
            # None is written by leaving the field out, and must be what its default gives
            if values.get(field.name, MISSING) is None and field.default is not None:
                name = ".".join((*key, field.name))
                raise ConfigError(
                    f"{name} = None cannot be written: left out, it would not be None when read again"
                )
        return {name: _to_plain(x, (*key, name)) for name, x in values.items() if x is not None}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _to_plain(x, (*key, name)) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(x, (*key, str(i))) for i, x in enumerate(value)]
    if value is None or isinstance(value, str | int | float | date | time):
        return value
    raise ConfigError(
        f"{'.'.join(key)} = {reprlib.repr(value)} cannot be written: it is not plain data"
    )


def _suffix(path: str | Path) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".toml", ".json"):
        raise ConfigError(f"{path}: expected a name that ends in .toml or .json")
    return suffix


def _assignment(word: str) -> tuple[Key, Any]:
    """Split an override into its key and value."""
    name, equals, text = (part.strip() for part in word.partition("="))
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", name):
        raise ConfigError(f"{_COMMAND_LINE}{word!r}: expected name=value, like optim.lr=1e-3")
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as cause:
        if text[:1] in ("[", "{", '"', "'"):  # meant as TOML
            raise ConfigError(f"{_COMMAND_LINE}{word}: {cause}") from cause
        values = {"value": text}
    # text with a line break may have become further keys
    value = values["value"] if len(values) == 1 else text
    return tuple(name.split(".")), value


def _json_values(text: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"the key {twice!r} is given twice")
        return values

    def refuse(word: str) -> None:
        raise InputError(f"JSON has no {word}")

    values = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    # JSON writes characters beyond 16 bits as two halves: one that is left over stands alone
    alone = None
    if "\\ud" in text.lower():
        alone = re.search("[\ud800-\udfff]", json.dumps(values, ensure_ascii=False))
    if alone:
        half = f"\\u{ord(alone[0]):04x}"
        line = text[: text.lower().index(half)].count("\n") + 1
        raise InputError(
            f"{half} is half of a surrogate pair, and no character by itself: line {line}"
        )
    if not isinstance(values, dict):
        raise InputError(f"expected a table {{...}}, got {_describe(type(values))}")
    return values


def _json_lines(text: str) -> dict[Key, int]:
    """Return the line of each key of a valid JSON text."""
    lines: dict[Key, int] = {}
    stack: list[str] = []  # the names of the open tables and lists
    name = ""
    # strings (with the colon that makes one a key), and brackets
    for token in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?|[][{}]', text):
        # a string with a colon is a key; a string without one is a value
        if token[2]:
            name = json.loads(token[1])
            lines[(*stack[1:], name)] = text.count("\n", 0, token.start()) + 1
        elif token[0] in "[{":
            stack.append(name)
        elif token[0] in "]}":
            stack.pop()
    return lines


def _toml_lines(text: str) -> dict[Key, int]:
    """Return the line of each key of a valid TOML text: a statement ends where the parser first accepts it."""
    lines: dict[Key, int] = {}
    section: Key = ()
    statement: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        # the parser itself decides where a statement ends, since strings may contain anything
        statement.append(line)
        try:
            values = tomllib.loads("\n".join(statement))
        except tomllib.TOMLDecodeError:
            continue  # inside a list or a string of several lines
        # a [section] header sets the key in front of all statements below it
        header = statement[0].lstrip().startswith("[")
        for key in _keys(values, () if header else section):
            lines.setdefault(key, number - len(statement) + 1)
            if header:
                section = key
        if statement[0].lstrip().startswith("[["):  # one more table of a list
            section = (*section, str(sum(key[:-1] == section for key in lines)))
            lines[section] = number
        statement = []
    return lines


def _keys(values: Mapping[str, Any], key: Key) -> Iterator[Key]:
    """Yield the keys of nested tables, outer ones first."""
    for name, value in values.items():
        yield (*key, name)
        yield from _keys(value if isinstance(value, dict) else {}, (*key, name))

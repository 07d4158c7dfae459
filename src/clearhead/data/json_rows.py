"""Rows of JSON files: one object per line, or a list of objects."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from json import JSONDecodeError
from typing import Any

from .files import DataError
from .streams import CHUNK, LONGEST, Source

_SPACE = re.compile(r"[ \t\r\n]*")
Object = tuple[int, dict[str, Any]]  # the line on which an object begins, and its values
# By what was read last: the characters that may follow, and what a message expects.
_AFTER = {
    "the beginning": ("[{", "a list of objects, [{...}, {...}]"),
    "[": ("{]", "a list of objects, {...}"),
    ",": ("{", "an object, {...}, after the comma"),
    "an object": (",]", "a comma or ]"),
    "]": ("", "the end of the file, or one list of all objects"),
    "an object without a list": ("{", "another object, {...}, or the end of the file"),
}


def read_json_lines(source: Source) -> Iterator[Object]:
    """Yield the object of each line of a file; empty lines are left out."""
    for number, line in enumerate(source.lines(), 1):
        if line.strip():
            where = f"{source.path}:{number}"
            try:
                value = json.loads(line.rstrip())
            except JSONDecodeError as error:
                raise DataError(f"{where}: column {error.colno}: not JSON: {error.msg}") from error
            except (RecursionError, ValueError) as error:
                raise DataError(f"{where}: {_too_large(error)}") from error
            yield number, _object(value, where)


def read_json_list(source: Source) -> Iterator[Object]:
    """Yield the objects of a JSON list, or of a file of objects without one; only a part of it is in memory."""
    reading, last, listed = _Reading(source), "the beginning", False
    while True:
        found = reading.next_character()
        may_follow, expected = _AFTER[last]
        if not found and last in ("]", "an object without a list"):
            return
        if not found and (last != "the beginning" or listed):
            raise DataError(f"{source.path}: the list is not closed: expected ] at the end")
        if not found or found not in may_follow:
            given = f"got {reading.shown()}" if found else "got nothing"
            raise DataError(f"{source.path}:{reading.line}: expected {expected}, {given}")
        if found == "{":
            line, value = reading.value()
            yield line, _object(value, f"{source.path}:{line}")
            last = "an object" if listed else "an object without a list"
        else:
            listed, last = True, found
            reading.at += 1


class _Reading:
    """A stream of JSON, of which a part is in memory: `buffer` from the place `at` on."""

    def __init__(self, source: Source) -> None:
        self.source, self.parts, self.decoder = source, source.text(), json.JSONDecoder()
        self.buffer, self.at, self.ended = "", 0, False
        self.line, self.column = 1, 0  # the line of the place `counted`, and the characters of it before the buffer
        self.counted = 0

    def next_character(self) -> str:
        """Return the next character that is no white space, and stop before it; "" at the end of the file."""
        while True:
            space = _SPACE.match(self.buffer, self.at)
            self.at = space.end() if space else self.at
            if self.at < len(self.buffer) or self.ended:
                self._count(self.at)
                return self.buffer[self.at : self.at + 1]
            self._read(1)

    def value(self) -> tuple[int, Any]:
        """Return the value that begins here, and its line."""
        line, wanted = self.line, CHUNK
        while True:
            self._read(wanted)
            try:
                value, self.at = self.decoder.raw_decode(self.buffer, self.at)
                return line, value
            except JSONDecodeError as error:
                if not self.ended and len(self.buffer) - self.at < LONGEST:
                    wanted = 2 * (len(self.buffer) - self.at)
                    continue
                self._count(error.pos)
                column = error.pos - self.buffer.rfind("\n", 0, error.pos)
                column += self.column if "\n" not in self.buffer[: error.pos] else 0
                raise DataError(f"{self.source.path}:{self.line}: column {column}: not JSON: {error.msg}") from error
            except (RecursionError, ValueError) as error:
                raise DataError(f"{self.source.path}:{line}: {_too_large(error)}") from error

    def shown(self) -> str:
        """Return what comes next, for a message."""
        return repr(self.buffer[self.at : self.at + 40])

    def _read(self, wanted: int) -> None:
        """Read until this many characters are in memory, or all are; those before `at` are dropped."""
        while not self.ended and len(self.buffer) - self.at < wanted:
            self._count(self.at)
            feed = self.buffer.rfind("\n", 0, self.at)
            self.column = self.at - feed - 1 if feed >= 0 else self.column + self.at
            text, _ = next(self.parts, ("", 0))
            self.buffer, self.at, self.counted, self.ended = self.buffer[self.at :] + text, 0, 0, not text

    def _count(self, place: int) -> None:
        """Let `line` be that of a place in the buffer."""
        self.line += self.buffer.count("\n", self.counted, place)
        self.counted = place


def _too_large(error: Exception) -> str:
    """Return what a value is that is JSON, but too large for Python."""
    if isinstance(error, RecursionError):
        return "lists or objects are nested too deeply"
    return f"a number has more than {sys.get_int_max_str_digits():,} digits"


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
        raise DataError(f'{where}: expected an object like {{"text": "..."}}, got {kind}')
    return value

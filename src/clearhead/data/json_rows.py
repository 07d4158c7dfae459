"""Rows of JSON files: one object per line, or a list of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json import JSONDecodeError
from typing import Any

from .files import DataError
from .streams import CHUNK, LONGEST, Source

_GAP = re.compile(r"[\s,]*")
Object = tuple[int, dict[str, Any]]  # the line on which an object begins, and its values


def read_json_lines(source: Source) -> Iterator[Object]:
    """Yield the object of each line of a file; empty lines are left out."""
    for number, line in enumerate(source.lines(), 1):
        if line.strip():
            try:
                value = json.loads(line.rstrip())
            except JSONDecodeError as error:
                raise DataError(f"{source.path}:{number}: column {error.colno}: not JSON: {error.msg}") from error
            yield number, _object(value, f"{source.path}:{number}")


def read_json_list(source: Source) -> Iterator[Object]:
    """Yield the objects of a JSON list, or of a file of objects without one; only a part of it is in memory."""
    decoder, parts = json.JSONDecoder(), source.text()
    buffer, at, ended, listed = "", 0, False, None
    line, counted = 1, 0  # the line of the place `counted` of the buffer
    wanted = CHUNK
    while True:
        if not ended and len(buffer) - at < wanted:
            line, counted = line + buffer.count("\n", counted, at), 0
            text, _ = next(parts, ("", 0))
            buffer, at, ended = buffer[at:] + text, 0, not text
            continue
        gap = _GAP.match(buffer, at)
        at = gap.end() if gap else at
        rest = buffer[at : at + 1]
        if not rest and not ended:
            continue
        if listed is None and rest:
            listed = rest == "["
            at += listed
            continue
        if not rest or rest == "]":
            if listed is not False and rest != "]":
                raise DataError(f"{source.path}: the list is not closed: expected ] at the end")
            return
        line, counted = line + buffer.count("\n", counted, at), at
        where = f"{source.path}:{line}"
        if rest != "{":
            raise DataError(f"{where}: expected a list of objects, {{...}}, got {buffer[at : at + 40]!r}")
        try:
            value, end = decoder.raw_decode(buffer, at)
        except JSONDecodeError as error:
            if not ended and len(buffer) - at < LONGEST:
                wanted = 2 * (len(buffer) - at)
                continue
            column = error.pos - buffer.rfind("\n", 0, error.pos)
            wrong = line + buffer.count("\n", at, error.pos)
            raise DataError(f"{source.path}:{wrong}: column {column}: not JSON: {error.msg}") from error
        at, wanted = end, CHUNK
        yield line, _object(value, where)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
        raise DataError(f'{where}: expected an object like {{"text": "..."}}, got {kind}')
    return value

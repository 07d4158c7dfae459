"""Protocol buffers, as far as SentencePiece's and TensorBoard's files need them: fields by their numbers."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from .errors import InputIndexError

_LARGEST = 3.4028234663852886e38  # of 32 bits


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, by their numbers; numbers of a fixed width are left as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(data, at)
        else:
            if wire == 2:
                length, at = _varint(data, at)
            elif wire in (1, 5):
                length = 8 if wire == 1 else 4
            else:
                raise InputIndexError(f"byte {at}: a field of the unknown type {wire}")
            value, at = data[at : at + length], at + length
            if at > len(data):
                raise InputIndexError(f"a field ends {at - len(data)} bytes after the file")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def write_field(number: int, value: int | float | bytes, *, double: bool = False) -> bytes:
    """One field as bytes; a float has 4 of them, or 8 if `double`. One too large for its size becomes infinite."""
    if isinstance(value, bytes):
        return _number(number << 3 | 2) + _number(len(value)) + value
    if isinstance(value, float):
        if double:
            return _number(number << 3 | 1) + struct.pack("<d", value)
        value = math.copysign(math.inf, value) if abs(value) > _LARGEST else value
        return _number(number << 3 | 5) + struct.pack("<f", value)
    return _number(number << 3) + _number(value & 0xFFFFFFFFFFFFFFFF)  # a negative int64 is its two's complement


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise InputIndexError("a number where a text was expected")
    return value

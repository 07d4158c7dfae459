"""Protocol buffers, as far as the files of SentencePiece and TensorBoard need them: fields are known by number."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from .errors import InputIndexError

_LARGEST_FLOAT32 = 3.4028234663852886e38
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a message; a fixed-width number is left as its 4 or 8 bytes.

    Args:
        data: An encoded message.

    Raises:
        IndexError: The message ends within a field, or has a field of an unknown wire type.

    Examples:
        >>> list(read_fields(write_field(1, 300) + write_field(2, b"dog")))
        [(1, 300), (2, b'dog')]
    """
    at = 0
    while at < len(data):
        # a tag is the number of a field and, in its three lowest bits, the wire type
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        value: int | bytes
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
        else:
            if wire_type == _BYTES:
                length, at = _read_varint(data, at)
            elif wire_type in (_FIXED64, _FIXED32):
                length = 8 if wire_type == _FIXED64 else 4
            else:
                raise InputIndexError(f"byte {at}: a field of the unknown wire type {wire_type}")
            value, at = data[at : at + length], at + length
            # a slice that reaches over the end is silently shorter
            if at > len(data):
                raise InputIndexError(f"a field ends {at - len(data)} bytes after the file")
        yield number, value


def write_field(number: int, value: int | float | bytes, *, double: bool = False) -> bytes:
    """Encode one field of a message.

    Args:
        number: The number of the field.
        value: A whole number, a float, or the bytes of a string or of a message.
        double: Write a float in 8 bytes instead of 4. One that is too large for 4 becomes infinite.

    Examples:
        >>> write_field(1, 300)
        b'\\x08\\xac\\x02'
        >>> len(write_field(1, 0.5)), len(write_field(1, 0.5, double=True))
        (5, 9)
    """
    if isinstance(value, bytes):
        return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
    if isinstance(value, float):
        if double:
            return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)
        # struct.pack would raise OverflowError
        if abs(value) > _LARGEST_FLOAT32:
            value = math.copysign(math.inf, value)
        return _varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    # a negative int64 is its two's complement
    return _varint(number << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def as_bytes(value: int | bytes) -> bytes:
    """Return the value of a field that must hold bytes, or raise.

    Args:
        value: A value from `read_fields`.

    Raises:
        IndexError: It is a number.

    Examples:
        >>> as_bytes(b"dog")
        b'dog'
    """
    if isinstance(value, int):
        raise InputIndexError(f"a field holds the number {value}: expected text or bytes")
    return value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at a byte, 7 bits per byte, the lowest first; and the position after it."""
    value, shift = 0, 0
    while True:
        # the position after the end raises IndexError, as `read_fields` promises
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        # the highest bit tells whether another byte follows
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        # the lowest 7 bits first, each byte but the last with its highest bit set
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])

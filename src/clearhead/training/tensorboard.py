"""Scalars as TensorBoard's event files, written by hand so that training needs no tensorboard.

A file is a row of TFRecords, each a tiny protobuf `Event` (tensorflow/core/util/event.proto, summary.proto).
"""

from __future__ import annotations

import math
import os
import re
import socket
import struct
import time as clock
from collections.abc import Mapping
from pathlib import Path

_CRC = []
for _byte in range(256):  # crc32c, Castagnoli's polynomial, reflected
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _CRC.append(_byte)
_LARGEST = 3.4028234663852886e38  # of float32, which is what TensorBoard keeps
_START = 1  # SessionLog.START


class Events:
    """A file of scalars. `after` is the step a run resumes from: TensorBoard then drops what it has of later ones."""

    def __init__(self, folder: str | Path, *, after: int | None = None) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder by name: ours must come after those of earlier attempts.
        stamps = [
            int(found[1]) for f in folder.iterdir() if (found := re.match(r"events\.out\.tfevents\.(\d+)\.", f.name))
        ]
        stamp = max(int(clock.time()), max(stamps, default=0) + 1)
        self.path = folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(self.path, "xb")  # noqa: SIM115  (closed by close)
        now = clock.time()
        self._write(_double(1, now) + _message(3, b"brain.Event:2"))
        if after is not None:
            self._write(_double(1, now) + _integer(2, after + 1) + _message(7, _integer(1, _START)))
        self.flush()

    def scalars(self, step: int, values: Mapping[str, float | int], time: float | None = None) -> None:
        """Write one value a tag, at a step and a time in seconds since 1970 (now, unless given)."""
        summary = b"".join(_message(1, _message(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
        self._write(_double(1, clock.time() if time is None else time) + _integer(2, step) + _message(5, summary))

    def flush(self) -> None:
        """Hand everything written so far to the system."""
        self._file.flush()

    def close(self) -> None:
        """Flush, and write no more."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + struct.pack("<I", masked_crc32c(length)))
        self._file.write(event + struct.pack("<I", masked_crc32c(event)))


def masked_crc32c(data: bytes) -> int:
    """The checksum of a TFRecord: crc32c, turned by 15 bits and shifted by a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative int64 is its two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


# Each field of a protobuf is field << 3 | wire type, then its value.
def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _message(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _float(field: int, value: float) -> bytes:
    value = math.copysign(math.inf, value) if abs(value) > _LARGEST else value  # struct refuses what does not fit
    return _varint(field << 3 | 5) + struct.pack("<f", value)

"""Write scalars as TensorBoard event files, without depending on tensorboard.

A file is a sequence of TFRecords, each a protobuf `Event` (tensorflow/core/util/event.proto, summary.proto).
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time as clock
from collections.abc import Mapping
from pathlib import Path

from ..protobuf import write_field

_CRC = []
for _byte in range(256):  # crc32c, Castagnoli's polynomial, reflected
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _CRC.append(_byte)
_START = 1  # SessionLog.START


class Events:
    """An event file of scalars. `after` is the step that a run resumes from; TensorBoard drops the later ones."""

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
        self._write(write_field(1, now, double=True) + write_field(3, b"brain.Event:2"))
        if after is not None:
            self._write(
                write_field(1, now, double=True) + write_field(2, after + 1) + write_field(7, write_field(1, _START))
            )
        self.flush()

    def scalars(self, step: int, values: Mapping[str, float | int], time: float | None = None) -> None:
        """Write one value per tag, at a step and a time in seconds since 1970 (by default now)."""
        summary = b"".join(
            write_field(1, write_field(1, tag.encode()) + write_field(2, float(value))) for tag, value in values.items()
        )
        self._write(
            write_field(1, clock.time() if time is None else time, double=True)
            + write_field(2, step)
            + write_field(5, summary)
        )

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + struct.pack("<I", masked_crc32c(length)))
        self._file.write(event + struct.pack("<I", masked_crc32c(event)))


def masked_crc32c(data: bytes) -> int:
    """The checksum of a TFRecord: crc32c, rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

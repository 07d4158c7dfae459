"""The container of GGUF files: metadata by key, and tensors in the memory-mapped rest of the file.

    "GGUF", version, number of tensors, number of keys
    each key:     its name, the type of its value, the value
    each tensor:  its name, its sizes (the fastest first), its type, where its bytes begin in the data
    the data, from the next multiple of general.alignment on

Numbers are little-endian. A string is its length in bytes and its UTF-8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fill import WeightsError
from .gguf_types import TYPES, dequantise

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 3 only adds that files may be big-endian, which are refused here
ALIGNMENT = 32  # where general.alignment is missing
# The types of tensors by their numbers in a file, also of those that no longer appear in files or are not read here.
NUMBERS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
# Metadata values of a fixed size, by the numbers of their types; 8 is a string and 9 a list.
SCALARS = {
    i: np.dtype(kind)
    for i, kind in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip
STRING, LIST = 8, 9
Info = tuple[str, tuple[int, ...], int, int]  # of a tensor: name, sizes, number of its type, where its bytes begin


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its shape (the fastest axis last), its type, and its bytes in the mapped file."""

    shape: tuple[int, ...]
    type: str
    data: NDArray[np.uint8]

    def read(self) -> NDArray[np.float32]:
        """The values, dequantised."""
        return dequantise(self.data, self.type).reshape(self.shape)


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
    """The metadata of a file, and its tensors by name; their bytes are only read from the disk when they are used."""
    try:
        return _read(np.memmap(path, np.uint8, "r").view(np.ndarray), path)
    except (ValueError, OverflowError) as cause:
        raise WeightsError(f"{path}: is not a whole GGUF file ({cause})") from cause


def _read(file: NDArray[np.uint8], path: Path) -> tuple[dict[str, Any], dict[str, Entry]]:
    cursor = _Cursor(file)
    if cursor.take(4) != MAGIC:
        raise ValueError(f"it does not begin with {MAGIC.decode()}")
    version = cursor.number(4)
    if version not in VERSIONS:
        raise WeightsError(f"{path}: is GGUF version {version}: expected 2 or 3, little-endian")
    tensors, keys = cursor.number(8), cursor.number(8)
    metadata = dict(cursor.item() for _ in range(keys))
    infos = [cursor.info() for _ in range(tensors)]
    names = [name for name, *_ in infos]
    if len(set(names)) < tensors:
        raise WeightsError(f"{path}: two tensors have the name {next(name for name in names if names.count(name) > 1)}")
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        raise WeightsError(f"{path}: general.alignment is {alignment!r}: expected a whole number, 1 or more")
    data = file[-(-cursor.at // alignment) * alignment :]
    return metadata, {info[0]: _entry(data, info, path) for info in infos}


def _entry(data: NDArray[np.uint8], info: Info, path: Path) -> Entry:
    name, sizes, number, offset = info
    kind = NUMBERS.get(number, f"type {number}")
    if kind not in TYPES:
        raise WeightsError(f"{path}: the tensor {name} is {kind}: expected one of {', '.join(TYPES)}")
    block, size, row = TYPES[kind].block, TYPES[kind].record.itemsize, sizes[0] if sizes else 1
    if row % block:
        raise WeightsError(
            f"{path}: the tensor {name} is {kind} and has rows of {row} weights: expected a multiple of {block}"
        )
    end = offset + math.prod(sizes) // block * size
    if end > len(data):
        raise ValueError(f"the tensor {name} ends at byte {end} of the data, and the file has {len(data)} of them")
    return Entry(tuple(reversed(sizes)), kind, data[offset:end])


@dataclass
class _Cursor:
    """A position in the bytes of a file; reading moves it on, and raises ValueError at the end of the file."""

    file: NDArray[np.uint8]
    at: int = 0

    def array(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        size = count * dtype.itemsize
        if size > len(self.file) - self.at:
            raise ValueError(f"the header ends at byte {self.at + size}, and the file has {len(self.file)}")
        self.at += size
        return self.file[self.at - size : self.at].view(dtype)

    def take(self, count: int) -> bytes:
        return self.array(np.dtype("u1"), count).tobytes()

    def number(self, size: int) -> int:
        """A whole number of `size` bytes, 0 or more."""
        return int.from_bytes(self.take(size), "little")

    def string(self) -> str:
        return self.take(self.number(8)).decode()

    def item(self) -> tuple[str, Any]:
        """A key of the metadata and its value."""
        return self.string(), self.value(self.number(4))

    def value(self, kind: int) -> Any:
        if kind == LIST:
            return self.items(self.number(4), self.number(8))
        return self.items(kind, 1)[0]

    def items(self, kind: int, count: int) -> list[Any]:
        if kind in SCALARS:
            return self.array(SCALARS[kind], count).tolist()
        if kind == STRING:
            return [self.string() for _ in range(count)]
        raise ValueError(f"the metadata before byte {self.at} has a value of type {kind}")

    def info(self) -> Info:
        name, axes = self.string(), self.number(4)
        sizes = tuple(self.array(np.dtype("<u8"), axes).tolist())
        return name, sizes, self.number(4), self.number(8)

"""The container of GGUF files: metadata by key, and tensors in the memory-mapped rest of the file.

    "GGUF", version, number of tensors, number of keys
    each key:     its name, the type of its value, the value
    each tensor:  its name, its sizes (the fastest first), its type, where its bytes begin in the data
    the data, from the next multiple of general.alignment on

Numbers are little-endian. A string is its length in bytes and its UTF-8.

Read here and not by the package gguf, which takes ten times as long for a vocabulary and twice as long for the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fill import WeightsError

# The tensor types of GGUF files: how each stores a block of weights, and the float32 values of such blocks.
#
# A quantised weight is a small whole number q of 2 to 8 bits, with a scale d and, in some types, a minimum m, which a
# group of neighbours shares: the weight is d q, or d q + m. The K types have blocks of 256 weights in groups of 16 or
# 32. The scales and minima of their groups are small whole numbers too, times a float16 of the whole block, and the
# minimum is subtracted.


Blocks = NDArray[Any]  # structured: one record for each block, with the fields of its type
# weights that are computed at a time, so that what is in between stays in the cache
CHUNK = 1 << 18


@dataclass(frozen=True)
class Type:
    """A way to store weights: `block` neighbours of a row in the bytes of one `record`."""

    block: int
    record: np.dtype[Any]
    values: Callable[[Blocks], NDArray[Any]]  # n records -> n rows of weights


def dequantise(data: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """The weights in the bytes of a tensor of type `name`, in float32 and as one row."""
    stored = TYPES[name]
    # one structured record per block: its scale, its bits
    blocks = data.view(stored.record)
    out = np.empty((len(blocks), stored.block), np.float32)
    # all temporaries of a chunk fit into the cache
    step = CHUNK // stored.block
    for i in range(0, len(blocks), step):
        out[i : i + step] = stored.values(blocks[i : i + step])
    return out.reshape(-1)


def _record(**fields: str) -> np.dtype[Any]:
    """A packed record of fields in the order given, each a count and a type, as in 16u1."""
    return np.dtype(list(fields.items()))


def _unpack(x: NDArray[np.uint8], bits: int, run: int) -> NDArray[np.uint8]:
    """Unpack the numbers of `bits` bits in the bytes of each row.

    The bytes are in groups of `run`: the lowest bits of all bytes of a group come first, then the next higher bits of
    all of them, and so on.
    """
    parts = x.reshape(len(x), -1, run)  # (blocks, groups, run)
    out = np.empty((len(x), parts.shape[1], 8 // bits, run), np.uint8)
    for i in range(8 // bits):
        # no temporary of the size of the tensor
        np.right_shift(parts, i * bits, out=out[:, :, i])
    out &= (1 << bits) - 1
    return out.reshape(len(x), -1)


def _scaled(
    q: NDArray[Any], scale: NDArray[np.float32], minimum: NDArray[np.float32] | None = None
) -> NDArray[Any]:
    """scale * q + minimum, in which each column of `scale` belongs to a group of neighbouring columns of `q`."""
    groups = q.reshape(*scale.shape, -1).astype(np.float32)  # (blocks, groups, weights of a group)
    groups *= scale[..., None]
    if minimum is not None:
        groups += minimum[..., None]
    return groups.reshape(len(q), -1)


def _float(x: NDArray[np.float16]) -> NDArray[np.float32]:
    return x[:, None].astype(np.float32)


def _q4_0(b: Blocks) -> NDArray[Any]:
    # q is stored as 0 to 15, and 8 stands for 0
    return _scaled(_unpack(b["q"], 4, 16).view(np.int8) - np.int8(8), _float(b["d"]))


def _q4_1(b: Blocks) -> NDArray[Any]:
    return _scaled(_unpack(b["q"], 4, 16), _float(b["d"]), _float(b["m"]))


def _five_bits(b: Blocks) -> NDArray[np.uint8]:
    # the fifth bit of each weight is in a mask of its own
    fifth = np.unpackbits(b["high"], axis=1, bitorder="little") * np.uint8(16)
    return _unpack(b["q"], 4, 16) | fifth


def _q5_0(b: Blocks) -> NDArray[Any]:
    # q is stored as 0 to 31, and 16 stands for 0
    return _scaled(_five_bits(b).view(np.int8) - np.int8(16), _float(b["d"]))


def _q5_1(b: Blocks) -> NDArray[Any]:
    return _scaled(_five_bits(b), _float(b["d"]), _float(b["m"]))


def _q8_0(b: Blocks) -> NDArray[Any]:
    return _scaled(b["q"], _float(b["d"]))


def _q2_k(b: Blocks) -> NDArray[Any]:
    # in each byte the low half is the scale of a group, the high half its minimum
    scales, minima = np.hsplit(_unpack(b["scales"], 4, 16), 2)
    return _scaled(_unpack(b["q"], 2, 32), _float(b["d"]) * scales, -(_float(b["m"]) * minima))


def _q3_k(b: Blocks) -> NDArray[Any]:
    # four low and two high bits of each scale, two low and one high bit of each weight
    scales = _unpack(b["scales"][:, :8], 4, 8) | _unpack(b["scales"][:, 8:], 2, 4) << 4
    # scales are stored as 0 to 63, and 32 stands for 0
    scales = scales.view(np.int8) - np.int8(32)
    q = _unpack(b["q"], 2, 32) | _unpack(b["high"], 1, 32) << 2
    # 3 bits: 0 to 7, and 4 stands for 0
    return _scaled(q.view(np.int8) - np.int8(4), _float(b["d"]) * scales)


def _scales_and_minima(b: Blocks) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Eight scales and eight minima of 6 bits each, in 12 bytes.

    The first four of each are whole in bytes 0-3 and 4-7, whose two highest bits are the highest of the last four;
    their other four bits are in bytes 8-11.
    """
    x = b["scales"]
    # 6 bits; and 4 low bits joined with the 2 high bits of the first bytes
    first, last = x[:, :8] & 63, _unpack(x[:, 8:], 4, 4) | x[:, :8] >> 6 << 4
    both = np.concatenate([first.reshape(-1, 2, 4), last.reshape(-1, 2, 4)], -1)
    scales, minima = both.swapaxes(0, 1)  # (blocks, 2, 8) -> 2 of (blocks, 8)
    return _float(b["d"]) * scales, -(_float(b["m"]) * minima)


def _q4_k(b: Blocks) -> NDArray[Any]:
    return _scaled(_unpack(b["q"], 4, 32), *_scales_and_minima(b))


def _q5_k(b: Blocks) -> NDArray[Any]:
    return _scaled(_unpack(b["q"], 4, 32) | _unpack(b["high"], 1, 32) << 4, *_scales_and_minima(b))


def _q6_k(b: Blocks) -> NDArray[Any]:
    # four low and two high bits of each weight: 0 to 63, and 32 stands for 0
    q = _unpack(b["q"], 4, 64) | _unpack(b["high"], 2, 32) << 4
    return _scaled(q.view(np.int8) - np.int8(32), _float(b["d"]) * b["scales"])


# The 16 values of the types IQ4: closer together near 0, where most weights are.
LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


def _iq4_nl(b: Blocks) -> NDArray[Any]:
    return _scaled(LEVELS[_unpack(b["q"], 4, 16)], _float(b["d"]))


def _iq4_xs(b: Blocks) -> NDArray[Any]:
    # 8 scales of 6 bits: of each byte the low half comes first, then the high half
    scales = _unpack(b["scales"], 4, 1) | _unpack(b["high"], 2, 1) << 4
    scales = scales.view(np.int8) - np.int8(32)
    return _scaled(LEVELS[_unpack(b["q"], 4, 16)], _float(b["d"]) * scales)


def _plain(b: Blocks) -> NDArray[Any]:
    # a block is one weight: (blocks) -> (blocks, 1)
    return b["x"][:, None]


def _bf16(b: Blocks) -> NDArray[Any]:
    """The upper half of the bits of a float32."""
    return (b["x"].astype(np.uint32) << 16).view(np.float32)[:, None]


F2 = "<f2"
TYPES = {
    "F32": Type(1, _record(x="<f4"), _plain),
    "F16": Type(1, _record(x=F2), _plain),
    "BF16": Type(1, _record(x="<u2"), _bf16),
    "Q8_0": Type(32, _record(d=F2, q="32i1"), _q8_0),
    "Q5_0": Type(32, _record(d=F2, high="4u1", q="16u1"), _q5_0),
    "Q5_1": Type(32, _record(d=F2, m=F2, high="4u1", q="16u1"), _q5_1),
    "Q4_0": Type(32, _record(d=F2, q="16u1"), _q4_0),
    "Q4_1": Type(32, _record(d=F2, m=F2, q="16u1"), _q4_1),
    "Q6_K": Type(256, _record(q="128u1", high="64u1", scales="16i1", d=F2), _q6_k),
    "Q5_K": Type(256, _record(d=F2, m=F2, scales="12u1", high="32u1", q="128u1"), _q5_k),
    "Q4_K": Type(256, _record(d=F2, m=F2, scales="12u1", q="128u1"), _q4_k),
    "Q3_K": Type(256, _record(high="32u1", q="64u1", scales="12u1", d=F2), _q3_k),
    "Q2_K": Type(256, _record(scales="16u1", q="64u1", d=F2, m=F2), _q2_k),
    "IQ4_NL": Type(32, _record(d=F2, q="16u1"), _iq4_nl),
    "IQ4_XS": Type(256, _record(d=F2, high="2u1", scales="4u1", q="128u1"), _iq4_xs),
}


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
SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
STRING, LIST = 8, 9
# A tensor: its name, its sizes, the number of its type, where its bytes begin.
Info = tuple[str, tuple[int, ...], int, int]


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a file: its shape (the fastest axis last), its type, and its bytes in the mapped file."""

    shape: tuple[int, ...]
    type: str
    data: NDArray[np.uint8]

    def read(self) -> NDArray[np.float32]:
        """The values, dequantised."""
        return dequantise(self.data, self.type).reshape(self.shape)


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """The metadata of a file, and its tensors by name; their bytes are only read from the disk when they are used."""
    try:
        # as a plain array: slices of a memmap are objects that take longer to make
        return _read(np.memmap(path, np.uint8, "r").view(np.ndarray), path)
    except (ValueError, OverflowError) as cause:
        raise WeightsError(f"{path}: is not a whole GGUF file ({cause})") from cause


def _read(file: NDArray[np.uint8], path: Path) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    cursor = _Cursor(file)
    if cursor.take(4) != MAGIC:
        raise ValueError(f"it does not begin with {MAGIC.decode()}")
    version = cursor.number(4)
    if version not in VERSIONS:
        raise WeightsError(f"{path}: is GGUF version {version}: expected 2 or 3, little-endian")
    tensors, keys = cursor.number(8), cursor.number(8)
    # in the order of the file: keys, tensors, data
    metadata = dict(cursor.item() for _ in range(keys))
    infos = [cursor.info() for _ in range(tensors)]
    names = [name for name, *_ in infos]
    if len(set(names)) < tensors:
        twice = next(name for name in names if names.count(name) > 1)
        raise WeightsError(f"{path}: two tensors have the name {twice}")
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        raise WeightsError(
            f"{path}: general.alignment is {alignment!r}: expected a whole number, 1 or more"
        )
    start = -(-cursor.at // alignment) * alignment  # rounded up
    data = file[start:]
    return metadata, {info[0]: _entry(data, info, path) for info in infos}


def _entry(data: NDArray[np.uint8], info: Info, path: Path) -> TensorEntry:
    name, sizes, number, offset = info
    type_name = NUMBERS.get(number, f"type {number}")
    if type_name not in TYPES:
        raise WeightsError(
            f"{path}: the tensor {name} is {type_name}: expected one of {', '.join(TYPES)}"
        )
    stored = TYPES[type_name]
    # the fastest axis is the first in the file
    row = sizes[0] if sizes else 1
    # blocks do not reach over the end of a row
    if row % stored.block:
        raise WeightsError(
            f"{path}: the tensor {name} is {type_name} and has rows of {row} weights: expected a multiple of "
            f"{stored.block}"
        )
    end = offset + math.prod(sizes) // stored.block * stored.record.itemsize
    if end > len(data):
        raise ValueError(
            f"the tensor {name} ends at byte {end} of the data, and the file has {len(data)} of them"
        )
    # the file lists the fastest axis first, a shape lists it last
    return TensorEntry(tuple(reversed(sizes)), type_name, data[offset:end])


@dataclass
class _Cursor:
    """A position in the bytes of a file; reading moves it on, and raises ValueError at the end of the file."""

    file: NDArray[np.uint8]
    at: int = 0

    def array(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        size = count * dtype.itemsize
        # before slicing, which would silently return fewer bytes
        if size > len(self.file) - self.at:
            raise ValueError(
                f"the header ends at byte {self.at + size}, and the file has {len(self.file)}"
            )
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

    def value(self, type_number: int) -> Any:
        if type_number == LIST:
            # the type of the elements, then their number
            return self.items(self.number(4), self.number(8))
        return self.items(type_number, 1)[0]

    def items(self, type_number: int, count: int) -> list[Any]:
        if type_number in SCALARS:
            # values of one size lie side by side
            return self.array(SCALARS[type_number], count).tolist()
        if type_number == STRING:
            return [self.string() for _ in range(count)]
        raise ValueError(f"the metadata before byte {self.at} has a value of type {type_number}")

    def info(self) -> Info:
        name, axes = self.string(), self.number(4)
        sizes = tuple(self.array(np.dtype("<u8"), axes).tolist())
        return name, sizes, self.number(4), self.number(8)

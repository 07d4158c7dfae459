"""The tensor types of GGUF files: how each stores a block of weights, and the float32 values of such blocks.

A quantised weight is a small whole number q of 2 to 8 bits, with a scale d and, in some types, a minimum m, which a
group of neighbours shares: the weight is d q, or d q + m. The K types have blocks of 256 weights in groups of 16 or 32.
The scales and minima of their groups are small whole numbers too, times a float16 of the whole block, and the minimum
is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[Any]  # structured: one record for each block, with the fields of its type
CHUNK = 1 << 18  # weights that are computed at a time, so that what is in between stays in the cache


@dataclass(frozen=True)
class Type:
    """A way to store weights: `block` neighbours of a row in the bytes of one `record`."""

    block: int
    record: np.dtype[Any]
    values: Callable[[Blocks], NDArray[Any]]  # n records -> n rows of weights


def dequantise(data: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """The weights in the bytes of a tensor of type `name`, in float32 and as one row."""
    kind = TYPES[name]
    blocks = data.view(kind.record)
    out = np.empty((len(blocks), kind.block), np.float32)
    step = CHUNK // kind.block
    for i in range(0, len(blocks), step):
        out[i : i + step] = kind.values(blocks[i : i + step])
    return out.reshape(-1)


def _record(**fields: str) -> np.dtype[Any]:
    """A packed record of fields in the order given, each a count and a type, as in 16u1."""
    return np.dtype(list(fields.items()))


def _unpack(x: NDArray[np.uint8], bits: int, run: int) -> NDArray[np.uint8]:
    """The numbers of `bits` bits in the bytes of each row.

    Of each `run` bytes come first the lowest bits of all of them, then the next higher bits of all, and so on.
    """
    parts = x.reshape(len(x), -1, run)
    out = np.empty((len(x), parts.shape[1], 8 // bits, run), np.uint8)
    for i in range(8 // bits):
        np.right_shift(parts, i * bits, out=out[:, :, i])
    out &= (1 << bits) - 1
    return out.reshape(len(x), -1)


def _scaled(q: NDArray[Any], scale: NDArray[np.float32], minimum: NDArray[np.float32] | None = None) -> NDArray[Any]:
    """scale * q + minimum, in which each column of `scale` belongs to a group of neighbouring columns of `q`."""
    groups = q.reshape(*scale.shape, -1).astype(np.float32)
    groups *= scale[..., None]
    if minimum is not None:
        groups += minimum[..., None]
    return groups.reshape(len(q), -1)


def _float(x: NDArray[np.float16]) -> NDArray[np.float32]:
    return x[:, None].astype(np.float32)


def _q4_0(b: Blocks) -> NDArray[Any]:
    return _scaled(_unpack(b["q"], 4, 16).view(np.int8) - np.int8(8), _float(b["d"]))


def _q4_1(b: Blocks) -> NDArray[Any]:
    return _scaled(_unpack(b["q"], 4, 16), _float(b["d"]), _float(b["m"]))


def _five_bits(b: Blocks) -> NDArray[np.uint8]:
    fifth = np.unpackbits(b["high"], axis=1, bitorder="little") * np.uint8(16)
    return _unpack(b["q"], 4, 16) | fifth


def _q5_0(b: Blocks) -> NDArray[Any]:
    return _scaled(_five_bits(b).view(np.int8) - np.int8(16), _float(b["d"]))


def _q5_1(b: Blocks) -> NDArray[Any]:
    return _scaled(_five_bits(b), _float(b["d"]), _float(b["m"]))


def _q8_0(b: Blocks) -> NDArray[Any]:
    return _scaled(b["q"], _float(b["d"]))


def _q2_k(b: Blocks) -> NDArray[Any]:
    scales, minima = np.hsplit(_unpack(b["scales"], 4, 16), 2)
    return _scaled(_unpack(b["q"], 2, 32), _float(b["d"]) * scales, -(_float(b["m"]) * minima))


def _q3_k(b: Blocks) -> NDArray[Any]:
    scales = _unpack(b["scales"][:, :8], 4, 8) | _unpack(b["scales"][:, 8:], 2, 4) << 4
    q = _unpack(b["q"], 2, 32) | _unpack(b["high"], 1, 32) << 2
    return _scaled(q.view(np.int8) - np.int8(4), _float(b["d"]) * (scales.view(np.int8) - np.int8(32)))


def _scales_and_minima(b: Blocks) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Eight scales and eight minima of 6 bits each, in 12 bytes.

    The first four of each are whole in bytes 0-3 and 4-7, whose two highest bits are the highest of the last four;
    their other four bits are in bytes 8-11.
    """
    x = b["scales"]
    first, last = x[:, :8] & 63, _unpack(x[:, 8:], 4, 4) | x[:, :8] >> 6 << 4
    scales, minima = np.concatenate([first.reshape(-1, 2, 4), last.reshape(-1, 2, 4)], -1).swapaxes(0, 1)
    return _float(b["d"]) * scales, -(_float(b["m"]) * minima)


def _q4_k(b: Blocks) -> NDArray[Any]:
    return _scaled(_unpack(b["q"], 4, 32), *_scales_and_minima(b))


def _q5_k(b: Blocks) -> NDArray[Any]:
    return _scaled(_unpack(b["q"], 4, 32) | _unpack(b["high"], 1, 32) << 4, *_scales_and_minima(b))


def _q6_k(b: Blocks) -> NDArray[Any]:
    q = _unpack(b["q"], 4, 64) | _unpack(b["high"], 2, 32) << 4
    return _scaled(q.view(np.int8) - np.int8(32), _float(b["d"]) * b["scales"])


# The 16 values of the types IQ4: closer together near 0, where most weights are.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_nl(b: Blocks) -> NDArray[Any]:
    return _scaled(LEVELS[_unpack(b["q"], 4, 16)], _float(b["d"]))


def _iq4_xs(b: Blocks) -> NDArray[Any]:
    scales = _unpack(b["scales"], 4, 1) | _unpack(b["high"], 2, 1) << 4
    return _scaled(LEVELS[_unpack(b["q"], 4, 16)], _float(b["d"]) * (scales.view(np.int8) - np.int8(32)))


def _plain(b: Blocks) -> NDArray[Any]:
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

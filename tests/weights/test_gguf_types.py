"""Every tensor type of GGUF: weight by weight as the format defines it, and to the bit as the gguf package."""

import struct
from collections.abc import Callable

import numpy as np
import pytest

from clearhead.weights.gguf.file import CHUNK, TYPES, dequantise

# float16 scales and minima: zeros, the largest, the smallest subnormal, usual ones, and all of them negative too.
EXTREMES = [s * x for x in (0.0, 65504.0, 2.0**-24, 2.0**-14, 1.0, 0.0123, 3.3e-4) for s in (1.0, -1.0)]


def f16(b: bytes, at: int) -> float:
    return struct.unpack_from("<e", b, at)[0]


def nibble(b: bytes, at: int, i: int) -> int:
    """Number i of 32 in 16 bytes: the low halves are the first 16."""
    return b[at + i % 16] >> 4 * (i // 16) & 15


def fifth(b: bytes, at: int, i: int) -> int:
    return struct.unpack_from("<I", b, at)[0] >> i & 1


def q2_k(b: bytes, i: int) -> float:
    half, quarter, byte = i // 128, i % 128 // 32, i % 32
    q = b[16 + 32 * half + byte] >> 2 * quarter & 3
    both = b[i // 16]
    return f16(b, 80) * (both & 15) * q - f16(b, 82) * (both >> 4)


def q3_k(b: bytes, i: int) -> float:
    half, quarter, byte, group = i // 128, i % 128 // 32, i % 32, i // 16
    q = (b[32 + 32 * half + byte] >> 2 * quarter & 3) + 4 * (b[byte] >> (i // 32) & 1) - 4
    low = b[96 + group] & 15 if group < 8 else b[96 + group - 8] >> 4
    high = b[104 + group % 4] >> 2 * (group // 4) & 3
    return f16(b, 108) * (low + 16 * high - 32) * q


def scale_and_minimum(b: bytes, group: int) -> tuple[int, int]:
    s = b[4:16]
    if group < 4:
        return s[group] & 63, s[group + 4] & 63
    return (s[group + 4] & 15) + 16 * (s[group - 4] >> 6), (s[group + 4] >> 4) + 16 * (s[group] >> 6)


def q4_k(b: bytes, i: int, at: int = 16, high: int = 0) -> float:
    group = i // 32
    q = (b[at + 32 * (group // 2) + i % 32] >> 4 * (group % 2) & 15) + 16 * high
    scale, minimum = scale_and_minimum(b, group)
    return f16(b, 0) * scale * q - f16(b, 2) * minimum


def q5_k(b: bytes, i: int) -> float:
    return q4_k(b, i, at=48, high=b[16 + i % 32] >> (i // 32) & 1)


def q6_k(b: bytes, i: int) -> float:
    half, quarter, byte = i // 128, i % 128 // 32, i % 32
    low = b[64 * half + 32 * (quarter % 2) + byte] >> 4 * (quarter // 2) & 15
    high = b[128 + 32 * half + byte] >> 2 * quarter & 3
    scale = struct.unpack_from("b", b, 192 + i // 16)[0]
    return f16(b, 208) * scale * (low + 16 * high - 32)


LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_xs(b: bytes, i: int) -> float:
    group = i // 32
    low = b[4 + group // 2] >> 4 * (group % 2) & 15
    high = struct.unpack_from("<H", b, 2)[0] >> 2 * group & 3
    return f16(b, 0) * (low + 16 * high - 32) * LEVELS[nibble(b, 8 + 16 * group, i % 32)]


# name: weights in a block, bytes of a block, where its float16 numbers are, and weight i of a block.
REFERENCES: dict[str, tuple[int, int, tuple[int, ...], Callable[[bytes, int], float]]] = {
    "F32": (1, 4, (), lambda b, i: struct.unpack("<f", b)[0]),
    "F16": (1, 2, (0,), lambda b, i: f16(b, 0)),
    "BF16": (1, 2, (), lambda b, i: struct.unpack("<f", b"\0\0" + b)[0]),
    "Q8_0": (32, 34, (0,), lambda b, i: f16(b, 0) * struct.unpack_from("b", b, 2 + i)[0]),
    "Q5_0": (32, 22, (0,), lambda b, i: f16(b, 0) * (nibble(b, 6, i) + 16 * fifth(b, 2, i) - 16)),
    "Q5_1": (32, 24, (0, 2), lambda b, i: f16(b, 0) * (nibble(b, 8, i) + 16 * fifth(b, 4, i)) + f16(b, 2)),
    "Q4_0": (32, 18, (0,), lambda b, i: f16(b, 0) * (nibble(b, 2, i) - 8)),
    "Q4_1": (32, 20, (0, 2), lambda b, i: f16(b, 0) * nibble(b, 4, i) + f16(b, 2)),
    "Q6_K": (256, 210, (208,), q6_k),
    "Q5_K": (256, 176, (0, 2), q5_k),
    "Q4_K": (256, 144, (0, 2), q4_k),
    "Q3_K": (256, 110, (108,), q3_k),
    "Q2_K": (256, 84, (80, 82), q2_k),
    "IQ4_NL": (32, 18, (0,), lambda b, i: f16(b, 0) * LEVELS[nibble(b, 2, i)]),
    "IQ4_XS": (256, 136, (0,), iq4_xs),
}


def drawn_blocks(name: str, count: int) -> np.ndarray:
    """Blocks with every bit drawn, the first with none set and the second with all, and scales of EXTREMES."""
    _, size, halves, _ = REFERENCES[name]
    rng = np.random.default_rng(list(name.encode()))
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    blocks[0], blocks[1] = 0, 255
    for at in halves:
        blocks[:, at : at + 2] = rng.choice(EXTREMES, count).astype("<f2")[:, None].view(np.uint8)
    if not halves:  # F32 and BF16, whose last byte has the sign and most of the exponent: neither infinite nor NaN
        blocks[:, -1] &= 0b10111111
    return blocks


def test_there_is_a_reference_for_every_type() -> None:
    assert REFERENCES.keys() == TYPES.keys()
    assert {n: (t.block, t.record.itemsize) for n, t in TYPES.items()} == {n: r[:2] for n, r in REFERENCES.items()}


@pytest.mark.parametrize("name", TYPES)
def test_weights_are_those_that_the_format_defines(name: str) -> None:
    """The reference is in float64: a float32 product of these small numbers is exact, and a sum is rounded once."""
    block, _, _, weight = REFERENCES[name]
    blocks = drawn_blocks(name, 24 if block > 1 else 500)
    expected = [weight(bytes(row), i) for row in blocks for i in range(block)]
    out = dequantise(blocks.reshape(-1), name)
    assert out.dtype == np.float32
    assert np.abs(out).max() > 0
    np.testing.assert_array_equal(out, np.float32(expected))


@pytest.mark.parametrize("name", TYPES)
def test_weights_equal_those_of_the_gguf_package_to_the_bit(name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    kind = gguf.GGMLQuantizationType[name]
    assert tuple(gguf.GGML_QUANT_SIZES[kind]) == REFERENCES[name][:2]
    blocks = drawn_blocks(name, 3 * CHUNK // REFERENCES[name][0] + 5)  # several chunks, the last of them short
    plain = {"F32": "<f4", "F16": "<f2"}
    theirs = gguf.dequantize(blocks.view(plain[name]) if name in plain else blocks, kind)
    ours = dequantise(blocks.reshape(-1), name)
    np.testing.assert_array_equal(ours.view(np.uint32), np.float32(theirs).reshape(-1).view(np.uint32))


@pytest.mark.parametrize("name", TYPES)
def test_no_blocks_are_no_weights(name: str) -> None:
    assert dequantise(np.empty(0, np.uint8), name).shape == (0,)

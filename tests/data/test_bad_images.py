"""Unusual and broken image files: read properly, or refused with their name."""

import io
import struct
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from clearhead.data import make_data
from clearhead.data.files import DataError
from clearhead.data.images import files as image_files
from clearhead.data.images.files import open_image, read_image
from clearhead.data.tables.understand import understand_images
from clearhead.errors import Notice
from support.command_line import call

RED, SIZE = (200, 30, 60), (6, 4)  # width and height


def plain(mode="RGB", colour=RED):
    return Image.new(mode, SIZE, colour)


def saved(image, path, **options):
    image.save(path, **options)
    return path


def pixels(path):
    return np.asarray(open_image(path)).astype(int)


def test_greyscale_is_the_same_in_all_channels(tmp_path):
    assert (pixels(saved(plain("L", 77), tmp_path / "a.png")) == 77).all()


def test_cmyk_and_palette_have_the_colours_of_rgb(tmp_path):
    cmyk = pixels(saved(plain().convert("CMYK"), tmp_path / "a.jpg", quality=100))
    assert np.abs(cmyk - RED).max() <= 6  # JPEG rounds
    assert (pixels(saved(plain().quantize(4), tmp_path / "a.png")) == RED).all()


@pytest.mark.parametrize("value", [0, 300, 32896, 65535])
def test_16_bits_are_scaled_to_8_and_not_cut_off(value, tmp_path):
    image = Image.fromarray(np.full(SIZE[::-1], value, np.uint16))
    for ending in ("png", "tiff"):
        assert (pixels(saved(image, tmp_path / f"a.{ending}")) == round(value / 257)).all()


def test_floating_point_and_32_bits_are_refused_because_their_range_is_unknown(tmp_path):
    for name, array in (("a.tiff", np.full((4, 6), 0.5, np.float32)), ("b.tiff", np.full((4, 6), 70_000, np.int32))):
        path = saved(Image.fromarray(array), tmp_path / name)
        with pytest.raises(DataError, match=rf"{name} cannot be read as an image: .* expected 8 or 16 bits"):
            open_image(path)


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [plain(colour=colour) for colour in (RED, (0, 0, 0), (9, 9, 9))]
    for ending in ("gif", "webp", "png"):
        options = {"lossless": True} if ending == "webp" else {}
        frames[0].save(tmp_path / f"a.{ending}", save_all=True, append_images=frames[1:], **options)
        assert (pixels(tmp_path / f"a.{ending}") == RED).all()


def test_a_rotated_photograph_is_turned_upright(tmp_path):
    image = plain()
    image.putpixel((0, 0), (0, 255, 0))  # top left
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    found = pixels(saved(image, tmp_path / "a.png", exif=exif))
    assert found.shape == (6, 4, 3)
    assert found[0, 3].tolist() == [0, 255, 0]  # top right


def test_transparency_is_put_on_white(tmp_path):
    assert (pixels(saved(plain("RGBA", (*RED, 0)), tmp_path / "a.png")) == 255).all()
    assert (pixels(saved(plain("LA", (0, 0)), tmp_path / "b.png")) == 255).all()


def test_an_image_of_one_pixel(tmp_path):
    path = saved(Image.new("RGB", (1, 1), RED), tmp_path / "a.png")
    assert pixels(path).tolist() == [[list(RED)]]


def bomb(width, height):
    """A PNG whose header promises many pixels, and whose content is short."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(12_000, 9_000), (50_000, 50_000)], ids=str)
def test_a_decompression_bomb_is_refused_before_it_is_decoded(size, tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(*size))
    with pytest.raises(DataError, match=r"bomb\.png cannot be read as an image: .*pixels"):
        open_image(path)


def broken(kind):
    photo = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(photo, "JPEG")
    return {
        "truncated.jpg": photo.getvalue()[:900], "text.png": b"this is not a picture", "empty.jpg": b"",
        "huge.png": bomb(50_000, 50_000),
    }[kind]  # fmt: skip


BROKEN = ["truncated.jpg", "text.png", "empty.jpg", "huge.png"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_by_name(name, tmp_path):
    (tmp_path / name).write_bytes(broken(name))
    with pytest.raises(DataError, match=f"{name} cannot be read as an image"):
        open_image(tmp_path / name)
    with pytest.raises(DataError, match=f"{name} cannot be read as an image"):
        read_image(str(tmp_path), name)


@pytest.fixture
def folder(tmp_path):
    for part, count in (("train", 4), ("val", 2)):
        for n, label in enumerate(("cat", "dog")):
            (tmp_path / "data" / part / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (9, 8), (100 * n, 20 * i, 0)).save(tmp_path / "data" / part / label / f"{i}.png")
    return tmp_path / "data"


def test_bad_files_are_not_counted_as_images_of_their_class(folder):
    (folder / "train" / "dog" / "text.png").write_bytes(broken("text.png"))
    found = understand_images(folder)
    assert (found.images, found.labels, found.bad) == (12, {"cat": 6, "dog": 6}, ("train/dog/text.png",))
    assert found.split == "8 images for training, 4 images for validation"


def every_image(data):
    return sum(len(data.batch(step)["images"]) for step in range(data.steps_per_epoch))


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_file_is_refused_before_the_first_step_or_left_out_and_counted(name, folder):
    (folder / "train" / "dog" / name).write_bytes(broken(name))
    (folder / "val" / "cat" / name).write_bytes(broken(name))
    options = {"path": str(folder), "size": 8, "rows": 3}
    advice = "nor can 1 other file; data.skip_bad=true leaves such files out, and counts them"
    with pytest.raises(DataError, match=f"dog/{name} cannot be read as an image: .*, {advice}"):
        make_data("images", options, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = make_data("images", options | {"skip_bad": True}, seed=1)
    (warning,) = caught
    assert warning.category is Notice
    message = "2 of 14 image files left out, which cannot be read"
    assert f"{message}, the first train/dog/{name}" in str(warning.message)
    assert data.description == message
    assert sorted(data.bad) == [f"train/dog/{name}", f"val/cat/{name}"]
    assert every_image(data) == 8
    assert sum(len(data.valid(i)["images"]) for i in range(data.valid_batches)) == 4


def zipped(folder, content=None):
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("cat/a.bmp", content or bytes(99))
    return folder / "a.zip"


def test_an_encrypted_zip_file_is_a_sentence(tmp_path):
    path = zipped(tmp_path)
    packed = bytearray(path.read_bytes())
    for place in (6, packed.find(b"PK\x01\x02") + 8):  # the flags in both headers
        packed[place] |= 1
    path.write_bytes(packed)
    words = "cat/a.bmp cannot be read as an image: it is encrypted: expected a zip file without a password"
    with pytest.raises(DataError, match=words):
        read_image(str(path), "cat/a.bmp")


@pytest.mark.parametrize("lies", [False, True])
def test_a_zip_file_that_would_fill_the_memory_is_not_unpacked(lies, tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "UNPACKED", 1 << 20)
    path = zipped(tmp_path, bytes(1 << 25))
    if lies:  # both headers promise 50 bytes
        packed = bytearray(path.read_bytes())
        for place in (22, packed.find(b"PK\x01\x02") + 24):
            packed[place : place + 4] = (50).to_bytes(4, "little")
        path.write_bytes(packed)
    tracemalloc.start()
    expected = "Bad CRC|format is unknown" if lies else "33,554,432 bytes when unpacked: expected at most 1,048,576"
    with pytest.raises(DataError, match=f"cannot be read as an image: .*({expected})"):
        read_image(str(path), "cat/a.bmp")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 22


def test_what_is_understood_of_a_folder_names_bad_files_and_the_way_out(folder):
    (folder / "train" / "dog" / "a.jpg").write_bytes(broken("truncated.jpg"))
    found = call("data", folder)
    words = "1 of 13 image files left out, which cannot be read, the first train/dog/a.jpg: a training stops at them; "
    assert words + "data.skip_bad=true leaves such files out, and counts them" in found.stdout
    found = call("data", folder, "data.skip_bad=true")
    assert "skip_bad = true" in found.stdout
    assert "stops at them" not in found.stdout


def test_skipping_without_bad_files_changes_nothing(folder):
    options = {"path": str(folder), "size": 8, "rows": 3}
    one, other = (make_data("images", options | {"skip_bad": skip}, seed=1) for skip in (False, True))
    assert other.bad == ()
    for step in range(one.steps_per_epoch):
        assert np.array_equal(one.batch(step)["images"], other.batch(step)["images"])


def test_a_folder_with_bad_files_only_is_refused(folder):
    for path in folder.rglob("*.png"):
        path.write_bytes(b"text")
    with pytest.raises(DataError, match=r"none of its 12 image files can be read, the first is train/cat/0\.png"):
        make_data("images", {"path": str(folder), "skip_bad": True}, seed=1)


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="nothing has no images: expected files"):
        make_data("images", {"path": str(tmp_path / "nothing")}, seed=1)


def test_a_class_may_be_missing_in_validation_but_not_in_training(folder):
    for path in (folder / "val" / "dog").iterdir():
        path.unlink()
    with pytest.warns(Notice, match="data has no validation image of dog"):
        data = make_data("images", {"path": str(folder), "size": 8}, seed=1)
    assert data.classes == ("cat", "dog")
    assert set(data.valid(0)["labels"].tolist()) == {0}
    for path in (folder / "train" / "cat").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"val/cat/0\.png is of a class without a training image"):
        make_data("images", {"path": str(folder), "size": 8}, seed=1)

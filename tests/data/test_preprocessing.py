"""Image preprocessing: equal to Hugging Face's PIL processors; and every kind of image that can be opened."""

import inspect
import io
import struct
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from clearhead.data import DataError, Preprocessing
from clearhead.data.images.files import open_image

SIZES = [(37, 53), (53, 37), (40, 40), (1, 9), (9, 1), (200, 31), (31, 200), (224, 300)]  # (width, height)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "deviation": (0.229, 0.224, 0.225)}
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # PIL's numbers


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def assert_equal_to(processor, ours: Preprocessing, image: Image.Image) -> None:
    """Equal pixels before normalising, and equal to 1e-6 after it."""
    plain = {"do_rescale": False, "do_normalize": False}
    pixels = np.asarray(processor(image, return_tensors="np", **plain)["pixel_values"][0])
    assert pixels.dtype == ours.pixels(image).dtype == np.uint8
    assert np.array_equal(ours.pixels(image), pixels)
    values = np.asarray(processor(image, return_tensors="np")["pixel_values"][0])
    assert ours(image).dtype == np.float32
    assert ours(image).shape == values.shape
    assert np.abs(ours(image) - values).max() <= 1e-6 * max(1.0, np.abs(values).max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("interpolation", RESAMPLE)
def test_resizing_to_height_and_width_equals_vit(size, interpolation):
    vit = pytest.importorskip("transformers.models.vit.image_processing_pil_vit")
    processor = vit.ViTImageProcessorPil(size={"height": 24, "width": 33}, resample=RESAMPLE[interpolation])
    assert_equal_to(processor, Preprocessing(resize=(24, 33), interpolation=interpolation), noise(*size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("crop", [(28, 28), (27, 21), (50, 20), (61, 75)])
@pytest.mark.parametrize("shorter", [28, 33])
def test_resizing_the_shorter_edge_and_cropping_equals_bit(size, crop, shorter):
    """Crops larger than the resized image get black borders."""
    bit = pytest.importorskip("transformers.models.bit.image_processing_pil_bit")
    processor = bit.BitImageProcessorPil(
        size={"shortest_edge": shorter}, crop_size={"height": crop[0], "width": crop[1]},
        image_mean=IMAGENET["mean"], image_std=IMAGENET["deviation"],
    )  # fmt: skip
    ours = Preprocessing(resize=shorter, crop=crop, interpolation="bicubic", **IMAGENET)
    assert ours.size == crop
    assert_equal_to(processor, ours, noise(*size))


@pytest.mark.parametrize("size", SIZES)
def test_cropping_without_resizing_equals_bit(size):
    bit = pytest.importorskip("transformers.models.bit.image_processing_pil_bit")
    processor = bit.BitImageProcessorPil(
        do_resize=False, crop_size={"height": 41, "width": 38}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    assert_equal_to(processor, Preprocessing(crop=(41, 38)), noise(*size))


@pytest.mark.parametrize("size", SIZES)
def test_a_crop_by_percentage_equals_convnext(size):
    """It resizes the shorter edge to size / crop_pct and crops to size, or only resizes from 384 pixels on."""
    convnext = pytest.importorskip("transformers.models.convnext.image_processing_pil_convnext")
    small = convnext.ConvNextImageProcessorPil(size={"shortest_edge": 30}, crop_pct=0.875)
    ours = Preprocessing(resize=int(30 / 0.875), crop=(30, 30), interpolation="bicubic")
    means = {"mean": tuple(small.image_mean), "deviation": tuple(small.image_std)}
    assert_equal_to(small, replace(ours, **means), noise(*size))
    large = convnext.ConvNextImageProcessorPil(size={"shortest_edge": 384})
    assert_equal_to(large, Preprocessing(resize=(384, 384), interpolation="bicubic", **means), noise(*size))


def test_other_scales_equal_vit():
    vit = pytest.importorskip("transformers.models.vit.image_processing_pil_vit")
    options = {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [2.0] * 3}
    processor = vit.ViTImageProcessorPil(size={"height": 9, "width": 9}, **options)
    ours = Preprocessing(resize=(9, 9), scale=1 / 127.5, mean=(1.0,) * 3, deviation=(2.0,) * 3)
    assert_equal_to(processor, ours, noise(20, 30))


def test_bgr_reverses_the_channels_and_their_means_follow_them():
    image = noise(12, 10)
    rgb, bgr = Preprocessing(resize=8, **IMAGENET), Preprocessing(resize=8, channels="bgr", **IMAGENET)
    assert np.array_equal(bgr.pixels(image), rgb.pixels(image)[::-1])
    expected = (bgr.pixels(image) / 255 - np.reshape(IMAGENET["mean"], (3, 1, 1))) / np.reshape(
        IMAGENET["deviation"], (3, 1, 1)
    )
    assert np.abs(bgr(image) - expected).max() < 1e-6


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1"])
def test_grey_has_one_channel_and_rgb_three_whatever_the_mode_of_the_image(mode):
    image = noise(12, 10, mode)
    grey = Preprocessing(resize=(7, 5), channels="grey", mean=(0.0,), deviation=(1.0,))
    assert grey(image).shape == (1, 7, 5)
    expected = np.asarray(image.convert("L").resize((5, 7), Image.Resampling.BILINEAR)) / 255
    assert np.abs(grey(image)[0] - expected).max() < 1e-6
    assert Preprocessing(resize=(7, 5))(image).shape == (3, 7, 5)


def test_many_images_are_normalised_as_one():
    ours = Preprocessing(resize=(6, 6), **IMAGENET)
    images = [noise(9, 7), noise(7, 9)]
    together = ours.normalise(np.stack([ours.pixels(image) for image in images]))
    assert np.array_equal(together, np.stack([ours(image) for image in images]))


def test_without_resize_and_crop_the_size_is_that_of_the_image():
    ours = Preprocessing()
    assert ours.size is None
    assert ours(noise(9, 7)).shape == (3, 7, 9)
    assert Preprocessing(resize=7).size is None
    assert Preprocessing(resize=(7, 9)).size == (7, 9)
    assert np.array_equal(ours.pixels(noise(9, 7)), np.asarray(noise(9, 7)).transpose(2, 0, 1))
    assert ours.pixels(noise(9, 7)).flags.c_contiguous


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resize": 0}, "resize=0: expected 1 pixel or more"),
        ({"resize": (5, -1)}, r"resize=\(5, -1\): expected 1 pixel or more"),
        ({"crop": (0, 5)}, r"crop=\(0, 5\): expected 1 pixel or more"),
        ({"mean": (0.5,)}, r"mean=\(0.5,\): expected 3 numbers for channels='rgb'"),
        ({"channels": "grey"}, r"mean=.*: expected 1 number for channels='grey'"),
        ({"channels": "bgr", "deviation": (1.0,) * 4}, "deviation=.*: expected 3 numbers for channels='bgr'"),
        ({"deviation": (1.0, 0.0, 1.0)}, r"deviation=\(1.0, 0.0, 1.0\): expected numbers above 0"),
        ({"deviation": (1.0, float("nan"), 1.0)}, "deviation=.*: expected numbers above 0"),
        ({"scale": 0.0}, "scale=0.0: expected a number above 0"),
    ],
)
def test_bad_arguments_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Preprocessing(**options)


def test_unknown_words_are_refused_with_the_known_ones():
    """In a process of its own, because types are checked in tests."""
    code = (
        "from clearhead.data import Preprocessing\n"
        "for options in {'interpolation': 'bicubik'}, {'channels': 'gray'}:\n"
        "    try: Preprocessing(**options)\n"
        "    except ValueError as error: print(error)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == [
        "interpolation='bicubik': expected one of nearest, box, bilinear, hamming, bicubic, lanczos; "
        "the nearest is bicubic",
        "channels='gray': expected one of rgb, bgr, grey; the nearest is grey",
    ]


@pytest.mark.parametrize("size", [(1500, 7), (7, 1501), (700, 2), (1, 4000)])  # (width, height)
@pytest.mark.parametrize("interpolation", ["box", "bilinear", "hamming", "bicubic", "lanczos"])
@pytest.mark.parametrize("crop", [(12, 11), (5, 9), (20, 7)])
def test_of_a_thin_image_the_middle_is_resized_as_in_the_whole_image(size, interpolation, crop):
    ours = Preprocessing(resize=12, crop=crop, interpolation=interpolation)
    image = noise(*size).point(lambda x: 96 + x // 4)  # no filter leaves 0 to 255, where the order of the axes matters
    width, height = (12, 12 * size[1] // size[0]) if size[0] < size[1] else (12 * size[0] // size[1], 12)
    whole = image.resize((width, height), Image.Resampling[interpolation.upper()])
    expected = Preprocessing(crop=crop).pixels(whole)
    assert np.abs(ours.pixels(image).astype(int) - expected).max() <= 2  # the box is rounded


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000)])
def test_a_thin_image_needs_no_more_memory_than_its_own_pixels(size, monkeypatch):
    resize, areas = Image.Image.resize, []
    monkeypatch.setattr(Image.Image, "resize", lambda self, to, *a, **k: areas.append(to) or resize(self, to, *a, **k))
    assert Preprocessing(resize=256, crop=(224, 224)).pixels(Image.new("RGB", size, "red"))[0].min() == 255
    assert areas == [(224, 224)]


def test_a_thin_image_that_is_not_cropped_is_refused():
    image = Image.new("RGB", (2000, 3))
    with pytest.raises(ValueError, match=r"2000 x 3 pixels would be 5333 x 8 .* expected one edge at most 100 times"):
        Preprocessing(resize=8).pixels(image)
    assert Preprocessing(resize=(8, 8)).pixels(image).shape == (3, 8, 8)


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000), (640, 480)])
def test_what_a_model_sees_of_a_thin_image_has_pixels(size):
    assert min(Preprocessing(resize=256, crop=(224, 224)).seen(Image.new("RGB", size)).size) >= 1


# Opening images


def encoded(image: Image.Image, kind: str = "png", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_a_path_bytes_a_pil_image_and_an_array_give_the_same_image(tmp_path):
    image = noise(13, 8)
    (tmp_path / "x.png").write_bytes(encoded(image))
    expected = np.asarray(image)
    for given in (tmp_path / "x.png", str(tmp_path / "x.png"), encoded(image), image, expected):
        opened = open_image(given)
        assert opened.mode == "RGB"
        assert np.array_equal(np.asarray(opened), expected)


def test_other_modes_become_rgb():
    for mode in ("L", "P", "RGBA", "1", "LA", "CMYK"):
        assert open_image(noise(5, 4, mode)).mode == "RGB"
    grey, alpha = np.full((4, 5), 7, np.uint8), np.full((4, 5, 4), 9, np.uint8)
    assert np.array_equal(np.asarray(open_image(grey)), np.full((4, 5, 3), 7))
    assert np.array_equal(np.asarray(open_image(alpha)), np.full((4, 5, 3), 246))  # on white: 9 * 9 / 255 + 255 - 9


def test_16_bit_grey_is_scaled_and_not_clipped():
    levels = np.array([[0, 255, 256, 32768, 65280, 65535]], np.uint16)
    opened = np.asarray(open_image(Image.fromarray(levels)))
    assert opened[0, :, 0].tolist() == [0, 1, 1, 128, 254, 255]  # rounded, 65535 = 257 x 255
    grey = Preprocessing(channels="grey", mean=(0.5,), deviation=(0.5,)).pixels(Image.fromarray(levels))
    assert np.array_equal(grey[0], opened[..., 0])


def test_one_level_of_16_bits_may_be_transparent():
    levels = np.array([[40_000, 40_001, 0]], np.uint16)
    file = encoded(Image.fromarray(levels), transparency=40_000)
    assert np.asarray(open_image(file))[0, :, 0].tolist() == [255, 156, 0]


def wide_png(pixels: np.ndarray, colour: tuple[int, int, int], orientation: int = 1) -> bytes:
    """A PNG file of 16 bits per channel with a transparent colour, which PIL cannot write; its data in two parts."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels))
    exif = Image.Exif()
    exif[0x0112] = orientation
    parts = [(b"IHDR", header), (b"eXIf", exif.tobytes()[6:]), (b"tRNS", struct.pack(">HHH", *colour))]
    parts += [(b"IDAT", rows[:9]), (b"IDAT", rows[9:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(part(*one) for one in parts)


def test_one_colour_of_16_bits_may_be_transparent(tmp_path):
    colour = (0x1234, 0x5678, 0x9ABC)
    pixels = np.array([[colour, (0x1235, 0x5678, 0x9ABC), (0, 0, 0x9ABC)]] * 2, np.uint16)
    expected = np.array([[[255] * 3, [0x12, 0x56, 0x9A], [0, 0, 0x9A]]] * 2, np.uint8)
    file = wide_png(pixels, colour)
    (tmp_path / "x.png").write_bytes(file)
    for source in (file, tmp_path / "x.png", Image.open(io.BytesIO(file))):
        assert np.array_equal(np.asarray(open_image(source)), expected)
    assert np.array_equal(Preprocessing().pixels(Image.open(io.BytesIO(file))), expected.transpose(2, 0, 1))
    assert np.array_equal(np.asarray(open_image(wide_png(pixels, colour, 6))), np.rot90(expected, -1))
    assert np.array_equal(np.asarray(open_image(wide_png(pixels, (0, 0, 0x9A)))), pixels >> 8)  # a colour of no pixel
    decoded = Image.open(io.BytesIO(file))
    decoded.load()  # PIL has dropped the lower bits
    assert np.asarray(open_image(decoded))[0].tolist() == [[255] * 3, [255] * 3, [0, 0, 0x9A]]


@pytest.mark.parametrize(("straight", "multiplied"), [("RGBA", "RGBa"), ("LA", "La")])
def test_colours_multiplied_by_their_opacity_are_put_on_white(straight, multiplied):
    pixels = np.array([[[0, 0, 0, 0], [200, 200, 200, 255], [90, 90, 90, 51]]], np.uint8)
    image = Image.fromarray(pixels).convert(straight)
    expected = np.asarray(open_image(image))
    assert expected[0, 0].tolist() == [255, 255, 255]
    assert np.abs(np.asarray(open_image(image.convert(multiplied))).astype(int) - expected).max() <= 1


def transparent(kind: str) -> Image.Image:
    """Random pixels with an alpha channel, or with transparent colours as GIF and PNG files have them."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 31, 4), dtype=np.uint8)
    image = Image.fromarray(pixels)
    if kind in ("RGBA", "LA"):
        return image.convert(kind)
    image = image.convert("RGB").quantize(9) if "palette" in kind else image.convert(kind.split()[0])
    colour = {"RGB": image.getpixel((3, 2)), "L": image.getpixel((3, 2)), "one": 2, "some": bytes([255, 0, 99])}
    image.info["transparency"] = colour[kind.split()[0]]
    return image


def skip_dropped_opacity() -> None:
    """Skip where transformers, as in its first releases of version 5, drops the opacity of an image."""
    convert = pytest.importorskip("transformers.image_transforms").convert_to_rgb
    if "return_numpy" not in inspect.signature(convert).parameters:
        pytest.skip("this version of transformers drops the opacity")


@pytest.mark.parametrize(
    "kind", ["RGBA", "LA", "one colour of a palette", "some colours of a palette", "RGB colour", "L colour"]
)
def test_transparent_images_are_put_on_white_as_transformers_does(kind, tmp_path):
    transforms = pytest.importorskip("transformers.image_transforms")
    skip_dropped_opacity()
    image = transparent(kind)
    expected = transforms.convert_to_rgb(image, return_numpy=True)
    assert not np.array_equal(expected, np.asarray(image.convert("RGBA").convert("RGB")))
    (tmp_path / "x.png").write_bytes(encoded(image))
    for source in (image, tmp_path / "x.png", encoded(image), np.asarray(image.convert("RGBA"))):
        assert np.array_equal(np.asarray(open_image(source)), expected)
    assert np.array_equal(Preprocessing().pixels(image), expected.transpose(2, 0, 1))
    grey = Preprocessing(channels="grey", mean=(0.5,), deviation=(0.5,))
    assert np.array_equal(grey.pixels(image)[0], np.asarray(Image.fromarray(expected).convert("L")))


def test_a_processor_of_transformers_gives_the_same_numbers_for_a_transparent_image():
    skip_dropped_opacity()
    clip = pytest.importorskip("transformers.models.clip.image_processing_pil_clip")
    processor = clip.CLIPImageProcessorPil(
        size={"shortest_edge": 20}, crop_size={"height": 18, "width": 18}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    ours = Preprocessing(resize=20, crop=(18, 18), interpolation="bicubic")
    assert_equal_to(processor, ours, transparent("RGBA"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    image = noise(13, 8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "x.png").write_bytes(encoded(image, exif=exif))
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }  # fmt: skip
    upright = image.transpose(turns[orientation]) if orientation in turns else image
    with Image.open(tmp_path / "x.png") as file:
        for given in (tmp_path / "x.png", (tmp_path / "x.png").read_bytes(), file):
            assert np.array_equal(np.asarray(open_image(given)), np.asarray(upright))


def test_files_that_are_not_images_are_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png.: there is no such file: expected a path of an image"):
        open_image(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=rf"{tmp_path} is a folder: expected an image file"):
        open_image(tmp_path)
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(DataError, match=r"text\.png cannot be read as an image: its format is unknown$"):
        open_image(tmp_path / "text.png")
    (tmp_path / "half.png").write_bytes(encoded(noise(50, 50))[:-300])
    with pytest.raises(DataError, match=r"half\.png cannot be read as an image: .*truncated"):
        open_image(tmp_path / "half.png")
    with Image.open(tmp_path / "half.png") as lazy, pytest.raises(DataError, match=r"half\.png cannot be read"):
        open_image(lazy)


def test_bytes_that_are_not_an_image_are_refused():
    with pytest.raises(DataError, match=r"^an image of 3 bytes cannot be read as an image: its format is unknown$"):
        open_image(b"abc")
    with pytest.raises(DataError, match=r"^an image of \d+ bytes cannot be read as an image: .*truncated"):
        open_image(encoded(noise(50, 50))[:-300])


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 5, 3)), r"shape \(4, 5, 3\) and dtype float64 is not an image: expected uint8"),
        (np.zeros((3, 4, 5), np.uint8), r"shape \(3, 4, 5\) and dtype uint8"),
        (np.zeros(5, np.uint8), r"shape \(5,\)"),
        (np.zeros((2, 4, 5, 3), np.uint8), r"shape \(2, 4, 5, 3\)"),
        (np.zeros((0, 5, 3), np.uint8), r"shape \(0, 5, 3\)"),
    ],
)
def test_arrays_that_are_not_images_are_refused_with_their_shape(array, words):
    with pytest.raises(ValueError, match=words):
        open_image(array)


def test_an_image_with_an_edge_of_millions_of_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    (tmp_path / "line.png").write_bytes(encoded(Image.new("1", (1_000_001, 1))))
    monkeypatch.setattr(Image.Image, "convert", None)
    words = "its size is 1000001 x 1 pixels: expected edges of at most 1,000,000 pixels"
    with pytest.raises(DataError, match=rf"line\.png cannot be read as an image: {words}"):
        open_image(tmp_path / "line.png")
    with pytest.raises(ValueError, match=words):
        open_image(np.zeros((1, 1_000_001), np.uint8))


@pytest.mark.parametrize("thing", [None, 3, [1, 2], {"path": "x"}])
def test_other_things_are_refused_with_their_type(thing):
    with pytest.raises(ValueError, match=f"^a {type(thing).__name__} is not an image: expected a path, an open file"):
        open_image(thing)

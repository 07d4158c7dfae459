"""preprocessor_config.json: pixels equal those of transformers' image processors, in both directions."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead as ch
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.weights import Bundle, WeightsError
from clearhead.weights.huggingface.preprocessor import FILE, RESAMPLE, read_preprocessing, write_preprocessing
from support.image_models import patched_model, picture, pixels_model, processor_class, registered

SIZES = [(37, 53), (53, 37), (30, 30), (5, 9), (20, 61)]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OURS = {
    "square": Preprocessing(resize=(24, 24)),
    "not square": Preprocessing(resize=(24, 17), mean=MEAN, deviation=STD),
    "shorter edge and crop": Preprocessing(resize=29, crop=(24, 22), interpolation="bicubic", mean=MEAN, deviation=STD),
    "shorter edge": Preprocessing(resize=13, mean=(0.0, 0.0, 0.0), deviation=(1.0, 1.0, 1.0)),
    "square and crop": Preprocessing(resize=(28, 28), crop=(24, 24), interpolation="lanczos"),
    "crop larger than the image": Preprocessing(resize=9, crop=(16, 20)),
    "only crop": Preprocessing(crop=(24, 24)),
    "only scale": Preprocessing(scale=1 / 127.5, mean=(1.0, 1.0, 1.0), deviation=(1.0, 1.0, 1.0)),
    "no scale": Preprocessing(resize=(8, 8), scale=1.0, mean=(127.0, 120.0, 110.0), deviation=(60.0, 61.0, 62.0)),
    **{name: Preprocessing(resize=(20, 20), interpolation=name) for name in RESAMPLE},
}
# Processor: constructor arguments.
THEIRS = {
    "ViT": [{}, {"size": {"height": 20, "width": 31}}, {"size": 20, "do_normalize": False}, {"do_rescale": False}],
    "DeiT": [
        {"size": 28, "crop_size": 24}, {"size": {"height": 28, "width": 20}, "crop_size": 24}, {"do_resize": False},
    ],
    "Bit": [{"size": {"shortest_edge": 28}, "crop_size": 24}, {"size": 24, "crop_size": {"height": 9, "width": 8}}],
    "CLIP": [{"size": {"shortest_edge": 28}, "crop_size": 24}, {"size": 24, "do_center_crop": False}],
    "ConvNext": [{}, {"size": {"shortest_edge": 28}}, {"size": 30, "crop_pct": 0.7}, {"do_resize": False}],
    "MobileNetV1": [{"size": {"shortest_edge": 28}, "crop_size": 24}],
    "MobileNetV2": [{}, {"size": 28, "crop_size": 24, "image_mean": [0.1, 0.2, 0.3], "image_std": 0.5}],
    "Siglip": [{"size": {"height": 20, "width": 20}}, {"size": 20}],
}  # fmt: skip


def their_pixels(processor, image):
    return processor(images=image, return_tensors="np")["pixel_values"][0]


def skip_older_rule(processor, table):
    """Skip a size that is a number if the processor, as in transformers 5.0, does not read default_to_square."""
    if isinstance(table.get("size"), int) and not hasattr(processor, "default_to_square"):
        pytest.skip("this version of transformers has another rule for a size that is a number")


def check(ours, processor):
    for size in SIZES:
        image = picture(*size)
        mine, theirs = ours(image), their_pixels(processor, image)
        assert mine.shape == theirs.shape, size
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("name", OURS)
def test_a_written_file_is_read_by_their_processors(name, tmp_path):
    write_preprocessing(OURS[name], tmp_path)
    kind = json.loads((tmp_path / FILE).read_text())["image_processor_type"].removesuffix("ImageProcessor")
    check(OURS[name], processor_class(kind).from_pretrained(tmp_path))


@pytest.mark.parametrize(("name", "options"), [(name, options) for name in THEIRS for options in THEIRS[name]])
def test_a_file_of_theirs_is_read(name, options, tmp_path):
    skip_older_rule(processor_class(name), options)
    processor = processor_class(name)(**options)
    processor.save_pretrained(tmp_path)
    check(read_preprocessing(tmp_path), processor)


FILES = {
    "size is a number": {"size": 24},
    "size is a number, square": {"size": 24, "default_to_square": True},
    "size is a number, not square": {"size": 24, "default_to_square": False},
    "default_to_square is null": {"size": 24, "default_to_square": None},
    "crop_size is a number": {"crop_size": 17},
    **{f"{key} is null": {key: None} for key in (
        "do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_pad", "do_convert_rgb",
    )},
    "do_normalize is null, without a mean": {"do_normalize": None, "image_mean": None, "image_std": None},
    "do_resize is null, without a size": {"do_resize": None, "size": None},
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("name", THEIRS)
def test_a_file_is_read_as_their_processor_reads_it(name, case, tmp_path):
    if name == "ConvNext" and case == "size is a number, square":
        pytest.skip("their ConvNext takes only a shorter edge")
    size = {"height": 21, "width": 26} if name in ("ViT", "DeiT", "Siglip") else {"shortest_edge": 21}
    table = {"image_processor_type": f"{name}ImageProcessor", "size": size, "crop_size": {"height": 19, "width": 16}}
    means = {"image_mean": [0.3, 0.4, 0.5], "image_std": [0.5, 0.6, 0.7]}
    skip_older_rule(processor_class(name), FILES[case])
    (tmp_path / FILE).write_text(json.dumps(table | means | FILES[case]))
    check(read_preprocessing(tmp_path), processor_class(name).from_pretrained(tmp_path))


@pytest.mark.parametrize("name", [*OURS, "grey", "bgr"])
def test_writing_and_reading_is_the_identity(name, tmp_path):
    grey = Preprocessing(resize=(8, 8), channels="grey", mean=(0.4,), deviation=(0.2,))
    preprocessing = {**OURS, "grey": grey, "bgr": Preprocessing(channels="bgr")}[name]
    write_preprocessing(preprocessing, tmp_path)
    assert read_preprocessing(tmp_path) == preprocessing
    write_preprocessing(None, tmp_path)
    assert read_preprocessing(tmp_path) is None
    assert not list(tmp_path.iterdir())


OLD = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Preprocessing(resize=(224, 224))),
        ({"feature_extractor_type": "ViTFeatureExtractor", "resample": 3},
         Preprocessing(resize=(224, 224), interpolation="bicubic")),
        ({"feature_extractor_type": "DeiTFeatureExtractor", "size": 256, "crop_size": 224},
         Preprocessing(resize=(256, 256), crop=(224, 224), interpolation="bicubic")),
        ({"feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875},
         Preprocessing(resize=256, crop=(224, 224), interpolation="bicubic")),
        ({"feature_extractor_type": "ConvNextFeatureExtractor", "size": 384, "crop_pct": None},
         Preprocessing(resize=(384, 384), interpolation="bicubic")),
        ({"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 224, "do_center_crop": True},
         Preprocessing(resize=224, crop=(224, 224), interpolation="bicubic")),
        ({"image_processor_type": "BitImageProcessorFast", "size": {"shortest_edge": 256, "longest_edge": None},
          "crop_size": {"height": 224, "width": 224}, "device": None, "do_pad": None},
         Preprocessing(resize=256, crop=(224, 224), interpolation="bicubic")),
    ],
)  # fmt: skip
def test_files_of_older_versions(changes, expected, tmp_path):
    """A size that is one number, types that end in FeatureExtractor, missing keys, and nulls."""
    (tmp_path / FILE).write_text(json.dumps(OLD | changes))
    assert read_preprocessing(tmp_path) == expected


CONVNEXT = {"image_processor_type": "ConvNextImageProcessor"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_processor_type": "VitImageProcessor"}, "'VitImageProcessor': .*the nearest .*ViTImageProcessor"),
        ({"image_processor_type": 3.5}, r":\d+: image_processor_type = 3.5: expected text"),
        ({"resample": 6}, r":\d+: resample = 6: expected one of 0, 1"),
        ({"resample": True}, r":\d+: resample = True: expected one of 0, 1"),
        ({"resample": [2]}, r":\d+: resample = \[2\]: expected one of 0, 1"),
        ({"size": None}, "there is no size"),
        ({"size": "224"}, r":\d+: size = '224': expected a whole number or a table"),
        ({"size": True}, r":\d+: size = True: expected a whole number or a table"),
        ({"size": {"longest_edge": 224}}, "size is {'longest_edge': 224}: expected height and width, or shortest_edge"),
        ({"size": {"shortest_edge": 224, "longest_edge": 300}}, "expected height and width, or shortest_edge"),
        ({"size": {"height": 224}}, "size is {'height': 224}: expected height and width, or shortest_edge"),
        ({"size": {"height": 224, "width": 0}}, "expected 1 pixel or more"),
        ({"size": -1}, "expected 1 pixel or more"),
        ({"size": 10**9}, "size is 1000000000: expected at most 65536 pixels"),
        ({"do_center_crop": True}, "there is no crop_size"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 9}}, "crop_size is .*: expected height and width"),
        ({"do_resize": "yes"}, r":\d+: do_resize = 'yes': expected true or false"),
        ({"do_pad": True}, "do_pad is True: padded images are not supported"),
        ({"image_processor_type": "CLIPImageProcessor", "use_square_size": True, "crop_size": 224},
         "use_square_size is True: expected a size of height and width instead"),
        ({"image_mean": None}, "there is no image_mean"),
        ({"image_mean": [0.5]}, "expected 3 numbers"),
        ({"image_std": [0.5, 0.5, 0.0]}, "expected numbers above 0"),
        ({"image_std": "x"}, r":\d+: image_std = 'x': expected a number or a list"),
        ({"rescale_factor": "x"}, r":\d+: rescale_factor = 'x': expected a number"),
        ({"channels": "cmyk"}, r":\d+: channels = 'cmyk': expected one of 'rgb'"),
        (CONVNEXT | {"crop_pct": 0}, r"crop_pct is 0.0: expected a share above 0, at most 1"),
        (CONVNEXT | {"size": {"height": 9, "width": 9}}, "expected shortest_edge for a ConvNextImageProcessor"),
        (CONVNEXT | {"do_center_crop": True, "crop_size": 9}, "a ConvNextImageProcessor of size 224 already crops"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_by_name(changes, message, tmp_path):
    (tmp_path / FILE).write_text(json.dumps(OLD | changes, indent=1))
    with pytest.raises(WeightsError, match=rf"{FILE}.*{message}"):
        read_preprocessing(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"size": NaN}'])
def test_files_that_are_not_json_are_refused_by_name(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ValueError, match=FILE):
        read_preprocessing(tmp_path)


@pytest.mark.parametrize("name", ["shorter edge and crop", "square"])
def test_a_saved_bundle_keeps_its_preprocessing(name, tmp_path):
    model, image = pixels_model(), picture()
    bundle = Bundle(model, preprocessing=OURS[name], labels=("cat", "dog"))
    with registered():
        loaded = ch.load(ch.save(bundle, tmp_path / "model"), device="cpu")
        assert (loaded.preprocessing, loaded.labels, loaded.tokens) == (OURS[name], ("cat", "dog"), None)
        assert torch.equal(loaded(image), bundle(image))
        ch.save(model, tmp_path / "model")
        assert ch.load(tmp_path / "model", device="cpu").preprocessing is None  # that of the model before is removed


@pytest.mark.parametrize("channels", ["bgr", "grey"])
def test_a_hugging_face_folder_with_other_channels_than_rgb_is_refused(channels, tmp_path):
    """Their image processors would ignore our key, and give the model other numbers."""
    numbers = (0.5,) * (1 if channels == "grey" else 3)
    preprocessing = Preprocessing(resize=(8, 8), channels=channels, mean=numbers, deviation=numbers)
    bundle = Bundle(patched_model(), preprocessing=preprocessing)
    with registered():
        with pytest.raises(WeightsError, match=f"channels='{channels}': a Hugging Face folder has channels='rgb'"):
            ch.save(bundle, tmp_path / "model", layout="huggingface")
        assert not (tmp_path / "model").exists()
        assert ch.load(ch.save(bundle, tmp_path / "ours"), device="cpu").preprocessing == preprocessing


def test_a_bundle_puts_transparent_images_on_white(tmp_path):
    bundle = Bundle(pixels_model(), preprocessing=OURS["square"])
    image = picture().convert("RGBA")
    image.putalpha(51)
    white = Image.new("RGB", image.size, "white")
    image.save(tmp_path / "x.png")
    expected = bundle(Image.composite(picture(), white, Image.new("L", image.size, 51)))
    assert not torch.allclose(expected, bundle(picture()), atol=1e-3)
    for source in (image, tmp_path / "x.png", np.asarray(image)):
        assert torch.equal(bundle(source), expected)

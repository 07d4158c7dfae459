"""evaluate and classify of image classifiers, in Python and on the command line, against loops over the images."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clearhead import Bundle, classify, evaluate, save
from clearhead.data.files import DataError
from clearhead.data.images.folders import ImageConfig, Images
from clearhead.data.images.in_memory import CLASSES
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.errors import Notice
from support.command_line import call
from support.image_models import patched_model, picture, registered

LABELS = ("cat", "dog", "owl")


def classifier(labels=LABELS) -> Bundle:
    return Bundle(patched_model(classes=3), preprocessing=Preprocessing(resize=(8, 8)), labels=labels)


@pytest.fixture
def photos(tmp_path):
    """A folder per class, of 2, 3 and 4 images."""
    folder = tmp_path / "photos"
    for n, label in enumerate(LABELS):
        (folder / label).mkdir(parents=True)
        for i in range(n + 2):
            picture(seed=10 * n + i).save(folder / label / f"{i}.png")
    return folder


@pytest.fixture
def saved(tmp_path):
    """A saved classifier, whose family is known inside the test."""
    with registered():
        yield save(classifier(), tmp_path / "model")


def test_accuracy_and_confusion_are_those_of_the_predictions(photos):
    bundle, finished = classifier(), []
    scores = evaluate(bundle, photos, done=lambda *n: finished.append(n))
    paths = sorted(photos.rglob("*.png"))
    predicted = [classify(bundle, path)[0][0] for path in paths]
    assert scores.hypotheses == predicted
    assert scores.references == [path.parent.name for path in paths]
    assert scores.accuracy == sum(a == b for a, b in zip(predicted, scores.references, strict=True)) / 9
    assert {true: sum(row.values()) for true, row in scores.confusion.items()} == {"cat": 2, "dog": 3, "owl": 4}
    assert (scores.to_dict()["images"], finished) == (9, [(9, 9)])


@pytest.fixture
def mosaics(tmp_path, monkeypatch):
    """A data folder with a CIFAR-10 of 50 training and 50 test images: red, of the class automobile, or black."""
    monkeypatch.delenv("CLEARHEAD_DATA", raising=False)
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for part in ("train", "test"):
        pixels = np.zeros((32, 50, 32, 3), np.uint8)
        pixels[:, ::2, :, 0] = 255
        Image.fromarray(pixels.reshape(32, 1600, 3)).save(folder / f"{part}_00.webp", lossless=True)
    (np.arange(100) % 2 == 0).astype(np.uint8).tofile(folder / "labels.u8")
    return tmp_path


def red_detector() -> Bundle:
    """A model whose class is 1 for red images and 0 for all others."""

    def forward(images):
        red = images[:, :1].mean((2, 3))
        return torch.cat([-red, red, *[torch.full_like(red, -9.0)] * 8], dim=1)

    bundle = Bundle(patched_model(classes=10), preprocessing=Preprocessing(resize=(32, 32)), labels=CLASSES)
    bundle.model.forward = forward
    return bundle


def test_a_named_set_is_evaluated_on_its_test_images(mosaics):
    scores = evaluate(red_detector(), "cifar10", root=mosaics)
    assert (scores.data, scores.accuracy, len(scores.references)) == ("cifar10 test", 1.0, 50)
    assert scores.references[:3] == ["automobile", "airplane", "automobile"]
    assert evaluate(red_detector(), "cifar10", root=mosaics, split="train").data == "cifar10 train"
    with pytest.raises(ValueError, match="split='valid': cifar10 has no such part; expected one of train, test"):
        evaluate(red_detector(), "cifar10", root=mosaics, split="valid")
    with pytest.raises(DataError, match="cifar10: the class 'automobile' is none of the model's: cat, dog, owl"):
        evaluate(classifier(), "cifar10", root=mosaics)


def test_a_zip_file_gives_the_same_as_its_folder(photos, tmp_path):
    shutil.make_archive(str(tmp_path / "photos"), "zip", photos)
    scores = evaluate(classifier(), tmp_path / "photos.zip")
    assert (scores.hypotheses, scores.references) == (
        evaluate(classifier(), photos).hypotheses, evaluate(classifier(), photos).references
    )  # fmt: skip


def test_the_validation_part_is_evaluated_unless_another_is_given(photos, tmp_path):
    folder = tmp_path / "parts"
    shutil.copytree(photos, folder / "train")
    shutil.copytree(photos / "owl", folder / "val" / "owl")
    scores = evaluate(classifier(), folder)
    assert (scores.data, scores.references) == (f"{folder} valid", ["owl"] * 4)
    assert evaluate(classifier(), "parts", root=tmp_path, split="train").references[:2] == ["cat", "cat"]
    with pytest.raises(ValueError, match=r"split='test': .* has no such part; expected one of train, valid"):
        evaluate(classifier(), folder, split="test")
    with pytest.raises(ValueError, match=r"split='valid': .*; expected no split, because it is not divided"):
        evaluate(classifier(), photos, split="valid")


def trained(photos, folder: Path, share: float, **data: object) -> Bundle:
    """A model whose run was trained on the photos."""
    options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in data.items())
    recipe = f'[data]\nname = "images"\npath = "{photos}"\nshare = {share}\n{options}'
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe)
    return replace(classifier(), folder=folder / "model")


def test_of_the_folder_that_a_model_was_trained_on_only_held_out_images_are_evaluated(photos, tmp_path):
    data = Images(ImageConfig(path=str(photos), share=0.4), seed=3)
    held_out = [image.name for image in data.sets["valid"]]
    bundle = trained(photos, tmp_path / "run", 0.4)
    scores = evaluate(bundle, photos)
    assert (scores.data, scores.files) == (f"{photos} valid", held_out)
    assert scores.to_dict()["files"] == held_out
    others = evaluate(bundle, photos, split="train").files
    assert sorted([*held_out, *others]) == sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    assert len(evaluate(bundle, photos, split="all").references) == 9
    with pytest.warns(Notice, match="photos: the model was trained on all of it"):
        assert len(evaluate(trained(photos, tmp_path / "whole", 0.0), photos).references) == 9
    copied = shutil.copytree(photos, tmp_path / "other photos")
    assert len(evaluate(bundle, copied).references) == 9


def test_bad_files_are_left_out_if_asked_or_if_training_left_them_out(photos, tmp_path):
    (photos / "cat" / "0.png").write_bytes(b"no image")
    with pytest.warns(Notice, match="1 of 9 image files left out"):
        assert len(evaluate(classifier(), photos, skip_bad=True).references) == 8
    with pytest.warns(Notice, match="1 of 9 image files left out"):
        data = Images(ImageConfig(path=str(photos), share=0.4, skip_bad=True), seed=0)
    with pytest.warns(Notice, match="1 of 9 image files left out"):
        scores = evaluate(trained(photos, tmp_path / "run", 0.4, skip_bad=True), photos)
    assert scores.files == [image.name for image in data.sets["valid"]]


def test_wrong_folders_are_refused(photos, tmp_path):
    with pytest.raises(DataError, match="the class 'owl' is none of the model's: cat, dog, bowl; the nearest is bowl"):
        evaluate(classifier(labels=("cat", "dog", "bowl")), photos)
    with pytest.raises(DataError, match=r"nowhere: this Patched reads images, .*per class, or one of cifar10, "):
        evaluate(classifier(), tmp_path / "nowhere")
    with pytest.raises(ValueError, match="2 files: this Patched does not translate, expected one"):
        evaluate(classifier(), [photos, photos])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no images"):
        evaluate(classifier(), tmp_path / "empty")
    (photos / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cat/0\.png cannot be read as an image.*; skip_bad=true leaves such"):
        evaluate(classifier(), photos)
    shutil.make_archive(str(tmp_path / "photos"), "zip", photos)
    with pytest.raises(DataError, match=r"photos\.zip: cat/0\.png cannot be read as an image"):
        evaluate(classifier(), tmp_path / "photos.zip")


def test_the_classes_of_a_large_model_are_not_all_listed(photos):
    bundle = Bundle(patched_model(classes=30), preprocessing=Preprocessing(resize=(8, 8)))
    with pytest.raises(DataError, match=r"the class 'cat' is none of the model's: 0, 1, .*, 19 \.\.\. \(30 in all\)"):
        evaluate(bundle, photos)


@pytest.mark.parametrize("given", ["array", "tensor", "file", "stacked arrays", "stacked tensors", "grey"])
def test_images_come_in_many_forms(photos, given):
    paths = sorted(photos.rglob("*.png"))[:2]
    arrays = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    tensors = [torch.from_numpy(array.copy()).movedim(-1, 0) for array in arrays]
    bundle, alone = classifier(), classify(classifier(), paths[0])
    if given == "file":
        with paths[0].open("rb") as file:
            assert classify(bundle, file) == alone
    elif given == "grey":
        grey = arrays[0][:, :, :1]
        assert classify(bundle, grey) == classify(bundle, np.repeat(grey, 3, axis=2))
    elif given.startswith("stacked"):
        several = np.stack(arrays) if given == "stacked arrays" else torch.stack(tensors)
        assert classify(bundle, several) == classify(bundle, paths)
    else:
        one = arrays[0] if given == "array" else tensors[0]
        assert classify(bundle, one) == alone


def test_what_is_no_image_is_refused(photos):
    with pytest.raises(ValueError, match="'' is not an image: expected a path"):
        classify(classifier(), "")
    with pytest.raises(ValueError, match="a dict is not an image"):
        classify(classifier(), {"image": photos})


def test_the_command_classifies_image_files(photos, saved):
    paths = [photos / "cat" / "0.png", photos / "owl" / "1.png"]
    expected = classify(classifier(), paths)
    result = call("classify", saved, *paths, "--json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["image"] for one in found] == [str(path) for path in paths]
    assert [one["classes"] for one in found] == [
        [[name, pytest.approx(share)] for name, share in one] for one in expected
    ]
    lines = call("classify", saved, *paths, "--top", 1).stdout.splitlines()
    assert [line.split("\t") for line in lines] == [
        [str(path), f"{one[0][0]} {one[0][1]:.1%}"] for path, one in zip(paths, expected, strict=True)
    ]


def test_the_command_evaluates_a_folder_of_images(photos, saved, tmp_path):
    out = tmp_path / "predicted.txt"
    result = call("evaluate", saved, photos, "--out", out)
    assert result.exit_code == 0, result.output
    assert "of 9 images" in result.stdout
    assert out.read_text().split() == evaluate(classifier(), photos).hypotheses
    assert json.loads(call("evaluate", saved, photos, "--json").stdout)["images"] == 9


def test_an_error_of_the_command_is_one_sentence(photos, saved):
    Image.new("RGB", (4, 4)).save(photos / "other.png")
    (photos / "empty").mkdir()
    for words, sentence in [
        (("classify", saved, "a good film"), "'a good film': there is no such file, and this Patched reads images"),
        (("classify", saved, photos / "empty"), "empty has no images: expected files"),
        (("evaluate", saved, photos), "other.png has no class: expected one folder per class"),
        (("evaluate", saved, photos, "last=0.5"), "last"),
        (("generate", saved, "a dog"), "this Patched cannot generate"),
        (("embed", saved, "a dog"), "this Patched has no vector per image: expected a model of images"),
    ]:
        result = call(*words)
        assert result.exit_code == 1
        assert sentence in result.output
        assert len(result.output.splitlines()) == 1

"""compare: the numbers of two models, and one page that needs nothing else."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import clearhead
from clearhead import compare, load
from clearhead.errors import InputError
from clearhead.report.compare.sections import SECTIONS


@pytest.fixture(scope="module")
def images():
    return {name: load(name, device="cpu") for name in ("vit-cifar10", "resnet-cifar10")}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder of images in classes of CIFAR-10."""
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for label in ("cat", "ship"):
        (folder / label).mkdir()
        for i in range(3):
            Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / label / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def report(images, photographs):
    return compare(*images.values(), data=photographs)


def test_every_section_fits_a_vit_and_a_resnet(report):
    assert list(report.sections) == list(SECTIONS)
    assert report.left_out == {}
    assert report.inputs == 6


def test_the_page_has_all_pictures_inside(report, tmp_path):
    page = report.save(tmp_path / "new" / "report.html").read_text()
    sources = re.findall(r'src="([^"]{0,30})', page)
    assert len(sources) == sum(len(one.figures) for one in report.sections.values())
    assert all(one.startswith("data:image/png;base64,") for one in sources)
    assert not re.search(r"https?://|<script|<link", page)
    assert "color-scheme: light dark" in page
    assert all(one.title in page for one in report.sections.values())


def test_the_numbers_are_those_of_the_parts(report, images, photographs):
    numbers = json.loads(json.dumps(report.to_dict(), allow_nan=False))["sections"]
    for name, bundle in images.items():
        assert numbers["sizes"]["parameters"][name] == sum(p.numel() for p in bundle.model.parameters())
        assert numbers["accuracy"][name] == clearhead.evaluate(bundle, photographs).accuracy
    similarity = clearhead.look.cka(*images.values(), data=sorted(photographs.rglob("*.png")))
    np.testing.assert_allclose(numbers["cka"]["matrix"], similarity.matrix, atol=1e-6)
    assert numbers["speed"]["ratio"] > 0
    assert list(numbers["distance"]) == ["vit-cifar10"]
    assert 0 < np.min(numbers["distance"]["vit-cifar10"]) < np.max(numbers["distance"]["vit-cifar10"]) < 1.5
    first = {name: sides[0] for name, sides in numbers["fields"].items()}
    assert first["resnet-cifar10"] < 0.3 < first["vit-cifar10"]  # a CNN starts local


def test_text_models_get_what_fits(tmp_path):
    result = compare("everyday", "everyday", inputs=6)
    assert result.names == ("everyday (A)", "everyday (B)")
    assert set(result.left_out) == {"accuracy", "fields", "colours"}
    assert result.left_out["accuracy"] == "the data have no labels"
    np.testing.assert_allclose(np.diagonal(result.sections["cka"].numbers["matrix"]), 1, atol=1e-6)
    assert "Left out: " in result.html()


def test_translators_are_compared_on_a_file_of_pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("A dog runs.\tEin Hund rennt.\nIt rains.\tEs regnet.\nHello.\tHallo.\nI know.\tIch weiß.\n")
    result = compare("en-de", "en-de-rnn", data=path, sections=["sizes", "cka", "lens", "saliency"])
    assert result.inputs == 4
    assert list(result.sections) == ["sizes", "cka", "lens", "saliency"]


def test_what_cannot_be_compared(images, tmp_path):
    with pytest.raises(InputError, match="everyday reads tokens and resnet-cifar10 images"):
        compare("everyday", images["resnet-cifar10"])
    with pytest.raises(InputError, match="models that read captions are not compared"):
        compare("captioner", "captioner-rnn")
    with pytest.raises(InputError, match="expected some of sizes, accuracy"):
        compare(*images.values(), sections=["size"])
    few = tmp_path / "few.txt"
    few.write_text("One.\n")
    with pytest.raises(InputError, match="has 1 inputs: expected 4 or more"):
        compare("everyday", "everyday", data=few)

"""compare: the numbers of two models, and one page that needs nothing else."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import clearhead
from clearhead import Bundle, build, compare, load, save
from clearhead.errors import InputError, InputKeyError
from clearhead.report.compare.inputs import title_of
from clearhead.report.compare.questions import ONE_WORD, questions
from clearhead.report.compare.sections import SECTIONS, speed_words
from clearhead.report.registry import Measure


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


@pytest.fixture(scope="module")
def translators():
    return compare("en-de", "en-de-rnn")


@pytest.fixture(scope="module")
def writers():
    """A language model and a masked model."""
    return compare("everyday", "cloze")


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
    assert all(SECTIONS[name].title in page for name in report.sections)


def test_the_numbers_are_those_of_the_parts(report, images, photographs):
    numbers = json.loads(json.dumps(report.to_dict(), allow_nan=False))["sections"]
    for name, bundle in images.items():
        assert numbers["sizes"]["parameters"][name] == sum(p.numel() for p in bundle.model.parameters())
        assert numbers["accuracy"][name] == clearhead.evaluate(bundle, photographs).accuracy
    similarity = clearhead.look.cka(*images.values(), data=sorted(photographs.rglob("*.png")))
    np.testing.assert_allclose(numbers["cka"]["matrix"], similarity.matrix, atol=1e-6)
    first, second = numbers["speed"]["inputs_per_second"].values()
    assert numbers["speed"]["ratio"] == first / second
    assert list(numbers["distance"]) == ["vit-cifar10"]
    assert 0 < np.min(numbers["distance"]["vit-cifar10"]) < np.max(numbers["distance"]["vit-cifar10"]) < 1.5
    first = {name: sides[0] for name, sides in numbers["fields"].items()}
    assert first["resnet-cifar10"] < 0.3 < first["vit-cifar10"]  # a CNN starts local


def test_what_fits_no_model_is_listed_with_the_reason(writers):
    assert writers.left_out == {
        "accuracy": "the data have no labels",
        "fields": "this is measured on images, and these models read texts",
        "colours": "this is measured on images, and these models read texts",
    }
    assert list(writers.sections) == [name for name in SECTIONS if name not in writers.left_out]
    page = writers.html()
    assert "<h2>Left out</h2>" in page
    assert "<li>Receptive fields: this is measured on images, and these models read texts.</li>" in page


def test_a_section_that_fails_is_left_out_and_the_others_stay(images, monkeypatch):
    def broken(pair):
        raise InputKeyError("no address 'blocks.*'")

    monkeypatch.setitem(SECTIONS, "speed", Measure(name="speed", title="Speed", run=broken))
    result = compare(*images.values(), inputs=4, sections=["speed", "sizes"])
    assert list(result.sections) == ["sizes"]
    assert result.left_out == {"speed": "no address 'blocks.*'"}


def test_a_model_with_itself():
    result = compare("everyday", "everyday", inputs=6, sections=["cka"])
    assert result.names == ("everyday (A)", "everyday (B)")
    np.testing.assert_allclose(np.diagonal(result.sections["cka"].numbers["matrix"]), 1, atol=1e-6)


def test_a_language_model_and_a_masked_model_answer_the_same_word(writers):
    captions = list(writers.sections["saliency"].figures)
    answers = [caption.split(": ")[1].split(",")[0] for caption in captions]
    assert [caption.split(":")[0] for caption in captions[:2]] == ["text 0, everyday", "text 0, cloze"]
    assert answers[:2] == ["street", "street"]
    assert list(writers.sections["lens"].numbers) == ["everyday", "cloze"]
    assert "cloze fills a gap in the place of the last word" in writers.sections["saliency"].text


@pytest.mark.parametrize(
    ("name", "given", "asked"),
    [
        ("everyday", "A man is here.", "A man is"),
        ("everyday", "A [MASK] sleeps.", "A"),
        ("everyday", "Hello.", None),
        ("cloze", "A man is here!", "A man is [MASK]!"),
        ("cloze", "A <mask> sleeps.", "A [MASK] sleeps."),
        ("en-de", ("A dog runs.", "Ein Hund rennt."), ("A dog runs.", "Ein Hund")),
        ("en-de", "A dog runs.", ("A dog runs.", "")),
    ],
)
def test_models_are_asked_for_the_last_word_or_the_gap(name, given, asked):
    assert questions(load(name, device="cpu"), [given]) == [asked]


def test_texts_of_one_word_leave_a_language_model_unasked(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("Hello.\nYes.\nNo.\nDog.\n")
    result = compare("everyday", "everyday", data=path, sections=["saliency", "lens"])
    assert set(result.left_out.values()) == {ONE_WORD}


def test_a_transformer_and_a_recurrent_translator(translators):
    """The recurrent one has neither self-attention nor a second layer: it is missing from what shows these."""
    assert set(translators.left_out) == {"accuracy", "fields", "colours"}
    distance, lens, saliency = (translators.sections[name] for name in ("distance", "lens", "saliency"))
    assert list(distance.numbers) == list(lens.numbers) == ["en-de"]
    assert distance.text.endswith("en-de-rnn is not shown: its encoder has no attention.")
    assert "self-attention of the encoder" in distance.text
    assert "vision" not in distance.text
    assert lens.text.endswith("en-de-rnn is not shown: it has no second layer before its answer.")
    answers = [caption.split(": ")[1].split(",")[0] for caption in saliency.figures]
    assert len(answers) == 8
    assert "<end>" not in answers
    assert answers[:2] == ["Straße", "Straße"]


def test_translators_of_different_languages_are_refused():
    with pytest.raises(InputError, match="en-de translates en to de and fr-en fr to en: no text is an input of both"):
        compare("en-de", "fr-en", sections=["sizes"])


def test_a_translator_from_french_reads_french(tmp_path):
    result = compare("fr-en", "fr-en", sections=["sizes"])
    assert result.data == "example sentences of fr-en, with translations by fr-en"
    shutil.copytree(load("fr-en", device="cpu").folder, tmp_path / "mine")
    with pytest.raises(InputError, match="mine reads fr, and the sentences that ship are English: expected data"):
        compare(tmp_path / "mine", tmp_path / "mine", sections=["sizes"])


@pytest.mark.parametrize("zipped", [False, True])
def test_images_without_classes_have_all_but_the_accuracy(images, tmp_path, zipped):
    folder = tmp_path / "mine"
    folder.mkdir()
    for i in range(5):
        Image.new("RGB", (32, 32), (50 * i, 20, 90)).save(folder / f"{i}.png")
    data = shutil.make_archive(str(tmp_path / "mine"), "zip", folder) if zipped else folder
    result = compare(*images.values(), data=data, sections=["sizes", "accuracy", "colours"])
    assert result.inputs == 5
    assert result.left_out == {"accuracy": "the data have no labels"}


def test_the_images_that_are_drawn_are_of_classes_that_the_models_have(images):
    result = compare(*images.values(), sections=["saliency"])
    captions = list(result.sections["saliency"].figures)
    shown = [caption.split(",")[0] for caption in captions]
    assert shown == [f"image {i} ({name})" for i, name in enumerate(("airplane", "cat", "ship")) for _ in "ab"]
    assert "has no class for" not in result.sections["saliency"].text


def test_images_of_unknown_classes_are_named(images):
    result = compare(images["vit-cifar10"], "vit-imagenette", sections=["saliency"])
    text = result.sections["saliency"].text
    assert "vit-cifar10 has no class for church" in text
    assert "vit-imagenette has no class for airplane" in text


def test_few_inputs_are_mentioned_with_cka(report):
    one = report.sections["cka"]
    assert "6 inputs are few" in one.text
    every = [np.array(x) for x in (*one.numbers["within"], one.numbers["matrix"])]
    below = sum(int((x < 0).sum()) for x in every)
    assert (f"{below} estimates are below 0" in one.text) == (below > 0)
    between = one.figures["CKA of vit-cifar10 and resnet-cifar10"].axes[0]
    assert between.get_xlabel() == "layer of resnet-cifar10"
    assert between.get_ylabel() == "layer of vit-cifar10"
    assert between.get_title().endswith("6 inputs")


def test_the_sentence_about_speed_is_the_ratio_of_the_table():
    words = speed_words({"a": 147.5, "b": 14.3}, 16)
    assert words.startswith("a is 10.3 times as fast as b. Both run in turns on the same 16 inputs, 7 times")


def test_attention_distance_names_its_models(report, writers):
    (one,) = report.sections["distance"].figures["attention distance"].axes
    assert one.get_title() == "Attention distance of vit-cifar10"
    two = writers.sections["distance"].figures["attention distance"].axes
    assert [axes.get_title() for axes in two] == ["everyday", "cloze"]
    colours = [[line.get_color() for line in axes.get_lines()] for axes in (one, *two)]
    assert all(len(set(some)) == 3 for some in colours)


def test_translators_are_compared_on_a_file_of_pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("A dog runs.\tEin Hund rennt.\nIt rains.\tEs regnet.\nHello.\tHallo.\nI know.\tIch weiß.\n")
    result = compare("en-de", "en-de-rnn", data=path, sections=["sizes", "cka", "lens", "saliency"])
    assert result.inputs == 4
    assert list(result.sections) == ["sizes", "cka", "lens", "saliency"]


def test_what_cannot_be_compared(images, tmp_path):
    with pytest.raises(InputError, match="everyday reads tokens and resnet-cifar10 images"):
        compare("everyday", images["resnet-cifar10"])
    with pytest.raises(InputError, match="models that read captions, such as captioners, are not compared"):
        compare("captioner", "captioner-rnn")
    with pytest.raises(InputError, match="expected some of sizes, accuracy"):
        compare(*images.values(), sections=["size"])
    few = tmp_path / "few.txt"
    few.write_text("One.\n")
    with pytest.raises(InputError, match="has 1 inputs: expected 4 or more"):
        compare("everyday", "everyday", data=few)


def test_models_of_runs_have_the_names_of_the_runs(tmp_path):
    bundle = Bundle(build("mlp", inputs=2, outputs=2))
    for name in ("small", "large"):
        save(bundle, tmp_path / name / "model")
        (tmp_path / name / "recipe.toml").write_text("steps = 1\n")
    found = [title_of(load(tmp_path / name, device="cpu")) for name in ("small", "large")]
    assert found == ["small", "large"]

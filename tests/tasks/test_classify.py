"""classify, for texts and images: batches against single inputs, and against the model's own outputs."""

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead as ch
import clearhead.inputs.images as input_images
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.errors import InputError
from clearhead.tasks import classify
from clearhead.tokens import Words
from clearhead.weights import Bundle
from support.image_models import patched_model, picture, pixels_model

TEXTS = ["the cat sat", "a dog", "on the mat the cat and the dog sat and sat"]
WORDS = Words.of(TEXTS)
SQUARE = Preprocessing(resize=(8, 8))


def text_classifier() -> Bundle:
    torch.manual_seed(0)
    model = ch.build(
        "bert", vocab=len(WORDS), width=16, depth=1, heads=2, context=16, answer="class", classes=2
    )  # fmt: skip
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0 if p.ndim > 1 else 1.0)
    return Bundle(model, WORDS, labels=("bad", "good"))


def image_classifier(preprocessing=SQUARE, **options) -> Bundle:
    return Bundle(patched_model(classes=3, **options), preprocessing=preprocessing, labels=("cat", "dog", "owl"))


def agree(alone, classes):
    assert [name for name, _ in alone] == [name for name, _ in classes]
    assert [share for _, share in alone] == pytest.approx([share for _, share in classes], abs=1e-5)


def test_texts_are_classified_in_batches_as_one_by_one():
    bundle = text_classifier()
    together = classify(bundle, TEXTS)
    for text, classes in zip(TEXTS, together, strict=True):
        agree(classify(bundle, text), classes)
        assert sum(share for _, share in classes) == pytest.approx(1.0)
        assert classes[0][1] >= classes[1][1]
        assert {name for name, _ in classes} == {"bad", "good"}
    assert len(classify(bundle, TEXTS[0], top=1)) == 1
    assert classify(bundle, np.array(TEXTS)) == classify(bundle, iter(TEXTS)) == together
    assert classify(bundle, []) == []


def test_an_image_gives_the_probabilities_of_the_models_logits():
    bundle, image = image_classifier(), picture()
    p = bundle(image).softmax(-1)
    classes = classify(bundle, image)
    assert {name: pytest.approx(share, abs=1e-6) for name, share in classes} == {
        name: float(one) for name, one in zip(bundle.labels, p, strict=True)
    }
    assert [share for _, share in classes] == sorted((share for _, share in classes), reverse=True)
    assert classify(bundle, image, top=1) == classes[:1]
    assert [name for name, _ in classify(Bundle(bundle.model, preprocessing=SQUARE), image)] == [
        str(bundle.labels.index(name)) for name, _ in classes
    ]


def test_an_image_may_be_a_path_a_pil_image_or_an_array(tmp_path):
    bundle, image = image_classifier(), picture()
    image.save(tmp_path / "a.png")
    expected = classify(bundle, image)
    forms = [tmp_path / "a.png", str(tmp_path / "a.png"), np.asarray(image), (tmp_path / "a.png").read_bytes()]
    for form in forms:
        assert classify(bundle, form) == expected
        assert classify(bundle, [form]) == [expected]
    assert classify(bundle, tmp_path.glob("*.png")) == [expected]


@pytest.mark.parametrize("preprocessing", [SQUARE, Preprocessing(resize=9)], ids=["one size", "several sizes"])
def test_images_are_classified_in_batches_as_one_by_one(preprocessing, monkeypatch):
    bundle = Bundle(pixels_model(), preprocessing=preprocessing)
    images = [picture(20, 20 + 10 * (i // 3), seed=i) for i in range(8)]
    alone = [classify(bundle, image) for image in images]
    monkeypatch.setattr(input_images, "IMAGES", 2)
    shapes, forward = [], bundle.model.forward
    monkeypatch.setattr(bundle.model, "forward", lambda x: shapes.append(tuple(x.shape)) or forward(x))
    for one, classes in zip(alone, classify(bundle, images), strict=True):
        agree(one, classes)
    rows = [shape[0] for shape in shapes]
    assert rows == ([2, 2, 2, 2] if preprocessing is SQUARE else [2, 1, 2, 1, 2])  # neighbours of the same size


def test_a_tape_around_several_images_holds_each_by_itself():
    bundle = image_classifier()
    images = [picture(seed=i) for i in range(3)]
    with ch.watch(bundle, "blocks.*.attn.weights") as tape:
        classify(bundle, images)
    assert [x.shape[0] for x in tape.calls("blocks.0.attn.weights")] == [1, 1, 1]


def test_images_are_cast_to_the_dtype_of_the_model():
    bundle = image_classifier()
    classes = classify(bundle, picture())
    half = Bundle(bundle.model.bfloat16(), preprocessing=SQUARE, labels=bundle.labels)
    assert dict(classify(half, picture())) == {name: pytest.approx(share, abs=0.02) for name, share in classes}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("a good film", r"'a good film': there is no such file, and this Patched reads images: expected a path, a PIL"),
        (["a good film"], "'a good film': there is no such file"),
        (3, "a int is not an image: expected a path"),
        (np.zeros((2, 2, 8, 8, 3), np.uint8), r"an array of shape \(2, 2, 8, 8, 3\).* is not an image"),
    ],
    ids=["text", "texts", "number", "five dimensions"],
)
def test_an_image_model_given_something_else_says_what_it_reads(given, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        classify(image_classifier(), given)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (np.zeros((8, 8, 3), np.uint8), "ndarray"), (Image.new("RGB", (8, 8)), "Image"), (b"text", "bytes"),
        (["the cat", 3], "int"), (None, "NoneType"),
    ],
    ids=["array", "PIL image", "bytes", "list with a number", "nothing"],
)  # fmt: skip
def test_a_text_model_given_something_else_says_what_it_reads(given, kind):
    with pytest.raises(ValueError, match=f"this BERT reads text: expected a string, got {kind}"):
        classify(text_classifier(), given)


def test_a_model_that_does_not_classify_is_refused():
    gpt = ch.build("gpt", vocab=len(WORDS), width=16, depth=1, heads=2, context=16)
    with pytest.raises(ValueError, match="this GPT cannot classify: expected a classifier"):
        classify(Bundle(gpt, WORDS), "the cat")


@pytest.mark.parametrize("top", [0, -1])
def test_a_number_of_classes_below_one_is_refused(top):
    model = ch.build("resnet", classes=3, width=8, depths=(1,))
    bundle = ch.Bundle(model, preprocessing=Preprocessing(resize=(8, 8), mean=(0.5,) * 3, deviation=(0.5,) * 3))
    with pytest.raises(InputError, match=f"top={top}: expected a whole number, 1 or more"):
        ch.classify(bundle, np.zeros((8, 8, 3), np.uint8), top=top)

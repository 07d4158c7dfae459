"""Linear models: the weights of scikit-learn, and readable ones."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from clearhead.look import fit_pixels, fit_words, linear_baseline

TEXTS = ["a good film", "a bad film", "a film", "good good fun", "bad luck", "plain water", "a plain day", "fun day"]
LABELS = ["good", "bad", "none", "good", "bad", "none", "none", "good"]


def test_weights_on_word_counts_are_those_of_scikit_learn():
    penalty = 1e-2
    model = fit_words(TEXTS, LABELS, penalty=penalty)
    counts = CountVectorizer(token_pattern=r"\S+", vocabulary=list(model.features)).transform(TEXTS)
    theirs = LogisticRegression(C=1 / (2 * penalty * len(TEXTS)), tol=1e-10, max_iter=10_000).fit(counts, LABELS)
    assert model.classes == tuple(theirs.classes_)
    np.testing.assert_allclose(model.weights.numpy(), theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(model.bias - model.bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-4)
    assert model.predict(TEXTS) == theirs.predict(counts).tolist()


def test_the_top_words_of_a_class_are_its_own():
    model = fit_words(TEXTS, LABELS)
    top = model.top(2)
    assert {top["good"][0][0], top["bad"][0][0], top["none"][0][0]} == {"good", "bad", "plain"}
    assert model.accuracy(TEXTS, LABELS) == 1.0
    assert model.predict(["words that nobody knows"])[0] in model.classes
    assert model.to_dict()["top"]["bad"][0][0] == "bad"
    assert model.__rich__().row_count == 9  # all words
    assert len(model.figure().axes) == 2


def test_the_weights_of_patches_show_where_the_classes_differ():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (8, 8, 3), dtype=np.uint8) for _ in range(60)]
    labels = [("dark", "bright")[i % 2] for i in range(60)]
    for image, label in zip(images, labels, strict=True):
        image[4:, :4] = 0 if label == "dark" else 255
    model = fit_pixels(images, labels, patch=4)
    assert (model.grid, model.weights.shape, model.features[:2]) == ((2, 2), (2, 12), ("0,0,0", "0,0,1"))
    strength = model.weights.unflatten(1, (2, 2, 3)).abs().sum(dim=(0, 3))
    assert strength.argmax() == 2  # row 1, column 0
    assert model.accuracy(images, labels) == 1.0
    assert model.figure().axes
    x = torch.from_numpy(np.stack(images)).double().unflatten(1, (2, 4)).unflatten(3, (2, 4)).mean((2, 4)) / 255 - 0.5
    torch.testing.assert_close(model.read(images), x.flatten(1))


def test_what_cannot_be_fitted_is_a_sentence():
    with pytest.raises(ValueError, match="2 inputs with 1 labels"):
        fit_words(["a", "b"], ["x"])
    with pytest.raises(ValueError, match="of two classes or more"):
        fit_words(["a", "b"], ["x", "x"])
    image = np.zeros((6, 6), np.uint8)
    with pytest.raises(ValueError, match="6 x 6 do not divide into patches of 4 x 4"):
        fit_pixels([image] * 2, ["a", "b"], patch=4)
    with pytest.raises(ValueError, match="expected images of one size"):
        fit_pixels([image, np.zeros((3, 3), np.uint8)], ["a", "b"])
    with pytest.raises(ValueError, match="'reverse' has no classes"):
        linear_baseline("reverse")


def test_named_data_of_texts(tmp_path):
    folder = tmp_path / "sst2"
    folder.mkdir()
    for part, texts in (("train", ["good film\t1", "bad film\t0"]), ("dev", ["good\t1", "bad\t0", "good bad good\t0"])):
        (folder / f"{part}.tsv").write_text("\n".join(texts) + "\n")
    model = linear_baseline("sst2", root=tmp_path)
    assert model.classes == ("negative", "positive")
    assert model.scores == {"train": 1.0, "valid": pytest.approx(2 / 3)}

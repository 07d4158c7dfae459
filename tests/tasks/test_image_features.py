"""embed of images; nearest neighbours and linear probes on frozen features, against loops and a known optimum."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clearhead as ch
from clearhead.data.files import DataError
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.metrics import linear_probe, nearest_neighbours
from support.command_line import call
from support.image_models import picture

SIZES = {"vit": {"size": 16, "patch": 8, "width": 12, "depth": 1, "heads": 3}, "resnet": {"width": 4, "depths": (1, 1)}}


def bundle(family="vit", classes=0) -> ch.Bundle:
    torch.manual_seed(0)
    model = ch.build(family, classes=classes, **SIZES[family])
    return ch.Bundle(model, preprocessing=Preprocessing(resize=(16, 16)))


@pytest.fixture
def photos(tmp_path):
    """Dark and light pictures, 6 and 2 of each for training and validation."""
    for part, count in (("train", 6), ("val", 2)):
        for n, label in enumerate(("dark", "light")):
            (tmp_path / "photos" / part / label).mkdir(parents=True)
            for i in range(count):
                image = picture(seed=100 * n + 10 * (part == "val") + i).point(lambda v, n=n: v // 4 + 180 * n)
                image.save(tmp_path / "photos" / part / label / f"{i}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("classes", [0, 3])
def test_the_vector_of_an_image_is_the_input_of_the_output_layer(family, classes):
    given, images = bundle(family, classes), [picture(seed=i) for i in range(3)]
    vectors = ch.embed(given, images, normalise=False)
    pixels = torch.stack([given.pixels(image) for image in images])
    with torch.no_grad():
        x = given.model.states(pixels)
        expected = given.model.head(x) if classes else x
        assert torch.allclose(given.model(pixels), expected)
    np.testing.assert_allclose(vectors, x.numpy(), atol=1e-6)
    one = ch.embed(given, images[1])
    np.testing.assert_allclose(one, vectors[1] / np.linalg.norm(vectors[1]), atol=1e-6)


def test_a_folder_is_its_images_sorted_by_path(photos):
    given = bundle()
    paths = sorted(photos.rglob("*.png"))
    np.testing.assert_allclose(ch.embed(given, photos), ch.embed(given, paths), atol=1e-6)
    classifier = bundle(classes=2)
    assert ch.classify(classifier, str(photos)) == ch.classify(classifier, paths)
    (photos / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no images: expected files \.bmp"):
        ch.embed(given, photos / "empty")


def test_pool_is_for_texts():
    with pytest.raises(ValueError, match="pool='mean' is for texts: this ViT reads images"):
        ch.embed(bundle(), picture(), pool="mean")


def test_neighbours_vote_as_a_loop_does():
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randn(n, 5, generator=generator) for n in (40, 13))
    labels = torch.randint(0, 4, (40,), generator=generator)
    for k in (1, 3, 7, 100):
        expected = []
        for row in test:
            cosine = [float(F.cosine_similarity(row, other, dim=0)) for other in train]
            votes = [0.0] * 4
            for i in sorted(range(40), key=lambda i: -cosine[i])[:k]:
                votes[int(labels[i])] += math.exp(cosine[i] / 0.07)
            expected.append(votes.index(max(votes)))
        assert nearest_neighbours(train, labels, test, neighbours=k).tolist() == expected


def test_a_linear_probe_separates_what_can_be_separated_and_reaches_the_optimum():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 5, 0.1, 30, 1, 2])
    labels = (x @ torch.randn(6, 3, generator=generator, dtype=torch.float64)).argmax(-1)
    assert linear_probe(x[:150], labels[:150], x[:150], penalty=0.0, steps=500).eq(labels[:150]).double().mean() > 0.99
    assert linear_probe(x[:150], labels[:150], x[150:]).eq(labels[150:]).double().mean() > 0.9
    # Features without any information: the most frequent class.
    same = torch.ones(10, 2)
    assert linear_probe(same, torch.tensor([1] * 7 + [0] * 3), same[:2]).tolist() == [1, 1]


def test_frozen_features_classify_a_folder(photos):
    given = bundle()
    before = {name: p.clone() for name, p in given.model.named_parameters()}
    for by in (None, "knn", "linear"):
        scores = ch.evaluate(given, photos, by=by)
        assert scores.accuracy == 1.0
        assert scores.references == ["dark", "dark", "light", "light"]
    assert all(torch.equal(p, before[name]) for name, p in given.model.named_parameters())
    assert ch.evaluate(bundle(classes=2), photos, by="knn", neighbours=3).accuracy == 1.0
    undivided = ch.evaluate(given, photos / "train")
    assert (undivided.accuracy, len(undivided.references)) == (1.0, 1)


def test_mistakes_get_sentences(photos):
    with pytest.raises(ValueError, match="this ViT cannot classify: expected a classifier, or by='knn'"):
        ch.evaluate(bundle(), photos, by="head")
    with pytest.raises(ValueError, match="too few images to divide them into train and val"):
        ch.evaluate(bundle(), photos / "val")
    with pytest.raises(ValueError, match="neighbours=0"):
        ch.evaluate(bundle(), photos, by="knn", neighbours=0)


def test_commands(photos, tmp_path):
    folder = ch.save(bundle("resnet", classes=2), tmp_path / "model")
    done = call("classify", folder, photos / "val", "--top", "1")
    assert done.exit_code == 0, done.output
    assert done.output.count(".png") == 4
    done = call("embed", folder, str(next(photos.rglob("*.png"))))
    assert done.exit_code == 0, done.output
    done = call("evaluate", folder, photos, "by=knn", "neighbours=3")
    assert done.exit_code == 0, done.output
    assert "100.00%" in done.output

"""CKA against the Gram matrices of float64 numpy: all estimators, any batches, any models."""

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.errors import Notice
from clearhead.look import cka, cka_of_features, features

N = 37


def layers(n=N):
    random = np.random.default_rng(0)
    a = random.normal(size=(n, 5)) + 3.0
    related = a @ random.normal(size=(5, 7)) + 0.5 * random.normal(size=(n, 7))
    return {"a": a, "related": related, "other": random.normal(size=(n, 11)), "wide": random.normal(size=(n, 60))}


def gram(x):
    return x @ x.T


def rbf(x, width):
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    return np.exp(-squares / (2 * width**2))


def biased(k, m):
    h = np.eye(len(k)) - 1 / len(k)
    return np.trace(k @ h @ m @ h)


def debiased(k, m):
    """Eq. 5 of Song et al. 2012, as it is written."""
    n, ones = len(k), np.ones(len(k))
    k, m = (x - np.diag(np.diag(x)) for x in (k, m))
    last = 2 / (n - 2) * ones @ k @ m @ ones
    return (np.trace(k @ m) + (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2)) - last) / (n * (n - 3))


def reference(grams, hsic):
    values = np.array([[hsic(k, m) for m in grams] for k in grams])
    scale = np.sqrt(np.diag(values))
    return values / scale[:, None] / scale


@pytest.mark.parametrize(("estimator", "hsic"), [("biased", biased), ("debiased", debiased)])
@pytest.mark.parametrize("rows", [1, 8, 37, 100])
def test_exact_estimators_are_those_of_the_gram_matrices_whatever_the_batches(estimator, hsic, rows):
    given = layers()
    found = cka_of_features(given, estimator=estimator, rows=rows).matrix
    np.testing.assert_allclose(found, reference([gram(x) for x in given.values()], hsic), atol=1e-10)


def test_the_minibatch_estimator_is_the_mean_of_the_debiased_ones():
    given = layers(40)
    parts = [slice(i, i + 10) for i in range(0, 40, 10)]
    values = sum(
        np.array([[debiased(gram(x[p]), gram(y[p])) for y in given.values()] for x in given.values()]) for p in parts
    )
    scale = np.sqrt(np.diag(values))
    found = cka_of_features(given, estimator="minibatch", rows=10).matrix
    np.testing.assert_allclose(found, np.clip(values / scale[:, None] / scale, -1, 1), atol=1e-10)


def test_the_rbf_kernel_has_the_median_distance_as_its_width():
    given = layers()
    widths = []
    for x in given.values():
        distances = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))[~np.eye(N, dtype=bool)]
        widths.append(np.sort(distances)[(len(distances) - 1) // 2])  # torch's median is the lower of the two
    grams = [rbf(x, width) for x, width in zip(given.values(), widths, strict=True)]
    found = cka_of_features(given, estimator="minibatch", kernel="rbf", rows=N).matrix
    np.testing.assert_allclose(found, reference(grams, debiased), atol=1e-9)


def test_float32_features_with_a_large_mean_are_within_1e_5_of_float64():
    given = {name: (x + 300).astype(np.float32) for name, x in layers().items()}
    exact = reference([gram(x.astype(float) - x.astype(float).mean(0)) for x in given.values()], debiased)
    np.testing.assert_allclose(cka_of_features(given, rows=5).matrix, exact, atol=1e-5)


def test_the_repr_is_a_line_without_the_matrix():
    x = np.random.default_rng(0).normal(size=(10, 4))
    assert repr(cka_of_features({"a": x, "b": x[:, :2]})) == "Similarity(rows=2, columns=2, inputs=10)"
    found = cka({"vit": nn.Sequential(nn.Linear(4, 3))}, data=torch.from_numpy(x).float(), layers="0")
    assert repr(found) == "Similarity(rows=1, columns=1, inputs=10, 'vit')"


def test_a_rotated_and_scaled_representation_is_effectively_the_same_though_no_feature_is():
    random = np.random.default_rng(1)
    x = random.normal(size=(500, 64)) * np.linspace(0.5, 1.5, 64)
    rotated = 3 * x @ np.linalg.qr(random.normal(size=(64, 64)))[0] + 7
    pairs = [abs(np.corrcoef(x[:, i], rotated[:, i])[0, 1]) for i in range(64)]
    for estimator in ("biased", "debiased"):
        assert cka_of_features({"x": x}, {"y": rotated}, estimator=estimator).matrix[0, 0] == pytest.approx(1, abs=1e-9)
    assert np.mean(pairs) < 0.2
    unrelated = cka_of_features({"x": x}, {"y": random.normal(size=(500, 64))}).matrix[0, 0]
    assert abs(unrelated) < 0.02  # the biased estimate would be above 0.1
    assert cka_of_features({"x": x}, {"y": x @ np.diag(np.linspace(0, 9, 64))}).matrix[0, 0] < 0.95  # no rotation


@pytest.mark.parametrize("estimator", ["biased", "debiased", "minibatch"])
@pytest.mark.parametrize("bad", [0.0, 7.3, np.nan, np.inf])
def test_a_degenerate_layer_gives_0_with_a_warning_that_names_it_and_changes_no_other(estimator, bad):
    given = layers()
    good = cka_of_features(given, estimator=estimator, rows=N).matrix
    broken = np.full((N, 3), bad)
    with pytest.warns(Notice, match="^flat: the same for all 37 inputs, or not finite"):
        found = cka_of_features({**given, "flat": broken}, estimator=estimator, rows=N)
    assert found.degenerate == ["flat"]
    assert np.isfinite(found.matrix).all()
    assert not found.matrix[-1].any()
    assert not found.matrix[:, -1].any()
    np.testing.assert_allclose(found.matrix[:-1, :-1], good, atol=1e-12)


def test_rounding_of_a_constant_layer_is_no_structure():
    noise = np.random.default_rng(0).normal(size=(N, 3)) * 1e-5 + 1000.0
    given = {"a": layers()["a"], "noise": noise.astype(np.float32)}
    for options in ({}, {"estimator": "biased"}, {"estimator": "minibatch", "kernel": "rbf"}):
        with pytest.warns(Notice, match="^noise"):
            assert cka_of_features(given, **options).matrix[0, 1] == 0


def test_a_model_is_read_in_batches_and_gives_what_its_features_give():
    torch.manual_seed(0)
    model = ch.build("resnet", classes=3, stem="small", width=4, depths=(1, 1)).eval()
    images, progress = torch.randn(21, 3, 8, 8), []
    found = cka(model, data=images, rows=5, done=lambda n, total: progress.append((n, total)))
    whole = {name: features(model, images, name) for name in found.rows}
    np.testing.assert_allclose(found.matrix, cka_of_features(whole).matrix, atol=1e-5)
    assert found.rows == ["stem", "stages.0.0", "stages.1.0"]
    assert sum(n for n, _ in progress) == 21
    assert {total for _, total in progress} == {21}


def test_two_models_of_different_widths_and_each_within_itself():
    torch.manual_seed(0)
    vit = ch.build("vit", classes=3, size=8, patch=4, width=12, depth=2, heads=2).eval()
    resnet = ch.build("resnet", classes=3, stem="small", width=4, depths=(1, 1)).eval()
    images = torch.randn(20, 3, 8, 8)
    found = cka(vit, resnet, data=images, features=("cls", "mean"))
    assert (found.rows, found.columns) == (["blocks.0", "blocks.1"], ["stem", "stages.0.0", "stages.1.0"])
    assert found.matrix.shape == (2, 3)
    np.testing.assert_allclose(found.within[0], cka(vit, data=images, features="cls").matrix, atol=1e-9)
    np.testing.assert_allclose(found.within[1], cka(resnet, data=images).matrix, atol=1e-9)
    first, second = (features(m, images, n, pool=p) for m, n, p in ((vit, "blocks.1", "cls"), (resnet, "stem", "mean")))
    np.testing.assert_allclose(found.matrix[1, 0], cka_of_features({"": first}, {"": second}).matrix[0, 0], atol=1e-5)
    assert found.to_dict()["titles"] == ["ViT", "ResNet"]
    same = cka(vit, vit, data=images)
    np.testing.assert_allclose(same.matrix, same.within[0], atol=1e-12)


def test_checkpoints_are_compared_by_their_folders(tmp_path):
    torch.manual_seed(0)
    model = ch.build("deep", width=6, depth=2)
    folders = []
    for step in range(2):
        folders.append(ch.save(model, tmp_path / f"step-{step}"))
        for p in model.parameters():
            p.data += 0.3 * torch.randn_like(p)
    found = cka(folders, data=torch.randn(30, 6), layers="stack.layers.*")
    assert [name.partition(":")[0] for name in found.rows[:: len(found.rows) // 2]] == ["step-0", "step-1"]
    half = len(found.rows) // 2
    assert 0 < found.matrix[half - 1, -1] < 0.9999


@pytest.mark.parametrize("family", ["gpt", "bert", "transformer", "rnn-seq2seq", "convnext", "mobilenet"])
def test_every_family_has_layers_of_its_own(family):
    torch.manual_seed(0)
    small = {"convnext": {"depths": (1, 1), "width": 8}, "mobilenet": {"hidden": 16}}
    text = {"vocab": 11, "context": 16, "width": 8, "depth": 2}
    options = small.get(family, text | ({"hidden": 8} if family == "rnn-seq2seq" else {"heads": 2}))
    model = ch.build(family, **options).eval()
    given = model.example_inputs(9, 16, torch.Generator().manual_seed(0))
    found = cka(model, data=given)
    assert len(found.rows) >= 2
    assert np.isfinite(found.matrix).all()
    np.testing.assert_allclose(np.diag(found.matrix), 1, atol=1e-9)


def test_padding_does_not_change_the_features_of_a_text():
    bundle = ch.load("cloze", device="cpu")
    texts = ["A dog.", "A small dog runs over the green field.", "Two men."]
    together, alone = features(bundle, texts, "blocks.2"), [features(bundle, [text], "blocks.2")[0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    pairs = [("A dog runs.", "Ein Hund rennt."), "A man walks in the street."]
    rnn = ch.load("en-de-rnn", device="cpu")
    for layer in ("encoder.blocks.0", "decoder.blocks.0"):
        alone = [features(rnn, [pair], layer)[0] for pair in pairs]
        np.testing.assert_allclose(features(rnn, pairs, layer), alone, atol=1e-5)


def test_a_model_of_transformers_and_one_of_torch_nn():
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    vit = ViTModel(ViTConfig(image_size=8, patch_size=4, **sizes)).eval()
    encoder = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    images = torch.randn(10, 3, 8, 8)
    found = cka(vit, data=images)
    assert len(found.rows) == 3
    with torch.no_grad(), ch.watch(vit, found.rows[1]) as tape:
        vit(images)
    out = tape[found.rows[1]]
    out = out[0] if isinstance(out, tuple) else out
    np.testing.assert_allclose(
        features(vit, images, found.rows[1]), out[:, 1:].mean(1), atol=1e-6
    )  # not the class token
    assert cka(encoder, data=torch.randn(12, 6)).rows == ["0", "1"]


def test_flat_features_work_by_minibatches():
    torch.manual_seed(0)
    resnet = ch.build("resnet", classes=3, stem="small", width=4, depths=(1, 1)).eval()
    images = torch.randn(8, 3, 8, 8)
    found = cka(resnet, data=images, features="flat", estimator="minibatch", rows=8)
    flat = [gram(features(resnet, images, name, pool="flat").astype(float)) for name in found.rows]
    np.testing.assert_allclose(found.matrix, reference(flat, debiased), atol=1e-5)

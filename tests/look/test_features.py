"""Projections, neighbours, words, and weights and activations as pictures."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA

import clearhead as ch
from clearhead.errors import Notice
from clearhead.look import (
    cka_of_features,
    feature_maps,
    features,
    filters,
    neighbours,
    patch_colours,
    position_similarity,
    project,
    word_neighbours,
)


def test_iris_is_that_of_scikit_learn():
    values, species, names = ch.data.read_iris()
    theirs = load_iris()
    np.testing.assert_array_equal(values, theirs.data)
    assert species == [theirs.target_names[i] for i in theirs.target]
    assert [f"{name} (cm)" for name in names] == theirs.feature_names


@pytest.mark.parametrize("shape", [(150, 4), (9, 40)])
def test_pca_is_that_of_scikit_learn_up_to_sign(shape):
    x = ch.data.read_iris()[0] if shape == (150, 4) else np.random.default_rng(0).normal(size=shape)
    found, theirs = project(x, dims=3), PCA(3).fit(x)
    np.testing.assert_allclose(found.explained, theirs.explained_variance_ratio_, rtol=1e-9)
    signs = np.sign((found.components * theirs.components_).sum(1))
    np.testing.assert_allclose(found.components * signs[:, None], theirs.components_, atol=1e-9)
    np.testing.assert_allclose(found.points * signs, theirs.transform(x), atol=1e-9)


def test_tsne_keeps_the_species_of_iris_together():
    values, species, _ = ch.data.read_iris()
    result = project(values, "tsne", labels=species)
    distances = np.linalg.norm(result.points[:, None] - result.points[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    same = np.array(species)[distances.argmin(1)] == np.array(species)
    assert same.mean() > 0.93
    np.testing.assert_array_equal(result.points, project(values, "tsne").points)
    assert len(result.figure().legends[0].get_texts()) == 3


def test_tsne_without_scikit_learn_says_what_is_missing():
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['sklearn.manifold'] = None\n"
        "import clearhead as ch, numpy as np\n"
        "x = np.random.default_rng(0).normal(size=(9, 3)); ch.look.project(x)\n"
        "try: ch.look.project(x, 'tsne')\n"
        "except ch.errors.MissingPackageError as problem: print(problem)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "t-SNE needs scikit-learn: pip install scikit-learn; 'pca' needs nothing"


def test_features_of_heads_are_their_vectors_side_by_side():
    torch.manual_seed(0)
    gpt = ch.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2).eval()
    ids = torch.randint(5, (3, 6))
    with torch.no_grad(), ch.watch(gpt, "blocks.0.attn.heads") as tape:
        gpt(ids)
    heads = tape["blocks.0.attn.heads"]
    expected = torch.cat([heads[:, 0], heads[:, 1]], dim=-1)
    np.testing.assert_allclose(features(gpt, ids, "blocks.0.attn.heads"), expected.mean(1), atol=1e-6)
    np.testing.assert_allclose(features(gpt, ids, "blocks.0.attn.heads", pool="last"), expected[:, -1], atol=1e-6)


def test_neighbours_are_those_of_the_cosine():
    random = np.random.default_rng(0)
    x, query = random.normal(size=(20, 5)), random.normal(size=(3, 5))
    cosine = query @ x.T / np.linalg.norm(x, axis=1) / np.linalg.norm(query, axis=1)[:, None]
    for row, found in zip(cosine, neighbours(x, query, top=4), strict=True):
        assert [int(name) for name, _ in found] == np.argsort(-row)[:4].tolist()
        np.testing.assert_allclose([value for _, value in found], np.sort(row)[::-1][:4])


def test_a_vector_that_is_not_finite_is_nobodys_neighbour():
    x = np.random.default_rng(0).normal(size=(20, 5))
    whole = neighbours(np.delete(x, 7, 0), x[3], top=30, names=[*range(7), *range(8, 20)])
    for bad in (np.nan, np.inf):
        x[7, 3] = bad
        with pytest.warns(Notice, match="1 of 20 vectors are not finite and are left out: 7"):
            assert neighbours(x, x[3], top=30) == whole


@pytest.mark.parametrize("scale", [1e-300, 1e-14, 1.0, 1e200, 1e300])
def test_angles_variances_and_cka_do_not_depend_on_the_scale(scale):
    x = np.random.default_rng(0).normal(size=(9, 3))
    row = neighbours(x * scale, x[2], top=9)[0]
    expected = neighbours(x, x[2], top=9)[0]
    assert [name for name, _ in row] == [name for name, _ in expected]
    np.testing.assert_allclose([cosine for _, cosine in row], [cosine for _, cosine in expected], rtol=1e-12)
    np.testing.assert_allclose(project(x * scale).explained, project(x).explained, rtol=1e-10)
    similarity = cka_of_features({"x": x * scale, "y": x[:, :2]}).matrix
    np.testing.assert_allclose(similarity, cka_of_features({"x": x, "y": x[:, :2]}).matrix, rtol=1e-8)


@pytest.mark.parametrize("form", ["bfloat16", "gradient", "strides", "big-endian", "rows", "list"])
def test_vectors_in_any_form_are_read_alike(form):
    x = torch.randint(-8, 9, (9, 3), generator=torch.Generator().manual_seed(0)).double()
    given = {
        "bfloat16": lambda: x.bfloat16(), "gradient": lambda: x.clone().requires_grad_(),
        "strides": lambda: x.numpy()[:, ::-1].copy()[:, ::-1], "big-endian": lambda: x.numpy().astype(">f4"),
        "rows": lambda: [row.float().requires_grad_() for row in x], "list": lambda: x.int().tolist(),
    }[form]()  # fmt: skip
    assert neighbours(given, given[2]) == neighbours(x, x[2])
    np.testing.assert_array_equal(project(given).points, project(x).points)
    np.testing.assert_allclose(cka_of_features({"a": given, "b": x}).matrix, 1.0)


def test_a_broken_or_cancelled_word_is_said():
    words = ch.tokens.Words(["king", "queen", "man"])
    gpt = ch.build("gpt", vocab=len(words), context=8, width=4, depth=1, heads=2)
    bundle = ch.Bundle(gpt, words)
    gpt.embed.table.data[int(words.encode("queen")[0]), 1] = np.nan
    with pytest.warns(Notice, match="1 of .* embeddings are not finite"):
        assert [word for word, _ in word_neighbours(bundle, "king")] == ["man"]


def test_sums_of_words_are_those_of_their_vectors():
    words = ch.tokens.Words(["king", "queen", "man", "woman", "apple"])
    gpt = ch.build("gpt", vocab=len(words), context=8, width=4, depth=1, heads=2)
    bundle = ch.Bundle(gpt, words)
    vectors = {"king": [1, 0, 1, 0], "queen": [0, 1, 1, 0], "man": [1, 0, 0, 0], "woman": [0, 1, 0, 0]}
    for word, vector in vectors.items():
        gpt.embed.table.data[int(words.encode(word)[0])] = torch.tensor(vector, dtype=torch.float)
    # The directions of king, man and woman: (1,0,1)/sqrt 2 - (1,0,0) + (0,1,0); its cosine with (0,1,1)/sqrt 2.
    query = np.array([1, 0, 1]) / 2**0.5 - [1, 0, 0] + [0, 1, 0]
    expected = query @ [0, 1, 1] / 2**0.5 / np.linalg.norm(query)
    (first, cosine), *_ = word_neighbours(bundle, "king - man + woman")
    assert (first, cosine) == ("queen", pytest.approx(expected, abs=1e-6))


def test_words_of_models_that_ship():
    assert word_neighbours(ch.load("everyday", device="cpu"), "man - boy + girl", top=1)[0][0] == "woman"
    german = word_neighbours(ch.load("en-de", device="cpu"), "Hund", side="target", top=3)
    assert "Hunde" in [word for word, _ in german]
    # " ing" is no token, and "ing" a piece of words: neither is an answer.
    everyday = ch.load("everyday", device="cpu")
    answers = [word for word, _ in word_neighbours(everyday, "man", top=len(everyday.tokens))]
    assert "woman" in answers
    assert "ing" not in answers


def test_patches_of_equal_features_have_equal_colours_in_all_images():
    torch.manual_seed(0)
    vit = ch.build("vit", classes=3, size=16, patch=4, width=12, depth=1, heads=2, positions="none").eval()
    with torch.no_grad():
        vit.blocks[0].attn.out.weight.zero_()  # each patch keeps what it is
    colours = torch.rand(3, 3, 1, 1)
    images = torch.zeros(2, 3, 16, 16)
    images[0, :, 4:12, 4:12] = colours[0]
    images[0, :, 4:8, 4:8] = colours[1]
    images[1, :, 8:12, 4:8] = colours[0]
    images[1, :, 4:8, 8:12] = colours[2]
    result = patch_colours(vit, images)
    np.testing.assert_allclose(result.pictures[0][2, 2], result.pictures[1][2, 1], atol=1e-6)
    assert np.abs(result.pictures[0][2, 2] - result.pictures[0][0, 0]).max() > 0.1
    front = patch_colours(vit, images, foreground=0.1)
    expected = np.zeros((4, 4), bool)
    expected[1:3, 1:3] = True
    assert front.foreground[0].tolist() == expected.tolist()
    assert not front.pictures[0][0].any()


def test_colours_of_a_bundle_stand_below_its_images():
    bundle = ch.load("resnet-cifar10", device="cpu")
    images = [Image.fromarray(np.random.default_rng(i).integers(0, 255, (40, 30, 3), np.uint8)) for i in range(2)]
    result = patch_colours(bundle, images, "stages.1.0")
    assert result.images[0].shape == (32, 32, 3)
    titles = [axes.get_title() for axes in result.figure().axes]
    assert titles == ["image 0", "image 1", "patches 0", "patches 1"]


def test_filters_are_the_weights_of_the_first_convolution():
    resnet = ch.load("resnet-cifar10", device="cpu")
    grid, weight = filters(resnet), resnet.model.stem.first.conv.weight.detach()
    scaled = 2 * grid.pictures - 1
    np.testing.assert_allclose(np.abs(scaled).max((1, 2, 3)), 1, atol=1e-6)
    np.testing.assert_allclose(scaled[3] * float(weight[3].abs().max()), weight[3].permute(1, 2, 0), atol=1e-6)
    assert grid.title == "stem.first.conv"


def test_feature_maps_are_the_activations():
    torch.manual_seed(0)
    vit = ch.build("vit", classes=3, size=(8, 12), patch=4, width=6, depth=1, heads=2).eval()
    image = torch.randn(1, 3, 8, 12)
    grid = feature_maps(vit, image, "blocks.0", channels=[4, 1])
    with torch.no_grad(), ch.watch(vit, "blocks.0") as tape:
        vit(image)
    np.testing.assert_allclose(grid.pictures, tape["blocks.0"][0, 1:].T[[4, 1]].view(2, 2, 3), atol=1e-6)
    varied = feature_maps(vit, image, "blocks.0").pictures.std((1, 2))
    assert (np.diff(varied) <= 0).all()


@pytest.mark.parametrize("positions", ["learned", "sincos2d"])
def test_positions_of_patches(positions):
    vit = ch.build("vit", classes=3, size=(8, 12), patch=4, width=8, depth=1, heads=2, positions=positions)
    result = position_similarity(vit)
    assert result.grid == (2, 3)
    np.testing.assert_allclose(np.diag(result.matrix), 1)
    if positions == "learned":
        a, b = vit.embed.places.detach().double()[[1, 4]]
        assert result.matrix[1, 4] == pytest.approx(float(a @ b / a.norm() / b.norm()))
    drawn = result.figure().axes[0].get_images()[0].get_array()
    assert drawn.shape == (2 * 3 - 1, 3 * 4 - 1)
    np.testing.assert_allclose(drawn[3:5, 4:7], result.matrix[4].reshape(2, 3))  # of the cell in row 1, column 1


def test_positions_of_texts_and_of_transformers():
    from transformers import ViTConfig, ViTModel

    assert position_similarity(ch.load("cloze", device="cpu")).grid is None
    waves = position_similarity(ch.load("en-de", device="cpu")).matrix
    np.testing.assert_allclose(waves[3, 5], waves[10, 12], atol=1e-6)  # a sinusoid knows distances only
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    assert position_similarity(ViTModel(ViTConfig(image_size=12, patch_size=4, **sizes))).grid == (3, 3)

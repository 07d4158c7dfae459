"""What is refused of maps, features and fields, and the message that says what fits instead: a row per case."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.errors import InputError, InputIndexError, InputKeyError
from clearhead.look import (
    cka,
    cka_of_features,
    cls_maps,
    feature_maps,
    features,
    filters,
    neighbours,
    patch_colours,
    position_similarity,
    project,
    receptive_fields,
    saliency,
    word_neighbours,
)
from clearhead.look.representation.cka import MOST_BYTES


def images(n=1, size=8):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))


@cache
def vit(**options):
    sizes = {"classes": 3, "size": 8, "patch": 4, "width": 8, "depth": 3, "heads": 2}
    return ch.build("vit", **sizes, **options).eval()


@cache
def resnet(**options):
    return ch.build("resnet", classes=3, stem="small", width=4, depths=(1,), **options).eval()


@cache
def gpt():
    return ch.build("gpt", vocab=5, context=8, width=8, depth=2, heads=2).eval()


@cache
def pooled():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


@cache
def shipped(name):
    return ch.load(name, device="cpu")


@cache
def words():
    tokens = ch.tokens.Words(["king", "queen", "man"])
    return ch.Bundle(ch.build("gpt", vocab=len(tokens), context=8, width=4, depth=1, heads=2), tokens)


def wide():
    return np.zeros((2, int((MOST_BYTES / 8) ** 0.5) + 1), np.float32)


X, NAN = np.random.default_rng(0).normal(size=(20, 5)), np.full((5, 3), np.nan)
SHORT, LONG, IDS = "A dog.", "A dog runs over a field.", torch.zeros(3, 6, dtype=torch.long)

# A call, its error, and what the message says.
REFUSED = [
    # cka
    (lambda: cka(vit(pool="mean"), data=images(6), features="cls"), InputError,
     "'blocks.0' has no class token: expected features='mean' or 'flat'"),
    (lambda: cka(resnet(), data=images(6), features="cls"), InputError, "has no class token"),
    (lambda: cka(vit(), resnet(), data=images(6), layers="blocks.*"), InputKeyError,
     r"no layer 'blocks.\*' in this ResNet.*its blocks are stem, stages"),
    (lambda: cka(vit(), data=images(6), kernel="rbf"), InputError, "expected estimator='minibatch'"),
    (lambda: cka(vit(), data=images(6), estimator="exact"), InputError, "an estimator of biased, debiased, minibatch"),
    (lambda: cka(vit(), data=images(3)), InputError, "4 inputs or more, and there are 3"),
    (lambda: cka(vit(), data=["cat.png"]), InputError, "reads tensors"),
    (lambda: cka(vit(), data=images(6)[:0]), InputError, "there is no data"),
    (lambda: cka_of_features({"wide": wide()}), InputError,
     "expected fewer layers, features='mean' or 'cls', or estimator='minibatch'"),
    (lambda: cka(shipped("cloze"), data=[SHORT, LONG], features="flat"), InputError,
     "different lengths have no flat features"),
    # features, project, neighbours and words
    (lambda: features(gpt(), IDS, "blocks.*"), InputError, "matches 2 layers: expected one"),
    (lambda: project([[1.0, 2.0]]), InputError, r"expected finite numbers \(n, d\)"),
    (lambda: project(NAN), InputError, r"expected finite numbers \(n, d\)"),
    (lambda: project(np.zeros(4)), InputError, r"expected finite numbers \(n, d\)"),
    (lambda: project(np.eye(5), "t-sne"), InputError, "expected one of pca, tsne; the nearest is tsne"),
    (lambda: project(np.eye(5), labels=["a", "b"]), InputError, "labels has 2 entries: expected 5"),
    (lambda: neighbours(X, NAN[0].repeat(2)[:5]), InputError, "query 0 is zero, or not finite"),
    (lambda: neighbours(X, np.zeros(5)), InputError, "query 0 is zero, or not finite"),
    (lambda: neighbours(NAN, X[0, :3]), InputError, "none of the 5 vectors is finite"),
    (lambda: word_neighbours(words(), "king - king"), InputError, "'king - king' is the vector 0"),
    (lambda: word_neighbours(words(), "emperor"), InputKeyError, "'emperor' is not in the vocabulary"),
    (lambda: word_neighbours(words(), "kings"), InputKeyError, "'kings' is not in the vocabulary.*nearest is king"),
    (lambda: word_neighbours(shipped("everyday"), "king - man + woman"), InputKeyError,
     "'king' is not a token of this model, which splits it into ' k' . 'ing': expected words .* nearest"),
    (lambda: word_neighbours(words(), "king man"), InputError, "expected"),
    (lambda: word_neighbours(words(), "king -"), InputError, "expected"),
    (lambda: word_neighbours(words(), ""), InputError, "expected"),
    (lambda: word_neighbours(shipped("resnet-cifar10"), "king"), InputError, "expected a model that reads text"),
    # pictures
    (lambda: patch_colours(shipped("resnet-cifar10"), [np.zeros((40, 30, 3), np.uint8)] * 2, "head"), InputError,
     r"'head' gave a tensor \(1, 10\), which has no grid.*such as stem"),
    (lambda: filters(shipped("resnet-cifar10"), "stages.0.0.layers.0.conv"), InputError,
     "read 1 or 3 channels; expected one of stem.first.conv"),
    (lambda: filters(shipped("everyday")), InputError, "this model has none"),
    (lambda: feature_maps(vit(), images(), "blocks.0", channels=[8]), InputError, "'blocks.0' has 8, counted from 0"),
    (lambda: position_similarity(shipped("everyday")), InputError,
     "not vectors: expected learned or sinusoidal"),
    # receptive fields
    (lambda: receptive_fields(shipped("everyday"), [SHORT]), InputError,
     "this GPT reads tokens: receptive fields are of images"),
    (lambda: receptive_fields(resnet(), images(), "stages.0.0", unit="cls"), InputError,
     "'stages.0.0' has no class token"),
    (lambda: receptive_fields(resnet(), images(), "stages.0.0", unit=(8, 0)), InputIndexError,
     "the grid of 'stages.0.0' has 8 x 8 cells"),
    (lambda: receptive_fields(resnet(), images(), "stages.0.0", channel=4), InputIndexError,
     "channel=4: the unit has 4"),
    # maps of the class token
    (lambda: cls_maps(vit(pool="mean"), images()), InputError,
     "no class token: its answer is the mean .* fit: saliency, .*rollout"),
    (lambda: cls_maps(vit(pool="mean", registers=2), images()), InputError, "no class token"),
    (lambda: cls_maps(vit(pool="attention"), images()), InputError,
     r"no class token: a learned query pools \(pool.weights\)"),
    (lambda: cls_maps(resnet(), images()), InputError,
     "no attention over patches; views that fit: saliency by gradient, .*grad-cam"),
    (lambda: cls_maps(resnet(attention=(0,)), images()), InputError,
     "this ResNet has no class token; views that fit: saliency"),
    (lambda: cls_maps(pooled(), images()), InputError, "no attention over patches"),
    (lambda: cls_maps(vit(), images(), layer=3), InputIndexError, "layer 3: there are 3, counted from 0"),
    (lambda: cls_maps(vit(), images(), layer="blocks.7.attn"), InputKeyError, "no address 'blocks.7.attn.weights'"),
    (lambda: cls_maps(shipped("everyday"), LONG), InputError, "reads text: cls_maps is for images"),
    # rollout
    (lambda: saliency(shipped("en-de-rnn"), (SHORT, "Ein"), method="rollout"), InputError,
     "no self-attention was seen in this RNNSeq2Seq: .* occlusion do"),
    (lambda: saliency(shipped("en-de"), (LONG, "Ein"), method="rollout"), InputError,
     "not layers of one stack|reads several texts"),
    (lambda: saliency(pooled(), images()[0], method="rollout"), InputError,
     "no self-attention was seen in this Sequential"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message[:40] for _, _, message in REFUSED])
def test_what_does_not_fit_is_refused_with_what_does(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_is_not_a_table_of_real_numbers_is_refused():
    for bad in ([["a", "b"]], [[1.0], [1.0, 2.0]], np.full((3, 3), 1j), torch.full((3, 3), 1j)):
        for use in (project, lambda x: neighbours(x, [1.0]), lambda x: cka_of_features({"a": x})):
            with pytest.raises(InputError, match="numbers"):
                use(bad)


def test_masked_entries_are_refused():
    masked = np.ma.masked_greater(X, 0.5)
    for bad in (masked, list(masked)):
        for use in (project, lambda y: neighbours(y, X[0]), lambda y: cka_of_features({"a": y, "b": X})):
            with pytest.raises(InputError, match="masked entries: expected a number for each"):
                use(bad)
    with pytest.raises(InputError, match="masked entries"):
        neighbours(X, masked[X.argmax() // 5])
    np.testing.assert_array_equal(project(np.ma.array(X)).points, project(X).points)

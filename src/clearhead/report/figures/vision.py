"""Figures of vision transformers, convolutional networks and captioners."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ... import draw
from ...look import (
    SALIENCY_METHODS,
    cka,
    cls_maps,
    feature_maps,
    filters,
    patch_colours,
    perturbation_curves,
    receptive_fields,
    saliency,
)
from ..compare.inputs import Inputs
from ..compare.sections import Pair, distance
from ..example_inputs import example_crops
from ..views.image_attention import caption_attention
from .registry import figure_of, model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAST = {"smoothgrad": {"samples": 8}, "occlusion": {"patch": 8, "stride": 8}}  # options


@figure_of(
    "cls-map",
    "Caron et al. 2021 (DINO), Fig. 1: the heads of the last layer divide the image among them.",
)
def cls_map() -> Figure:
    """What the class token attends to, one colour per head."""
    return cls_maps(model("vit-imagenette"), "golf-ball").figure()


@figure_of(
    "attention-distance",
    "Dosovitskiy et al. 2021, Fig. 11: early layers mix local and global heads.",
)
def attention_distance() -> Figure:
    """Attention distance of a vision transformer by depth."""
    vit = model("vit-cifar10")
    images = Inputs(name="images that ship", items=example_crops()[::24])
    return distance(Pair(models={"ViT": vit}, inputs=images, images=True)).figures[
        "attention distance"
    ]


@figure_of(
    "cka",
    "Raghu et al. 2021: layers of a ViT are more alike than those of a ResNet, which come in blocks.",
)
def similarity() -> Figure:
    """CKA of every layer of a ViT with every layer of a ResNet."""
    found = cka(
        {"ViT": model("vit-cifar10")},
        {"ResNet": model("resnet-cifar10")},
        data=example_crops()[::3],
    )
    return found.figure()


@figure_of(
    "receptive-fields",
    "Luo et al. 2016; Raghu et al. 2021: a ViT sees the whole image at once, a CNN slowly.",
)
def fields() -> Figure:
    """Receptive fields of a ViT and a ResNet by depth."""
    images = example_crops()[::24]
    vit, resnet = (
        receptive_fields(model(name), images, theoretical=False)
        for name in ("vit-cifar10", "resnet-cifar10")
    )
    return vit.figure(resnet)


@figure_of(
    "saliency",
    "Simonyan et al. 2014; Smilkov et al. 2017; Sundararajan et al. 2017; Selvaraju et al. 2017.",
)
def every_saliency() -> Figure:
    """Saliency of one image by all methods that fit a convolutional network."""
    resnet, image = model("resnet-cifar10"), "cat"
    names = [name for name in SALIENCY_METHODS if "rollout" not in name]
    found = {name: saliency(resnet, image, method=name, **FAST.get(name, {})) for name in names}  # type: ignore[arg-type]
    seen = next(iter(found.values()))
    assert seen.picture is not None
    sizes = {SALIENCY_METHODS[name].name: np.abs(one.values.numpy()) for name, one in found.items()}
    # a few pixels would hide the rest
    maps = {name: np.minimum(x, np.percentile(x, 98)) for name, x in sizes.items()}
    return draw.images(
        {"image": seen.picture, **dict.fromkeys(maps, seen.picture)},
        maps=maps,
        title=f"Saliency for the answer {seen.target}: bright pixels are important",
    )


@figure_of(
    "perturbation",
    "Petsiuk et al. 2018: a good map names the pixels whose removal changes the answer.",
)
def perturbation() -> Figure:
    """Deletion and insertion curves of several saliency methods."""
    resnet, image = model("resnet-cifar10"), "cat"
    methods = ("gradient", "grad-cam", "integrated")
    maps = {name: saliency(resnet, image, method=name, **FAST.get(name, {})) for name in methods}  # type: ignore[arg-type]
    return perturbation_curves(resnet, image, maps, steps=8).figure()


@figure_of("filters", "Krizhevsky et al. 2012, Fig. 3: first filters become edges and colours.")
def first_filters() -> Figure:
    """Filters of the first convolution of a ResNet."""
    return filters(model("resnet-cifar10")).figure()


@figure_of(
    "feature-maps",
    "Zeiler and Fergus 2014: early maps are detailed, and keep the shape of the image.",
)
def first_features() -> Figure:
    """Feature maps of an early layer of a ResNet."""
    return feature_maps(model("resnet-cifar10"), "cat", "stages.0.0", most=16).figure()


@figure_of(
    "patch-colours",
    "Oquab et al. 2024 (DINOv2), Fig. 1: principal components of patches as colours.",
)
def colours() -> Figure:
    """Patches of images in the colours of their features."""
    images = ["golf-ball", "church", "parachute"]
    return patch_colours(model("vit-imagenette"), images).figure()


@figure_of("caption", "Xu et al. 2015, Fig. 3: where a captioner looks for each word.")
def words_of_a_caption() -> Figure:
    """Where a captioner looks for each word of its caption."""
    return caption_attention(
        model("captioner"), "photographer", text="a man with a camera"
    ).figure()

"""figure: figures of the lectures and papers by name, drawn with the models that ship.

To add one, write a function without arguments that returns a matplotlib Figure, whose docstring begins with one line of
what it shows, and decorate it with `figure_of`, its name and its source.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import draw
from ..atomic_files import atomic_write
from ..data import read_iris
from ..errors import InputError
from ..layers import Sinusoid
from ..look import (
    SALIENCY_METHODS,
    attention,
    attention_view,
    cka,
    cka_of_features,
    cls_maps,
    feature_maps,
    features,
    filters,
    head_effects,
    logit_lens,
    patch_colours,
    patching,
    perturbation_curves,
    position_similarity,
    project,
    receptive_fields,
    saliency,
    word_neighbours,
)
from ..training.optim.schedule import SHAPES, ScheduleConfig, lr_share
from ..weights import Bundle, load
from .compare.inputs import SharedInputs
from .compare.pair import ModelPair
from .compare.sections import distance
from .example_inputs import TEXTS, example_crops
from .registry import FIGURES as FIGURES
from .registry import figure_of, find_figure
from .result_files import page, picture
from .views.attention import caption_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(name: str) -> Figure:
    """Draw a figure of the lectures or papers with the models that ship; nothing is downloaded.

    Args:
        name: A figure: a key of clearhead.report.figures.FIGURES, which `clearhead figure` lists.

    Raises:
        InputError: If there is no such figure; the message names all.

    Examples:
        >>> drawn = figure("iris")
        >>> drawn.axes[0].get_xlabel()
        'PCA 1 (92% of the variance)'
    """
    return find_figure(name).run()


def draw_figure(name: str, out: Path, *, done: Callable[[int, int], None] | None = None) -> Path:
    """Draw a figure into a file, by the ending of its name; a page of HTML also has its source."""
    chosen = find_figure(name)
    # Refused before the figure is drawn, which may take a minute.
    if out.suffix.lower() not in (".png", ".svg", ".pdf", ".html") or out.is_dir():
        raise InputError(
            f"{out}: expected the name of a file that ends in .png, .svg, .pdf or .html"
        )
    drawn: Any = chosen.run()
    # A figure reports no steps in between.
    if done is not None:
        done(1, 1)
    if out.suffix.lower() != ".html":
        return draw.save(drawn, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    words = f'<p class="quiet">{html.escape(chosen.source)}</p>'
    atomic_write(out, page(chosen.help, picture(drawn, chosen.help) + words).encode())
    return out


@cache
def model(name: str) -> Bundle:
    """A model that ships, on the CPU; each is loaded once."""
    return load(name, device="cpu")


# Figures of one idea, without a trained model


@figure_of(
    "schedule", "Vaswani et al. 2017, Eq. 3; Loshchilov and Hutter 2017: warm-up, then decay."
)
def schedule() -> Figure:
    """Learning-rate schedules: a linear warm-up, then one of several decays."""
    steps = np.arange(1000)
    lines = {
        shape: (
            steps,
            np.array(
                [lr_share(ScheduleConfig(shape=shape, warmup=100), int(i), 1000) for i in steps]
            ),
        )
        for shape in SHAPES
    }
    return draw.curves(
        lines, xlabel="step", ylabel="share of the peak", title="Learning rate", zero=True
    )


@figure_of("sinusoids", "Vaswani et al. 2017, section 3.5: sines and cosines of falling frequency.")
def sinusoids() -> Figure:
    """Sinusoidal position embeddings: a row per position, a column per dimension."""
    vectors = Sinusoid(64).vectors(torch.arange(64)).float().numpy()
    return draw.matrix(
        vectors, xlabel="dimension", ylabel="position", title="Sinusoidal positions", most=1.0
    )


@figure_of("positions", "Dosovitskiy et al. 2021, Fig. 7: near positions have similar embeddings.")
def positions() -> Figure:
    """Similarity of the position embeddings of an encoder."""
    return position_similarity(model("cloze")).figure()


@figure_of(
    "iris", "Fisher 1936: four lengths of 150 flowers, whose species a projection separates."
)
def iris() -> Figure:
    """Principal components of the Iris flowers."""
    values, species, _ = read_iris()
    return project(values, labels=species).figure(title="Iris")


@figure_of(
    "rotation", "Kornblith et al. 2019: CKA does not change if features are rotated or scaled."
)
def rotation() -> Figure:
    """Two representations that are effectively the same: one is the other, rotated."""
    x, later = (
        np.asarray(features(model("everyday"), list(TEXTS), f"blocks.{i}"), dtype=float)
        for i in (2, 4)
    )
    # The Q of the QR decomposition of a random matrix is a random orthogonal matrix.
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.normal(size=(x.shape[1], x.shape[1])))[0]
    every = {
        "layer 2": x,
        # CKA with a linear kernel is invariant to rotation and to the factor 3.
        "rotated": 3 * x @ turn,
        "layer 4": later,
        "noise": random.normal(size=x.shape),
    }
    return cka_of_features(every).figure(title="CKA: rotated features are effectively the same")


# Figures of translators and language models

SENTENCE = "She told me that she was happy."


@figure_of("translation", "Vaswani et al. 2017: cross-attention of an encoder-decoder Transformer.")
def translation() -> Figure:
    """Cross-attention of a translation: which source word each target word reads."""
    found = attention(
        model("fr-en"), "Je ne sais pas où il habite.", target="I don't know where he lives."
    )
    return found.figure(layer=-1)


@figure_of(
    "alignment",
    "Bahdanau et al. 2015, Fig. 3: the alignment that a recurrent translator learns by itself.",
)
def alignment() -> Figure:
    """Alignment of a recurrent translator with attention."""
    found = attention(
        model("en-de-rnn"),
        "A dog runs across the street.",
        target="Ein Hund rennt über die Straße.",
    )
    return found.figure(layer=0)


@figure_of("heads", "Vaswani et al. 2017, appendix: heads of one layer attend to different things.")
def heads() -> Figure:
    """All heads of one layer of a language model."""
    return attention(model("everyday"), SENTENCE).heads_figure(layer=2)


@figure_of("sinks", "Xiao et al. 2023: weights that have nowhere to go stay on one token.")
def sinks() -> Figure:
    """One layer of attention as it is, and without its sinks."""
    # "without-sink" gives no weight to tokens that are sinks, and scales each row to sum to 1
    # again.
    found = attention(model("everyday"), SENTENCE)
    views = {view: attention_view(found.maps["self"][3], view) for view in ("raw", "without-sink")}
    # (1, h, q, k) -> (q, k): the mean over heads.
    maps = {name: one.weights[0].mean(0).numpy() for name, one in views.items()}
    return draw.grids(
        maps, rows=found.pieces, columns=found.pieces, title="layer 3, mean over heads"
    )


@figure_of("head-importance", "Michel et al. 2019: most heads can be removed, and a few cannot.")
def head_importance() -> Figure:
    """Change of a text's probability when each head is silenced."""
    return head_effects(model("everyday"), SENTENCE).figure()


@figure_of("lens", "nostalgebraist 2020: each layer's output, read as an answer.")
def lens() -> Figure:
    """Logit lens: the likeliest next word after each layer, and how far it is from the final answer."""
    return logit_lens(model("everyday"), "A man is standing in the").figure()


@figure_of(
    "patching",
    "Meng et al. 2022, causal tracing; the exchanged word and the last token carry the difference.",
)
def patched() -> Figure:
    """Activation patching: which layer and position carry the difference between two texts."""
    # The two texts differ in one word and have the same number of tokens, which patching needs.
    both = "The children in the garden", "The child in the garden"
    return patching(model("everyday"), *both, target=(" are", " is")).figure()


@figure_of(
    "text-saliency",
    "Sundararajan et al. 2017: integrated gradients, which sum to the change of the logit.",
)
def text_saliency() -> Figure:
    """Integrated gradients of the next word of a text."""
    return saliency(model("everyday"), "A man is standing in the", target="street").figure()


@figure_of("word-arithmetic", "Mikolov et al. 2013: directions between embeddings have a meaning.")
def word_arithmetic() -> Figure:
    """Nearest words of man - boy + girl."""
    found = word_neighbours(model("everyday"), "man - boy + girl", top=6)
    names = [word for word, _ in found]
    return draw.bars(
        {"cosine": [cosine for _, cosine in found]},
        names=names,
        ylabel="cosine",
        title="man - boy + girl",
    )


# Figures of vision transformers, convolutional networks and captioners

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
    # Every 24th crop: the figure must be drawn in seconds.
    images = SharedInputs(name="images that ship", items=example_crops()[::24])
    return distance(ModelPair(models={"ViT": vit}, inputs=images, images=True)).figures[
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
    # Rollout multiplies attention maps, which a convolutional network has none of.
    names = [name for name in SALIENCY_METHODS if "rollout" not in name]
    found = {name: saliency(resnet, image, method=name, **FAST.get(name, {})) for name in names}  # type: ignore[arg-type]
    seen = next(iter(found.values()))
    assert seen.picture is not None
    sizes = {SALIENCY_METHODS[name].name: np.abs(one.values.numpy()) for name, one in found.items()}
    # Without a limit, a few pixels would hide the rest.
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

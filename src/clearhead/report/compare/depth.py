"""Sections of measures by depth: similarity of layers, attention distance, receptive fields, logit lens."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from ... import draw
from ...errors import Notice
from ...look import Fields, Similarity, cka, logit_lens, receptive_fields, watch
from ...look.capture.addresses import Tree, matching
from ...look.model_inputs import Inputs as Batches
from ...look.saliency_methods.embedded import subject
from ...look.structure import layer_lists, record_layout
from ...weights import Bundle
from ..views.registry import answers, attends, layered
from .pair import Pair, Section, UnfitError
from .questions import ONE_WORD, questions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 128  # inputs from which an estimate of CKA is called reliable
MAPS = 5  # layers whose receptive fields are drawn


def similarity(pair: Pair) -> Section:
    """CKA within each model and between both."""
    (a, one), (b, two) = pair.models.items()
    found = cka({a: one}, {b: two}, data=pair.inputs.items)
    grids = {  # rows are the layers of the first name, columns those of the second
        (a, a): (found.within[0], found.rows, found.rows),
        (b, b): (found.within[1], found.columns, found.columns),
        (a, b): (found.matrix, found.rows, found.columns),
    }
    figures: dict[str, Any] = {}
    for (first, second), (matrix, rows, columns) in grids.items():
        if first == second:
            caption = f"CKA within {first}"
        else:
            caption = f"CKA of {first} and {second}"
        figures[caption] = draw.similarity(
            matrix,
            rows=_short(rows),
            columns=_short(columns),
            ylabel=f"layer of {first}",
            xlabel=f"layer of {second}",
            title=f"{caption}, {found.inputs} inputs",
        )
    best = found.columns[int(found.matrix[-1].argmax())]
    return Section(
        figures=figures,
        numbers=found.to_dict(),
        text="CKA says how far two layers agree on which inputs are alike: 1 is full agreement, up to rotation and "
        f"scale, and 0 is none (Kornblith et al. 2019). The last layer of {a} is most similar to {best} of {b}."
        + _caution(found),
    )


def _caution(found: Similarity) -> str:
    """Sentences about too few inputs, and about values that are drawn as 0."""
    text = ""
    if found.inputs < MANY:
        text += (
            f" {found.inputs} inputs are few: the estimates vary by chance, so that only large differences count; "
            f"{MANY} or more different inputs are better."
        )
    below = int(sum((x < 0).sum() for x in (*found.within, found.matrix)))
    if below:
        lowest = min(float(x.min()) for x in (*found.within, found.matrix))
        text += f" {below} estimates are below 0, down to {lowest:.2f}, and drawn as 0."
    return text


def _short(names: list[str]) -> list[str]:
    """Layers without the name of the model before them."""
    return [name.rpartition(" ")[2] for name in names]


IMAGE_DISTANCE = (
    "The mean distance between a patch and the patches that it attends to, as a share of the image's side. In vision "
    "transformers the first layers have local and global heads side by side, and the last ones global heads only "
    "(Dosovitskiy et al. 2021, Fig. 11)."
)
TEXT_DISTANCE = "The mean distance in tokens between a token and those that it attends to, in the self-attention of {}."
# by what a model reads: where the distance is measured, if not everywhere
ATTENTION = {"pairs": "the encoder"}


def distance(pair: Pair) -> Section:
    """Mean attention distance of every head by depth."""
    models, missing = pair.fitting(attends if pair.images else _attends_to_itself)
    plots: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for name, bundle in models.items():
        heads = (_patch_distances if pair.images else _token_distances)(bundle, pair.few)
        depth, numbers[name] = np.linspace(0, 1, len(heads)), heads.tolist()
        plots[name] = {
            "farthest head": (depth, heads.max(1)),
            "mean of all heads": (depth, heads.mean(1)),
            "nearest head": (depth, heads.min(1)),
        }
    unit, title, width = (
        "share of the image's side" if pair.images else "tokens",
        "Attention distance",
        2.6,
    )
    if len(plots) == 1:
        plots, title, width = (
            {f"{title} of {name}": lines for name, lines in plots.items()},
            "",
            5.0,
        )
    plot = draw.panels(
        plots,
        xlabel="relative depth",
        ylabel=[unit, ""][: len(plots)],
        title=title,
        zero=True,
        shared=True,
        width=width,
    )
    where = ATTENTION.get(next(iter(models.values())).reads, "each layer")
    return Section(
        figures={"attention distance": plot},
        numbers=numbers,
        text=(IMAGE_DISTANCE if pair.images else TEXT_DISTANCE.format(where)) + missing,
    )


def _distances(bundle: Bundle) -> str:
    """The pattern of the distances of self-attention in a model of texts."""
    if bundle.reads == "pairs":
        return "encoder.**.distance"
    return "**.distance"


def _attends_to_itself(bundle: Bundle) -> str | None:
    """The model, or the encoder of a translator, has self-attention."""
    tree = Tree(bundle.model)
    if matching(_distances(bundle), tree.known | tree.possible):
        return None
    if bundle.reads == "pairs":
        return "its encoder has no attention"
    return "it has no attention"


@torch.no_grad()
def _patch_distances(bundle: Bundle, images: list[Any]) -> Float[np.ndarray, "l h"]:
    """The mean distance of each layer and head on the grid of patches, as a share of its side."""
    total: Any = 0
    for image in images:
        about = subject(bundle, image)
        with record_layout(about.model) as layout, watch(about.model, "**.weights") as tape:
            about.logits(about.x)
        every = []
        for name in tape:
            x, axes = tape[name], layout.places(tape[name].shape[2])
            if axes is not None and axes.grid is not None:
                distances = x.distance(grid=axes.grid, special=axes.special)[0][
                    :, axes.special :
                ].nanmean(-1)
                every.append(distances.double().cpu() / max(axes.grid))
        if not every:
            raise UnfitError(f"the attention of this {bundle.name} is not over patches")
        total = total + torch.stack(every)
    return np.asarray(total / len(images))


@torch.no_grad()
def _token_distances(bundle: Bundle, texts: list[Any]) -> Float[np.ndarray, "l h"]:
    """The mean distance of each layer and head in tokens."""
    total: Any = 0
    for text in texts:
        with watch(bundle.model, _distances(bundle)) as tape:
            for batch in Batches(bundle, [text]).batches(0, 1):
                batch.run(bundle.model)
        total = total + torch.stack([tape[name][0].mean(-1) for name in tape]).double().cpu()
    return np.asarray(total / len(texts))


def fields(pair: Pair) -> Section:
    """Effective receptive field by depth."""
    pair.need_images()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found: dict[str, Fields] = {
            name: receptive_fields(bundle, pair.few, theoretical=False)
            for name, bundle in pair.models.items()
        }
    share = {name: one.sides() / max(one.maps.shape[1:]) for name, one in found.items()}
    lines = {name: (np.linspace(0, 1, len(x)), x) for name, x in share.items()}
    figures = {
        "size by depth": draw.curves(
            lines,
            xlabel="relative depth",
            ylabel="share of the image's side",
            title="Square that holds 90 % of the gradient",
            zero=True,
        )
    }
    figures |= {f"receptive fields of {name}": _some_maps(one, name) for name, one in found.items()}
    return Section(
        figures=figures,
        numbers={name: x.tolist() for name, x in share.items()},
        text="What the centre unit of each layer depends on: the mean absolute gradient of the unit over pixels. The "
        "maps show its square root, each with a scale of its own, because a strong centre would hide a wide and faint "
        "field; the orange square holds 90 % of the gradient.",
    )


def _some_maps(found: Fields, name: str) -> Figure:
    chosen = np.unique(np.linspace(0, len(found.names) - 1, MAPS).round().astype(int)).tolist()
    return found.pictures(across=MAPS, layers=chosen, title=name)


def lens(pair: Pair) -> Section:
    """How early each model's answer is settled: divergence of each layer from the last."""
    models, missing = pair.fitting(layered, answers, _several_layers)
    numbers: dict[str, Any] = {}
    for name, bundle in models.items():
        every = [_settled(bundle, one) for one in questions(bundle, pair.few) if one is not None]
        if not every:
            raise UnfitError(ONE_WORD)
        numbers[name] = torch.stack(every).mean(0).tolist()
    lines = {name: (np.linspace(0, 1, len(x)), np.array(x)) for name, x in numbers.items()}
    plot = draw.curves(
        lines,
        xlabel="relative depth",
        ylabel="nats",
        zero=True,
        title=f"KL to the model's own answer: {' and '.join(lines)}",
    )
    return Section(
        figures={"divergence by depth": plot},
        numbers=numbers,
        text="The output of each layer is read as an answer; the curve shows how far it is from the answer of the last "
        "layer, where it is 0 by definition." + missing,
    )


def _several_layers(bundle: Bundle) -> str | None:
    """The part of the model that answers has two layers or more."""
    lists = layer_lists(bundle.model)
    depths = [
        len(layers)
        for path, layers in lists.items()
        if bundle.reads != "pairs" or path.startswith("decoder")
    ]
    if max(depths, default=0) > 1:
        return None
    return "it has no second layer before its answer"


def _settled(bundle: Bundle, given: Any) -> Float[torch.Tensor, "l"]:
    """The divergence of each layer's answer from the last one's."""
    text, written = (given, None) if bundle.reads != "pairs" else given
    return logit_lens(bundle, text, written=written).divergence[:, -1].clamp(min=0)

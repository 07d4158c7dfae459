"""The sections of a comparison of two models: each is a measure of both, with its table and its pictures."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from ... import draw
from ...errors import InputError, Notice
from ...look import Fields, cka, logit_lens, patch_colours, receptive_fields, saliency, watch
from ...look.layout import record_layout
from ...look.model_inputs import Inputs as Batches
from ...look.subject import subject
from ...tasks.classify import class_names, classify
from ...weights import Bundle
from ..views.registry import answers, attends, layered
from .inputs import Inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = dict[str, Any]  # figures by caption
FEW, SHOWN, ROUNDS = 16, 4, 7  # inputs of slow measures, images that are drawn, rounds of the clock


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two models by name, and the inputs that both are measured on."""

    models: dict[str, Bundle]
    inputs: Inputs
    images: bool  # they read images

    @property
    def few(self) -> list[Any]:
        """Some inputs, for slow measures."""
        return list(self.inputs.items[:: max(1, len(self.inputs.items) // FEW)][:FEW])


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A measure of two models."""

    title: str
    text: str  # how to read it, in plain words
    numbers: dict[str, Any] = field(default_factory=dict)  # for JSON, by name
    table: Sequence[tuple[str, ...]] = ()  # rows; the first is the header
    figures: Figures = field(default_factory=dict)


class UnfitError(InputError):
    """A section does not fit these models."""


Measure = Callable[[Pair], Section]
SECTIONS: dict[str, Measure] = {}  # in the order of the report


def section(name: str) -> Callable[[Measure], Measure]:
    """Decorator that registers a section of the report."""

    def register(measure: Measure) -> Measure:
        SECTIONS[name] = measure
        return measure

    return register


@section("sizes")
def sizes(pair: Pair) -> Section:
    """Parameters, and bytes in memory."""
    count = {name: sum(p.numel() for p in one.model.parameters()) for name, one in pair.models.items()}
    size = {name: sum(p.nbytes for p in one.model.parameters()) for name, one in pair.models.items()}
    rows = [("model", "family", "parameters", "MB in memory")]
    rows += [(n, pair.models[n].name, f"{count[n]:,}", f"{size[n] / 1e6:.1f}") for n in pair.models]
    return Section(title="Size", text="", numbers={"parameters": count, "bytes": size}, table=rows)


@section("accuracy")
def accuracy(pair: Pair) -> Section:
    """The share of labelled inputs that each model classifies correctly."""
    labels = pair.inputs.labels
    if labels is None:
        raise UnfitError("the data have no labels")
    found: dict[str, float] = {}
    for name, bundle in pair.models.items():
        if "classify" in bundle.can and set(labels) <= set(class_names(bundle)):
            guesses: Any = classify(bundle, pair.inputs.items, top=1)
            found[name] = float(np.mean([one[0][0] == label for one, label in zip(guesses, labels, strict=True)]))
    if not found:
        raise UnfitError("the labels of the data are classes of neither model")
    rows = [("model", f"accuracy on {len(labels)} images"), *((n, f"{x:.1%}") for n, x in found.items())]
    return Section(title="Accuracy", text="", numbers=found, table=rows)


@section("speed")
@torch.no_grad()
def speed(pair: Pair) -> Section:
    """Seconds of a forward pass over the same inputs, measured in turns."""
    ready = {name: list(Batches(bundle, pair.few).batches(0, FEW)) for name, bundle in pair.models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in pair.models}
    for turn in range(ROUNDS + 1):
        for name, bundle in pair.models.items():
            if bundle.device.type == "cuda":
                torch.cuda.synchronize(bundle.device)
            start = time.perf_counter()
            for batch in ready[name]:
                batch.run(bundle.model)
            if bundle.device.type == "cuda":
                torch.cuda.synchronize(bundle.device)
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - start)
    rate = {name: len(pair.few) / float(np.median(times)) for name, times in seconds.items()}
    (a, first), (b, second) = seconds.items()
    ratio = float(np.median([x / y for x, y in zip(second, first, strict=True)]))
    rows = [("model", "inputs per second"), *((name, f"{x:,.1f}") for name, x in rate.items())]
    words = f"{a} is {ratio:.2f} times as fast as {b}" if ratio >= 1 else f"{b} is {1 / ratio:.2f} times as fast as {a}"
    return Section(
        title="Speed", numbers={"inputs_per_second": rate, "ratio": ratio}, table=rows,
        text=f"{words}: the median over {ROUNDS} turns, in which both run one after the other on the same inputs.",
    )  # fmt: skip


@section("cka")
def similarity(pair: Pair) -> Section:
    """CKA within each model and between both."""
    (a, one), (b, two) = pair.models.items()
    found = cka({a: one}, {b: two}, data=pair.inputs.items)
    grids = {
        f"within {a}": (found.within[0], found.rows, found.rows),
        f"within {b}": (found.within[1], found.columns, found.columns),
        f"{a} and {b}": (found.matrix, found.rows, found.columns),
    }
    best = found.columns[int(found.matrix[-1].argmax())]
    figures = {
        caption: draw.similarity(matrix, rows=_short(rows), columns=_short(columns), title=caption)
        for caption, (matrix, rows, columns) in grids.items()
    }
    return Section(
        title="Similarity of layers (CKA)", figures=figures, numbers=found.to_dict(),
        text=f"1: two layers see the same inputs as alike, up to rotation and scale (Kornblith et al. 2019); over "
        f"{found.inputs} inputs. The last layer of {a} is most like {best} of {b}.",
    )  # fmt: skip


def _short(names: list[str]) -> list[str]:
    """Layers without the name of the model before them."""
    return [name.rpartition(" ")[2] for name in names]


@section("distance")
def distance(pair: Pair) -> Section:
    """Mean attention distance of every head by depth."""
    lines: dict[str, tuple[Any, Any]] = {}
    numbers: dict[str, Any] = {}
    for name, bundle in pair.models.items():
        if attends(bundle) is None:
            heads = (_patch_distances if pair.images else _token_distances)(bundle, pair.few)
            numbers[name] = heads.tolist()
            for words, x in (("mean", heads.mean(1)), ("nearest head", heads.min(1)), ("farthest head", heads.max(1))):
                lines[f"{name}, {words}"] = np.linspace(0, 1, len(heads)), x
    if not lines:
        raise UnfitError("neither model has attention")
    unit = "share of the image's side" if pair.images else "tokens"
    faint = [name for name in lines if not name.endswith("mean")]
    plot = draw.curves(
        lines, xlabel="relative depth", ylabel=unit, faint=faint, zero=True,
        title="Attention distance: mean, nearest and farthest head",
    )  # fmt: skip
    return Section(
        title="Attention distance by depth", figures={"attention distance": plot}, numbers=numbers,
        text="The mean distance between a query and what it attends to. In vision transformers the first layers have "
        "local and global heads side by side, and the last ones global heads only (Dosovitskiy et al. 2021, Fig. 11).",
    )  # fmt: skip


@torch.no_grad()
def _patch_distances(bundle: Bundle, images: list[Any]) -> Float[np.ndarray, "l h"]:
    """The mean distance of each layer and head on the grid of patches, as a share of its side."""
    total: Any = 0
    for image in images:
        about = subject(bundle, image)
        with record_layout(about.model) as layout, watch(about.model, "**.weights") as tape:
            about.logits(about.x)
        grid = layout.grid
        if grid is None:
            raise UnfitError("the attention of this model is not over patches")
        maps = [tape[name] for name in tape if tape[name].shape[2] == grid.tokens]
        every = [x.distance(grid=grid.size, special=grid.special)[0][:, grid.special :].nanmean(-1) for x in maps]
        total = total + torch.stack(every).double().cpu() / max(grid.size)
    return np.asarray(total / len(images))


@torch.no_grad()
def _token_distances(bundle: Bundle, texts: list[Any]) -> Float[np.ndarray, "l h"]:
    """The mean distance of each layer and head in tokens."""
    total: Any = 0
    prefix = "encoder." if bundle.reads == "pairs" else ""
    for text in texts:
        with watch(bundle.model, f"{prefix}blocks.**.distance") as tape:
            for batch in Batches(bundle, [text]).batches(0, 1):
                batch.run(bundle.model)
        total = total + torch.stack([tape[name][0].mean(-1) for name in tape]).double().cpu()
    return np.asarray(total / len(texts))


@section("fields")
def fields(pair: Pair) -> Section:
    """Effective receptive field by depth."""
    _need_images(pair)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found: dict[str, Fields] = {
            name: receptive_fields(bundle, pair.few, theoretical=False) for name, bundle in pair.models.items()
        }
    share = {name: one.sides() / max(one.maps.shape[1:]) for name, one in found.items()}
    lines = {name: (np.linspace(0, 1, len(x)), x) for name, x in share.items()}
    figures = {"size by depth": draw.curves(
        lines, xlabel="relative depth", ylabel="share of the image's side",
        title="Square that holds 90 % of the gradient", zero=True,
    )}  # fmt: skip
    figures |= {name: _some_maps(one, name) for name, one in found.items()}
    return Section(
        title="Receptive fields", figures=figures, numbers={name: x.tolist() for name, x in share.items()},
        text="What the centre unit of each layer depends on: the mean absolute gradient of the unit over pixels.",
    )  # fmt: skip


def _some_maps(found: Fields, name: str) -> Figure:
    chosen = np.unique(np.linspace(0, len(found.names) - 1, 5).round().astype(int))
    return draw.tiles(found.maps[chosen], titles=[found.names[i] for i in chosen], title=name, across=5, size=1.1)


@section("colours")
def colours(pair: Pair) -> Section:
    """Principal components of patches as colours."""
    _need_images(pair)
    every = pair.few[:: max(1, len(pair.few) // SHOWN)][:SHOWN]
    figures = {name: patch_colours(bundle, every).figure() for name, bundle in pair.models.items()}
    return Section(
        title="Features as colours", figures=figures,
        text="Red, green and blue are the first three principal components of the last layer's features; equal colours "
        "are equal features (Oquab et al. 2024).",
    )  # fmt: skip


@section("saliency")
def salience(pair: Pair) -> Section:
    """Saliency of some inputs, side by side."""
    every = {name: bundle for name, bundle in pair.models.items() if answers(bundle) is None}
    if not every:
        raise UnfitError("neither model gives logits")
    figures: Figures = {}
    for item in pair.few[:: max(1, len(pair.few) // SHOWN)][:SHOWN]:
        for name, bundle in every.items():
            found = saliency(bundle, item, method="gradient" if pair.images else "input-gradient")
            share = "" if found.probability is None else f", {found.probability:.0%}"
            figures[f"{name}: {found.target.strip()}{share} ({len(figures)})"] = found.figure()
    return Section(
        title="Saliency", figures=figures,
        text="Which pixels or tokens the likeliest answer depends on, by its gradient.",
    )  # fmt: skip


@section("lens")
def lens(pair: Pair) -> Section:
    """How early each model's answer is settled: divergence of each layer from the last."""
    numbers: dict[str, Any] = {}
    for name, bundle in pair.models.items():
        if layered(bundle) is None and answers(bundle) is None and "fill" not in bundle.can:
            texts = [item if isinstance(item, str) or pair.images else item[0] for item in pair.few]
            every = [logit_lens(bundle, text).divergence.clamp(min=0).mean(1) for text in texts]
            numbers[name] = torch.stack(every).mean(0).tolist()
    if not numbers:
        raise UnfitError("neither model has a list of layers whose output can be read as an answer")
    lines = {name: (np.linspace(0, 1, len(x)), np.array(x)) for name, x in numbers.items()}
    plot = draw.curves(lines, xlabel="relative depth", ylabel="nats", title="KL to the model's own answer", zero=True)
    return Section(
        title="Logit lens", figures={"divergence by depth": plot}, numbers=numbers,
        text="The output of each layer is read as an answer; the curve shows how far it is from the final one.",
    )  # fmt: skip


def _need_images(pair: Pair) -> None:
    if not pair.images:
        raise UnfitError("it is of images")

"""The sections of a comparison, in the order of the report: single numbers, measures by depth, single inputs.

To add one, write a function (pair) -> Section, which raises UnfitError with the reason where it fits neither model, and
decorate it with `section_of`, its name and its title.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from ... import draw
from ...errors import Notice
from ...inputs import Inputs
from ...look import (
    Fields,
    Similarity,
    cka,
    logit_lens,
    patch_colours,
    receptive_fields,
    saliency,
    watch,
)
from ...look.capture.addresses import Tree, matching
from ...look.saliency_methods.float_input import float_input
from ...look.structure import layer_lists, record_layout
from ...tasks.classify import class_names, classify
from ...weights import Bundle
from ..conditions import answers, attends, layered
from ..registry import SECTIONS as SECTIONS
from ..registry import section_of
from .pair import FEW, ModelPair, Section, UnfitError
from .questions import ONE_WORD, question_words, questions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS = 7  # of the clock
MANY = 128  # inputs from which an estimate of CKA is called reliable
MAPS = 5  # layers whose receptive fields are drawn
IMAGE_DISTANCE = (
    "The mean distance between a patch and the patches that it attends to, as a share of the image's side. In vision "
    "transformers the first layers have local and global heads side by side, and the last ones global heads only "
    "(Dosovitskiy et al. 2021, Fig. 11)."
)
TEXT_DISTANCE = "The mean distance in tokens between a token and those that it attends to, in the self-attention of {}."
IMAGES = (
    "Which pixels the likeliest class depends on, by its gradient. "
    "The captions have the class and its probability."
)
TEXTS = (
    "Which tokens the likeliest answer depends on, by gradient times input: blue speaks for it, orange against it. The "
    "captions have the answer and its probability."
)


# Single numbers


@section_of("sizes", "Size")
def sizes(pair: ModelPair) -> Section:
    """Parameters, and bytes in memory."""
    count, size = dict[str, int](), dict[str, int]()
    rows = []
    for name, bundle in pair.models.items():
        count[name] = sum(p.numel() for p in bundle.model.parameters())
        # Quantised parameters take fewer bytes than their number suggests.
        size[name] = sum(p.nbytes for p in bundle.model.parameters())
        # MB are millions of bytes.
        rows.append((name, bundle.name, f"{count[name]:,}", f"{size[name] / 1e6:.1f}"))
    table = draw.Table(columns=("model", "family", "parameters", "MB in memory"), rows=rows)
    return Section(numbers={"parameters": count, "bytes": size}, table=table)


@section_of("accuracy", "Accuracy")
def accuracy(pair: ModelPair) -> Section:
    """The share of labelled images that each model classifies correctly."""
    labels = pair.inputs.labels
    # Texts and unlabelled images cannot be right or wrong.
    if labels is None:
        raise UnfitError("the data have no labels")
    shares: dict[str, float] = {}
    for name, bundle in pair.models.items():
        # A model whose classes do not cover the labels could not be right, and is left out.
        if "classify" in bundle.can and set(labels) <= set(class_names(bundle)):
            best_classes: Any = classify(bundle, pair.inputs.items, top=1)
            # best[0] is the likeliest class, as a pair of name and probability.
            right = [best[0][0] == label for best, label in zip(best_classes, labels, strict=True)]
            # The mean of booleans is the share of correct answers.
            shares[name] = float(np.mean(right))
    if not shares:
        raise UnfitError("the labels of the data are classes of neither model")
    table = draw.Table(
        columns=("model", f"accuracy on {len(labels)} images"),
        rows=[(name, f"{share:.1%}") for name, share in shares.items()],
    )
    return Section(numbers=shares, table=table)


@section_of("speed", "Speed")
@torch.no_grad()
def speed(pair: ModelPair) -> Section:
    """Inputs per second of a forward pass, measured in turns."""
    # Batches are prepared before the clock starts, so that only the forward pass is timed.
    batches = {
        name: list(Inputs(bundle, pair.few).batches(0, FEW)) for name, bundle in pair.models.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in pair.models}
    # In turns, so that a machine that slows down slows both.
    for turn in range(ROUNDS + 1):
        for name, bundle in pair.models.items():
            # GPU kernels run asynchronously: both ends of the measurement wait for them.
            _finish(bundle)
            start = time.perf_counter()
            for batch in batches[name]:
                batch.run(bundle.model)
            _finish(bundle)
            if turn:  # the first turn warms up
                # One value per turn, whatever the number of batches.
                seconds[name].append(time.perf_counter() - start)
    # The median ignores a turn in which the machine was busy with something else.
    rate = {name: len(pair.few) / float(np.median(times)) for name, times in seconds.items()}
    first, second = rate.values()
    table = draw.Table(
        columns=("model", "inputs per second"),
        rows=[(name, _three_digits(x)) for name, x in rate.items()],
    )
    return Section(
        numbers={"inputs_per_second": rate, "ratio": first / second},
        text=speed_words(rate, len(pair.few)),
        table=table,
    )


def _finish(bundle: Bundle) -> None:
    """Wait for the kernels that are still running on a GPU."""
    if bundle.device.type == "cuda":
        torch.cuda.synchronize(bundle.device)


def speed_words(rate: dict[str, float], inputs: int) -> str:
    """The sentence about the two rates of the table: their ratio, and how they were measured."""
    # Sorted by rate: the slower model comes first.
    slow, fast = sorted(rate, key=lambda name: rate[name])
    return (
        f"{fast} is {_three_digits(rate[fast] / rate[slow])} times as fast as {slow}. Both run in turns on the same "
        f"{inputs} inputs, {ROUNDS} times; the table has the median of each."
    )


def _three_digits(x: float) -> str:
    """A number with three digits or more, and no exponent."""
    # "#" keeps trailing zeros, so that 2.50 has three digits too.
    return f"{x:,.0f}" if x >= 100 else f"{x:#.3g}"


# Measures by depth


@section_of("cka", "Similarity of layers (CKA)")
def similarity(pair: ModelPair) -> Section:
    """CKA within each model and between both."""
    (first, one), (second, two) = pair.models.items()
    # One call computes the similarities within both models and between them.
    result = cka({first: one}, {second: two}, data=pair.inputs.items)
    grids = {  # the models whose layers are the rows and the columns
        (first, first): (result.within[0], result.rows, result.rows),
        (second, second): (result.within[1], result.columns, result.columns),
        (first, second): (result.matrix, result.rows, result.columns),
    }
    figures: dict[str, Any] = {}
    for (down, across), (matrix, rows, columns) in grids.items():
        # The same layers on both axes need only one name.
        caption = f"CKA within {down}" if down == across else f"CKA of {down} and {across}"
        # Layers without the names of the models, which the axes have.
        figures[caption] = draw.similarity(
            matrix,
            rows=_short(rows),
            columns=_short(columns),
            ylabel=f"layer of {down}",
            xlabel=f"layer of {across}",
            title=f"{caption}, {result.inputs} inputs",
        )
    # The last row of the matrix is the last layer of the first model.
    best = result.columns[int(result.matrix[-1].argmax())]
    text = (
        "CKA says how far two layers agree on which inputs are alike: 1 is full agreement, up to rotation and "
        f"scale, and 0 is none (Kornblith et al. 2019). The last layer of {first} is most similar to {best} of "
        f"{second}."
    )
    return Section(figures=figures, numbers=result.to_dict(), text=text + _caution(result))


def _caution(result: Similarity) -> str:
    """Sentences about too few inputs, and about values that are drawn as 0."""
    text = ""
    # The variance of the estimate falls with the number of inputs.
    if result.inputs < MANY:
        text += (
            f" {result.inputs} inputs are few: the estimates vary by chance, so that only large differences count; "
            f"{MANY} or more different inputs are better."
        )
    # The debiased estimate of CKA may be below 0.
    estimates = np.concatenate([x.ravel() for x in (*result.within, result.matrix)])
    below = int((estimates < 0).sum())
    if below:
        # A negative similarity has no meaning of its own: it is noise around 0.
        lowest = float(estimates.min())
        text += f" {below} estimates are below 0, down to {lowest:.2f}, and drawn as 0."
    return text


def _short(names: list[str]) -> list[str]:
    """Layers without the name of the model before them."""
    return [name.rpartition(" ")[2] for name in names]


@section_of("distance", "Attention distance by depth")
def distance(pair: ModelPair) -> Section:
    """Mean attention distance of every head by depth."""
    # Images are measured over patches, which an attention must read; texts over tokens of
    # self-attention.
    models, missing = pair.fitting(attends if pair.images else _attends_to_itself)
    measure = _patch_distances if pair.images else _token_distances
    plots: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for name, bundle in models.items():
        heads = measure(bundle, pair.few)
        # JSON gets every head; the plot shows the range over heads.
        numbers[name] = heads.tolist()
        # Depths are relative, because the models may have different numbers of layers.
        depth = np.linspace(0, 1, len(heads))
        plots[name] = {
            # Per layer, over its heads: (l, h) -> l.
            "farthest head": (depth, heads.max(1)),
            "mean of all heads": (depth, heads.mean(1)),
            "nearest head": (depth, heads.min(1)),
        }
    title, width = "Attention distance", 2.6
    # A single panel has the name in its title, and more width.
    if len(plots) == 1:
        ((name, lines),) = plots.items()
        plots, title, width = {f"{title} of {name}": lines}, "", 5.0
    unit = "share of the image's side" if pair.images else "tokens"
    plot = draw.panels(
        plots,
        xlabel="relative depth",
        ylabel=[unit, ""][: len(plots)],
        title=title,
        zero=True,
        shared=True,
        width=width,
    )
    if pair.images:
        text = IMAGE_DISTANCE
    else:
        # Both models read the same kind of input, so the first one decides.
        translate = next(iter(models.values())).reads == "pairs"
        text = TEXT_DISTANCE.format("the encoder" if translate else "each layer")
    return Section(figures={"attention distance": plot}, numbers=numbers, text=text + missing)


def _self_attention(bundle: Bundle) -> str:
    """The address pattern of the self-attention distances in a model of texts."""
    # Cross-attention relates two texts, where a distance in tokens means nothing.
    if bundle.reads == "pairs":
        return "encoder.**.distance"
    return "**.distance"


def _attends_to_itself(bundle: Bundle) -> str | None:
    """The model, or the encoder of a translator, has self-attention."""
    tree = Tree(bundle.model)
    if matching(_self_attention(bundle), tree.known | tree.possible):
        return None
    if bundle.reads == "pairs":
        return "its encoder has no attention"
    return "it has no attention"


@torch.no_grad()
def _patch_distances(bundle: Bundle, images: list[Any]) -> Float[np.ndarray, "l h"]:
    """The mean distance of each layer and head on the grid of patches, as a share of its side."""
    total: Any = 0
    for image in images:
        about = float_input(bundle, image)
        with record_layout(about.model) as layout, watch(about.model, "**.weights") as tape:
            # The answer is not needed, only what the pass leaves on the tape.
            about.logits(about.x)
        by_layer = []
        for name in tape:
            axes = layout.places(tape[name].shape[2])
            # Attention over something else, such as a pooling query, has no distances.
            if axes is None or axes.grid is None:
                continue
            by_query = tape[name].distance(grid=axes.grid, special=axes.special)[0]
            # Queries before the grid, such as the class token, have no place in it.
            of_patches = by_query[:, axes.special :].nanmean(-1)
            # (h, q) of one layer becomes (h,), and is divided by the side of the grid.
            by_layer.append(of_patches.double().cpu() / max(axes.grid))
        if not by_layer:
            raise UnfitError(f"the attention of this {bundle.name} is not over patches")
        # (l, h): the sum over images.
        total = total + torch.stack(by_layer)
    return np.asarray(total / len(images))


@torch.no_grad()
def _token_distances(bundle: Bundle, texts: list[Any]) -> Float[np.ndarray, "l h"]:
    """The mean distance of each layer and head in tokens."""
    total: Any = 0
    for text in texts:
        # The pattern ends in "distance", so the statistic is recorded and not the map.
        with watch(bundle.model, _self_attention(bundle)) as tape:
            # One text at a time, because padding would count as distance.
            for batch in Inputs(bundle, [text]).batches(0, 1):
                batch.run(bundle.model)
        # (1, h, t) of each layer: the mean over tokens.
        by_layer = [tape[name][0].mean(-1) for name in tape]
        total = total + torch.stack(by_layer).double().cpu()
    return np.asarray(total / len(texts))


@section_of("fields", "Receptive fields")
def fields(pair: ModelPair) -> Section:
    """Effective receptive field by depth."""
    pair.need_images()
    with warnings.catch_warnings():
        # A unit without any gradient gives a Notice, which would interrupt the report.
        warnings.simplefilter("ignore", Notice)
        measured: dict[str, Fields] = {
            name: receptive_fields(bundle, pair.few, theoretical=False)
            for name, bundle in pair.models.items()
        }
    # sides() are in pixels; the side of the image makes models of other sizes comparable.
    shares = {name: one.sides() / max(one.maps.shape[1:]) for name, one in measured.items()}
    sizes = draw.curves(
        {name: (np.linspace(0, 1, len(x)), x) for name, x in shares.items()},
        xlabel="relative depth",
        ylabel="share of the image's side",
        title="Square that holds 90 % of the gradient",
        zero=True,
    )
    figures = {"size by depth": sizes}
    for name, one in measured.items():
        # The size is one curve per model; the shapes need a picture per layer.
        figures[f"receptive fields of {name}"] = _some_maps(one, name)
    return Section(
        figures=figures,
        numbers={name: x.tolist() for name, x in shares.items()},
        text="What the centre unit of each layer depends on: the mean absolute gradient of the unit over pixels. The "
        "maps show its square root, each with a scale of its own, because a strong centre would hide a wide and faint "
        "field; the orange square holds 90 % of the gradient.",
    )


def _some_maps(measured: Fields, name: str) -> Figure:
    """The receptive fields of some layers, evenly from the first to the last."""
    # unique() drops repetitions in a model with fewer layers than MAPS.
    layers = np.unique(np.linspace(0, len(measured.names) - 1, MAPS).round().astype(int)).tolist()
    return measured.pictures(across=MAPS, layers=layers, title=name)


# Single inputs


@section_of("colours", "Features as colours")
def colours(pair: ModelPair) -> Section:
    """Principal components of patches as colours."""
    pair.need_images()
    items = [pair.inputs.items[i] for i in pair.shown]
    figures = {
        f"features of {name}": patch_colours(bundle, items).figure()
        for name, bundle in pair.models.items()
    }
    return Section(
        figures=figures,
        text="Red, green and blue are the first three principal components of the last layer's features; equal colours "
        "are equal features (Oquab et al. 2024).",
    )


@section_of("saliency", "Saliency")
def salience(pair: ModelPair) -> Section:
    """Saliency of some inputs, side by side."""
    models, missing = pair.fitting(answers)
    numbers = pair.shown
    items = [pair.inputs.items[i] for i in numbers]
    asked = {name: questions(bundle, items) for name, bundle in models.items()}
    # A gradient on pixels is readable by itself; embeddings need the product with the input for a
    # sign.
    method = "gradient" if pair.images else "input-gradient"
    figures: dict[str, Any] = {}
    for place, number in enumerate(numbers):
        # A text that one model cannot be asked about would have no counterpart.
        if any(every[place] is None for every in asked.values()):
            continue
        for name, bundle in models.items():
            # The likeliest class or token is explained, so it may differ between the models.
            result = saliency(bundle, asked[name][place], method=method)
            # The target of a language model is a token, which may begin with a space.
            caption = f"{_input_name(pair, place, number)}, {name}: {result.target.strip()}"
            if result.probability is not None:
                # Models that return only scores have no probability.
                caption += f", {result.probability:.0%}"
            figures[caption] = result.figure()
    # Every text had only one word.
    if not figures:
        raise UnfitError(ONE_WORD)
    if pair.images:
        text = IMAGES + _images_of_no_class(pair)
    else:
        text = TEXTS + _asked_words(models)
    return Section(figures=figures, text=text + missing)


def _input_name(pair: ModelPair, place: int, number: int) -> str:
    """An input in the caption of a figure, with what an image shows, if that is known."""
    # The place is that among the drawn inputs, as other figures count them.
    name = f"{'image' if pair.images else 'text'} {place}"
    if pair.inputs.subjects and pair.inputs.subjects[number]:
        name += f" ({pair.inputs.subjects[number]})"
    return name


def _asked_words(models: dict[str, Bundle]) -> str:
    """Sentences that say what each model is asked; one sentence if all are asked the same."""
    words = {name: question_words(bundle) for name, bundle in models.items()}
    # The same sentence twice would read as a mistake.
    if len(words) > 1 and len(set(words.values())) == 1:
        words = {"Each model": next(iter(words.values()))}
    return "".join(f" {name} {what}." for name, what in words.items())


def _images_of_no_class(pair: ModelPair) -> str:
    """Sentences about images that are drawn and whose class a model does not have."""
    if not pair.inputs.subjects:
        # Subjects are known for images that ship and for labelled folders.
        return ""
    names = dict.fromkeys(pair.inputs.subjects[i] for i in pair.shown)
    text = ""
    for model, bundle in pair.models.items():
        known = {label.lower() for label in bundle.labels or ()}
        unknown = [name for name in names if name and name.lower() not in known]
        # A model without labels has no classes to miss.
        if known and unknown:
            text += f" {model} has no class for {', '.join(unknown)}: it can only give the nearest that it has."
    return text


@section_of("lens", "Logit lens")
def lens(pair: ModelPair) -> Section:
    """How early each model's answer is settled: divergence of each layer from the last."""
    models, missing = pair.fitting(layered, answers, _several_layers)
    numbers: dict[str, Any] = {}
    for name, bundle in models.items():
        # Texts that cannot be asked about are left out for this model only.
        asked = [question for question in questions(bundle, pair.few) if question is not None]
        if not asked:
            raise UnfitError(ONE_WORD)
        # KL divergence in nats, by layer, for each text or image.
        divergences = [_divergence_by_layer(bundle, question) for question in asked]
        # (inputs, l) -> l
        numbers[name] = torch.stack(divergences).mean(0).tolist()
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
    stacks = layer_lists(bundle.model)
    if bundle.reads == "pairs":
        # The answer comes from the decoder, so only its layers count.
        stacks = {path: stack for path, stack in stacks.items() if path.startswith("decoder")}
    if max(map(len, stacks.values()), default=0) > 1:
        return None
    return "it has no second layer before its answer"


def _divergence_by_layer(bundle: Bundle, question: Any) -> Float[torch.Tensor, "l"]:
    """KL(p of the model || p of each layer) at the last position."""
    # A translator is asked about the source together with the beginning of its translation.
    if bundle.reads == "pairs":
        text, written = question
    else:
        text, written = question, None
    # (l, positions) -> l. Rounding can make a KL divergence of equal distributions slightly
    # negative.
    return logit_lens(bundle, text, written=written).divergence[:, -1].clamp(min=0)

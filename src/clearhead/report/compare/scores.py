"""Sections of single numbers: size, accuracy, speed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from ...look.model_inputs import Inputs as Batches
from ...tasks.classify import class_names, classify
from .pair import FEW, Pair, Section, UnfitError

ROUNDS = 7  # of the clock


def sizes(pair: Pair) -> Section:
    """Parameters, and bytes in memory."""
    count = {
        name: sum(p.numel() for p in one.model.parameters()) for name, one in pair.models.items()
    }
    size = {
        name: sum(p.nbytes for p in one.model.parameters()) for name, one in pair.models.items()
    }
    rows = [("model", "family", "parameters", "MB in memory")]
    rows += [(n, pair.models[n].name, f"{count[n]:,}", f"{size[n] / 1e6:.1f}") for n in pair.models]
    return Section(numbers={"parameters": count, "bytes": size}, table=rows)


def accuracy(pair: Pair) -> Section:
    """The share of labelled images that each model classifies correctly."""
    labels = pair.inputs.labels
    if labels is None:
        raise UnfitError("the data have no labels")
    found: dict[str, float] = {}
    for name, bundle in pair.models.items():
        if "classify" in bundle.can and set(labels) <= set(class_names(bundle)):
            guesses: Any = classify(bundle, pair.inputs.items, top=1)
            found[name] = float(
                np.mean([one[0][0] == label for one, label in zip(guesses, labels, strict=True)])
            )
    if not found:
        raise UnfitError("the labels of the data are classes of neither model")
    rows = [
        ("model", f"accuracy on {len(labels)} images"),
        *((n, f"{x:.1%}") for n, x in found.items()),
    ]
    return Section(numbers=found, table=rows)


@torch.no_grad()
def speed(pair: Pair) -> Section:
    """Inputs per second of a forward pass, measured in turns."""
    ready = {
        name: list(Batches(bundle, pair.few).batches(0, FEW))
        for name, bundle in pair.models.items()
    }
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
    first, second = rate.values()
    return Section(
        numbers={"inputs_per_second": rate, "ratio": first / second},
        text=speed_words(rate, len(pair.few)),
        table=[
            ("model", "inputs per second"),
            *((name, _three_digits(x)) for name, x in rate.items()),
        ],
    )


def speed_words(rate: dict[str, float], inputs: int) -> str:
    """The sentence about the two rates of the table: their ratio, and how they were measured."""
    slow, fast = sorted(rate, key=lambda name: rate[name])
    return (
        f"{fast} is {_three_digits(rate[fast] / rate[slow])} times as fast as {slow}. Both run in turns on the same "
        f"{inputs} inputs, {ROUNDS} times; the table has the median of each."
    )


def _three_digits(x: float) -> str:
    """A number with three digits or more, and no exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:#.3g}"

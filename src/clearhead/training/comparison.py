"""Comparison of two runs: their last checkpoints and metrics to the bit, or their first losses to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint import Checkpoint, latest
from .loop import TIMES, TrainingError
from .run_folder import Folder

FIRST = 50  # steps in which workers are compared: rounding errors grow too large in later ones
PARTS = {"weights": "weight", "buffers": "buffer", "optimiser": "optim", "averages": "average"}  # second part of names


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The comparison of one part of two runs, such as the weights."""

    name: str  # weights, buffers, optimiser, averages, lines of metrics, ...
    count: int  # number of tensors, lines or steps compared
    equal: int  # number of them that are equal
    largest: float  # largest difference; relative if `within` is given
    first: str = ""  # name of the first that differs
    within: float | None = None  # relative difference up to which numbers are equal; None: equal to the bit


def compare(one: Path, other: Path) -> list[Part]:
    """Compare the last checkpoints of two runs tensor by tensor, and their metrics line by line, to the bit."""
    a, b = _last(one), _last(other)
    if a.step != b.step:
        raise TrainingError(f"{a.path} and {b.path} are of different steps: they cannot be compared")
    parts = []
    for what, kind in PARTS.items():
        names = [name for name in dict.fromkeys((*a.names, *b.names)) if name.split("/")[1] == kind]
        bad, largest = [], 0.0
        for name in names:
            if name not in a.names or name not in b.names:
                bad.append(name)
            elif not _same_bits(x := a.read(name), y := b.read(name)):
                bad.append(name)
                largest = max(largest, _distance(x, y))
        if names:
            parts.append(
                Part(name=what, count=len(names), equal=len(names) - len(bad), largest=largest, first=(bad or [""])[0])
            )
    parts.append(_compare_lines(_lines(one), _lines(other)))
    facts = Part(name="facts", count=1, equal=int(a.facts == b.facts), largest=0.0)
    return [*parts, facts]


def compare_to_rounding(one: Path, other: Path, *, steps: int = FIRST, within: float) -> list[Part]:
    """Compare the losses and gradient norms of the first steps of two runs; differences are relative.

    A loss depends on all earlier updates, so that equal losses mean equal gradients and optimiser steps.
    """
    mine, theirs = ({x["step"]: x for x in _lines(run) if is_log(x) and x["step"] <= steps} for run in (one, other))
    keys = list(dict.fromkeys(key for x in mine.values() for key in x if key != "step" and not key.startswith("lr")))
    parts = []
    for key in keys:
        apart = {step: _relative(x[key], theirs.get(step, {}).get(key)) for step, x in mine.items() if key in x}
        bad = [step for step, size in apart.items() if not size <= within]
        parts.append(
            Part(
                name=f"{key}, first {len(apart)} steps", count=len(apart), equal=len(apart) - len(bad),
                largest=max(apart.values(), default=0.0), first=f"step {bad[0]}" if bad else "", within=within,
            )
        )  # fmt: skip
    return parts


def is_log(record: Mapping[str, Any]) -> bool:
    """True for a metrics record with losses, not one of validation, samples or probes."""
    return any(key.startswith("lr") for key in record)


def _last(folder: Path) -> Checkpoint:
    checkpoint = latest(folder / "checkpoints")
    if checkpoint is None:
        raise TrainingError(f"{folder} has no checkpoint to compare")
    return checkpoint


def _lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without its timings."""
    metrics = Folder(folder, create=False, lock=False).metrics()
    return [{key: value for key, value in line.items() if key not in TIMES} for line in metrics]


def _compare_lines(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Part:
    count = max(len(mine), len(theirs))
    bad, largest = [], 0.0
    for i in range(count):
        x, y = (lines[i] if i < len(lines) else {} for lines in (mine, theirs))
        if x != y:
            bad.append(f"line {i + 1}")
            numbers = [(x[key], y[key]) for key in x.keys() & y.keys() if isinstance(x[key], float)]
            largest = max([largest, *(abs(a - b) for a, b in numbers if isinstance(b, float))])
    return Part(
        name="lines of metrics", count=count, equal=count - len(bad), largest=largest, first=(bad or [""])[0]
    )  # fmt: skip


def _same_bits(x: Tensor, y: Tensor) -> bool:
    def bits(tensor: Tensor) -> Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return (x.dtype, x.shape) == (y.dtype, y.shape) and torch.equal(bits(x), bits(y))


def _distance(x: Tensor, y: Tensor) -> float:
    if x.shape != y.shape:
        return float("inf")
    return float((x.double() - y.double()).abs().max())


def _relative(x: float, y: float | None) -> float:
    if y is None:
        return float("inf")
    return abs(x - y) / max(abs(x), abs(y)) if x != y else 0.0

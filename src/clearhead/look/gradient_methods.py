"""Saliency by gradients with respect to the input: plain, times the input, of noisy inputs, along a path."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..checks import at_least
from ..errors import InputError, Notice
from .attributions import Attribution, Done, gradients, magnitude, summed
from .baselines import START, Baseline, baseline_of
from .output_names import Target
from .subject import Subject

INCOMPLETE = 0.1  # error of completeness, as a share of the change of the score, from which integrals are repeated
ATTEMPTS = ((64, 1), (64, 4), (256, 1))  # numbers of points, and the powers that they are raised to


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientOptions:
    """The plain gradient has no options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseOptions:
    """The options of SmoothGrad."""

    samples: int = 25  # number of noisy inputs
    noise: float = 0.15  # standard deviation of the noise, as a share of the input's range
    seed: int = 0  # of the noise

    def __post_init__(self) -> None:
        at_least(self, 1, "samples")
        if not self.noise >= 0:
            raise InputError(f"noise={self.noise}: expected a share of 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class PathOptions:
    """The options of integrated gradients."""

    steps: int | None = None  # points of the path at which the gradient is taken; None: as ATTEMPTS says
    baseline: Baseline | None = None  # where the path begins; None: see START

    def __post_init__(self) -> None:
        at_least(self, 1, "steps")


def gradient(subject: Subject, target: Target, _: GradientOptions, __: Done | None) -> Attribution:
    """The gradient of the score with respect to the input (Simonyan et al. 2014)."""
    found = gradients(subject, target, subject.x)[0]
    return Attribution(values=magnitude(subject, found), whole=found)


def input_gradient(subject: Subject, target: Target, _: GradientOptions, __: Done | None) -> Attribution:
    """The gradient times the input (Shrikumar et al. 2017)."""
    found = (gradients(subject, target, subject.x) * subject.x)[0]
    return Attribution(values=summed(subject, found), whole=found)


def smooth_gradient(subject: Subject, target: Target, options: NoiseOptions, done: Done | None) -> Attribution:
    """The mean gradient of noisy copies of the input (Smilkov et al. 2017)."""
    x = subject.x
    scale = options.noise * float(x.max() - x.min())
    generator = torch.Generator().manual_seed(options.seed)
    total, step = torch.zeros_like(x[0]), subject.rows(target.outputs)
    for start in range(0, options.samples, step):
        count = min(step, options.samples - start)
        draws = [torch.randn(x.shape[1:], generator=generator) for _ in range(count)]  # the same in any batch size
        total += gradients(subject, target, x + scale * torch.stack(draws).to(x)).sum(0)
        if done is not None:
            done(count, options.samples)
    found = total / options.samples
    return Attribution(values=magnitude(subject, found), whole=found)


def integrated_gradients(subject: Subject, target: Target, options: PathOptions, done: Done | None) -> Attribution:
    """The integral of the gradient from a baseline to the input, times their difference (Sundararajan et al. 2017).

    The sum of all attributions is the change of the score (completeness); the integral is by Gauss-Legendre. Where it
    is not complete and no number of steps is given, it is computed again with points that crowd at the baseline, near
    which normalisations change most, and then with more points.
    """
    given = START[subject.kind] if options.baseline is None else options.baseline
    x, start = subject.x, baseline_of(subject, given)
    with torch.no_grad():
        change = float(target.score(subject.logits(x)).double() - target.score(subject.logits(start)).double())
    best: Attribution | None = None
    for steps, power in ATTEMPTS if options.steps is None else ((options.steps, 1),):
        found = _integral(subject, target, start, change, steps, power, done)
        best = found if best is None or abs(_error(found)) < abs(_error(best)) else best
        if abs(_error(best)) <= INCOMPLETE * abs(change):
            return best
    assert best is not None
    warnings.warn(
        f"integrated gradients: the values add up to {change + _error(best):.3g}, and the score changes by "
        f"{change:.3g}: expected more steps, or another baseline",
        Notice,
        stacklevel=3,
    )
    return best


def _error(found: Attribution) -> float:
    return found.completeness or 0.0


def _integral(
    subject: Subject, target: Target, start: Tensor, change: float, steps: int, power: int, done: Done | None
) -> Attribution:
    """Integrated gradients with the points u^power, u being those of Gauss-Legendre."""
    x = subject.x
    points, weights = _legendre(steps, power, x)
    total, step = torch.zeros_like(x[0]), subject.rows(target.outputs)
    for at, weight in zip(points.split(step), weights.split(step), strict=True):
        shape = (-1, *[1] * (x.ndim - 1))
        found = gradients(subject, target, start + at.reshape(shape) * (x - start))
        total += (found * weight.reshape(shape)).sum(0)
        if done is not None:
            done(len(at), steps)
    whole = total * (x - start)[0]
    error = float(whole.double().sum()) - change
    return Attribution(values=summed(subject, whole), whole=whole, completeness=error)


def _legendre(steps: int, power: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The points and weights of Gauss-Legendre quadrature between 0 and 1, of an integral over t = u^power."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    u = (points + 1) / 2
    return torch.from_numpy(u**power).to(like), torch.from_numpy(weights / 2 * power * u ** (power - 1)).to(like)

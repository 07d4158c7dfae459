"""Saliency by gradients with respect to the input: plain, times the input, of noisy inputs, along a path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..checks import at_least
from ..errors import InputError
from .attributions import Attribution, Done, gradients, magnitude, summed
from .baselines import Baseline, baseline_of
from .output_names import Target
from .subject import Subject


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

    steps: int = 64  # points of the path at which the gradient is taken
    baseline: Baseline = "zero"  # where the path begins

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

    The sum of all attributions is the change of the score (completeness); the integral is by Gauss-Legendre.
    """
    x, start = subject.x, baseline_of(subject, options.baseline)
    points, weights = _legendre(options.steps, x)
    total, step = torch.zeros_like(x[0]), subject.rows(target.outputs)
    for at, weight in zip(points.split(step), weights.split(step), strict=True):
        shape = (-1, *[1] * (x.ndim - 1))
        found = gradients(subject, target, start + at.reshape(shape) * (x - start))
        total += (found * weight.reshape(shape)).sum(0)
        if done is not None:
            done(len(at), options.steps)
    whole = total * (x - start)[0]
    with torch.no_grad():
        change = target.score(subject.logits(x)) - target.score(subject.logits(start))
    error = float(whole.double().sum() - change.double())
    return Attribution(values=summed(subject, whole), whole=whole, completeness=error)


def _legendre(steps: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The points and weights of Gauss-Legendre quadrature between 0 and 1."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    return torch.from_numpy((points + 1) / 2).to(like), torch.from_numpy(weights / 2).to(like)

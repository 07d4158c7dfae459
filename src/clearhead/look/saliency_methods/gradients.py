"""Saliency by gradients with respect to the input: plain, times the input, of noisy inputs, along a path."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...checks import at_least
from ...errors import InputError, Notice, nearest
from ...progress import Done
from ..targets import Target
from .attributions import Attribution, gradients, magnitude, summed
from .float_input import FloatInput

# Baselines: inputs that stand for "nothing", which integrated gradients start from and occlusion puts in place.


# a word of BASELINES, one number for all values, or a tensor like the input
Baseline = str | float | Tensor


def _colour(value: int) -> Callable[[FloatInput], Tensor]:
    def fill(explained: FloatInput) -> Tensor:
        pre = explained.preprocessing
        if pre is None:
            raise InputError(
                "black and white need a Bundle with preprocessing: expected 'zero', 'blur' or a tensor"
            )
        # 0 to 255 in the units of the normalised input, per channel.
        scaled = [(value * pre.scale - m) / d for m, d in zip(pre.mean, pre.deviation, strict=True)]
        # (c,) -> (1, c, height, width)
        return explained.x.new_tensor(scaled)[None, :, None, None].expand_as(explained.x)

    return fill


def _blur(explained: FloatInput) -> Tensor:
    # A twentieth of the longer side hides shapes and keeps colours.
    return blur(explained.x, max(explained.x.shape[-2:]) / 20)


def _zero(explained: FloatInput) -> Tensor:
    return torch.zeros_like(explained.x)


def _mean(explained: FloatInput) -> Tensor:
    assert explained.mean is not None
    return explained.mean()


# What each word means for an image and for a text; 0 is the mean colour of normalised images, or an empty embedding,
# from which networks that normalise their input jump: the mean embedding of the vocabulary is a smooth start.
BASELINES: dict[str, dict[str, Callable[[FloatInput], Tensor]]] = {
    "image": {"zero": _zero, "black": _colour(0), "white": _colour(255), "blur": _blur},
    "text": {"zero": _zero, "mean": _mean},
}
# where the path of integrated gradients begins, if not given
START = {"image": "zero", "text": "mean"}


def baseline_of(explained: FloatInput, given: Baseline) -> Tensor:
    """The baseline that a word, a number or a tensor means, of the shape of the input."""
    x = explained.x
    if isinstance(given, Tensor):
        # A tensor with or without the batch axis.
        value = given if given.ndim == x.ndim else given[None]
        if value.shape != x.shape:
            raise InputError(
                f"baseline of shape {tuple(given.shape)}: expected {tuple(x.shape[1:])}, as the input"
            )
        return value.to(x)
    if isinstance(given, int | float):
        return torch.full_like(x, given)
    # A word, whose meaning depends on the kind of input.
    known = BASELINES[explained.kind]
    if given not in known:
        raise InputError(
            f"baseline={given!r}: expected {', '.join(known)}, a number or a tensor for this {explained.kind}"
            f"{nearest(given, known)}"
        )
    return known[given](explained)


def blur(x: Float[Tensor, "b c y x"], sigma: float) -> Float[Tensor, "b c y x"]:
    """Blur images by a Gaussian of a standard deviation in pixels; edges are mirrored."""
    # Three standard deviations hold 99.7 %; reflection needs a margin narrower than the image.
    radius = min(math.ceil(3 * sigma), x.shape[-1] - 1, x.shape[-2] - 1)
    at = torch.arange(-radius, radius + 1, device=x.device, dtype=torch.float32)
    # softmax of the exponents is the Gaussian with the sum 1.
    kernel = torch.softmax(-(at**2) / (2 * sigma**2), 0).to(x.dtype)
    channels = x.shape[1]
    wide = F.pad(x, (radius, radius, radius, radius), mode="reflect")
    # A Gaussian is separable: first horizontally, then vertically, each channel by itself.
    rows = F.conv2d(wide, kernel.expand(channels, 1, 1, -1), groups=channels)
    return F.conv2d(rows, kernel[:, None].expand(channels, 1, -1, 1), groups=channels)


# error of completeness, as a share of the change of the score, above which values say nothing
INCOMPLETE = 0.1
STEPS = 64  # points of the path, if not given
SPANS, ORDER = 8, 4  # spans of a path that is refined, and points of each
MOST, NARROW = 512, 1e-4  # points of a refined path, and its narrowest span


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

    # points of the path at which the gradient is taken; None: STEPS, and more where needed
    steps: int | None = None
    baseline: Baseline | None = None  # where the path begins; None: see START
    refined: bool = True  # False: STEPS points or none

    def __post_init__(self) -> None:
        at_least(self, 1, "steps")


def gradient(
    explained: FloatInput, target: Target, _: GradientOptions, __: Done | None
) -> Attribution:
    """The gradient of the score with respect to the input (Simonyan et al. 2014)."""
    values = gradients(explained, target, explained.x)[0]
    return Attribution(values=magnitude(explained, values), whole=values)


def input_gradient(
    explained: FloatInput, target: Target, _: GradientOptions, __: Done | None
) -> Attribution:
    """The gradient times the input (Shrikumar et al. 2017)."""
    values = (gradients(explained, target, explained.x) * explained.x)[0]
    return Attribution(values=summed(explained, values), whole=values)


def smooth_gradient(
    explained: FloatInput, target: Target, options: NoiseOptions, done: Done | None
) -> Attribution:
    """The mean gradient of noisy copies of the input (Smilkov et al. 2017)."""
    x = explained.x
    # Smilkov et al. 2017: the noise level is relative to the range of this input.
    scale = options.noise * float(x.max() - x.min())
    generator = torch.Generator().manual_seed(options.seed)
    total, step = torch.zeros_like(x[0]), explained.rows(target.outputs)
    for start in range(0, options.samples, step):
        count = min(step, options.samples - start)
        # the same in any batch size
        draws = [torch.randn(x.shape[1:], generator=generator) for _ in range(count)]
        total += gradients(explained, target, x + scale * torch.stack(draws).to(x)).sum(0)
        if done is not None:
            done(count, options.samples)
    values = total / options.samples
    return Attribution(values=magnitude(explained, values), whole=values)


class IncompleteError(InputError):
    """Integrated gradients do not add up to the change of the score."""


def integrated_gradients(
    explained: FloatInput, target: Target, options: PathOptions, done: Done | None
) -> Attribution:
    """The integral of the gradient from a baseline to the input, times their difference (Sundararajan et al. 2017).

    The sum of all attributions is the change of the score (completeness). Gauss-Legendre with STEPS points gives that
    for most models. In deep language models the score may fall and rise again within a hundredth of the path, where
    an attention sink breaks down: there the spans that are not complete by themselves are halved until they are.

    Raises:
        IncompleteError: If the error stays above INCOMPLETE; with a number of steps of the caller's it is a Notice.
    """
    path = _Path(
        explained,
        target,
        START[explained.kind] if options.baseline is None else options.baseline,
        done,
    )
    # One gradient per point of the path; refinement only where the caller left the number open.
    attribution = path.attribution(path.integrals([(0.0, 1.0)], options.steps or STEPS)[0])
    if options.steps is None and not attribution.complete and options.refined:
        attribution = path.attribution(_refined(path))
    if attribution.complete:
        return attribution
    total = path.change + (attribution.completeness or 0.0)
    problem = f"integrated gradients: the values add up to {total:.3g}, and the score changes by {path.change:.3g}"
    # A number of steps that the caller chose is kept: its result is returned with a warning.
    if options.steps is None:
        raise IncompleteError(
            f"{problem}, even with {path.used} points of the path: expected method='occlusion' or "
            "method='input-gradient', which need no path, or another baseline"
        )
    warnings.warn(f"{problem}: expected more steps, or another baseline", Notice, stacklevel=3)
    return attribution


class _Path:
    """The straight path from a baseline to the input, the score along it, and integrals of the gradient."""

    def __init__(
        self, explained: FloatInput, target: Target, baseline: Baseline, done: Done | None
    ) -> None:
        self.explained, self.target, self.done = explained, target, done
        self.start = baseline_of(explained, baseline)
        self.way = explained.x - self.start
        self.rows = explained.rows(target.outputs)  # of one pass
        self.used = 0  # gradients so far
        # F(x) - F(x'), the sum that the attributions should have.
        self.change = self.score(1.0) - self.score(0.0)

    def at(self, points: Tensor) -> Tensor:
        """The inputs at some places of the path, 0 to 1."""
        # (n,) -> (n, 1, ...), to broadcast over the axes of the input
        return self.start + points.reshape(-1, *[1] * (self.way.ndim - 1)) * self.way

    @torch.no_grad()
    def score(self, place: float) -> float:
        """The target's score at a place of the path."""
        return float(
            self.target.score(self.explained.logits(self.at(self.way.new_tensor([place])))).double()
        )

    def integrals(
        self, spans: Sequence[tuple[float, float]], order: int, expected: int | None = None
    ) -> list[Tensor]:
        """The attribution to each value that each span of the path adds, by Gauss-Legendre with `order` points."""
        # Nodes and weights are those of [-1, 1], moved to each span [left, right].
        nodes, weights = np.polynomial.legendre.leggauss(order)
        places = [left + (right - left) * (node + 1) / 2 for left, right in spans for node in nodes]
        shares = [(right - left) * weight / 2 for left, right in spans for weight in weights]
        # the integral of each span is the sum of its gradients, weighted by Gauss and Legendre
        sums = [torch.zeros_like(self.way[0]) for _ in spans]
        for first in range(0, len(places), self.rows):
            some = self.way.new_tensor(places[first : first + self.rows])
            for i, slope in enumerate(gradients(self.explained, self.target, self.at(some)), first):
                # Point i belongs to span i // order.
                sums[i // order] += shares[i] * slope
            if self.done is not None:
                self.done(len(some), expected or len(places))
        self.used += len(places)
        # The gradient along the path times the way from the baseline to the input.
        return [x * self.way[0] for x in sums]

    def attribution(self, whole: Tensor) -> Attribution:
        """The attribution of the whole path, with its error."""
        error = float(whole.double().sum()) - self.change
        # Relative to the change, because the scores of models differ in scale.
        complete = abs(error) <= INCOMPLETE * abs(self.change)
        return Attribution(
            values=summed(self.explained, whole), whole=whole, completeness=error, complete=complete
        )


def _refined(path: _Path) -> Tensor:
    """The integral over spans that are halved where their part is far from the change of the score across them."""
    edges = [i / SPANS for i in range(SPANS + 1)]
    scores = {edge: path.score(edge) for edge in edges}
    spans = list(pairwise(edges))
    parts = dict(zip(spans, path.integrals(spans, ORDER, MOST), strict=True))
    while True:
        # By completeness, the part of a span should be the change of the score across it.
        errors = {
            (left, right): abs(float(part.double().sum()) - scores[right] + scores[left])
            for (left, right), part in parts.items()
        }
        # Half of what `attribution` tolerates, as a margin.
        wrong = _largest(errors, INCOMPLETE / 2 * abs(path.change))
        # a jump, which no number of points follows
        narrow = min(right - left for left, right in parts) < NARROW
        if not wrong or narrow or path.used >= MOST:
            return torch.stack(list(parts.values())).sum(0)
        # the spans that are far off are replaced by their halves
        halves = []
        for left, right in wrong:
            middle = (left + right) / 2
            # New spans; the scores at their outer ends are known already.
            scores[middle] = path.score(middle)
            halves += [(left, middle), (middle, right)]
            del parts[left, right]
        parts |= zip(halves, path.integrals(halves, ORDER, MOST), strict=True)


def _largest(errors: dict[tuple[float, float], float], allowed: float) -> list[tuple[float, float]]:
    """The fewest spans, those of the largest errors, without which the sum of errors is at most `allowed`."""
    left, wrong = sum(errors.values()), []
    # `left` is the error of all spans that are not taken yet.
    for span in sorted(errors, key=lambda span: -errors[span]):
        if left <= allowed:
            break
        wrong.append(span)
        left -= errors[span]
    return wrong

"""Baselines: inputs that stand for "nothing", which integrated gradients start from and occlusion puts in place."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError, nearest
from .subject import Subject

Baseline = str | float | Tensor  # a word of BASELINES, one number for all values, or a tensor like the input


def _colour(value: int) -> Callable[[Subject], Tensor]:
    def fill(subject: Subject) -> Tensor:
        pre = subject.preprocessing
        if pre is None:
            raise InputError("black and white need a Bundle with preprocessing: expected 'zero', 'blur' or a tensor")
        scaled = [(value * pre.scale - m) / d for m, d in zip(pre.mean, pre.deviation, strict=True)]
        return subject.x.new_tensor(scaled)[None, :, None, None].expand_as(subject.x)

    return fill


def _blur(subject: Subject) -> Tensor:
    return blur(subject.x, max(subject.x.shape[-2:]) / 20)


def _zero(subject: Subject) -> Tensor:
    return torch.zeros_like(subject.x)


def _mean(subject: Subject) -> Tensor:
    assert subject.mean is not None
    return subject.mean()


# What each word means for an image and for a text; 0 is the mean colour of normalised images, or an empty embedding,
# from which networks that normalise their input jump: the mean embedding of the vocabulary is a smooth start.
BASELINES: dict[str, dict[str, Callable[[Subject], Tensor]]] = {
    "image": {"zero": _zero, "black": _colour(0), "white": _colour(255), "blur": _blur},
    "text": {"zero": _zero, "mean": _mean},
}
START = {"image": "zero", "text": "mean"}  # where the path of integrated gradients begins, if not given


def baseline_of(subject: Subject, given: Baseline) -> Tensor:
    """The baseline that a word, a number or a tensor means, of the shape of the input."""
    x = subject.x
    if isinstance(given, Tensor):
        value = given if given.ndim == x.ndim else given[None]
        if value.shape != x.shape:
            raise InputError(f"baseline of shape {tuple(given.shape)}: expected {tuple(x.shape[1:])}, as the input")
        return value.to(x)
    if isinstance(given, int | float):
        return torch.full_like(x, given)
    known = BASELINES[subject.kind]
    if given not in known:
        raise InputError(
            f"baseline={given!r}: expected {', '.join(known)}, a number or a tensor for this {subject.kind}"
            f"{nearest(given, known)}"
        )
    return known[given](subject)


def blur(x: Float[Tensor, "b c y x"], sigma: float) -> Float[Tensor, "b c y x"]:
    """Blur images by a Gaussian of a standard deviation in pixels; edges are mirrored."""
    radius = min(math.ceil(3 * sigma), x.shape[-1] - 1, x.shape[-2] - 1)
    at = torch.arange(-radius, radius + 1, device=x.device, dtype=torch.float32)
    kernel = torch.softmax(-(at**2) / (2 * sigma**2), 0).to(x.dtype)
    channels = x.shape[1]
    wide = F.pad(x, (radius, radius, radius, radius), mode="reflect")
    rows = F.conv2d(wide, kernel.expand(channels, 1, 1, -1), groups=channels)
    return F.conv2d(rows, kernel[:, None].expand(channels, 1, -1, 1), groups=channels)

"""Occlusion: the change of the score when a part of the input is replaced (Zeiler and Fergus 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ..targets import Target
from .attributions import Attribution, Done
from .embedded import Subject
from .gradients import Baseline, baseline_of


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchOptions:
    """The options of occlusion."""

    # edge of the window in pixels, or tokens; None: an eighth of an image, one token
    patch: int | None = None
    # pixels or tokens between windows; None: half of the window, one token
    stride: int | None = None
    baseline: Baseline | None = None  # what takes the place of the input; None: zero

    def __post_init__(self) -> None:
        at_least(self, 1, "patch", "stride")


def occlusion(
    subject: Subject, target: Target, options: PatchOptions, done: Done | None
) -> Attribution:
    """The loss of score where a window is replaced by the baseline, averaged over the windows that cover a place.

    Windows are cut at the right and lower edge, so that every place is covered.
    """
    x, empty = (
        subject.x,
        baseline_of(subject, "zero" if options.baseline is None else options.baseline),
    )
    image = subject.kind == "image"
    size = tuple(x.shape[-2:]) if image else (x.shape[1],)
    patch = options.patch or (max(1, min(size) // 8) if image else 1)
    stride = options.stride or (max(1, patch // 2) if image else 1)
    if patch > min(size) or stride > patch:
        raise InputError(
            f"patch={patch}, stride={stride}: expected a window of at most {min(size)}, and no larger stride than it"
        )
    corners = torch.cartesian_prod(
        *(torch.arange(-(-(n - patch) // stride) + 1) * stride for n in size)
    )
    corners = corners.reshape(len(corners), len(size))
    losses, covered = x.new_zeros(size), x.new_zeros(size)
    with torch.no_grad():
        before = target.score(subject.logits(x))
        for some in corners.split(subject.rows(target.outputs)):
            windows = _windows(some, patch, size).to(x.device)
            hidden = windows[:, None] if image else windows[:, :, None]
            loss = before - target.score(subject.logits(torch.where(hidden, empty, x)))
            losses += torch.einsum("n,n...->...", loss, windows.to(x))
            covered += windows.to(x).sum(0)
            if done is not None:
                done(len(some), len(corners))
    found = losses / covered
    return Attribution(values=found, whole=found)


def _windows(corners: Tensor, patch: int, size: tuple[int, ...]) -> Bool[Tensor, "n *s"]:
    """Which places are inside of the window at each corner."""
    inside = torch.ones(len(corners), *size, dtype=torch.bool)
    for axis, length in enumerate(size):
        at, low = torch.arange(length), corners[:, axis, None]
        along = (at >= low) & (at < low + patch)  # (n, length)
        inside &= along.reshape(
            len(corners), *(length if i == axis else 1 for i in range(len(size)))
        )
    return inside

"""Occlusion: the change of the score when a part of the input is replaced (Zeiler and Fergus 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...progress import Done
from ..targets import Target
from .attributions import Attribution
from .float_input import FloatInput
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
    explained: FloatInput, target: Target, options: PatchOptions, done: Done | None
) -> Attribution:
    """The loss of score where a window is replaced by the baseline, averaged over the windows that cover a place.

    Windows are cut at the right and lower edge, so that every place is covered.
    """
    x = explained.x
    empty = baseline_of(explained, "zero" if options.baseline is None else options.baseline)
    image = explained.kind == "image"
    # One axis of places for a text, two for an image.
    size = tuple(x.shape[-2:]) if image else (x.shape[1],)
    # windows of an image overlap by half; those of a text are single tokens
    patch = options.patch or (max(1, min(size) // 8) if image else 1)
    stride = options.stride or (max(1, patch // 2) if image else 1)
    # A larger stride would leave gaps that no window covers.
    if patch > min(size) or stride > patch:
        raise InputError(
            f"patch={patch}, stride={stride}: expected a window of at most {min(size)}, and no larger stride than it"
        )
    # the upper left corner of each window, (windows, axes)
    along = [torch.arange(-(-(n - patch) // stride) + 1) * stride for n in size]
    corners = torch.cartesian_prod(*along)
    # cartesian_prod of one axis returns (windows,): restore the second axis.
    corners = corners.reshape(len(corners), len(size))
    losses, covered = x.new_zeros(size), x.new_zeros(size)
    with torch.no_grad():
        before = target.score(explained.logits(x))
        for some in corners.split(explained.rows(target.outputs)):
            windows = _windows(some, patch, size).to(x.device)
            # all channels of a pixel, or the whole embedding of a token
            hidden = windows[:, None] if image else windows[:, :, None]
            loss = before - target.score(explained.logits(torch.where(hidden, empty, x)))
            # Each window's loss is added to all places that it covers.
            losses += torch.einsum("n,n...->...", loss, windows.to(x))
            covered += windows.to(x).sum(0)
            if done is not None:
                done(len(some), len(corners))
    # The mean over windows divides by the count, which is 1 or more everywhere.
    mean_loss = losses / covered
    return Attribution(values=mean_loss, whole=mean_loss)


def _windows(corners: Tensor, patch: int, size: tuple[int, ...]) -> Bool[Tensor, "n *s"]:
    """Which places are inside of the window at each corner."""
    inside = torch.ones(len(corners), *size, dtype=torch.bool)
    for axis, length in enumerate(size):
        at, low = torch.arange(length), corners[:, axis, None]
        # The window is a product of intervals, one per axis.
        along = (at >= low) & (at < low + patch)  # (n, length)
        shape = [1] * len(size)
        shape[axis] = length
        # (n, length) -> (n, 1, .., length, .., 1)
        inside &= along.reshape(len(corners), *shape)
    return inside

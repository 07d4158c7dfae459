"""Deletion and insertion curves: how well a saliency map names the pixels or tokens that the answer depends on.

Petsiuk et al. 2018, section 3.3: the most salient places are removed first, and the probability should fall early (a
small area under the curve); or they are put into a blurred image first, and it should rise early (a large area).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...errors import InputError
from ...inputs.read import Given
from ...progress import Done
from ...weights import Bundle
from ..targets import Chosen, Target, choose_target
from .float_input import FloatInput, float_input
from .gradients import Baseline, baseline_of
from .saliency import Saliency

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class PerturbationCurves(draw.Result):
    """The target's probability while the most salient places are deleted, or inserted, for each of several maps.

    Examples:
        >>> model, text = clearhead.load("everyday"), "A man is standing in the"
        >>> maps = {name: saliency(model, text, method=name) for name in ("gradient", "occlusion")}
        >>> curves = perturbation_curves(model, text, maps)
        >>> curves.deletion["gradient"].shape, sorted(curves.deletion_area)
        (torch.Size([7]), ['gradient', 'occlusion'])
    """

    in_json = "target share deletion insertion deletion_area insertion_area"

    target: str  # the name of the class or token
    share: Float[Tensor, "n"]  # of the places that are deleted or inserted
    # its probability while places are deleted, by the name of a map
    deletion: dict[str, Float[Tensor, "n"]]
    insertion: dict[str, Float[Tensor, "n"]]  # the same while they are inserted

    @property
    def deletion_area(self) -> dict[str, float]:
        """The area under each deletion curve: the smaller, the better."""
        return {
            name: float(torch.trapezoid(curve, self.share)) for name, curve in self.deletion.items()
        }

    @property
    def insertion_area(self) -> dict[str, float]:
        """The area under each insertion curve: the larger, the better."""
        return {
            name: float(torch.trapezoid(curve, self.share))
            for name, curve in self.insertion.items()
        }

    def figure(self) -> Figure:
        """Draw the deletion and the insertion curves; the legend has the areas under both."""
        deleted, inserted = self.deletion_area, self.insertion_area
        titles = {
            name: f"{name} ({deleted[name]:.2f}, {inserted[name]:.2f})" for name in self.deletion
        }
        plots = {
            kind: {
                titles[name]: (self.share.numpy(), curve.numpy()) for name, curve in curves.items()
            }
            for kind, curves in (("deletion", self.deletion), ("insertion", self.insertion))
        }
        return draw.panels(
            plots,
            xlabel="share of places",
            ylabel=f"probability of {self.target.strip()}",
            zero=True,
        )

    def table(self) -> draw.Table:
        """The areas under both curves, for each map."""
        inserted = self.insertion_area
        return draw.Table(
            columns=("method", "deletion (small)", "insertion (large)"),
            rows=[(name, area, inserted[name]) for name, area in self.deletion_area.items()],
            title=f"{self.target.strip()}: area under the curves",
        )


def perturbation_curves(
    model: Bundle | nn.Module,
    given: Given,
    saliency: Saliency | Mapping[str, Saliency],
    *,
    target: Chosen = None,
    tokenizer: Any = None,
    steps: int = 32,
    deleted: Baseline = "zero",
    empty: Baseline | None = None,
    done: Done | None = None,
) -> PerturbationCurves:
    """Return deletion and insertion curves of one or several saliency maps of an input (Petsiuk et al. 2018).

    Args:
        model: The model that the maps are of.
        given: The input that they are of.
        saliency: A map, or several by name, all of one target.
        target: The target; that of the maps if not given. For a function of the logits its value is followed.
        tokenizer: The tokenizer of a model of transformers, if a text is given.
        steps: Steps from nothing to everything; of a text at most one per token.
        deleted: What takes the place of a deleted pixel or token, as the baseline of `saliency`.
        empty: What insertion begins with; a blurred image, or "zero" for a text, if not given.
        done: Called with the number of rows just finished, and of all.

    Examples:
        >>> model, text = clearhead.load("everyday"), "A man is standing in the"
        >>> curves = perturbation_curves(model, text, saliency(model, text, method="occlusion"))
        >>> float(curves.deletion["occlusion"][0]) == float(curves.insertion["occlusion"][-1])
        True
    """
    if isinstance(saliency, Saliency):
        maps = {saliency.method: saliency}
    else:
        maps = dict(saliency)
    if not maps:
        raise InputError("perturbation_curves got no saliency maps: expected one or more")
    if steps < 1:
        raise InputError(f"steps={steps}: expected 1 or more")
    # All maps must explain the same output, or the curves would compare different things.
    chosen = {(saliency_map.index, saliency_map.at) for saliency_map in maps.values()}
    if len(chosen) > 1:
        raise InputError(
            f"maps of several targets, {', '.join(sorted(saliency_map.target for saliency_map in maps.values()))}"
        )
    ((index, at),) = chosen
    # A function is not stored in a map, so that the caller must name it again.
    if target is None and index is None:
        raise InputError("these maps are of a function of the logits: expected target=the function")
    about = float_input(model, given, tokenizer=tokenizer, at=at)
    if about.kind == "image":
        size = tuple(about.x.shape[-2:])
    else:
        size = (about.x.shape[1],)
    for name, saliency_map in maps.items():
        if tuple(saliency_map.values.shape) != size:
            raise InputError(
                f"the map {name!r} has shape {tuple(saliency_map.values.shape)}: the input has {size}"
            )
    if target is None:
        target = index
    # A blurred image keeps colours; Petsiuk et al. insert into one. Texts have no blur.
    if empty is None:
        empty = "blur" if about.kind == "image" else "zero"
    with torch.no_grad():
        goal = choose_target(target, about.logits(about.x), about.names, about.name)
        places = math.prod(size)
        # From none to all places, with both ends, in equal steps.
        counts = torch.linspace(0, places, min(steps, places) + 1).round().long()
        start, removed = baseline_of(about, empty), baseline_of(about, deleted)
        # Rows of all curves together, for the progress.
        rows = 2 * len(maps) * len(counts)
        deletion, insertion = {}, {}
        for name, saliency_map in maps.items():
            order = saliency_map.values.flatten().argsort(descending=True, stable=True)
            # the rank of each place, 0 for the most salient
            rank = torch.empty_like(order).scatter_(0, order, torch.arange(places))
            rank = rank.reshape(size).to(about.x.device)
            # Deletion turns the input into `removed`; insertion turns `start` into the input.
            deletion[name] = _curve(about, goal, rank, counts, about.x, removed, done, rows)
            insertion[name] = _curve(about, goal, rank, counts, start, about.x, done, rows)
    return PerturbationCurves(
        target=goal.name,
        share=counts / places,
        deletion=deletion,
        insertion=insertion,
    )


def _curve(
    about: FloatInput,
    goal: Target,
    rank: Tensor,
    counts: Tensor,
    before: Tensor,
    after: Tensor,
    done: Done | None,
    rows: int,
) -> Float[Tensor, "n"]:
    """The probability where the first places are from `after` and the others from `before`."""
    parts = []
    for some in counts.split(about.rows(goal.outputs)):
        # (n, *size): in row i the first counts[i] places have changed.
        changed = rank < some.to(rank.device).reshape(-1, *[1] * rank.ndim)
        if about.kind == "image":
            # The same places in all channels of an image.
            changed = changed[:, None]
        else:
            # The whole embedding of a token.
            changed = changed[:, :, None]
        logits = about.logits(torch.where(changed, after, before)).double()
        # A function of the logits has no probability: its value is drawn.
        if goal.index is None:
            parts.append(goal.score(logits))
        else:
            parts.append(logits.softmax(-1)[:, goal.index])
        if done is not None:
            done(len(some), rows)
    return torch.cat(parts).cpu().float()

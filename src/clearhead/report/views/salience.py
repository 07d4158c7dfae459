"""Views of saliency: one method, or several methods compared by deletion and insertion."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ... import draw
from ...errors import InputError, Notice
from ...look import SALIENCY_METHODS, PerturbationCurves, Saliency, perturbation_curves, saliency
from ...look.saliency_methods.gradients import IncompleteError
from ...weights import Bundle
from ..conditions import answers, reads
from ..registry import view_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Done = Callable[[int, int], None]
LINE = 0.2  # inches of a line of the title


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionShare(draw.Result):
    """A saliency map, and the share of it inside of a region."""

    saliency: Saliency
    # for an image: left, top, right, bottom in pixels of the model's input; for a text: token
    # indices
    region: list[int]
    share: float

    def figure(self) -> Figure:
        """Draw the map with the region's box; its share is in the title."""
        figure = self.saliency.figure()
        width, height = figure.get_size_inches()
        # Room for the second line of the title.
        figure.set_size_inches(width, height + LINE)
        figure.suptitle(f"{figure.get_suptitle()}\n{self.share:.0%} of the saliency in the region")
        # A text has no box: its region is tokens.
        if self.saliency.tokens is None:
            from matplotlib.patches import Rectangle

            # Pixels of the model's input; right and bottom are excluded.
            left, top, right, bottom = self.region
            for axes in figure.axes:
                # matplotlib wants the corner, width and height.
                axes.add_patch(
                    Rectangle((left, top), right - left, bottom - top, fill=False, color="#d55e00")
                )
        return figure

    def table(self) -> draw.Table:
        """The table of the map, with the share of the region as a note."""
        place = ",".join(map(str, self.region))
        return replace(self.saliency.table(), note=f"{self.share:.1%} in the region {place}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**self.saliency.to_dict(), "region": self.region, "share": self.share}


@view_of(
    "saliency",
    reads("images", "tokens", "pairs"),
    answers,
    cheaper="method=gradient, which takes one pass",
)
def salience(
    bundle: Bundle,
    given: Any,
    *,
    method: str | None = None,
    target: str | int | None = None,
    region: str | tuple[int, ...] | None = None,
    at: int | None = None,
    layer: str | int | None = None,
    baseline: str | float | None = None,
    steps: int | None = None,
    samples: int | None = None,
    noise: float | None = None,
    patch: int | None = None,
    stride: int | None = None,
    written: str = "",
    done: Done | None = None,
) -> Saliency | RegionShare:
    """Which pixels or tokens an answer depends on.

    Args:
        method: gradient, input-gradient, smoothgrad, integrated, grad-cam, occlusion, rollout or gradient-rollout; if
            not given, integrated, and occlusion where that does not add up to the change of the score.
        target: The class, the word or the number of the output that is explained; the likeliest if not given.
        region: Also the share of a region, in a RegionShare: left,top,right,bottom in pixels of the model's input, or
            numbers of tokens.
        at: The token whose prediction is explained; the last, or the mask, if not given.
        layer: For grad-cam: a stage, a block, or its number.
        baseline: For integrated and occlusion: zero, black, white, blur or a number.
        steps: For integrated: points of the path.
        samples: For smoothgrad: noisy inputs.
        noise: For smoothgrad: standard deviation, as a share of the range of the input.
        patch: For occlusion: edge of the window.
        stride: For occlusion: distance between windows.
        written: For a translator: what it has written so far.
    """
    found = saliency(
        bundle,
        with_written(bundle, given, written),
        method=method,
        target=target,
        at=at,
        layer=layer,
        baseline=baseline,
        steps=steps,
        samples=samples,
        noise=noise,
        patch=patch,
        stride=stride,
        done=done,
    )
    if region is None:
        return found
    numbers = whole_numbers("region", region)
    return RegionShare(saliency=found, region=numbers, share=found.share(numbers))


@view_of(
    "perturbation", reads("images", "tokens", "pairs"), answers, cheaper="methods=gradient steps=8"
)
def perturbation(
    bundle: Bundle,
    given: Any,
    *,
    methods: str = "gradient,input-gradient,smoothgrad,integrated",
    target: str | int | None = None,
    steps: int = 32,
    written: str = "",
    done: Done | None = None,
) -> PerturbationCurves:
    """Deletion and insertion curves of several saliency methods (Petsiuk et al. 2018).

    Args:
        methods: Methods of saliency, with commas between them.
        target: The class, the word or the number of the output that is explained; the likeliest if not given.
        steps: Steps from nothing to everything; of a text at most one per token.
        written: For a translator: what it has written so far.
    """
    names = [name.strip() for name in methods.split(",") if name.strip()]
    unknown = [name for name in names if name not in SALIENCY_METHODS]
    # An empty list of methods would give an empty figure.
    if unknown or not names:
        raise InputError(f"methods={methods!r}: expected some of {', '.join(SALIENCY_METHODS)}")
    one = with_written(bundle, given, written)
    maps: dict[str, Saliency] = {}
    for name in names:
        try:
            # Every method explains the same answer, so that the curves can be compared.
            maps[name] = saliency(bundle, one, method=name, target=target, done=done)
        except IncompleteError as problem:
            # The only method has failed: the reason is the answer.
            if len(names) == 1:
                raise
            # A map whose values do not add up to the change of the score is not compared with the
            # others.
            warnings.warn(f"{name} is left out: {problem}", Notice, stacklevel=2)
    return perturbation_curves(bundle, one, maps, steps=steps, done=done)


def with_written(bundle: Bundle, given: Any, written: str) -> Any:
    """The input of a saliency method: of a translator, the source and what is written so far."""
    if bundle.reads == "pairs":
        return (given, written)
    return given


def whole_numbers(name: str, given: str | Sequence[int]) -> list[int]:
    """Whole numbers from a sequence, or from a text with commas between them; raises with the name of the option."""
    # Python gives a sequence, the command line a text.
    parts = [str(part).strip() for part in (given.split(",") if isinstance(given, str) else given)]
    if not all(part.isdigit() for part in parts):
        raise InputError(
            f'{name}={given!r}: expected whole numbers, as in {name}=(10, 20, 60, 80), or in a text, "10,20,60,80"'
        )
    return [int(part) for part in parts]

"""Views: every tool of `look` by one word, for a model and one input.

registry         View, and the conditions that a model has to meet
attention        attention, cls, rollout, gradient-rollout
salience         saliency, perturbation
sinks            sinks
appearance       fields, features, filters, positions, patch-colours, neighbours
causes           lens, attribution, patching, heads, effects
time_limit       the estimate of a view's time, and the limit
image_attention  results of the view attention for images and captions
tables           what a terminal shows of each result
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InputError, nearest
from ...look.maps.attention_map import MapSizeError
from ...weights import Bundle
from ..example_inputs import example_input
from . import appearance, attention, causes, salience, sinks  # noqa: F401  (each registers its views)
from .registry import VIEWS, View, check_fit, fitting
from .time_limit import TimeLimit

__all__ = ["VIEWS", "View", "fitting", "view"]


def view(
    bundle: Bundle,
    name: str,
    given: Any = None,
    *,
    done: Callable[[int, int], None] | None = None,
    limit: float | None = None,
    **options: Any,
) -> Any:
    """Look into a model by the name of a view: what `clearhead look` does.

    Args:
        bundle: A model, from `load`.
        name: A view, a key of clearhead.report.views.VIEWS, such as "attention", "saliency" or "lens".
        given: A text, or an image (a path, the name of one that ships such as "golf-ball", a PIL image or an array); an
            example if not given.
        done: Called with the amount of work just finished, and of all.
        limit: Seconds that the view may take by an estimate from its first passes; None: as many as it needs. With a
            limit, a Notice says how long it will take if that is ten seconds or more.
        options: The options of the view, which `clearhead look --help` lists, such as method="grad-cam" of saliency.

    Returns:
        The result of the tool of `look` that the view names, with `figure()` (a matplotlib Figure), `to_dict()` and
        fields of its own: saliency a Saliency (values, tokens, probability), or with region=... a RegionShare
        (saliency, share); lens a LogitLens (top, rank, divergence); patching a Patching (matrix); cls a ClsMaps (maps);
        fields a Fields (sides(), maps).

    Raises:
        InputError: If there is no such view, or it does not fit the model, and the message says which do; or if it
            would take longer than the limit.

    Examples:
        >>> result = view(clearhead.load("everyday"), "saliency", "A man is standing in the", method="gradient")
        >>> result.tokens
        ['A', ' man', ' is', ' standing', ' in', ' the']
        >>> figure = result.figure()
    """
    chosen = find_view(name, bundle)
    check_fit(chosen, bundle)
    if chosen.needs_input and given is None:
        given = example_input(bundle)
    report = TimeLimit(name, limit, cheaper=chosen.cheaper, done=done)
    try:
        return chosen.run(bundle, given, done=report, **options)
    except MapSizeError as problem:
        others = [other.name for other in fitting(bundle).values() if not other.dense]
        raise InputError(
            f"the input is too long for the view {name}, which holds whole attention maps ({problem}); views that fit: "
            f"{', '.join(others)}"
        ) from problem


def find_view(name: str, bundle: Bundle | None = None) -> View:
    """The view of a name; raises with the views that fit a model, if one is given."""
    if name not in VIEWS:
        known = VIEWS if bundle is None else fitting(bundle)
        fit = "" if bundle is None else f" that fits this {bundle.name}"
        raise InputError(
            f"no view {name!r}: expected one{fit}: {', '.join(known)}{nearest(name, VIEWS)}"
        )
    return VIEWS[name]

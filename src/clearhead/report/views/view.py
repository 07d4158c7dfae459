"""view: look into a model by the name of a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InputError
from ...look.maps.attention_map import MapSizeError
from ...weights import ModelLike, opened
from ..example_inputs import example_input
from ..registry import VIEWS as VIEWS
from ..registry import find_view
from ..registry import fitting as fitting
from . import appearance, attention, causes, salience  # noqa: F401  (each registers its views)
from .time_limit import TimeLimit


def view(
    bundle: ModelLike,
    name: str,
    given: Any = None,
    *,
    done: Callable[[int, int], None] | None = None,
    limit: float | None = None,
    **options: Any,
) -> Any:
    """Look into a model by the name of a view: what `clearhead view` does.

    Args:
        bundle: A model, or its name or folder.
        name: A view, a key of clearhead.report.views.VIEWS, such as "attention", "saliency" or "lens".
        given: A text, or an image (a path, the name of one that ships such as "golf-ball", a PIL image or an array); an
            example if not given.
        done: Called with the amount of work just finished, and of all.
        limit: Seconds that the view may take by an estimate from its first passes; None: as many as it needs. With a
            limit, a Notice says how long it will take if that is ten seconds or more.
        options: The options of the view, which `clearhead view --help` lists, such as method="grad-cam" of saliency.

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
    bundle = opened(bundle)
    chosen = find_view(name, bundle)
    # Views of weights, such as filters, take no input.
    if chosen.needs_input and given is None:
        given = example_input(bundle)
    report = TimeLimit(name, limit, cheaper=chosen.cheaper, done=done)
    try:
        return chosen.run(bundle, given, done=report, **options)
    except MapSizeError as problem:
        # Only views that do not hold whole maps can take such an input.
        others = [other.name for other in fitting(bundle).values() if not other.dense]
        raise InputError(
            f"the input is too long for the view {name}, which holds whole attention maps ({problem}); views that fit: "
            f"{', '.join(others)}"
        ) from problem

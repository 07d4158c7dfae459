"""View: one way to look into a model, and which models it fits.

To add a view, write a function (bundle, given, *, options..., done) whose docstring begins with one line of help and
lists the options, and decorate it with `view_of` and the conditions that a model has to meet. It returns a result with
`figure()` and `to_dict()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...errors import InputError, UserError
from ...look import filters, position_similarity
from ...look.capture.addresses import Tree, matching
from ...look.structure import layer_lists
from ...weights import Bundle

Condition = Callable[[Bundle], str | None]  # None if a model fits, else the reason why it does not
READS = {
    "tokens": "texts",
    "pairs": "pairs of texts",
    "images": "images",
    "captions": "images with captions",
    "vectors": "vectors",
}


@dataclass(frozen=True, kw_only=True)
class View:
    """A way to look into a model."""

    name: str
    # (bundle, given, *, options, done) -> a result with figure() and to_dict()
    run: Callable[..., Any]
    conditions: tuple[Condition, ...]  # what a model must have
    needs_input: bool  # False: it shows weights, and no input is read
    dense: bool  # it holds whole attention maps, which long inputs are too large for
    cheaper: str = ""  # which of its options take less time, for messages

    @property
    def help(self) -> str:
        """What it shows, in one line."""
        return (self.run.__doc__ or "").strip().splitlines()[0]

    def misfit(self, bundle: Bundle) -> str | None:
        """The reason why the view does not fit a model; None if it does."""
        reasons = (condition(bundle) for condition in self.conditions)
        return next((reason for reason in reasons if reason is not None), None)


VIEWS: dict[str, View] = {}  # all views by name


def view_of(
    name: str,
    *conditions: Condition,
    needs_input: bool = True,
    dense: bool = False,
    cheaper: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that registers a function as a view."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        VIEWS[name] = View(
            name=name,
            run=run,
            conditions=conditions,
            needs_input=needs_input,
            dense=dense,
            cheaper=cheaper,
        )
        return run

    return register


def fitting(bundle: Bundle) -> dict[str, View]:
    """The views that fit a model."""
    return {name: view for name, view in VIEWS.items() if view.misfit(bundle) is None}


# Conditions


def reads(*kinds: str) -> Condition:
    """The model reads one of these kinds of input."""

    def condition(bundle: Bundle) -> str | None:
        wanted = " or ".join(READS[kind] for kind in kinds)
        if bundle.reads in kinds:
            return None
        return f"it reads {READS[bundle.reads]}, and this view is of {wanted}"

    return condition


def attends(bundle: Bundle) -> str | None:
    """The model has attention."""
    tree = Tree(bundle.model)
    if matching("**.weights", tree.known | tree.possible):
        return None
    return "it has no attention"


def layered(bundle: Bundle) -> str | None:
    """The model has a list of layers with attention."""
    if layer_lists(bundle.model):
        return None
    return "it has no list of layers with attention"


def at_once(bundle: Bundle) -> str | None:
    """The model reads all tokens at once."""
    steps = any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in bundle.model.modules())
    if steps:
        return "it reads and attends step by step"
    return None


def answers(bundle: Bundle) -> str | None:
    """The model gives logits of classes or tokens."""
    can = bundle.can & {"classify", "predict", "fill", "translate"}
    if can:
        return None
    return "it returns vectors, and this view explains an answer: a class or a token"


def class_token(bundle: Bundle) -> str | None:
    """The model has a class token."""
    without = getattr(getattr(bundle.model, "embed", None), "cls", ()) is None
    if without:
        return "it has no class token: its answer is read from its patches"
    return None


def linear_end(bundle: Bundle) -> str | None:
    """What follows the last norm of the model is linear."""
    if "fill" in bundle.can:
        return "what follows its last norm is not linear"
    normed = any(
        "norm" in type(part).__name__.lower()
        for part in bundle.model.modules()
        if not list(part.children())
    )
    if normed:
        return None
    return "it has no norm before its output layer"


def tokens(bundle: Bundle) -> str | None:
    """The model has tokens."""
    if bundle.tokens is not None:
        return None
    return "it has no tokens"


def colour_filters(bundle: Bundle) -> str | None:
    """The first convolution of the model reads an image."""
    return _reason(lambda: filters(bundle, most=1), "no convolution of it reads 1 or 3 channels")


def position_vectors(bundle: Bundle) -> str | None:
    """The positions of the model are vectors."""
    return _reason(lambda: position_similarity(bundle), "its positions are no vectors")


def _reason(attempt: Callable[[], Any], words: str) -> str | None:
    try:
        attempt()
    except UserError:
        return words
    return None


def check_fit(view: View, bundle: Bundle) -> None:
    """Raise if a view does not fit a model; the message says why, and which views do."""
    reason = view.misfit(bundle)
    if reason is not None:
        raise InputError(
            f"the view {view.name} does not fit this {bundle.name}: {reason}; views that fit: "
            f"{', '.join(fitting(bundle))}"
        )

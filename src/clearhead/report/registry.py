"""What `look`, `compare` and `figure` offer by name: views, sections of a comparison, figures of papers.

Each is a function whose docstring begins with one line of help, and which a decorator adds to its table:

view_of     (bundle, given, *, options..., done) -> a result, for the models that meet some conditions
section_of  (pair) -> Section, which raises UnfitError with the reason where it fits neither model
figure_of   () -> Figure, drawn with the models that ship
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import InputError, nearest
from ..weights import Bundle
from .conditions import Condition

Run = TypeVar("Run", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A registered function and its name."""

    name: str
    run: Callable[..., Any]

    @property
    def help(self) -> str:
        """What it shows, in one line."""
        return (self.run.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True, kw_only=True)
class View(Entry):
    """A way to look into a model."""

    conditions: tuple[Condition, ...]  # what a model must have
    needs_input: bool  # False: it shows weights, and no input is read
    dense: bool  # it holds whole attention maps, which long inputs are too large for
    cheaper: str = ""  # which of its options take less time, for messages

    def misfit(self, bundle: Bundle) -> str | None:
        """The reason why the view does not fit a model; None if it does."""
        # The conditions are ordered: the first that fails is the reason to show.
        for condition in self.conditions:
            reason = condition(bundle)
            if reason is not None:
                return reason
        return None


@dataclass(frozen=True, kw_only=True)
class Measure(Entry):
    """A section of a comparison of two models."""

    title: str


@dataclass(frozen=True, kw_only=True)
class PaperFigure(Entry):
    """A figure of the lectures or papers."""

    source: str  # the paper or the idea behind it


VIEWS: dict[str, View] = {}
SECTIONS: dict[str, Measure] = {}  # in the order of the report
FIGURES: dict[str, PaperFigure] = {}


def view_of(
    name: str,
    *conditions: Condition,
    needs_input: bool = True,
    dense: bool = False,
    cheaper: str = "",
) -> Callable[[Run], Run]:
    """Decorator that registers a function as a view."""

    def register(run: Run) -> Run:
        # Views register when their module is imported, which report.views does for all.
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


def section_of(name: str, title: str) -> Callable[[Run], Run]:
    """Decorator that registers a function as a section of a comparison."""

    def register(run: Run) -> Run:
        SECTIONS[name] = Measure(name=name, run=run, title=title)
        return run

    return register


def figure_of(name: str, source: str) -> Callable[[Run], Run]:
    """Decorator that registers a function as a figure."""

    def register(run: Run) -> Run:
        FIGURES[name] = PaperFigure(name=name, run=run, source=source)
        return run

    return register


def fitting(bundle: Bundle) -> dict[str, View]:
    """The views that fit a model."""
    return {name: view for name, view in VIEWS.items() if view.misfit(bundle) is None}


def find_view(name: str, bundle: Bundle) -> View:
    """The view of a name; raises with the views that fit the model, if there is none or if it does not fit."""
    # A misspelt name and a view that does not fit are different mistakes, with different messages.
    if name not in VIEWS:
        raise InputError(
            f"no view {name!r}: expected one that fits this {bundle.name}: "
            f"{', '.join(fitting(bundle))}{nearest(name, VIEWS)}"
        )
    reason = VIEWS[name].misfit(bundle)
    if reason is not None:
        raise InputError(
            f"the view {name} does not fit this {bundle.name}: {reason}; views that fit: "
            f"{', '.join(fitting(bundle))}"
        )
    return VIEWS[name]


def find_figure(name: str) -> PaperFigure:
    """The figure of a name; raises with the names of all."""
    if name not in FIGURES:
        raise InputError(
            f"no figure {name!r}: expected one of {', '.join(FIGURES)}{nearest(name, FIGURES)}"
        )
    return FIGURES[name]

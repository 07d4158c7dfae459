"""figure: the figures of the lectures and papers, drawn with the models that ship.

registry   PaperFigure, and how to add one
language   translators and language models
vision     vision transformers and convolutional networks
ideas      no model, or one idea: schedules, positions, Iris, rotation
"""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import draw
from ...atomic_files import atomic_write
from ...errors import InputError, nearest
from ..result_files import page, picture
from . import ideas, language, vision  # noqa: F401  (each registers its figures)
from .registry import FIGURES, PaperFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "PaperFigure", "draw_figure", "figure"]


def figure(name: str) -> Figure:
    """Draw a figure of the lectures or papers with the models that ship; nothing is downloaded.

    Args:
        name: A figure: a key of clearhead.report.figures.FIGURES, which `clearhead figure` lists.

    Raises:
        InputError: If there is no such figure; the message names all.

    Examples:
        >>> drawn = figure("iris")
        >>> drawn.axes[0].get_xlabel()
        'PCA 1 (92% of the variance)'
    """
    return find_figure(name).make()


def draw_figure(name: str, out: Path, *, done: Callable[[int, int], None] | None = None) -> Path:
    """Draw a figure into a file, by the ending of its name; a page of HTML also has its source."""
    chosen = find_figure(name)
    if out.suffix.lower() not in (".png", ".svg", ".pdf", ".html") or out.is_dir():
        raise InputError(
            f"{out}: expected the name of a file that ends in .png, .svg, .pdf or .html"
        )
    drawn: Any = chosen.make()
    if done is not None:
        done(1, 1)
    if out.suffix.lower() != ".html":
        return draw.save(drawn, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    words = f'<p class="quiet">{html.escape(chosen.source)}</p>'
    atomic_write(out, page(chosen.help, picture(drawn, chosen.help) + words).encode())
    return out


def find_figure(name: str) -> PaperFigure:
    """The figure of a name; raises with the names of all."""
    if name not in FIGURES:
        raise InputError(
            f"no figure {name!r}: expected one of {', '.join(FIGURES)}{nearest(name, FIGURES)}"
        )
    return FIGURES[name]

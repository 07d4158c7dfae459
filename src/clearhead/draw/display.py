"""Drawn: what a notebook shows of a result that has a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .style import encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn:
    """A result with a figure, which notebooks show in place of its text.

    Examples:
        >>> class Weights(Drawn):
        ...     def figure(self):
        ...         return heatmap([[1.0, 0.0], [0.3, 0.7]])
        >>> Weights()._repr_png_()[1:4]
        b'PNG'
    """

    def figure(self) -> Figure:
        """Draw the result."""
        raise NotImplementedError

    def _repr_png_(self) -> bytes:
        """The figure as a PNG file, for notebooks."""
        return encode(self.figure())

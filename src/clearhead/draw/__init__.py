"""Arrays -> figures. Knows no torch and no model: it draws whatever numpy can read.

    heatmap   weights (queries, keys), from white at 0
    heads     weights (heads, queries, keys) as small multiples on one colour scale
    matrix    signed values, white at 0, blue above and orange below
    grids     any named matrices side by side; booleans become yes and no
    curves    named lines
    panels    several plots of named lines that share their colours and their legend
    bars      named groups of bars
    save      a figure to a file

Every verb returns a matplotlib Figure that belongs to nobody else: no pyplot, no global state, so it works
without a screen and from many threads. Matplotlib itself is imported when the first figure is drawn.
"""

from .cells import grids, heads, heatmap, matrix
from .lines import bars, curves, panels
from .style import save

__all__ = ["bars", "curves", "grids", "heads", "heatmap", "matrix", "panels", "save"]

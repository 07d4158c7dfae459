"""Arrays -> figures. It reads whatever numpy can read, and imports neither torch nor any model.

    heatmap          weights (queries, keys), from white at 0
    heads            weights (heads, queries, keys) as small multiples on one colour scale
    matrix           signed values, white at 0, blue above and orange below
    grids            named matrices side by side; booleans become yes and no
    curves           named lines
    panels           several plots of named lines that share their colours and their legend
    bars             named groups of bars
    scatter          points in the plane, coloured by class
    similarity       the similarity of layers, the first at the bottom left
    tiles            many small pictures as one grid
    images           named images side by side, with a map of weights over them
    overlay          an image lit where a map points, enlarged by smooth_map
    strip            an image, and one such panel per word
    signed_overlay   values over an image: orange below 0, blue above
    head_colours     maps of several heads over a dimmed image, one colour per head
    coloured_tokens  a text whose tokens are coloured by their values
    save, encode     write a figure to a file, or return its bytes
    Result           the base class of results: figure(), table(), to_dict(); notebooks show the figure
    Table            columns and rows, for a terminal or a page

Every function but overlay and smooth_map, which return arrays, returns a new matplotlib Figure. There is no pyplot and
no global state, so drawing works without a screen and from many threads. Matplotlib itself is imported when the first
figure is drawn.
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .bars import bars as bars
    from .cells import grids as grids
    from .cells import heads as heads
    from .cells import heatmap as heatmap
    from .cells import matrix as matrix
    from .cells import similarity as similarity
    from .coloured_text import coloured_tokens as coloured_tokens
    from .images import head_colours as head_colours
    from .images import images as images
    from .images import overlay as overlay
    from .images import signed_overlay as signed_overlay
    from .images import smooth_map as smooth_map
    from .images import strip as strip
    from .lines import curves as curves
    from .lines import panels as panels
    from .result import MOST_ROWS as MOST_ROWS
    from .result import Result as Result
    from .result import Table as Table
    from .result import largest_cell as largest_cell
    from .scatter import scatter as scatter
    from .style import FILE_DPI as FILE_DPI
    from .style import encode as encode
    from .style import save as save
    from .tiles import tiles as tiles

lazy.public_names(__name__)

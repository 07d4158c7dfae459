"""The style of every figure: its colours and fonts, and how it is saved.

Everything is set on the artists themselves and nothing in rcParams, so that a user's own matplotlib settings
stay as they are and several threads may draw at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from math import ceil
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import InputError, InputTypeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

# Text; axes and references; grid lines; background; missing values and faint lines.
INK, SOFT, HAIR, PAPER, VOID = "#1f2933", "#66717d", "#e3e6ea", "#ffffff", "#d3d7dc"
# The colours of Okabe and Ito 2008, which colour-blind people can distinguish; neighbours differ most. Without its
# yellow, which is too pale for a line.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933")
# Lightness falls in equal steps of OKLab from white to dark, so that equal differences of values appear equal.
BLUES = (
    "#fafafa",
    "#bde3f2",
    "#83caec",
    "#51ade3",
    "#2c8dd4",
    "#1d6dbd",
    "#204f9d",
    "#203477",
    "#191e4c",
)
ORANGES = (
    "#fafafa",
    "#edd9be",
    "#e1b687",
    "#d29355",
    "#bf7129",
    "#a65200",
    "#883600",
    "#662100",
    "#421203",
)
FILE_DPI = 200.0  # dots per inch of a picture that is saved: sharp on a projector and in print
NARROW = 4.0  # inches: figures of one width and one scale of fonts look alike side by side
# of a map over an image: the share of LIGHT where the weight is largest, of black where it is 0
GLOW, DIM = 0.55, 0.45
LIGHT = (1.0, 0.82, 0.2)  # amber, which few photographs have
# the font that matplotlib ships; sizes in points
FONT, LARGE, MEDIUM, SMALL = "DejaVu Sans", 11.0, 9.5, 8.5


def colours(signed: bool) -> Colormap:
    """The colour map of weights (0 is white), or of signed values (0 is white, orange below, blue above)."""
    from matplotlib.colors import LinearSegmentedColormap

    name, steps = "weights", list(BLUES)
    if signed:
        # darker ends would be alike
        name, steps = "signed", [*ORANGES[6:0:-1], *BLUES[:7]]
    colour_map = LinearSegmentedColormap.from_list(name, steps)
    return colour_map.with_extremes(bad=VOID)  # NaN


def sheet(width: float, height: float, title: str = "") -> Figure:
    """An empty figure of a width and height in inches, with automatic layout."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")
    if title:
        figure.suptitle(title, **letters(LARGE))
    return figure


def rows_of_panels(count: int, across: int, noun: str) -> tuple[int, int]:
    """Return the numbers of panels in a row, and of rows, for `count` panels and at most `across` in a row."""
    if across < 1:
        raise InputError(f"across={across}: expected 1 {noun} or more in a row")
    across = min(across, count)
    return across, ceil(count / across)


def panel_axes(figure: Figure, count: int, across: int, *, share_y: bool = False) -> list[Axes]:
    """Return the axes of `count` panels, row by row; places of the last row that are not used stay empty."""
    sharing: Literal["row", "none"] = "row" if share_y else "none"
    grid = figure.subplots(ceil(count / across), across, squeeze=False, sharey=sharing)
    every = list(grid.flat)
    for axes in every[count:]:
        axes.set_visible(False)
    return every[:count]


def luminous(share: Array) -> Array:
    """An RGBA layer (..., 4) over an image: amber light where the share is 1, half-transparent black where it is 0."""
    light = GLOW * share[..., None] * np.array(LIGHT)
    opacity = ((1 - share) * DIM + share * GLOW)[..., None]
    return np.concatenate([light / opacity, opacity], axis=-1)


def letters(size: float, colour: str = INK) -> dict[str, Any]:
    """The text properties of a font size in points."""
    return {"fontsize": size, "color": colour, "fontfamily": FONT, "fontweight": "normal"}


def dress(axes: Axes, *, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Style axes: two grey spines, small ticks, dark labels."""
    axes.set_facecolor(PAPER)
    axes.grid(False)
    for name, spine in axes.spines.items():
        # no frame: only the two axes that have ticks
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(SOFT)
        spine.set_linewidth(0.8)
    axes.tick_params(
        which="both",
        color=SOFT,
        labelcolor=INK,
        labelsize=SMALL,
        labelfontfamily=FONT,
        length=3,
        width=0.8,
    )
    axes.set_xlabel(xlabel, **letters(MEDIUM))
    axes.set_ylabel(ylabel, **letters(MEDIUM))
    axes.set_title(title, **letters(MEDIUM))


def colour_legend(figure: Figure, entries: Mapping[str, Any], *, title: str = "") -> None:
    """Add a legend of coloured squares below a figure.

    Args:
        figure: The figure.
        entries: {name: colour}.
        title: A line above the names.
    """
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in entries.items()]
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 6),
        frameon=False,
        handlelength=1.0,
        handleheight=1.0,
        title=title or None,
    )
    legend.get_title().set(**letters(SMALL, SOFT))
    for text in legend.get_texts():
        text.set(**letters(SMALL), parse_math=False)


def sign_legend(figure: Figure, above: str, below: str) -> None:
    """Add a legend of the colours of signed values: what blue (above 0) and orange (below 0) mean; "": no entry."""
    shades = {above: colours(signed=True)(0.85), below: colours(signed=True)(0.15)}
    entries = {name: shade for name, shade in shades.items() if name}
    if entries:
        # a side without a meaning has no entry
        colour_legend(figure, entries)


def array(name: str, values: npt.ArrayLike, axes: tuple[str, ...]) -> Array:
    """Return values as an array of numbers with these axes, or raise with a message that begins with their name."""
    # (heads,) or (queries, keys), as a shape is written
    expected = str(axes).replace("'", "")
    if hasattr(values, "dense"):  # a lazy AttentionMap
        raise InputError(
            f"{name} is an {type(values).__name__}: expected {expected}, such as .dense()[0]"
        )
    try:
        x = np.asarray(values)
    except Exception as problem:  # ragged lists, and foreign arrays that numpy cannot read
        raise InputError(f"{name} cannot be read as an array {expected}: {problem}") from problem
    if x.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {x.dtype}: expected real numbers {expected}")
    if x.ndim != len(axes):
        raise InputError(f"{name} has shape {x.shape}: expected {expected}")
    if x.size == 0:
        raise InputError(f"{name} has shape {x.shape}: there is nothing to draw")
    if x.dtype.kind == "f":
        # an infinite value would leave no room for the others on any scale; NaN means no value
        if np.isinf(x).any():
            raise InputError(
                f"{name} holds an infinite number: expected finite ones, or NaN for none"
            )
        if np.isnan(x).all():
            raise InputError(f"{name} holds only NaN: there is nothing to draw")
    return x


def encode(figure: Figure, kind: str = "png", *, dpi: float = 110.0) -> bytes:
    """Return a figure as the bytes of a file; equal figures give equal PNG files.

    Args:
        figure: A figure that a function of this package returned.
        kind: The format: png, pdf, svg and others.
        dpi: Dots per inch of formats made of pixels.

    Examples:
        >>> encode(heatmap([[1.0, 0.0], [0.3, 0.7]]), "svg")[:5]
        b'<?xml'
    """
    undated = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    file = BytesIO()
    figure.savefig(
        file,
        format=kind,
        dpi=dpi,
        facecolor=PAPER,
        bbox_inches="tight",
        pad_inches=0.06,
        metadata=undated.get(kind),
    )
    return file.getvalue()


def save(figure: Figure, path: str | PathLike[str], *, dpi: float = FILE_DPI) -> Path:
    """Write a figure to a file; equal figures give equal PNG files.

    Args:
        figure: A figure that a function of this package returned.
        path: The file, whose ending is the format: png, pdf, svg and others. A missing folder is created.
        dpi: Dots per inch of formats made of pixels; svg and pdf are sharp at any size.

    Returns:
        The path of the file.

    Examples:
        >>> save(heatmap([[1.0, 0.0], [0.3, 0.7]]), tmp / "weights.png").name
        'weights.png'
    """
    from matplotlib.figure import Figure

    if not isinstance(figure, Figure):
        raise InputTypeError(
            f"save got a {type(figure).__name__}: expected a figure, as heatmap and the others return"
        )
    target = Path(fspath(path))
    known = sorted(figure.canvas.get_supported_filetypes())
    if target.suffix[1:].lower() not in known:
        raise InputError(
            f"{target.name!r}: expected a name that ends in one of .{', .'.join(known)}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(encode(figure, target.suffix[1:].lower(), dpi=dpi))
    return target

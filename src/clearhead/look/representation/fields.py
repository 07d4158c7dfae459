"""receptive_fields: the part of an image that a unit of each layer depends on.

The effective field is the gradient of a unit with respect to the pixels, averaged over images (Luo et al. 2016); the
theoretical one is all that it can depend on, whatever the weights (`theoretical_fields`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...errors import InputError, InputIndexError, Notice
from ...inputs import Batch, network
from ...inputs.read import Data
from ...progress import Done
from ...weights import Bundle
from ..structure import Axes, OutputAxes
from .features import LayerReader
from .theoretical_field import theoretical_fields

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = 8  # per batch: the graph of the whole model is kept
UNITS = ("centre", "cls")
MASS = 0.9  # share of the gradient that the side of a field refers to


@dataclass(frozen=True, kw_only=True, eq=False)
class Fields(draw.Result):
    """The receptive field of one unit of each layer.

    Examples:
        >>> model = clearhead.build("resnet", classes=3, stem="small", width=4, depths=(1, 1)).eval()
        >>> fields = receptive_fields(model, torch.randn(2, 3, 16, 16))
        >>> fields.names, fields.theoretical
        (['stem', 'stages.0.0', 'stages.1.0'], [(3, 3), (7, 7), (13, 13)])
        >>> fields.sides().shape, fields.radii().shape
        ((3,), (3,))
    """

    names: list[str]  # the layers
    maps: Float[np.ndarray, "l y x"]  # the mean absolute gradient at each pixel, with the sum 1
    # height and width in pixels; None: the whole image, or not asked for
    theoretical: list[tuple[int, int] | None]
    title: str = ""  # the name of the model

    def __repr__(self) -> str:
        height, width = self.maps.shape[1:]
        return f"Fields(layers={len(self.names)}, pixels={height} x {width}, title={self.title!r})"

    def sides(self, mass: float = MASS) -> Float[np.ndarray, "l"]:
        """The side in pixels of the square around the centre of each map that holds a share of it.

        Args:
            mass: The share.
        """
        if not 0 < mass <= 1:
            raise InputError(f"mass={mass}: expected a share above 0 and up to 1")
        return np.array([_side(x, mass) for x in self.maps])

    def radii(self) -> Float[np.ndarray, "l"]:
        """The radius of gyration of each map in pixels: the root mean square distance from its centre."""
        squares = []
        for x in self.maps:
            # Second moments around the centre of gravity, weighted by the gradient.
            weights, rows, columns = _places(x)
            squares.append((weights * (rows**2 + columns**2)).sum())
        return np.sqrt(squares)

    def figure(self, *others: Fields) -> Figure:
        """Draw the size of the field by depth: the side that holds 90 % of the gradient, and the theoretical one.

        A dashed line is the height of the image, beyond which a theoretical field may go.

        Args:
            others: The fields of other models to draw beside it, by relative depth and without the theoretical ones.
        """
        # Models differ in depth and are compared along their relative depth.
        if others:
            curves = {}
            for i, fields in enumerate((self, *others)):
                sides = fields.sides()
                curves[fields.title or f"model {i}"] = (np.linspace(0, 1, len(sides)), sides)
            return draw.curves(
                curves,
                xlabel="relative depth",
                ylabel="side in pixels",
                title="Square that holds 90 % of the gradient",
                zero=True,
            )
        depth = np.arange(len(self.names))
        lines: dict[str, tuple[Any, Any]] = {"90 % of the gradient": (depth, self.sides())}
        if any(size is not None for size in self.theoretical):
            # A field that is the whole image has no number: a gap in the line.
            height = [np.nan if size is None else float(size[0]) for size in self.theoretical]
            lines["theoretical"] = (depth, np.array(height))
        lines["image"] = (depth, np.full(len(depth), float(self.maps.shape[1])))
        return draw.curves(
            lines,
            xlabel="layer",
            ylabel="side in pixels",
            title=f"Receptive field of {self.title or 'each layer'}",
            dashed=["image"],
            zero=True,
            names=self.names,
        )

    def table(self) -> draw.Table:
        """The size of each layer's field in pixels."""
        sides, radii = self.sides().tolist(), self.radii().tolist()
        rows = []
        for i, size in enumerate(self.theoretical):
            theoretical = "whole image" if size is None else f"{size[0]} x {size[1]}"
            rows.append((self.names[i], sides[i], radii[i], theoretical))
        return draw.Table(
            columns=("layer", "side of 90 % of the gradient", "radius", "theoretical"),
            rows=rows,
            title="receptive field in pixels",
        )

    def pictures(
        self, *, across: int = 6, layers: Sequence[int] | None = None, title: str = ""
    ) -> Figure:
        """Draw the map of each layer: the root of the gradient, and the square that holds 90 % of the gradient.

        Each map has a scale of its own, from white at its smallest value. The root shows a wide and faint field, which
        a strong centre would hide.

        Args:
            across: Maps per row.
            layers: The numbers of the layers to draw; None: all.
            title: The title of the figure.
        """
        chosen = range(len(self.names)) if layers is None else layers
        return draw.tiles(
            np.sqrt(self.maps[list(chosen)]),
            titles=[self.names[i] for i in chosen],
            title=title,
            across=across,
            boxes=[_square(self.maps[i], MASS) for i in chosen],
            size=1.1,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "names": self.names,
            "sides": self.sides().tolist(),
            "radii": self.radii().tolist(),
            "theoretical": [None if size is None else list(size) for size in self.theoretical],
            "maps": self.maps.tolist(),
            "title": self.title,
        }


def receptive_fields(
    model: Bundle | nn.Module,
    data: Data,
    layers: str | Sequence[str] | None = None,
    *,
    unit: str | tuple[int, int] = "centre",
    channel: int | None = None,
    theoretical: bool = True,
    seed: int = 0,
    done: Done | None = None,
) -> Fields:
    """Return the effective and the theoretical receptive field of one unit of each layer, in pixels.

    The effective field is the absolute gradient of the unit, summed over the channels of the image and averaged over
    images. A unit has many channels: their gradients are added with random signs, different for each image. (Added as
    they are, those of a layer that ends with a norm would cancel.)

    Args:
        model: A Bundle, or any torch module, that reads images.
        data: Images of one size: see `features`.
        layers: Addresses or patterns of layers; None: the blocks of the model.
        unit: Where the unit is: "centre" of the layer's grid, a (row, column) of it, or "cls", the first token.
        channel: The channel of the unit; None: all of them.
        theoretical: Also compute the theoretical field, with a copy of the model.
        seed: The seed of the signs.
        done: Called with the number of images just finished and the number of all.

    Raises:
        InputError: If the model reads no images, or a layer has no such unit.

    Examples:
        >>> vit = clearhead.build("vit", classes=3, size=16, patch=4, width=8, depth=2, heads=2).eval()
        >>> receptive_fields(vit, torch.randn(2, 3, 16, 16), ["embed", "blocks.*"]).theoretical
        [(4, 4), None, None]
    """
    if isinstance(model, Bundle) and model.reads != "images":
        raise InputError(
            f"this {model.name} reads {model.reads}: receptive fields are of images; of a text, `saliency` and "
            "`attention` show what an output depends on"
        )
    if isinstance(unit, str) and unit not in UNITS:
        raise InputError(f"unit={unit!r}: expected {', '.join(UNITS)} or a (row, column)")
    # "all" keeps whole outputs with their graph, from which single units are taken.
    reader = LayerReader(model, data, layers, "all", grad=True)
    generator = torch.Generator().manual_seed(seed)
    total: list[Tensor] = []
    first: Tensor | None = None
    with reader.reading():
        for start in range(0, len(reader), IMAGES):
            for batch in reader.inputs.batches(start, start + IMAGES):
                batch, images = _with_gradient(batch)  # (b, k, y, x)
                # The field of the first image's size stands for all.
                if first is not None and images.shape[1:] != first.shape:
                    raise InputError(
                        f"images of {tuple(first.shape)} and {tuple(images.shape[1:])}: expected one size"
                    )
                first = images[0].detach()
                outs = dict(zip(reader.names, reader.read_batch(batch), strict=True))
                axes = {name: _axes(reader, name, x, unit) for name, x in outs.items()}
                maps = [
                    _gradient(_unit(name, x, axes[name], unit), images, channel, generator)
                    for name, x in outs.items()
                ]
                # Absolute gradients are summed over batches and normalised at the end.
                total = [a + b for a, b in zip(total, maps, strict=True)] if total else maps
                if done is not None:
                    done(len(images), len(reader))
    assert first is not None
    whole = [_normalised(name, x) for name, x in zip(reader.names, total, strict=True)]

    def pick(name: str, x: Tensor, layout: OutputAxes) -> Tensor | None:
        """The centre of a layer's output for an image of another size, whose axes are the same."""
        # The axes of the last batch: images have one size, so that they are the same for all.
        known = axes[name]
        if known is None or known.grid is None:
            return None
        here = layout.like(known, x)
        if here is None:
            return None
        return _unit(name, x, here, "centre")

    sizes: list[tuple[int, int] | None] = [None] * len(reader.names)
    # A class token attends to all places: its theoretical field is the whole image.
    if theoretical and unit != "cls":
        sizes = theoretical_fields(network(model), reader.names, first, pick)
    title = getattr(model, "name", type(model).__name__)
    if isinstance(model, Bundle) and model.folder is not None:
        title = model.folder.name
    return Fields(names=reader.names, maps=np.stack(whole), theoretical=sizes, title=str(title))


def _with_gradient(batch: Batch) -> tuple[Batch, Tensor]:
    """The batch with images that get a gradient, and the images."""
    for i, x in enumerate(batch.args):
        # Only images have four axes: (b, channels, height, width).
        if x.ndim == 4:
            x = x.detach().requires_grad_()
            return replace(batch, args=(*batch.args[:i], x, *batch.args[i + 1 :])), x
    for name, x in batch.named.items():
        if x.ndim == 4:
            x = x.detach().requires_grad_()
            return replace(batch, named={**batch.named, name: x}), x
    raise InputError(
        "receptive fields are of images: expected images, or a tensor (n, channels, height, width)"
    )


def _axes(reader: LayerReader, name: str, x: Tensor, unit: str | tuple[int, int]) -> Axes | None:
    """The axes of a layer's output that has the unit; None of a vector, which is one unit."""
    # A vector (b, c) is one unit.
    if x.ndim == 2:
        return None
    if unit == "cls":
        return reader.layout.axes(name, x)
    return reader.grid_axes(name, x)


def _unit(
    name: str, x: Tensor, axes: Axes | None, unit: str | tuple[int, int]
) -> Float[Tensor, "b c"]:
    """The channels of one unit of a layer's output."""
    if axes is None:
        return x
    if unit == "cls":
        # x[:, 0] is the class token if there are tokens before the grid.
        if not axes.special:
            raise InputError(
                f"{name!r} has no class token: expected unit='centre' or a (row, column)"
            )
        return x[:, 0]
    assert axes.grid is not None
    rows, columns = axes.grid
    if isinstance(unit, str):
        unit = (rows // 2, columns // 2)
    row, column = unit
    if not (0 <= row < rows and 0 <= column < columns):
        raise InputIndexError(
            f"unit={unit}: the grid of {name!r} has {rows} x {columns} cells, counted from 0"
        )
    # Cells are numbered row by row.
    return axes.vectors(x)[:, row * columns + column]


def _gradient(
    unit: Float[Tensor, "b c"],
    images: Float[Tensor, "b k y x"],
    channel: int | None,
    generator: torch.Generator,
) -> Float[Tensor, "y x"]:
    """The absolute gradient of a unit, summed over images and their channels, in float64."""
    if channel is not None:
        if not 0 <= channel < unit.shape[1]:
            raise InputIndexError(
                f"channel={channel}: the unit has {unit.shape[1]}, counted from 0"
            )
        value = unit[:, channel].sum()
    else:
        # random signs, so that the gradients of channels do not cancel in the same way in every image
        signs = torch.randint(0, 2, unit.shape, generator=generator).to(unit) * 2 - 1
        value = (unit * signs).sum()
    # The unit does not depend on the pixels at all.
    if not value.requires_grad:
        return torch.zeros(images.shape[-2:], dtype=torch.float64, device=images.device)
    (gradient,) = torch.autograd.grad(value, images, retain_graph=True)
    return gradient.abs().double().sum((0, 1))


def _normalised(name: str, x: Tensor) -> np.ndarray:
    """A map with the sum 1; zeros, with a warning, if the unit depends on no pixel."""
    total = float(x.sum())
    if not total > 0:
        warnings.warn(f"{name}: the gradient of the unit is 0 everywhere", Notice, stacklevel=3)
        return np.zeros(tuple(x.shape))
    return np.asarray((x / total).cpu().numpy())


def _places(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weight of each pixel, and its distance from the centre of gravity in rows and in columns."""
    # An empty map has no centre; 1 avoids the division by 0.
    total = x.sum() or 1.0
    rows, columns = np.mgrid[: x.shape[0], : x.shape[1]].astype(float)
    return x / total, rows - (rows * x).sum() / total, columns - (columns * x).sum() / total


def _side(x: np.ndarray, mass: float) -> float:
    """The side of the square around the centre of a map that holds a share of it."""
    weights, rows, columns = _places(x)
    # Chebyshev distance: half the side of the smallest square around the centre through a pixel
    away = np.maximum(np.abs(rows), np.abs(columns)).round(9).ravel()
    order = np.argsort(away)
    held = np.cumsum(weights.ravel()[order])
    if not held[-1]:
        return 0.0
    # The first pixel at which the nearer ones hold the mass, less the rounding of the sum.
    last = np.searchsorted(held, mass * held[-1] - 1e-12)
    # From the outer edge of the pixel on one side to that on the other.
    return float(2 * away[order][last] + 1)


def _square(x: np.ndarray, mass: float) -> tuple[float, float, float, float]:
    """The square that holds a share of a map: its left, top, right and bottom edge in pixels."""
    side = _side(x, mass)
    _, rows, columns = _places(x)
    # The centre is as far from pixel 0 as that from it; half a pixel more, since pixel i covers i to i + 1.
    row, column = 0.5 - rows[0, 0], 0.5 - columns[0, 0]
    edges = column - side / 2, row - side / 2, column + side / 2, row + side / 2
    return float(edges[0]), float(edges[1]), float(edges[2]), float(edges[3])

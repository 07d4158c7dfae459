"""receptive_fields: the part of an image that a unit of each layer depends on.

The effective field is the gradient of a unit with respect to the pixels, averaged over images (Luo et al. 2016); the
theoretical one is all that it can depend on, whatever the weights (`theoretical_fields`).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ... import draw
from ...errors import InputError, InputIndexError, Notice
from ...inputs import Batch, network
from ...inputs.read import Data
from ...layers import Attention
from ...progress import Done
from ...weights import Bundle
from ..capture.addresses import Tree
from ..capture.hooks import Session, call_after, call_before
from ..structure import Axes, OutputAxes, find_tensor, record_layout
from .features import LayerReader

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The theoretical receptive field of layers: all pixels that a unit can depend on, whatever the weights.
#
# In a copy of the model every weight is positive, norms are left out and the maximum of a pooling becomes the mean.
# Then nothing cancels, and the gradient of a unit is above 0 at exactly those pixels that a path leads from. Where they
# reach the edge of the image, the image grows until they do not.


TINY = 1e-9  # value of every pixel: so small that no activation saturates
LONGEST = 2048  # pixels that an image may grow to
GROWTH = 4  # by how much it grows at a time
# pixels of its other side meanwhile, the first that the model reads; otherwise as many as it had
NARROW = (8, 32)


Pick = Callable[[str, Tensor, OutputAxes], Tensor | None]  # the unit of a layer's output


class _Enough(Exception):  # noqa: N818  (it ends a forward pass, and is no error)
    """All layers that were asked for have run."""


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _same_place(x: Tensor, shape: Sequence[int], *_: Any, **__: Any) -> Tensor:
    """A layer norm over the channels of each place; over places too, it mixes them all."""
    # A norm over the channels alone keeps places apart.
    if len(shape) == 1:
        return x
    return x + x.mean(tuple(range(-len(shape), 0)), keepdim=True)


def _all_places(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """A norm over the places of an image depends on all of them."""
    if x.ndim > 2:
        return x + x.mean(tuple(range(2, x.ndim)), keepdim=True)
    return x


def _mean_pool(
    x: Tensor,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *_: Any,
    **__: Any,
) -> Tensor:
    """The mean over the places of a maximum pooling."""
    # avg_pool2d rounds sizes up as max_pool2d does; conv2d below has no ceil_mode.
    if ceil_mode and dilation in (1, (1, 1)):
        return F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True)
    # avg_pool2d has no dilation: a convolution of each channel by itself
    size = (kernel, kernel) if isinstance(kernel, int) else kernel
    mean = x.new_ones(x.shape[1], 1, *size) / (size[0] * size[1])
    return F.conv2d(x, mean, None, stride or kernel, padding, dilation, x.shape[1])


def _mean_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution with equal weights: the mean over the channels of a group, and then over the places of the kernel.

    All channels of a group's output are the same, so that one is computed. Kernels with gaps or unusual margins are
    left to torch.
    """
    kernel = tuple(weight.shape[-2:])
    margins = (padding, padding) if isinstance(padding, int) else padding
    has_gaps = dilation != 1 if isinstance(dilation, int) else {*dilation} != {1}
    if has_gaps or isinstance(margins, str):  # "same" or "valid"
        return F.conv2d(x, weight, None, stride, padding, dilation, groups)
    # avg_pool2d allows a margin of at most half of its kernel.
    if any(2 * margin > size for margin, size in zip(margins, kernel, strict=True)):
        return F.conv2d(x, weight, None, stride, padding, dilation, groups)
    of_group = x.unflatten(1, (groups, -1)).mean(2)  # (b, groups, y, x)
    pooled = F.avg_pool2d(of_group, kernel, stride, padding)
    # Back to as many channels as the convolution has.
    return pooled.repeat_interleave(weight.shape[0] // groups, dim=1)


# What replaces a function of torch in the copy.
POSITIVE: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _same, F.layer_norm: _same_place, F.rms_norm: _same_place, F.group_norm: _all_places,
    F.instance_norm: _all_places, F.max_pool2d: _mean_pool, torch.max_pool2d: _mean_pool, F.conv2d: _mean_conv,
    torch.conv2d: _mean_conv,
}  # fmt: skip
# Functions by which every place depends on every other.
MIXING = {
    F.scaled_dot_product_attention, F.softmax, torch.softmax, Tensor.softmax, F.group_norm, F.instance_norm,
}  # fmt: skip
# Functions with a kernel: its height and width, strides and margins are pairs, or one number for both.
KERNELS = {torch.conv2d, F.conv2d, F.max_pool2d, torch.max_pool2d, F.avg_pool2d}


class _Positive(TorchFunctionMode):
    """Replaces what could cancel a path; notes whether places were mixed, and whether all kernels are square."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.square = False, True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # After attention, or a norm over places, every field is the whole image.
        self.mixed |= func in MIXING
        # Square kernels make height and width alike, so that one axis is enough.
        if func in KERNELS:
            self.square &= all(map(_is_square, [*args[1:], *(kwargs or {}).values()]))
        return POSITIVE.get(func, func)(*args, **(kwargs or {}))


def _is_square(argument: Any) -> bool:
    """Whether an argument of a function with a kernel is the same for rows and columns."""
    if isinstance(argument, Tensor):  # a kernel, or a bias
        return argument.ndim < 2 or argument.shape[-2] == argument.shape[-1]
    return not isinstance(argument, tuple | list) or len({*argument}) == 1


def theoretical_fields(
    model: nn.Module, names: Sequence[str], image: Tensor, pick: Pick
) -> list[tuple[int, int] | None]:
    """The height and width in pixels of the theoretical receptive field of one unit of each layer.

    None means all of the image, however large it is: after attention, or a mean over all places.

    Args:
        model: The model.
        names: The addresses of the layers.
        image: An image (c, height, width), for its size.
        pick: Returns the unit of a layer's output, given its name and the layout of the pass; None if the output has
            no places.
    """
    positive = _copy(model)
    channels, (height, width) = image.shape[0], image.shape[1:]
    # Fields in an image of the usual size; `local`: the layers before any mixing of all places.
    boxes, local, square = _boxes(positive, names, (channels, height, width), pick)
    by_axis: list[dict[str, int | None]] = []  # the height, and the width, of each field
    for axis, length in enumerate((height, width)):
        sizes = {name: _inside(boxes[name][axis], length) for name in local}
        if axis and square:  # what the height shows holds for the width
            sizes = by_axis[0]
        # A field that reaches the edge may be larger: the image grows until it does not.
        while length < LONGEST and None in sizes.values():
            length = min(GROWTH * length, LONGEST)
            # Only layers that still reach an edge run again.
            missing = [name for name in local if sizes[name] is None]
            wider = _grown(positive, missing, channels, (height, width), axis, length, pick)
            sizes |= {name: _inside(wider[name][axis], length) for name in missing if name in wider}
        by_axis.append(sizes)
    return [_whole(*(sizes.get(name) for sizes in by_axis)) for name in names]


def _whole(height: int | None, width: int | None) -> tuple[int, int] | None:
    """The height and width, or None if one of them has no end."""
    if height is None or width is None:
        return None
    return (height, width)


Box = tuple[tuple[int, int], tuple[int, int]]  # first and last row, first and last column


def _inside(edge: tuple[int, int], length: int) -> int | None:
    """The size of a field that ends before the edges of the image; None: it may be larger."""
    first, last = edge
    # Strictly inside: a field that touches an edge may have been cut there.
    if first > 0 and last < length - 1:
        return last - first + 1
    return None


def _grown(
    model: nn.Module,
    names: Sequence[str],
    channels: int,
    size: tuple[int, int],
    axis: int,
    length: int,
    pick: Pick,
) -> dict[str, Box]:
    """The fields in an image whose height or width is larger; nothing if the model reads no such images."""
    for narrow in (*NARROW, size[1 - axis]):
        # Narrow on the other axis, since a large square image would take too much memory.
        shape = (channels, narrow, length) if axis else (channels, length, narrow)
        try:
            return _boxes(model, names, shape, pick)[0]
        except (RuntimeError, ValueError):  # a size that the model does not read
            continue
    return {}


def _boxes(
    model: nn.Module,
    names: Sequence[str],
    shape: tuple[int, int, int],
    pick: Pick,
) -> tuple[dict[str, Box], list[str], bool]:
    """The field of each layer in an image of a shape, the layers that have one, and whether all kernels are square."""
    # In float64, because the values are tiny.
    image = torch.full((1, *shape), TINY, dtype=torch.float64, requires_grad=True)
    tree, mode, units = Tree(model), _Positive(), dict[str, Tensor]()
    left = [name for name in names if name in tree.known]  # layers that did not run yet
    paths = {tree.known[name][0]: name for name in left}

    def attends(*_: Any) -> None:
        mode.mixed = True

    def take(module: nn.Module, _: Any, out: Any) -> None:
        name = paths[module]
        # A module that runs twice counts at its first call.
        if name not in left:
            return
        x = find_tensor(out)
        # Once places are mixed, no later layer has a field of its own.
        if x is not None and not mode.mixed:
            unit = pick(name, x, layout)
            if unit is not None:
                units[name] = unit
        left.remove(name)
        # All layers have run, or the others are global: the rest of the pass is not needed.
        if not left or mode.mixed:
            raise _Enough

    attentions = [part for part in model.modules() if isinstance(part, Attention)]
    with Session(model) as session, session, torch.enable_grad(), mode:
        call_before(session, attentions, attends)
        call_after(session, paths, take)
        with suppress(_Enough), record_layout(model, values=False) as layout:
            model(image)

    boxes = {}
    for name, unit in units.items():
        # One backward pass per layer through the same graph.
        (gradient,) = torch.autograd.grad(unit.sum(), image, retain_graph=True)
        touched = gradient.abs().sum((0, 1)) > 0  # (y, x): the pixels that the unit depends on
        rows = touched.any(1).nonzero().flatten()
        columns = touched.any(0).nonzero().flatten()
        # A unit that no pixel reaches has no box.
        if len(rows):
            boxes[name] = ((int(rows[0]), int(rows[-1])), (int(columns[0]), int(columns[-1])))
    return boxes, list(boxes), mode.square


def _copy(model: nn.Module) -> nn.Module:
    """A copy in float64 on the CPU whose weights are positive and whose biases are 0."""
    positive = copy.deepcopy(model).cpu().double().eval()
    for name, parameter in positive.named_parameters():
        # Biases of 0, so that values stay as small as the pixels.
        value = 0.0 if name.endswith("bias") else 1.0
        if (
            parameter.ndim > 1
        ):  # a mean over the inputs, so that values neither grow nor vanish with depth
            value = 1 / parameter[0].numel()
        parameter.requires_grad_(False).fill_(value)
    return positive


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
    # the distance to the side of the smallest such square through a pixel, and what all nearer pixels hold
    # Chebyshev distance: the squares around the centre.
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
    side, total = _side(x, mass), x.sum() or 1.0
    rows, columns = np.mgrid[: x.shape[0], : x.shape[1]]
    # Half a pixel more: pixel i covers i to i + 1.
    row, column = (rows * x).sum() / total + 0.5, (columns * x).sum() / total + 0.5
    edges = column - side / 2, row - side / 2, column + side / 2, row + side / 2
    return float(edges[0]), float(edges[1]), float(edges[2]), float(edges[3])

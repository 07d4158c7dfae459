"""The theoretical receptive field of layers: all pixels that a unit can depend on, whatever the weights.

In a copy of the model every weight is positive, norms are left out and the maximum of a pooling becomes the mean.
Then nothing cancels, and the gradient of a unit is above 0 at exactly those pixels that a path leads from. Where they
reach the edge of the image, the image grows until they do not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...layers import Attention
from ...models.hooks import Session, call_after, call_before
from ..capture.addresses import Tree
from ..structure import OutputAxes, first_tensor, record_layout

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
        x = first_tensor(out, None)
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
        # a mean over the inputs, so that values neither grow nor vanish with depth
        if parameter.ndim > 1:
            value = 1 / parameter[0].numel()
        parameter.requires_grad_(False).fill_(value)
    return positive

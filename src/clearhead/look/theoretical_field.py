"""The theoretical receptive field of layers: all pixels that a unit can depend on, whatever the weights.

In a copy of the model every weight is positive, norms are left out and the maximum of a pooling becomes the mean. Then
nothing cancels, and the gradient of a unit is above 0 at exactly those pixels that a path leads from. Where they reach
the edge of the image, the image grows until they do not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..layers import Attention
from .addresses import Tree
from .layout import Layout, find_tensor, record_layout

TINY = 1e-9  # value of every pixel: so small that no activation saturates
LONGEST = 2048  # pixels that an image may grow to
GROWTH = 4  # by how much it grows at a time
NARROW = (8, 32)  # pixels of its other side meanwhile, the first that the model reads; otherwise as many as it had


Pick = Callable[[str, Tensor, Layout], Tensor | None]  # the unit of a layer's output


class _Enough(Exception):  # noqa: N818  (it ends a forward pass, and is no error)
    """All layers that were asked for have run."""


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _same_place(x: Tensor, shape: Sequence[int], *_: Any, **__: Any) -> Tensor:
    """A layer norm over the channels of each place; over places too, it mixes them all."""
    return x if len(shape) == 1 else x + x.mean(tuple(range(-len(shape), 0)), keepdim=True)


def _all_places(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """A norm over the places of an image depends on all of them."""
    return x + x.mean(tuple(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x


def _mean_pool(
    x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, *_: Any,
    **__: Any,
) -> Tensor:  # fmt: skip
    """The mean over the places of a maximum pooling."""
    if ceil_mode and dilation in (1, (1, 1)):
        return F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True)
    ones = x.new_ones(x.shape[1], 1, *((kernel, kernel) if isinstance(kernel, int) else kernel))
    return F.conv2d(x, ones / ones[0].numel(), None, stride or kernel, padding, dilation, x.shape[1])


def _mean_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """A convolution with equal weights: the mean over the channels of a group, and then over the places of the kernel.

    All channels of a group's output are the same, so that one is computed. Kernels with gaps or unusual margins are
    left to torch.
    """
    kernel = tuple(weight.shape[-2:])
    margins = (padding, padding) if isinstance(padding, int) else padding
    plain = {dilation} == {1} if isinstance(dilation, int) else {*dilation} == {1}
    if isinstance(margins, str) or not plain or any(2 * m > k for m, k in zip(margins, kernel, strict=True)):
        return F.conv2d(x, weight, None, stride, padding, dilation, groups)
    one = x.unflatten(1, (groups, -1)).mean(2)
    return F.avg_pool2d(one, kernel, stride, padding).repeat_interleave(weight.shape[0] // groups, dim=1)


# What replaces a function of torch in the copy.
POSITIVE: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _same, F.layer_norm: _same_place, F.rms_norm: _same_place, F.group_norm: _all_places,
    F.instance_norm: _all_places, F.max_pool2d: _mean_pool, torch.max_pool2d: _mean_pool, F.conv2d: _mean_conv,
    torch.conv2d: _mean_conv,
}  # fmt: skip
# Functions by which every place depends on every other.
MIXING = {F.scaled_dot_product_attention, F.softmax, torch.softmax, Tensor.softmax, F.group_norm, F.instance_norm}


# Functions with a kernel: its height and width, strides and margins are pairs, or one number for both.
KERNELS = {torch.conv2d, F.conv2d, F.max_pool2d, torch.max_pool2d, F.avg_pool2d}


class _Positive(TorchFunctionMode):
    """Replaces what could cancel a path; notes whether places were mixed, and whether all kernels are square."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.square = False, True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.mixed |= func in MIXING
        if func in KERNELS:
            given = [*args[1:], *(kwargs or {}).values()]
            pairs = [x.shape[-2:] if isinstance(x, Tensor) else x for x in given if not _is_vector(x)]
            self.square &= all(len({*pair}) == 1 for pair in pairs if isinstance(pair, tuple | list))
        return POSITIVE.get(func, func)(*args, **(kwargs or {}))


def _is_vector(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim < 2  # a bias


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
    boxes, local, square = _boxes(positive, names, (channels, height, width), pick)
    sizes: list[dict[str, int | None]] = []
    for axis, length in enumerate((height, width)):
        found = {name: _inside(boxes[name][axis], length) for name in local}
        if axis and square:  # what the height shows holds for the width
            found = sizes[0]
        while length < LONGEST and None in found.values():
            length = min(GROWTH * length, LONGEST)
            missing = [name for name in local if found[name] is None]
            wider = _grown(positive, missing, channels, (height, width), axis, length, pick)
            found |= {name: _inside(wider[name][axis], length) for name in missing if name in wider}
        sizes.append(found)
    return [_whole(*(found.get(name) for found in sizes)) for name in names]


def _whole(height: int | None, width: int | None) -> tuple[int, int] | None:
    """The height and width, or None if one of them has no end."""
    return None if height is None or width is None else (height, width)


Box = tuple[tuple[int, int], tuple[int, int]]  # first and last row, first and last column


def _inside(edge: tuple[int, int], length: int) -> int | None:
    """The size of a field that ends before the edges of the image; None: it may be larger."""
    first, last = edge
    return last - first + 1 if first > 0 and last < length - 1 else None


def _grown(
    model: nn.Module, names: Sequence[str], channels: int, size: tuple[int, int], axis: int, length: int,
    pick: Pick,
) -> dict[str, Box]:  # fmt: skip
    """The fields in an image whose height or width is larger; nothing if the model reads no such images."""
    for narrow in (*NARROW, size[1 - axis]):
        shape = (channels, length, narrow) if axis == 0 else (channels, narrow, length)
        try:
            return _boxes(model, names, shape, pick)[0]
        except (RuntimeError, ValueError):  # a size that the model does not read
            continue
    return {}


def _boxes(
    model: nn.Module, names: Sequence[str], shape: tuple[int, int, int],
    pick: Pick,
) -> tuple[dict[str, Box], list[str], bool]:  # fmt: skip
    """The field of each layer in an image of a shape, the layers that have one, and whether all kernels are square."""
    image = torch.full((1, *shape), TINY, dtype=torch.float64, requires_grad=True)
    tree, mode, units = Tree(model), _Positive(), dict[str, Tensor]()
    hooks = [
        part.register_forward_pre_hook(lambda *_: setattr(mode, "mixed", True))
        for part in model.modules() if isinstance(part, Attention)
    ]  # fmt: skip
    left = list(names)

    def seen(name: str, out: Any) -> None:
        x = find_tensor(out)
        unit = None if x is None or mode.mixed else pick(name, x, layout)
        if unit is not None:
            units[name] = unit
        left.remove(name)
        if not left or mode.mixed:
            raise _Enough

    def hook(name: str) -> Callable[..., None]:
        return lambda _, __, out: seen(name, out) if name in left else None

    hooks += [tree.known[name][0].register_forward_hook(hook(name)) for name in names if name in tree.known]
    try:
        with torch.enable_grad(), mode, record_layout(model, values=False) as layout:
            model(image)
    except _Enough:
        pass
    finally:
        for one in hooks:
            one.remove()
    boxes = {}
    for name, unit in units.items():
        (gradient,) = torch.autograd.grad(unit.sum(), image, retain_graph=True)
        places = gradient.abs().sum((0, 1)) > 0
        rows, columns = (places.any(axis).nonzero().flatten() for axis in (1, 0))
        if len(rows):
            boxes[name] = ((int(rows[0]), int(rows[-1])), (int(columns[0]), int(columns[-1])))
    return boxes, list(boxes), mode.square


def _copy(model: nn.Module) -> nn.Module:
    """A copy in float64 on the CPU whose weights are positive and whose biases are 0."""
    positive = copy.deepcopy(model).cpu().double().eval()
    for name, p in positive.named_parameters():
        p.requires_grad_(False).fill_(1 / p[0].numel() if p.ndim > 1 else 0.0 if name.endswith("bias") else 1.0)
    return positive

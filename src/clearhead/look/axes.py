"""Which axes of a layer's output are channels, and which are tokens or the places of an image.

No model is asked for its structure. The shapes of one pass, and the sizes of the parameters of the layer and of the
modules around it, decide: a Swin returns (b, y, x, c), a ResNet (b, c, y, x), a ViT (b, t, c), and attention inside of
them returns weights, which have no channels at all. Where they do not decide, a Notice says what is assumed, or an
error says why the layer cannot be read.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError, InputIndexError, Notice, nearest
from .capture.addresses import Tree

MOST_SPECIAL = 32  # tokens before the grid at most: class token, distillation token, registers

# Layers of torch whose channels are axis 1, and those whose channels are the last axis. Classes derived from the latter
# are not counted: a LayerNorm2d of other libraries has its channels in axis 1.
FIRST = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
LAST = (nn.Linear, nn.LayerNorm)
FIRST_1D = (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """What the axes of a layer's output are. Axis 0 is that of the inputs."""

    channels: int  # the axis of the channels
    grid: tuple[int, int] | None = None  # rows and columns of the places; None: they have no grid
    # number of tokens before the grid, which have no place in it: a class token, registers
    special: int = 0
    tokens: bool = False  # the places are one axis, of tokens
    assumed: str = ""  # what was assumed without evidence

    def vectors(self, x: Tensor) -> Float[Tensor, "b n c"]:
        """The channels of every place or token, without the tokens before the grid."""
        return x.movedim(self.channels, -1).flatten(1, -2)[:, self.special :]

    def on_grid(self, x: Tensor) -> Float[Tensor, "b c y x"]:
        """The channels of every place of the grid, which must not be None."""
        assert self.grid is not None
        return self.vectors(x).mT.unflatten(2, self.grid)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one call of a module was given and returned."""

    path: str
    given: tuple[int, ...]  # the shape of its first tensor
    shape: tuple[int, ...]  # the shape of the first tensor that it returned
    channels: int | None  # the axis of channels, of a layer of torch that has it fixed
    weights: bool  # the output is attention weights: its rows sum to 1


@dataclass(frozen=True, eq=False)
class Layout:
    """The shapes of one pass through a model, and what the axes of each output are."""

    tree: Tree
    calls: list[Call] = field(default_factory=list)  # in the order in which the modules ended
    # the shape of each module's first tensor
    given: dict[str, tuple[int, ...]] = field(default_factory=dict)
    arguments: list[tuple[Any, Any]] = field(default_factory=list)  # of the last call of the model
    _widths: dict[str, set[int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of inputs; a module that is called with windows of an image returns more."""
        return self.given.get("", (0,))[0]

    def axes(self, address: str, x: Tensor) -> Axes:
        """Return what the axes of a layer's output are; a Notice names what is assumed.

        Args:
            address: The address of the layer, or of its input.
            x: What it returned in the pass that was recorded.

        Raises:
            InputError: If it holds attention weights, or nothing decides which axis is that of the channels.
        """
        found = self._decide(address, tuple(x.shape), sums_to_1(x))
        if found.assumed:
            warnings.warn(
                f"{address!r} gave a tensor {tuple(x.shape)}: {found.assumed}", Notice, stacklevel=3
            )
        return found

    def check_order(self, address: str) -> None:
        """Raise if the tokens that a list of layers reads are not in the order of the image's rows.

        Hiera, for example, sorts its tokens by windows, so that their number alone looks like a grid. The model runs
        again with another top right corner of the image, and the tokens that change most must be those of that corner.

        Args:
            address: The address of one of the layers, or of what is inside of it.
        """
        members = [
            names
            for names in self._lists(lambda _: True)
            if any(_is_in(address, name) for name in names)
        ]
        first = members[0][0] if members else ""
        given = self.given.get(first, ())
        axes = self.places(given[1]) if len(given) == 3 else None
        # dropout changes all tokens
        if axes is None or axes.grid is None or not first or self.tree.root.training:
            return
        (args, named), (rows, columns) = self.arguments[-1], axes.grid
        corner = (
            ...,
            slice(max(1, self.given[""][2] // rows)),
            slice(-max(1, self.given[""][3] // columns), None),
        )

        def changed(x: Any) -> Any:
            if not isinstance(x, Tensor) or tuple(x.shape) != self.given[""]:
                return x
            x = x.detach().clone()
            x[corner] += 1 + 3 * x.std()
            return x

        read: list[Tensor] = []
        hook = self.tree.modules[first].register_forward_pre_hook(
            lambda _, args, named: read.append(first_tensor((*args, *named.values()))),
            with_kwargs=True,
        )
        try:
            with torch.no_grad():
                self.tree.root(*args, **named)
                self.tree.root(
                    *map(changed, args), **{name: changed(x) for name, x in named.items()}
                )
        finally:
            hook.remove()
        places = axes.on_grid((read[0] - read[-1]).abs()).sum((0, 1))
        row, column = divmod(int(places.argmax()), columns)
        if row > 1 or column < columns - 2:
            raise InputError(
                f"the tokens of {address!r} are not in the order of the image's rows, so that their places are not "
                "known: expected another layer, such as one that returns a feature map"
            )

    def like(self, axes: Axes, x: Tensor) -> Axes | None:
        """The axes of an output of the same layer for an image of another size, if they are still known."""
        if axes.tokens:
            return self.places(x.shape[1])
        return replace(axes, grid=_grid(x.shape, axes.channels))

    def places(self, tokens: int) -> Axes | None:
        """The grid that a sequence of tokens lies on; None if there is none of this size.

        It is the feature map of a convolution, or of a module with one, after at most MOST_SPECIAL other tokens, or a
        half, a quarter ... of one that has no other tokens (patches that were merged).
        """
        maps = [call.shape[2:] for call in self.calls if self._is_feature_map(call)]
        grids = {(y, x) for y, x in maps if 1 < y * x <= tokens <= y * x + MOST_SPECIAL}
        merged = {(y, x) for y, x in maps if y * x > tokens > 1}
        while not grids and merged:
            merged = {
                half for y, x in merged for half in ((y // 2, x // 2), (-(-y // 2), -(-x // 2)))
            }
            grids = {(y, x) for y, x in merged if y * x == tokens}
            merged = {(y, x) for y, x in merged if y * x > tokens}
        if not grids:
            return None
        grid = max(grids, key=lambda size: size[0] * size[1])
        return Axes(channels=2, grid=grid, special=tokens - grid[0] * grid[1], tokens=True)

    def _is_feature_map(self, call: Call) -> bool:
        """Whether a call returned (b, c, y, x), as a convolution does, or a stem that pools behind its last one."""
        if len(call.shape) != 4 or call.channels == 1:
            return len(call.shape) == 4
        if not any(isinstance(part, nn.Conv2d) for part in self.tree.modules[call.path].modules()):
            return False
        axes = self._found(call)
        return axes is not None and axes.channels == 1 and axes.grid is not None

    def gridded(self) -> dict[str, Axes]:
        """The addresses of the outputs that have a grid, in order; those of one place only if there are no others."""
        found: dict[str, Axes] = {}
        for call in self.calls:
            axes = self._found(call)
            if (
                call.path
                and call.shape[0] == self.rows
                and axes is not None
                and axes.grid is not None
            ):
                found.pop(call.path, None)
                found[call.path] = axes
        wide = {path: axes for path, axes in found.items() if axes.grid not in (None, (1, 1))}
        return wide or found

    def token_blocks(self) -> list[str]:
        """The layers whose tokens lie on a grid: the members of the outermost lists of modules of one class."""
        grids = self.gridded()
        lists = self._lists(lambda path: path in grids and grids[path].tokens)
        return [path for names in lists for path in names]

    def blocks(self, tokens: int) -> list[str]:
        """The layers whose outputs have this many tokens: the longest list of modules of one class."""
        ends = {
            call.path for call in self.calls if len(call.shape) == 3 and call.shape[1] == tokens
        }
        return max(self._lists(ends.__contains__), key=len, default=[])

    def choose(self, layer: str | int, layers: list[str]) -> str:
        """The address of a layer by name or number; a list of modules, such as a stage, means its last module.

        Args:
            layer: An address, the name of a list of modules, or a number: of one of `layers` in a vision transformer,
                of a stage (`stages.0`, `stages.1` ...) in a convolutional network.
            layers: The addresses that fit.
        """
        stages = list(
            dict.fromkeys(
                ".".join(path.split(".")[:2]) for path in layers if path.startswith("stages.")
            )
        )
        if isinstance(layer, int):
            numbered = stages or layers
            if not -len(numbered) <= layer < len(numbered):
                raise InputIndexError(
                    f"layer {layer}: there are {len(numbered)}, counted from 0: {', '.join(numbered[:12])}"
                )
            layer = numbered[layer]
        if layer in layers:
            return layer
        inside = [path for path in layers if path.rpartition(".")[0] == layer]
        if not inside:
            shown = stages or layers
            raise InputError(
                f"layer={layer!r} does not fit: expected one of {', '.join(shown[-12:])}{nearest(layer, layers)}"
            )
        return inside[-1]

    def _lists(self, fits: Callable[[str], bool]) -> list[list[str]]:
        """The members of the outermost lists of modules of one class that all fit, in the model's order."""
        found: dict[str, list[str]] = {}
        for path, module in self.tree.parts:
            if (
                not isinstance(module, nn.ModuleList | nn.Sequential)
                or len({*map(type, module)}) != 1
            ):
                continue
            names = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
            inside = any(_is_in(path, outer) for outer in found)
            if not inside and all(map(fits, names)):
                found[path] = names
        return list(found.values())

    def _found(self, call: Call) -> Axes | None:
        """The axes of a call's output; None if it cannot be read."""
        try:
            axes = self._decide(call.path, call.shape, call.weights)
        except InputError:
            return None
        return None if axes.assumed else axes

    def _decide(self, address: str, shape: tuple[int, ...], weights: bool) -> Axes:
        """What the axes of a tensor are, from all evidence."""
        modules = self.tree.modules
        path = address if address in modules else address.rpartition(".")[0]
        last = len(shape) - 1
        if last < 2:
            return Axes(channels=last)
        if last == 2:
            return self._sequence(path, shape)
        if weights or self._has_pairs(path, shape):
            raise InputError(
                f"{address!r} gave a tensor {shape} of attention weights, which has no channels: expected a layer that "
                f"returns features{self._such_as(path)}"
            )
        by_shape = self._axes_by_shape(shape)
        channels = self._channels(address, path, shape, by_shape or {1, last})
        if channels is None:
            return Axes(
                channels=1,
                assumed=f"nothing says which axis has the channels; {_form(shape, 1)} is assumed",
            )
        # Without the aspect ratio of the image, two axes are a grid only if a layer of torch makes them one.
        if last > 3 or not (
            channels in by_shape
            or (channels == 1 and self._axis_of_layers_inside(path, shape) == 1)
        ):
            return Axes(channels=channels)
        return Axes(channels=channels, grid=_grid(shape, channels))

    def _channels(
        self, address: str, path: str, shape: tuple[int, ...], allowed: set[int]
    ) -> int | None:
        """The axis of channels, one of those allowed; None if nothing decides."""
        last = len(shape) - 1
        if address == path:
            certain = fixed_channels(self.tree.modules[path], last)
        else:
            certain = None
        # a matrix may also be applied to the rows of an image
        if certain == 1 or certain in allowed:
            return certain
        by_widths = self._axis_by_widths(path, shape, allowed)
        if by_widths is not None:
            return by_widths
        inside = self._axis_of_layers_inside(path, shape)
        if inside in allowed or len(allowed) > 1:
            return inside
        (channels,) = allowed
        if shape[1 + last - channels] in self._own_widths(path):
            raise InputError(
                f"{address!r} gave a tensor {shape}, whose shape is that of {_form(shape, channels)} and does not fit "
                "its parameters: expected another layer, or features='flat', which needs no axes"
            )
        return channels

    def _sequence(self, path: str, shape: tuple[int, ...]) -> Axes:
        """The axes of (b, t, c), or of (b, c, t): a convolution over time, or a layer that mixes tokens."""
        convolution = any(isinstance(part, FIRST_1D) for part in self.tree.modules[path].modules())
        wide = self._own_widths(path)
        if self._is_swapped(path, shape) or (
            convolution and shape[1] in wide and shape[2] not in wide
        ):
            return Axes(channels=1, tokens=True)
        # it was called with ids
        of_text = any(len(self.given.get(outer, ())) == 2 for outer in _around(path)[1:-1])
        places = None if of_text else self.places(shape[1])
        return places or Axes(channels=2, tokens=True)

    def _is_swapped(self, path: str, shape: tuple[int, ...]) -> bool:
        """Whether a sequence is (b, c, t), as a module around it was called with (b, t, c)."""
        for outer in _around(path)[1:]:
            given = self.given.get(outer, ())
            if len(given) == 3:
                tokens, width = given[1:]
                if self._is_swapped(outer, given):
                    tokens, width = width, tokens
                return shape[1] == width and width not in (tokens, shape[2])
        return False

    def _has_pairs(self, path: str, shape: tuple[int, ...]) -> bool:
        """Whether an output (b, h, queries, keys) or (b, queries, keys, h) has an axis for the keys.

        It has if a module around it was called with a sequence of as many tokens, and its places are not these tokens.
        """
        for outer in _around(path)[1:]:
            given = self.given.get(outer, ())
            if len(given) == 3:
                tokens = given[1]
                keys = shape[-1] == tokens or shape[1] == shape[2] == tokens
                return (
                    keys
                    and tokens > 1
                    and shape[1] * shape[2] != tokens
                    and shape[-2] * shape[-1] != tokens
                )
        return False

    def _axes_by_shape(self, shape: tuple[int, ...]) -> set[int]:
        """The axes that can be those of channels, since the other two have the aspect ratio of the image."""
        image = self.given.get("", ())
        if len(image) != 4 or len(shape) != 4:
            return set()
        height, width = image[2:]

        def fits(rows: int, columns: int) -> bool:
            # less than a row or column too many
            return abs(rows * width - columns * height) < max(height, width)

        return {axis for axis, grid in ((1, shape[2:]), (3, shape[1:3])) if fits(*grid)}

    def _axis_by_widths(self, path: str, shape: tuple[int, ...], allowed: set[int]) -> int | None:
        """The axis whose size is one that the parameters of the layer, or of a module around it, are made for."""
        for around in _around(path):
            fitting = [axis for axis in allowed if shape[axis] in self._own_widths(around)]
            if fitting:
                return fitting[0] if len(fitting) == 1 else None
        return None

    def _axis_of_layers_inside(self, path: str, shape: tuple[int, ...]) -> int | None:
        """The axis of channels of the first layer of torch that reads or returns this shape, inside or just around."""
        for around in _around(path):
            for call in self.calls:
                if (
                    _is_in(call.path, around)
                    and call.channels is not None
                    and shape in (call.given, call.shape)
                ):
                    return call.channels
        return None

    def _own_widths(self, path: str) -> set[int]:
        """The numbers of channels that the parameters of a module are made for."""
        if path not in self._widths:
            self._widths[path] = widths(self.tree.modules[path])
        return self._widths[path]

    def _such_as(self, path: str) -> str:
        """A layer around an address that returns features, for a message."""
        ended = {call.path for call in self.calls if not call.weights}
        fit = [outer for outer in _around(path)[1:] if outer and outer in ended | self.given.keys()]
        return f", such as {fit[-1]!r}" if fit else ""


@contextmanager
def record_layout(model: nn.Module, *, values: bool = True) -> Iterator[Layout]:
    """Record the shapes of all modules' inputs and outputs while a `with` lasts, of calls by this thread.

    Args:
        model: The model.
        values: Also see from their values which outputs are attention weights, which `Layout.gridded` leaves out.
    """
    layout, thread = Layout(Tree(model)), threading.get_ident()
    hooks = []
    for path, module in layout.tree.parts:

        def before(_: nn.Module, args: Any, named: Any, path: str = path) -> None:
            if threading.get_ident() != thread:
                return
            tensors = [x for x in (*args, *named.values()) if isinstance(x, Tensor)]
            images = [x for x in tensors if x.ndim == 4]
            given = images if not path and images else tensors
            layout.given[path] = tuple(given[0].shape) if given else ()
            if not path:
                layout.arguments[:] = [(args, named)]

        def after(module: nn.Module, _: Any, out: Any, path: str = path) -> None:
            # not the output of a whole model
            if isinstance(out, Tensor | tuple | list):
                x = find_tensor(out)
            else:
                x = None
            if x is not None and threading.get_ident() == thread:
                layout.calls.append(
                    Call(
                        path=path,
                        given=layout.given.get(path, ()),
                        shape=tuple(x.shape),
                        channels=fixed_channels(module, x.ndim - 1),
                        weights=values and sums_to_1(x),
                    )
                )

        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(after))
    try:
        yield layout
    finally:
        for hook in hooks:
            hook.remove()


def fixed_channels(module: nn.Module, last: int) -> int | None:
    """The axis of channels in what a layer of torch returns, 1 or the last one; None for all other modules."""
    if isinstance(module, FIRST):
        return 1
    over_places = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1
    if type(module) in LAST and not over_places:
        return last
    return None


def widths(module: nn.Module) -> set[int]:
    """The numbers of channels that the parameters of a module are made for.

    Those are the sizes of vectors (biases, norms, layer scale), and the first two axes of matrices and kernels. A table
    of positions is not made for a number of channels alone, and is not called weight.
    """
    found = set()
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        if x.ndim and x.numel() == max(x.shape):
            found.add(x.numel())
        elif name.rpartition(".")[2] == "weight":
            found |= set(x.shape[:2])
    return found


def sums_to_1(x: Tensor) -> bool:
    """Whether a tensor (b, h, q, k) holds attention weights: the rows of its last axis are positive and sum to 1."""
    if x.ndim != 4 or x.shape[-1] < 2 or not x.numel() or not x.is_floating_point() or x.is_meta:
        return False
    row = x.detach()[0, 0, 0].float()  # most tensors are known by one row
    if abs(float(row.sum()) - 1) > 0.02 or bool((row < 0).any()):
        return False
    whole = x.detach().float()
    return bool((whole >= 0).all()) and bool(((whole.sum(-1) - 1).abs() < 0.02).all())


def find_tensor(out: Any) -> Tensor | None:
    """The tensor that a module returned, or the first of several; None if there is none."""
    if isinstance(out, Tensor):
        return out
    if hasattr(out, "values"):
        values = out.values()
    elif isinstance(out, tuple | list):
        values = out
    else:
        values = ()
    return next((x for x in values if isinstance(x, Tensor)), None)


def first_tensor(out: Any) -> Tensor:
    """The tensor that a module returned, or the first of several; raises if there is none."""
    x = find_tensor(out)
    if x is None:
        raise InputError(
            f"a module returned a {type(out).__name__} without a tensor: expected a layer's output"
        )
    return x


def _around(path: str) -> list[str]:
    """A path, those of the modules around it, and that of the model, which is empty."""
    parts = path.split(".") if path else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _is_in(address: str, path: str) -> bool:
    """Whether an address is that of a module, or of what is inside of it."""
    return not path or f"{address}.".startswith(f"{path}.")


def _grid(shape: Sequence[int], channels: int) -> tuple[int, int]:
    """The rows and columns of a feature map (b, c, y, x) or (b, y, x, c)."""
    rows, columns = shape[2:] if channels == 1 else shape[1:3]
    return rows, columns


def _form(shape: tuple[int, ...], channels: int) -> str:
    """The axes of a tensor in words."""
    places = "y, x" if len(shape) == 4 else "..."
    if channels == 1:
        return f"(b, channels, {places})"
    return f"(b, {places}, channels)"

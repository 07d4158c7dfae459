"""Which axes of a layer's output are channels, and which are tokens or the places of an image.

No model is asked for its structure. The shapes of one pass, and the sizes of the parameters of the layer and of the
modules around it, decide: a Swin returns (b, y, x, c), a ResNet (b, c, y, x), a ViT (b, t, c), and attention inside of
them returns weights, which have no channels at all. Where they do not decide, a Notice says what is assumed, or an
error says why the layer cannot be read.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...errors import InputError, InputIndexError, Notice, nearest
from ...models.hooks import Session, call_after, call_before
from ..capture.addresses import Tree
from .layers import is_inside, uniform_lists

MOST_SPECIAL = 32  # tokens before the grid at most: class token, distillation token, registers

# Layers of torch whose channels are axis 1, and those whose channels are the last axis. Classes derived from the latter
# are not counted: a LayerNorm2d of other libraries has its channels in axis 1.
FIRST = (
    nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm, nn.MaxPool2d, nn.AvgPool2d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
LAST = (nn.Linear, nn.LayerNorm)
FIRST_1D = (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d)

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """The meaning of the axes of a layer's output; axis 0 is the batch."""

    channels: int  # the axis of the channels
    grid: tuple[int, int] | None = None  # rows and columns of the places; None: they have no grid
    # number of tokens before the grid, which have no place in it: a class token, registers
    special: int = 0
    tokens: bool = False  # the places are one axis, of tokens
    assumed: str = ""  # what was assumed without evidence

    def vectors(self, x: Tensor) -> Float[Tensor, "b n c"]:
        """The channels of every place or token, without the tokens before the grid."""
        # (b, .., c, ..) -> (b, n, c)
        return x.movedim(self.channels, -1).flatten(1, -2)[:, self.special :]

    def on_grid(self, x: Tensor) -> Float[Tensor, "b c y x"]:
        """The channels of every place of the grid, which must not be None."""
        assert self.grid is not None
        # (b, n, c) -> (b, c, y, x)
        return self.vectors(x).mT.unflatten(2, self.grid)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleCall:
    """The shapes of one call of a module."""

    path: str  # the address of the module
    given: Shape  # the shape of its first tensor
    shape: Shape  # the shape of the first tensor that it returned
    channels: int | None  # the axis of channels, of a layer of torch that has it fixed
    weights: bool  # the output is attention weights: its rows sum to 1


@dataclass(frozen=True, eq=False)
class OutputAxes:
    """The shapes of one pass through a model, and what the axes of each output are."""

    tree: Tree  # the modules of the model
    calls: list[ModuleCall] = field(default_factory=list)  # in the order in which the modules ended
    given: dict[str, Shape] = field(default_factory=dict)  # the shape of each module's first tensor
    arguments: list[tuple[Any, Any]] = field(default_factory=list)  # of the last call of the model
    _widths: dict[str, set[int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of inputs; a module that is called with windows of an image returns more."""
        return self.given.get("", (0,))[0]

    # Questions about one output.

    def axes(self, address: str, x: Tensor) -> Axes:
        """Return what the axes of a layer's output are; a Notice names what is assumed.

        Args:
            address: The address of the layer, or of its input.
            x: What it returned in the pass that was recorded.

        Raises:
            InputError: If it holds attention weights, or nothing decides which axis is that of the channels.
        """
        axes = self._decide(address, tuple(x.shape), sums_to_1(x))
        if axes.assumed:
            message = f"{address!r} gave a tensor {tuple(x.shape)}: {axes.assumed}"
            warnings.warn(message, Notice, stacklevel=3)
        return axes

    def like(self, axes: Axes, x: Tensor) -> Axes | None:
        """The axes of an output of the same layer for an image of another size, if they are still known."""
        if axes.tokens:
            return self.places(x.shape[1])
        # A feature map keeps its axis of channels; only the grid differs.
        return replace(axes, grid=_grid(x.shape, axes.channels))

    def places(self, tokens: int) -> Axes | None:
        """The grid that a sequence of tokens lies on; None if there is none of this size.

        It is the feature map of a convolution, or of a module with one, after at most MOST_SPECIAL other tokens, or a
        half, a quarter ... of one that has no other tokens (patches that were merged).
        """
        # Outputs (b, c, y, x) of convolutions and of modules with one: the image's own grids.
        maps = [call.shape[2:] for call in self.calls if self._is_feature_map(call)]
        # As many tokens as places, and at most MOST_SPECIAL besides them.
        grids = {(y, x) for y, x in maps if 1 < y * x <= tokens <= y * x + MOST_SPECIAL}
        # Stages merge neighbours: maps with more places than there are tokens are halved below.
        larger = {(y, x) for y, x in maps if y * x > tokens > 1}
        # Halves, rounded down or up, until one has exactly as many places as there are tokens.
        while not grids and larger:
            halves = set()
            for y, x in larger:
                halves |= {(y // 2, x // 2), (-(-y // 2), -(-x // 2))}
            grids = {(y, x) for y, x in halves if y * x == tokens}
            larger = {(y, x) for y, x in halves if y * x > tokens}
        if not grids:
            return None
        # The largest grid leaves the fewest tokens without a place.
        rows, columns = max(grids, key=lambda size: size[0] * size[1])
        special = tokens - rows * columns
        return Axes(channels=2, grid=(rows, columns), special=special, tokens=True)

    def _is_feature_map(self, call: ModuleCall) -> bool:
        """Whether a call returned (b, c, y, x), as a convolution does, or a stem that pools after its last one."""
        if len(call.shape) != 4:
            return False
        # A convolution, norm or pooling of torch, whose channels are axis 1.
        if call.channels == 1:
            return True
        # A stem that pools after its convolution returns (b, c, y, x) as well.
        if not any(isinstance(part, nn.Conv2d) for part in self.tree.modules[call.path].modules()):
            return False
        axes = self._axes_of_call(call)
        return axes is not None and axes.channels == 1 and axes.grid is not None

    def check_order(self, address: str) -> None:
        """Raise if the tokens that a list of layers reads are not in the order of the image's rows.

        Hiera, for example, sorts its tokens by windows, so that their number alone looks like a grid. The model runs
        again with another top right corner of the image, and the tokens that change most must be those of that corner.

        Args:
            address: The address of one of the layers, or of what is inside of it.
        """
        # The outermost lists of modules around the address: their first member reads the tokens.
        lists = uniform_lists(self.tree, lambda _: True).values()
        around = [names for names in lists if any(is_inside(address, name) for name in names)]
        first = around[0][0] if around else ""
        given = self.given.get(first, ())
        # Only sequences (b, t, c) have an order to check.
        if not first or len(given) != 3 or self.tree.root.training:  # dropout changes all tokens
            return
        axes = self.places(given[1])
        if axes is None or axes.grid is None:
            return
        columns = axes.grid[1]
        change = self._change_by_corner(first, axes)  # (b, c, y, x)
        # A pixel of the top right corner must move the top right place most.
        row, column = divmod(int(change.sum((0, 1)).argmax()), columns)
        # A module around may mix neighbours, so that the next place counts as the corner, too.
        if row > 1 or column < columns - 2:
            raise InputError(
                f"the tokens of {address!r} are not in the order of the image's rows, so that their places are not "
                "known: expected another layer, such as one that returns a feature map"
            )

    def _change_by_corner(self, path: str, axes: Axes) -> Float[Tensor, "b c y x"]:
        """By how much the input of a module changes if the top right corner of the image does."""
        assert axes.grid is not None
        args, named = self.arguments[-1]
        image = self.given[""]
        rows, columns = axes.grid
        # One patch, in pixels, of the image that the model was called with.
        height, width = max(1, image[2] // rows), max(1, image[3] // columns)  # of one place

        def other_corner(x: Any) -> Any:
            # Text ids and other tensors of other shapes stay as they are.
            if not isinstance(x, Tensor) or tuple(x.shape) != image:
                return x
            x = x.detach().clone()
            # A change larger than the image's own variation, and not 0 for a uniform image.
            x[..., :height, -width:] += 1 + 3 * x.std()
            return x

        read: list[Tensor] = []

        def before(_: nn.Module, args: Any, named: Any) -> None:
            read.append(first_tensor((*args, *named.values())))

        model = self.tree.root
        with Session(model) as session, session, torch.no_grad():
            call_before(session, [self.tree.modules[path]], before)
            # The same arguments as in the recorded pass, then with the corner changed.
            model(*args, **named)
            changed = {name: other_corner(x) for name, x in named.items()}
            model(*map(other_corner, args), **changed)
        # Before and after the change: the difference of the first and the last pass.
        return axes.on_grid((read[0] - read[-1]).abs())

    # Questions about all layers.

    def gridded(self) -> dict[str, Axes]:
        """The addresses of the outputs that have a grid, in order; those of one place only if there are no others."""
        gridded: dict[str, Axes] = {}
        for call in self.calls:
            # Windows in the batch axis are not the inputs, so their outputs are left out.
            if not call.path or call.shape[0] != self.rows:
                continue
            axes = self._axes_of_call(call)
            if axes is not None and axes.grid is not None:
                gridded.pop(call.path, None)  # of a module that ran twice, the last call counts
                gridded[call.path] = axes
        # A pooled (1, 1) has no places to draw, unless nothing else is there.
        several = {path: axes for path, axes in gridded.items() if axes.grid != (1, 1)}
        return several or gridded

    def token_blocks(self) -> list[str]:
        """The layers whose tokens lie on a grid: the members of the outermost lists of modules of one class."""
        grids = self.gridded()
        lists = uniform_lists(self.tree, lambda path: path in grids and grids[path].tokens)
        return [path for names in lists.values() for path in names]

    def blocks(self, tokens: int) -> list[str]:
        """The layers whose outputs have this many tokens: the longest list of modules of one class."""
        # (b, t, c) with t tokens, and then the longest list of them.
        sequences = [call for call in self.calls if len(call.shape) == 3]
        fitting = {call.path for call in sequences if call.shape[1] == tokens}
        return max(uniform_lists(self.tree, fitting.__contains__).values(), key=len, default=[])

    def choose(self, layer: str | int, layers: list[str]) -> str:
        """The address of a layer by name or number; a list of modules, such as a stage, means its last module.

        Args:
            layer: An address, the name of a list of modules, or a number: of one of `layers` in a vision transformer,
                of a stage (`stages.0`, `stages.1` ...) in a convolutional network.
            layers: The addresses that fit.
        """
        # "stages.2.0.conv" is in the stage "stages.2"
        in_stages = [path for path in layers if path.startswith("stages.")]
        stages = list(dict.fromkeys(".".join(path.split(".")[:2]) for path in in_stages))
        # A number counts stages where the model has them, blocks otherwise.
        if isinstance(layer, int):
            numbered = stages or layers
            if not -len(numbered) <= layer < len(numbered):
                raise InputIndexError(
                    f"layer {layer}: there are {len(numbered)}, counted from 0: {', '.join(numbered[:12])}"
                )
            layer = numbered[layer]
        if layer in layers:
            return layer
        # The members of "stages.2" are "stages.2.0", ...; the last one returns its output.
        members = [path for path in layers if path.rpartition(".")[0] == layer]
        if not members:
            shown = stages or layers
            raise InputError(
                f"layer={layer!r} does not fit: expected one of {', '.join(shown[-12:])}{nearest(layer, layers)}"
            )
        return members[-1]

    # How axes are decided, from the shape of an output and the evidence in and around its module.

    def _axes_of_call(self, call: ModuleCall) -> Axes | None:
        """The axes of a call's output; None if it cannot be read without an assumption."""
        try:
            axes = self._decide(call.path, call.shape, call.weights)
        except InputError:
            return None
        # An assumption is good enough for a question about one layer, not for a list of all.
        if axes.assumed:
            return None
        return axes

    def _decide(self, address: str, shape: Shape, weights: bool) -> Axes:
        """Decide the axes of a tensor from all evidence.

        Args:
            address: The address of the layer, or of its input.
            shape: The shape of its output.
            weights: The values of the output look like attention weights.
        """
        # Of an activation the path is that of the module without the activation's name.
        path = address if address in self.tree.modules else address.rpartition(".")[0]
        last = len(shape) - 1
        # (b, c) or (b,): the last axis has the channels.
        if last < 2:
            return Axes(channels=last)
        # Three axes are a sequence, (b, t, c) or (b, c, t).
        if last == 2:
            return self._sequence(path, shape)
        # An axis as long as the sequence around the layer may be the keys of attention.
        if weights or self._has_pairs(path, shape):
            raise InputError(
                f"{address!r} gave a tensor {shape} of attention weights, which has no channels: expected a layer that "
                f"returns features{self._such_as(path)}"
            )
        by_aspect = self._axes_by_aspect(shape)
        # Where the image's aspect ratio fits neither reading, both stay possible.
        channels = self._channels(address, path, shape, by_aspect or {1, last})
        if channels is None:
            # Without evidence torch's convention (b, c, y, x) is assumed, and a Notice says so.
            assumed = f"nothing says which axis has the channels; {_form(shape, 1)} is assumed"
            return Axes(channels=1, assumed=assumed)
        # Without the aspect ratio of the image, two axes are a grid only if a layer of torch makes them one.
        by_layer = channels == 1 and self._axis_of_layers_inside(path, shape) == 1
        if last > 3 or not (channels in by_aspect or by_layer):
            return Axes(channels=channels)
        return Axes(channels=channels, grid=_grid(shape, channels))

    def _channels(self, address: str, path: str, shape: Shape, allowed: set[int]) -> int | None:
        """The axis of channels, one of those allowed; None if nothing decides.

        The strongest evidence comes first: the class of the layer, then the sizes of parameters, then layers inside.
        """
        last = len(shape) - 1
        # The class of the module decides only for its own output.
        fixed = fixed_channels(self.tree.modules[path], last) if address == path else None
        # A matrix may also be applied to the rows of an image, so that its last axis must be allowed.
        if fixed == 1 or fixed in allowed:
            return fixed
        # Sizes of parameters come next: a vector of c weights belongs to c channels.
        by_widths = self._axis_by_widths(path, shape, allowed)
        if by_widths is not None:
            return by_widths
        inside = self._axis_of_layers_inside(path, shape)
        if inside in allowed or len(allowed) > 1:
            return inside
        # The aspect ratio of the image leaves one axis, unless the parameters contradict it.
        (channels,) = allowed
        # The only other axis that could have been the channels' in (b, c, y, x) or (b, y, x, c).
        other = 1 + last - channels
        # The parameters contradict the aspect ratio: neither reading is safe.
        if shape[other] in self._own_widths(path):
            raise InputError(
                f"{address!r} gave a tensor {shape}, whose shape is that of {_form(shape, channels)} and does not fit "
                "its parameters: expected another layer, or features='flat', which needs no axes"
            )
        return channels

    def _sequence(self, path: str, shape: Shape) -> Axes:
        """The axes of (b, t, c), or of (b, c, t): a convolution over time, or a layer that mixes tokens."""
        widths = self._own_widths(path)
        convolves = any(isinstance(part, FIRST_1D) for part in self.tree.modules[path].modules())
        # (b, c, t): axis 1 is as wide as the parameters, the last is not.
        channels_first = convolves and shape[1] in widths and shape[2] not in widths
        # Layers inside of it that mix tokens transpose to (b, c, t) and back.
        if channels_first or self._is_swapped(path, shape):
            return Axes(channels=1, tokens=True)
        # A module around it that was called with ids (b, t) reads a text, which has no grid.
        of_text = any(len(self.given.get(outer, ())) == 2 for outer in _around(path)[1:-1])
        places = None if of_text else self.places(shape[1])
        # Without a grid of this many tokens they are a plain sequence.
        return places or Axes(channels=2, tokens=True)

    def _is_swapped(self, path: str, shape: Shape) -> bool:
        """Whether a sequence is (b, c, t), because the module around it was called with (b, t, c)."""
        for outer in _around(path)[1:]:
            given = self.given.get(outer, ())
            # Modules that were called with vectors or images only are skipped.
            if len(given) != 3:
                continue
            # the nearest module that reads a sequence, which may itself be (b, c, t)
            tokens, width = given[1:]
            if self._is_swapped(outer, given):
                tokens, width = width, tokens
            # Only one of the two axes may be the width, or nothing is decided.
            return shape[1] == width and width not in (tokens, shape[2])
        return False

    def _has_pairs(self, path: str, shape: Shape) -> bool:
        """Whether an output (b, h, queries, keys) or (b, queries, keys, h) has an axis for the keys.

        It has if a module around it was called with a sequence of as many tokens, and its places are not these tokens.
        """
        for outer in _around(path)[1:]:
            given = self.given.get(outer, ())
            if len(given) != 3:
                continue
            tokens = given[1]
            has_keys = shape[-1] == tokens or shape[1] == shape[2] == tokens
            # a grid (y, x) of the tokens themselves has no keys
            is_grid = tokens in (shape[1] * shape[2], shape[-2] * shape[-1])
            return has_keys and tokens > 1 and not is_grid
        return False

    def _axes_by_aspect(self, shape: Shape) -> set[int]:
        """The axes that may hold the channels, because the other two have the aspect ratio of the image."""
        # The image as the model was called with it; ids of a text have two axes.
        image = self.given.get("", ())
        if len(image) != 4 or len(shape) != 4:
            return set()
        height, width = image[2:]

        def has_aspect(rows: int, columns: int) -> bool:
            # rows / columns = height / width, up to less than a row or column
            return abs(rows * width - columns * height) < max(height, width)

        # (b, y, x, c) and (b, c, y, x): the axis left over is the channels'.
        return {channels for channels in (1, 3) if has_aspect(*_grid(shape, channels))}

    def _axis_by_widths(self, path: str, shape: Shape, allowed: set[int]) -> int | None:
        """The axis whose size is one that the parameters of the layer, or of a module around it, are made for."""
        for outer in _around(path):  # the layer itself first, then ever larger modules
            fitting = [axis for axis in allowed if shape[axis] in self._own_widths(outer)]
            if fitting:
                # Two axes of fitting sizes decide nothing.
                if len(fitting) == 1:
                    return fitting[0]
                return None
        return None

    def _axis_of_layers_inside(self, path: str, shape: Shape) -> int | None:
        """The axis of channels of the first layer of torch that reads or returns this shape, inside or just around."""
        # Layers of torch that read or returned this very shape.
        fixed = [call for call in self.calls if call.channels is not None]
        fixed = [call for call in fixed if shape in (call.given, call.shape)]
        for outer in _around(path):
            # Inside the layer itself first, then in ever larger modules around it.
            for call in fixed:
                if is_inside(call.path, outer):
                    return call.channels
        return None

    def _own_widths(self, path: str) -> set[int]:
        """The numbers of channels that the parameters of a module are made for."""
        # The parameters of a module are walked once, although many outputs ask for them.
        if path not in self._widths:
            self._widths[path] = widths(self.tree.modules[path])
        return self._widths[path]

    def _such_as(self, path: str) -> str:
        """A layer around an address that returns features, for a message."""
        # A module around it may return features where the layer itself returns weights.
        known = {call.path for call in self.calls if not call.weights} | self.given.keys()
        fitting = [outer for outer in _around(path)[1:] if outer and outer in known]
        # The outermost one is the surest to return features.
        if fitting:
            return f", such as {fitting[-1]!r}"
        return ""


@contextmanager
def record_layout(model: nn.Module, *, values: bool = True) -> Iterator[OutputAxes]:
    """Record the shapes of all modules' inputs and outputs while a `with` lasts, of calls by this thread.

    Args:
        model: The model.
        values: Also see from their values which outputs are attention weights, which `OutputAxes.gridded` leaves out.
    """
    layout, thread = OutputAxes(Tree(model)), threading.get_ident()
    paths = {module: path for path, module in layout.tree.parts}

    # Inputs are recorded before the module runs, so that `given` is known inside of it.
    def before(module: nn.Module, args: Any, named: Any) -> None:
        path = paths.get(module)
        if path is None or threading.get_ident() != thread:  # None: a copy, which shares its hooks
            return
        tensors = [x for x in (*args, *named.values()) if isinstance(x, Tensor)]
        if not path:
            # The arguments of the model itself, with which check_order runs it again.
            layout.arguments[:] = [(args, named)]
            # of a model that reads an image and a text, the image counts
            tensors = [x for x in tensors if x.ndim == 4] or tensors
        layout.given[path] = tuple(tensors[0].shape) if tensors else ()

    # Calls are appended as modules end: a child before the module around it.
    def after(module: nn.Module, _: Any, out: Any) -> None:
        path = paths.get(module)
        if path is None or threading.get_ident() != thread:
            return
        if not isinstance(out, Tensor | tuple | list):  # the output of a whole model
            return
        x = first_tensor(out, None)
        if x is None:
            return
        call = ModuleCall(
            path=path,
            given=layout.given.get(path, ()),
            shape=tuple(x.shape),
            channels=fixed_channels(module, x.ndim - 1),
            weights=values and sums_to_1(x),
        )
        layout.calls.append(call)

    with Session(model) as session, session:  # twice: see Session
        call_before(session, paths, before)
        call_after(session, paths, after)
        yield layout


def fixed_channels(module: nn.Module, last: int) -> int | None:
    """The axis of channels in what a layer of torch returns, 1 or the last one; None for all other modules."""
    if isinstance(module, FIRST):
        return 1
    # Over channels alone the last axis is theirs; a LayerNorm of (y, x) normalises places.
    over_places = isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1
    if type(module) in LAST and not over_places:
        return last
    return None


def widths(module: nn.Module) -> set[int]:
    """The numbers of channels that the parameters of a module are made for.

    Those are the sizes of vectors (biases, norms, layer scale), and the first two axes of matrices and kernels. A table
    of positions is not made for a number of channels alone, and is not called weight.
    """
    sizes = set[int]()
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        # A vector, such as a bias or a norm, or (1, c, 1, 1) of layer scale.
        if x.ndim and x.numel() == max(x.shape):
            sizes.add(x.numel())
        elif name.rpartition(".")[2] == "weight":
            sizes |= set(x.shape[:2])
    return sizes


def sums_to_1(x: Tensor) -> bool:
    """Whether a tensor (b, h, q, k) holds attention weights: the rows of its last axis are positive and sum to 1."""
    # (b, h, q, k) with numbers to add up, which a meta tensor does not hold.
    if x.ndim != 4 or x.shape[-1] < 2 or not x.numel() or not x.is_floating_point() or x.is_meta:
        return False
    # Most tensors are known by one row; 0.02 is what rounding to half precision may add up to.
    row = x.detach()[0, 0, 0].float()
    if abs(float(row.sum()) - 1) > 0.02 or bool((row < 0).any()):
        return False
    whole = x.detach().float()
    return bool((whole >= 0).all()) and bool(((whole.sum(-1) - 1).abs() < 0.02).all())


@overload
def first_tensor(out: Any) -> Tensor: ...


@overload
def first_tensor(out: Any, default: None, /) -> Tensor | None: ...


def first_tensor(out: Any, *default: None) -> Tensor | None:
    """Return the tensor that a module returned, or the first of several; without a default, raises if there is none."""
    if isinstance(out, Tensor):
        return out
    parts: Any = ()
    if hasattr(out, "values"):  # a dict, or an output of transformers
        parts = out.values()
    elif isinstance(out, tuple | list):
        parts = out
    for x in parts:
        if isinstance(x, Tensor):
            return x
    if default:
        return default[0]
    raise InputError(
        f"a module returned a {type(out).__name__} without a tensor: expected a layer's output"
    )


def _around(path: str) -> list[str]:
    """A path, the paths of the modules around it, and the empty path of the model."""
    # "a.b.c" -> ["a.b.c", "a.b", "a", ""]
    parts = path.split(".") if path else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _grid(shape: Sequence[int], channels: int) -> tuple[int, int]:
    """The rows and columns of a feature map (b, c, y, x) or (b, y, x, c)."""
    rows, columns = shape[2:] if channels == 1 else shape[1:3]
    return rows, columns


def _form(shape: Shape, channels: int) -> str:
    """The axes of a tensor in words."""
    places = "y, x" if len(shape) == 4 else "..."
    if channels == 1:
        return f"(b, channels, {places})"
    return f"(b, {places}, channels)"

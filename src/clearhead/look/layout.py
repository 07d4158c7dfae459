"""Where the tokens of an image model lie: its grid of patches and its layers, found from the shapes of one pass.

No model is asked for its structure. The patches of a vision transformer come from a feature map (b, c, y, x), the
tokens are (b, t, d), and what t has beyond y x are the tokens before the grid: a class token and registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..errors import InputError, InputIndexError, nearest
from .addresses import Tree

MOST_SPECIAL = 32  # tokens before the grid at most: class token, distillation token, registers


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The grid of a vision transformer's tokens."""

    size: tuple[int, int]  # rows and columns
    special: int  # number of tokens before it, which have no place in it

    @property
    def tokens(self) -> int:
        """The number of all tokens."""
        return self.special + self.size[0] * self.size[1]


@dataclass(frozen=True, eq=False)
class Layout:
    """The shapes of the modules' outputs in one pass, in the order in which the modules ended."""

    tree: Tree
    shapes: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    @property
    def grid(self) -> Grid | None:
        """The grid of patches; None if the model has no tokens that come from a feature map."""
        before: tuple[int, int] | None = None
        found = None
        for _, shape in self.shapes:
            if len(shape) == 4:
                before = (shape[2], shape[3])
            elif len(shape) == 3 and before is not None and found is None:
                extra = shape[1] - before[0] * before[1]
                found = before if 0 <= extra <= MOST_SPECIAL else None
        if found is None:
            return None
        counts = [len(shape) == 3 and shape[1] - found[0] * found[1] for _, shape in self.shapes]
        special = max(n for n in counts if n is not False and n <= MOST_SPECIAL)
        return Grid(size=found, special=special)

    def blocks(self, tokens: int) -> list[str]:
        """The addresses of the layers whose outputs have this many tokens: the longest list of modules of one class."""
        ends = {path for path, shape in self.shapes if len(shape) == 3 and shape[1] == tokens}
        lists: list[list[str]] = [[]]
        for path, module in self.tree.parts:
            if isinstance(module, nn.ModuleList | nn.Sequential) and len({*map(type, module)}) == 1:
                names = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
                lists.append(names if set(names) <= ends else [])
        return max(lists, key=len)

    def maps(self) -> list[str]:
        """The addresses of feature maps (b, c, y, x), in order; those of one place only if there are no others."""
        wide = [path for path, shape in self.shapes if len(shape) == 4 and path and shape[2] * shape[3] > 1]
        return wide or [path for path, shape in self.shapes if len(shape) == 4 and path]

    def choose(self, layer: str | int, layers: list[str]) -> str:
        """The address of a layer by name or number; a list of modules, such as a stage, means its last module.

        Args:
            layer: An address, the name of a list of modules, or a number: of one of `layers` in a vision transformer,
                of a stage (`stages.0`, `stages.1` ...) in a convolutional network.
            layers: The addresses that fit.
        """
        stages = list(dict.fromkeys(".".join(path.split(".")[:2]) for path in layers if path.startswith("stages.")))
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


@contextmanager
def record_layout(model: nn.Module) -> Iterator[Layout]:
    """Record the shapes of all modules' outputs while a `with` lasts."""
    layout = Layout(Tree(model))
    hooks = []
    for path, module in layout.tree.parts:

        def record(_: nn.Module, __: Any, out: Any, path: str = path) -> None:
            x = first_tensor(out) if isinstance(out, Tensor | tuple) else None  # not the output of a whole model
            if x is not None:
                layout.shapes.append((path, tuple(x.shape)))

        hooks.append(module.register_forward_hook(record))
    try:
        yield layout
    finally:
        for hook in hooks:
            hook.remove()


def first_tensor(out: Any) -> Tensor | None:
    """The tensor that a module returned, or the first of several; None if there is none."""
    if isinstance(out, Tensor):
        return out
    values = out.values() if hasattr(out, "values") else out if isinstance(out, tuple | list) else ()
    return next((x for x in values if isinstance(x, Tensor)), None)

"""Which module of a model is running: how an attention call inside a foreign model gets its name."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


@dataclass(eq=False)
class Frame:
    """One call of a module that has begun and not ended."""

    module: nn.Module
    path: str | None  # None: the root, if it cannot call attention itself
    given: tuple[Any, dict[str, Any]] = ((), {})  # what the module was called with
    attended: bool = False  # an attention call was seen inside
    fused: bool = False  # ... of a fused kernel, made by the module itself

    @cached_property
    def inputs(self) -> list[Tensor]:
        """The tensors that the module was called with."""
        return [x for x in tree_leaves(self.given) if isinstance(x, Tensor)]

    def was_given(self, keys: int) -> bool:
        """Whether the module was called with that many tokens: then the keys are made of them, and of no cache."""
        if isinstance(self.module, nn.MultiheadAttention):  # it never has a cache, but may add keys (bias_k)
            return True
        return any(x.ndim == 3 and x.is_floating_point() and x.shape[1] == keys for x in self.inputs)

    def tokens(self) -> list[tuple[int, int]]:
        """Rows and tokens of what the module was called with: (b, n, d), or an image (b, y, x, c) or (b, c, y, x)."""
        sizes = []
        for x in self.inputs:
            if x.is_floating_point() and x.ndim == 3:
                sizes.append((x.shape[0], x.shape[1]))
            elif x.is_floating_point() and x.ndim == 4:
                sizes += [(x.shape[0], x.shape[1] * x.shape[2]), (x.shape[0], x.shape[2] * x.shape[3])]
        return sizes


@dataclass(frozen=True, eq=False)
class Place:
    """Where in a model an attention call happens: the module, and which of its calls in one pass of the model."""

    frame: Frame
    path: str
    index: int

    def address(self, leaf: str, numbered: bool = True) -> str:
        """The address of an activation here; from the second call of one pass on, its path ends in @1, @2 and so on."""
        path = f"{self.path}@{self.index}" if numbered and self.index else self.path
        return f"{path}.{leaf}" if path else leaf


class Running:
    """The modules of one model that are running in one thread, outermost first.

    Hooks follow the calls of modules. A module whose `forward` is called directly has no hooks: its attention counts as
    that of the module around it.

    Args:
        root: The model.
        paths: The modules that may call attention, with their names in the model.
        thread: The thread that is followed.
    """

    def __init__(self, root: nn.Module, paths: dict[nn.Module, str], thread: int) -> None:
        self.root, self.paths, self.thread = root, paths, thread
        self.frames: list[Frame] = []
        self.passes = 0  # calls from outside of the model, of itself or of a part
        self._calls: Counter[str] = Counter()  # attention calls of each module in the present pass

    def follow(self, stack: ExitStack, left: Callable[[Frame, Any], None]) -> None:
        """Follow the modules until the stack is closed; `left` is called with each frame that ends and its output."""

        def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if threading.get_ident() != self.thread:
                return
            if not self.frames:
                self.passes += 1
                self._calls.clear()
            self.frames.append(Frame(module, self.paths.get(module), (args, kwargs)))

        def leave(module: nn.Module, _: Any, out: Any) -> None:
            if threading.get_ident() != self.thread or all(frame.module is not module for frame in self.frames):
                return
            while (frame := self.frames.pop()).module is not module:
                pass  # a module that ended in an error before its hooks were called
            if out is not None:  # None: it ended in an error
                left(frame, out)

        for module in {self.root: "", **self.paths}:
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        stack.callback(self.frames.clear)

    def place(self, frame: Frame | None = None) -> Place | None:
        """The place of the attention call that happens now, or of one in `frame`; None outside of the model."""
        if frame is None:
            if threading.get_ident() != self.thread or not self.frames:
                return None
            frame = self.frames[-1]
        for around in self.frames:
            around.attended = True
        frame.attended = True
        if frame.path is None:
            return None
        index = self._calls[frame.path]
        self._calls[frame.path] += 1
        return Place(frame, frame.path, index)

"""Which module of a foreign model is running, so that an attention call inside it gets its address and its position."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...models.hooks import Session, call_after, call_before
from ..capture.addresses import joined
from .heads import head_counts


@dataclass(frozen=True, eq=False)
class CacheState:
    """A KV cache object like those of transformers, as a pass of the model found it."""

    ref: weakref.ref[Any]
    length: int  # tokens that it has seen before the pass
    forgets: bool  # it has a sliding window, and keeps only the last keys


@dataclass(eq=False)
class Frame:
    """One call of a module that has begun and not ended."""

    module: nn.Module
    path: str | None  # None: the root, if it cannot call attention itself
    given: tuple[Any, dict[str, Any]] = ((), {})  # what the module was called with
    attended: bool = False  # an attention call was seen inside
    fused: bool = False  # ... of a fused kernel, made by the module itself
    # numbers of axes of softmaxes over the last axis but one, as linear attention takes them
    features: frozenset[int] = frozenset()
    # shapes of products of two tensors of as many axes
    products: set[torch.Size] = field(default_factory=set)
    call: FrameType | None = None  # the frame of Python that runs the module
    parent: Frame | None = None  # that of the module around it
    own_cache: CacheState | None = None  # the KV cache that the module was called with

    @cached_property
    def inputs(self) -> list[Tensor]:
        """The tensors that the module was called with."""
        return list(_tensors(self.given))

    @cached_property
    def heads(self) -> frozenset[int]:
        """How many query heads the module may have: see `head_counts`."""
        return head_counts(self.module)

    @property
    def cache(self) -> CacheState | None:
        """The KV cache that the module, or the one around it, was called with."""
        return self.own_cache or (None if self.parent is None else self.parent.own_cache)

    def was_given(self, rows: int, queries: int, keys: int) -> bool:
        """Whether the module was called with as many tokens as keys: then the keys are made of them, and of no cache.

        The tokens are (b, n, d), (n, b, d) or an image; rows, queries and keys are those of the attention. If the
        module was called with queries, keys and values (b, h, n, e), these are tokens of the module around it.
        """
        # it never has a cache, but may add keys (bias_k)
        if isinstance(self.module, nn.MultiheadAttention):
            return True
        floats = [x for x in self.inputs if x.is_floating_point()]
        # Three tensors with four axes are q, k and v: the module around it was given the tokens.
        if sum(x.ndim == 4 for x in floats) >= 3:
            return self.parent is not None and self.parent.was_given(rows, queries, keys)
        return any(_is_source(x, rows, queries, keys) for x in floats)


@dataclass(frozen=True, eq=False)
class CallSite:
    """Where in a model an attention call happens: the module, and which of its calls in one pass of the model."""

    frame: Frame
    path: str
    index: int

    def address(self, leaf: str, call: str | None = None) -> str:
        """The address of an activation here.

        Args:
            leaf: The name of the activation.
            call: What stands for the number of the call; if not given, @1, @2 and so on from the second call on.
        """
        # The first call of a module in a pass has no number.
        if call is None:
            call = f"@{self.index}" if self.index else ""
        return joined(f"{self.path}{call}", leaf)

    def check_heads(self, heads: int) -> None:
        """Raise if an attention call here has another number of heads than the module: which they are is not known."""
        known = self.frame.heads
        if known and heads not in known:
            raise InputError(
                f"{self.name} has {' or '.join(map(str, sorted(known)))} heads and calls attention with {heads}: which "
                "of its heads these are is not known, so that this attention can be neither watched nor edited"
            )

    @property
    def name(self) -> str:
        """The module in a message: its path, or its class if it is the model itself."""
        if self.path:
            return repr(self.path)
        return f"this {type(self.frame.module).__name__}"


class ModuleStack:
    """The modules of one model that are running in one thread, outermost first.

    Hooks follow the calls of modules. A module whose `forward` is called directly has no hooks: its attention counts as
    that of the module around it. A copy of the model keeps the hooks, and is not followed.

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
        self._caches: list[CacheState] = []  # the KV caches of the present pass
        # modules that were given a cache first, and their first layer
        self._layers: dict[nn.Module, int] = {}

    def follow(self, session: Session, ended: Callable[[Frame, Any], None]) -> None:
        """Follow the modules until the session ends.

        Args:
            session: The watch or edit.
            ended: Called with each frame that ends without an error, and the output of its module.
        """
        session.undo_with(self.frames.clear)
        modules = {self.root: "", **self.paths}
        # Before all other hooks, and after errors as well, so that the stack is always complete.
        call_before(session, modules, self._begin, first=True)
        call_after(session, modules, partial(self._end, ended), always=True)

    def _begin(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self.thread:
            return
        if module is not self.root and module not in self.paths:  # a copy
            return
        self._forget_interrupted()
        if not self.frames:  # called from outside of the model: another pass
            self.passes += 1
            self._calls.clear()
            self._caches.clear()
        frame = Frame(module, self.paths.get(module), (args, kwargs), call=_caller())
        frame.parent = self.frames[-1] if self.frames else None
        frame.own_cache = self._cache(frame)
        self.frames.append(frame)

    def _end(
        self, ended: Callable[[Frame, Any], None], module: nn.Module, _: Any, out: Any
    ) -> None:
        if threading.get_ident() != self.thread:
            return
        # A module that was not followed in this thread, or began before the watch.
        if all(frame.module is not module for frame in self.frames):
            return
        while (frame := self.frames.pop()).module is not module:
            pass  # a module that ended in an error before its hooks were called
        if out is not None:  # None: it ended in an error
            ended(frame, out)

    def call_site(self, frame: Frame | None = None) -> CallSite | None:
        """The site of the attention call that happens now, or of one in `frame`; None outside of the model."""
        if frame is None:
            if threading.get_ident() != self.thread:
                return None
            self._forget_interrupted()
            if not self.frames:
                return None
            frame = self.frames[-1]
        # A module that returns weights is asked for them only if nothing inside of it attended.
        for around in self.frames:
            around.attended = True
        frame.attended = True
        # The root's forward cannot attend itself, so that the call has no address.
        if frame.path is None:
            return None
        # The number of this call among those of the module in this pass.
        index = self._calls[frame.path]
        self._calls[frame.path] += 1
        return CallSite(frame, frame.path, index)

    def _cache(self, frame: Frame) -> CacheState | None:
        """The cache that a module is called with, with its length when the first module of the pass was."""
        args, kwargs = frame.given
        given = (*args, *kwargs.values())
        cache: Any = next((x for x in given if _is_cache(type(x))), None)  # type: ignore[arg-type]
        if cache is None:
            return None
        # The same cache in several modules of a pass keeps the length from before the pass.
        for state in self._caches:
            if state.ref() is cache:
                return state
        # Each layer of a cache has a length; that of the first layer of this module has not grown in this pass yet.
        if frame.module not in self._layers:
            layers = [getattr(part, "layer_idx", None) for part in frame.module.modules()]
            self._layers[frame.module] = min((i for i in layers if isinstance(i, int)), default=0)
        try:
            length = int(cache.get_seq_length(self._layers[frame.module]))
        except (TypeError, ValueError, RuntimeError):  # its layers have no length
            return None
        sliding = getattr(cache, "is_sliding", False)  # of each layer, or of all
        forgets = any(sliding) if isinstance(sliding, list) else bool(sliding)
        state = CacheState(weakref.ref(cache), length, forgets)
        self._caches.append(state)
        return state

    def _forget_interrupted(self) -> None:
        """Forget modules that no longer run: torch calls no hook after a KeyboardInterrupt or a SystemExit."""
        while self.frames and self.frames[-1].call is not None:
            frame: FrameType | None = sys._getframe()
            # A frame that Python no longer runs was left by an exception.
            while frame is not None and frame is not self.frames[-1].call:
                frame = frame.f_back
            if frame is not None:
                return
            self.frames.pop()


@cache
def _is_cache(kind: type) -> bool:
    """Whether objects of a class are KV caches like those of transformers."""
    return hasattr(kind, "get_seq_length")


def _tensors(given: Any) -> Iterator[Tensor]:
    """The tensors in the arguments of a module."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, tuple | list):
        for x in given:
            yield from _tensors(x)
    elif isinstance(given, dict):
        yield from _tensors(tuple(given.values()))


def _is_source(x: Tensor, rows: int, queries: int, keys: int) -> bool:
    """Whether a tensor has the tokens of the keys: (b, n, d), (n, b, d), (b, y, x, c) or (b, c, y, x)."""
    if x.ndim == 3:
        first = (x.shape[0], x.shape[1])
        return first == (keys, rows) or (x.shape[1] == keys and first != (queries, rows))
    # a mask (..., q, k), or the keys of a cache
    if x.ndim != 4 or x.shape[3] == keys or x.shape[2] == keys - queries:
        return False
    return keys in (x.shape[1] * x.shape[2], x.shape[2] * x.shape[3])


_MODULE = nn.Module.__call__.__code__.co_filename


def _caller() -> FrameType | None:
    """The frame of Python in which torch calls a module, from one of its hooks."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _MODULE:
        frame = frame.f_back
    return frame


def user_level(frame: FrameType) -> int:
    """The stacklevel with which a warning in this frame names the line that calls the outermost module."""
    level, outermost = 1, 0
    while frame.f_back is not None:
        # The outermost call of a module is the line of the user's own code.
        if frame.f_code.co_filename == _MODULE:
            outermost = level
        level, frame = level + 1, frame.f_back
    return outermost + 1

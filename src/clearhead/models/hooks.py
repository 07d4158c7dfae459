"""Hooks on the modules of a model, and how all that a session has set up is undone, whatever happens meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules import module as _global

from ..layers import Attention


class Session:
    """Everything that one watch or edit, or another user of hooks, has set up on a model, and how to undo it.

    Every step is registered with `undo_with` before it acts, and undoing a step twice, or one that did not act, does
    nothing. So a KeyboardInterrupt at any point leaves nothing behind if the session is entered twice,
    `with session, session`: what the first ending did not undo, the second does. A session may end in another thread
    than it began, as a generator does that a thread pool closes.

    Args:
        root: The model.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.thread = threading.get_ident()  # the thread whose calls are recorded or edited
        self._undo: list[Callable[[], Any]] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        # A step leaves the list after it is undone, so that an interrupted one is undone again.
        while self._undo and not sys.is_finalizing():
            self._undo[-1]()
            self._undo.pop()

    def undo_with(self, undo: Callable[[], Any]) -> None:
        """Register how a step that follows is undone; the last step is undone first."""
        self._undo.append(undo)

    def wait_for_turn(self) -> None:
        """Wait until no other thread watches or edits the model, and let others wait until this session ends."""
        self.undo_with(partial(_end_turn, self))
        with _LOCK:
            # Sessions of the same thread may nest; those of other threads wait.
            while any(other.thread != self.thread for other in _OPEN.get(self.root, ())):
                _TURNS.wait()
            _OPEN.setdefault(self.root, []).append(self)


# entered itself, not by the condition, whose methods a KeyboardInterrupt may stop half-way
_LOCK = threading.RLock()
_TURNS = threading.Condition(_LOCK)
# the sessions of each model
_OPEN: WeakKeyDictionary[nn.Module, list[Session]] = WeakKeyDictionary()


def _end_turn(session: Session) -> None:
    with _LOCK:
        if session in _OPEN.get(session.root, ()):
            _OPEN[session.root].remove(session)
        _TURNS.notify_all()


# Hooks on modules that no copy of a model keeps.


_IDLE = nullcontext()
# takes any arguments and returns None; a pickle of it opens without this library
_NOTHING = _IDLE.__exit__
_TABLES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_always_called",
)


class Hook:
    """A hook on modules of one model; a copy of the model, by copy.deepcopy or pickle, has one that does nothing."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    def __call__(self, *given: Any) -> Any:
        return self.act(*given)

    def __deepcopy__(self, memo: object) -> Any:
        return _NOTHING

    def __reduce__(self) -> Any:
        return getattr, (_IDLE, "__exit__")


def call_before(
    session: Session, modules: Iterable[nn.Module], act: Callable[..., Any], *, first: bool = False
) -> None:
    """Call act(module, args, kwargs) before each call of the modules, until the session ends.

    Args:
        session: The watch or edit.
        modules: The modules.
        act: Returns new (args, kwargs), or None. A shallow copy of a module shares its hooks: `act` is then given the
            copy.
        first: Before all other hooks of the modules.
    """
    hook, modules = Hook(act), list(modules)
    # Registered before the hooks are set, so that an interrupt in between is undone as well.
    session.undo_with(partial(_remove, modules, hook))
    for module in modules:
        tables: Any = module
        tables._forward_pre_hooks_with_kwargs[hook] = True
        tables._forward_pre_hooks[hook] = hook
        if first:
            tables._forward_pre_hooks.move_to_end(hook, last=False)


def call_after(
    session: Session, modules: Iterable[nn.Module], act: Callable[..., Any], *, always: bool = False
) -> None:
    """Call act(module, args, output) after each call of the modules, until the session ends.

    Args:
        session: The watch or edit.
        modules: The modules.
        act: Returns a new output, or None.
        always: Also after an error, with None as the output.
    """
    hook, modules = Hook(act), list(modules)
    session.undo_with(partial(_remove, modules, hook))
    for module in modules:
        tables: Any = module
        if always:
            tables._forward_hooks_always_called[hook] = True
        tables._forward_hooks[hook] = hook


def _remove(modules: list[nn.Module], hook: Hook) -> None:
    """Remove a hook.

    The tables of torch are written directly: a hook of `register_forward_hook` cannot be removed before its handle is
    returned, which a KeyboardInterrupt may prevent, and its handle takes ten times as long as the two entries.
    """
    for module in modules:
        # A hook is in some of the tables only, hence the default None.
        for table in _TABLES:
            getattr(module, table).pop(hook, None)


# Hooks on the one tensor that a module reads or returns.


def on_output(session: Session, module: nn.Module, act: Callable[[Any], Any]) -> None:
    """Call `act` with each output of a module, and use what it returns, unless None.

    Of a tuple of one tensor and None otherwise, as attention of transformers returns it, this is the tensor.
    """

    def hook(self: nn.Module, _: Any, out: Any) -> Any:
        if self is not module:  # a copy of it, which shares its hooks
            return None
        # Outputs with several values are given to `act` as they are.
        if type(out) is not tuple or sum(x is not None for x in out) != 1:
            return act(out)
        new = act(next(x for x in out if x is not None))
        if new is None:
            return None
        # The tuple keeps its form: only its one tensor is exchanged.
        return tuple(None if x is None else new for x in out)

    call_after(session, [module], hook)


def on_input(session: Session, module: nn.Module, act: Callable[[Any], Any]) -> None:
    """Call `act` with the first tensor that a module is called with, and use what it returns, unless None."""

    def hook(self: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if self is not module:  # a copy of it, which shares its hooks
            return None
        for i, x in enumerate(args):
            if isinstance(x, Tensor):
                new = act(x)
                if new is None:
                    return None
                return ((*args[:i], new, *args[i + 1 :]), kwargs)
        for key, x in kwargs.items():
            if isinstance(x, Tensor):
                new = act(x)
                if new is None:
                    return None
                return (args, {**kwargs, key: new})
        return None

    call_before(session, [module], hook)


# Fast code that skips modules may run only if they have neither hooks nor taps.


class Hooks:
    """The hooks of some modules and the taps of their attentions, collected once and checked at every step.

    Args:
        roots: The modules; everything inside them counts too.

    Examples:
        >>> layer = torch.nn.Linear(2, 2)
        >>> hooks = Hooks([layer])
        >>> handle = layer.register_forward_hook(lambda *_: None)
        >>> hooks.any()
        True
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        # the dicts themselves: hooks that are set later are in them too
        modules = [module for root in roots for module in root.modules()]
        self._attentions = [module for module in modules if isinstance(module, Attention)]
        self._hooks: list[Any] = [_global._global_forward_hooks, _global._global_forward_pre_hooks]
        for module in modules:
            self._hooks += [module._forward_hooks, module._forward_pre_hooks]

    def any(self) -> bool:
        """True if a hook or a tap is set."""
        return any(self._hooks) or any(attention.tap is not None for attention in self._attentions)


def hooked(*roots: nn.Module) -> bool:
    """Return whether one of these modules, or anything inside them, is watched or edited: has a hook or a tap.

    Args:
        roots: The modules.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, width=8, depth=1, heads=2, context=4)
        >>> handle = model.blocks[0].register_forward_hook(lambda *_: None)
        >>> hooked(model), hooked(model.head)
        (True, False)
    """
    return Hooks(roots).any()

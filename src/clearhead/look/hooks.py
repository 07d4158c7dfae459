"""Hooks on modules that are removed whatever happens, and that no copy of a model keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import nn

from .session import Session

_IDLE = nullcontext()
_NOTHING = _IDLE.__exit__  # takes any arguments and returns None; a pickle of it opens without this library
_TABLES = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_always_called")


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
    """Call act(module, args, kwargs) before each call of the modules, until the session ends."""
    hook, modules = Hook(act), list(modules)
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

    With `always` also after an error, with None as the output.
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
        for table in _TABLES:
            getattr(module, table).pop(hook, None)

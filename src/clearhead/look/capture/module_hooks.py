"""Hooks that record or edit the outputs and inputs of modules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from .addresses import INPUT
from .hooks import Session, call_after, call_before
from .tap import Edit, changed, own, recomputing
from .tape import Keep, Tape
from .text_counter import TextCounter


def watch_module(
    module: nn.Module,
    leaf: str | None,
    name: str,
    tape: Tape,
    grad: bool,
    keep: Keep,
    text: TextCounter,
    session: Session,
) -> None:
    """Record the outputs or inputs of a module until the session ends."""

    def record(out: Any) -> None:
        if threading.get_ident() != text.thread or recomputing():
            return
        # Does this call continue the text of the call before? While a search runs it does: the search announces each
        # text (new_text). Elsewhere nothing in a module's output tells, and this is a guess: an output of one token,
        # (batch, 1, width), continues, because decoding loops run one token at a time; any other begins another text.
        # So unrelated texts of one token each join here; an attention can tell them apart: see Listener.is_next_step.
        tokens = isinstance(out, Tensor) and out.ndim == 3
        continues = tokens and (text.searching or out.shape[1] == 1)
        tape.record(name, own(out, grad), keep, continues, text.number)

    _check(module, name)
    OUTSIDE[leaf](session, module, record)


def _check(module: nn.Module, name: str) -> None:
    """Raise for a module whose calls have no hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            f"{name!r} is compiled by TorchScript, which calls no hooks: expected another module"
        )


def _on_output(session: Session, module: nn.Module, act: Callable[[Any], Any]) -> None:
    """Call `act` with each output of a module, and use what it returns, unless None.

    Of a tuple of one tensor and None otherwise, as attention of transformers returns it, this is the tensor.
    """

    def hook(self: nn.Module, _: Any, out: Any) -> Any:
        if self is not module:  # a copy of it, which shares its hooks
            return None
        if type(out) is not tuple or sum(x is not None for x in out) != 1:
            return act(out)
        new = act(next(x for x in out if x is not None))
        if new is None:
            return None
        return tuple(None if x is None else new for x in out)

    call_after(session, [module], hook)


def _on_input(session: Session, module: nn.Module, act: Callable[[Any], Any]) -> None:
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


OUTSIDE = {None: _on_output, INPUT: _on_input}  # what hooks a module, for its output and its input


def edit_module(
    module: nn.Module, leaf: str | None, name: str, change: Edit, session: Session
) -> None:
    """Edit the outputs or inputs of a module until the session ends."""

    def act(x: Any) -> Any:
        if threading.get_ident() == session.thread:
            return changed(name, change, x)
        return None

    _check(module, name)
    OUTSIDE[leaf](session, module, act)

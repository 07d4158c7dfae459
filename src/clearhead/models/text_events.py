"""Which text the next call of a model belongs to: a search announces each text, and whoever watches the model hears it.

A search calls its model once per token, so that nothing in a call tells whether it continues a text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from ..errors import InputTypeError

Listener = Callable[[nn.Module], None]  # called with the model that a search runs

_LOCK = threading.RLock()
_LISTENERS: WeakKeyDictionary[nn.Module, list[Listener]] = WeakKeyDictionary()


def new_text(model: Any) -> None:
    """Announce to all watches of a model, or of a part of it, that its next call begins another text.

    Every search does so when it starts. Until the model itself is called, or the next text begins, all calls count as
    decoding steps of this text and join on the tape.

    Args:
        model: The model that the search runs, or a Bundle.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2).eval()
        >>> with torch.no_grad(), watch(model, "blocks.0.attn.weights") as tape:
        ...     for text in ([1, 2, 3], [4]):
        ...         new_text(model)
        ...         state = model.start({}, rows=1, limit=4)
        ...         for token in text:
        ...             _, state = model.step(torch.tensor([[token]]), state)
        >>> tape.texts("blocks.0.attn.weights")
        [AttentionMap(batch=1, heads=2, queries=3, keys=3), AttentionMap(batch=1, heads=2, queries=1, keys=1)]
    """
    root = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(root, nn.Module):
        raise InputTypeError(f"expected a model or a Bundle, got a {type(model).__name__}")
    with _LOCK:
        # copied, so that a listener may add or remove listeners, also from another thread
        listeners = [(watched, list(every)) for watched, every in _LISTENERS.items()]
    if not listeners:
        return
    parts = set(root.modules())
    for watched, every in listeners:
        # A watch of the whole model, of a part of it, or of something around it.
        if watched in parts or root in set(watched.modules()):
            for listener in every:
                listener(root)


def add_listener(watched: nn.Module, listener: Listener) -> None:
    """Call a function whenever a search on a model, or on something around or inside of it, begins a text."""
    with _LOCK:
        _LISTENERS.setdefault(watched, []).append(listener)


def remove_listener(watched: nn.Module, listener: Listener) -> None:
    """Undo `add_listener`; does nothing if the function is not there."""
    with _LOCK:
        if listener in _LISTENERS.get(watched, ()):
            _LISTENERS[watched].remove(listener)

"""watch and edit: listen to any activation of a model, or change it, and leave no trace.

Torch names and hooks every module's output; only what is born inside `attend` needs a tap. Both are set when
the `with` begins and gone when it ends. While watched, an eager model gives the same bits: the fused kernel
still answers, and what was asked for is computed beside it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import InputError, InputKeyError, InputTypeError, Notice
from ..layers import Attention, Bias, Mask, Tap
from .call import Call, DenseCall, LazyCall
from .maps import DENSE_LIMIT, settle
from .statistics import MEANING, statistics
from .tape import Keep, Tape, matching, nearest_addresses

EDITABLE = ("q", "k", "v", "scores", "weights", "heads")
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")  # what compiling and checkpointing put into a module's name
BORN_INSIDE = (*EDITABLE, *MEANING)  # the addresses of an attention, beside those of modules

Edit = Callable[[Tensor], Tensor]


@contextmanager
def watch(model: Any, *names: str, grad: bool = False, keep: Keep = "all") -> Iterator[Tape]:
    """Record the activations that `names` name (`*` is one segment, `**` any number) into a Tape.

    Modules are named as torch names them; inside each attention there are besides q, k, v, scores, weights (a
    lazy AttentionMap), heads, and every statistic of look.MEANING. `grad=True` keeps the gradient of each, for
    which scores and weights are really computed. `keep` may be "last", for the last call only, or a function
    that says what to keep of each record (`lambda map: map.pool(64)`). Calls from other threads are not recorded.
    """
    root = _root(model)
    addresses = _addresses(root)
    if not names:
        raise InputError("watch what? Name at least one address, for example 'blocks.*.attn.weights'")
    chosen = [name for pattern in names for name in _resolve(pattern, addresses)]
    chosen = [name for name in addresses if name in set(chosen)]  # each once, in the model's order
    if not callable(keep) and keep not in ("all", "last"):
        raise InputError(f"keep={keep!r}: expected 'all', 'last' or a function of a record")
    tape, mine = Tape({name: addresses[name][1] for name in chosen}, grad), threading.get_ident()
    text = _Text(mine)
    if grad and any(addresses[name][1] in ("scores", "weights") for name in chosen):
        _say("gradients of scores and weights are asked for: these layers compute their attention explicitly")
    with _alone(root) as stack:
        _follow(root, text, stack)
        inside: dict[Attention, dict[str, str]] = {}
        for name in chosen:
            module, leaf = addresses[name]
            if leaf is not None:
                assert isinstance(module, Attention)
                inside.setdefault(module, {})[leaf] = name
                continue

            def hook(_: nn.Module, __: Any, out: Any, name: str = name) -> None:
                if threading.get_ident() == mine:
                    one = isinstance(out, Tensor) and out.ndim == 3 and out.shape[1] == 1  # a token at a time
                    tape.record(name, _own(out, grad), keep, one, text.number)

            stack.callback(module.register_forward_hook(hook).remove)
        for attention, wanted in inside.items():
            _join(attention, "listeners", _Listener(tape, wanted, grad, keep, text), stack)
        yield tape


@contextmanager
def edit(model: Any, changes: Mapping[str, Edit]) -> Iterator[None]:
    """Replace the activations that names name by a function of them, for the length of a `with`.

    Changes of q, k, v and heads keep the fused kernel; those of scores (before the mask, so that no edit can
    make a query look where it may not) and of weights compute their attention explicitly, and say so.
    """
    root = _root(model)
    addresses = _addresses(root)
    mine = threading.get_ident()
    with _alone(root) as stack:
        for pattern, change in changes.items():
            for name in _resolve(pattern, addresses):
                module, leaf = addresses[name]
                if leaf is None:

                    def hook(_: nn.Module, __: Any, out: Any, name: str = name, change: Edit = change) -> Any:
                        return _changed(name, change, out) if threading.get_ident() == mine else out

                    stack.callback(module.register_forward_hook(hook).remove)
                    continue
                if leaf not in EDITABLE:
                    raise InputError(f"{name!r} is a measurement: expected one of {', '.join(EDITABLE)}, or a module")
                if leaf in ("scores", "weights"):
                    _say(f"{pattern!r} is edited: these layers compute their attention explicitly")
                assert isinstance(module, Attention)
                _join(module, "edits", (leaf, change, mine), stack)
        yield


class _Text:
    """Counts the texts that a watch has seen: steps of one text join on the tape, those of different texts do not."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.number = 0  # of texts that were announced by `new_text`
        self.calls = 0  # of the model itself: without a cache, each is another text

    def next(self) -> None:
        if threading.get_ident() == self.thread:
            self.number += 1

    def called(self, *_: Any) -> None:
        if threading.get_ident() == self.thread:
            self.calls += 1


_TEXTS: WeakKeyDictionary[nn.Module, list[_Text]] = WeakKeyDictionary()


def new_text(model: Any) -> None:
    """Tell everybody who watches a model that its next step begins another text: a search does so when it starts."""
    for text in list(_TEXTS.get(_root(model), ())):
        text.next()


def _follow(root: nn.Module, text: _Text, stack: ExitStack) -> None:
    """Let a watch know of new texts and of calls of the model itself."""
    with _LOCK:
        _TEXTS.setdefault(root, []).append(text)
    stack.callback(lambda: _TEXTS[root].remove(text))
    stack.callback(root.register_forward_pre_hook(text.called).remove)


class _Listener:
    """One watch's interest in one attention."""

    def __init__(self, tape: Tape, wanted: dict[str, str], grad: bool, keep: Keep, text: _Text) -> None:
        self.tape, self.wanted, self.grad, self.keep = tape, wanted, grad, keep
        self.text, self.thread = text, text.thread
        self.explicit = grad and bool({"scores", "weights"} & set(wanted))
        self.measures = [leaf for leaf in wanted if leaf in MEANING]
        self.queries = self.calls = 0  # where the last call ended, and in which call of the model

    def hear(self, leaf: str, value: Any, continues: bool | None = None) -> None:
        """Record what a call said, if it is wanted; without being told, a single query goes on from the last call."""
        if leaf in self.wanted and self.thread == threading.get_ident():
            if leaf in EDITABLE:
                value = _own(value, self.grad)
            continues = value.shape[2] == 1 if continues is None else continues
            self.tape.record(self.wanted[leaf], value, self.keep, continues, self.text.number)

    def look(self, source: Call) -> None:
        """Take from what was seen all that is wanted and not yet heard."""
        if self.thread != threading.get_ident():
            return
        # A step goes on from the queries before it: it says so by its offset, or it is a single query.
        offset, queries = source.offset, source.shape[2]
        if isinstance(offset, Tensor):
            continues = offset.device.type != "cpu" or bool(offset.any())  # to read a device's would make it wait
        else:
            continues = offset == self.queries if offset else queries == 1 and self.text.calls == self.calls
        self.calls = self.text.calls
        self.queries = (offset if isinstance(offset, int) else 0) + queries
        if "weights" in self.wanted:
            self.hear("weights", settle(source), continues)
        if "scores" in self.wanted and isinstance(source, LazyCall):
            b, h, q, k = source.shape
            if b * h * q * k > DENSE_LIMIT:
                raise InputError(
                    f"scores of {b} x {h} x {q} x {k} are over the limit of {DENSE_LIMIT:,}: watch weights, and "
                    "ask their map for a tile"
                )
            self.hear("scores", source.scores((0, q), (0, k))[0], continues)
        if self.measures:
            for leaf, value in statistics(source, *self.measures).items():
                self.hear(leaf, value, continues)


class _Tap(Tap):
    """The tap of one attention, shared by all that watch or edit it at the time."""

    def __init__(self) -> None:
        self.listeners: list[_Listener] = []
        self.edits: list[tuple[str, Edit, int]] = []

    @property
    def explicit(self) -> bool:  # type: ignore[override]
        mine = threading.get_ident()
        return any(x.explicit and x.thread == mine for x in self.listeners) or any(
            leaf in ("scores", "weights") and thread == mine for leaf, _, thread in self.edits
        )

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._pass("q", q), self._pass("k", k), self._pass("v", v)

    def scores(self, scores: Tensor) -> Tensor:
        return self._pass("scores", scores)

    def weights(self, weights: Tensor, mask: Mask) -> Tensor:
        weights = self._edit("weights", weights)
        offset = mask.offset if isinstance(mask.offset, int | Tensor) else 0
        for listener in list(self.listeners):
            listener.look(DenseCall(weights=_own(weights, listener.grad and listener.explicit), offset=offset))
        return weights

    def heads(self, out: Tensor) -> Tensor:
        return self._pass("heads", out)

    def seen(self, q: Tensor, k: Tensor, mask: Mask, bias: Bias | None, scale: float, lse: Tensor | None) -> None:
        bias = None if bias is None else bias.owned()
        lse = None if lse is None else lse.detach()
        source = LazyCall(q=q.detach(), k=k.detach(), mask=mask, bias=bias, scale=scale, given=lse)
        for listener in list(self.listeners):
            listener.look(source)

    def _edit(self, leaf: str, x: Tensor) -> Tensor:
        for name, change, thread in list(self.edits):
            if name == leaf and thread == threading.get_ident():
                x = _changed(leaf, change, x)
        return x

    def _pass(self, leaf: str, x: Tensor) -> Tensor:
        x = self._edit(leaf, x)
        for listener in list(self.listeners):
            listener.hear(leaf, x)
        return x


_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def _alone(root: nn.Module) -> Iterator[ExitStack]:
    """One thread at a time watches or edits a model; whatever it set up is undone on the way out."""
    with _LOCK:
        lock = _LOCKS.setdefault(root, threading.RLock())
    with lock, ExitStack() as stack:
        if any(_compiled(m) for m in root.modules()):
            _say("the model is compiled: while it is watched or edited it runs eagerly, equal up to rounding", 6)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield stack


def _join(attention: Attention, part: str, entry: Any, stack: ExitStack) -> None:
    """Let a listener or an edit into an attention's tap; whoever leaves it empty takes it away."""
    with _LOCK:
        if attention.tap is None:
            attention.tap = _Tap()
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing it takes a second
                attention.tap.seen = torch.compiler.disable(attention.tap.seen)  # type: ignore[method-assign]
        elif not isinstance(attention.tap, _Tap):
            raise InputError(f"this attention has a {type(attention.tap).__name__} of its own as its tap")
        tap: Any = attention.tap
        entries: list[Any] = getattr(tap, part)
        entries.append(entry)

    def leave() -> None:
        with _LOCK:
            entries.remove(entry)
            if not tap.listeners and not tap.edits:
                attention.tap = None

    stack.callback(leave)


def _root(model: Any) -> nn.Module:
    model = getattr(model, "model", model) if not isinstance(model, nn.Module) else model
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"expected a torch module or something that holds one as .model, got {type(model).__name__}"
        )
    return model


def _compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _addresses(root: nn.Module) -> dict[str, tuple[nn.Module, str | None]]:
    """Every address of a model, in its order: module, and what is asked of its inside."""
    found: dict[str, tuple[nn.Module, str | None]] = {}
    for path, module in root.named_modules():
        path = ".".join(part for part in path.split(".") if part not in WRAPPERS)
        if path:
            found[path] = (module, None)
        if isinstance(module, Attention):
            for leaf in BORN_INSIDE:
                found[f"{path}.{leaf}" if path else leaf] = (module, leaf)
    return found


def _resolve(pattern: str, addresses: Mapping[str, Any]) -> list[str]:
    found = matching(pattern, addresses)
    if not found:
        raise InputKeyError(f"no address {pattern!r} in this model{nearest_addresses(pattern, addresses)}")
    return found


def _changed(name: str, change: Edit, x: Any) -> Any:
    y = change(x)
    if isinstance(x, Tensor) and (not isinstance(y, Tensor) or y.shape != x.shape):
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"the edit of {name} returned {got}: expected a tensor of shape {tuple(x.shape)}")
    return y


def _own(value: Any, grad: bool) -> Any:
    """A copy that nothing later changes; with `grad` the tensors themselves, which will hold their gradients."""

    def own(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if not grad:
            return x.detach().clone()
        if x.requires_grad and not x.is_leaf:
            x.retain_grad()
        return x

    return value if isinstance(value, LazyCall | DenseCall) else tree_map(own, value)


def _say(message: str, level: int = 4) -> None:
    warnings.warn(message, Notice, stacklevel=level)

"""Watches and edits of attention in models that are not built with our Attention: Hugging Face, timm, torch.nn, yours.

Which modules attend is known only when they run. So a watch waits for attention calls (intercept.py), asks which module
is running (running.py), and records the call if one of its patterns matches the module's path and an activation.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError, Notice
from ...models import Model
from ..capture.addresses import INSIDE, Tree, matching
from ..capture.hooks import Session
from ..capture.missing import listed
from ..capture.tap import Edit, WatchTap, recomputing
from ..capture.tape import Keep, Tape
from ..capture.text_counter import TextCounter
from ..maps.call import DenseCall
from .handwritten import AXES, UNMET, fits_tokens
from .module_stack import ForeignListener, Frame, Place, Running, Steps, position_of, user_level
from .torch_attention import uses_fast_path

# What looked like attention in a foreign model and was not taken as such, and why attention was not seen.


HINTS = {  # what to do if no attention was seen, by the package of the model
    "timm": "; timm.layers.set_fused_attn(True, experimental=True), called before the model is made, lets more of its "
    "models call scaled_dot_product_attention",
}
HINT = "; attention that calls torch.nn.functional.scaled_dot_product_attention is always seen"
EAGER = (  # of a model of transformers with eager attention
    "; call it with output_attentions=True, or set this in its config, so that its modules return their weights"
)
NOT_RETURNED = "their queries are not the tokens that the module was called with"


@dataclass(frozen=True)
class Missed:
    """What was seen in a module and is not taken as attention."""

    what: str  # "a softmax of shape (2, 3, 7, 7) was seen"
    reason: str  # why it is not taken
    likely: bool  # it is probably attention


class Unseen:
    """What is known of attention that a watch or an edit did not see.

    Args:
        root: The model.
        wanted: What the watch or edit asks for.
        seen: The paths of modules with attention calls, in order; it grows.
    """

    def __init__(self, root: nn.Module, wanted: Wanted, seen: dict[str, None]) -> None:
        self.root, self.wanted, self.seen = root, wanted, seen
        self.missed: dict[str, Missed] = {}  # by path

    def add(self, path: str, miss: Missed) -> None:
        """Remember what was not taken in a module; what is probably attention comes first."""
        known = self.missed.get(path)
        if miss.likely or known is None or not known.likely:
            self.missed[path] = miss

    def why(self, patterns: Sequence[str] = ()) -> str:
        """Why attention was not seen where patterns expected it, and what to do."""
        named = {
            path: miss for path, miss in self.missed.items() if self.wanted.names(path, patterns)
        }
        if self.seen:
            if named:
                return self._miss(named)
            return f"the attention of this model is in {listed(self.seen)}"
        configs = (getattr(module, "config", None) for module in self.root.modules())
        how = next(
            (
                how
                for x in configs
                if isinstance(how := getattr(x, "_attn_implementation", None), str)
            ),
            None,
        )
        attends = any("att" in type(module).__name__.lower() for module in self.root.modules())
        # as in a state-space model of transformers
        if how == "eager" and not self.missed and not attends:
            return f"this {_name(self.root)} has no attention: it took no softmax, and no module of it is an attention"
        if how not in (None, "sdpa", "eager"):
            return (
                f"this {_name(self.root)} computes attention by its implementation {how!r}, which neither "
                "calls scaled_dot_product_attention nor returns weights: load it with attn_implementation='sdpa', or "
                "with 'eager' if it refuses that"
            )
        missed = named or self.missed
        hint = HINTS.get(type(self.root).__module__.partition(".")[0], HINT)
        if how == "eager" and not any(miss.reason == NOT_RETURNED for miss in missed.values()):
            hint = EAGER
        if missed:
            return f"{self._miss(missed)}{hint}"
        return (
            f"this {_name(self.root)} called neither torch's scaled_dot_product_attention nor "
            f"nn.MultiheadAttention, took no softmax, and no module of it returned attention weights"
            f"{'' if how == 'eager' else hint}"
        )

    def partial(self, patterns: Collection[str]) -> str:
        """What was probably attention and not seen where patterns that did see some expected it; empty if nothing."""
        used = [pattern for pattern in patterns if pattern not in self.wanted.unused]
        found = {
            path: miss
            for path, miss in self.missed.items()
            if miss.likely and path not in self.seen
        }
        found = {path: miss for path, miss in found.items() if self.wanted.names(path, used)}
        return self._miss(found) if found else ""

    def _miss(self, missed: dict[str, Missed]) -> str:
        """A sentence about the first of what is not taken as attention, preferably one that has met values."""
        ranked = sorted(
            missed.items(), key=lambda item: (not item[1].likely, item[1].reason in (UNMET, AXES))
        )
        path, miss = ranked[0]
        where = f" in {path!r}" if path else ""
        others = len(missed) - 1
        if others:
            more = f" (and in {others} other module{'s' if others > 1 else ''})"
        else:
            more = ""
        return f"{miss.what}{where}{more} and not taken as attention: {miss.reason}"


def _name(root: nn.Module) -> str:
    """The class of a model, for messages; of one that was opened with transformers, its class there."""
    if isinstance(root, Model):
        return root.name
    return type(root).__name__


# Which tensors can be recorded: those that hold numbers which can be read now.


def why_not(*tensors: Tensor) -> str:
    """Why attention with these queries, keys or weights cannot be recorded; empty if it can."""
    if any(x.is_nested for x in tensors):
        return "its tensors are nested: expected a padded batch and a mask"
    if any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors):
        return "it runs inside a transform of torch.func"
    fake = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())
    if any(x.is_meta or isinstance(x, fake) for x in tensors):
        return "its tensors hold no numbers"
    if not all(x.shape[-2] for x in tensors):
        return "it has no queries or no keys"
    if all(x.numel() for x in tensors):
        return ""
    return "it has no rows, no heads or no features"


# by how much the weights of a query may differ from 1 in total: they may be rounded to half
# precision
SUM = 0.02


class Wanted:
    """The activations that patterns ask for at each place of a model.

    Args:
        patterns: Addresses; a module that attends several times in one pass is meant with all its calls, unless the
            pattern names one of them, as "...attention@0.weights" names the first.
        taken: Addresses that belong to modules: T5's "...SelfAttention.q" is the output of its module q.
    """

    def __init__(self, patterns: Sequence[str], taken: Container[str]) -> None:
        self.patterns, self.taken = patterns, taken
        self.unused = dict.fromkeys(patterns)  # those that matched no call yet
        self._found: dict[tuple[str, int], dict[str, str]] = {}

    def at(self, place: Place) -> dict[str, str]:
        """The activations that are asked for at a place, and their addresses."""
        key = (place.path, place.index)
        if key not in self._found:
            names = {
                place.address(leaf, call): leaf
                for call in ("", f"@{place.index}")
                for leaf in INSIDE
            }
            leaves = set()
            for pattern in self.patterns:
                matched = {names[name] for name in matching(pattern, names)}
                leaves |= matched
                if matched:
                    self.unused.pop(pattern, None)
            free = [
                leaf
                for leaf in INSIDE
                if leaf in leaves and place.address(leaf, "") not in self.taken
            ]
            self._found[key] = {leaf: place.address(leaf) for leaf in free}
        return self._found[key]

    def names(self, path: str, patterns: Collection[str]) -> bool:
        """Whether one of some patterns names an activation of a module."""
        names = {f"{path}.{leaf}" if path else leaf: leaf for leaf in INSIDE}
        return any(
            name not in self.taken for pattern in patterns for name in matching(pattern, names)
        )


class Foreign:
    """What a watch and an edit of foreign attention have in common: the running module, and the calls seen so far.

    Args:
        tree: The model's modules.
        patterns: The addresses asked for.
        taken: Addresses that belong to modules.
    """

    def __init__(self, tree: Tree, patterns: Sequence[str], taken: Container[str]) -> None:
        self.root, self.wanted = tree.root, Wanted(patterns, taken)
        self.running = Running(tree.root, tree.attending, threading.get_ident())
        self.seen: dict[str, None] = {}  # the paths of modules with attention calls, in order
        self.unseen = Unseen(tree.root, self.wanted, self.seen)
        self._noticed = False

    def follow(self, session: Session) -> None:
        """Follow the running modules until the session ends."""
        self.running.follow(session, self._left)

    def join(self, tap: WatchTap, q: Tensor, k: Tensor) -> Place | None:
        """Add what this watch or edit wants of the attention call that happens now to its tap.

        Args:
            tap: The tap.
            q: The queries of the call, or a tensor with as many rows and tokens.
            k: The keys, or a tensor with as many tokens.
        """
        place = self.running.place()
        if place is not None:
            self.seen[place.path] = None
            self.enter(tap, place, q, k)
        return place

    def miss(self, miss: Missed) -> None:
        """Remember what was seen in the running module and is not taken as attention."""
        path = self.running.frames[-1].path if self.running.frames else None
        if path is not None:
            self.unseen.add(path, miss)

    def enter(self, tap: WatchTap, place: Place, q: Tensor, k: Tensor) -> None:
        """Add listeners or edits to the tap of a call at a place."""
        raise NotImplementedError

    def weights_returned(self, place: Place, weights: Tensor) -> None:
        """Take the weights that a module has computed by itself."""
        raise NotImplementedError

    def notice_fast_path(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Say once that torch's fast path is off meanwhile."""
        frame = self.running.frames[-1] if self.running.frames else None
        if (
            frame is not None
            and not self._noticed
            and uses_fast_path(frame.module, query, key, value)
        ):
            self._noticed = True
            warnings.warn(
                "torch's fast path of nn.MultiheadAttention and nn.TransformerEncoder is off while they are watched or "
                "edited: the output is that without it (torch.backends.mha.set_fastpath_enabled(False)), which differs "
                "by rounding and does not set padded tokens to 0",
                Notice,
                stacklevel=user_level(sys._getframe()),
            )

    def unused(self) -> list[str]:
        """The patterns that matched no attention call, if the model ran at all."""
        if self.running.passes:
            return list(self.wanted.unused)
        return []

    def _left(self, frame: Frame, out: Any) -> None:
        """Look for weights in the output of a module in which no attention call was seen."""
        if frame.attended or frame.path is None:
            weights = None
        else:
            weights = _weights_in(out)
        if weights is None or frame.path is None or recomputing():
            return
        if fits_tokens(frame, weights):
            place = self.running.place(frame)
            assert place is not None
            self.seen[place.path] = None
            if self.wanted.at(place):
                place.check_heads(weights.shape[1])
            self.weights_returned(place, weights)
        else:
            what = f"weights of shape {tuple(weights.shape)} were returned"
            self.unseen.add(frame.path, Missed(what, NOT_RETURNED, likely=True))


class ForeignWatch(Foreign):
    """Records the attention of a foreign model on the tape of one watch.

    Args:
        tree: The model's modules.
        patterns: The addresses asked for.
        taken: Addresses that belong to modules.
        tape: The tape.
        grad: Record the tensors themselves, so that they get gradients.
        keep: What to keep of each record: see `watch`.
        text: The texts of the watch.
    """

    def __init__(
        self,
        tree: Tree,
        patterns: Sequence[str],
        taken: Container[str],
        *,
        tape: Tape,
        grad: bool,
        keep: Keep,
        text: TextCounter,
    ) -> None:
        super().__init__(tree, patterns, taken)
        self.tape, self.grad, self.keep, self.text = tape, grad, keep, text
        self.steps = Steps(text)
        # None: nothing is wanted there
        self._listeners: dict[tuple[str, int], ForeignListener | None] = {}

    def enter(self, tap: WatchTap, place: Place, q: Tensor, k: Tensor) -> None:
        """Add the listener of a place to the tap, if anything is wanted there."""
        if recomputing():
            return
        if self.running.passes != self.steps.passes:
            self.steps.begin(self.running.passes)
        listener = self._listener(place)
        if listener is None:
            self.steps.skip(place, q.shape[0], q.shape[-2], k.shape[-2])
            return
        listener.meet(place.frame.cache)
        tap.listeners.append(listener)

    def weights_returned(self, place: Place, weights: Tensor) -> None:
        """Record weights."""
        tap = WatchTap()
        self.enter(tap, place, weights, weights.mT)
        if not tap.listeners:
            return
        rows, _, queries, keys = weights.shape
        at = position_of([place], rows, queries, keys, lambda: weights.detach() > 0)
        tap.withhold(
            ("q", "k", "v", "scores", "heads"),
            "its module computes attention itself and returns the weights",
        )
        tap.record(
            DenseCall(weights=weights.detach().clone(), offset=at.offset, first_key=at.first_key)
        )

    def _listener(self, place: Place) -> ForeignListener | None:
        key = (place.path, place.index)
        if key not in self._listeners:
            wanted = self.wanted.at(place)
            for leaf, address in wanted.items():
                self.tape.add(address, leaf)
            made = ForeignListener(self.tape, wanted, self.grad, self.keep, self.text, self.steps)
            self._listeners[key] = made if wanted else None
        return self._listeners[key]


class ForeignEdit(Foreign):
    """Edits the attention of a foreign model.

    Args:
        tree: The model's modules.
        changes: The edit of each pattern.
        taken: Addresses that belong to modules.
    """

    def __init__(self, tree: Tree, changes: Mapping[str, Edit], taken: Container[str]) -> None:
        super().__init__(tree, list(changes), taken)
        self.changes = [(Wanted([pattern], taken), change) for pattern, change in changes.items()]

    def enter(self, tap: WatchTap, place: Place, q: Tensor, k: Tensor) -> None:
        """Add the edits of a place to the tap."""
        self.wanted.at(place)  # so that its patterns count as used
        for wanted, change in self.changes:
            tap.edits += [(leaf, change, self.running.thread) for leaf in wanted.at(place)]

    def weights_returned(self, place: Place, weights: Tensor) -> None:
        """Refuse: what a module has computed by itself cannot be edited any more."""
        edited = self.wanted.at(place)
        if edited:
            raise InputError(
                f"{next(iter(edited.values()))!r} cannot be edited: {type(place.frame.module).__name__} computes "
                "attention by itself and does not call scaled_dot_product_attention; a model of transformers does with "
                "attn_implementation='sdpa', unless it refuses that"
            )


def _weights_in(out: Any) -> Tensor | None:
    """The attention weights (b, h, q, k) in the output of a module: their rows sum to 1, fully masked ones to 0."""
    for x in out[1:] if isinstance(out, tuple | list) else ():
        if (
            isinstance(x, Tensor)
            and x.ndim == 4
            and x.is_floating_point()
            and x.numel()
            and not why_not(x)
        ):
            sums = x.detach().sum(-1, dtype=torch.float32)
            whole = (sums - 1).abs() < SUM
            if (
                bool((x.detach() >= 0).all())
                and bool((whole | (sums == 0)).all())
                and bool(whole.any())
            ):
                return x
    return None

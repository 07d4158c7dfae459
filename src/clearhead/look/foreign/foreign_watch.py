"""Watches and edits of attention in models that are not built with our Attention: Hugging Face, timm, torch.nn, yours.

Which modules attend is known only when they run. So a watch waits for attention calls (intercept.py), asks which module
is running (module_stack.py), and records the call if one of its patterns matches the module's path and an activation.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError, Notice
from ...models import Model
from ...models.hooks import Session
from ..capture.addresses import INSIDE, Tree, joined, listed, matching
from ..capture.edits import Edit
from ..capture.tap import WatchTap, recomputing
from ..capture.tape import Keep, Tape, TextCounter
from ..maps.call import DenseCall
from .handwritten import UNMET, WRONG_AXES
from .module_stack import CallSite, Frame, ModuleStack, user_level
from .products import fits_tokens
from .steps import ForeignListener, Steps, position_of
from .torch_attention import uses_fast_path

# What a watch says about attention that it did not see.


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
class Candidate:
    """A softmax or output of a module that resembles attention, but is not taken as such."""

    what: str  # "a softmax of shape (2, 3, 7, 7) was seen"
    reason: str  # why it is not taken
    likely: bool  # it is probably attention


class MissedAttention:
    """Collects why attention was not seen by a watch or an edit.

    Args:
        root: The model.
        patterns: What the watch or edit asks for.
        seen: The paths of modules with attention calls, in order; it grows.
    """

    def __init__(self, root: nn.Module, patterns: AddressPatterns, seen: dict[str, None]) -> None:
        self.root, self.patterns, self.seen = root, patterns, seen
        self.candidates: dict[str, Candidate] = {}  # by path

    def add(self, path: str, candidate: Candidate) -> None:
        """Remember what was not taken in a module; what is probably attention comes first."""
        known = self.candidates.get(path)
        # A likely candidate replaces any, an unlikely one only another unlikely one.
        if candidate.likely or known is None or not known.likely:
            self.candidates[path] = candidate

    def why(self, patterns: Sequence[str] = ()) -> str:
        """Why attention was not seen where patterns expected it, and what to do."""
        named = self._named(self.candidates, patterns)
        # Some attention was seen, only not there.
        if self.seen:
            if named:
                return _sentence(named)
            return f"the attention of this model is in {listed(self.seen)}"

        name, how = _name(self.root), _implementation(self.root)
        attends = any("att" in type(module).__name__.lower() for module in self.root.modules())
        if how == "eager" and not self.candidates and not attends:  # as in a state-space model
            return f"this {name} has no attention: it took no softmax, and no module of it is an attention"
        # flash_attention_2 and the like compute attention outside of torch
        if how not in (None, "sdpa", "eager"):
            return (
                f"this {name} computes attention by its implementation {how!r}, which neither "
                "calls scaled_dot_product_attention nor returns weights: load it with attn_implementation='sdpa', or "
                "with 'eager' if it refuses that"
            )
        # Candidates where the patterns expected attention tell more than others.
        candidates = named or self.candidates
        returned = any(candidate.reason == NOT_RETURNED for candidate in candidates.values())
        hint = HINTS.get(type(self.root).__module__.partition(".")[0], HINT)
        if how == "eager" and not returned:
            hint = EAGER
        if candidates:
            return f"{_sentence(candidates)}{hint}"
        return (
            f"this {name} called neither torch's scaled_dot_product_attention nor "
            f"nn.MultiheadAttention, took no softmax, and no module of it returned attention weights"
            f"{'' if how == 'eager' else hint}"
        )

    def partial(self, patterns: Collection[str]) -> str:
        """Describe likely attention that patterns expected and missed, although they saw other attention; or ""."""
        # Patterns that matched nothing are reported elsewhere as unused.
        used = [pattern for pattern in patterns if pattern not in self.patterns.unused]
        likely = {
            path: candidate
            for path, candidate in self.candidates.items()
            if candidate.likely and path not in self.seen
        }
        named = self._named(likely, used)
        if named:
            return _sentence(named)
        return ""

    def _named(
        self, candidates: Mapping[str, Candidate], patterns: Collection[str]
    ) -> dict[str, Candidate]:
        """The candidates in modules of which some patterns name an activation."""
        return {
            path: candidate
            for path, candidate in candidates.items()
            if self.patterns.name_module(path, patterns)
        }


def _sentence(candidates: Mapping[str, Candidate]) -> str:
    """A sentence about the first of what is not taken as attention, preferably one that has met values."""

    def rank(item: tuple[str, Candidate]) -> tuple[bool, bool]:
        # False sorts first: likely ones, then those whose product was seen.
        return not item[1].likely, item[1].reason in (UNMET, WRONG_AXES)

    path, candidate = min(candidates.items(), key=rank)
    where = f" in {path!r}" if path else ""
    others = len(candidates) - 1
    if others:
        where += f" (and in {others} other module{'s' if others > 1 else ''})"
    return f"{candidate.what}{where} and not taken as attention: {candidate.reason}"


def _name(root: nn.Module) -> str:
    """The class name of a model, for messages; of a model opened with transformers, its class there."""
    if isinstance(root, Model):
        return root.name
    return type(root).__name__


def _implementation(root: nn.Module) -> str | None:
    """The attention implementation of a model of transformers ("sdpa", "eager", ...), by its first config."""
    for module in root.modules():
        how = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if isinstance(how, str):
            return how
    return None


# Which tensors can be recorded: those that hold numbers which can be read now.


def why_not_recorded(*tensors: Tensor) -> str:
    """Why attention with these queries, keys or weights cannot be recorded; empty if it can."""
    if any(x.is_nested for x in tensors):
        return "its tensors are nested: expected a padded batch and a mask"
    if any(torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors):
        return "it runs inside a transform of torch.func"
    # FakeTensor exists only once torch has imported its module.
    fake = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())
    if any(x.is_meta or isinstance(x, fake) for x in tensors):
        return "its tensors hold no numbers"
    if not all(x.shape[-2] for x in tensors):
        return "it has no queries or no keys"
    if all(x.numel() for x in tensors):
        return ""
    return "it has no rows, no heads or no features"


# largest deviation of a row's sum from 1: weights may be rounded to half precision
SUM_TOLERANCE = 0.02


class AddressPatterns:
    """The activations that patterns ask for at each call site of a model.

    Args:
        patterns: Addresses; a module that attends several times in one pass is meant with all its calls, unless the
            pattern names one of them, as "...attention@0.weights" names the first.
        taken: Addresses that belong to modules: T5's "...SelfAttention.q" is the output of its module q.
    """

    def __init__(self, patterns: Sequence[str], taken: Container[str]) -> None:
        self.patterns, self.taken = patterns, taken
        self.unused = dict.fromkeys(patterns)  # those that matched no call yet
        self._known: dict[tuple[str, int], dict[str, str]] = {}

    def at(self, site: CallSite) -> dict[str, str]:
        """The activations that are asked for at a call site, and their addresses."""
        key = (site.path, site.index)
        # Matching is slow and the same in every pass: once per module and number of its call.
        if key not in self._known:
            self._known[key] = self._match(site)
        return self._known[key]

    def mark_used(self, site: CallSite) -> None:
        """Remove the patterns that match at a call site from `unused`."""
        self.at(site)

    def _match(self, site: CallSite) -> dict[str, str]:
        # Both forms of each address, with and without the number of the call.
        calls = ("", f"@{site.index}")
        names = {site.address(leaf, call): leaf for call in calls for leaf in INSIDE}
        leaves = set[str]()
        for pattern in self.patterns:
            matched = {names[name] for name in matching(pattern, names)}
            leaves |= matched
            if matched:
                self.unused.pop(pattern, None)
        asked = [leaf for leaf in INSIDE if leaf in leaves]
        # A pattern may match a leaf of our own attention as well, which has a tap of its own.
        free = [leaf for leaf in asked if site.address(leaf, "") not in self.taken]
        return {leaf: site.address(leaf) for leaf in free}

    def name_module(self, path: str, patterns: Collection[str]) -> bool:
        """Whether one of some patterns names an activation of a module."""
        names = {joined(path, leaf): leaf for leaf in INSIDE}
        return any(
            name not in self.taken for pattern in patterns for name in matching(pattern, names)
        )


class ForeignAttention:
    """The base of watches and edits of foreign attention: the running module, and the calls seen so far.

    Args:
        tree: The model's modules.
        patterns: The addresses asked for.
        taken: Addresses that belong to modules.
    """

    def __init__(self, tree: Tree, patterns: Sequence[str], taken: Container[str]) -> None:
        self.root = tree.root
        self.patterns = AddressPatterns(patterns, taken)
        self.stack = ModuleStack(tree.root, tree.attending, threading.get_ident())
        self.seen: dict[str, None] = {}  # the paths of modules with attention calls, in order
        self.missed = MissedAttention(tree.root, self.patterns, self.seen)
        self._noticed = False

    def follow(self, session: Session) -> None:
        """Follow the running modules until the session ends."""
        self.stack.follow(session, self._module_ended)

    def join(self, tap: WatchTap, q: Tensor, k: Tensor) -> CallSite | None:
        """Add what this watch or edit wants of the attention call that happens now to its tap.

        Args:
            tap: The tap.
            q: The queries of the call, or a tensor with as many rows and tokens.
            k: The keys, or a tensor with as many tokens.
        """
        site = self.stack.call_site()
        if site is not None:
            self.seen[site.path] = None
            self.enter(tap, site, q, k)
        return site

    def add_candidate(self, candidate: Candidate) -> None:
        """Remember what was seen in the running module and is not taken as attention."""
        # The innermost running module: the softmax was taken in its forward.
        path = self.stack.frames[-1].path if self.stack.frames else None
        if path is not None:
            self.missed.add(path, candidate)

    def enter(self, tap: WatchTap, site: CallSite, q: Tensor, k: Tensor) -> None:
        """Add listeners or edits to the tap of a call at a site."""
        raise NotImplementedError

    def weights_returned(self, site: CallSite, weights: Tensor) -> None:
        """Handle the weights that a module has computed by itself."""
        raise NotImplementedError

    def notice_fast_path(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Say once that torch's fast path is off meanwhile."""
        # Warn once per watch: every layer of the model takes the same path.
        if self._noticed or not self.stack.frames:
            return
        if uses_fast_path(self.stack.frames[-1].module, query, key, value):
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
        if self.stack.passes:
            return list(self.patterns.unused)
        return []

    def _module_ended(self, frame: Frame, out: Any) -> None:
        """Look for weights in the output of a module in which no attention call was seen."""
        if frame.attended or frame.path is None:  # its attention was seen, or it cannot attend
            return
        weights = _weights_in(out)
        # A backward pass repeats checkpointed modules, whose weights are recorded already.
        if weights is None or recomputing():
            return
        # The queries of the weights must be the tokens that the module reads.
        if fits_tokens(frame, weights):
            site = self.stack.call_site(frame)
            assert site is not None
            self.seen[site.path] = None
            if self.patterns.at(site):
                site.check_heads(weights.shape[1])
            self.weights_returned(site, weights)
        else:
            what = f"weights of shape {tuple(weights.shape)} were returned"
            self.missed.add(frame.path, Candidate(what, NOT_RETURNED, likely=True))


class ForeignWatch(ForeignAttention):
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
        # by path and number of the call; None: nothing is wanted there
        self._listeners: dict[tuple[str, int], ForeignListener | None] = {}

    def enter(self, tap: WatchTap, site: CallSite, q: Tensor, k: Tensor) -> None:
        """Add the listener of a call site to the tap, if anything is wanted there."""
        if recomputing():
            return
        # A first call in a new pass of the model: no step is known yet.
        if self.stack.passes != self.steps.passes:
            self.steps.begin(self.stack.passes)
        listener = self._listener(site)
        # Not recorded, but its lengths still tell whether this pass is a decoding step.
        if listener is None:
            self.steps.skip(site, q.shape[0], q.shape[-2], k.shape[-2])
            return
        listener.set_cache(site.frame.cache)
        tap.listeners.append(listener)

    def weights_returned(self, site: CallSite, weights: Tensor) -> None:
        """Record weights."""
        tap = WatchTap()
        # The weights stand for queries and keys, of which only the lengths are read.
        self.enter(tap, site, weights, weights.mT)
        if not tap.listeners:
            return
        rows, _, queries, keys = weights.shape
        at = position_of([site], rows, queries, keys, lambda: weights.detach() > 0)
        # Only weights come out of such a module: the rest was never seen.
        tap.leave_out(
            ("q", "k", "v", "scores", "heads"),
            "its module computes attention itself and returns the weights",
        )
        copy = weights.detach().clone()
        tap.record(DenseCall(weights=copy, offset=at.offset, first_key=at.first_key))

    def _listener(self, site: CallSite) -> ForeignListener | None:
        key = (site.path, site.index)
        if key not in self._listeners:
            wanted = self.patterns.at(site)
            # Addresses enter the tape when their module runs for the first time.
            for leaf, address in wanted.items():
                self.tape.add(address, leaf)
            made = ForeignListener(self.tape, wanted, self.grad, self.keep, self.text, self.steps)
            self._listeners[key] = made if wanted else None
        return self._listeners[key]


class ForeignEdit(ForeignAttention):
    """Edits the attention of a foreign model.

    Args:
        tree: The model's modules.
        changes: The edit of each pattern.
        taken: Addresses that belong to modules.
    """

    def __init__(self, tree: Tree, changes: Mapping[str, Edit], taken: Container[str]) -> None:
        super().__init__(tree, list(changes), taken)
        self.changes = [
            (AddressPatterns([pattern], taken), change) for pattern, change in changes.items()
        ]

    def enter(self, tap: WatchTap, site: CallSite, q: Tensor, k: Tensor) -> None:
        """Add the edits of a call site to the tap."""
        self.patterns.mark_used(site)
        for patterns, change in self.changes:
            tap.edits += [(leaf, change, self.stack.thread) for leaf in patterns.at(site)]

    def weights_returned(self, site: CallSite, weights: Tensor) -> None:
        """Refuse: what a module has computed by itself cannot be edited any more."""
        # Weights that the module computed are its output already: an edit would come too late.
        edited = self.patterns.at(site)
        if edited:
            raise InputError(
                f"{next(iter(edited.values()))!r} cannot be edited: {type(site.frame.module).__name__} computes "
                "attention by itself and does not call scaled_dot_product_attention; a model of transformers does with "
                "attn_implementation='sdpa', unless it refuses that"
            )


def _weights_in(out: Any) -> Tensor | None:
    """The attention weights (b, h, q, k) in the output of a module: their rows sum to 1, fully masked ones to 0."""
    # The first output is the module's result; weights come after it.
    parts: Iterable[Any] = out[1:] if isinstance(out, tuple | list) else ()
    for x in parts:
        if not isinstance(x, Tensor) or x.ndim != 4 or not x.is_floating_point():
            continue
        if not x.numel() or why_not_recorded(x):
            continue
        weights = x.detach()
        sums = weights.sum(-1, dtype=torch.float32)
        whole = (sums - 1).abs() < SUM_TOLERANCE
        positive = bool((weights >= 0).all())
        # Rows sum to 1, or to 0 where every key is masked; not all of them may be masked.
        if positive and bool((whole | (sums == 0)).all()) and bool(whole.any()):
            return x
    return None

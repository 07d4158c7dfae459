"""The tap of a watched or edited attention: it passes activations on to edits and listeners."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ...errors import InputError
from ...layers import Bias, Mask, Tap
from ..maps.attention_map import DENSE_LIMIT, compact_copy
from ..maps.call import Call, DenseCall, LazyCall
from ..maps.statistics import MEANING, statistics
from .edits import Edit
from .tape import Keep, Tape, TextCounter, described


class Listener:
    """Writes the activations of one attention to the tape of one watch.

    Args:
        tape: The tape.
        wanted: The address of each activation to record, by its name inside the attention.
        grad: Record the tensors themselves, so that they get gradients.
        keep: What to keep of each record: see `watch`.
        text: The texts of the watch.
    """

    def __init__(
        self, tape: Tape, wanted: dict[str, str], grad: bool, keep: Keep, text: TextCounter
    ) -> None:
        self.tape, self.wanted, self.grad, self.keep = tape, wanted, grad, keep
        self.text = text
        # gradients of scores and weights exist only if these are really computed
        self.explicit = grad and bool({"scores", "weights"} & set(wanted))
        # gradients of what a fused kernel is given
        self.takes_gradients = grad and not {"q", "k", "v"}.isdisjoint(wanted)
        self.measures = [leaf for leaf in wanted if leaf in MEANING]  # statistics
        self.end = 0  # the position after the last call
        self.calls = 0  # the calls of the watched model by then
        self.continues = False  # the present call is the next step of the text of the call before
        self.replaced = 0  # the last queries of that text that it replaces
        self.pending: list[tuple[str, Any]] = []  # recorded when the present call's mask is known

    @property
    def thread(self) -> int | None:
        """The thread whose calls are recorded; None during a backward pass, which repeats checkpointed calls."""
        if recomputing():
            return None
        return self.text.thread

    def begin(self) -> None:
        """Begin a call; one that ended in an error leaves nothing."""
        # Other threads may run the same model: their calls are not this watch's.
        if self.thread == threading.get_ident():
            self.pending.clear()

    def take(self, leaf: str, x: Tensor) -> None:
        """Record an activation that comes before the mask is known: q, k, v or edited scores."""
        if leaf in self.wanted and self.thread == threading.get_ident():
            self.pending.append((leaf, kept(x, self.grad)))

    def leave_out(self, leaves: Sequence[str], reason: str) -> None:
        """Keep the reason why some activations of the present call cannot be recorded."""
        for leaf in leaves:
            if leaf in self.wanted and self.thread == threading.get_ident():
                self.tape.leave_out(self.wanted[leaf], reason)

    def record_call(self, source: Call) -> None:
        """Record what comes before the weights, the weights, and what is computed from them."""
        if self.thread != threading.get_ident():
            return
        # Whether it is a step decides where all records of the call go.
        self.continues = self.is_next_step(source)
        for leaf, x in self.pending:
            self._record(leaf, x)
        self.pending.clear()
        if "weights" in self.wanted:
            self._record("weights", compact_copy(source))
        # A LazyCall computed no scores: they are computed now.
        if "scores" in self.wanted and isinstance(source, LazyCall):
            # of an explicit computation they came before the weights
            self._record("scores", _scores(source))
        if self.measures:
            for leaf, x in statistics(source, *self.measures).items():
                self._record(leaf, x)

    def heads(self, x: Tensor) -> None:
        """Record the output of each head, which comes last."""
        if "heads" in self.wanted and self.thread == threading.get_ident():
            self._record("heads", kept(x, self.grad))

    def _record(self, leaf: str, value: Any) -> None:
        self.tape.record(
            self.wanted[leaf], value, self.keep, self.continues, self.text.number, self.replaced
        )

    def is_next_step(self, source: Call) -> bool:
        """Whether a call is the next decoding step of the text of the call before.

        While a search runs, every call is: the search announces each text (`new_text`). Elsewhere the mask's offset,
        the position of the first query, decides: a step that uses a KV cache starts where the call before ended. An
        offset per row is only compared with 0, and on a GPU not at all, because reading it would wait for the device.
        Without an offset, a single query continues if the model itself was not called again: a recurrent decoder
        attends once per token inside of one call, and a model without a cache starts anew with every call.
        """
        offset, queries = source.offset, source.shape[2]
        if self.text.searching:
            continues = True
        # Offsets per row, of prompts that differ in length; on a GPU they are not read, which would wait for it.
        elif isinstance(offset, Tensor):
            continues = offset.device.type != "cpu" or bool(offset.any())
        # A step begins right after the last query of the call before.
        elif offset:
            continues = offset == self.end
        else:
            # No offset and one query: a recurrent decoder's step within one call of the model.
            continues = queries == 1 and self.text.calls == self.calls
        self.calls = self.text.calls
        self.end = (offset if isinstance(offset, int) else 0) + queries
        return continues


class WatchTap(Tap):
    """The tap of one attention, shared by all that watch or edit it at the time."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.edits: list[tuple[str, Edit, int]] = []  # what is edited, how, and in which thread
        self.first_key = 0  # the position of the first key in the text

    def __deepcopy__(self, memo: object) -> None:
        """Nothing: a copy of an attention is not watched."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Nothing: a saved attention is not watched."""
        return type(None), ()

    @property
    def explicit(self) -> bool:  # type: ignore[override]
        """Whether scores and weights must really be computed in this thread."""
        # One tap serves all threads, so that each looks for its own listeners and edits.
        mine = threading.get_ident()
        if any(listener.explicit and listener.thread == mine for listener in self.listeners):
            return True
        return any(
            leaf in ("scores", "weights") and thread == mine for leaf, _, thread in self.edits
        )

    @property
    def measures(self) -> bool:
        """Whether statistics or maps are recorded, which a log-sum-exp makes cheaper."""
        return any(listener.measures or "weights" in listener.wanted for listener in self.listeners)

    @property
    def grad(self) -> bool:
        """Whether gradients of queries, keys or values are kept."""
        return any(listener.takes_gradients for listener in self.listeners)

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Edit and record queries, keys and values."""
        for listener in list(self.listeners):
            listener.begin()
        return self.passed("q", q), self.passed("k", k), self.passed("v", v)

    def scores(self, scores: Tensor) -> Tensor:
        """Edit and record the scores of an explicit computation."""
        return self.passed("scores", scores)

    def weights(self, weights: Tensor, mask: Mask) -> Tensor:
        """Edit and record the weights of an explicit computation."""
        # Edits come first, so that the record holds what the model uses.
        weights = self.edited("weights", weights)
        offset = mask.offset if isinstance(mask.offset, int | Tensor) else 0
        for listener in list(self.listeners):
            copy = kept(weights, listener.grad and listener.explicit)
            listener.record_call(DenseCall(weights=copy, offset=offset, first_key=self.first_key))
        return weights

    def seen(
        self, q: Tensor, k: Tensor, mask: Mask, bias: Bias | None, scale: float, lse: Tensor | None
    ) -> None:
        """Record the inputs of a fused kernel."""
        # The map outlives this call, after which the model may overwrite its bias.
        bias = None if bias is None else bias.owned()
        lse = None if lse is None else lse.detach()
        q, k = q.detach(), k.detach()
        self.record(LazyCall(q=q, k=k, mask=mask, bias=bias, scale=scale, given=lse))

    def leave_out(self, leaves: Sequence[str], reason: str) -> None:
        """Keep the reason why some activations of the call cannot be recorded."""
        for listener in self.listeners:
            listener.leave_out(leaves, reason)

    def record(self, source: Call) -> None:
        """Record a call."""
        for listener in list(self.listeners):
            listener.record_call(source)

    def heads(self, out: Tensor) -> Tensor:
        """Edit and record the output of each head."""
        out = self.edited("heads", out)
        for listener in list(self.listeners):
            listener.heads(out)
        return out

    def edited(self, leaf: str, x: Tensor) -> Tensor:
        """Edit an activation."""
        for name, change, thread in list(self.edits):
            if name == leaf and thread == threading.get_ident():
                x = changed(leaf, change, x)
        return x

    def passed(self, leaf: str, x: Tensor) -> Tensor:
        """Edit an activation that comes before the mask is known, and record it."""
        x = self.edited(leaf, x)
        for listener in list(self.listeners):
            listener.take(leaf, x)
        return x


def changed(name: str, change: Edit, x: Any) -> Any:
    """Apply an edit; raises if it does not return a tensor of the same shape."""
    # Checkpointing would run the layer again without the edit, and its gradients would be wrong.
    if checkpointed():
        raise InputError(
            f"{name} is edited in a part of the model under gradient checkpointing, which computes it again in the "
            "backward pass, where it would not be edited: switch checkpointing off, or run without gradients"
        )
    y = change(x)
    if not isinstance(x, Tensor):
        # an output that is no tensor, such as a tuple: of the same type and length
        if type(y) is not type(x) or (isinstance(x, tuple | list) and len(y) != len(x)):
            raise InputError(
                f"the edit of {name} was given {described(x)} and returned {described(y)}: expected the same"
            )
        return y
    # Shape and dtype must stay, or later layers would fail in places that name no edit.
    if not isinstance(y, Tensor) or y.shape != x.shape:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise InputError(
            f"the edit of {name} returned {got}: expected a tensor of shape {tuple(x.shape)}"
        )
    if y.dtype != x.dtype:
        raise InputError(f"the edit of {name} returned {y.dtype}: expected {x.dtype}")
    return y


def recomputing() -> bool:
    """Whether a backward pass runs in this thread: modules called there repeat what checkpointing did not keep."""
    return torch._C._current_graph_task_id() != -1


def checkpointed() -> bool:
    """Whether the code that runs now will be run again by gradient checkpointing, in the backward pass."""
    file = sys.modules.get("torch.utils.checkpoint")
    if file is None or recomputing():  # not imported: nothing is checkpointed
        return False
    frame: FrameType | None = sys._getframe()
    # Look for torch.utils.checkpoint among the Python frames that are running.
    while frame is not None:
        if frame.f_code.co_filename == file.__file__:
            # Reentrant checkpointing runs the forward pass without gradients, inside of an autograd function.
            reentrant = frame.f_code.co_qualname == "CheckpointFunction.forward"
            return torch.is_grad_enabled() or reentrant
        frame = frame.f_back
    return False


def kept(value: Any, grad: bool) -> Any:
    """A copy that nothing later writes to; with `grad` the tensors themselves, which will hold their gradients."""

    def copy(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        # A clone: the model may write to the activation in place.
        if not grad:
            return x.detach().clone()
        if x.requires_grad and not x.is_leaf:  # torch keeps gradients of leaves only
            x.retain_grad()
        return x

    return tree_map(copy, value)


def _scores(source: LazyCall) -> Tensor:
    b, h, q, k = source.shape
    if b * h * q * k > DENSE_LIMIT:
        raise InputError(
            f"scores of {b} x {h} x {q} x {k} are over the limit of {DENSE_LIMIT:,}: watch weights, and ask their map "
            "for a tile"
        )
    return source.scores((0, q), (0, k))[0]

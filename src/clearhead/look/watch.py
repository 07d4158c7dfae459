"""watch and edit: record any activation of a model, or change it, and leave no trace.

Torch names every module and hooks its output; only what is computed inside attention needs more: a tap in our own
Attention, an interception of torch's attention in models that are not ours (the folder foreign). All of it is set
up when the `with` begins and removed when it ends. A watched eager model gives the same bits: the fused kernel still
computes the output, and what is watched is computed beside it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, InputTypeError, Notice
from ..layers import Attention
from ..models.hooks import Session, on_input, on_output
from ..models.model import network
from .capture.addresses import (
    EDITABLE,
    INPUT,
    INSIDE,
    Addresses,
    Tree,
    listed,
    matching,
    resolve,
)
from .capture.edits import Edit, checked_edit
from .capture.tap import Listener, WatchTap, changed, kept, recomputing
from .capture.tape import Keep, Tape, TextCounter
from .foreign.foreign_watch import ForeignAttention, ForeignEdit, ForeignWatch
from .foreign.intercept import intercept
from .maps.statistics import MEANING

IDLE = "nothing that it names ran inside the `with`, in the thread that opened it"

# Compiled code runs eagerly while a watch or an edit needs it.
#
# torch has one stance for the whole process, and its own context manager restores the stance that it found. Watches of
# several threads or tasks overlap in any order, so the stance is set by the first of them and restored by the last.

_STANCE_LOCK = threading.RLock()
_ASKING: list[Session] = []  # the sessions that need it
_BEFORE: list[Any] = []  # the stance that the first of them found


def run_eagerly(session: Session) -> None:
    """Let compiled code run eagerly until the session ends, if anything can be compiled."""
    if "torch._dynamo" not in sys.modules:  # importing it takes a second
        return
    session.undo_with(partial(_release, session))
    with _STANCE_LOCK:
        stance = torch._dynamo.eval_frame._stance
        # The first session keeps the stance that it found; later ones find "force_eager".
        if not _BEFORE:
            _BEFORE.append(stance)
        if session not in _ASKING:
            _ASKING.append(session)
        if stance.stance != "force_eager":
            torch.compiler.set_stance("force_eager")


def _release(session: Session) -> None:
    with _STANCE_LOCK:
        if session in _ASKING:
            _ASKING.remove(session)
        # The last one to leave restores it.
        if _BEFORE and not _ASKING:
            torch._dynamo.eval_frame._set_stance(_BEFORE[0])
            _BEFORE.clear()


@contextmanager
def watch(model: Any, *names: str, grad: bool = False, keep: Keep = "all") -> Iterator[Tape]:
    """Record activations of any torch model while a `with` lasts.

    Addresses are the names that torch gives to modules, for their outputs (with `.input` at the end, their inputs), and
    inside each attention q, k, v, scores, weights (a lazy AttentionMap), heads, and every statistic of look.MEANING. An
    attention is a `layers.Attention`, or any module that calls torch's scaled_dot_product_attention, is an
    nn.MultiheadAttention, or multiplies a softmax over its tokens with values, in a model of transformers, timm,
    torch.nn or your own. A Notice says if none was seen, if nothing was recorded at an address, and if a softmax was
    seen that may be one of attention and was not taken as such. Calls from other threads are not recorded. A search
    over several texts runs them one by one while its model is watched: see `Tape.texts`.

    Args:
        model: A torch module, or a Bundle.
        names: Addresses; `*` matches one part of a name, `**` any number of parts.
        grad: Also keep the gradient of each record (`Tape.gradient`); scores and weights are then computed explicitly.
        keep: "all" calls, the "last" one, or a function that returns what to keep of each record.

    Returns:
        A context manager that gives the Tape.

    Raises:
        InputKeyError: If a name matches no address; the message names the nearest ones.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=2, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.weights", "blocks.1") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3]]))
        >>> tape["blocks.0.attn.weights"]
        AttentionMap(batch=1, heads=2, queries=3, keys=3)
        >>> tape["blocks.1"].shape
        torch.Size([1, 3, 8])
        >>> theirs, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 5, 8)
        >>> with watch(theirs, "weights", "entropy") as tape:
        ...     out, mean = theirs(x, x, x)
        >>> tape["weights"]
        AttentionMap(batch=1, heads=2, queries=5, keys=5)
    """
    root = network(model)
    _check_watch(names, keep)
    tree = Tree(root)
    known = _known(tree, names)
    both = known | tree.possible
    chosen = {name for pattern in names for name in resolve(pattern, both)}
    watched = [name for name in known if name in chosen]  # each once, in the model's order
    awaited = [name for name in tree.possible if name in chosen]  # these may turn out to exist

    leaves = {name: known[name][1] for name in watched}
    order = _in_order(tree, both, watched, awaited)
    tape, text = Tape(leaves, grad, order), TextCounter(root, threading.get_ident())
    if grad and {"scores", "weights"} & set(order.values()):
        draws = ", which draws other dropout" if root.training else ""
        _notice(
            f"gradients of scores and weights are asked for: fused attention is computed explicitly{draws}"
        )
    with Session(root) as session, session:  # twice: see Session
        _begin(session, tree)
        text.follow(session)
        # Outputs and inputs of modules are hooked; what is inside our Attention comes from a tap, one per attention.
        inside: dict[Attention, dict[str, str]] = {}
        for name in watched:
            module, leaf = known[name]
            if leaf in OUTSIDE:
                _watch_module(module, leaf, name, tape, grad, keep, text, session)
            else:
                assert isinstance(module, Attention)
                assert leaf is not None
                # Named activations of our attention are grouped by module: one tap entry for each.
                inside.setdefault(module, {})[leaf] = name
        for attention, wanted in inside.items():
            _enter_tap(attention, "listeners", Listener(tape, wanted, grad, keep, text), session)
        # What is inside other attention comes from the functions of torch that it calls.
        foreign = None
        if awaited:
            foreign = ForeignWatch(tree, names, known, tape=tape, grad=grad, keep=keep, text=text)
            _intercept(foreign, session)
        yield tape
        for message in _missing_records(tape, names, known, root, foreign):
            _notice(message)


def _check_watch(names: Collection[Any], keep: Any) -> None:
    """Raise for what cannot be watched."""
    if not names:
        raise InputError("watch what? Name at least one address, for example '**.weights'")
    for name in names:
        if not isinstance(name, str):
            raise InputTypeError(
                f"watch was given a {type(name).__name__} as an address: expected strings"
            )
    if not callable(keep) and keep not in ("all", "last"):
        raise InputError(f"keep={keep!r}: expected 'all', 'last' or a function of a record")


def _in_order(
    tree: Tree, addresses: Addresses, watched: list[str], awaited: list[str]
) -> dict[str, str | None]:
    """The names of the activations at all addresses, in the order of their modules."""
    number = {module: i for i, (_, module) in enumerate(tree.parts)} if awaited else {}
    names = [*watched, *awaited]
    # Modules in the order of the tree, foreign ones among our own.
    names.sort(key=lambda name: number.get(addresses[name][0], 0))
    return {name: addresses[name][1] for name in names}


def _known(tree: Tree, names: Collection[str]) -> Addresses:
    """The addresses that are known before the model runs; inputs only if a name ends in .input (** excludes them)."""
    inputs = any(name.endswith(f".{INPUT}") for name in names)
    return tree.inputs | tree.known if inputs else tree.known


@contextmanager
def edit(model: Any, changes: Mapping[str, Edit]) -> Iterator[None]:
    """Replace activations by a function of them while a `with` lasts.

    Edits of modules' outputs, q, k, v and heads keep the fused kernel. Those of scores and weights compute their
    attention explicitly, with a Notice; scores are edited before the mask, so that no edit can make a query attend to a
    masked key. Calls from other threads are not edited.

    Under gradient checkpointing an edit raises an InputError, because the backward pass would not repeat it. So does,
    at the end, an edit of which nothing ran inside the `with`. A Notice names a softmax in a module that an address
    means and that was not taken as attention, so that it is not edited.

    Args:
        model: A torch module, or a Bundle.
        changes: A function from a tensor to one of the same shape for each address; see `watch` for the names, and
            `silence`, `scale` and `patch` for ready-made functions.

    Returns:
        A context manager.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=2, heads=2).eval()
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> with edit(model, {"blocks.*.attn.heads": silence([0])}):
        ...     edited = model(ids)
        >>> torch.equal(edited, model(ids))
        False
    """
    if not isinstance(changes, Mapping):
        raise InputTypeError(
            f"edit was given a {type(changes).__name__}: expected a dict of addresses and functions"
        )
    tree = Tree(network(model))
    known = _known(tree, changes)
    both = known | tree.possible
    used: set[str] = set()
    with Session(tree.root) as session, session:  # twice: see Session
        _begin(session, tree)
        awaited: dict[str, Edit] = {}
        for pattern, given in changes.items():
            names = resolve(pattern, both)
            _check_editable(pattern, names, both)
            change = _counted(pattern, checked_edit(pattern, given), used)
            for name in names:
                # Only running the model shows whether such an address exists.
                if name not in known:
                    awaited[pattern] = change
                    continue
                module, leaf = known[name]
                if leaf in OUTSIDE:
                    _edit_module(module, leaf, name, change, session)
                else:
                    assert isinstance(module, Attention)
                    _enter_tap(module, "edits", (leaf, change, session.thread), session)
        foreign = None
        if awaited:
            foreign = ForeignEdit(tree, awaited, known)
            _intercept(foreign, session)
        yield
        # An edit that changed nothing is an error, since the user would trust an unedited run.
        unused = [pattern for pattern in changes if pattern not in used]
        if unused:
            why = IDLE
            # The model ran, and only attention that is not ours was to be edited: there is more to say.
            if foreign is not None and foreign.stack.passes and set(unused) <= set(awaited):
                why = foreign.missed.why(unused)
            raise InputError(f"the edit of {', '.join(map(repr, unused))} changed nothing: {why}")
        unedited = "" if foreign is None else foreign.missed.partial(awaited)
        if unedited:
            _notice(f"attention may be left unedited: {unedited}")


def _counted(pattern: str, change: Edit, used: set[str]) -> Edit:
    """Wrap an edit so that its pattern is added to `used` when it is applied."""

    def apply(x: Any) -> Any:
        used.add(pattern)
        return change(x)

    return apply


def _intercept(foreign: ForeignAttention, session: Session) -> None:
    """Give the attention calls of a foreign model to a watch or an edit until the session ends."""
    run_eagerly(session)  # a model may compile itself meanwhile, as generate() of transformers does
    intercept(foreign, session)


def _check_editable(pattern: str, names: list[str], known: Addresses) -> None:
    """Raise for the address of a statistic; a Notice where attention is then computed explicitly."""
    leaves = {name: known[name][1] for name in names}
    for name, leaf in leaves.items():
        # A measurement is computed beside the model, which does not use it.
        if leaf in MEANING:
            raise InputError(
                f"{name!r} is a measurement: expected one of {', '.join(EDITABLE)}, or a module"
            )
    if {"scores", "weights"} & set(leaves.values()):
        _notice(f"{pattern!r} is edited: these layers compute their attention explicitly", 5)


def _begin(session: Session, tree: Tree) -> None:
    """Wait until no other thread watches or edits the model; a compiled model runs eagerly meanwhile."""
    session.wait_for_turn()
    if tree.compiled:
        _notice(
            "the model is compiled: while it is watched or edited it runs eagerly, equal up to rounding",
            5,
        )
        run_eagerly(session)


# Hooks that record or edit the outputs and inputs of modules.


OUTSIDE = {None: on_output, INPUT: on_input}  # what hooks a module, for its output and its input


def _watch_module(
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
        # The model may be called from several threads: only the watching one is recorded.
        if threading.get_ident() != text.thread or recomputing():
            return
        # Does this call continue the text of the call before? While a search runs it does: the search announces each
        # text (new_text). Elsewhere nothing in a module's output tells, and this is a guess: an output of one token,
        # (batch, 1, width), continues, because decoding loops run one token at a time; any other begins another text.
        # So unrelated texts of one token each join here; an attention can tell them apart: see Listener.is_next_step.
        tokens = isinstance(out, Tensor) and out.ndim == 3
        continues = tokens and (text.searching or out.shape[1] == 1)
        tape.record(name, kept(out, grad), keep, continues, text.number)

    _check_hooks(module, name)
    OUTSIDE[leaf](session, module, record)


def _edit_module(
    module: nn.Module, leaf: str | None, name: str, change: Edit, session: Session
) -> None:
    """Edit the outputs or inputs of a module until the session ends."""

    def act(x: Any) -> Any:
        # Only the thread of the `with` edits; others get the untouched activation.
        if threading.get_ident() == session.thread:
            return changed(name, change, x)
        return None

    _check_hooks(module, name)
    OUTSIDE[leaf](session, module, act)


def _check_hooks(module: nn.Module, name: str) -> None:
    """Raise for a module whose calls have no hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            f"{name!r} is compiled by TorchScript, which calls no hooks: expected another module"
        )


# The tap of our Attention.


_TAP_LOCK = threading.RLock()


def _enter_tap(attention: Attention, part: str, entry: Any, session: Session) -> None:
    """Add a listener or an edit to an attention's tap until the session ends; an empty tap is removed."""
    session.undo_with(partial(_leave_tap, attention, part, entry))
    with _TAP_LOCK:
        if attention.tap is None:
            tap = WatchTap()
            if "torch._dynamo" in sys.modules:  # else nothing is compiled
                tap.seen = torch.compiler.disable(tap.seen)  # type: ignore[method-assign]
            attention.tap = tap
        elif not isinstance(attention.tap, WatchTap):
            raise InputError(
                f"this attention has a {type(attention.tap).__name__} of its own as its tap"
            )
        getattr(attention.tap, part).append(entry)


def _leave_tap(attention: Attention, part: str, entry: Any) -> None:
    with _TAP_LOCK:
        tap = attention.tap
        if not isinstance(tap, WatchTap):
            return
        entries: list[Any] = getattr(tap, part)
        # By identity: equal entries of two watches are two entries.
        entries[:] = [other for other in entries if other is not entry]
        # Nothing is wanted any more: attention runs without a tap, at its usual speed.
        if not tap.listeners and not tap.edits:
            attention.tap = None


def _notice(message: str, level: int = 4) -> None:
    warnings.warn(message, Notice, stacklevel=level)


# What a watch says when its `with` has ended and an address has no record.


@contextmanager
def expected_missing() -> Iterator[None]:
    """No Notice about addresses without a record: some of those asked for need not run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing was recorded", Notice)
        yield


def _missing_records(
    tape: Tape,
    names: Collection[str],
    known: Addresses,
    root: nn.Module,
    foreign: ForeignAttention | None,
) -> list[str]:
    """A sentence for each reason why addresses that were asked for have no record.

    Args:
        tape: The tape of the watch.
        names: The addresses asked for.
        known: Those that were known before the model ran.
        root: The model.
        foreign: The watch of attention that is not ours.
    """
    # Patterns without any record; each gets one sentence that says why.
    empty = [name for name in names if not matching(name, dict.fromkeys(tape))]
    if foreign is not None:
        if foreign.stack.passes:
            tape.explain(foreign.missed.why(empty))
        else:
            why = f"this {type(root).__name__} was not called inside the `with`, in the thread that opened it"
            tape.explain(why)
            # The model did not run at all: no other reason matters.
            if not list(tape):
                return [f"nothing was recorded at {listed(empty)}: {why}"] if empty else []

    sentences = []
    idle = [name for name in empty if matching(name, known)]
    if idle:
        sentences.append(f"nothing was recorded at {listed(idle)}: {IDLE}")
    if foreign is not None:
        # Patterns that name an activation of attention, as "**.weights" does and "**" does not.
        named = [name for name in empty if name.rpartition(".")[2] in INSIDE and name not in idle]
        unseen = [name for name in foreign.unused() if name in named]
        if unseen:
            why = foreign.missed.why(unseen)
            sentences.append(f"no attention call at {', '.join(map(repr, unseen))}: {why}")
        partly = foreign.missed.partial(names)
        if partly:
            sentences.append(f"attention may be missing on this tape: {partly}")

    # Addresses that could not be recorded, by their reason, if their activation was asked for by name.
    asked = {name.rpartition(".")[2] for name in names}
    for reason in dict.fromkeys(tape.unrecorded.values()):
        same_reason = [name for name, why in tape.unrecorded.items() if why == reason]
        lost = [name for name in same_reason if name.rpartition(".")[2] in asked]
        if lost:
            verb = "is" if len(lost) == 1 else "are"
            sentences.append(f"{listed(lost)} {verb} not recorded: {reason}")
    return sentences

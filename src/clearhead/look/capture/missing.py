"""What a watch says when its `with` has ended and an address has no record."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from ...errors import Notice
from .addresses import INSIDE, Addresses, matching

if TYPE_CHECKING:
    from ..foreign.foreign_watch import Foreign
    from .tape import Tape


SHOWN = 3  # addresses named in a message
IDLE = "nothing that it names ran inside the `with`, in the thread that opened it"


@contextmanager
def expected_missing() -> Iterator[None]:
    """No Notice about addresses without a record: some of those asked for need not run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing was recorded", Notice)
        yield


def missing_records(
    tape: Tape, names: Collection[str], known: Addresses, root: nn.Module, foreign: Foreign | None
) -> list[str]:
    """A sentence for each reason why addresses that were asked for have no record.

    Args:
        tape: The tape of the watch.
        names: The addresses asked for.
        known: Those that were known before the model ran.
        root: The model.
        foreign: The watch of attention that is not ours.
    """
    empty = [name for name in names if not matching(name, dict.fromkeys(tape))]
    why = (
        f"this {type(root).__name__} was not called inside the `with`, in the thread that opened it"
    )
    if foreign is not None:
        if foreign.running.passes:
            why = foreign.unseen.why(empty)
        tape.explain(why)
        if not foreign.running.passes and not list(tape):
            if empty:
                return [f"nothing was recorded at {listed(empty)}: {why}"]
            return []
    found = []
    idle = [name for name in empty if matching(name, known)]
    if idle:
        found.append(f"nothing was recorded at {listed(idle)}: {IDLE}")
    if foreign is not None:
        unseen = [name for name in foreign.unused() if name in _named(empty)]
    else:
        unseen = []
    unseen = [name for name in unseen if name not in idle]
    if unseen:
        if foreign is not None:
            why = foreign.unseen.why(unseen)
        found.append(f"no attention call at {', '.join(map(repr, unseen))}: {why}")
    partial = foreign.unseen.partial(names) if foreign is not None else ""
    if partial:
        found.append(f"attention may be missing on this tape: {partial}")
    asked = {name.rpartition(".")[2] for name in names}
    for reason in dict.fromkeys(tape.withheld.values()):
        lost = [
            name
            for name, x in tape.withheld.items()
            if x == reason and name.rpartition(".")[2] in asked
        ]
        if lost:
            found.append(
                f"{listed(lost)} {'is' if len(lost) == 1 else 'are'} not recorded: {reason}"
            )
    return found


def listed(names: Collection[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, list(names)[:SHOWN])) + more


def _named(patterns: Collection[str]) -> list[str]:
    """The patterns that name an activation of attention, as "**.weights" does and "**" does not."""
    return [pattern for pattern in patterns if pattern.rpartition(".")[2] in INSIDE]

"""Which attention calls of a foreign model are decoding steps of one text, and where the queries of a step are."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from .call import Call, DenseCall
from .tap import Listener
from .tape import Keep, Tape
from .text_counter import TextCounter


class Steps:
    """Which attention calls of a foreign model continue the text of the call before.

    Keys of a cache before the first query tell. Where both calls were given a cache object, it must be the same one.
    Otherwise a call continues if it begins where the last one at its place ended, or if its cache has forgotten keys
    that a sliding window does not reach. One such call makes its whole pass a decoding step, so that cross-attention,
    whose keys tell nothing, continues too.

    Args:
        text: The texts of the watch.
    """

    def __init__(self, text: TextCounter) -> None:
        self.text, self.passes, self.stepping = text, 0, False

    def begin(self, passes: int) -> None:
        """Begin a pass of the model."""
        self.passes, self.stepping = passes, False


class ForeignListener(Listener):
    """Writes the activations of one attention of a foreign model to the tape of one watch."""

    def __init__(
        self, tape: Tape, wanted: dict[str, str], grad: bool, keep: Keep, text: TextCounter, steps: Steps
    ) -> None:
        super().__init__(tape, wanted, grad, keep, text)
        self.steps = steps
        self.queries = self.keys = 0  # of the last call
        self._cache: weakref.ref[Any] | None = None  # the cache object of the last call
        self._same: bool | None = None  # whether the present call has the same one; None: it is not known

    def meet(self, cache: object | None) -> None:
        """Take the cache object that the module of the present call was given."""
        last = None if self._cache is None else self._cache()
        self._same = None if cache is None or last is None else cache is last
        self._cache = None if cache is None else weakref.ref(cache)

    def record_call(self, source: Call) -> None:
        """Record a call; a step of cross-attention begins after the queries of the steps before it."""
        if source.shape[2] == 1 and self.steps.stepping and isinstance(source.offset, int) and source.offset == 0:
            source = _moved(source, self.end)
        super().record_call(source)

    def is_next_step(self, source: Call) -> bool:
        """Whether a call continues the text of the call before: see Steps."""
        offset, queries, keys = source.offset, source.shape[2], source.shape[3]
        assert isinstance(offset, int)
        # A sliding window is full from some step on; a long prompt fills it at once.
        window = queries == 1 and keys <= self.end and (self.queries > 1 or keys == self.keys)
        cached = offset > 0 and (offset == self.end or window if self._same is None else self._same)
        self.steps.stepping |= cached
        continues = cached or self.text.searching or (offset == 0 and queries == 1 and self.steps.stepping)
        self.end, self.queries, self.keys = offset + queries, queries, keys
        return continues


def _moved(source: Call, offset: int) -> Call:
    """A call whose first query is at another position, unless its mask depends on that."""
    if isinstance(source, DenseCall):
        return replace(source, offset=offset)
    return source if source.mask.causal else replace(source, mask=replace(source.mask, offset=offset or None))

"""Where the queries and keys of a foreign model's attention are in its text, and which calls are steps of one text."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .call import Call, DenseCall
from .foreign_call import first_position
from .running import CacheState, Place
from .tap import Listener
from .tape import Keep, Tape
from .text_counter import TextCounter


@dataclass(frozen=True)
class Position:
    """Where the tokens of an attention call are in its text."""

    offset: int  # of the first query among the keys
    first_key: int = 0  # of the first key in the text: above 0 if a sliding window has forgotten the keys before it


def position_of(
    places: Sequence[Place],
    rows: int,
    queries: int,
    keys: int,
    allowed: Callable[[], Tensor | None],
    causal: bool = False,
) -> Position:
    """Where the tokens of an attention call are, by the cache that its module was called with, or by its mask.

    A cache object tells how many tokens came before. Keys that it does not hold any more are the first ones; keys that
    the module was given, as those of cross-attention, count from 0.

    Args:
        places: Where the call happens, in each model that is watched or edited.
        rows: Number of rows.
        queries: Number of queries.
        keys: Number of keys.
        allowed: Returns the mask, True where attention is allowed, with the axes queries and keys last; or None.
        causal: The mask is torch's causal flag.
    """
    cache = next((place.frame.cache for place in places if place.frame.cache is not None), None)
    before = 0 if cache is None else cache.length
    if causal or (queries == keys and not before) or (cache is not None and not before and keys >= queries):
        return Position(0)
    given = any(place.frame.was_given(rows, queries, keys) for place in places)
    if cache is not None and (given or keys >= before + queries):
        return Position(before)
    if cache is not None and cache.forgets:
        return Position(keys - queries, before + queries - keys)
    return Position(first_position(queries, keys, None if given else allowed(), given))


class Steps:
    """Which attention calls of a foreign model continue the text of the call before.

    A call that was given a cache object continues if the last one at its place had the same object, and it does not
    begin behind the end of the text. If it begins before the end, because the cache was cropped, its queries replace
    those that were recorded from there on; one that would replace the whole text begins another. Without a cache
    object, a call continues if it begins where the last one at its place ended. Such a call makes its whole pass a
    decoding step, so that cross-attention, whose keys tell nothing, continues too.

    Args:
        text: The texts of the watch.
    """

    def __init__(self, text: TextCounter) -> None:
        self.text, self.passes, self.stepping = text, 0, False
        self._ends: dict[tuple[str, int], int] = {}  # of the calls of which nothing is recorded

    def begin(self, passes: int) -> None:
        """Begin a pass of the model."""
        self.passes, self.stepping = passes, False

    def skip(self, place: Place, rows: int, queries: int, keys: int) -> None:
        """Take a call of which nothing is recorded: it still tells whether its pass is a decoding step."""
        start, key = position_of([place], rows, queries, keys, lambda: None).offset, (place.path, place.index)
        self.stepping |= start > 0 and (place.frame.cache is not None or start == self._ends.get(key))
        self._ends[key] = start + queries


class ForeignListener(Listener):
    """Writes the activations of one attention of a foreign model to the tape of one watch."""

    def __init__(
        self, tape: Tape, wanted: dict[str, str], grad: bool, keep: Keep, text: TextCounter, steps: Steps
    ) -> None:
        super().__init__(tape, wanted, grad, keep, text)
        self.steps = steps
        self.start = 0  # the position of the first query of the present text
        self._cache: weakref.ref[Any] | None = None  # the cache object of the last call
        self._same: bool | None = None  # whether the present call has the same one; None: it has none

    def meet(self, cache: CacheState | None) -> None:
        """Take the cache that the module of the present call was given."""
        last = None if self._cache is None else self._cache()
        self._same = None if cache is None else last is not None and cache.ref() is last
        self._cache = None if cache is None else cache.ref

    def record_call(self, source: Call) -> None:
        """Record a call; a step of cross-attention without a cache begins after the queries of the steps before it."""
        if self._same is None and source.shape[2] == 1 and self.steps.stepping and source.offset == 0:
            source = _moved(source, self.end)
        super().record_call(source)

    def is_next_step(self, source: Call) -> bool:
        """Whether a call continues the text of the call before: see Steps."""
        assert isinstance(source.offset, int)
        start, queries, self.replaced = source.first_key + source.offset, source.shape[2], 0
        if self.text.searching:
            continues = True
        elif self._same is not None:
            continues = self._same and self.start < start <= self.end
            self.replaced = self.end - start if continues else 0
        else:
            continues = 0 < start == self.end or (start == 0 and queries == 1 and self.steps.stepping)
        self.steps.stepping |= continues and start > 0
        self.start = self.start if continues else start
        self.end = start + queries
        return continues


def _moved(source: Call, offset: int) -> Call:
    """A call whose first query is at another position, unless its mask depends on that."""
    if isinstance(source, DenseCall):
        return replace(source, offset=offset)
    return source if source.mask.causal else replace(source, mask=replace(source.mask, offset=offset or None))

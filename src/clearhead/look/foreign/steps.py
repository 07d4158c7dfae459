"""Where the queries and keys of a foreign model's attention are in its text, and which calls are steps of one text."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..capture.tap import Listener
from ..capture.tape import Keep, Tape, TextCounter
from ..maps.call import Call, DenseCall
from .module_stack import CacheState, CallSite
from .torch_attention import first_position


@dataclass(frozen=True)
class Position:
    """Where the tokens of an attention call are in its text."""

    offset: int  # of the first query among the keys
    # of the first key in the text: above 0 if a sliding window has forgotten the keys before it
    first_key: int = 0


def position_of(
    sites: Sequence[CallSite],
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
        sites: Where the call happens, in each model that is watched or edited.
        rows: Number of rows.
        queries: Number of queries.
        keys: Number of keys.
        allowed: Returns the mask, True where attention is allowed, with the axes queries and keys last; or None.
        causal: The mask is torch's causal flag.
    """
    # One site per watch or edit; the first that knows a cache tells its length.
    cache = next((site.frame.cache for site in sites if site.frame.cache is not None), None)
    before = 0 if cache is None else cache.length
    # The queries are the first keys: by torch's flag, without a cache, or with an empty one.
    if causal or (queries == keys and not before):
        return Position(0)
    # An empty cache: the queries are the first tokens of the text.
    if cache is not None and not before and keys >= queries:
        return Position(0)
    given = any(site.frame.was_given(rows, queries, keys) for site in sites)
    if cache is not None:
        if given or keys >= before + queries:  # a static cache has more keys than tokens so far
            return Position(before)
        # A sliding window keeps the last keys: the queries end with them.
        if cache.forgets:
            return Position(keys - queries, before + queries - keys)
    # Without a cache the mask decides; without a mask the lengths.
    return Position(first_position(queries, keys, None if given else allowed(), given))


class Steps:
    """Which attention calls of a foreign model continue the text of the call before.

    A call that was given a cache object continues if the last one at its site had the same object, and it does not
    begin past the end of the text. If it begins before the end, because the cache was cropped, its queries replace
    those that were recorded from there on; one that would replace the whole text begins another. Without a cache
    object, a call continues if it begins where the last one at its site ended. Such a call makes its whole pass a
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

    def skip(self, site: CallSite, rows: int, queries: int, keys: int) -> None:
        """Note a call of which nothing is recorded: it still tells whether its pass is a decoding step."""
        start = position_of([site], rows, queries, keys, lambda: None).offset
        key = (site.path, site.index)
        continues = site.frame.cache is not None or start == self._ends.get(key)
        # Only a later start can be a step; a text of its own starts at 0.
        self.stepping |= start > 0 and continues
        self._ends[key] = start + queries


class ForeignListener(Listener):
    """Writes the activations of one attention of a foreign model to the tape of one watch."""

    def __init__(
        self,
        tape: Tape,
        wanted: dict[str, str],
        grad: bool,
        keep: Keep,
        text: TextCounter,
        steps: Steps,
    ) -> None:
        super().__init__(tape, wanted, grad, keep, text)
        self.steps = steps
        self.start = 0  # the position of the first query of the present text
        self._cache: weakref.ref[Any] | None = None  # the cache object of the last call
        # whether the present call has the same one; None: it has none
        self._same: bool | None = None

    def set_cache(self, cache: CacheState | None) -> None:
        """Set the cache of the present call, and note whether it is that of the last call."""
        last = None if self._cache is None else self._cache()
        # The same cache object means the same text; without a cache this is not known.
        if cache is None:
            self._same, self._cache = None, None
        else:
            self._same = last is not None and cache.ref() is last
            self._cache = cache.ref

    def record_call(self, source: Call) -> None:
        """Record a call; a step of cross-attention without a cache begins after the queries of the steps before it."""
        crosses = self._same is None and source.shape[2] == 1 and source.offset == 0
        if crosses and self.steps.stepping:
            source = _moved(source, self.end)
        super().record_call(source)

    def is_next_step(self, source: Call) -> bool:
        """Whether a call continues the text of the call before: see Steps."""
        assert isinstance(source.offset, int)
        start = source.first_key + source.offset  # the position of its first query in the text
        queries = source.shape[2]
        self.replaced = 0
        if self.text.searching:
            continues = True
        elif self._same is not None:
            continues = self._same and self.start < start <= self.end
            # After rejected drafts a cache goes back: the new queries replace the last ones.
            if continues:
                self.replaced = self.end - start
        else:
            # Without a cache: a step of cross-attention, or a start where the last call ended.
            crosses = start == 0 and queries == 1 and self.steps.stepping
            continues = crosses or 0 < start == self.end
        self.steps.stepping |= continues and start > 0
        if not continues:
            self.start = start
        self.end = start + queries
        return continues


def _moved(source: Call, offset: int) -> Call:
    """A call whose first query is at another position, unless its mask depends on that."""
    if isinstance(source, DenseCall):
        return replace(source, offset=offset)
    # An offset is part of a causal mask, so that such a call stays where it is.
    if source.mask.causal:
        return source
    return replace(source, mask=replace(source.mask, offset=offset or None))

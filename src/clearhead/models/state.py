"""What a decoder holds between two steps: what each row has written, and what it reads from.

A state can `expand(n)`, each row becoming n neighbours, and `reorder(index)`, row i becoming what row index[i] was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..layers import Cache, Mask


class KVState:
    """Keys and values of all tokens so far, a cache a layer; all of them stand at the same place."""

    def __init__(
        self, layers: int, rows: int, heads: int, limit: int, head: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        # A model without layers still counts its tokens: in a cache of no heads.
        sizes = (rows, heads if layers else 0, limit, head)
        self.caches = [Cache(*sizes, dtype=dtype, device=device) for _ in range(max(layers, 1))]

    @property
    def rows(self) -> int:
        return self.caches[0].k.shape[0]

    @property
    def at(self) -> Int[Tensor, "b"]:
        """How many tokens each row has."""
        return self.caches[0].at

    def positions(self, tokens: int) -> Int[Tensor, "b t"]:
        """Where the next tokens of each row stand."""
        return self.caches[0].positions(tokens)

    def mask(self, window: int | None = None) -> Mask:
        """Who of the next tokens may look at whom."""
        return self.caches[0].mask(window=window)

    def advance(self, tokens: int | Int[Tensor, "b"]) -> None:
        """Each row has these tokens more."""
        for cache in self.caches:
            cache.advance(tokens)

    def expand(self, n: int) -> None:
        """Each row becomes n neighbouring rows."""
        for cache in self.caches:
            cache.expand(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Row i becomes what row index[i] was."""
        for cache in self.caches:
            cache.reorder(index)


class SourceMemory:
    """What was read of each source, once, however many neighbouring rows (the beams of a search) write from it.

    Their number is `fold`; rows that share a source must go on sharing one.
    """

    def __init__(self, memory: Sequence[tuple[Tensor, ...]], lengths: Tensor | None) -> None:
        self.memory = list(memory)  # for each layer that looks: keys and values, or whatever else it needs
        self.lengths = lengths
        self.mask = Mask(lengths=lengths)  # one for all steps: what a kernel makes of it is made once
        self.fold = 1

    def expand(self, n: int) -> None:
        """Each row becomes n neighbouring rows."""
        self.fold *= n

    def reorder(self, index: Int[Tensor, "n"], rows: int) -> None:
        """Row i of now as many rows becomes what row index[i] was."""
        source = index[:: self.fold] // self.fold
        if len(index) == rows and torch.equal(source, torch.arange(len(source), device=index.device)):
            return  # beams changed places within their sources
        self.memory = [tuple(x[source] for x in layer) for layer in self.memory]
        if self.lengths is not None:
            self.lengths = self.lengths[source]
            self.mask = Mask(lengths=self.lengths)

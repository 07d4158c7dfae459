"""What a decoder holds between two steps: the keys and values of each row, and the source it attends to.

A state can `expand(n)`, after which each row is n neighbouring rows, and `reorder(index)`, after which row i is what
row index[i] was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..layers import Cache, Mask


class KVState:
    """The KV cache of every layer; all of them are at the same position."""

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        limit: int,
        head: int,
        *,
        value: int | None = None,  # width of a value head; `head` if not given
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # A model without layers still counts its tokens: in a cache of no heads.
        sizes = (rows, heads if layers else 0, limit, head)
        self.caches = [Cache(*sizes, value=value, dtype=dtype, device=device) for _ in range(max(layers, 1))]

    @property
    def rows(self) -> int:
        return self.caches[0].k.shape[0]

    @property
    def at(self) -> Int[Tensor, "b"]:
        """The number of tokens of each row."""
        return self.caches[0].at

    def positions(self, tokens: int) -> Int[Tensor, "b t"]:
        """The positions of each row's next tokens."""
        return self.caches[0].positions(tokens)

    def mask(self, window: int | None = None) -> Mask:
        """Which keys each of the next tokens may attend to."""
        return self.caches[0].mask(window=window)

    def advance(self, tokens: int | Int[Tensor, "b"]) -> None:
        """Count these tokens as read."""
        for cache in self.caches:
            cache.advance(tokens)

    def expand(self, n: int) -> None:
        for cache in self.caches:
            cache.expand(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        for cache in self.caches:
            cache.reorder(index)


class SourceMemory:
    """The encoded sources, each kept once however many neighbouring rows (the beams of a search) decode from it.

    Their number is `fold`; rows that share a source must keep sharing one.
    """

    def __init__(self, memory: Sequence[tuple[Tensor, ...]], lengths: Tensor | None) -> None:
        self.memory = list(memory)  # for each layer with cross-attention: keys and values, or whatever else it needs
        self.lengths = lengths
        self.mask = Mask(lengths=lengths)  # one for all steps, so that kernels prepare it once
        self.fold = 1

    def expand(self, n: int) -> None:
        self.fold *= n

    def reorder(self, index: Int[Tensor, "n"], rows: int) -> None:
        """As above; `rows` is the number of rows before."""
        source = index[:: self.fold] // self.fold
        if len(index) == rows and torch.equal(source, torch.arange(len(source), device=index.device)):
            return  # beams changed places within their sources
        self.memory = [tuple(x[source] for x in layer) for layer in self.memory]
        if self.lengths is not None:
            self.lengths = self.lengths[source]
            self.mask = Mask(lengths=self.lengths)


class DecoderState:
    """The state of a Transformer decoder: the KV caches of what it has written, and its sources if it has some."""

    def __init__(self, kv: KVState, source: SourceMemory | None = None) -> None:
        self.kv, self.source = kv, source

    @property
    def rows(self) -> int:
        return self.kv.rows

    def expand(self, n: int) -> None:
        if self.source is not None:
            self.source.expand(n)
        self.kv.expand(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        if self.source is not None:
            self.source.reorder(index, self.rows)
        self.kv.reorder(index)

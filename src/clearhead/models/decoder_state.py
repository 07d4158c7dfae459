"""What a decoder keeps between two steps: the KV cache of each row, and the encoded source if it has one.

A model that decodes has `start(inputs, rows, limit) -> state` and `step(ids, state) -> (logits, state)`. decode/ needs
of a state only `rows`, `expand(n)`, after which each row is n neighbouring rows (the beams of a search), and
`reorder(index)`, after which row i is what row index[i] was. A Transformer uses DecoderState; an RNN has its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..layers import Cache, Mask


class KVState:
    """The KV caches of all layers; they are always at the same position.

    Args:
        layers: Number of layers.
        rows: Number of rows.
        heads: Key and value heads per layer.
        limit: Tokens per row that there is room for.
        head: Width of a key head.
        value: Width of a value head; `head` if not given.
        dtype: Dtype of the keys and values.
        device: Device of the keys and values.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        limit: int,
        head: int,
        *,
        value: int | None = None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # A model without layers has one cache of no heads, to count its tokens.
        sizes = (rows, heads if layers else 0, limit, head)
        self.caches = [
            Cache(*sizes, value=value, dtype=dtype, device=device) for _ in range(max(layers, 1))
        ]

    @property
    def rows(self) -> int:
        return self.caches[0].k.shape[0]

    @property
    def at(self) -> Int[Tensor, "b"]:
        """The number of tokens in each row."""
        return self.caches[0].at

    def positions(self, tokens: int) -> Int[Tensor, "b t"]:
        """The positions of the next tokens of each row."""
        return self.caches[0].positions(tokens)

    def mask(self, window: int | None = None) -> Mask:
        """Which keys each of the next tokens may attend to."""
        return self.caches[0].mask(window=window)

    def advance(self, tokens: int | Int[Tensor, "b"]) -> None:
        """Advance the position of each row by its number of new tokens: one number, or one per row."""
        for cache in self.caches:
            cache.advance(tokens)

    def expand(self, n: int) -> None:
        for cache in self.caches:
            cache.expand(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        for cache in self.caches:
            cache.reorder(index)


class SourceMemory:
    """The encoded sources, each stored once for all neighbouring rows (the beams of a search) that decode from it.

    `fold` is the number of rows per source. `reorder` must keep rows of one source together.

    Args:
        memory: For each layer with cross-attention the tensors that it needs, (sources, ...): keys and values.
        lengths: Tokens of each source; None if none of them is padded.
    """

    def __init__(self, memory: Sequence[tuple[Tensor, ...]], lengths: Tensor | None) -> None:
        self.memory = list(memory)
        self.lengths = lengths
        # the same object at all steps, so that kernels prepare it once
        self.mask = Mask(lengths=lengths)
        self.fold = 1

    def expand(self, n: int) -> None:
        self.fold *= n  # nothing is copied: the beams are queries of the same keys

    def reorder(self, index: Int[Tensor, "n"], rows: int) -> None:
        """Replace row i by row index[i], for all i at once; `rows` is the number of rows before."""
        source = index[:: self.fold] // self.fold  # of the first of each group of rows
        same = torch.arange(len(source), device=index.device)
        if len(index) == rows and torch.equal(source, same):
            # the usual step of a beam search: nothing is copied, and the mask stays the same object
            return  # only beams of the same source changed places
        self.memory = [tuple(x[source] for x in layer) for layer in self.memory]
        if self.lengths is not None:
            self.lengths = self.lengths[source]
            # masks are immutable: one with other rows is a new one, which kernels prepare again
            self.mask = Mask(lengths=self.lengths)


class DecoderState:
    """The state of a Transformer decoder: its KV caches, and its encoded sources if it has cross-attention."""

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

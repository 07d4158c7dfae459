"""The KV cache: keys and values of the tokens already read, so that each is computed once."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from .mask import Mask


class Cache:
    """The KV cache of one layer: static storage for `limit` tokens per row, and the position of each row's next token.

    Call `append` once per forward pass of the layer: it writes the new tokens of every row at that row's position and
    returns a view of all keys and values up to the furthest row (the whole storage inside a compiled graph, where
    shapes must be static). Then call `advance`, which moves each row on by the number of tokens it really had: what
    padding wrote beyond that is never attended to under `mask()`, and the next append overwrites it.

    Args:
        rows: rows of the batch.
        heads: number of key and value heads.
        limit: tokens per row that there is room for.
        width: head dimension of the keys.
        value: head dimension of the values; that of the keys if not given.
        dtype: dtype of the storage.
        device: device of the storage.

    Examples:
        >>> attention, cache = Attention(8, heads=2), Cache(rows=1, heads=2, limit=16, width=4)
        >>> x = torch.randn(1, 3, 8)
        >>> with torch.no_grad():
        ...     prompt = attention(x[:, :2], mask=cache.mask(), cache=cache)
        ...     cache.advance(2)
        ...     step = attention(x[:, 2:], mask=cache.mask(), cache=cache)
        ...     whole = attention(x, mask=Mask(causal=True))
        >>> torch.allclose(torch.cat([prompt, step], dim=1), whole, atol=1e-6)
        True
    """

    def __init__(
        self,
        rows: int,
        heads: int,
        limit: int,
        width: int,
        *,
        value: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.k = torch.zeros(rows, heads, limit, width, dtype=dtype, device=device)
        self.v = torch.zeros(rows, heads, limit, value or width, dtype=dtype, device=device)
        self.at: Int[Tensor, "b"] = torch.zeros(rows, dtype=torch.long, device=device)
        self.furthest = 0  # the largest of `at`, known on the host
        self.even = True  # whether all rows are at `furthest`

    @property
    def limit(self) -> int:
        """Tokens per row that there is room for."""
        return self.k.shape[2]

    def positions(self, tokens: int) -> Int[Tensor, "b t"]:
        """Return the positions of the next `tokens` tokens of each row."""
        return self.at[:, None] + torch.arange(tokens, device=self.at.device)

    def mask(self, *, window: int | None = None) -> Mask:
        """Return the causal mask of the next tokens, each row starting at its own position."""
        return Mask(causal=True, window=window, offset=self.furthest if self.even else self.at)

    def append(
        self, k: Float[Tensor, "b g t e"], v: Float[Tensor, "b g t w"]
    ) -> tuple[Float[Tensor, "b g n e"], Float[Tensor, "b g n w"]]:
        """Store the keys and values of the next tokens, and return the keys and values of all tokens so far."""
        tokens = k.shape[2]
        end = self.furthest + tokens
        if end > self.limit:
            # static storage: it never grows, so that its addresses and shapes stay the same
            raise InputError(
                f"{tokens} more tokens after {self.furthest}: the cache holds {self.limit}; give it a larger limit"
            )
        fits = k.shape[:2] == self.k.shape[:2] and k.shape[3] == self.k.shape[3]
        if not fits or v.shape != (*k.shape[:3], self.v.shape[3]):
            raise InputError(
                f"k {tuple(k.shape)} and v {tuple(v.shape)} do not fit a cache of k {tuple(self.k.shape)} "
                f"and v {tuple(self.v.shape)}"
            )
        compiling = torch.compiler.is_compiling()
        if self.even and not compiling:
            # all rows are at the same position: one copy
            self.k.narrow(2, self.furthest, tokens).copy_(k)
            self.v.narrow(2, self.furthest, tokens).copy_(v)
        else:
            # each row at its own position; torch puts the axes of two index tensors first: (b, t, g, e)
            row, at = torch.arange(k.shape[0], device=k.device)[:, None], self.positions(tokens)
            self.k[row, :, at] = k.transpose(1, 2).to(self.k.dtype)
            self.v[row, :, at] = v.transpose(1, 2).to(self.v.dtype)
        if compiling:
            # one graph for every length: the causal mask forbids what is not yet written
            end = self.limit
        return self.k.narrow(2, 0, end), self.v.narrow(2, 0, end)

    def advance(self, tokens: int | Int[Tensor, "b"]) -> None:
        """Move each row on by its number of new tokens, which `append` has stored."""
        self.at = self.at + tokens
        if isinstance(tokens, int):
            self.furthest = self.furthest + tokens
        else:
            # the host waits for the device here: only prompts of different lengths need it
            self.furthest = int(self.at.max())
            self.even = False

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Replace row i by row index[i], for all i at once, as a beam search does; only the filled part is copied."""
        if torch.compiler.is_compiling():
            # inside a graph `furthest` would be a shape that changes: the whole storage is copied
            self.k, self.v = self.k[index], self.v[index]
        else:
            self.k, self.v = (
                _taken(self.k, index, self.furthest),
                _taken(self.v, index, self.furthest),
            )
        self.at = self.at[index]
        if not self.even:  # the furthest row may have left
            self.furthest = int(self.at.max())

    def expand(self, n: int) -> None:
        """Repeat each row as n neighbouring rows."""
        rows = torch.arange(self.k.shape[0], device=self.at.device)
        self.reorder(rows.repeat_interleave(n))


def _taken(
    old: Float[Tensor, "b g n e"], index: Int[Tensor, "m"], filled: int
) -> Float[Tensor, "m g n e"]:
    """Copy rows of `old`, whose first `filled` tokens are used, into new storage: views of the old may be in use."""
    new = old.new_empty(index.shape[0], *old.shape[1:])
    new[:, :, filled:] = 0.0
    if old.requires_grad:
        new[:, :, :filled] = old[:, :, :filled].index_select(0, index)
    else:  # without an intermediate copy
        torch.index_select(old[:, :, :filled], 0, index, out=new[:, :, :filled])
    return new

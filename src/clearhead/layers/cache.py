"""The keys and values of the tokens already read, so that each is computed once."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from .mask import Mask


class Cache:
    """Static storage for `limit` tokens a row, and for each row the position of its next token.

    One `append` a forward pass of a layer: it writes the new tokens of every row at that row's position and
    returns all keys and values up to the furthest row, a view (the whole storage inside a compiled graph,
    where shapes must stand still). `advance` then moves the rows on, each by as many tokens as it really had:
    what padding wrote beyond that is never looked at under `mask()` and is overwritten by the next append.
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
        self.furthest = 0  # the largest of `at`, on the host
        self.even = True  # all rows stand at `furthest`

    @property
    def limit(self) -> int:
        return self.k.shape[2]

    def positions(self, tokens: int) -> Int[Tensor, "b t"]:
        """Where the next `tokens` of every row will stand."""
        return self.at[:, None] + torch.arange(tokens, device=self.at.device)

    def mask(self, *, window: int | None = None) -> Mask:
        """The causal mask of the next tokens, each row from its own position."""
        return Mask(causal=True, window=window, offset=self.furthest if self.even else self.at)

    def append(
        self, k: Float[Tensor, "b g t e"], v: Float[Tensor, "b g t w"]
    ) -> tuple[Float[Tensor, "b g n e"], Float[Tensor, "b g n w"]]:
        """Store the next tokens and return everything so far."""
        tokens = k.shape[2]
        if self.furthest + tokens > self.limit:
            raise InputError(
                f"{tokens} more tokens after {self.furthest}: the cache holds {self.limit}; give it a larger limit"
            )
        if (
            k.shape[:2] != self.k.shape[:2]
            or k.shape[3] != self.k.shape[3]
            or v.shape != (*k.shape[:3], self.v.shape[3])
        ):
            raise InputError(
                f"k {tuple(k.shape)} and v {tuple(v.shape)} do not fit a cache of k {tuple(self.k.shape)} "
                f"and v {tuple(self.v.shape)}"
            )
        end = self.furthest + tokens
        if torch.compiler.is_compiling() or not self.even:
            row, at = torch.arange(k.shape[0], device=k.device)[:, None], self.positions(tokens)
            self.k[row, :, at] = k.transpose(1, 2).to(self.k.dtype)  # indices first: (b, t, g, e)
            self.v[row, :, at] = v.transpose(1, 2).to(self.v.dtype)
        else:
            self.k.narrow(2, self.furthest, tokens).copy_(k)
            self.v.narrow(2, self.furthest, tokens).copy_(v)
        filled = self.limit if torch.compiler.is_compiling() else end
        return self.k.narrow(2, 0, filled), self.v.narrow(2, 0, filled)

    def advance(self, tokens: int | Int[Tensor, "b"]) -> None:
        """Move each row on by the tokens it had, which `append` has stored."""
        self.at = self.at + tokens
        self.even = self.even and isinstance(tokens, int)
        self.furthest = self.furthest + tokens if isinstance(tokens, int) else int(self.at.max())

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Row i becomes what row index[i] was: a beam search keeps its best. Only what is filled is moved."""
        if torch.compiler.is_compiling():
            self.k, self.v = self.k[index], self.v[index]
        else:  # into storage of their own: somebody may still look at the old
            old, n = (self.k, self.v), self.furthest
            self.k, self.v = (x.new_empty(index.shape[0], *x.shape[1:]) for x in old)
            for x, new in zip(old, (self.k, self.v), strict=True):
                new[:, :, n:] = 0.0
                if x.requires_grad:
                    new[:, :, :n] = x[:, :, :n].index_select(0, index)
                else:  # no copy on the way
                    torch.index_select(x[:, :, :n], 0, index, out=new[:, :, :n])
        self.at = self.at[index]
        if not self.even:
            self.furthest = int(self.at.max())

    def expand(self, n: int) -> None:
        """Each row becomes n neighbouring rows."""
        self.reorder(torch.arange(self.k.shape[0], device=self.at.device).repeat_interleave(n))

"""The formulas written out in float64, by loops where that is plainest."""

from itertools import product

import torch
from torch import Tensor

TIGHT = {"rtol": 1e-9, "atol": 1e-11}  # only rounding in float64


def of_row(value: int | list[int] | Tensor, row: int) -> int:
    """The number of a row: one for all rows, or one per row."""
    if isinstance(value, int):
        return value
    return int(value[row if len(value) > 1 else 0])


def allowed(
    b: int,
    h: int,
    q: int,
    k: int,
    *,
    causal=False,
    window=None,
    lengths=None,
    offset=None,
    documents=None,
    allow=None,
) -> Tensor:
    """Which keys each query may attend to, (b, h, q, k), pair by pair."""
    pairs = None if allow is None else allow.expand(b, h, q, k).tolist()
    numbers = None if documents is None else documents.expand(b, k).tolist()

    def may(row: int, head: int, i: int, j: int) -> bool:
        p = i + (0 if offset is None else of_row(offset, row))
        return (
            (not causal or j <= p)
            and (window is None or abs(p - j) < window)
            and (lengths is None or j < of_row(lengths, row))
            and (numbers is None or numbers[row][p] == numbers[row][j])
            and (pairs is None or pairs[row][head][i][j])
        )

    every = [may(*pair) for pair in product(range(b), range(h), range(q), range(k))]
    return torch.tensor(every, dtype=torch.bool).reshape(b, h, q, k)


def bias(b: int, h: int, q: int, k: int, *, q_at=None, k_at=None, slope=None, table=None, dense=None) -> Tensor:
    """slope |d| + table[clip(d)] + dense, (b, h, q, k), for the distance d of each pair; differentiable."""
    full = torch.zeros(b, h, q, k, dtype=torch.float64)
    if dense is not None:
        full = full + dense.double()
    if q_at is not None:
        here, there = q_at.expand(b, q).tolist(), k_at.expand(b, k).tolist()
        d = torch.tensor([[[y - x for y in there[row]] for x in here[row]] for row in range(b)])
    if slope is not None:
        full = full + torch.stack([slope.double().expand(h)[head] * d.abs() for head in range(h)], dim=1)
    if table is not None:
        m = table.shape[1] // 2
        clipped = [min(max(n, -m), m) for n in d.flatten().tolist()]
        read = [table.double().expand(h, -1)[head, [m + n for n in clipped]] for head in range(h)]
        full = full + torch.stack(read).reshape(h, b, q, k).transpose(0, 1)
    return full


def weights(scores: Tensor, may: Tensor | None = None) -> Tensor:
    """Softmax over the allowed keys; zeros where there are none."""
    may = torch.ones_like(scores, dtype=torch.bool) if may is None else may.expand(scores.shape)
    top = scores.detach().masked_fill(~may, float("-inf")).amax(-1, keepdim=True).clamp(min=-1e300)
    shares = (scores - top).masked_fill(~may, float("-inf")).exp()
    total = shares.sum(-1, keepdim=True)
    return shares / (total + (total == 0))


def spread(x: Tensor, heads: int) -> Tensor:
    """Key (or value) heads repeated, one per query head, in float64."""
    return torch.stack([x[:, head * x.shape[1] // heads] for head in range(heads)], dim=1).double()


def scores(q: Tensor, k: Tensor, scale: float, added: Tensor | float = 0.0) -> Tensor:
    return q.double() @ spread(k, q.shape[1]).mT * scale + added


def attention(q: Tensor, k: Tensor, v: Tensor, may=None, added: Tensor | float = 0.0, scale=None) -> Tensor:
    """Eq. 1 of Vaswani et al. 2017, (b, h, q, w)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return weights(scores(q, k, scale, added), may) @ spread(v, q.shape[1])

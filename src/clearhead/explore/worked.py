"""Self-attention by hand: the lecture's three inputs, from their projections to their new representations."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layers import Attention
from ..look import watch

X = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])  # three inputs, each of width 4
WK = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
WV = torch.tensor([[0.0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])
WQ = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])


def example() -> Attention:
    """The lecture's attention: one head of width 3, an unscaled dot product, nothing after the weighted sum."""
    attention = Attention(4, 1, head=3, score="dot", out=False, bias=False)
    with torch.no_grad():
        for linear, weight in ((attention.query, WQ), (attention.key, WK), (attention.value, WV)):
            assert linear is not None
            linear.weight.copy_(weight.T)
    return attention.eval()


def tell() -> str:
    """The example in words and numbers."""
    attention = example()
    with torch.no_grad(), watch(attention, "q", "k", "v", "scores", "weights") as tape:
        y = attention(X[None])[0]
    q, k, v, scores = (tape[name][0, 0] for name in ("q", "k", "v", "scores"))
    weights = tape["weights"].dense()[0, 0]
    steps = [
        ("Three inputs, a row each.", "X", X),
        ("What each asks for: a query X Wq.", "Q", q),
        ("What each offers to be found by: a key X Wk.", "K", k),
        ("What each has to say: a value X Wv.", "V", v),
        ("How well each query matches each key: scores Q K'.", "E", scores),
        ("A softmax makes each row sum to 1. (For the first row a slide would round to 0, .5, .5.)", "A", weights),
        ("Each answer is the values, mixed by the weights: A V.", "Y", y),
    ]
    told = [f"{n}. {text}\n{_matrix(name, m)}" for n, (text, name, m) in enumerate(steps, 1)]
    for i, row in enumerate(weights, 1):
        best = [str(j) for j, w in enumerate(row.tolist(), 1) if w > row.max() - 1e-6]
        told.append(f"Input {i} looks most at input {' and input '.join(best)}.")
    return "\n\n".join(["Self-attention by hand", *told])


def _matrix(name: str, m: Tensor) -> str:
    whole = bool((m == m.round()).all())
    rows = ["  ".join(f"{x:.0f}".rjust(3) if whole else f"{x:.4f}".rjust(7) for x in row.tolist()) for row in m]
    return "\n".join(f"   {name if i == 0 else ' '} {'=' if i == 0 else ' '} [ {row} ]" for i, row in enumerate(rows))

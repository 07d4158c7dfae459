"""Self-attention by hand: every number of the computation for small matrices, and the lecture's worked example.

`python -m clearhead.explore` prints the worked example; the page's Build view lets its numbers be changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..draw.result import plain
from ..errors import InputError
from ..layers import (
    Additive,
    Alibi,
    Attention,
    Mask,
    Memory,
    Rotary,
    SinCos2d,
    Sinusoid,
    attend,
    grid,
    make_positions,
)
from ..look import watch
from . import answers

# The lecture's example: three inputs of width 4, and the projections to keys, values and queries of width 3.
X = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
WK = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
WV = torch.tensor([[0.0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])
WQ = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])

SCORES = ("dot", "scaled", "cosine", "additive")
POSITIONS = ("none", "sinusoid", "rotary", "alibi")
LARGEST = 1e6  # largest absolute value of an input number
Rows = Sequence[Sequence[float | int]]


@dataclass(frozen=True, eq=False)
class ByHand:
    """Every number of one self-attention."""

    # the inputs in the given order, with the position vectors if those are added
    x: Float[Tensor, "t d"]
    projected_q: Float[Tensor, "h t e"]  # X Wq
    projected_k: Float[Tensor, "h t e"]  # X Wk
    # the queries that are scored: X Wq, rotated if the positions are rotary
    q: Float[Tensor, "h t e"]
    k: Float[Tensor, "h t e"]  # the keys that are scored: X Wk, rotated if the positions are rotary
    v: Float[Tensor, "h t w"]
    scores: Float[Tensor, "h t t"]  # input of the softmax, before the mask
    masked: Bool[Tensor, "t t"]  # True where the query may not attend to the key
    weights: Float[Tensor, "h t t"]
    out: Float[Tensor, "t o"]
    # largest difference to the permuted output of the unpermuted inputs; 0 if order does not matter
    moved: float
    # rotary: angle of each pair of columns, in radians
    angles: Float[Tensor, "t pairs"] | None = None
    slopes: Float[Tensor, "h"] | None = None  # alibi: what the scores lose per position of distance

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: answers.ByHandShape."""
        return {name: plain(value) for name, value in vars(self).items()}


def example() -> Attention:
    """The lecture's attention: one head of width 3, an unscaled dot product, no output projection."""
    return _attention_layer(WQ, WK, WV)


@torch.no_grad()
def by_hand(
    x: Rows,  # one row per input
    wq: Rows,  # (width of X, heads * head width): the columns of the heads side by side
    wk: Rows,
    wv: Rows,
    *,
    score: str = "dot",
    sharpness: float = 1.0,  # factor of the scores
    causal: bool = False,
    window: int | None = None,
    heads: int = 1,
    positions: str = "none",
    order: Sequence[int] | None = None,  # permutation of the inputs; None: as given
) -> ByHand:
    """Compute self-attention with given matrices: Q = X Wq, K = X Wk, V = X Wv, softmax(score(Q, K)) V."""
    words, query, key, value = (
        _matrix(name, m) for name, m in (("X", x), ("Wq", wq), ("Wk", wk), ("Wv", wv))
    )
    order = list(range(len(words))) if order is None else list(order)
    _check(words, query, key, value, score=score, positions=positions, heads=heads, order=order)
    layer = _attention_layer(query, key, value, heads=heads, score=score)
    layer.sharpness = torch.nn.Parameter(
        torch.full((heads, 1, 1), float(sharpness), dtype=torch.float64)
    )
    encoding = make_positions(
        positions,  # type: ignore[arg-type]  # _check has made sure that it is one of POSITIONS
        width=words.shape[1],
        heads=heads,
        head=query.shape[1] // heads,
        context=len(words),
        causal=causal,
    )
    mask = Mask(causal=causal, window=window)

    def attention(inputs: Tensor) -> Tensor:
        # Added positions change the inputs before the projections; rotary and ALiBi act inside the layer.
        at = torch.arange(len(inputs))
        return layer(encoding.add(inputs[None], at), mask=mask, positions=encoding, at=at)[0]

    with watch(layer, "q", "k", "v", "scores", "weights") as tape:
        out = attention(words[order])
    unpermuted = attention(words)
    # The inputs as the projections read them, with added positions, to show X Wq and X Wk before any rotation.
    placed, n = encoding.add(words[order][None])[0], len(words)
    return ByHand(
        x=placed,
        projected_q=_heads(placed @ query, heads),
        projected_k=_heads(placed @ key, heads),
        q=tape["q"][0],
        k=tape["k"][0],
        v=tape["v"][0],
        scores=tape["scores"][0],
        # A mask is True where a query may attend to a key; the page shows what is hidden.
        masked=~mask.dense(n, n)[0, 0],
        weights=tape["weights"].dense()[0],
        out=out,
        # 0 where attention is equivariant to permutations: without positions and without a causal mask.
        moved=float((out - unpermuted[order]).abs().max()),
        angles=torch.arange(n)[:, None] * encoding.speed.double()
        if isinstance(encoding, Rotary)
        else None,
        slopes=-encoding.slope.double() if isinstance(encoding, Alibi) else None,
    )


def tell() -> str:
    """The lecture's example, step by step, as text."""
    result = by_hand(X.tolist(), WQ.tolist(), WK.tolist(), WV.tolist())
    steps = [
        ("Three inputs, one per row.", "X", X),
        ("The queries: X Wq.", "Q", result.q[0]),
        ("The keys: X Wk.", "K", result.k[0]),
        ("The values: X Wv.", "V", result.v[0]),
        ("The scores, how well each query matches each key: Q K'.", "E", result.scores[0]),
        ("The weights: a softmax makes each row sum to 1. (A slide may round the first row to 0, .5, .5.)", "A",
         result.weights[0]),
        ("The outputs, the values averaged with the weights: A V.", "Y", result.out),
    ]  # fmt: skip
    lines = [f"{n}. {text}\n{_matrix_text(name, m)}" for n, (text, name, m) in enumerate(steps, 1)]
    for i, row in enumerate(result.weights[0], 1):
        # Several inputs may share the largest weight, up to rounding.
        best = [str(j) for j, w in enumerate(row.tolist(), 1) if w > row.max() - 1e-6]
        lines.append(f"Input {i} looks most at input {' and input '.join(best)}.")
    return "\n\n".join(["Self-attention by hand", *lines])


def _heads(x: Float[Tensor, "t d"], heads: int) -> Float[Tensor, "h t e"]:
    """The columns of each head."""
    return x.view(len(x), heads, -1).transpose(0, 1)


@torch.no_grad()
def _attention_layer(
    wq: Tensor, wk: Tensor, wv: Tensor, *, heads: int = 1, score: str = "dot"
) -> Attention:
    """An attention layer with these projections, without biases and output projection, in their dtype."""
    head = wq.shape[1] // heads
    layer = Attention(
        wq.shape[0],
        heads,
        head=head,
        value=wv.shape[1] // heads,
        out=False,
        bias=False,
        score=Additive(head, heads) if score == "additive" else score,  # type: ignore[arg-type]
    ).to(wq.dtype)
    for linear, m in ((layer.query, wq), (layer.key, wk), (layer.value, wv)):
        assert linear is not None
        # A linear layer stores its matrix transposed: y = x W^T.
        linear.weight.copy_(m.T)
    if isinstance(layer.score, Additive):
        # Additive attention, v' tanh(q + k) (Bahdanau et al. 2015), with v = 1.
        layer.score.v.fill_(1.0)
    return layer.eval()


def _check(
    words: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: str,
    positions: str,
    heads: int,
    order: list[int],
) -> None:
    for name, m in (("Wq", query), ("Wk", key), ("Wv", value)):
        if m.shape[0] != words.shape[1]:
            raise InputError(
                f"{name} has {m.shape[0]} rows: expected {words.shape[1]}, one for each column of X"
            )
        # Heads share the columns equally.
        if m.shape[1] % heads:
            raise InputError(
                f"{name} has {m.shape[1]} columns: expected a multiple of {heads} heads"
            )
    # A dot product, and a sum for additive scores, needs queries and keys of one width.
    if query.shape[1] != key.shape[1]:
        raise InputError(
            f"Wq has {query.shape[1]} columns and Wk {key.shape[1]}: expected the same number"
        )
    if score not in SCORES:
        raise InputError(f"score={score!r}: expected one of {', '.join(SCORES)}")
    if positions not in POSITIONS:
        raise InputError(f"positions={positions!r}: expected one of {', '.join(POSITIONS)}")
    if sorted(order) != list(range(len(words))):
        raise InputError(f"order={order}: expected the numbers 0 to {len(words) - 1}, each once")


def _matrix(name: str, rows: Rows) -> Tensor:
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise InputError(f"{name} is no matrix: expected one or more rows of the same length")
    m = torch.tensor([[float(number) for number in row] for row in rows], dtype=torch.float64)
    # Also refuses NaN, for which every comparison is False.
    if not bool((m.abs() <= LARGEST).all()):
        raise InputError(
            f"{name} has a number beyond {LARGEST:,.0f} or NaN: expected smaller numbers"
        )
    return m


def _matrix_text(name: str, m: Tensor) -> str:
    decimals, width = (0, 3) if bool((m == m.round()).all()) else (4, 7)
    lines = []
    begin = f"{name} ="  # of the first line only
    for row in m.tolist():
        numbers = "  ".join(f"{x:{width}.{decimals}f}" for x in row)
        lines.append(f"   {begin} [ {numbers} ]")
        begin = "   "
    return "\n".join(lines)


# The numbers behind two figures of the Build view: position encodings, and a recurrent memory with decay.


ALIBI_HEADS = 8


@torch.no_grad()
def position_vectors(
    kind: str = "sinusoid",
    *,
    width: int = 64,
    length: int = 64,
    base: float = 10_000.0,
    head: int = 0,
) -> answers.PositionsShape:
    """The vector of each position, and the similarity of any two positions as attention computes it.

    rotary: a vector of ones, rotated to each position. alibi: the biases of ALIBI_HEADS heads for the last query (one
    column per head), and those of one head for all pairs. sincos2d: the patches of an image with `length` patches per
    side.
    """
    at = torch.arange(length)
    if kind == "sinusoid":
        # Each pair of columns has sin^2 + cos^2 = 1, so width / 2 makes the similarity of a
        # position with itself 1.
        vectors = Sinusoid(width, base=base).vectors(at).double()
        similarity = vectors @ vectors.T / (width / 2)
    elif kind == "sincos2d":
        vectors = SinCos2d(width, base=base).vectors(grid(length, length)).double()
        # The same length as above: half of the columns for y and half for x, each in pairs of sine and cosine.
        similarity = vectors @ vectors.T / (width / 2)
    elif kind == "rotary":
        ones = torch.ones(1, 1, length, width, dtype=torch.float64)
        # q_m . k_n depends on m - n only (Su et al. 2021); a vector of ones has the squared length width.
        q, k = Rotary(width, base=base).turn(ones, ones, at)
        vectors, similarity = q[0, 0], (q @ k.mT / width)[0, 0]
    elif kind == "alibi":
        if not 0 <= head < ALIBI_HEADS:
            raise InputError(f"head={head}: expected a number from 0 to {ALIBI_HEADS - 1}")
        # (h, length, length): added to the scores, and linear in the distance.
        bias = Alibi(ALIBI_HEADS).bias(at, at).tile((0, length), (0, length))[0].double()
        vectors, similarity = bias[:, -1].T, bias[head]
    else:
        raise InputError(f"positions {kind!r}: expected sinusoid, rotary, alibi or sincos2d")
    return {"kind": kind, "vectors": vectors.tolist(), "similarity": similarity.tolist()}


@torch.no_grad()
def memory_decay(
    gamma: float = 0.9, *, length: int = 24, sharpness: float = 6.0
) -> answers.MemoryShape:
    """The weight of each input in a recurrent memory after each later input: gamma ** age.

    `share` is that weight divided by the sum of all weights. `attention` is the weight that attention gives the first
    input if the query equals it, after each input.
    """
    memory = Memory(length, gamma=gamma).double()
    # Each input writes its own one-hot vector as value, so that channel j of the memory is the
    # weight of input j.
    memory.value.weight.copy_(torch.eye(length))
    memory.value.bias.zero_()
    left = memory(torch.eye(length, dtype=torch.float64)[None])[0]
    inputs = torch.eye(length, dtype=torch.float64)[None, None]
    # (1, 1, length, length)
    query = inputs[:, :, :1].expand(-1, -1, length, -1)  # the first input, after each input
    out = attend(
        query,
        inputs,
        inputs,
        mask=Mask(causal=True),
        score="dot",
        sharpness=torch.tensor(sharpness),
    )
    share = (left / left.sum(1, keepdim=True)).tolist()
    return {
        "gamma": gamma,
        "left": left.tolist(),
        "share": share,
        "attention": out[0, 0, :, 0].tolist(),
    }

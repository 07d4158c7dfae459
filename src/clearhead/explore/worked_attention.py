"""Attention by hand: small matrices in, every number of the computation out; and pictures of positions and memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from ..layers import Additive, Alibi, Attention, Mask, Memory, Rotary, SinCos2d, Sinusoid, attend, grid, make_positions
from ..look import watch

SCORES = ("dot", "scaled", "cosine", "additive")
POSITIONS = ("none", "sinusoid", "rotary", "alibi")
LARGEST = 1e6  # of the numbers that are taken
Rows = Sequence[Sequence[float | int]]


@dataclass(frozen=True, eq=False)
class ByHand:
    """Every number of one self-attention."""

    x: Float[Tensor, "t d"]  # the words, with their positions where those are added
    q: Float[Tensor, "h t e"]
    k: Float[Tensor, "h t e"]
    v: Float[Tensor, "h t w"]
    scores: Float[Tensor, "h t t"]  # as the softmax gets them, before the mask
    weights: Float[Tensor, "h t t"]
    out: Float[Tensor, "t o"]
    moved: float  # how far the answer is from a permutation of that to the words in their first order

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        found: dict[str, Any] = {
            name: getattr(self, name).double().tolist() for name in ("x", "q", "k", "v", "scores", "weights", "out")
        }
        return found | {"moved": self.moved}


@torch.no_grad()
def by_hand(
    x: Rows,  # a row a word
    wq: Rows,  # columns of queries, those of the heads side by side
    wk: Rows,
    wv: Rows,
    *,
    score: str = "dot",
    sharpness: float = 1.0,  # what scores are multiplied by
    causal: bool = False,
    window: int | None = None,
    heads: int = 1,
    positions: str = "none",
    order: Sequence[int] | None = None,  # in which the words stand; None: as they are given
) -> ByHand:
    """The lecture's computation with any numbers: Q = X Wq, K = X Wk, V = X Wv, softmax(score(Q, K)) V."""
    words, query, key, value = (_matrix(name, m) for name, m in (("X", x), ("Wq", wq), ("Wk", wk), ("Wv", wv)))
    for name, m in (("Wq", query), ("Wk", key), ("Wv", value)):
        if m.shape[0] != words.shape[1]:
            raise InputError(f"{name} has {m.shape[0]} rows: expected {words.shape[1]}, one for each column of X")
        if m.shape[1] % heads:
            raise InputError(f"{name} has {m.shape[1]} columns, which {heads} heads cannot share evenly")
    if query.shape[1] != key.shape[1]:
        raise InputError(f"Wq has {query.shape[1]} columns and Wk {key.shape[1]}: expected as many, to be compared")
    if score not in SCORES or positions not in POSITIONS:
        raise InputError(f"score={score!r}, positions={positions!r}: expected {SCORES}, and {POSITIONS}")
    order = list(range(len(words))) if order is None else list(order)
    if sorted(order) != list(range(len(words))):
        raise InputError(f"order={order}: expected the numbers 0 to {len(words) - 1}, each once")
    each = query.shape[1] // heads
    layer = Attention(
        words.shape[1], heads, head=each, value=value.shape[1] // heads, out=False, bias=False,
        score=Additive(each, heads) if score == "additive" else score,
    ).double()  # fmt: skip
    for linear, m in ((layer.query, query), (layer.key, key), (layer.value, value)):
        assert linear is not None
        linear.weight.copy_(m.T)
    if isinstance(layer.score, Additive):
        layer.score.v.fill_(1.0)
    layer.sharpness = torch.nn.Parameter(torch.full((heads, 1, 1), float(sharpness), dtype=torch.float64))
    places = make_positions(positions, width=words.shape[1], heads=heads, head=each, context=len(words), causal=causal)
    mask = Mask(causal=causal, window=window)

    def answer(given: Tensor) -> Tensor:
        at = torch.arange(len(given))
        return layer(places.add(given[None], at), mask=mask, positions=places, at=at)[0]

    with watch(layer, "q", "k", "v", "scores", "weights") as tape:
        out = answer(words[order])
    first = answer(words)
    return ByHand(
        x=places.add(words[order][None])[0], q=tape["q"][0], k=tape["k"][0], v=tape["v"][0],
        scores=tape["scores"][0], weights=tape["weights"].dense()[0], out=out,
        moved=float((out - first[order]).abs().max()),
    )  # fmt: skip


@torch.no_grad()
def places(kind: str = "sinusoid", *, width: int = 64, length: int = 64, base: float = 10_000.0) -> dict[str, Any]:
    """What tells positions apart: their vectors, and how alike any two of them look to attention."""
    at = torch.arange(length)
    if kind == "sinusoid":
        vectors = Sinusoid(width, base=base).vectors(at).double()
        return {"kind": kind, "vectors": vectors.tolist(), "similarity": (vectors @ vectors.T / (width / 2)).tolist()}
    if kind == "rotary":  # the same vector everywhere, turned
        q = torch.ones(1, 1, length, width, dtype=torch.float64)
        q, k = Rotary(width, base=base).turn(q, q, at)
        return {"kind": kind, "vectors": q[0, 0].tolist(), "similarity": (q @ k.mT / width)[0, 0].tolist()}
    if kind == "alibi":
        bias = Alibi(8).bias(at, at).tile((0, length), (0, length))[0].double()
        return {"kind": kind, "vectors": bias[:, -1].T.tolist(), "similarity": bias[width % 8].tolist()}
    if kind == "sincos2d":  # of a picture with so many patches a side
        vectors = SinCos2d(width, base=base).vectors(grid(length, length)).double()
        return {"kind": kind, "vectors": vectors.tolist(), "similarity": (vectors @ vectors.T / (width / 2)).tolist()}
    raise InputError(f"positions {kind!r}: expected sinusoid, rotary, alibi or sincos2d")


@torch.no_grad()
def fading(gamma: float = 0.9, *, length: int = 24, sharpness: float = 6.0) -> dict[str, Any]:
    """How much of each guest is left in a memory after each later one has come: gamma to the power of its age.

    And the weight that attention, which asks for the first guest, finds it with among as many.
    """
    memory = Memory(length, gamma=gamma).double()
    memory.value.weight.copy_(torch.eye(length))
    memory.value.bias.zero_()
    left = memory(torch.eye(length, dtype=torch.float64)[None])[0]
    guests = torch.eye(length, dtype=torch.float64)[None, None]
    asked = guests[:, :, :1].expand(-1, -1, length, -1)  # after each guest, the first
    found = attend(asked, guests, guests, mask=Mask(causal=True), score="dot", sharpness=torch.tensor(sharpness))[
        0, 0, :, 0
    ]
    share = (left / left.sum(1, keepdim=True)).tolist()
    return {"gamma": gamma, "left": left.tolist(), "share": share, "attention": found.tolist()}


def _matrix(name: str, rows: Rows) -> Tensor:
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise InputError(f"{name} is no matrix: expected rows of the same length, one or more")
    m = torch.tensor([[float(number) for number in row] for row in rows], dtype=torch.float64)
    if not bool((m.abs() <= LARGEST).all()):
        raise InputError(f"{name} holds a number beyond {LARGEST:,.0f}, or none: expected smaller ones")
    return m

"""The numbers behind two figures of the Build view: position encodings, and a recurrent memory with decay."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InputError
from ..layers import Alibi, Mask, Memory, Rotary, SinCos2d, Sinusoid, attend, grid

ALIBI_HEADS = 8


@torch.no_grad()
def position_vectors(
    kind: str = "sinusoid", *, width: int = 64, length: int = 64, base: float = 10_000.0, head: int = 0
) -> dict[str, Any]:
    """The vector of each position, and the similarity of any two positions as attention computes it.

    rotary: a vector of ones, rotated to each position. alibi: the biases of ALIBI_HEADS heads for the last query (one
    column per head), and those of one head for all pairs. sincos2d: the patches of an image with `length` patches per
    side.
    """
    at = torch.arange(length)
    if kind == "sinusoid":
        vectors = Sinusoid(width, base=base).vectors(at).double()
        similarity = vectors @ vectors.T / (width / 2)
    elif kind == "sincos2d":
        vectors = SinCos2d(width, base=base).vectors(grid(length, length)).double()
        similarity = vectors @ vectors.T / (width / 2)
    elif kind == "rotary":
        ones = torch.ones(1, 1, length, width, dtype=torch.float64)
        q, k = Rotary(width, base=base).turn(ones, ones, at)
        vectors, similarity = q[0, 0], (q @ k.mT / width)[0, 0]
    elif kind == "alibi":
        if not 0 <= head < ALIBI_HEADS:
            raise InputError(f"head={head}: expected a number from 0 to {ALIBI_HEADS - 1}")
        bias = Alibi(ALIBI_HEADS).bias(at, at).tile((0, length), (0, length))[0].double()
        vectors, similarity = bias[:, -1].T, bias[head]
    else:
        raise InputError(f"positions {kind!r}: expected sinusoid, rotary, alibi or sincos2d")
    return {"kind": kind, "vectors": vectors.tolist(), "similarity": similarity.tolist()}


@torch.no_grad()
def memory_decay(gamma: float = 0.9, *, length: int = 24, sharpness: float = 6.0) -> dict[str, Any]:
    """The weight of each input in a recurrent memory after each later input: gamma ** age.

    `share` is that weight divided by the sum of all weights. `attention` is the weight that attention gives the first
    input if the query equals it, after each input.
    """
    memory = Memory(length, gamma=gamma).double()
    memory.value.weight.copy_(torch.eye(length))
    memory.value.bias.zero_()
    left = memory(torch.eye(length, dtype=torch.float64)[None])[0]
    inputs = torch.eye(length, dtype=torch.float64)[None, None]
    query = inputs[:, :, :1].expand(-1, -1, length, -1)  # the first input, after each input
    out = attend(query, inputs, inputs, mask=Mask(causal=True), score="dot", sharpness=torch.tensor(sharpness))
    share = (left / left.sum(1, keepdim=True)).tolist()
    return {"gamma": gamma, "left": left.tolist(), "share": share, "attention": out[0, 0, :, 0].tolist()}

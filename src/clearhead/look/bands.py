"""The weights of a recorded call, a band of queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .call import Call, LazyCall

TILE = 1 << 21  # scores computed at a time on a CPU: they stay in its cache, and memory traffic is what takes time
TILE_CUDA = 1 << 26  # the same on a GPU


@dataclass(frozen=True, eq=False)
class Band:
    """The weights of a range of queries on all keys that these can reach; outside of them the weights are 0."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    scores: Float[Tensor, "b h r c"]  # where the mask forbids, very low but finite
    weights: Float[Tensor, "b h r c"]
    normal: bool = False  # the scores are the logarithms of the weights

    def log(self) -> Float[Tensor, "b h r c"]:
        """The logarithms of the weights."""
        return self.scores if self.normal else torch.log_softmax(self.scores, dim=-1)


def bands(source: Call) -> Iterator[Band]:
    """Yield the whole map in bands of queries whose scores fit into the processor's cache."""
    source = source.wide() if isinstance(source, LazyCall) else source
    for rows in steps(source, (0, source.shape[2])):
        yield band(source, rows, source.reach(*rows))


def steps(source: Call, rows: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Cut a range of queries into ranges whose scores fit into the processor's cache."""
    b, h, _, k = source.shape
    room = TILE_CUDA if source.device.type == "cuda" else TILE
    step = max(16, min(256, room // max(1, b * h * k)))
    for start in range(rows[0], max(rows[1], rows[0] + 1), step):  # an empty range is one empty step
        yield start, min(start + step, rows[1])


def tile(source: Call, rows: tuple[int, int], keys: tuple[int, int]) -> Float[Tensor, "b h r c"]:
    """The weights of some queries on some keys, normalised over all keys."""
    if isinstance(source, LazyCall):
        first, last = source.reach(*rows)
        if keys[0] <= first and last <= keys[1]:  # a softmax of the scores themselves, exact however large they are
            return band(source, rows, keys).weights
    scores, pattern = source.scores(rows, keys)
    largest, rest = source.norm(rows)
    weights = (scores - largest - rest).exp_()
    return weights if pattern is None else weights.masked_fill_(pattern.forbidden, 0.0)


def band(source: Call, rows: tuple[int, int], keys: tuple[int, int]) -> Band:
    """The band of some queries; `keys` must contain all keys that these can reach."""
    b, h, _, _ = source.shape
    if keys[0] == keys[1]:
        none = source.zeros(b, h, rows[1] - rows[0], 0)
        return Band(rows, keys, none, none)
    scores, pattern = source.scores(rows, keys)
    if pattern is not None:
        first = pattern.first
        scores[..., first:].masked_fill_(pattern.forbidden[..., first:], torch.finfo(scores.dtype).min)
    # The weights of a DenseCall need not sum to 1, and are not normalised again.
    normal = not isinstance(source, LazyCall)
    weights = scores.exp() if normal else torch.softmax(scores, dim=-1)
    if pattern is not None and not (pattern.full and weights[..., :1].isfinite().all()):
        weights.masked_fill_(pattern.forbidden, 0.0)  # a fully masked row came out uniform, that of a NaN query all NaN
    return Band(rows, keys, scores, weights, normal)

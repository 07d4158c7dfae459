"""Random sizes, tensors, masks and biases that the laws are tested on."""

from typing import NamedTuple

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch import Tensor

# For laws about a whole model: fewer examples for each kind of positions, and the first failing one is shown as it
# is, because searching for a smaller one takes minutes.
shared = settings(max_examples=1 + settings().max_examples // 8, phases=(Phase.explicit, Phase.reuse, Phase.generate))


class Size(NamedTuple):
    """Rows, query heads, key heads, queries and keys."""

    b: int
    h: int
    g: int
    q: int
    k: int

    @property
    def full(self) -> tuple[int, int, int, int]:
        return self.b, self.h, self.q, self.k


seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def sizes(queries: int = 6, keys: int = 7) -> st.SearchStrategy[Size]:
    heads = st.sampled_from([(1, 1), (3, 3), (6, 2), (4, 1)])
    parts = st.tuples(st.integers(1, 3), heads, st.integers(1, queries), st.integers(1, keys), st.booleans())
    return parts.map(lambda p: Size(p[0], *p[1], p[3] if p[4] else p[2], p[3]))


def per_row(rows: int, most: int) -> st.SearchStrategy[int | list[int] | Tensor]:
    """A number for all rows, or one per row, in every form that a Mask accepts."""
    number = st.integers(0, most)
    each = st.lists(number, min_size=rows, max_size=rows)
    return number | each | each.map(torch.tensor) | number.map(lambda n: torch.tensor([n]))


@st.composite
def broadcast(draw, full: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `full`."""
    axes = full[draw(st.integers(0, len(full))) :]
    return tuple(n if draw(st.booleans()) else 1 for n in axes)


@st.composite
def masks(draw, size: Size) -> dict:
    """Any fields of a Mask that fit these sizes."""
    b, h, q, k = size.full
    fields: dict = {}
    if draw(st.booleans()):
        fields["causal"] = True
    if draw(st.booleans()):
        fields["window"] = draw(st.integers(1, k + 1))
    if draw(st.booleans()):
        fields["lengths"] = draw(per_row(b, k))
    if q <= k and draw(st.booleans()):
        rows = draw(st.sampled_from([1, b]))
        fields["documents"] = torch.tensor(
            draw(st.lists(st.integers(0, 2), min_size=rows * k, max_size=rows * k))
        ).reshape(rows, k)
    if draw(st.booleans()):
        shape = draw(broadcast((b, h, q, k)))
        fields["allow"] = normal(draw(seeds), *shape) > draw(st.sampled_from([-1.0, 0.0, 1.0]))
    placed = {"causal", "window", "documents"} & fields.keys()
    if (placed and q != k) or draw(st.booleans()):
        # With documents the position of a query is that of a key; otherwise it may be past all keys.
        fields["offset"] = draw(per_row(b, k - q if "documents" in fields else k + 1))
    return fields


# Masks under which a band of queries skips the first or the last keys.
windows = st.fixed_dictionaries(
    {"window": st.integers(1, 3), "offset": st.integers(0, 2)}, optional={"causal": st.just(True)}
)


@st.composite
def biases(draw, size: Size) -> dict:
    """Any fields of a Bias that fit these sizes."""
    b, h, q, k = size.full
    parts = draw(st.sets(st.sampled_from(["slope", "table", "dense"]), min_size=1))
    seed, heads, fields = draw(seeds), draw(st.sampled_from([1, h])), {}
    if parts & {"slope", "table"}:
        place = torch.Generator().manual_seed(seed)
        for name, n in (("q_at", q), ("k_at", k)):
            shape = draw(st.sampled_from([(n,), (1, n), (b, n)]))
            fields[name] = torch.randint(0, 12, shape, generator=place)
    if "slope" in parts:
        fields["slope"] = normal(seed, heads)
    if "table" in parts:
        fields["table"] = normal(seed + 1, heads, 2 * draw(st.integers(0, 5)) + 1)
    if "dense" in parts:
        fields["dense"] = normal(seed + 2, *draw(broadcast((b, h, q, k))))
    return fields

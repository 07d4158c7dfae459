"""How many heads the attention of a foreign model has, and which axis of its tensors holds them.

The attributes of the running module tell how many (`head_counts`); torch's functions take the heads on any axis before
the tokens (`heads_axis`), and handwritten attention often has rows and heads on one axis (`MergedHeads`).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Sequence

from torch import Tensor, nn

from ...errors import InputError

# What modules of transformers, timm, torch and others call their number of query heads, the output features of which
# module divided by which size give it, and the configs of models of transformers that have it.
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
QUERIES = ("q_proj", "query", "q", "wq", "to_q")
HEAD_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")
# the usual axis of the heads: (b, h, tokens, features), (b, windows, h, tokens, features)
HEADS_AXIS = -3
MERGED = 8  # tensors that are remembered after their rows and heads were put into one axis


def head_counts(module: nn.Module) -> frozenset[int]:
    """How many query heads a module may have, by its attributes, its config and its projection; empty: not known.

    These usually agree. Where they do not, as where a config holds the number of another part, one of them is right.
    """
    config = getattr(module, "config", None)
    counts = [getattr(owner, name, None) for owner in (module, config) for name in HEADS]
    sizes = [getattr(module, name, None) for name in HEAD_SIZES]
    # The number of query heads is the width of the query projection over a head's size.
    for name in QUERIES:
        width = getattr(getattr(module, name, None), "out_features", None)
        for size in sizes:
            if isinstance(width, int) and isinstance(size, int) and size:
                counts.append(width // size)
    # bool is an int, too: `type(n) is int` leaves it out.
    return frozenset(n for n in counts if type(n) is int and n > 0)


def heads_axis(q: Tensor, known: Collection[int], path: str) -> int:
    """Which axis of queries with more than four axes has the heads: NesT has them before its windows, others after.

    Args:
        q: The queries.
        known: How many heads the running module may have.
        path: The module, for the error if several axes fit.
    """
    # Axes are counted from the end, so that leading axes do not shift them.
    fitting = [axis - q.ndim for axis in range(1, q.ndim - 2) if q.shape[axis] in known]
    if not fitting:
        return HEADS_AXIS
    if len(fitting) > 1:
        raise InputError(
            f"{path!r} calls attention with queries of shape {tuple(q.shape)}: which axis has its heads is not known, "
            "so that this attention can be neither watched nor edited"
        )
    return fitting[0]


class MergedHeads:
    """Tensors whose first axis holds rows and heads, remembered from the views that merged the two."""

    def __init__(self) -> None:
        # with the numbers of rows and of heads
        self._merged: deque[tuple[weakref.ref[Tensor], int, int]] = deque(maxlen=MERGED)

    def reshaped(self, x: Tensor, new: Tensor) -> None:
        """Remember a view (b * h, n, e) of a tensor (b, h, n, e)."""
        if new.ndim == 3 and new.shape[1:] == x.shape[2:]:
            self._merged.append((weakref.ref(new), x.shape[0], x.shape[1]))

    def count(self, weights: Tensor, v: Tensor, keys: int, rows: Sequence[int], alone: bool) -> int:
        """How many heads the first of three axes has for each row; 1 if that is not known: they then count as rows.

        It is known where (b, h, ...) was put into one axis, and of values (n, b * h, e) that were transposed. Where
        (h, b, ...) was put into one axis, what the module was called with has h instead of b.

        Args:
            weights: The weights.
            v: The values.
            keys: The number of keys.
            rows: The rows of each input of the module that may have the tokens of the keys.
            alone: Each of the module's inputs has one row.
        """
        # Known from the view that merged them, if it was seen.
        for x in (weights, v):
            for merged, b, h in self._merged:
                if merged() is x:
                    swapped = x is v and h in rows and b not in rows
                    return 1 if swapped else h
        first = weights.shape[0]  # b * h
        # Rows of the source divide the first axis into heads.
        fitting = [b for b in rows if b and first % b == 0]
        if not fitting:
            return 1
        # values (n, b * h, e) in memory, read as (b * h, n, e)
        transposed = keys > 1 and v.stride(0) == v.shape[2] and v.stride(1) >= first * v.shape[2]
        return first // fitting[0] if transposed or alone else 1

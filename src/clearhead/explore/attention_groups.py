"""Group: the attention weights of one kind, such as cross-attention, for every layer and head of an inspected model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..look import AttentionMap
from ..look.call import LazyCall

# Statistics of each head: entropy in nats, mean distance in tokens, largest weight, weight on the first key.
STATISTICS = ("entropy", "distance", "maximum", "sink")
CELLS = 512  # largest number of cells per side of a map that is sent at once
OVERVIEWS = 64  # overviews kept per group: one for each head of a typical model, and some more
KINDS = {  # the attentions of a model: the address of their weights, and a description
    "cross": ("decoder.blocks.*.cross.weights", "target tokens attend to source tokens"),
    "reading": ("encoder.blocks.*.attn.weights", "source tokens attend to source tokens"),
    "writing": ("decoder.blocks.*.attn.weights", "target tokens attend to earlier target tokens"),
    "self": ("blocks.*.attn.weights", "each token attends to itself and earlier tokens"),
}


@dataclass(eq=False)
class Group:
    """The attention maps of all layers, with the tokens of their queries (rows) and keys (columns)."""

    name: str  # a key of KINDS
    rows: list[str]  # query tokens
    columns: list[str]  # key tokens
    maps: list[AttentionMap]  # one per layer
    words: tuple[list[list[int]], list[list[int]]] | None = None  # token indices of each word, of rows and of columns
    _statistics: dict[int, dict[str, list[float]]] = field(default_factory=dict)  # by layer
    _overviews: dict[tuple[int | None, int | None, int], np.ndarray] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """Heads per layer."""
        return self.maps[0].shape[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name, "about": KINDS[self.name][1], "layers": len(self.maps), "heads": self.heads,
            "rows": self.rows, "columns": self.columns, "words": self.words is not None,
        }  # fmt: skip

    def tile(
        self, layer: int | None, head: int | None, rows: tuple[int, int], keys: tuple[int, int], cells: int = CELLS
    ) -> dict[str, Any]:
        """The weights of a range of rows on a range of keys, pooled to at most `cells` cells per side.

        The mean over layers or heads is taken where `layer` or `head` is None. Pooling takes the mean over a cell's
        rows and the sum over its keys, so that each pooled row keeps its total weight.
        """
        maps = self.maps if layer is None else [self.maps[in_range("layer", layer, len(self.maps))]]
        if head is not None:
            in_range("head", head, self.heads)
        for name, (low, high), most in (("rows", rows, len(self.rows)), ("keys", keys, len(self.columns))):
            if not 0 <= low < high <= most:
                raise InputError(f"{name} {low} to {high}: expected a range within 0 to {most}")
        whole = (rows, keys) == ((0, len(self.rows)), (0, len(self.columns)))
        cached = self._overviews.get((layer, head, cells)) if whole else None
        weights = np.mean([_pooled(m, head, rows, keys, cells) for m in maps], axis=0) if cached is None else cached
        if whole and cached is None:
            kept = [*self._overviews.items(), ((layer, head, cells), weights)]
            self._overviews = dict(kept[-OVERVIEWS:])  # a new dict: other threads may be reading the old one
        return {
            "layer": layer, "head": head, "rows": list(rows), "keys": list(keys), "weights": rounded(weights),
            "most": float(weights.max(initial=0.0)),
        }  # fmt: skip

    def by_word(self, layer: int | None, head: int | None) -> dict[str, Any]:
        """The weights between words: the sum over the tokens of a key word, the mean over those of a query word."""
        if self.words is None:
            raise InputError("this text has no words, only tokens: expected by=pieces")
        if max(len(self.rows), len(self.columns)) > CELLS:
            raise InputError(f"the text has more than {CELLS} tokens, too many to join into words: expected by=pieces")
        queries, keys = self.words
        tile = self.tile(layer, head, (0, len(self.rows)), (0, len(self.columns)))
        weights = np.array(tile["weights"], np.float64).reshape(len(self.rows), len(self.columns))
        joined = np.array([[weights[q][:, k].sum(1).mean() for k in keys] for q in queries])
        joined = joined.reshape(len(queries), len(keys))
        return tile | {
            "weights": rounded(joined), "most": float(joined.max(initial=0.0)), "rows": [0, len(queries)],
            "keys": [0, len(keys)], "row_names": _names(self.rows, queries), "key_names": _names(self.columns, keys),
        }  # fmt: skip

    def statistics(self, layer: int) -> dict[str, Any]:
        """The mean of each statistic over all queries, for every head of a layer."""
        in_range("layer", layer, len(self.maps))
        if layer not in self._statistics:
            values = self.maps[layer].statistics(*STATISTICS)
            self._statistics[layer] = {name: x.float().mean((0, 2)).tolist() for name, x in values.items()}
        return {"layer": layer, "layers": len(self.maps), **self._statistics[layer]}

    def size(self) -> int:
        """Bytes held by the maps and the cached overviews."""
        own = sum(_bytes(source) for m in self.maps for source in m.sources)
        return own + sum(x.nbytes for x in self._overviews.values())


def in_range(name: str, number: int, count: int) -> int:
    """Return `number`, or raise if it is not one of 0 to count - 1."""
    if not 0 <= number < count:
        raise InputError(f"{name} {number}: there are {count}, counted from 0")
    return number


def rounded(x: np.ndarray) -> Any:
    """An array as nested lists of numbers with 5 decimals, which keeps JSON small."""
    return x.astype(np.float64).round(5).tolist()


def _names(tokens: list[str], words: list[list[int]]) -> list[str]:
    return ["".join(tokens[i] for i in word).strip() for word in words]


def _pooled(m: AttentionMap, head: int | None, rows: tuple[int, int], keys: tuple[int, int], cells: int) -> np.ndarray:
    """A part of a map, pooled in bands of rows that fit a CPU cache; keys that a band's mask hides are skipped."""
    m = m if head is None else m.only(head)
    if (rows, keys) == ((0, m.shape[2]), (0, m.shape[3])):
        return m.pool(cells)[0].mean(0).float().cpu().numpy()
    n, k = rows[1] - rows[0], keys[1] - keys[0]
    ny, nx = min(cells, n), min(cells, k)
    sums = torch.zeros(ny, nx)
    row_cell, key_cell = torch.arange(n) * ny // n, torch.arange(k) * nx // k
    step = max(1, min(256, (1 << 21) // (k * m.shape[1])))
    for low in range(rows[0], rows[1], step):
        band = low, min(low + step, rows[1])
        first, last = m.reach(band)
        near = max(first, keys[0]), min(last, keys[1])
        if near[0] < near[1]:
            x = m.tile(band, near)[0].mean(0).float().cpu()
            x = torch.zeros(len(x), nx).index_add_(1, key_cell[near[0] - keys[0] : near[1] - keys[0]], x)
            sums.index_add_(0, row_cell[band[0] - rows[0] : band[1] - rows[0]], x)
    return (sums / torch.bincount(row_cell, minlength=ny)[:, None]).numpy()


def _bytes(source: Any) -> int:
    return source.q.nbytes + source.k.nbytes if isinstance(source, LazyCall) else source.weights.nbytes

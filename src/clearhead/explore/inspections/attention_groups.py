"""Group: the attention weights of one kind, such as cross-attention, for every layer and head of an inspected model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...data.text.labelled import MASKS
from ...errors import InputError
from ...look import AttentionMap
from ...look.maps.call import LazyCall
from ...tokens import Tokenizer
from .. import answers

# Axis: the tokens along one side of an attention map, with readable names, special tokens, words and image patches.


# how tokenizers name a byte that is part of no character
_BYTE = re.compile(r"<(?:0x)?([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, kw_only=True, eq=False)
class Axis:
    """The tokens of a map's queries or keys: their names, and how they are arranged."""

    names: list[str]  # one per token
    # indices of special tokens: start, end, padding, mask
    special: list[int] = field(default_factory=list)
    # height and width, if the other tokens are patches of an image, row by row
    grid: tuple[int, int] | None = None
    words: list[list[int]] | None = None  # token indices of each word
    word_names: list[str] | None = None  # one per word

    def __len__(self) -> int:
        return len(self.names)

    def to_dict(self) -> answers.AxisShape:
        """Plain values, for JSON."""
        return {"names": self.names, "special": self.special, "grid": self.grid}


def text_axis(
    tokens: Tokenizer,
    ids: Sequence[int],
    words: list[list[int]] | None = None,
    mask: int | None = None,
) -> Axis:
    """The axis of a text's tokens.

    Args:
        tokens: The tokenizer.
        ids: The tokens of the text.
        words: The token indices of each word, if maps can be joined by word.
        mask: The id of the mask token, which may follow the tokenizer's own ids.
    """
    ids = [int(i) for i in ids]
    names, special = token_names(tokens, ids), special_token_ids(tokens) | {mask}
    if mask is not None and mask >= len(tokens):
        # The added mask token has no text in the tokenizer: name it as masks are written.
        names = [MASKS[0] if i == mask else name for i, name in zip(ids, names, strict=True)]
    return Axis(
        names=names,
        special=[at for at, i in enumerate(ids) if i in special],
        words=words,
        word_names=None
        if words is None
        else [_word_name(tokens, names, ids, word) for word in words],
    )


def special_token_ids(tokens: Tokenizer) -> frozenset[int]:
    """The ids of a tokenizer's special tokens; <unk> is not one of them, because it stands for a part of the text."""
    named = {tokens.pad, tokens.start, tokens.end, *tokens.special_names.values()}
    return frozenset(int(i) for i in named if i is not None and i != tokens.unknown)


def token_names(tokens: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token in visible characters.

    The bytes of an incomplete character are written as ⟨F0⟩, invisible characters by their code points as ⟨U+200B⟩, and
    an id without a text as ⟨id 7⟩. White space stays as it is.
    """
    numbers, size = [int(i) for i in ids], len(tokens)
    if max(numbers, default=0) >= size:  # a model may have more embeddings than there are tokens
        return [token_names(tokens, [i])[0] if i < size else f"⟨id {i}⟩" for i in numbers]
    pieces = tokens.pieces(np.array(numbers, np.int64))
    return [_visible(tokens, i, piece) for i, piece in zip(numbers, pieces, strict=True)]


def spaces_before(tokens: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The indices of tokens that follow a space which no token holds, as between the ids of whole words."""
    numbers, positions, end = [int(i) for i in ids], [], 0
    if max(numbers, default=0) >= len(tokens):
        # Ids beyond the vocabulary cannot be decoded, so the text cannot be compared with its pieces.
        return []
    row = np.array(numbers, np.int64)
    text, special = tokens.decode(row), special_token_ids(tokens)
    for at, piece in enumerate(tokens.pieces(row)):
        if numbers[at] in special:
            # Decoding leaves special tokens out, so they take no part of the text.
            continue
        if text.startswith(f" {piece}", end):
            # The space belongs to no piece: the decoder has put it between two words.
            positions.append(at)
            end += 1
        elif not text.startswith(piece, end):
            return []  # tokens that are parts of characters, or that hold their spaces
        end += len(piece)
    return positions


def _visible(tokens: Tokenizer, i: int, piece: str) -> str:
    if piece.isascii() and piece.isprintable() and "<" not in piece and piece:
        return piece
    if not piece:
        return f"⟨id {i}⟩"
    # A piece may also be the text "<dd>": only bytes that are no character decode to U+FFFD.
    if _BYTE.search(piece) and "\ufffd" in tokens.decode([i]):
        return _BYTE.sub(lambda match: f"⟨{match[1].upper()}⟩", piece)
    if all(_is_invisible(c) for c in piece):
        return "".join(f"⟨U+{ord(c):04X}⟩" for c in piece)
    text = piece.lstrip(" ")
    # A combining mark without its letter: the dotted circle carries it, so that it does not combine
    # with the character before.
    if text and unicodedata.category(text[0]).startswith("M"):
        return piece[: len(piece) - len(text)] + "◌" + text
    return piece


def _is_invisible(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cn", "Co", "Cs") and c not in "\n\t"


def _word_name(tokens: Tokenizer, names: list[str], ids: list[int], word: list[int]) -> str:
    joined = "".join(names[at] for at in word).strip()
    if "⟨" not in joined:
        return joined
    # The bytes of several tokens may make up whole characters.
    return tokens.decode([ids[at] for at in word]).strip() or joined


# Statistics of each head: entropy in nats, mean distance in tokens or patches, largest weight, weight on the first key.
STATISTICS = ("entropy", "distance", "maximum", "sink")
CELLS = 512  # largest number of cells per side of a map that is sent at once
OVERVIEWS = 64  # overviews kept per group: one for each head of a typical model, and some more
THUMBNAIL_SCORES = 1 << 25  # attention scores that are computed for all thumbnails of a group
ABOUT = {  # a description of each kind of attention
    "cross": "target tokens attend to source tokens",
    "encoder": "source tokens attend to source tokens",
    "decoder": "target tokens attend to earlier target tokens",
    "self": "each token attends to itself and earlier tokens",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class MapTile:
    """A part of an attention map, or the whole of it between words."""

    layer: int | None  # None: the mean over all
    head: int | None
    rows: tuple[int, int]  # range of queries
    keys: tuple[int, int]  # range of keys
    weights: np.ndarray  # (rows, keys), or pooled to fewer cells; NaN where a value is missing
    row_names: list[str] | None = None  # of words
    key_names: list[str] | None = None

    @property
    def most(self) -> float:
        """The largest weight."""
        return float(np.nan_to_num(self.weights, nan=0.0).max(initial=0.0))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {
            "layer": self.layer, "head": self.head, "rows": self.rows, "keys": self.keys,
            "weights": rounded(self.weights), "most": self.most,
        }  # fmt: skip
        names = {"row_names": self.row_names, "key_names": self.key_names}
        if self.row_names is None:
            return values
        return values | names


@dataclass(eq=False)
class Group:
    """The attention maps of all layers, with the tokens of their queries (rows) and keys (columns)."""

    name: str  # a key of ABOUT, or another name with `about`
    rows: Axis  # query tokens
    columns: Axis  # key tokens
    layers: dict[str, AttentionMap]  # one per layer, by the address of its weights
    about: str | None = None  # a description, if not that of ABOUT
    # measured effects of the heads, by layer
    effects: dict[int, list[float]] = field(default_factory=dict)
    _statistics: dict[int, dict[str, list[float]]] = field(default_factory=dict)  # by layer
    _overviews: dict[tuple[int | None, int | None, int], np.ndarray] = field(default_factory=dict)
    _thumbnails: dict[int, np.ndarray] = field(default_factory=dict)  # by cells per side

    @property
    def maps(self) -> list[AttentionMap]:
        """The attention map of each layer."""
        return list(self.layers.values())

    @property
    def heads(self) -> int:
        """Heads per layer."""
        return self.maps[0].shape[1]

    def heads_address(self, layer: int) -> str:
        """The address of the outputs of a layer's heads."""
        return list(self.layers)[layer].removesuffix("weights") + "heads"

    @property
    def by_words(self) -> bool:
        """Whether maps can be joined by word."""
        return self.rows.words is not None and self.columns.words is not None

    def to_dict(self) -> answers.GroupShape:
        """Plain values, for JSON."""
        return {
            "name": self.name,
            "about": self.about or ABOUT[self.name],
            "layers": len(self.maps),
            "heads": self.heads,
            "rows": self.rows.to_dict(),
            "columns": self.columns.to_dict(),
            "words": self.by_words,
        }

    def tile(
        self,
        layer: int | None,
        head: int | None,
        rows: tuple[int, int],
        keys: tuple[int, int],
        cells: int = CELLS,
    ) -> MapTile:
        """The weights of a range of rows on a range of keys, pooled to at most `cells` cells per side.

        The mean over layers or heads is taken where `layer` or `head` is None. Pooling takes the mean over a cell's
        rows and the sum over its keys. Cells may differ by one key: each is scaled to the mean number of keys, so that
        a row keeps its total weight and no cell looks heavier than its neighbours because it holds more keys.
        """
        maps = self._layers(layer, head)
        for name, (low, high), most in (
            ("rows", rows, len(self.rows)),
            ("keys", keys, len(self.columns)),
        ):
            # An empty range is refused too: its mean would be NaN.
            if not 0 <= low < high <= most:
                raise InputError(f"{name} {low} to {high}: expected a range within 0 to {most}")
        whole = (rows, keys) == ((0, len(self.rows)), (0, len(self.columns)))
        cached = self._overviews.get((layer, head, cells)) if whole else None
        if cached is None:
            # Each map is already a mean over heads, so this is the mean over layers and heads.
            weights = np.mean([_pooled(m, head, rows, keys, cells) for m in maps], axis=0)
        else:
            weights = cached
        if whole and cached is None:
            kept = [*self._overviews.items(), ((layer, head, cells), weights)]
            # A new dict, because other threads may be reading the old one.
            self._overviews = dict(kept[-OVERVIEWS:])
        return MapTile(layer=layer, head=head, rows=rows, keys=keys, weights=weights)

    def by_word(self, layer: int | None, head: int | None) -> MapTile:
        """The weights between words: summed over the tokens of a key word, averaged over the tokens of a query word."""
        queries, keys = self.rows.words, self.columns.words
        if queries is None or keys is None:
            raise InputError("this text has no words, only tokens: expected by=pieces")
        if max(len(self.rows), len(self.columns)) > CELLS:
            raise InputError(
                f"the text has more than {CELLS} tokens, too many to join into words: expected by=pieces"
            )
        weights = self.tile(layer, head, (0, len(self.rows)), (0, len(self.columns))).weights
        # Keys are summed first, (q, k) -> (q, key words), and queries averaged next, so that each
        # row still sums to 1.
        sums = np.stack([weights[:, key].sum(1) for key in keys], axis=1)
        joined = np.stack([sums[query].mean(0) for query in queries])
        return MapTile(
            layer=layer,
            head=head,
            rows=(0, len(queries)),
            keys=(0, len(keys)),
            weights=joined,
            row_names=self.rows.word_names,
            key_names=self.columns.word_names,
        )

    def row(self, layer: int | None, head: int | None, at: int) -> np.ndarray:
        """The weights of query `at` on all keys, never pooled; the mean over layers or heads that are not given."""
        maps = self._layers(layer, head)
        in_range("query", at, len(self.rows))
        # row() is (1, heads, k); its mean over heads is the row itself where only one head is left.
        rows = [(m if head is None else m.only(head)).row(at)[0].mean(0) for m in maps]
        return torch.stack([x.float().cpu() for x in rows]).mean(0).numpy()

    def query(self, at: int) -> np.ndarray:
        """The weights of query `at` on all keys in every layer and head, (layers, heads, keys)."""
        in_range("query", at, len(self.rows))
        return torch.stack([m.row(at)[0].float().cpu() for m in self.maps]).numpy()

    def words(self) -> np.ndarray:
        """The weights of every query word on all keys in every layer and head, (layers, heads, words, keys).

        Those of a word are the mean over its tokens.
        """
        if self.rows.words is None:
            raise InputError("these queries have no words, only tokens")
        weights = torch.stack([m.dense()[0].float().cpu() for m in self.maps]).numpy()
        # (layers, heads, q, k): each word takes the mean over its part of the q axis.
        means = [weights[:, :, word].mean(2) for word in self.rows.words]
        if means:
            return np.stack(means, axis=2)
        return weights[:, :, :0]

    def thumbnails(self, cells: int) -> np.ndarray:
        """The mean weight of each cell of every map, at most `cells` cells per side, (layers, heads, rows, keys).

        Of a long text each cell has only some of its queries, so that the work stays below THUMBNAIL_SCORES.
        """
        if cells not in self._thumbnails:
            # Attention scores that one query costs over all layers and heads.
            scores = len(self.maps) * self.heads * len(self.columns)
            # The number of queries of each cell that this budget allows.
            most = max(1, THUMBNAIL_SCORES // max(1, scores * min(cells, len(self.rows))))
            pictures = np.stack([_thumbnails_of(m, cells, most) for m in self.maps])
            # Only the last two sizes are kept, to bound the memory.
            self._thumbnails = dict([*self._thumbnails.items(), (cells, pictures)][-2:])
        return self._thumbnails[cells]

    def _layers(self, layer: int | None, head: int | None) -> list[AttentionMap]:
        """The maps of one layer or of all; raises if there is no such layer or head."""
        if head is not None:
            in_range("head", head, self.heads)
        if layer is None:
            return self.maps
        return [self.maps[in_range("layer", layer, len(self.maps))]]

    def statistics(self, layer: int) -> dict[str, Any]:
        """The mean of each statistic over all queries, for every head of a layer.

        Distances between patches of an image are those in its grid, without the special tokens.
        """
        in_range("layer", layer, len(self.maps))
        if layer not in self._statistics:
            grid, special = self.rows.grid, len(self.rows.special)
            # Without a grid, distances are counted in tokens; with one, special tokens have no
            # place in it and are skipped.
            places: dict[str, Any] = {} if grid is None else {"grid": grid, "special": special}
            values = self.maps[layer].statistics(*STATISTICS, **places)
            # (1, h, q) -> h: the mean over queries, where NaN stands for a query without a statistic.
            self._statistics[layer] = {
                name: x.float().nanmean((0, 2)).tolist() for name, x in values.items()
            }
        return {"layer": layer, "layers": len(self.maps), **self._statistics[layer]}

    def size(self) -> int:
        """Bytes held by the maps, the cached overviews and the thumbnails."""
        own = sum(_bytes(source) for m in self.maps for source in m.sources)
        return own + sum(x.nbytes for x in (*self._overviews.values(), *self._thumbnails.values()))


def in_range(name: str, number: int, count: int) -> int:
    """Return `number`, or raise if it is not one of 0 to count - 1."""
    if not 0 <= number < count:
        raise InputError(f"{name} {number}: there are {count}, counted from 0")
    return number


def rounded(x: np.ndarray) -> Any:
    """An array as nested lists of numbers with 5 decimals, which keeps JSON small."""
    return x.astype(np.float64).round(5).tolist()


def _pooled(
    m: AttentionMap, head: int | None, rows: tuple[int, int], keys: tuple[int, int], cells: int
) -> np.ndarray:
    """A part of a map, pooled in bands of rows that fit a CPU cache; keys that a band's mask hides are skipped."""
    if head is not None:
        m = m.only(head)
    if (rows, keys) == ((0, m.shape[2]), (0, m.shape[3])):
        # pool() sums over the keys of a cell; scale each sum to the mean number of keys per cell.
        whole: np.ndarray = m.pool(cells)[0].mean(0).float().cpu().numpy()
        return whole * (m.shape[3] / whole.shape[1]) / keys_per_cell(m.shape[3], whole.shape[1])
    n, k = rows[1] - rows[0], keys[1] - keys[0]
    ny, nx = min(cells, n), min(cells, k)
    sums = torch.zeros(ny, nx)
    # Query i falls into cell i * ny // n: cells differ by at most one row, and none is empty.
    row_cell, key_cell = torch.arange(n) * ny // n, torch.arange(k) * nx // k
    # At most 2^21 scores at once, 8 MB in float32.
    step = max(1, min(256, (1 << 21) // (k * m.shape[1])))
    for low in range(rows[0], rows[1], step):
        band = low, min(low + step, rows[1])
        # The keys that a causal or windowed mask lets this band see: the others are 0 and need no work.
        first, last = m.reach(band)
        near = max(first, keys[0]), min(last, keys[1])
        if near[0] < near[1]:
            x = m.tile(band, near)[0].mean(0).float().cpu()
            # (rows, keys) -> (rows, cells): the keys of a cell are added up.
            x = torch.zeros(len(x), nx).index_add_(
                1, key_cell[near[0] - keys[0] : near[1] - keys[0]], x
            )
            sums.index_add_(0, row_cell[band[0] - rows[0] : band[1] - rows[0]], x)
    # The sums over the rows of a cell become means.
    means: np.ndarray = (sums / torch.bincount(row_cell, minlength=ny)[:, None]).numpy()
    return means * (k / nx) / keys_per_cell(k, nx)


def keys_per_cell(keys: int, cells: int) -> np.ndarray:
    """The number of keys that each cell of a pooled map holds; they differ by one where `cells` does not divide it."""
    return np.bincount(np.arange(keys) * cells // keys, minlength=cells)


def _thumbnails_of(m: AttentionMap, cells: int, most: int) -> np.ndarray:
    """The mean weights (h, rows, keys) of the cells of all heads, of at most `most` evenly spaced queries per cell."""
    _, h, q, k = m.shape
    ny, nx = min(cells, q), min(cells, k)
    if most >= -(-q // ny):
        # Every query of a cell is affordable: the exact mean.
        return m.pool(cells)[0].float().cpu().numpy() / keys_per_cell(k, nx)
    pooled = torch.zeros(h, ny, nx)
    key_cell = torch.arange(k) * nx // k
    for cell in range(ny):
        # The queries that fall into this cell: the smallest and the next cell's smallest i with i *
        # ny // q == cell.
        low, high = -(-cell * q // ny), -(-(cell + 1) * q // ny)
        chosen = range(low, high, -(-(high - low) // most))
        for at in chosen:
            x = m.row(at)[0].float().cpu()
            pooled[:, cell].index_add_(1, key_cell, x / len(chosen))
    return pooled.numpy() / keys_per_cell(k, nx)


def _bytes(source: Any) -> int:
    # A lazy map keeps queries and keys, and computes weights when they are asked for.
    if isinstance(source, LazyCall):
        return source.q.nbytes + source.k.nbytes
    return source.weights.nbytes

"""What a terminal shows of the result of a view: a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from rich.table import Table

from ...look import (
    ClsMaps,
    Fields,
    LogitLens,
    PatchColours,
    Patching,
    PerturbationCurves,
    PictureGrid,
    PositionSimilarity,
    Saliency,
)
from .appearance import WordNeighbours
from .attention import TextMaps
from .image_attention import CaptionMaps, ImageAttention
from .salience import RegionShare
from .sinks import Sinks

MOST = 24  # rows of a table of tokens or channels


@singledispatch
def table(result: Any) -> Any:
    """A result as a table; one that has a table of its own is returned as it is.

    Args:
        result: The result of a view.
    """
    return result


def _table(title: str, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> Table:
    found = Table(*columns, title=title, title_justify="left")
    for line in lines:
        found.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in line))
    return found


@table.register
def _(result: TextMaps) -> Table:
    maps, kind = result.maps, result.maps.main if result.kind is None else result.kind
    queries, keys = maps.labels(kind, result.layer)
    own = maps.maps[kind][maps.layer_number(kind, result.layer)]
    if result.head is not None:
        own = own.only(result.head)
    weights = own.dense()[0].float().cpu().numpy()
    names = [f"head {i}" for i in (range(len(weights)) if result.head is None else [result.head])]
    lines = [
        (repr(query), *(f"{keys[int(head[i].argmax())]!r} {head[i].max():.2f}" for head in weights))
        for i, query in enumerate(queries[:MOST])
    ]
    name = maps.layer_name(kind, result.layer)
    return _table(
        f"{name}, {kind}: the key with the largest weight of each query", ("query", *names), lines
    )


@table.register
def _(result: Sinks) -> Table:
    found, lines = result.shown, []
    for head, (keys, removed) in enumerate(zip(found.sinks[0], found.removed[0], strict=True)):
        names = [repr(result.tokens[int(key)]) for key in keys.nonzero()]
        lines.append((f"head {head}", ", ".join(names[:8]) or "none", float(removed.mean())))
    return _table(
        f"{result.layer}: tokens that are sinks", ("head", "sinks", "weight on them"), lines
    )


@table.register
def _(result: ImageAttention) -> Table:
    lines = [
        (
            head,
            f"{float(x.max()):.3f}",
            "row {}, column {}".format(*np.unravel_index(int(x.argmax()), x.shape)),
            f"{float(special):.3f}",
        )
        for head, x, special in zip(result.heads, result.maps, result.special, strict=True)
    ]
    return _table(
        f"{result.queries}, {result.layer}",
        ("head", "largest weight", "patch", "on tokens before the grid"),
        lines,
    )


@table.register
def _(result: CaptionMaps) -> Table:
    places = [np.unravel_index(int(x.argmax()), x.shape) for x in result.maps]
    lines = [
        (word, f"row {y}, column {x}") for word, (y, x) in zip(result.words, places, strict=True)
    ]
    return _table(result.text, ("word", "largest weight"), lines)


@table.register
def _(result: ClsMaps) -> Table:
    lines = [
        (
            i,
            f"{float(x.max()):.3f}",
            "row {}, column {}".format(*np.unravel_index(int(x.argmax()), tuple(x.shape))),
            f"{float(result.removed[i]):.3f}",
        )
        for i, x in enumerate(result.maps)
    ]
    return _table(
        f"attention of the class token, {result.place}",
        ("head", "largest weight", "patch", "on itself and registers"),
        lines,
    )


@table.register
def _(result: Saliency) -> Table:
    result.check_complete()
    if result.tokens is not None:
        tokens = [
            (repr(token), float(x)) for token, x in zip(result.tokens, result.values, strict=True)
        ]
        return _table(result.title, ("token", "value"), tokens[:MOST])
    x = np.abs(result.values.numpy())
    rows, columns = (np.array_split(np.arange(n), 4) for n in x.shape)
    total = float(x.sum()) or 1.0
    lines = [
        (f"rows {r[0]} to {r[-1]}", *(f"{x[np.ix_(r, c)].sum() / total:.1%}" for c in columns))
        for r in rows
    ]
    return _table(
        result.title, ("share of", *(f"columns {c[0]} to {c[-1]}" for c in columns)), lines
    )


@table.register
def _(result: RegionShare) -> Table:
    found = table(result.saliency)
    found.caption = f"{result.share:.1%} in the region {','.join(map(str, result.region))}"
    return found


@table.register
def _(result: PerturbationCurves) -> Table:
    lines = [
        (name, area, result.insertion_area[name]) for name, area in result.deletion_area.items()
    ]
    return _table(
        f"{result.target.strip()}: area under the curves",
        ("method", "deletion (small)", "insertion (large)"),
        lines,
    )


@table.register
def _(result: Fields) -> Table:
    sizes = [
        "whole image" if size is None else f"{size[0]} x {size[1]}" for size in result.theoretical
    ]
    every = zip(result.names, result.sides().tolist(), result.radii().tolist(), sizes, strict=True)
    return _table(
        "receptive field in pixels",
        ("layer", "side of 90 % of the gradient", "radius", "theoretical"),
        every,
    )


@table.register
def _(result: PictureGrid) -> Table:
    every = zip(result.channels, result.pictures, strict=True)
    lines = [(channel, float(x.min()), float(x.mean()), float(x.max())) for channel, x in every]
    return _table(result.title, ("channel", "least", "mean", "most"), lines[:MOST])


@table.register
def _(result: PatchColours) -> Table:
    lines = [
        (name, f"{share:.1%}")
        for name, share in zip(("red", "green", "blue"), result.explained, strict=True)
    ]
    return _table(
        f"{result.title}: principal components of patches",
        ("colour", "share of the variance"),
        lines,
    )


@table.register
def _(result: PositionSimilarity) -> Table:
    n = len(result.matrix)
    steps = [d for d in (1, 2, 4, 8, 16, 32, 64, 128) if d < n]
    lines = [(d, float(np.diagonal(result.matrix, d).mean())) for d in steps]
    return _table(f"{n} positions: mean cosine of two at a distance", ("distance", "cosine"), lines)


@table.register
def _(result: LogitLens) -> Table:
    answers = [[f"{cell[0][0]!r} {cell[0][1]:.2f}" for cell in row[-MOST:]] for row in result.top]
    lines = [(i, *row) for i, row in enumerate(answers)]
    return _table(
        "the likeliest answer after each layer", ("layer", *map(repr, result.tokens[-MOST:])), lines
    )


@table.register
def _(result: Patching) -> Table:
    best = np.argsort(-np.abs(result.matrix.numpy()), axis=1)[:, :3]
    lines = [
        (i, ", ".join(f"{result.columns[j]!r} {float(result.matrix[i, j]):+.2f}" for j in row))
        for i, row in enumerate(best.tolist())
    ]
    return _table(
        f"{result.answer.strip()}: {result.what} of the first input",
        ("layer", "largest effects"),
        lines,
    )


@table.register
def _(result: WordNeighbours) -> Table:
    return _table(result.expression, ("word", "cosine"), result.words)

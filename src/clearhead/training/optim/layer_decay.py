"""Factors of the learning rate: of submodules by name, and layer decay.

With layer decay lower layers of a pretrained model learn more slowly (Clark et al. 2020; Bao et al. 2022).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from ...errors import InputError, nearest

LAYER = re.compile(r"(?:^|\.)(?:blocks\.(\d+)|stages\.(\d+)\.(\d+))\.")


def layer_scales(
    names: Iterable[str], decay: float, head: Collection[str] = ("head",)
) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter: decay^(number of layers above it).

    Layers are found by the names blocks.N and stages.N.N, those of the model itself, not of a part such as a stem. What
    comes before the first of them, such as embeddings, is a layer below; what comes after them, and the head, has the
    factor 1.

    Args:
        names: The names of all parameters, from input to output.
        decay: The factor from one layer to the next lower one.
        head: The parts of the model that compute its output, wherever their parameters are listed.

    Examples:
        >>> layer_scales(["embed.table", "blocks.0.norm.bias", "blocks.1.norm.bias", "head.weight"], 0.5)
        {'embed.table': 0.125, 'blocks.0.norm.bias': 0.25, 'blocks.1.norm.bias': 0.5, 'head.weight': 1.0}
    """
    names = list(names)
    matches = {name: LAYER.search(name) for name in names}
    outermost = min(
        (name[: match.start()].count(".") for name, match in matches.items() if match), default=0
    )
    found = {
        name: _layer(match) if match and name[: match.start()].count(".") == outermost else None
        for name, match in matches.items()
    }
    order = {
        layer: i
        for i, layer in enumerate(
            sorted({layer for layer in found.values() if layer is not None}), 1
        )
    }
    scales, begun = {}, False
    for name in names:
        layer = found[name]
        begun = begun or layer is not None
        above = begun or not order or name.split(".")[0] in head
        if layer is not None:
            depth = order[layer]
        elif above:
            depth = len(order) + 1
        else:
            depth = 0
        scales[name] = decay ** (len(order) + 1 - depth)
    return scales


def part_scales(names: Iterable[str], rates: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter: that of the innermost submodule with one, or 1.

    Args:
        names: The names of all parameters.
        rates: Factors by the names of submodules.

    Examples:
        >>> part_scales(["encoder.stem.bias", "head.weight"], {"encoder": 0.1})
        {'encoder.stem.bias': 0.1, 'head.weight': 1.0}
    """
    names = list(names)
    for part in rates:
        if not any(name.startswith(f"{part}.") for name in names):
            known = dict.fromkeys(name.split(".")[0] for name in names)
            raise InputError(
                f"rates.{part}: no trained parameter belongs to it: there are {', '.join(known)}{nearest(part, known)}"
            )
    inner = sorted(rates, key=len, reverse=True)
    return {
        name: next((rates[part] for part in inner if name.startswith(f"{part}.")), 1.0)
        for name in names
    }


def _layer(match: re.Match[str]) -> tuple[int, int]:
    block, stage, number = match.groups()
    if block is not None:
        return (int(block), 0)
    return (int(stage), int(number))

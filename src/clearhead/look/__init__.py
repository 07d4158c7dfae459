"""Looking inside: watch and edit activations, attention maps as lazy objects, exact statistics."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError, Notice
from .capture import edit, new_text, watch
from .edits import patch, scale, silence
from .maps import AttentionMap
from .statistics import MEANING, statistics
from .tape import Tape

__all__ = [
    "MEANING",
    "AttentionMap",
    "Notice",
    "Tape",
    "distance",
    "edit",
    "entropy",
    "new_text",
    "patch",
    "received",
    "scale",
    "silence",
    "statistics",
    "watch",
]


def entropy(tape: Tape) -> Float[Tensor, "l b h q"]:
    """The entropy of every watched attention, layer by layer; from recorded entropies or from maps."""
    return _every(tape, "entropy")


def received(tape: Tape) -> Float[Tensor, "l b h k"]:
    """What each key receives in every watched attention."""
    return _every(tape, "received")


def distance(
    tape: Tape, *, grid: tuple[int, int] | None = None, special: int = 0, rms: bool = False
) -> Float[Tensor, "l b h q"]:
    """How far every watched attention looks, along the sequence or (from maps) over a grid of patches."""
    return _every(tape, "rms" if rms else "distance", grid=grid, special=special)


def _every(tape: Tape, name: str, *, grid: tuple[int, int] | None = None, special: int = 0) -> Tensor:
    found = []
    for path in dict.fromkeys("".join(n.rpartition(".")[:2]) for n in tape.names):  # "blocks.0.attn."
        if grid is None and path + name in tape:
            found.append(tape[path + name])
        elif path + "weights" in tape:
            found.append(tape[path + "weights"].statistics(name, grid=grid, special=special)[name])
    if not found:
        raise InputError(f"nothing on this tape tells {name}: watch '...attn.{name}' or '...attn.weights'")
    sizes = sorted({tuple(x.shape) for x in found})
    if len(sizes) > 1:
        raise InputError(f"layers of sizes {sizes} do not stack: take {name} from the tape one by one")
    return torch.stack(found)

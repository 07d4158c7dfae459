"""Statistics of all watched attentions of a tape, stacked layer by layer."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import InputError
from ..capture.tape import Tape


def entropy(tape: Tape) -> Float[Tensor, "l b h q"]:
    """Return the entropy of each query in every watched attention, layer by layer, in nats.

    Args:
        tape: A tape of entropies ("...attn.entropy") or maps ("...attn.weights").

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.weights") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> entropy(tape).shape
        torch.Size([3, 1, 2, 4])
    """
    return _every(tape, "entropy")


def received(tape: Tape) -> Float[Tensor, "l b h k"]:
    """Return the weight that each key receives from all queries in every watched attention, layer by layer.

    Args:
        tape: A tape of these sums ("...attn.received") or of maps ("...attn.weights").

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.received") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> received(tape).sum(-1).round()[:, 0, 0]
        tensor([4., 4., 4.])
    """
    return _every(tape, "received")


def distance(
    tape: Tape, *, grid: tuple[int, int] | None = None, special: int = 0, rms: bool = False
) -> Float[Tensor, "l b h q"]:
    """Return the mean distance from each query to its keys in every watched attention, layer by layer.

    Args:
        tape: A tape of distances ("...attn.distance", "...attn.rms") or of maps; a grid needs maps.
        grid: Height and width of a grid of patches; None: tokens on a line.
        special: Tokens before the grid that have no place in it.
        rms: The root mean square instead of the mean.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.distance") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> distance(tape)[:, 0, 0, 0]
        tensor([0., 0., 0.])
    """
    return _every(tape, "rms" if rms else "distance", grid=grid, special=special)


def _every(
    tape: Tape, name: str, *, grid: tuple[int, int] | None = None, special: int = 0
) -> Tensor:
    """A statistic of all watched attentions, stacked."""
    layers = []
    # "blocks.0.attn."
    for path in dict.fromkeys("".join(n.rpartition(".")[:2]) for n in tape.names):
        if grid is None and path + name in tape:
            layers.append(tape[path + name])
        elif path + "weights" in tape:
            layers.append(tape[path + "weights"].statistics(name, grid=grid, special=special)[name])
    if not layers:
        raise InputError(f"this tape has no {name}: watch '...attn.{name}' or '...attn.weights'")
    sizes = sorted({tuple(x.shape) for x in layers})
    if len(sizes) > 1:
        raise InputError(
            f"layers of sizes {sizes} do not stack: take {name} from the tape one by one"
        )
    return torch.stack(layers)

"""cls_maps: what the class token of a vision transformer attends to, per head, over the image.

Caron et al. 2021 (DINO), Figure 1. One row of one layer's attention is computed, beside the fused kernel; nothing of
the size of the whole map exists, so that large images cost little more than the plain pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...errors import InputError, InputIndexError
from ...inputs.read import Given
from ...weights import Bundle
from ..capture.addresses import Tree, matching
from ..saliency_methods.float_input import FloatInput, float_input
from ..saliency_methods.saliency import seen
from ..structure import record_layout
from ..watch import watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FITTING = (
    "saliency, its methods rollout and gradient-rollout, and the map of any patch by watch(...).row"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClsMaps(draw.Result):
    """The attention of the class token in one layer, per head, over the grid of patches.

    Examples:
        >>> found = cls_maps(clearhead.load("vit-imagenette"), "golf-ball", layer=0)
        >>> found
        ClsMaps(layer='blocks.0.attn', heads=6, grid=16 x 16)
        >>> torch.allclose(found.maps.sum((1, 2)) + found.removed, torch.ones(6))
        True
    """

    in_json = "layer special removed maps"

    maps: Float[Tensor, "h y x"]  # the weights on the patches
    layer: str  # the address of the attention
    special: int  # tokens before the grid that are left out: the class token itself, and registers
    removed: Float[Tensor, "h"]  # the weight on them
    number: int | None = None  # the number of the layer, from 0; None: it is not known
    layers: int | None = None  # the number of layers with attention
    picture: np.ndarray | None = None  # (height, width, 3) uint8, the image as the model saw it

    def __repr__(self) -> str:
        heads, rows, columns = self.maps.shape
        return f"ClsMaps(layer={self.layer!r}, heads={heads}, grid={rows} x {columns})"

    def figure(self, *, keep: float = 0.6) -> Figure:
        """Draw all heads over the dimmed image, one colour per head.

        Args:
            keep: The share of each head's weight that is coloured, its largest weights first.
        """
        return draw.head_colours(
            self.maps.numpy(),
            self.picture,
            keep=keep,
            title=f"Attention of the class token, {self.place}",
            note=f"colour: the strongest head there, bright: large weight\n"
            f"dark: outside of the largest {keep:.0%} of every head's weight",
        )

    def table(self) -> draw.Table:
        """The patch with the largest weight, for each head."""
        rows = []
        for head, (weights, removed) in enumerate(zip(self.maps, self.removed, strict=True)):
            patch = draw.largest_cell(weights)
            rows.append((head, f"{float(weights.max()):.3f}", patch, f"{float(removed):.3f}"))
        return draw.Table(
            columns=("head", "largest weight", "patch", "on itself and registers"),
            rows=rows,
            title=f"attention of the class token, {self.place}",
        )

    @property
    def place(self) -> str:
        """The layer in words."""
        if self.number is None or self.layers is None:
            return self.layer
        return f"layer {self.number} of 0 to {self.layers - 1}"


@torch.no_grad()
def cls_maps(model: Bundle | nn.Module, given: Given, *, layer: int | str = -1) -> ClsMaps:
    """Return what the class token of a vision transformer attends to in one layer, per head, over the image.

    The image may have any size that the model reads. Registers and the class token itself are left out, and the weight
    on them is in the result.

    Args:
        model: A Bundle, or any torch module in evaluation mode.
        given: An image, or the tensor of a bare module.
        layer: The number of the layer, from the end if negative; or the address of its attention ("blocks.3.attn").

    Raises:
        InputError: If the model has no class token; the message says which views fit.

    Examples:
        >>> vit = clearhead.build("vit", classes=3, size=16, patch=4, width=12, depth=2, heads=3, registers=2).eval()
        >>> cls_maps(vit, torch.randn(3, 16, 24)).maps.shape
        torch.Size([3, 4, 6])
    """
    about = float_input(model, given)
    if about.kind != "image":
        raise InputError(
            f"this {about.name} reads text: cls_maps is for images, `attention` for texts"
        )
    # Our models without a class token are known before they run.
    if getattr(getattr(about.model, "embed", None), "cls", ()) is None:
        raise _without_cls(about)
    names = _attentions(about, layer)
    # The first token is the class token, so that one row of each map is enough.
    with (
        record_layout(about.model) as layout,
        watch(about.model, *names, keep=lambda weights: weights.row(0)) as tape,
    ):
        about.logits(about.x)
    # (heads, keys); windows, which are rows of their own, are left out
    rows = {name: tape[name][0] for name in tape if len(tape[name]) == 1}
    # A pyramid has a grid of its own in each stage.
    places = {name: layout.places(row.shape[-1]) for name, row in rows.items()}
    if not any(places.values()):
        raise _without_patches(about)
    # A class token is a token before the grid; a model of registers alone is not told apart here.
    with_cls = {name: axes for name, axes in places.items() if axes is not None and axes.special}
    if not with_cls:
        raise _without_cls(about)
    ours = matching("blocks.*.attn.weights", Tree(about.model).known)
    name = next(iter(with_cls))
    if isinstance(layer, int) and not ours:  # the layers of a foreign model are known by now
        if not -len(with_cls) <= layer < len(with_cls):
            raise InputIndexError(f"layer {layer}: there are {len(with_cls)}, counted from 0")
        name = list(with_cls)[layer]
    every = ours or list(with_cls)
    axes, row = with_cls[name], rows[name].detach().cpu()
    assert axes.grid is not None
    # (h, k) -> (h, y, x), without the tokens before the grid
    return ClsMaps(
        maps=row[:, axes.special :].unflatten(1, axes.grid),
        layer=name.removesuffix(".weights"),
        special=axes.special,
        removed=row[:, : axes.special].sum(1),
        picture=seen(about),
        number=every.index(name) if name in every and len(every) > 1 else None,
        layers=len(every),
    )


def _attentions(about: FloatInput, layer: int | str) -> list[str]:
    """The address of the attention to watch; all of a foreign model, whose layers are known only after it ran."""
    tree = Tree(about.model)
    ours = matching("blocks.*.attn.weights", tree.known)
    # Our own attention: the one layer that is asked for.
    if isinstance(layer, int) and ours:
        if not -len(ours) <= layer < len(ours):
            raise InputIndexError(f"layer {layer}: there are {len(ours)}, counted from 0")
        return [ours[layer]]
    known = matching("**.weights", tree.known | tree.possible)
    if not known:
        raise _without_patches(about)
    if isinstance(layer, int):
        return ["**.weights"]
    # An address is taken as it is, of any model.
    return [f"{layer}.weights"]


def _without_patches(about: FloatInput) -> InputError:
    return InputError(
        f"this {about.name} has no attention over patches; views that fit: saliency by gradient, input-gradient, "
        "smoothgrad, integrated, grad-cam and occlusion"
    )


def _without_cls(about: FloatInput) -> InputError:
    pool = getattr(getattr(about.model, "config", None), "pool", None)
    why = {
        "mean": ": its answer is the mean of all patches",
        "attention": ": a learned query pools (pool.weights)",
    }
    return InputError(
        f"this {about.name} has no class token{why.get(str(pool), '')}; views that fit: {FITTING}"
    )

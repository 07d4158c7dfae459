"""Grad-CAM: the activations of a layer, weighted by their gradients and laid over the image (Selvaraju et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import InputError
from ...progress import Done
from ..capture.addresses import INPUT
from ..structure import Axes, OutputAxes, record_layout
from ..targets import Target
from .attributions import Attribution, enlarged, layer_gradient
from .float_input import FloatInput


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerOptions:
    """The options of Grad-CAM."""

    # address or number of a stage or block; None: the last one that can be explained
    layer: str | int | None = None


def grad_cam(
    explained: FloatInput, target: Target, options: LayerOptions, _: Done | None
) -> Attribution:
    """The positive part of a layer's channels, each weighted by the mean of its gradient over all places.

    The layer is a feature map, or the tokens of a vision transformer, whose patches are put on their grid. After the
    last block of a model that answers from its class token, patches have no gradient any more: there the block before
    is the default.
    """
    # one pass shows which layers have a grid
    with torch.no_grad(), record_layout(explained.model) as layout:
        explained.logits(explained.x)
    grids, blocks = layout.gridded(), layout.token_blocks()
    layers = _default_layers(grids, blocks)
    # Nothing to weight: no output of this model lies on a grid.
    if not layers:
        raise InputError(
            f"this {explained.name} has neither feature maps nor patches: grad-cam does not fit, the other methods do"
        )
    # The last layer with a gradient: in a ViT that answers from its class token, the patches of the
    # last block have none.
    if options.layer is None:
        last = _last_with_gradient(explained, target, layers, layout)
        if last is None:
            raise _without_gradient(explained, target)
        return _enlarged(explained, layout, *last)
    address = _named(layout, options.layer, layers, blocks)
    weighted = _weighted(explained, target, address, layout)
    # A named layer without a gradient is an error, and the message names one that has it.
    if weighted is None:
        last = _last_with_gradient(explained, target, layers, layout)
        if last is None:
            raise _without_gradient(explained, target)
        raise InputError(
            f"the patches of {address!r} have no gradient, since the answer is read from another token: expected an "
            f"earlier layer, such as {last[0]}"
        )
    return _enlarged(explained, layout, address, weighted)


def _without_gradient(explained: FloatInput, target: Target) -> InputError:
    return InputError(
        f"no layer of this {explained.name} has a gradient for {target.name!r}: grad-cam does not fit"
    )


def _default_layers(grids: dict[str, Axes], blocks: list[str]) -> list[str]:
    """The layers that are tried if none is named, in order: blocks of tokens and the feature maps that follow them.

    A model without such blocks has feature maps alone.
    """
    maps = [path for path, axes in grids.items() if not axes.tokens]
    if not blocks:
        return maps
    order = list(grids)
    # Feature maps before the blocks belong to the stem; only those after them are candidates.
    after = [path for path in maps if order.index(path) > order.index(blocks[-1])]
    # The input of the first block is tried last: it is the embedding of the patches.
    return [f"{blocks[0]}.{INPUT}", *blocks, *after]


def _last_with_gradient(
    explained: FloatInput, target: Target, layers: list[str], layout: OutputAxes
) -> tuple[str, Tensor] | None:
    """The last layer whose places have a gradient, and its weighted channels."""
    for address in reversed(layers):
        weighted = _weighted(explained, target, address, layout)
        if weighted is not None:
            return address, weighted
    return None


def _named(layout: OutputAxes, layer: str | int, layers: list[str], blocks: list[str]) -> str:
    """The address of a layer; any module of the right shape can be named, not only a block."""
    # A number counts blocks where there are any.
    if blocks and isinstance(layer, int):
        return layout.choose(layer, blocks)
    if isinstance(layer, str) and (layer in layers or layer in layout.gridded()):
        return layer
    return layout.choose(layer, blocks or layers)


def _weighted(
    explained: FloatInput, target: Target, address: str, layout: OutputAxes
) -> Tensor | None:
    """Channels weighted by the mean of their gradients (y, x), with negative values; None if there is no gradient."""
    record, slope = layer_gradient(explained, target, address)
    axes = layout.axes(address, record)
    if axes.grid is None:
        return None
    # One row: (c, y, x) of both.
    (values,), (slope,) = axes.on_grid(record), axes.on_grid(slope)
    # Zero everywhere: the answer does not depend on these places.
    if not slope.any():
        return None
    # Selvaraju et al. 2017, Eq. 1 and 2 without the ReLU: alpha_c is the mean gradient.
    return (values * slope.mean((1, 2), keepdim=True)).sum(0)


def _enlarged(
    explained: FloatInput, layout: OutputAxes, address: str, weighted: Tensor
) -> Attribution:
    layout.check_order(address)
    height, width = explained.x.shape[-2:]
    # The ReLU of Eq. 2: only what speaks for the target is shown.
    return Attribution(
        values=enlarged(weighted.clamp(min=0), (height, width)), whole=weighted, layer=address
    )

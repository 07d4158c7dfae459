"""Rollout as a saliency method: the row of the token that the answer is read from, on the image or the text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from ...errors import InputError, Notice
from ...progress import Done
from ..capture.addresses import Tree, matching
from ..capture.tape import Tape
from ..maps.attention_map import AttentionMap
from ..maps.rollout import (
    Fusion,
    left_out,
    named_maps,
    relevance,
    rollout,
    say_left_out,
    square_maps,
    weights_of,
)
from ..structure import OutputAxes, record_layout
from ..targets import Target
from ..watch import watch
from .attributions import Attribution, enlarged, layer_gradient
from .float_input import FloatInput, differentiable


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutOptions:
    """The options of attention rollout."""

    residual: float = 0.5  # share of the identity, which stands for the residual stream
    fusion: Fusion = "mean"  # how the maps of all heads become one: mean, max or min


@dataclass(frozen=True, kw_only=True, slots=True)
class RelevanceOptions:
    """The gradient-weighted rollout has no options."""


def attention_rollout(
    explained: FloatInput, target: Target, options: RolloutOptions, __: Done | None
) -> Attribution:
    """The product of the attention maps of all layers (Abnar and Zuidema 2020); it is the same for all targets."""
    # The layout of the same pass says which tokens are patches.
    with (
        torch.no_grad(),
        record_layout(explained.model) as layout,
        _watched(explained, grad=False) as tape,
    ):
        explained.logits(explained.x)
    layers = _maps(explained, tape)
    # One row: (t, t).
    matrix = rollout(list(layers.values()), residual=options.residual, fusion=options.fusion)[0]
    return _placed(explained, target, layout, matrix, layers)


def gradient_weighted_rollout(
    explained: FloatInput, target: Target, _: RelevanceOptions, __: Done | None
) -> Attribution:
    """Attention maps weighted by their gradients, accumulated over the layers (Chefer et al. 2021)."""
    with differentiable(explained.model), record_layout(explained.model) as layout:
        x = explained.x.detach().clone().requires_grad_()
        with _watched(explained, grad=True) as tape:
            score = target.score(explained.logits(x)).sum()
        layers = _maps(explained, tape)
        weights = [weights_of(layer) for layer in layers.values()]
        # Chefer et al. 2021 need the gradient of the score with respect to every map.
        slopes = torch.autograd.grad(score, weights, allow_unused=True)
    weighted = []
    for weight, slope in zip(weights, slopes, strict=True):
        # a layer that the target does not depend on has no gradient
        weighted.append((weight, torch.zeros_like(weight) if slope is None else slope))
    return _placed(explained, target, layout, relevance(weighted)[0], layers)


@contextmanager
def _watched(explained: FloatInput, *, grad: bool) -> Iterator[Tape]:
    """Watch all attention maps of a model; raises if it cannot have any."""
    tree = Tree(explained.model)
    # No module of the model can attend: fail before it runs.
    if not matching("**.weights", tree.known | tree.possible):
        raise _unfit(explained)
    with warnings.catch_warnings():
        # the error that follows says it
        warnings.filterwarnings("ignore", "no attention call", Notice)
        with watch(explained.model, "**.weights", grad=grad) as tape:
            yield tape


def _maps(explained: FloatInput, tape: Tape) -> dict[str, AttentionMap]:
    """The maps that rollout multiplies, by their addresses.

    A layer after them may be left out, as one in which a class token reads the patches: a Notice says so. One before
    the last of them may not, as it changes what the tokens of the others hold.
    """
    named = named_maps(tape)
    # A product of maps needs as many keys as queries.
    if not any(layer.shape[2] == layer.shape[3] for layer in named.values()):
        raise _unfit(explained)
    layers = square_maps(named)
    rows = next(iter(layers.values())).shape[0]
    # Windowed attention moves windows into the batch axis, so that its maps have more rows.
    if rows != len(explained.x):
        raise InputError(
            f"the attention of this {explained.name} is within {rows} windows: rollout does not fit, since none of its "
            "maps is over all tokens. The gradient methods, grad-cam and occlusion fit"
        )
    names = list(named)
    # Layers after the last square one do not matter here, as they read its result.
    until = names.index(list(layers)[-1])
    # Layers that are not square between others would break the chain of products.
    between = left_out({name: named[name] for name in names[:until]})
    if between and explained.kind == "image":
        raise InputError(
            f"rollout can multiply {len(layers)} of the {len(named)} attention maps of this {explained.name}: the "
            f"others have not as many keys as queries ({between}). The gradient methods, grad-cam and occlusion fit"
        )
    say_left_out(named)
    return layers


def _unfit(explained: FloatInput) -> InputError:
    fitting = "gradient, input-gradient, smoothgrad, integrated, occlusion"
    if explained.kind == "image":
        fitting += " and grad-cam"
    return InputError(
        f"no self-attention was seen in this {explained.name}: rollout does not fit; {fitting} do"
    )


def _placed(
    explained: FloatInput, target: Target, layout: OutputAxes, matrix: Tensor, maps: Iterable[str]
) -> Attribution:
    """The mean row of the tokens that the answer is read from; of an image, its patches on their grid."""
    # The tokens of the last map must be known places: of the text, or of the image's grid.
    tokens = len(matrix)
    # Images have the grid of the recorded pass, texts have none.
    axes = layout.places(tokens) if explained.kind == "image" else None
    if explained.kind == "text" and len(explained.tokens or []) != tokens:
        raise InputError(
            f"this {explained.name} reads several texts: rollout follows one stack of self-attention"
        )
    if explained.kind == "image" and axes is None:
        raise InputError(
            f"the {tokens} tokens of this {explained.name} are not a grid of patches: rollout does not fit, the "
            "gradient methods and occlusion do"
        )
    layers = [name.removesuffix(".weights") for name in maps]
    # The tokens that the answer is read from, averaged: (t,).
    row = matrix[_read(explained, target, layout, tokens)].mean(0)
    if axes is None or axes.grid is None:
        return Attribution(values=row, whole=matrix, layers=layers)
    height, width = explained.x.shape[-2:]
    # Class token and registers have no place in the image.
    cells = row[axes.special :].unflatten(0, axes.grid)
    return Attribution(values=enlarged(cells, (height, width)), whole=matrix, layers=layers)


def _read(
    explained: FloatInput, target: Target, layout: OutputAxes, tokens: int
) -> Bool[Tensor, "t"]:
    """The tokens of the last layer that the answer is read from: those with a gradient, for example a class token."""
    # The blocks whose outputs have as many tokens as the maps; their last one is read by the head.
    blocks = layout.blocks(tokens)
    if not blocks:
        raise InputError(
            f"the layers of this {explained.name} were not found: rollout does not fit"
        )
    # At the output of the last layer, tokens without a gradient cannot influence the answer.
    _, slope = layer_gradient(explained, target, blocks[-1])
    read = slope[0].abs().sum(-1) > 0
    if not read.any():
        raise InputError(
            f"the answer of this {explained.name} does not depend on its last layer: rollout does not fit"
        )
    return read

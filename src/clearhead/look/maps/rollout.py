"""Rollout: what the tokens of the last layer have read of the input, through the attention of all layers.

rollout            Abnar and Zuidema 2020: the product of attention maps, with the residual stream as identity
gradient_rollout   Chefer et al. 2021 (ICCV), Eq. 5 and 6: maps weighted by their gradients, accumulated
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ...checks import one_of
from ...errors import InputError, Notice
from ..capture.tape import Tape
from .attention_map import DENSE_LIMIT, AttentionMap, MapSizeError
from .call import DenseCall

Fusion = Literal["mean", "max", "min"]
FUSIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}
LARGE = "rollout multiplies whole maps; of an input as long, rows fit: cls_maps, AttentionMap.row, pool and top"
SHOWN = 8  # names of maps in a message


def rollout(
    maps: Tape | Sequence[AttentionMap], *, residual: float = 0.5, fusion: Fusion = "mean"
) -> Float[Tensor, "b t t"]:
    """Return how much each token of the last layer has read of each input token, by attention rollout.

    The map of a layer, one matrix for all heads, is mixed with the identity, which stands for the residual stream; the
    product of all layers follows (Abnar and Zuidema 2020). Rows sum to 1. Maps that have not as many keys as
    queries, as those of cross-attention, cannot be multiplied: they are left out, and a Notice names them.

    Args:
        maps: A tape of self-attention maps ("...attn.weights"), or the maps of some layers in order.
        residual: The share of the identity.
        fusion: How the maps of all heads become one: their mean, maximum or minimum; rows are scaled to sum to 1.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with torch.no_grad(), watch(model, "blocks.*.attn.weights") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> rollout(tape).shape, rollout(tape)[0, 0]
        (torch.Size([1, 4, 4]), tensor([1., 0., 0., 0.]))
    """
    if not 0 <= residual <= 1:
        raise InputError(f"residual={residual}: expected a share from 0 to 1")
    one_of("fusion", fusion, FUSIONS)
    named = named_maps(maps)
    layers = square_maps(named)
    say_left_out(named)
    result = None
    for layer in layers.values():
        # A~ = residual I + (1 - residual) A, and the rollout is A~_L ... A~_2 A~_1
        fused = _fused(layer, fusion)
        identity = torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
        mixed = residual * identity + (1 - residual) * fused
        # A fully masked row of A is 0: scaled to the sum 1, it becomes a row of the identity.
        # Without a residual it stays 0.
        total = mixed.sum(-1, keepdim=True)
        mixed = mixed / total.clamp(min=torch.finfo(mixed.dtype).tiny)
        result = mixed if result is None else mixed @ result
    assert result is not None
    return result


def gradient_rollout(tape: Tape) -> Float[Tensor, "b t t"]:
    """Return the relevance of each input token for each token of the last layer, by gradient-weighted attention.

    R starts as the identity, and each layer adds A R, with A the mean over heads of the positive part of weights times
    their gradients (Chefer et al. 2021, ICCV). The gradients are those of a backward pass from the output that is to
    be explained; attention is computed explicitly for them, as a Notice says.

    Args:
        tape: A tape of self-attention maps ("...attn.weights") with grad=True, after a backward pass.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"), watch(model, "blocks.*.attn.weights", grad=True) as tape:
        ...     model(torch.tensor([[1, 2, 3, 4]]))[0, -1, 2].backward()
        >>> gradient_rollout(tape).shape
        torch.Size([1, 4, 4])
    """
    named = named_maps(tape)
    layers = square_maps(named)
    say_left_out(named)
    return relevance([(weights_of(layer), tape.gradient(name)) for name, layer in layers.items()])


def relevance(
    layers: Sequence[tuple[Float[Tensor, "b h t t"], Float[Tensor, "b h t t"]]],
) -> Float[Tensor, "b t t"]:
    """The relevance of input tokens from weights and their gradients, layer by layer: Eq. 5 and 6."""
    first = layers[0][0]
    result = torch.eye(first.shape[-1], dtype=first.dtype, device=first.device)
    result = result.expand(first.shape[0], -1, -1)
    for weights, slope in layers:
        positive = (weights.detach() * slope).clamp(min=0).mean(1)  # Eq. 5, the mean over heads
        result = result + positive @ result  # Eq. 6
    return result


def weights_of(layer: AttentionMap) -> Tensor:
    """The tensor of weights that an explicit attention has computed, which gradients can be taken of."""
    # One pass was recorded: the map has one call, whose weights are part of the graph.
    source = layer.sources[0]
    assert isinstance(source, DenseCall)
    return source.weights


def named_maps(maps: Tape | Sequence[AttentionMap]) -> dict[str, AttentionMap]:
    """All attention maps of a tape by their addresses, or those of a list by their numbers."""
    if isinstance(maps, Tape):
        return {name: maps[name] for name in maps if name.rpartition(".")[2] == "weights"}
    return {f"map {i}": layer for i, layer in enumerate(maps)}


def square_maps(maps: Mapping[str, AttentionMap]) -> dict[str, AttentionMap]:
    """The self-attention maps among those recorded, which must all be over the same tokens."""
    square = {name: layer for name, layer in maps.items() if layer.shape[2] == layer.shape[3]}
    if not square:
        raise InputError(
            "rollout has no self-attention maps: watch '...attn.weights' of a model with self-attention"
        )
    layers = list(square.values())
    # (b, t, t) of every layer must have the same size to be multiplied.
    sizes = sorted({(layer.shape[0], layer.shape[2]) for layer in layers})
    if len(sizes) > 1:
        shapes = ", ".join(f"{rows} x {tokens}" for rows, tokens in sizes)
        raise InputError(
            f"maps of (rows x tokens) {shapes} are not layers of one stack: expected the maps of one encoder or decoder"
        )
    b, _, t, _ = layers[0].shape
    # One map (b, t, t) of all heads must fit into memory.
    if b * t * t > DENSE_LIMIT:
        raise MapSizeError(
            f"maps of {b} x {t} x {t} are over the limit of {DENSE_LIMIT:,} weights: {LARGE}"
        )
    return square


def left_out(maps: Mapping[str, AttentionMap]) -> str:
    """The maps that rollout cannot multiply, with their queries and keys, in words; empty if there are none."""
    names = []
    for name, layer in maps.items():
        queries, keys = layer.shape[2:]
        if queries != keys:
            names.append(f"{name.removesuffix('.weights')} ({queries} queries, {keys} keys)")
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def say_left_out(maps: Mapping[str, AttentionMap]) -> None:
    """Say with a Notice which maps rollout leaves out."""
    names = left_out(maps)
    if names:
        warnings.warn(
            f"rollout leaves out the maps that are not square: {names}", Notice, stacklevel=3
        )


def _fused(layer: AttentionMap, fusion: str) -> Float[Tensor, "b t t"]:
    """Fuse the heads of a layer into one map, with one head in memory at a time."""
    heads, result = layer.shape[1], None
    for head in range(heads):
        weights = layer.only(head).dense()[:, 0]  # (b, t, t)
        # A sum over heads is scaled below, so that "mean" needs no division.
        result = weights if result is None else FUSIONS[fusion](result, weights)
    assert result is not None
    # A fully masked row has the sum 0 and stays 0.
    total = result.sum(-1, keepdim=True)
    return result / total.clamp(min=torch.finfo(result.dtype).tiny)

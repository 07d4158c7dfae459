"""A step of one token through many blocks: the operations of Block, to the bit, and nothing between them.

On a CPU a step of a small model takes as long as its weights are read, and then as long again for what Python does
between some twenty operations a block: calling modules, checking shapes, choosing kernels. All of that is the same at
every step, so it is done once, when a text is begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as globally

from ..layers.attention import Attention
from ..layers.block import Block
from ..layers.cache import Cache
from ..layers.fused import attend_step
from ..layers.linear import Step, quick_many
from ..layers.mlp import ACTIVATIONS, MLP
from ..layers.norm import RMSNorm
from ..layers.positions import Learned, Positions, Rotary, Sinusoid


class Swift:
    """Blocks that take one token a row. `of` gives None where a choice of theirs is not known here.

    With `copies`, rows that go together are multiplied by copies of the weights (layers.linear.quick_many): as quick as
    a single row, rounded otherwise than the blocks do.
    """

    def __init__(self, blocks: list[Block], positions: Positions, window: int | None, copies: bool = False) -> None:
        self.rotary = positions if isinstance(positions, Rotary) else None
        self.window = window
        self.layers = [_Layer(block, quick_many if copies else _quick) for block in blocks]
        self.attentions = [each for block in blocks for each in (block.attn, block.cross) if each is not None]
        modules = [m for block in blocks for m in block.modules()]
        self.ears: list[Any] = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self.ears += [globally._global_forward_hooks, globally._global_forward_pre_hooks]

    @staticmethod
    def of(blocks: Iterable[nn.Module], positions: Positions, window: int | None, copies: bool = False) -> Swift | None:
        """For blocks that have been joined, outside training, on a CPU."""
        known = [cast(Block, block) for block in blocks]
        if type(positions) not in (Positions, Learned, Sinusoid, Rotary) or torch.is_grad_enabled():
            return None
        return Swift(known, positions, window, copies) if known and all(_fits(block) for block in known) else None

    @property
    def unheard(self) -> bool:
        """Nobody listens to a module or inside an attention."""
        return not any(self.ears) and all(attention.tap is None for attention in self.attentions)

    def __call__(
        self,
        x: Float[Tensor, "b 1 d"],
        at: Int[Tensor, "*b 1"],
        caches: list[Cache],
        allowed: Tensor | None,
        memory: Sequence[tuple[Tensor, ...]] = (),
        shown: Tensor | None = None,
    ) -> Float[Tensor, "b 1 d"] | None:
        """The blocks' answer; None if a number went wrong, which the blocks themselves tell as they should.

        `allowed` says where each row may look, (b, 1, 1, k), where rows stand at different places. `memory` is what
        cross-attention looks at, keys and values that are numbers, perhaps once for several neighbouring rows, and
        `shown` where it may.
        """
        angles = None if self.rotary is None else self.rotary.angles(at, x.dtype)
        seen = []
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            y = layer.qkv(layer.attn_norm(x) if layer.pre else x)
            y = y.view(x.shape[0], 1, layer.heads + 2 * layer.kv_heads, layer.head).transpose(1, 2)  # (b, h + 2g, 1, e)
            both, v = torch.split_with_sizes(y, [layer.heads + layer.kv_heads, layer.kv_heads], 1)
            if angles is not None and layer.aligned:
                both = cast(Rotary, self.rotary).turned(both, *angles)
            q, k = torch.split_with_sizes(both, [layer.heads, layer.kv_heads], 1)
            if angles is not None and not layer.aligned:
                q, k = (cast(Rotary, self.rotary).turned(each, *angles) for each in (q, k))
            seen += [both] if layer.aligned else [q, k]
            keys, values = cache.append(k, v)
            if self.window is not None and allowed is None and keys.shape[2] > self.window:
                keys, values = keys[:, :, -self.window :], values[:, :, -self.window :]
            out = attend_step(q, keys, values, allowed, layer.scale)
            x = x + layer.out(out.transpose(1, 2).flatten(2))
            x = x if layer.pre else layer.attn_norm(x)
            if layer.cross is not None:
                q = layer.cross.query(layer.cross.norm(x) if layer.pre else x)
                seen.append(q.view(x.shape[0], layer.heads, 1, layer.head))
                keys, values = memory[i]
                x = x + layer.cross(q, keys, values, shown)
                x = x if layer.pre else layer.cross.norm(x)
            x = x + layer.down(layer.inner(layer.mlp_norm(x) if layer.pre else x))
            x = x if layer.pre else layer.mlp_norm(x)
        return None if torch.cat(seen, dim=1).sum().isnan() else x


class _Layer:
    """A block's operations."""

    def __init__(self, block: Block, quick: Callable[[Any], Step]) -> None:
        attn, mlp = block.attn, block.mlp
        assert attn.together is not None
        assert attn.out is not None
        self.heads, self.kv_heads = attn.heads, attn.kv_heads
        self.head = attn.together.sizes[0] // attn.heads
        # How a product is rounded may depend on where its numbers lie: heads of such widths lie alike, turned together
        # or apart, as the blocks turn them.
        self.aligned = self.head % 16 == 0
        self.scale = 1.0 if attn.score == "dot" else self.head**-0.5
        self.attn_norm, self.mlp_norm = _norm(block.attn_norm), _norm(block.mlp_norm)
        self.qkv = quick(attn.together)
        self.out, self.down = quick(attn.out), quick(mlp.down)
        self.inner = _gated(mlp, quick) if mlp.together is not None else _plain(mlp, quick)
        self.pre, self.cross = block.order == "pre", None if block.cross is None else _Cross(block, quick)


class _Cross:
    """The operations of a block's look at what was read."""

    def __init__(self, block: Block, quick: Callable[[Any], Step]) -> None:
        cross = block.cross
        assert cross is not None
        assert cross.query is not None
        assert cross.out is not None
        assert block.cross_norm is not None
        self.heads, self.head = cross.heads, cross.query.out_features // cross.heads
        self.scale = 1.0 if cross.score == "dot" else self.head**-0.5
        self.query, self.out, self.norm = quick(cross.query), quick(cross.out), _norm(block.cross_norm)

    def __call__(self, q: Float[Tensor, "b 1 d"], k: Tensor, v: Tensor, shown: Tensor | None) -> Float[Tensor, "b 1 d"]:
        asked = q.view(k.shape[0], -1, self.heads, self.head).transpose(1, 2)  # neighbours that share what was read
        out = attend_step(asked, k, v, shown, self.scale)
        return self.out(out.transpose(1, 2).reshape(q.shape[0], 1, -1))


def _fits(block: Block) -> bool:
    attn, mlp, cross = block.attn, block.mlp, block.cross
    plain = not block.training and (cross is None or _asks(cross))
    known = type(attn) is Attention and attn.together is not None and attn.together.holds and attn.out is not None
    scored = attn.score in ("dot", "scaled") and not isinstance(attn.sharpness, Tensor)
    gated = type(mlp) is MLP and (mlp.gate is None or (mlp.together is not None and mlp.together.holds))
    return plain and known and scored and gated


def _asks(cross: Attention) -> bool:
    known = type(cross) is Attention and cross.query is not None and cross.out is not None
    return known and cross.score in ("dot", "scaled") and not isinstance(cross.sharpness, Tensor)


def _norm(norm: nn.Module) -> Step:
    if isinstance(norm, RMSNorm):
        return norm.forward
    if isinstance(norm, nn.LayerNorm):
        shape, scale, shift, add = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, scale, shift, add)
    return norm


def _quick(m: Any) -> Step:
    step: Step = m.quick()
    return step


def _gated(mlp: MLP, quick: Callable[[Any], Step]) -> Step:
    assert mlp.together is not None
    both, hidden = quick(mlp.together), mlp.up.out_features

    def inner(x: Tensor) -> Tensor:
        gate, up = torch.split_with_sizes(both(x), [hidden, hidden], -1)
        return F.silu(gate) * up

    return inner


def _plain(mlp: MLP, quick: Callable[[Any], Step]) -> Step:
    up, activation = quick(mlp.up), ACTIVATIONS[mlp.kind]
    return lambda x: activation(up(x))

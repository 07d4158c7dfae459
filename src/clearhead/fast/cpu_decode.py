"""Decoding on a CPU: one token per row through all blocks, in few calls.

A step of a small model takes as long as reading its weights, plus as long again for what Python does between some
twenty operations per block: calling modules, checking shapes, choosing kernels. All of that is the same at every step,
so it is done once, when decoding starts. The operations are those of layers.Block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..layers import MLP, Block, Cache, Linear, Mask, Positions, Rotary
from ..layers.fused import mask_tile
from ..layers.mlp import ACTIVATIONS, GATES
from ..layers.norm import RMSNorm
from ..models import DecoderStack, Model
from ..models.decoder_state import DecoderState
from ..models.hooks import Hooks
from .products import Step, accelerate, join, quick, quick_packed
from .supported import supports_block, supports_positions


class CpuDecoder:
    """The decode steps of a model on a CPU. Use `of`, which returns None for a model that is not supported.

    Args:
        stack: The parts of the model's decoder.
        blocks: The steps of its blocks.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> state = model.start({}, rows=1, limit=8)
        >>> with torch.no_grad():
        ...     decoder = CpuDecoder.of(model, state)
        ...     logits = decoder.step(torch.tensor([[3]]), state)
        >>> logits.shape
        torch.Size([1, 1, 11])
    """

    def __init__(self, stack: DecoderStack, blocks: BlockSteps) -> None:
        self.stack, self.blocks = stack, blocks
        skipped: list[nn.Module] = [*stack.blocks]
        if stack.owner is not None:
            # its own hooks would not run, since the steps call its parts one by one
            skipped.append(_Shell(stack.owner))
        self.hooks = Hooks(skipped)
        # A model with cross-attention usually decodes batches: packed weights pay for the output layer too.
        self._head: Step | None = None
        if stack.cross and type(stack.head) is Linear:
            self._head = quick_packed(stack.head)
        self._head_hooks = Hooks([stack.head])

    @staticmethod
    def of(model: nn.Module, state: Any) -> CpuDecoder | None:
        """The decoder of a model outside training, for a state that its `start` made; None if it is not supported."""
        stack = model.decoder_stack if isinstance(model, Model) else None
        if stack is None or model.training or torch.is_grad_enabled():
            # dropout and gradients need the modules themselves
            return None
        if not isinstance(state, DecoderState):
            return None
        if stack.embed.table.device.type != "cpu" or not _finite(state):
            return None
        accelerate(model)
        blocks = BlockSteps.of(stack.blocks, stack.positions, stack.window, packed=stack.cross)
        if blocks is None:
            return None
        return CpuDecoder(stack, blocks)

    @property
    def unhooked(self) -> bool:
        """True if no module that the steps skip has a hook or a tap."""
        return not self.hooks.any()

    def step(self, ids: Int[Tensor, "b 1"], state: DecoderState) -> Float[Tensor, "b 1 v"] | None:
        """The logits after one more token per row; None if a number is NaN: then the model's own step must be used."""
        kv, source, stack = state.kv, state.source, self.stack
        at = kv.positions(1)  # (b, 1)
        allowed = _allowed(kv.mask(stack.window), kv.caches[0].furthest + 1, ids.device)
        memory: Sequence[tuple[Tensor, ...]] = ()
        source_allowed = None
        if source is not None:
            # keys and values of each block's cross-attention, (sources, h, s, e)
            memory = source.memory
            source_allowed = _allowed(source.mask, memory[0][0].shape[2], ids.device, source.fold)
        embedded = stack.positions.add(stack.embed(ids), at)
        if stack.embed_norm is not None:
            # BART normalises the sum of embedding and position
            embedded = stack.embed_norm(embedded)
        x = self.blocks(embedded, at, kv.caches, allowed, memory, source_allowed)
        # the caches have not advanced: the model's own step overwrites what was appended
        if x is None:
            return None
        kv.advance(1)
        x = stack.norm(x)
        if self._head is None or self._head_hooks.any():
            return stack.head(x)
        return self._head(x)


class _Shell(nn.Module):
    """A module without its children, so that only its own hooks count."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward_hooks = module._forward_hooks
        self._forward_pre_hooks = module._forward_pre_hooks


class BlockSteps:
    """Transformer blocks that process one token per row.

    With `packed`, batches are multiplied by packed copies of the weights (products.quick_packed): as fast as a single
    row, but rounded differently than in the blocks.
    """

    def __init__(
        self, blocks: list[Block], positions: Positions, window: int | None, packed: bool = False
    ) -> None:
        self.rotary = positions if isinstance(positions, Rotary) else None
        self.window = window
        choose = quick_packed if packed else quick
        self.layers = [_BlockOps(block, choose) for block in blocks]

    @staticmethod
    def of(
        blocks: Iterable[nn.Module], positions: Positions, window: int | None, packed: bool = False
    ) -> BlockSteps | None:
        """The steps of blocks outside training, on a CPU; None if one of them has an option that is not supported."""
        stack = [cast(Block, block) for block in blocks]
        if not supports_positions(positions) or torch.is_grad_enabled():
            return None
        if stack and all(map(supports_block, stack)):
            return BlockSteps(stack, positions, window, packed)
        return None

    def __call__(
        self,
        x: Float[Tensor, "b 1 d"],
        at: Int[Tensor, "*b 1"],
        caches: list[Cache],
        allowed: Tensor | None,
        memory: Sequence[tuple[Tensor, ...]] = (),
        source_allowed: Tensor | None = None,
    ) -> Float[Tensor, "b 1 d"] | None:
        """The output of the last block; None if a score is NaN, which a fused kernel may treat as a masked row.

        `allowed` (b, 1, 1, k) marks the keys that each row may attend to, if rows are at different positions.
        `memory` holds the keys and values of cross-attention for each block, perhaps shared by several neighbouring
        rows, and `source_allowed` marks those that each row may attend to.
        """
        angles = None  # the same for all blocks
        if self.rotary is not None:
            angles = self.rotary.angles(at, x.dtype)
        queries: list[Tensor] = []
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            # the sublayers of layers.Block.forward, in its order
            x = self._self_attention(layer, x, angles, cache, allowed, queries)

            # cross-attention; its keys and values were computed when decoding started
            if layer.cross is not None:
                y = x
                if layer.pre:
                    y = layer.cross.norm(x)
                q = layer.cross.query(y)
                # kept for the check for NaN after the last block
                queries.append(q.view(x.shape[0], layer.heads, 1, layer.head))
                keys, values = memory[i]
                x = x + layer.cross(q, keys, values, source_allowed)
                if not layer.pre:
                    x = layer.cross.norm(x)

            # MLP
            y = x
            if layer.pre:
                y = layer.mlp_norm(x)
            x = x + layer.down(layer.inner(y))
            if not layer.pre:
                x = layer.mlp_norm(x)
        # one check for all blocks: a check per block would take as long as a block of a small model
        if torch.cat(queries, dim=1).sum().isnan():
            return None
        return x

    def _self_attention(
        self,
        layer: _BlockOps,
        x: Tensor,
        angles: tuple[Tensor, Tensor] | None,
        cache: Cache,
        allowed: Tensor | None,
        queries: list[Tensor],
    ) -> Tensor:
        """x with the self-attention of a block added; its queries and keys are appended to `queries`."""
        y = x
        if layer.pre:
            y = layer.attn_norm(x)
        y = layer.qkv(y)  # (b, 1, (h + 2g) e): one product for all three
        y = y.view(x.shape[0], 1, layer.heads + 2 * layer.kv_heads, layer.head).transpose(1, 2)
        # (b, h + 2g, 1, e) -> queries and keys, values
        both, v = torch.split_with_sizes(y, [layer.heads + layer.kv_heads, layer.kv_heads], 1)

        # rotate queries and keys in one call where that rounds as two calls do
        rotary = self.rotary
        if rotary is not None and angles is not None and layer.together:
            both = rotary.turned(both, *angles)
        q, k = torch.split_with_sizes(both, [layer.heads, layer.kv_heads], 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            # norms come before the rotation, as in layers.Attention
            q, k = layer.query_norm(q), layer.key_norm(k)
        if rotary is not None and angles is not None and not layer.together:
            # one by one, so that products are rounded as in the block
            q, k = rotary.turned(q, *angles), rotary.turned(k, *angles)
        if layer.together:
            queries.append(both)
        else:
            queries += [q, k]

        # attend to all keys, or to the last ones of a window
        keys, values = cache.append(k, v)
        if self.window is not None and allowed is None and keys.shape[2] > self.window:
            # all rows are at one position: the window is the last keys, and needs no mask
            keys, values = keys[:, :, -self.window :], values[:, :, -self.window :]
        out = _attend(q, keys, values, allowed, layer.scale)
        x = x + layer.out(out.transpose(1, 2).flatten(2))  # (b, h, 1, e) -> (b, 1, h e)
        if not layer.pre:
            x = layer.attn_norm(x)
        return x


class _BlockOps:
    """A block's operations, with their kernels chosen."""

    def __init__(self, block: Block, quick: Callable[[Any], Step]) -> None:
        attn, mlp = block.attn, block.mlp
        assert attn.out is not None
        self.heads, self.kv_heads, self.head = attn.heads, attn.kv_heads, attn.head_width
        self.pre = block.order == "pre"  # norms before each sublayer, or after it
        # How a product is rounded may depend on memory alignment. Heads of such widths are aligned in the same way,
        # whether queries and keys are rotated together, as here, or one by one, as in the block.
        self.together = self.head % 16 == 0 and attn.qk_norm is None
        self.query_norm = None if attn.query_norm is None else _norm(attn.query_norm)
        self.key_norm = None if attn.key_norm is None else _norm(attn.key_norm)
        self.scale = 1.0 if attn.score == "dot" else self.head**-0.5
        self.attn_norm, self.mlp_norm = _norm(block.attn_norm), _norm(block.mlp_norm)
        self.qkv = quick(join(attn.query, attn.key, attn.value))
        self.out, self.down = quick(attn.out), quick(mlp.down)
        self.inner = _plain(mlp, quick) if mlp.gate is None else _gated(mlp, quick)
        self.cross = None if block.cross is None else _Cross(block, quick)


class _Cross:
    """The operations of a block's cross-attention."""

    def __init__(self, block: Block, quick: Callable[[Any], Step]) -> None:
        cross = block.cross
        assert cross is not None
        assert block.cross_norm is not None
        self.heads, self.head = cross.heads, cross.head_width
        self.scale = 1.0 if cross.score == "dot" else self.head**-0.5
        self.query, self.out = quick(cross.query), quick(cross.out)
        self.norm = _norm(block.cross_norm)

    def __call__(
        self, q: Float[Tensor, "b 1 d"], k: Tensor, v: Tensor, allowed: Tensor | None
    ) -> Float[Tensor, "b 1 d"]:
        # neighbouring rows that share a source are the queries of one row: (b n, 1, d) -> (b, h, n, e)
        folded = q.view(k.shape[0], -1, self.heads, self.head).transpose(1, 2)
        out = _attend(folded, k, v, allowed, self.scale)
        return self.out(out.transpose(1, 2).reshape(q.shape[0], 1, -1))


def _attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """Attention as `attend` computes it, without its checks."""
    return F.scaled_dot_product_attention(
        q, k, v, allowed, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _allowed(mask: Mask, keys: int, device: torch.device, queries: int = 1) -> Tensor | None:
    """Which keys a few queries per row may attend to; None if a range of keys describes it."""
    if mask.numbers:
        return None
    return mask_tile(mask, queries, keys, (0, queries), (0, keys), device)[0]


def _finite(state: DecoderState) -> bool:
    """True unless a source has NaN keys or no tokens: those cases are left to the blocks."""
    if state.source is None:
        return True
    lengths = state.source.lengths
    if lengths is not None and not bool((lengths > 0).all()):
        return False
    return not any(k.sum().isnan() for k, _ in state.source.memory)


def _norm(norm: nn.Module) -> Step:
    """A norm without the calls around it."""
    if isinstance(norm, RMSNorm):
        return norm.forward
    if isinstance(norm, nn.LayerNorm):
        shape, scale, shift, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: torch.layer_norm(x, shape, scale, shift, eps)
    return norm


def _gated(mlp: MLP, quick: Callable[[Any], Step]) -> Step:
    """The hidden layer of an MLP with a gate: both of its maps are one product."""
    both, hidden, activation = quick(join(mlp.gate, mlp.up)), mlp.up.out_features, GATES[mlp.kind]

    def inner(x: Tensor) -> Tensor:
        gate, up = torch.split_with_sizes(both(x), [hidden, hidden], -1)
        return activation(gate) * up

    return inner


def _plain(mlp: MLP, quick: Callable[[Any], Step]) -> Step:
    """The hidden layer of an MLP without a gate."""
    up, activation = quick(mlp.up), ACTIVATIONS[mlp.kind]
    return lambda x: activation(up(x))

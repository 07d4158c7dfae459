"""Which blocks and positions the fast decoders support."""

from __future__ import annotations

from torch import Tensor, nn

from ..layers import MLP, Attention, Block, Learned, Positions, Rotary, Sinusoid
from ..layers.lora import adapters
from .products import join


def supports_positions(positions: Positions) -> bool:
    """True for positions that are added to the input, rotary ones and none; False for biases of the scores."""
    return type(positions) in (Positions, Learned, Sinusoid, Rotary)


def supports_block(block: Block) -> bool:
    """True for a block outside training with dot-product attention and a plain or gated MLP.

    A side effect: the block's projections are joined (see products.join).
    """
    attn, mlp, cross = block.attn, block.mlp, block.cross
    if block.training or block.order not in ("pre", "post") or type(mlp) is not MLP:
        return False
    if not _plain(attn) or attn.qk_norm == "width":
        return False
    if cross is not None and not _plain(cross):
        return False
    if attn.project != "qkv" or attn.head_width != attn.value_width or adapters(block):
        return False
    if join(attn.query, attn.key, attn.value) is None:
        return False
    return mlp.gate is None or join(mlp.gate, mlp.up) is not None


def _plain(attention: nn.Module) -> bool:
    """True for scaled or unscaled dot-product attention with a query and an output projection."""
    if type(attention) is not Attention or attention.query is None or attention.out is None:
        return False
    return attention.score in ("dot", "scaled") and not isinstance(attention.sharpness, Tensor)

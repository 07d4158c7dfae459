"""A small model for the tests of watch and edit."""

import torch
from torch import Tensor, nn

from clearhead.layers import Attention, Block, Mask
from clearhead.look import MEANING

B, T, H, E = 2, 7, 3, 4  # rows, tokens, heads, head dimension
WIDTH = H * E
LEAVES = ("q", "k", "v", "scores", "weights", "heads", *MEANING)  # addresses inside an attention


class TwoBlocks(nn.Module):
    """Two causal blocks, the second with cross-attention to the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(WIDTH, H), Block(WIDTH, H, cross=True)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mask = Mask(causal=True)
        return self.norm(self.blocks[1](self.blocks[0](x, mask=mask), x, mask=mask))


def inputs(tokens: int = T) -> Tensor:
    """Random vectors (b, tokens, width), always the same."""
    return torch.randn(B, tokens, WIDTH, generator=torch.Generator().manual_seed(1))


def hooks_and_taps(model: nn.Module) -> list[object]:
    """All that a watch or an edit may have left behind."""
    modules = list(model.modules())
    hooks = [hook for m in modules for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    return hooks + [m.tap for m in modules if isinstance(m, Attention) and m.tap is not None]

"""A small model of blocks with any kind of positions, which the laws are tested on."""

import torch
from torch import Tensor, nn

from clearhead.layers import Block, Cache, make_positions

WIDTH, HEADS, HEAD, CONTEXT = 12, 3, 4, 64


def places(kind: str, at: Tensor) -> Tensor:
    """Positions in the form that a kind needs: on a grid of four columns, or on a line."""
    return torch.stack([at // 4, at % 4], dim=-1) if kind == "sincos2d" else at


class Tower(nn.Module):
    def __init__(self, kind: str = "none", *, depth: int = 2, seed: int = 0, **block: object) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kind = kind
        self.positions = make_positions(kind, width=WIDTH, heads=HEADS, head=HEAD, context=CONTEXT)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS, **block) for _ in range(depth))
        for table in self.positions.parameters():  # large from the start, as if trained
            nn.init.normal_(table)

    def forward(self, x: Tensor, context: Tensor | None = None, *, at=None, caches=None, **masks) -> Tensor:
        at = torch.arange(x.shape[1]) if at is None else at
        x = self.positions.add(x, places(self.kind, at))
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, context, positions=self.positions, at=at, cache=cache, **masks)
        return x

    def caches(self, rows: int, limit: int) -> list[Cache]:
        dtype = self.blocks[0].attn.query.weight.dtype
        return [Cache(rows, block.attn.kv_heads, limit, HEAD, dtype=dtype) for block in self.blocks]

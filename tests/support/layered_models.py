"""Tiny image models whose layers return what those of Swin, CaiT, PVT, PiT and MLP-Mixer return."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class LastBlock(nn.Module):
    """A block of channels-last features (b, y, x, c) with an MLP and a depthwise convolution, as in Swin and Focal."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.mix(self.norm(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x + self.mlp(x)


class Merge(nn.Module):
    """Every second row and column, with more channels."""

    def __init__(self, width, wider):
        super().__init__()
        self.widen = nn.Linear(width, wider)

    def forward(self, x):
        return self.widen(x[:, ::2, ::2])


class ChannelsLast(nn.Module):
    """Patches of 2 x 2 pixels, and two stages of channels-last blocks."""

    def __init__(self, width=6, wider=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 2, stride=2)
        self.stages = nn.Sequential(LastBlock(width), nn.Sequential(Merge(width, wider), LastBlock(wider)))
        self.norm, self.head = nn.LayerNorm(wider), nn.Linear(wider, 5)

    def forward(self, x):
        x = self.stages(self.patches(x).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean((1, 2)))


class Attention(nn.Module):
    """Attention by F.scaled_dot_product_attention, whose keys may be a reduced image; or written out, as in CaiT."""

    def __init__(self, width, *, heads=2, reduction=1, talking=False):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.reduce = nn.Conv2d(width, width, reduction, stride=reduction) if reduction > 1 else None
        self.talk, self.drop = nn.Linear(heads, heads) if talking else None, nn.Dropout(0.1)

    def forward(self, x, grid=None, queries=None):
        read = x
        if self.reduce is not None:
            read = self.reduce(x.mT.unflatten(2, grid)).flatten(2).mT
        q = self.qkv(x if queries is None else x[:, :queries]).chunk(3, -1)[0]
        _, k, v = self.qkv(read).chunk(3, -1)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        if self.talk is None:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
            mixed = self.drop(self.talk(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class TokenBlock(nn.Module):
    """A block of tokens (b, t, c)."""

    def __init__(self, width, **options):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), Attention(width, **options)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, grid=None):
        x = x + self.attn(self.norm(x), grid)
        return x + self.mlp(x)


class ClassBlock(TokenBlock):
    """A block in which the first token alone reads all tokens."""

    def forward(self, x, grid=None):
        first = x[:, :1] + self.attn(self.norm(x), queries=1)
        return torch.cat([first + self.mlp(first), x[:, 1:]], dim=1)


class TalkingHeads(nn.Module):
    """Blocks of patches, then blocks in which a class token reads them."""

    def __init__(self, width=12, talking=True):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, stride=4), nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.ModuleList([TokenBlock(width, talking=talking) for _ in range(3)])
        self.last = nn.ModuleList([ClassBlock(width)])
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return self.head(self.last[0](x)[:, 0])


class Stage(nn.Module):
    """Patches and blocks whose keys are those of a smaller image; the result is a feature map."""

    def __init__(self, channels, width, patch, reduction):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.blocks = nn.ModuleList([TokenBlock(width, reduction=reduction)])

    def forward(self, x):
        x = self.patches(x)
        grid = x.shape[2:]
        tokens = x.flatten(2).mT
        for block in self.blocks:
            tokens = block(tokens, grid)
        return tokens.mT.unflatten(2, grid)


class Reduced(nn.Module):
    """A pyramid whose first stage has fewer keys than queries."""

    def __init__(self, width=8, wider=12):
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, width, 2, 2), Stage(width, wider, 2, 1)])
        self.head = nn.Linear(wider, 5)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


class ClassPyramid(nn.Module):
    """Two stages of patches with a class token, whose second grid is smaller."""

    def __init__(self, width=8, wider=12):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 2, stride=2), nn.Parameter(torch.randn(1, 1, width))
        self.first = nn.ModuleList([TokenBlock(width), TokenBlock(width)])
        self.pool, self.widen = nn.Conv2d(width, wider, 3, stride=2, padding=1), nn.Linear(width, wider)
        self.second = nn.ModuleList([TokenBlock(wider), TokenBlock(wider)])
        self.head = nn.Linear(wider, 5)

    def forward(self, x):
        x = self.patches(x)
        grid = x.shape[2:]
        tokens = torch.cat([self.token.expand(len(x), -1, -1), x.flatten(2).mT], dim=1)
        for block in self.first:
            tokens = block(tokens)
        x = self.pool(tokens[:, 1:].mT.unflatten(2, grid))
        tokens = torch.cat([self.widen(tokens[:, :1]), x.flatten(2).mT], dim=1)
        for block in self.second:
            tokens = block(tokens)
        return self.head(tokens[:, 0])


class Mixer(nn.Module):
    """A layer that mixes tokens (b, c, t) between two of channels."""

    def __init__(self, width=12, tokens=15):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList([MixerBlock(width, tokens), MixerBlock(width, tokens)])
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class MixerBlock(nn.Module):
    """Tokens are mixed, then channels."""

    def __init__(self, width, tokens):
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(tokens, 9), nn.GELU(), nn.Linear(9, tokens))
        self.channels = nn.Linear(width, width)

    def forward(self, x):
        x = x + self.tokens(x.mT).mT
        return x + self.channels(x)

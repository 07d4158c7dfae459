"""Decoding on a GPU: one token per row by a few kernels on static storage, which a CUDA graph can capture.

Five kernels per block for up to MATRIX rows (gpu_kernels.py); for more rows torch computes the products. The residual
stream is float32, whatever the dtype of the weights.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..layers import Block, Learned, Linear, Rotary, Sinusoid, Vectors
from ..layers.mlp import ACTIVATIONS
from ..layers.norm import RMSNorm
from ..models import DecoderStack
from .hooks import Hooks
from .products import join
from .supported import supports_block, supports_positions

# The kernels also run on a CPU, slowly, in Triton's interpreter: that is how they are tested without a GPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
AVAILABLE = find_spec("triton") is not None
FEW = 4  # rows up to which products are sums of lanes
MATRIX = 16  # rows up to which products are the kernels' own
WIDEST = 16384  # numbers that a program can hold of a row
KEYS = 128  # that a program of attention takes at a time
PARTS = 16  # that the keys of a row are looked at in, at most
BLOCKS = 4096  # of logits whose maxima are looked at at a time
LOG2E = math.log2(math.e)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """What a program of a product takes at a time."""

    outputs: int  # a power of 2
    columns: int  # of the weights; a power of 2
    warps: int = 4
    stages: int = 3  # columns that are on their way at a time, in products of matrix units


def tile(outputs: int, columns: int, rows: int, *, bytes_: int, few: int = FEW) -> Tile:
    """Whole rows of weights, where a program can hold them: then all it reads is on its way at once.

    A thread takes 16 bytes at a time; where it has fewer columns, what it multiplies must first change hands.
    """
    if rows > few:
        return Tile(outputs=16 if outputs < 8192 else 32, columns=256 // bytes_)
    most, held = 8192 // bytes_, _power(columns)
    if rows == 1:  # the fastest of those that benchmarks/step.py tries on an H200
        if columns > most * 5 // 8:  # the MLP's way down: in parts
            return Tile(outputs=2, columns=most // 2, warps=4 if columns < most else 2)
        if held <= most // 4:
            many, warps = outputs >= 2048, _warps(held, bytes_)
            return Tile(outputs=8 if many else 4, columns=held, warps=min(2, warps) if many else warps)
        if 2048 < outputs < 8192 or outputs >= 16384:
            return Tile(outputs=8, columns=held, warps=4)
        return Tile(outputs=4, columns=held // 2, warps=2 if outputs < 8192 else 4)
    held = held if held <= most else most // 2
    each = 2  # of few outputs, programs enough for all processors
    if outputs >= 16384:  # a readout: fewer blocks to choose from
        each = max(each, min(16, 16384 // held) // _power(rows))
    return Tile(outputs=each, columns=held, warps=_warps(held, bytes_))


def _warps(columns: int, bytes_: int) -> int:
    """So many that each thread has 16 bytes of a row."""
    return max(1, min(4, columns * bytes_ // 512))


class GpuDecoder:
    """The steps of a decoder. `of` returns None for a model with a choice that is not known here."""

    def __init__(
        self, stack: DecoderStack, rows: int, limit: int, *, tiles: Mapping[str, Tile] | None = None,
        pdl: bool | None = None, few: int = FEW, splits: int | None = None, keys: int = KEYS,
    ) -> None:  # fmt: skip
        embed, positions, norm, head = stack.embed, stack.positions, stack.norm, cast(Linear, stack.head)
        blocks, like = [cast(Block, block) for block in stack.blocks], embed.table
        self.rows, self.limit, self.window, self.few, self.keys = rows, limit, stack.window, few, keys
        self.width, self.vocab = like.shape[1], head.out_features
        self.heads, self.groups, self.head, self.hidden = _sizes(blocks[0])
        self.hooks = Hooks([embed, positions, *blocks, norm, head])
        self.layers = [_Layer(block) for block in blocks]
        self.norm, self.readout = _norm(norm, like), head.weight
        self.table, self.loud = embed.table, embed.scale
        self.tiles = dict(tiles or {})
        device, kind, e = like.device, like.dtype, self.head
        gpu = device.type == "cuda" and not INTERPRETED
        pdl = gpu and torch.cuda.get_device_capability(device) >= (9, 0) if pdl is None else pdl
        self.launch: dict[str, Any] = {"PDL": pdl, "launch_pdl": True} if pdl else {"PDL": False}
        processors = torch.cuda.get_device_properties(device).multi_processor_count if gpu else 8
        self.splits = splits or self._splits(processors)

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.k = [new(rows, self.groups, limit, e, dtype=kind) for _ in blocks]
        self.v = [new(rows, self.groups, limit, e, dtype=kind) for _ in blocks]
        self.stream, self.y = new(rows, self.width), new(rows, self.width, dtype=kind)
        self.q, self.said = new(rows, self.heads * e, dtype=kind), new(rows, self.heads * e, dtype=kind)
        self.parts, self.lse = new(rows, self.splits, self.heads * e), new(rows, self.splits, self.heads)
        self.arrived = new(rows, self.groups, dtype=torch.int32)
        self.inside = new(rows, self.hidden, dtype=kind)
        self.logits, blocks_ = new(rows, self.vocab), self._programs("read_out", self.vocab, self.width)
        self.most, self.total, self.which = (
            new(rows, blocks_, dtype=d) for d in (torch.float32, torch.float32, torch.int32)
        )
        self.token, self.at, self.count = (new(rows, dtype=torch.long) for _ in range(3))
        self.tokens, self.scores = new(limit + 1, rows, dtype=torch.long), new(limit + 1, rows)
        # What positions add to the stream, and what they turn by, at every place.
        everywhere = torch.arange(limit, device=device)
        self.places: Tensor | None = None
        self.turn, self.cos, self.sin = "none", self.stream, self.stream
        if isinstance(positions, Learned):
            self.places = positions.table
        elif isinstance(positions, Sinusoid):
            self.places = positions.vectors(everywhere).float().contiguous()
        elif isinstance(positions, Rotary):
            self.turn = positions.pairs
            self.cos, self.sin = (x.reshape(limit, e) for x in positions.angles(everywhere, torch.float32))

    @staticmethod
    def of(stack: DecoderStack, rows: int, limit: int, **how: Any) -> GpuDecoder | None:
        """The decoder of a model outside training, on a GPU (or in Triton's interpreter)."""
        blocks, like = [cast(Block, block) for block in stack.blocks], stack.embed.table
        here = AVAILABLE and (like.device.type == "cuda" or INTERPRETED) and not torch.is_grad_enabled()
        if not here or like.dtype not in (torch.float32, torch.bfloat16, torch.float16) or rows < 1 or not blocks:
            return None
        positions, norm, head = stack.positions, stack.norm, stack.head
        joined = isinstance(positions, Vectors) and positions.join != "add"
        if not supports_positions(positions) or joined or stack.cross:
            return None
        if not all(_fits(block, like) for block in blocks) or not _norm_fits(norm) or type(head) is not Linear:
            return None
        sizes = {(*_sizes(block), block.mlp.kind) for block in blocks}
        _, _, _, hidden, _ = next(iter(sizes))
        plain = head.bias is None and _like(head.weight, like) and all(_like(p, like) for p in norm.parameters())
        if len(sizes) != 1 or not plain or max(like.shape[1], hidden) > WIDEST:
            return None
        return GpuDecoder(stack, rows, limit, **how)

    @property
    def unhooked(self) -> bool:
        """True if nobody watches or edits a module that the kernels skip."""
        return not self.hooks.any()

    def begin(
        self, k: Sequence[Float[Tensor, "b g n e"]], v: Sequence[Float[Tensor, "b g n e"]], at: Int[Tensor, "b"],
        token: Int[Tensor, "b"], filled: int,
    ) -> None:  # fmt: skip
        """Go on from keys and values of which `filled` are there, each row from its place and its last token."""
        for mine, given in zip((*self.k, *self.v), (*k, *v), strict=True):
            mine[:, :, :filled].copy_(given[:, :, :filled])
        self.token.copy_(token)
        self.at.copy_(at)
        self.count.zero_()
        x = F.embedding(token, self.table).float() * self.loud
        self.stream.copy_(x if self.places is None else x + self.places[at].float())

    def __call__(self) -> Float[Tensor, "b v"]:
        """The logits after what is in the stream, which has then been read."""
        for layer, k, v in zip(self.layers, self.k, self.v, strict=True):
            self.ask(layer, k, v)
            self.attend(layer, k, v)
            self.add("out", self.said, layer.out, layer.out_bias)
            self.add("down", self.inner(layer), layer.down, layer.down_bias)
        return self.read_out()

    def ask(self, layer: _Layer, k: Tensor, v: Tensor) -> None:
        """Queries, and keys and values into their places."""
        from .gpu_kernels import ask, place

        norm, e, all_heads = layer.attn_norm, self.head, self.heads + 2 * self.groups
        how = {"HEADS": self.heads, "GROUPS": self.groups, "E": e, "TURN": self.turn, **self.launch}
        x, kind = self._input(norm)
        into = (self.cos, self.sin, self.at, self.q, k, v)
        if self.rows > MATRIX:
            y = F.linear(x, layer.qkv, layer.qkv_bias)
            place[(self.rows, all_heads)](
                y, *into, self.limit, k.stride(0), k.stride(1), BE=_power(e), num_warps=1, **how
            )  # fmt: skip
            return
        size = self._size("ask", all_heads * e, self.width)
        ask[(all_heads * -(-((e + 1) // 2) // (size["BN"] // 2)),)](
            x, norm.scale, norm.shift, layer.qkv, _some(layer.qkv_bias, x), *into, self.rows, norm.eps, self.limit,
            k.stride(0), k.stride(1), K=self.width, BD=_power(self.width), NORM=kind,
            BIAS=layer.qkv_bias is not None, **size, **how,
        )  # fmt: skip

    def attend(self, layer: _Layer, k: Tensor, v: Tensor) -> None:
        """What each query finds."""
        from .gpu_kernels import attend

        attend[(self.rows * self.groups, self.splits)](
            self.q, k, v, self.at, self.parts, self.lse, self.arrived, self.said, layer.scale * LOG2E,
            k.stride(0), k.stride(1), HEADS=self.heads, GROUPS=self.groups, E=self.head,
            BS=max(16, _power(self.heads // self.groups)), BE=max(16, _power(self.head)), BLOCK=self.keys,
            SPLITS=self.splits, WINDOW=self.window or 0, num_warps=4, num_stages=2, **self.launch,
        )  # fmt: skip

    def add(self, kind: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """A product, added to the stream."""
        from .gpu_kernels import add

        if self.rows > MATRIX:
            self.stream += F.linear(x, weight, bias)
            return
        n, columns = weight.shape
        add[(self._programs(kind, n, columns),)](
            x, weight, _some(bias, x), self.stream, self.rows, n, K=columns, BIAS=bias is not None,
            **self._size(kind, n, columns), **self.launch,
        )  # fmt: skip

    def inner(self, layer: _Layer) -> Tensor:
        """The inside of the MLP."""
        from .gpu_kernels import inner

        norm, gated = layer.mlp_norm, layer.kind == "swiglu"
        x, kind = self._input(norm)
        if self.rows > MATRIX:
            y = F.linear(x, layer.up, layer.up_bias)
            return ACTIVATIONS[layer.kind](y) if not gated else F.silu(y[:, : self.hidden]) * y[:, self.hidden :]
        n = layer.up.shape[0]
        size = self._size("inner", n, self.width)
        inner[(-(-self.hidden // (size["BN"] // 2 if gated else size["BN"])),)](
            x, norm.scale, norm.shift, layer.up, _some(layer.up_bias, x), self.inside, self.rows, norm.eps,
            self.hidden, K=self.width, BD=_power(self.width), NORM=kind, BIAS=layer.up_bias is not None,
            KIND=layer.kind, **size, **self.launch,
        )  # fmt: skip
        return self.inside

    def read_out(self) -> Tensor:
        """The logits, and what `take` needs to know of them."""
        from .gpu_kernels import read_out

        x, kind = self._input(self.norm)
        if self.rows > MATRIX:
            self.logits.copy_(F.linear(x, self.readout))
            return self.logits
        read_out[(self.most.shape[1],)](
            x, self.norm.scale, self.norm.shift, self.readout, self.logits, self.most, self.which, self.total,
            self.rows, self.norm.eps, self.vocab, K=self.width, BD=_power(self.width), NORM=kind,
            **self._size("read_out", self.vocab, self.width), **self.launch,
        )  # fmt: skip
        return self.logits

    def take(self, token: Int[Tensor, "b"] | None = None, score: Float[Tensor, "b"] | None = None) -> None:
        """Write the likeliest token of each row, or the given one with its score, and stand after it."""
        from .gpu_kernels import pick

        if token is None and self.rows > MATRIX:
            top, token = self.logits.max(-1)
            score = top - self.logits.logsumexp(-1)
        given = self.token if token is None else token, self.total if score is None else score
        blocks, places = self.most.shape[1], self.table if self.places is None else self.places
        pick[(self.rows,)](
            self.most, self.which, self.total, *given, self.token, self.at, self.count, self.tokens, self.scores,
            self.stream, self.table, places, self.loud, self.rows, blocks, places.shape[0] - 1,
            K=self.width, BD=_power(self.width), BB=min(_power(blocks), BLOCKS), GIVEN=token is not None,
            PLACES=self.places is not None, num_warps=8, **self.launch,
        )  # fmt: skip

    def _input(self, norm: _Norm) -> tuple[Tensor, str]:
        """What a product takes, and the norm that it still has to apply."""
        from .gpu_kernels import normalise

        if self.rows <= self.few:
            return self.stream, norm.kind
        normalise[(self.rows,)](
            self.stream, norm.scale, norm.shift, self.y, norm.eps, K=self.width, BD=_power(self.width),
            NORM=norm.kind, **self.launch,
        )  # fmt: skip
        return self.y, "none"

    def _splits(self, processors: int) -> int:
        """Parts of the keys: enough for all processors, as long as each has a block."""
        blocks = -(-min(self.limit, self.window or self.limit) // self.keys)
        wanted = min(max(1, processors // (self.rows * self.groups)), blocks, PARTS)
        return _power(wanted)

    def _size(self, kind: str, outputs: int, columns: int) -> dict[str, Any]:
        if kind not in self.tiles:
            self.tiles[kind] = tile(outputs, columns, self.rows, bytes_=self.table.element_size(), few=self.few)
        t, lanes = self.tiles[kind], self.rows <= self.few
        rows = {"ROWS": _power(self.rows) if lanes else 16, "DOT": not lanes}
        return {**rows, "BN": t.outputs, "BK": t.columns, "num_warps": t.warps, "num_stages": t.stages}

    def _programs(self, kind: str, outputs: int, columns: int) -> int:
        return -(-outputs // int(self._size(kind, outputs, columns)["BN"]))


class _Norm:
    """The kind of a norm and its numbers; where it has none, anything stands for them."""

    def __init__(self, kind: str, scale: Tensor, shift: Tensor, eps: float) -> None:
        self.kind, self.scale, self.shift, self.eps = kind, scale, shift, eps


class _Layer:
    """A block's weights."""

    def __init__(self, block: Block) -> None:
        attn, mlp = block.attn, block.mlp
        assert attn.out is not None
        qkv, up = join(attn.query, attn.key, attn.value), mlp.up if mlp.gate is None else join(mlp.gate, mlp.up)
        assert qkv is not None
        assert up is not None
        self.qkv, self.qkv_bias, self.up, self.up_bias = qkv.weight, qkv.bias, up.weight, up.bias
        self.out, self.out_bias = attn.out.weight, attn.out.bias
        self.down, self.down_bias = mlp.down.weight, mlp.down.bias
        self.kind, self.hidden = mlp.kind, mlp.up.out_features
        self.attn_norm, self.mlp_norm = _norm(block.attn_norm, self.out), _norm(block.mlp_norm, self.out)
        self.scale = 1.0 if attn.score == "dot" else attn.head_width**-0.5


def _norm(norm: nn.Module, anything: Tensor) -> _Norm:
    if isinstance(norm, RMSNorm):
        return _Norm("rms", norm.weight, norm.weight, norm.eps or 0.0)
    if isinstance(norm, nn.LayerNorm):
        return _Norm("layer", norm.weight, norm.bias, norm.eps)
    return _Norm("none", anything, anything, 0.0)


def _norm_fits(norm: nn.Module) -> bool:
    if type(norm) is nn.LayerNorm:
        return norm.weight is not None and norm.bias is not None and len(norm.normalized_shape) == 1
    return type(norm) is nn.Identity or (type(norm) is RMSNorm and norm.weight is not None and norm.eps is not None)


def _fits(block: Block, like: Tensor) -> bool:
    if block.order != "pre" or block.cross is not None or not supports_block(block):
        return False
    norms = _norm_fits(block.attn_norm) and _norm_fits(block.mlp_norm)
    maps = all(type(m) is Linear for m in (block.attn.query, block.attn.out, block.mlp.up, block.mlp.down))
    return norms and maps and all(_like(p, like) for p in block.parameters())


def _sizes(block: Block) -> tuple[int, int, int, int]:
    """Query heads, key heads, the width of a head, and the width inside the MLP."""
    attn = block.attn
    return attn.heads, attn.kv_heads, attn.head_width, block.mlp.up.out_features


def _like(weight: Tensor, like: Tensor) -> bool:
    return weight.dtype == like.dtype and weight.device == like.device and weight.is_contiguous()


def _some(bias: Tensor | None, other: Tensor) -> Tensor:
    return other if bias is None else bias


def _power(n: int) -> int:
    """The least power of 2 that is not below n."""
    return 1 << max(n - 1, 0).bit_length()

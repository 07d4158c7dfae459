"""Decoding on a GPU: one token per row by a few kernels on static storage, which a CUDA graph can capture.

A block takes five kernels for up to KERNEL_ROWS rows (gpu_kernels.py); for more rows torch computes the products. The
residual stream is float32, whatever the dtype of the weights.
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

from ..layers import Block, Learned, Linear, Positions, Rotary, Sinusoid, Vectors
from ..layers.mlp import ACTIVATIONS
from ..layers.norm import RMSNorm
from ..models import DecoderStack
from .hooks import Hooks
from .products import join
from .supported import supports_block, supports_positions

# Triton's interpreter runs the kernels on a CPU, slowly: that is how they are tested without a GPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
AVAILABLE = find_spec("triton") is not None
LANE_ROWS = 4  # rows up to which products are computed lane by lane, without matrix units
KERNEL_ROWS = 16  # rows up to which the kernels compute the products; for more rows torch does
MAX_WIDTH = 16384  # numbers of a row that a program can hold
KEY_BLOCK = 128  # keys that a program of attention reads at a time
MAX_SPLITS = 16  # splits of a row's keys, each attended to by a program of its own
LOGIT_BLOCKS = 4096  # blocks of logits whose maxima are compared at a time
LOG2E = math.log2(math.e)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductTile:
    """The weights that one program of a product reads at a time, and how it is launched."""

    outputs: int  # rows of the weights: outputs that it computes; a power of 2
    columns: int  # columns of the weights, a power of 2
    warps: int = 4  # warps per program
    stages: int = 3  # loads in flight, in products of matrix units


def choose_tile(
    outputs: int, columns: int, rows: int, *, bytes_: int, lane_rows: int = LANE_ROWS
) -> ProductTile:
    """Choose the tile of a product: whole rows of weights if a program can hold them, so that it loads all at once.

    A thread loads 16 bytes at a time; with fewer columns per thread, values would have to move between threads.
    """
    if rows > lane_rows:
        return ProductTile(outputs=16 if outputs < 8192 else 32, columns=256 // bytes_)
    max_columns, columns_held = 8192 // bytes_, _power_of_2(columns)
    if rows == 1:  # the fastest that benchmarks/step.py finds on an H200
        if columns > max_columns * 5 // 8:  # the MLP's down map: a row in several parts
            return ProductTile(
                outputs=2, columns=max_columns // 2, warps=4 if columns < max_columns else 2
            )
        if columns_held <= max_columns // 4:
            many_outputs, warps = outputs >= 2048, _warps(columns_held, bytes_)
            return ProductTile(
                outputs=8 if many_outputs else 4, columns=columns_held, warps=min(2, warps) if many_outputs else warps
            )  # fmt: skip
        if 2048 < outputs < 8192 or outputs >= 16384:
            return ProductTile(outputs=8, columns=columns_held, warps=4)
        return ProductTile(outputs=4, columns=columns_held // 2, warps=2 if outputs < 8192 else 4)
    if not (columns_held <= max_columns):
        columns_held = max_columns // 2
    outputs_each = 2  # few, so that there are programs for all processors
    if outputs >= 16384:  # the output layer: fewer blocks for append_token to compare
        outputs_each = max(outputs_each, min(16, 16384 // columns_held) // _power_of_2(rows))
    return ProductTile(
        outputs=outputs_each, columns=columns_held, warps=_warps(columns_held, bytes_)
    )


def _warps(columns: int, bytes_: int) -> int:
    """The number of warps with which each thread loads 16 bytes of a row."""
    return max(1, min(4, columns * bytes_ // 512))


class GpuDecoder:
    """The steps of a model's decoder. `of` returns None for a model with an option that is not supported."""

    def __init__(
        self, stack: DecoderStack, rows: int, limit: int, *, tiles: Mapping[str, ProductTile] | None = None,
        pdl: bool | None = None, lane_rows: int = LANE_ROWS, splits: int | None = None, key_block: int = KEY_BLOCK,
    ) -> None:  # fmt: skip
        embed, positions, norm, head = (
            stack.embed,
            stack.positions,
            stack.norm,
            cast(Linear, stack.head),
        )
        blocks, like = [cast(Block, block) for block in stack.blocks], embed.table
        self.rows, self.limit, self.window = rows, limit, stack.window
        self.lane_rows, self.key_block = lane_rows, key_block
        self.width, self.vocab = like.shape[1], head.out_features
        self.heads, self.kv_heads, self.head_width, self.hidden = _sizes(blocks[0])
        self.hooks = Hooks([embed, positions, *blocks, norm, head])
        self.layers = [_BlockWeights(block) for block in blocks]
        self.norm, self.head_weight = _norm(norm, like), head.weight
        self.embedding, self.embed_scale = embed.table, embed.scale
        self.tiles = dict(tiles or {})  # by the name of a product: qkv, out, up, down, logits
        gpu = like.device.type == "cuda" and not INTERPRETED
        if pdl is None:
            pdl = gpu and torch.cuda.get_device_capability(like.device) >= (9, 0)
        self.launch_options: dict[str, Any] = (
            {"PDL": pdl, "launch_pdl": True} if pdl else {"PDL": False}
        )
        processors = (
            torch.cuda.get_device_properties(like.device).multi_processor_count if gpu else 8
        )
        self.splits = splits or self._number_of_splits(processors)
        self._allocate(like.device, like.dtype)
        self._tabulate(positions)

    def _allocate(self, device: torch.device, dtype: torch.dtype) -> None:
        """Allocate the static storage: the KV cache, activations, logits, and the tokens written so far."""
        rows, limit, e = self.rows, self.limit, self.head_width

        def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.k = [new(rows, self.kv_heads, limit, e, dtype=dtype) for _ in self.layers]
        self.v = [new(rows, self.kv_heads, limit, e, dtype=dtype) for _ in self.layers]
        self.residual, self.normed = new(rows, self.width), new(rows, self.width, dtype=dtype)
        self.q, self.attention_out = (
            new(rows, self.heads * e, dtype=dtype),
            new(rows, self.heads * e, dtype=dtype),
        )
        self.partial_out, self.lse = (
            new(rows, self.splits, self.heads * e),
            new(rows, self.splits, self.heads),
        )
        self.finished_splits = new(rows, self.kv_heads, dtype=torch.int32)
        self.mlp_hidden = new(rows, self.hidden, dtype=dtype)
        self.logits, logit_blocks = (
            new(rows, self.vocab),
            self._programs("logits", self.vocab, self.width),
        )
        self.block_max, self.block_sum, self.block_argmax = (
            new(rows, logit_blocks, dtype=d) for d in (torch.float32, torch.float32, torch.int32)
        )
        # last, position, written
        self.token, self.at, self.count = (new(rows, dtype=torch.long) for _ in range(3))
        self.tokens, self.scores = new(limit + 1, rows, dtype=torch.long), new(limit + 1, rows)

    def _tabulate(self, positions: Positions) -> None:
        """Compute what every position adds to the residual stream, or the angles that it rotates by."""
        at = torch.arange(self.limit, device=self.residual.device)
        self.position_table: Tensor | None = None
        self.rotary, self.cos, self.sin = "none", self.residual, self.residual
        if isinstance(positions, Learned):
            self.position_table = positions.table[positions.offset :]
        elif isinstance(positions, Sinusoid):
            self.position_table = positions.vectors(at).float().contiguous()
        elif isinstance(positions, Rotary):
            self.rotary = positions.pairs
            angles = positions.angles(at, torch.float32)
            self.cos, self.sin = (x.reshape(self.limit, self.head_width) for x in angles)

    @staticmethod
    def of(stack: DecoderStack, rows: int, limit: int, **options: Any) -> GpuDecoder | None:
        """The decoder of a model outside training, on a GPU (or in Triton's interpreter)."""
        blocks, like = [cast(Block, block) for block in stack.blocks], stack.embed.table
        available = (
            AVAILABLE
            and (like.device.type == "cuda" or INTERPRETED)
            and not torch.is_grad_enabled()
        )
        if (
            not available
            or like.dtype not in (torch.float32, torch.bfloat16, torch.float16)
            or rows < 1
            or not blocks
        ):
            return None
        positions, norm, head = stack.positions, stack.norm, stack.head
        joined = isinstance(positions, Vectors) and positions.join != "add"
        partial = isinstance(positions, Rotary) and positions.columns != positions.head
        if (
            not supports_positions(positions)
            or joined
            or partial
            or stack.cross
            or stack.embed_norm is not None
        ):
            return None
        if (
            not all(_supports(block, like) for block in blocks)
            or not _supports_norm(norm)
            or type(head) is not Linear
        ):
            return None
        sizes = {(*_sizes(block), block.mlp.kind) for block in blocks}
        _, _, _, hidden, _ = next(iter(sizes))
        plain = (
            head.bias is None
            and _matches(head.weight, like)
            and all(_matches(p, like) for p in norm.parameters())
        )
        if len(sizes) != 1 or not plain or max(like.shape[1], hidden) > MAX_WIDTH:
            return None
        return GpuDecoder(stack, rows, limit, **options)

    @property
    def unhooked(self) -> bool:
        """True if nobody watches or edits a module that the kernels skip."""
        return not self.hooks.any()

    def begin(
        self, k: Sequence[Float[Tensor, "b g n e"]], v: Sequence[Float[Tensor, "b g n e"]], at: Int[Tensor, "b"],
        token: Int[Tensor, "b"], filled: int,
    ) -> None:  # fmt: skip
        """Continue from a KV cache with `filled` tokens; `at` is each row's position and `token` its last token."""
        for own, given in zip((*self.k, *self.v), (*k, *v), strict=True):
            own[:, :, :filled].copy_(given[:, :, :filled])
        self.token.copy_(token)
        self.at.copy_(at)
        self.count.zero_()
        x = F.embedding(token, self.embedding).float() * self.embed_scale
        self.residual.copy_(
            x if self.position_table is None else x + self.position_table[at].float()
        )

    def __call__(self) -> Float[Tensor, "b v"]:
        """Run all blocks on the embedded token in the residual stream, and return the logits of the next one."""
        for layer, k, v in zip(self.layers, self.k, self.v, strict=True):
            self.project_qkv(layer, k, v)
            self.attend(layer, k, v)
            self.add_projection("out", self.attention_out, layer.out, layer.out_bias)
            self.add_projection("down", self.project_mlp(layer), layer.down, layer.down_bias)
        return self.project_logits()

    def project_qkv(self, layer: _BlockWeights, k: Tensor, v: Tensor) -> None:
        """Compute the queries, and write the keys and values into the cache."""
        from .gpu_kernels import project_qkv, store_qkv

        norm, e, all_heads = layer.attn_norm, self.head_width, self.heads + 2 * self.kv_heads
        options = {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "E": e,
            "ROTARY": self.rotary,
            **self.launch_options,
        }
        x, norm_kind = self._normed_input(norm)
        targets = (self.cos, self.sin, self.at, self.q, k, v)
        if self.rows > KERNEL_ROWS:
            y = F.linear(x, layer.qkv, layer.qkv_bias)
            store_qkv[(self.rows, all_heads)](
                y, *targets, self.limit, k.stride(0), k.stride(1), BE=_power_of_2(e), num_warps=1, **options
            )  # fmt: skip
            return
        sizes = self._launch_sizes("qkv", all_heads * e, self.width)
        project_qkv[(all_heads * -(-((e + 1) // 2) // (sizes["BN"] // 2)),)](
            x, norm.scale, norm.shift, layer.qkv, _or_dummy(layer.qkv_bias, x), *targets, self.rows, norm.eps,
            self.limit, k.stride(0), k.stride(1), K=self.width, BD=_power_of_2(self.width), NORM=norm_kind,
            BIAS=layer.qkv_bias is not None, **sizes, **options,
        )  # fmt: skip

    def attend(self, layer: _BlockWeights, k: Tensor, v: Tensor) -> None:
        """Compute the attention of each query over the cache."""
        from .gpu_kernels import attend

        attend[(self.rows * self.kv_heads, self.splits)](
            self.q, k, v, self.at, self.partial_out, self.lse, self.finished_splits, self.attention_out,
            layer.scale * LOG2E, k.stride(0), k.stride(1), HEADS=self.heads, KV_HEADS=self.kv_heads,
            E=self.head_width, BS=max(16, _power_of_2(self.heads // self.kv_heads)),
            BE=max(16, _power_of_2(self.head_width)), BLOCK=self.key_block, SPLITS=self.splits,
            WINDOW=self.window or 0, num_warps=4, num_stages=2, **self.launch_options,
        )  # fmt: skip

    def add_projection(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Add a product to the residual stream; `name` is that of its tile."""
        from .gpu_kernels import add_projection

        if self.rows > KERNEL_ROWS:
            self.residual += F.linear(x, weight, bias)
            return
        n, columns = weight.shape
        add_projection[(self._programs(name, n, columns),)](
            x, weight, _or_dummy(bias, x), self.residual, self.rows, n, K=columns, BIAS=bias is not None,
            **self._launch_sizes(name, n, columns), **self.launch_options,
        )  # fmt: skip

    def project_mlp(self, layer: _BlockWeights) -> Tensor:
        """Compute the hidden units of the MLP."""
        from .gpu_kernels import project_mlp

        norm, gated = layer.mlp_norm, layer.kind == "swiglu"
        x, norm_kind = self._normed_input(norm)
        if self.rows > KERNEL_ROWS:
            y = F.linear(x, layer.up, layer.up_bias)
            return (
                ACTIVATIONS[layer.kind](y)
                if not gated
                else F.silu(y[:, : self.hidden]) * y[:, self.hidden :]
            )
        n = layer.up.shape[0]
        sizes = self._launch_sizes("up", n, self.width)
        project_mlp[(-(-self.hidden // (sizes["BN"] // 2 if gated else sizes["BN"])),)](
            x, norm.scale, norm.shift, layer.up, _or_dummy(layer.up_bias, x), self.mlp_hidden, self.rows, norm.eps,
            self.hidden, K=self.width, BD=_power_of_2(self.width), NORM=norm_kind, BIAS=layer.up_bias is not None,
            ACTIVATION=layer.kind, **sizes, **self.launch_options,
        )  # fmt: skip
        return self.mlp_hidden

    def project_logits(self) -> Tensor:
        """Compute the logits, and the maximum and sum of each block of them for `append_token`."""
        from .gpu_kernels import project_logits

        x, norm_kind = self._normed_input(self.norm)
        if self.rows > KERNEL_ROWS:
            self.logits.copy_(F.linear(x, self.head_weight))
            return self.logits
        project_logits[(self.block_max.shape[1],)](
            x, self.norm.scale, self.norm.shift, self.head_weight, self.logits, self.block_max, self.block_argmax,
            self.block_sum, self.rows, self.norm.eps, self.vocab, K=self.width, BD=_power_of_2(self.width),
            NORM=norm_kind, **self._launch_sizes("logits", self.vocab, self.width), **self.launch_options,
        )  # fmt: skip
        return self.logits

    def append_token(
        self, token: Int[Tensor, "b"] | None = None, score: Float[Tensor, "b"] | None = None
    ) -> None:
        """Append the likeliest token of each row, or the given one with its score, and embed it as the next input."""
        from .gpu_kernels import append_token

        if token is None and self.rows > KERNEL_ROWS:
            top, token = self.logits.max(-1)
            score = top - self.logits.logsumexp(-1)
        given = self.token if token is None else token, self.block_sum if score is None else score
        blocks = self.block_max.shape[1]
        position_table = self.embedding if self.position_table is None else self.position_table
        append_token[(self.rows,)](
            self.block_max, self.block_argmax, self.block_sum, *given, self.token, self.at, self.count, self.tokens,
            self.scores, self.residual, self.embedding, position_table, self.embed_scale, self.rows, blocks,
            position_table.shape[0] - 1, K=self.width, BD=_power_of_2(self.width),
            BB=min(_power_of_2(blocks), LOGIT_BLOCKS), GIVEN=token is not None,
            POSITIONS=self.position_table is not None, num_warps=8, **self.launch_options,
        )  # fmt: skip

    def _normed_input(self, norm: _Norm) -> tuple[Tensor, str]:
        """The input of a product, and the norm that the product still has to apply to it."""
        from .gpu_kernels import normalise

        if self.rows <= self.lane_rows:
            return self.residual, norm.kind
        normalise[(self.rows,)](
            self.residual, norm.scale, norm.shift, self.normed, norm.eps, K=self.width, BD=_power_of_2(self.width),
            NORM=norm.kind, **self.launch_options,
        )  # fmt: skip
        return self.normed, "none"

    def _number_of_splits(self, processors: int) -> int:
        """The number of splits of the keys: enough for all processors, each with a block of keys or more."""
        blocks = -(-min(self.limit, self.window or self.limit) // self.key_block)
        splits = min(max(1, processors // (self.rows * self.kv_heads)), blocks, MAX_SPLITS)
        return _power_of_2(splits)

    def _launch_sizes(self, name: str, outputs: int, columns: int) -> dict[str, Any]:
        """The block sizes and launch parameters of a product, which its tile gives."""
        if name not in self.tiles:
            self.tiles[name] = choose_tile(
                outputs, columns, self.rows, bytes_=self.embedding.element_size(), lane_rows=self.lane_rows
            )  # fmt: skip
        tile, lanes = self.tiles[name], self.rows <= self.lane_rows
        rows = {"ROWS": _power_of_2(self.rows) if lanes else 16, "DOT": not lanes}
        return {
            **rows,
            "BN": tile.outputs,
            "BK": tile.columns,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }

    def _programs(self, name: str, outputs: int, columns: int) -> int:
        """The number of programs of a product."""
        return -(-outputs // int(self._launch_sizes(name, outputs, columns)["BN"]))


class _Norm:
    """The kind of a norm (layer, rms or none) and its parameters; a kernel does not read those that it lacks."""

    def __init__(self, kind: str, scale: Tensor, shift: Tensor, eps: float) -> None:
        self.kind, self.scale, self.shift, self.eps = kind, scale, shift, eps


class _BlockWeights:
    """The weights of a block, those of one input joined into one matrix."""

    def __init__(self, block: Block) -> None:
        attn, mlp = block.attn, block.mlp
        assert attn.out is not None
        qkv, up = (
            join(attn.query, attn.key, attn.value),
            mlp.up if mlp.gate is None else join(mlp.gate, mlp.up),
        )
        assert qkv is not None
        assert up is not None
        self.qkv, self.qkv_bias, self.up, self.up_bias = qkv.weight, qkv.bias, up.weight, up.bias
        self.out, self.out_bias = attn.out.weight, attn.out.bias
        self.down, self.down_bias = mlp.down.weight, mlp.down.bias
        self.kind, self.hidden = mlp.kind, mlp.up.out_features
        self.attn_norm, self.mlp_norm = (
            _norm(block.attn_norm, self.out),
            _norm(block.mlp_norm, self.out),
        )
        self.scale = 1.0 if attn.score == "dot" else attn.head_width**-0.5


def _norm(norm: nn.Module, dummy: Tensor) -> _Norm:
    if isinstance(norm, RMSNorm):
        return _Norm("rms", norm.weight, norm.weight, norm.eps or 0.0)
    if isinstance(norm, nn.LayerNorm):
        return _Norm("layer", norm.weight, norm.bias, norm.eps)
    return _Norm("none", dummy, dummy, 0.0)


def _supports_norm(norm: nn.Module) -> bool:
    if type(norm) is nn.LayerNorm:
        return norm.weight is not None and norm.bias is not None and len(norm.normalized_shape) == 1
    return type(norm) is nn.Identity or (
        type(norm) is RMSNorm and norm.weight is not None and norm.eps is not None
    )


def _supports(block: Block, like: Tensor) -> bool:
    if block.order != "pre" or block.cross is not None or not supports_block(block):
        return False
    if block.attn.qk_norm is not None or block.mlp.kind == "geglu":
        return False
    norms = _supports_norm(block.attn_norm) and _supports_norm(block.mlp_norm)
    maps = all(
        type(m) is Linear for m in (block.attn.query, block.attn.out, block.mlp.up, block.mlp.down)
    )
    return norms and maps and all(_matches(p, like) for p in block.parameters())


def _sizes(block: Block) -> tuple[int, int, int, int]:
    """The numbers of query heads and of key heads, the width of a head, and that of the MLP."""
    attn = block.attn
    return attn.heads, attn.kv_heads, attn.head_width, block.mlp.up.out_features


def _matches(weight: Tensor, like: Tensor) -> bool:
    return weight.dtype == like.dtype and weight.device == like.device and weight.is_contiguous()


def _or_dummy(bias: Tensor | None, other: Tensor) -> Tensor:
    return other if bias is None else bias


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is n or more."""
    return 1 << max(n - 1, 0).bit_length()

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
from ..models.hooks import Hooks
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
    if rows > lane_rows:  # matrix units take 16 rows of weights or more
        # 256 consecutive bytes of each row, a coalesced load
        return ProductTile(outputs=16 if outputs < 8192 else 32, columns=256 // bytes_)
    max_columns = 8192 // bytes_
    if rows == 1:
        return _tile_of_one_row(outputs, columns, max_columns, bytes_)
    columns_held = _power_of_2(columns)
    if columns_held > max_columns:
        # too long to be held whole: a loop over blocks of columns
        columns_held = max_columns // 2
    outputs_each = 2  # few, so that there are programs for all processors
    if outputs >= 16384:  # the output layer: fewer blocks for append_token to compare
        outputs_each = max(outputs_each, min(16, 16384 // columns_held) // _power_of_2(rows))
    warps = _warps(columns_held, bytes_)
    return ProductTile(outputs=outputs_each, columns=columns_held, warps=warps)


def _tile_of_one_row(outputs: int, columns: int, max_columns: int, bytes_: int) -> ProductTile:
    """The fastest tile that benchmarks/step.py finds on an H200 for a product of a single row."""
    columns_held = _power_of_2(columns)
    if columns > max_columns * 5 // 8:  # the MLP's down map: a row in several parts
        warps = 4 if columns < max_columns else 2
        return ProductTile(outputs=2, columns=max_columns // 2, warps=warps)
    if columns_held <= max_columns // 4:  # short rows
        warps = _warps(columns_held, bytes_)
        if outputs >= 2048:
            return ProductTile(outputs=8, columns=columns_held, warps=min(2, warps))
        return ProductTile(outputs=4, columns=columns_held, warps=warps)
    if 2048 < outputs < 8192 or outputs >= 16384:
        return ProductTile(outputs=8, columns=columns_held, warps=4)
    warps = 2 if outputs < 8192 else 4
    return ProductTile(outputs=4, columns=columns_held // 2, warps=warps)


def _warps(columns: int, bytes_: int) -> int:
    """The number of warps with which each thread loads 16 bytes of a row."""
    return max(1, min(4, columns * bytes_ // 512))


class GpuDecoder:
    """The steps of a model's decoder. `of` returns None for a model with an option that is not supported."""

    def __init__(
        self,
        stack: DecoderStack,
        rows: int,
        limit: int,
        *,
        tiles: Mapping[str, ProductTile] | None = None,
        pdl: bool | None = None,
        lane_rows: int = LANE_ROWS,
        splits: int | None = None,
        key_block: int = KEY_BLOCK,
    ) -> None:
        embed, positions, norm = stack.embed, stack.positions, stack.norm
        head = cast(Linear, stack.head)
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
        processors = 8
        if gpu:
            processors = torch.cuda.get_device_properties(like.device).multi_processor_count
        # programmatic dependent launch: since Hopper a kernel may begin before the one before it ends
        if pdl is None:
            pdl = gpu and torch.cuda.get_device_capability(like.device) >= (9, 0)
        self.launch_options: dict[str, Any] = {"PDL": pdl}
        if pdl:
            # PDL changes the kernel's code, launch_pdl its launch: both are needed
            self.launch_options["launch_pdl"] = True
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
        self.residual = new(rows, self.width)
        self.normed = new(rows, self.width, dtype=dtype)
        self.q = new(rows, self.heads * e, dtype=dtype)
        self.attention_out = new(rows, self.heads * e, dtype=dtype)
        # each split of the keys has an output and the log-sum-exp of its scores, which the last one combines
        self.partial_out = new(rows, self.splits, self.heads * e)
        self.lse = new(rows, self.splits, self.heads)
        self.finished_splits = new(rows, self.kv_heads, dtype=torch.int32)
        self.mlp_hidden = new(rows, self.hidden, dtype=dtype)
        self.logits = new(rows, self.vocab)
        # of each block of logits, for append_token
        logit_blocks = self._programs("logits", self.vocab, self.width)
        self.block_max = new(rows, logit_blocks)
        self.block_sum = new(rows, logit_blocks)
        self.block_argmax = new(rows, logit_blocks, dtype=torch.int32)
        self.token = new(rows, dtype=torch.long)  # the last token
        self.at = new(rows, dtype=torch.long)  # its position
        self.count = new(rows, dtype=torch.long)  # tokens written
        self.tokens = new(limit + 1, rows, dtype=torch.long)
        self.scores = new(limit + 1, rows)

    def _tabulate(self, positions: Positions) -> None:
        """Compute what every position adds to the residual stream, or the angles that it rotates by."""
        at = torch.arange(self.limit, device=self.residual.device)
        # a kernel without rotary positions does not read cos and sin
        self.position_table: Tensor | None = None
        self.rotary, self.cos, self.sin = "none", self.residual, self.residual
        if isinstance(positions, Learned):  # rows before the offset belong to no token
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
        on_gpu = like.device.type == "cuda" or INTERPRETED
        if not AVAILABLE or not on_gpu or torch.is_grad_enabled() or rows < 1 or not blocks:
            return None
        if like.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return None
        if stack.cross or stack.embed_norm is not None or not _supports_all(stack.positions):
            return None
        # the output layer is a product without bias, after a norm that a kernel knows
        norm, head = stack.norm, stack.head
        if type(head) is not Linear or head.bias is not None or not _supports_norm(norm):
            return None
        if not all(_matches(weight, like) for weight in (head.weight, *norm.parameters())):
            return None
        # all blocks share the static storage
        if not all(_supports(block, like) for block in blocks):
            return None
        sizes = {(*_sizes(block), block.mlp.kind) for block in blocks}
        hidden = blocks[0].mlp.up.out_features
        if len(sizes) != 1 or max(like.shape[1], hidden) > MAX_WIDTH:
            return None
        return GpuDecoder(stack, rows, limit, **options)

    @property
    def unhooked(self) -> bool:
        """True if no module that the kernels skip has a hook or a tap."""
        return not self.hooks.any()

    def begin(
        self,
        k: Sequence[Float[Tensor, "b g n e"]],
        v: Sequence[Float[Tensor, "b g n e"]],
        at: Int[Tensor, "b"],
        token: Int[Tensor, "b"],
        filled: int,
    ) -> None:
        """Continue from a KV cache with `filled` tokens; `at` is each row's position and `token` its last token."""
        # into the static storage, whose addresses a captured graph holds
        for own, given in zip((*self.k, *self.v), (*k, *v), strict=True):
            # only what is filled: the rest of the cache is never read
            own[:, :, :filled].copy_(given[:, :, :filled])
        self.token.copy_(token)
        self.at.copy_(at)
        self.count.zero_()
        x = F.embedding(token, self.embedding).float() * self.embed_scale
        if self.position_table is not None:
            # (b, d): each row at its own position
            x = x + self.position_table[at].float()
        self.residual.copy_(x)

    def __call__(self) -> Float[Tensor, "b v"]:
        """Run all blocks on the embedded token in the residual stream, and return the logits of the next one."""
        for layer, k, v in zip(self.layers, self.k, self.v, strict=True):
            # x + attention(norm(x)), then x + mlp(norm(x)): a pre-norm block in five kernels
            self.project_qkv(layer, k, v)
            self.attend(layer, k, v)
            self.add_projection("out", self.attention_out, layer.out, layer.out_bias)
            hidden = self.project_mlp(layer)
            self.add_projection("down", hidden, layer.down, layer.down_bias)
        return self.project_logits()

    def project_qkv(self, layer: _BlockWeights, k: Tensor, v: Tensor) -> None:
        """Compute the queries, and write the keys and values into the cache."""
        from .gpu_kernels import project_qkv, store_qkv

        norm, e, all_heads = layer.attn_norm, self.head_width, self.heads + 2 * self.kv_heads
        heads = {"HEADS": self.heads, "KV_HEADS": self.kv_heads, "E": e, "ROTARY": self.rotary}
        targets = (self.cos, self.sin, self.at, self.q, k, v)
        cache = (self.limit, k.stride(0), k.stride(1))
        x, norm_kind = self._normed_input(norm)
        if self.rows > KERNEL_ROWS:
            # many rows: torch multiplies, and one program per row and head rotates and stores
            y = F.linear(x, layer.qkv, layer.qkv_bias)
            sizes = {"BE": _power_of_2(e), "num_warps": 1}
            store = store_qkv[(self.rows, all_heads)]
            store(y, *targets, *cache, **sizes, **heads, **self.launch_options)
            return
        sizes = self._launch_sizes("qkv", all_heads * e, self.width)
        # a program computes rotary pairs of one head; rounded up
        pairs, pairs_each = (e + 1) // 2, sizes["BN"] // 2
        project = project_qkv[(all_heads * -(-pairs // pairs_each),)]
        weights = (layer.qkv, _or_dummy(layer.qkv_bias, x))
        inputs = (x, norm.scale, norm.shift, *weights, *targets, self.rows, norm.eps, *cache)
        kinds = self._input_options(norm_kind, layer.qkv_bias)
        project(*inputs, **kinds, **sizes, **heads, **self.launch_options)

    def attend(self, layer: _BlockWeights, k: Tensor, v: Tensor) -> None:
        """Compute the attention of each query over the cache."""
        from .gpu_kernels import attend

        # blocks of matrix units have 16 rows or more
        sizes = {
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "E": self.head_width,
            "BS": max(16, _power_of_2(self.heads // self.kv_heads)),
            "BE": max(16, _power_of_2(self.head_width)),
            "BLOCK": self.key_block,
            "SPLITS": self.splits,
            "WINDOW": self.window or 0,
            "num_warps": 4,
            "num_stages": 2,
        }
        # one program per row, key head and split
        run = attend[(self.rows * self.kv_heads, self.splits)]
        outputs = (self.partial_out, self.lse, self.finished_splits, self.attention_out)
        scale = layer.scale * LOG2E  # the kernel computes exp2
        inputs = (self.q, k, v, self.at, *outputs, scale, k.stride(0), k.stride(1))
        run(*inputs, **sizes, **self.launch_options)

    def add_projection(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Add a product to the residual stream; `name` is the key of its tile."""
        from .gpu_kernels import add_projection

        if self.rows > KERNEL_ROWS:
            # a product in the weights' dtype, added to the float32 stream
            self.residual += F.linear(x, weight, bias)
            return
        n, columns = weight.shape
        run = add_projection[(self._programs(name, n, columns),)]
        inputs = (x, weight, _or_dummy(bias, x), self.residual, self.rows, n)
        options = {"K": columns, "BIAS": bias is not None}
        sizes = self._launch_sizes(name, n, columns)
        run(*inputs, **options, **sizes, **self.launch_options)

    def project_mlp(self, layer: _BlockWeights) -> Tensor:
        """Compute the hidden units of the MLP."""
        from .gpu_kernels import project_mlp

        norm, gated = layer.mlp_norm, layer.kind == "swiglu"
        x, norm_kind = self._normed_input(norm)
        if self.rows > KERNEL_ROWS:
            y = F.linear(x, layer.up, layer.up_bias)
            if gated:
                # the joined map holds the gate first, then the up map
                return F.silu(y[:, : self.hidden]) * y[:, self.hidden :]
            return ACTIVATIONS[layer.kind](y)
        sizes = self._launch_sizes("up", layer.up.shape[0], self.width)
        units_each = sizes["BN"]
        if gated:  # a unit needs two rows of weights
            units_each = units_each // 2
        run = project_mlp[(-(-self.hidden // units_each),)]
        weights = (layer.up, _or_dummy(layer.up_bias, x))
        outputs = (self.mlp_hidden, self.rows, norm.eps, self.hidden)
        kinds = self._input_options(norm_kind, layer.up_bias)
        options = {"ACTIVATION": layer.kind, **kinds, **sizes, **self.launch_options}
        run(x, norm.scale, norm.shift, *weights, *outputs, **options)
        return self.mlp_hidden

    def project_logits(self) -> Tensor:
        """Compute the logits, and the maximum and sum of each block of them for `append_token`."""
        from .gpu_kernels import project_logits

        x, norm_kind = self._normed_input(self.norm)
        if self.rows > KERNEL_ROWS:
            self.logits.copy_(F.linear(x, self.head_weight))
            return self.logits
        run = project_logits[(self.block_max.shape[1],)]
        outputs = (self.logits, self.block_max, self.block_argmax, self.block_sum)
        inputs = (x, self.norm.scale, self.norm.shift, self.head_weight)
        options = {"K": self.width, "BD": _power_of_2(self.width), "NORM": norm_kind}
        sizes = self._launch_sizes("logits", self.vocab, self.width)
        options = {**options, **sizes, **self.launch_options}
        run(*inputs, *outputs, self.rows, self.norm.eps, self.vocab, **options)
        return self.logits

    def append_token(
        self, token: Int[Tensor, "b"] | None = None, score: Float[Tensor, "b"] | None = None
    ) -> None:
        """Append the likeliest token of each row, or the given one with its score, and embed it as the next input."""
        from .gpu_kernels import append_token

        # torch has computed the logits of many rows, so there are no maxima of blocks
        if token is None and self.rows > KERNEL_ROWS:
            top, token = self.logits.max(-1)
            score = top - self.logits.logsumexp(-1)
        blocks = self.block_max.shape[1]
        table = _or_dummy(self.position_table, self.embedding)
        options = {
            "K": self.width,
            "BD": _power_of_2(self.width),
            "BB": min(_power_of_2(blocks), LOGIT_BLOCKS),
            "GIVEN": token is not None,
            "POSITIONS": self.position_table is not None,
            "num_warps": 8,
        }
        # arguments in the order of the kernel's signature
        logits = (self.block_max, self.block_argmax, self.block_sum)
        given = (_or_dummy(token, self.token), _or_dummy(score, self.block_sum))
        written = (self.token, self.at, self.count, self.tokens, self.scores, self.residual)
        embedding = (self.embedding, table, self.embed_scale)
        sizes = (self.rows, blocks, table.shape[0] - 1)
        run = append_token[(self.rows,)]
        run(*logits, *given, *written, *embedding, *sizes, **options, **self.launch_options)

    def _normed_input(self, norm: _Norm) -> tuple[Tensor, str]:
        """The input of a product, and the norm that the product still has to apply to it."""
        from .gpu_kernels import normalise

        if self.rows <= self.lane_rows:
            return self.residual, norm.kind
        # matrix units read their input as it is
        options = {"K": self.width, "BD": _power_of_2(self.width), "NORM": norm.kind}
        inputs = (self.residual, norm.scale, norm.shift, self.normed, norm.eps)
        normalise[(self.rows,)](*inputs, **options, **self.launch_options)
        return self.normed, "none"

    def _input_options(self, norm_kind: str, bias: Tensor | None) -> dict[str, Any]:
        """The options of a kernel that reads the residual stream: its width, its norm, and whether it adds a bias."""
        sizes = {"K": self.width, "BD": _power_of_2(self.width)}
        return {**sizes, "NORM": norm_kind, "BIAS": bias is not None}

    def _number_of_splits(self, processors: int) -> int:
        """The number of splits of the keys: enough for all processors, each with a block of keys or more."""
        keys = min(self.limit, self.window or self.limit)
        blocks = -(-keys // self.key_block)  # rounded up
        # rows x key heads programs are there already
        splits = max(1, processors // (self.rows * self.kv_heads))
        return _power_of_2(min(splits, blocks, MAX_SPLITS))

    def _launch_sizes(self, name: str, outputs: int, columns: int) -> dict[str, Any]:
        """The block sizes and launch parameters of a product, which its tile gives."""
        if name not in self.tiles:
            # chosen once per product: all blocks have the same sizes
            bytes_ = self.embedding.element_size()
            self.tiles[name] = choose_tile(
                outputs, columns, self.rows, bytes_=bytes_, lane_rows=self.lane_rows
            )
        tile, lanes = self.tiles[name], self.rows <= self.lane_rows
        return {
            "ROWS": _power_of_2(self.rows) if lanes else 16,
            "DOT": not lanes,
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
    """The weights of a block; maps that read the same input are joined into one matrix."""

    def __init__(self, block: Block) -> None:
        attn, mlp = block.attn, block.mlp
        assert attn.out is not None
        qkv = join(attn.query, attn.key, attn.value)
        up = mlp.up if mlp.gate is None else join(mlp.gate, mlp.up)
        assert qkv is not None
        assert up is not None
        self.qkv, self.qkv_bias, self.up, self.up_bias = qkv.weight, qkv.bias, up.weight, up.bias
        self.out, self.out_bias = attn.out.weight, attn.out.bias
        self.down, self.down_bias = mlp.down.weight, mlp.down.bias
        self.kind, self.hidden = mlp.kind, mlp.up.out_features
        self.attn_norm = _norm(block.attn_norm, self.out)
        self.mlp_norm = _norm(block.mlp_norm, self.out)
        self.scale = 1.0 if attn.score == "dot" else attn.head_width**-0.5


def _norm(norm: nn.Module, dummy: Tensor) -> _Norm:
    """The kind and parameters of a norm, with `dummy` for those that it lacks."""
    if isinstance(norm, RMSNorm):
        return _Norm("rms", norm.weight, norm.weight, norm.eps or 0.0)
    if isinstance(norm, nn.LayerNorm):
        return _Norm("layer", norm.weight, norm.bias, norm.eps)
    return _Norm("none", dummy, dummy, 0.0)


def _supports_all(positions: Positions) -> bool:
    """True for positions that are added to all columns, or rotate all columns of a head."""
    if isinstance(positions, Vectors) and positions.join != "add":
        # concatenated vectors would make the residual stream wider than the embedding
        return False
    if isinstance(positions, Rotary) and positions.columns != positions.head:
        # the kernels rotate whole heads
        return False
    return supports_positions(positions)


def _supports_norm(norm: nn.Module) -> bool:
    """True for a norm that the kernels know, with all its parameters."""
    if type(norm) is nn.LayerNorm:
        return norm.weight is not None and norm.bias is not None and len(norm.normalized_shape) == 1
    if type(norm) is RMSNorm:
        return norm.weight is not None and norm.eps is not None
    return type(norm) is nn.Identity


def _supports(block: Block, like: Tensor) -> bool:
    """True for a block whose norms, maps and activation the kernels know, with parameters like the embeddings."""
    if block.order != "pre" or block.cross is not None or not supports_block(block):
        return False
    if block.attn.qk_norm is not None or block.mlp.kind == "geglu":
        return False
    if not _supports_norm(block.attn_norm) or not _supports_norm(block.mlp_norm):
        return False
    maps = (block.attn.query, block.attn.out, block.mlp.up, block.mlp.down)
    if any(type(m) is not Linear for m in maps):
        return False
    return all(_matches(p, like) for p in block.parameters())


def _sizes(block: Block) -> tuple[int, int, int, int]:
    """The number of query heads and of key heads, the head dimension, and the hidden width of the MLP."""
    attn = block.attn
    return attn.heads, attn.kv_heads, attn.head_width, block.mlp.up.out_features


def _matches(weight: Tensor, like: Tensor) -> bool:
    """True for a contiguous tensor of the same dtype on the same device."""
    return weight.dtype == like.dtype and weight.device == like.device and weight.is_contiguous()


def _or_dummy(tensor: Tensor | None, dummy: Tensor) -> Tensor:
    """Return `tensor`, or for None a placeholder: a kernel needs a pointer even for an argument it does not read."""
    return dummy if tensor is None else tensor


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is n or more."""
    return 1 << max(n - 1, 0).bit_length()

"""Distribution of a training over workers; models contain no code for it.

ddp    each worker holds the whole model; gradients are averaged               (Li et al. 2020)
fsdp   each worker holds a shard of each block, gathered when it is needed     (Zhao et al. 2023, FSDP2)
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..devices import find_device
from ..models import Model

T = TypeVar("T")
_TRAININGS = itertools.count()  # number of trainings of this process, equal on all workers


@dataclass(frozen=True, slots=True)
class World:
    """The workers of a run, and the rank and device of this one."""

    rank: int  # index of this worker
    size: int  # number of workers
    device: torch.device  # device of this worker
    # whether `join` created the process group, so that `leave` must destroy it
    joined: bool = False

    @staticmethod
    def join(device: str = "auto") -> World:
        """Join the workers that torchrun started; without torchrun, a world of this process alone."""
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        chosen = find_device(device)
        # each worker of torchrun has its own GPU
        if chosen.type == "cuda":
            chosen = torch.device("cuda", chosen.index or 0)
            torch.cuda.set_device(chosen)
        joined = "RANK" in os.environ and not dist.is_initialized()
        if joined:
            # With its own prefix: otherwise a second training in these processes would read the first one's addresses.
            store = next(dist.rendezvous("env://"))[0]  # type: ignore[attr-defined]
            store = dist.PrefixStore(f"training {next(_TRAININGS)}", store)  # type: ignore[attr-defined]
            # numbers of the host, such as the size of a batch, are summed on the host
            backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        return World(rank, size, chosen, joined)

    def leave(self) -> None:
        """Destroy the process group, if `join` created it."""
        if self.joined and dist.is_initialized():
            dist.destroy_process_group()

    def sum(self, *numbers: float | int) -> list[float]:
        """Sum each number over all workers, on the host, in one all-reduce."""
        if self.size == 1:
            # one worker has nothing to exchange, and perhaps no process group
            return [float(x) for x in numbers]
        total = torch.tensor(numbers, dtype=torch.float64)  # counts of tokens stay exact
        dist.all_reduce(total)
        return total.tolist()

    def barrier(self) -> None:
        """Wait until all workers have called this."""
        self.sum(0.0)

    def gather(self, rows: list[T]) -> list[T]:
        """The rows of all workers, in the order of the workers; each row consists of plain values."""
        if self.size == 1:
            return rows
        parts: list[Any] = [None] * self.size
        # pickled by torch, between workers of one training only
        dist.all_gather_object(parts, rows)
        return [row for part in parts for row in part]

    def broadcast(self, word: str) -> str:
        """Send a text from worker 0 to all workers."""
        if self.size == 1:
            return word
        # the others do not know the length before they have a buffer for the letters
        length = torch.tensor([len(word.encode())])
        dist.broadcast(length, 0)
        if not length:
            return ""
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0:
            letters = torch.frombuffer(bytearray(word.encode()), dtype=torch.uint8)
        dist.broadcast(letters, 0)
        return bytes(letters.tolist()).decode()


def blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The repeated parts of a model with their names: blocks.0, encoder.blocks.3, or stages.2.0 of a CNN."""
    for name, module in model.named_modules():
        if re.search(r"(^|\.)(blocks\.\d+|stages\.\d+\.\d+)$", name):
            yield name, module


def recompute(model: nn.Module) -> None:
    """Gradient checkpointing: recompute the activations of blocks in the backward pass (Chen et al. 2016)."""
    for _, block in blocks(model):
        # non-reentrant checkpoints allow hooks, keyword arguments and DDP
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def shard(model: nn.Module, world: World, precision: str) -> None:
    """Shard each block, and the rest of a model, over all workers (FSDP2); the forward pass gathers what it needs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(world.device.type, (world.size,))
    policy = MixedPrecisionPolicy()
    if precision == "bfloat16":  # gathered in bfloat16; gradients are summed in float32
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    # from the inside out: what the blocks do not have belongs to the model's own group
    for _, block in blocks(model):
        fully_shard(block, **options)
    # the output layer is used right after `states`
    fully_shard(model, **options, reshard_after_forward=False)
    for method in model.methods if isinstance(model, Model) else ():
        # FSDP2 gathers weights in `forward` alone, unless other methods are registered
        register_fsdp_forward_method(model, method)


def reshard(model: nn.Module) -> None:
    """Free the weights that a forward pass without a backward pass has gathered, which would soon be outdated."""
    if hasattr(model, "reshard"):
        model.reshard()  # type: ignore[operator]


def narrow(model: nn.Module) -> None:
    """Convert a model to bfloat16, except batch norms, whose running means need more than 8 significant bits."""
    for module in model.modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            # recurse=False: the children are visited by themselves, and may be batch norms
            module._apply(lambda x: x.bfloat16() if x.is_floating_point() else x, recurse=False)


class _Sum(torch.autograd.Function):
    """The sum over all workers; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # all_reduce works in place, and needs contiguous memory
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # an all-reduce, too: x of this worker is in the sum of every worker
        return _Sum.apply(grads[0])


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the rows of all workers, on any device; torch.nn.SyncBatchNorm needs GPUs."""

    @staticmethod
    def convert(model: nn.Module) -> None:
        """Convert every batch norm of a model in place."""
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                # parameters, buffers and hooks stay the module's own
                module.__class__ = SyncedBatchNorm

    # the only difference of torch's 1d, 2d and 3d classes
    def _check_input_dim(self, input: Tensor) -> None:
        return

    def forward(self, input: Tensor) -> Tensor:
        shape = [1, -1] + [1] * (input.ndim - 2)  # statistics (c) as (1, c, 1, ...)
        x = input.float()
        mean, variance = self.running_mean, self.running_var
        if self.training or mean is None or variance is None:
            mean, variance = self._measure(x, shape)
        out = (x - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            # (c) as (1, c, 1, ...)
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)

    def _measure(self, x: Tensor, shape: list[int]) -> tuple[Tensor, Tensor]:
        """The mean and variance of each channel over all workers; in training, also update the running ones."""
        axes = [i for i in range(x.ndim) if i != 1]
        count = x.new_full((1,), x.numel() / x.shape[1])
        sums = _Sum.apply(torch.cat([x.sum(axes), count]))  # (c + 1) in one exchange
        n = sums[-1]
        mean = sums[:-1] / n
        # Around the mean: E[x^2] - E[x]^2 would lose precision if the mean is large.
        variance = _Sum.apply((x - mean.view(shape)).square().sum(axes)) / n
        if self.training and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                share = self.momentum
                if share is None:  # the plain mean over all batches, as torch has it
                    share = 1.0 / float(self.num_batches_tracked)
                self.running_mean.lerp_(mean, share)
                # the running variance is the unbiased one
                self.running_var.lerp_(variance * n / (n - 1).clamp(min=1), share)
        return mean, variance


# Tensors that may be sharded over workers (DTensor)


def local(x: Tensor) -> Tensor:
    """This worker's shard of a sharded tensor, or the tensor itself; shares its memory."""
    return x.to_local() if hasattr(x, "to_local") else x


def whole(x: Tensor) -> Tensor:
    """A sharded tensor gathered from all workers, or the tensor itself."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def as_sharded(part: Tensor, like: Tensor) -> Tensor:
    """The tensor of which `part` is this worker's shard, if it is sharded like `like`; `part` itself if it is not."""
    if not hasattr(like, "to_local"):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        like.device_mesh,  # type: ignore[attr-defined]
        like.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def shard_of(tensor: Tensor, like: Tensor) -> Tensor:
    """This worker's shard of a tensor that all workers have, sharded like `like`, without communication."""
    if not hasattr(like, "to_local"):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    replicated = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(mesh, placements).to_local()


def wide(x: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it already is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first; their dtypes may differ."""
    if pairs:
        torch._foreach_copy_([local(a) for a, _ in pairs], [local(b) for _, b in pairs])

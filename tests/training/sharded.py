"""Run by test_optim.py as one of two processes: sharded parameters train like unsharded ones."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from clearhead.training.ema import EMA
from clearhead.training.optim.optimisers import OptimConfig, Optimiser

# Rows that do not divide by two, and a vector of one number, whose shard on the second process is empty.
SIZES = {"a.weight": (5, 7), "b.weight": (7, 5), "c.weight": (5, 7), "tokens.table": (9, 4), "d.bias": (1,)}


def train(shard, name, masters):
    """Weights, averages and norms after some steps on fixed gradients."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if masters else torch.float32
    place = (lambda x: distribute_tensor(x, mesh, [Shard(0)])) if shard else (lambda x: x)
    params = {n: nn.Parameter(place(torch.randn(s, generator=generator).to(dtype))) for n, s in SIZES.items()}
    optimiser = Optimiser(params, OptimConfig(name=name, lr=0.1), masters=masters)
    average = EMA(optimiser.weights(), params)
    norms = []
    for _ in range(3):
        for _ in range(2):
            for p in params.values():
                grad = place(torch.randn(p.shape, generator=generator).to(dtype))
                p.grad = grad if p.grad is None else p.grad + grad
            optimiser.gather()
        norms.append(optimiser.step(0.5))
        average.update(0.9)
    with average.running():
        averages = {n: p.detach().clone() for n, p in params.items()}
    kinds = {type(x) for k, x in optimiser.tensors().items() if not k.endswith("/step")}
    assert kinds == {DTensor if shard else torch.Tensor}, kinds
    assert {type(x) for x in norms} == {torch.Tensor}
    found = {**params, **{f"ema {n}": x for n, x in averages.items()}, **optimiser.tensors()}
    return norms, {n: x.full_tensor() if isinstance(x, DTensor) else x for n, x in found.items()}


dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
mesh = init_device_mesh("cpu", (2,))
for name in ("adamw", "sgd", "muon", "lamb"):
    for masters in (False, True):
        norms, one = train(False, name, masters)
        two_norms, two = train(True, name, masters)
        torch.testing.assert_close(two_norms, norms)
        torch.testing.assert_close(two, one)
dist.barrier()  # a worker that leaves early can make the other abort
dist.destroy_process_group()

"""One of three workers that save and fill DTensors over gloo. Run as a script: sharded_workers.py RANK FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from clearhead.training.checkpoints import Checkpoint, CheckpointWriter, step_name
from clearhead.weights.checkpoints.checkpoint import place

WHOLE = {
    "rows": torch.arange(7 * 3).reshape(7, 3).float(),
    "columns": torch.arange(4 * 5).reshape(4, 5).to(torch.bfloat16),
    "one": torch.tensor([[9, 8]]),  # fewer rows than workers: some shards are empty
    "copies": torch.tensor([True, False, True]),
    "plain": torch.tensor(3.25),
}
PLACED = {"rows": Shard(0), "columns": Shard(1), "one": Shard(0), "copies": Replicate()}


def spread(mesh: DeviceMesh, zero: bool = False) -> dict[str, torch.Tensor]:
    """The tensors over the workers of a mesh, or empty ones of the same layout."""
    source = {name: torch.zeros_like(x) if zero else x.clone() for name, x in WHOLE.items()}
    return {n: distribute_tensor(x, mesh, [PLACED[n]]) if n in PLACED else x for n, x in source.items()}


def same(given: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(x.full_tensor() if isinstance(x, DTensor) else x, WHOLE[name]) for name, x in given.items())


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=3)
    two, three = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [0, 1, 2])

    # Two workers save; the third is not in their mesh.
    tensors = spread(two)
    if rank < 2:
        writer = CheckpointWriter(folder / "two", rank=rank, world=2, attempt="a", timeout=30)
        for _ in range(2):  # the second replaces the first
            writer.save(1, tensors, {"by": rank})
            writer.wait()
            assert Checkpoint(folder / "two" / step_name(1)).facts == {"by": 0}
    dist.barrier()

    # Three workers read what two have saved, and two what one has saved.
    for mesh, source, members in [(three, "two", 3), (two, "one", 2)]:
        empty = spread(mesh, zero=True)
        checkpoint = Checkpoint(folder / source / step_name(1))
        if rank < members:
            for name, tensor in empty.items():
                checkpoint.fill(name, tensor)
            assert same(empty), (rank, source)
        dist.barrier()

    # Shards and offsets equal torch's.
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for length in range(9):
        for dim in (0, 1):
            shape = (length, 3) if dim == 0 else (3, length)
            piece, offset, _ = place(distribute_tensor(torch.zeros(shape), three, [Shard(dim)]))
            theirs = compute_local_shape_and_global_offset(torch.Size(shape), three, [Shard(dim)])
            assert tuple(piece.shape) == tuple(theirs[0]), (shape, dim)
            if piece.numel():
                assert offset == tuple(theirs[1]), (shape, dim)

    # FSDP2: parameters and the optimiser's state, in place.
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 2))
    fully_shard(model, mesh=three)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    tensors = {f"model.{name}": p for name, p in model.named_parameters()}
    for i, p in enumerate(model.parameters()):
        tensors |= {f"optim.{i}.{key}": value for key, value in optimizer.state[p].items()}
    writer = CheckpointWriter(folder / "fsdp", rank=rank, world=3, attempt="b", timeout=30)
    writer.save(5, tensors, {"seen": 10})
    writer.wait()
    before = {name: (x.full_tensor() if isinstance(x, DTensor) else x).clone() for name, x in tensors.items()}
    with torch.no_grad():
        for x in tensors.values():
            x.zero_()
    checkpoint = Checkpoint(folder / "fsdp" / step_name(5))
    for name, x in tensors.items():
        checkpoint.fill(name, x)
        assert torch.equal(x.full_tensor() if isinstance(x, DTensor) else x, before[name]), name
        assert torch.equal(checkpoint.read(name), before[name]), name
    assert checkpoint.names == list(tensors)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

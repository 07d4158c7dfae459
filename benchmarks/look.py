"""CKA of two 12-layer models over many images, and a map of what the class token attends to in a large image.

    python benchmarks/look.py cka --device cuda --dtype bfloat16               # two ViT-B/16, 10,000 images
    python benchmarks/look.py cka --images 64 --size 32 --patch 8 --width 96   # on a CPU
    python benchmarks/look.py map --device cuda --dtype bfloat16               # ViT-B/16 at 1,024 x 1,024 pixels

cka   "exact" is `look.cka` on mean features: debiased, over all images at once. "minibatch" is `look.cka` on flat
      features, the measure of torch-cka. "per pair" is the loop of torch-cka (AntixK, version 0.21), written again
      here: for every pair of layers both kernel matrices and three HSICs, each read by the host. All read the same
      images in the same batches. "forward" is the two models alone. Memory is the largest above that of the models and
      images, for all images and for a quarter of them. If torch-cka is installed, it runs as well. It takes no bfloat16
      models, and its sums overflow under autocast: "torch-cka" has the same weights in float32.
map   The plain forward pass, and the same with the row of the class token in the last block, all heads.

Times are medians of interleaved rounds.
"""

import argparse
import copy
import importlib.util
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import clearhead as ch


def hsic(k: Tensor, other: Tensor) -> float:
    """The unbiased HSIC of two kernel matrices without diagonals (Song et al. 2012, Eq. 5)."""
    n, ones = len(k), torch.ones(len(k), 1, device=k.device, dtype=k.dtype)
    result = torch.trace(k @ other)
    result += ((ones.T @ k @ ones @ ones.T @ other @ ones) / ((n - 1) * (n - 2))).item()
    result -= ((ones.T @ k @ other @ ones) * 2 / (n - 2)).item()
    return (result / (n * (n - 3))).item()


def kernel(x: Tensor) -> Tensor:
    flat = x.flatten(1).float()
    return (flat @ flat.T).fill_diagonal_(0.0)


@torch.no_grad()
def per_pair(a: nn.Module, b: nn.Module, images: Tensor, rows: int) -> Tensor:
    """CKA of all pairs of layers, as torch-cka computes it."""
    sums = torch.zeros(len(a.blocks), len(b.blocks), 3, dtype=torch.float64)
    for batch in images.split(rows):
        with ch.watch(a, "blocks.*") as first, ch.watch(b, "blocks.*") as second:
            a(batch), b(batch)
        for i, name in enumerate(first.names):
            k = kernel(first[name])
            own = hsic(k, k)
            for j, other in enumerate(second.names):
                m = kernel(second[other])
                sums[i, j] += torch.tensor([own, hsic(k, m), hsic(m, m)], dtype=torch.float64)
    return sums[..., 1] / (sums[..., 0] * sums[..., 2]).sqrt()


class Batches:
    """What torch-cka reads of a DataLoader, without its work per image."""

    def __init__(self, images: Tensor, rows: int) -> None:
        self.dataset, self.parts = "images", images.split(rows)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[tuple[Tensor]]:
        return ((part.float(),) for part in self.parts)


def torch_cka(a: nn.Module, b: nn.Module, images: Tensor, rows: int) -> Tensor:
    """CKA by torch-cka itself, as its README shows."""
    from torch_cka import CKA

    layers = [f"blocks.{i}" for i in range(len(a.blocks))]
    names = {
        "model1_name": "a",
        "model2_name": "b",
        "model1_layers": layers,
        "model2_layers": layers,
    }
    made = CKA(
        copy.deepcopy(a).float(), copy.deepcopy(b).float(), **names, device=str(images.device)
    )
    with warnings.catch_warnings(action="ignore"):
        made.compare(Batches(images, rows))
    return made.export()["CKA"]


def exact(a: nn.Module, b: nn.Module, images: Tensor, rows: int) -> Tensor:
    return torch.from_numpy(ch.look.cka(a, b, data=images, rows=rows).matrix)


def minibatch(a: nn.Module, b: nn.Module, images: Tensor, rows: int) -> Tensor:
    options = {"features": "flat", "estimator": "minibatch", "rows": rows}
    return torch.from_numpy(ch.look.cka(a, b, data=images, **options).matrix)


@torch.no_grad()
def forward(a: nn.Module, b: nn.Module, images: Tensor, rows: int) -> None:
    for batch in images.split(rows):
        a(batch), b(batch)


@torch.no_grad()
def plain(model: nn.Module, images: Tensor) -> Tensor:
    return model(images)


@torch.no_grad()
def class_map(model: nn.Module, images: Tensor) -> Tensor:
    name = f"blocks.{len(model.blocks) - 1}.attn.weights"
    with ch.watch(model, name, keep=lambda map: map.row(0)) as tape:
        model(images)
    return tape.calls(name)[0]


def measured(work: Callable, *given) -> tuple[float, int, object]:
    """Seconds, the largest memory above the present in bytes, and the result."""
    cuda = any(isinstance(x, Tensor) and x.is_cuda for x in given)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    start = time.perf_counter()
    result = work(*given)
    if cuda:
        torch.cuda.synchronize()
    return (
        time.perf_counter() - start,
        (torch.cuda.max_memory_allocated() if cuda else 0) - before,
        result,
    )


def model(args: argparse.Namespace, size: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    heads = max(args.width // 64, 1)
    made = ch.build("vit", size=size, patch=args.patch, width=args.width, depth=12, heads=heads)
    return made.to(args.device, args.dtype).eval()


def compare_cka(args: argparse.Namespace) -> dict[str, object]:
    models = [model(args, args.size, seed) for seed in (0, 1)]
    shape = (args.images, 3, args.size, args.size)
    images = torch.randn(
        shape, generator=torch.Generator(args.device).manual_seed(0), device=args.device
    )
    images = images.to(args.dtype)
    ways = {"forward": forward, "exact": exact, "minibatch": minibatch, "per pair": per_pair}
    if importlib.util.find_spec("torch_cka"):
        ways["torch-cka"] = torch_cka
    times: dict[str, list[float]] = {name: [] for name in ways}
    memory: dict[str, list[int]] = {name: [] for name in ways}
    found: dict[str, object] = {}
    for work in ways.values():  # warms up
        work(*models, images[: args.rows], args.rows)
    for name, work in ways.items():
        memory[name].append(measured(work, *models, images[: args.images // 4], args.rows)[1])
    for _ in range(args.rounds):
        for name, work in ways.items():
            seconds, peak, found[name] = measured(work, *models, images, args.rows)
            times[name].append(seconds)
            memory[name].append(peak)
    median = {name: statistics.median(some) for name, some in times.items()}
    same = (found["minibatch"] - found["per pair"]).abs().max()
    return {
        "images": args.images,
        "rows": args.rows,
        "size": args.size,
        "width": args.width,
        "seconds": median,
        "times of": {
            way: {
                name: some / median[way]
                for name, some in median.items()
                if name not in ("forward", way)
            }
            for way in ("exact", "minibatch")
        },
        "MiB for a quarter of the images, and for all": {
            name: [some[0] / 2**20, max(some[1:]) / 2**20] for name, some in memory.items()
        },
        "largest difference of minibatch and per pair": float(same),
    }


def compare_map(args: argparse.Namespace) -> dict[str, object]:
    made = model(args, args.pixels, 0)
    images = torch.randn(1, 3, args.pixels, args.pixels, device=args.device).to(args.dtype)
    times: dict[str, list[float]] = {"plain": [], "class_map": []}
    for turn in range(args.rounds + 3):  # the first turns warm up
        for name, work in (("plain", plain), ("class_map", class_map)):
            seconds = measured(work, made, images)[0]
            if turn >= 3:
                times[name].append(seconds)
    median = {name: statistics.median(some) for name, some in times.items()}
    return {
        "pixels": args.pixels,
        "seconds": median,
        "ratio": median["class_map"] / median["plain"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cka", "map"])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=250, help="images per batch")
    parser.add_argument("--size", type=int, default=224, help="cka: height and width of the images")
    parser.add_argument(
        "--pixels", type=int, default=1024, help="map: height and width of the image"
    )
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.float32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    result = {"cka": compare_cka, "map": compare_map}[args.what](args)
    print(json.dumps({"device": args.device, "dtype": str(args.dtype), **result}, indent=1))


if __name__ == "__main__":
    main()

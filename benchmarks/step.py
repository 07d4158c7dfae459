"""Where the time of a captured step goes on a GPU: each kernel, the bytes that it must read, and how fast it does.

    python benchmarks/step.py                      # one row: every kernel, and the whole step
    python benchmarks/step.py --tiles              # and what programs of other sizes would take
    python benchmarks/step.py --rows 1 2 4 8 16 64 # whole steps of more rows, by each way to multiply

Kernels are timed in graphs of many layers, whose weights together are larger than the cache, so that none is read from
there twice. A whole step writes the likeliest token; bytes are those of weights, and of keys and values.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch

import clearhead as ch
from clearhead.fast import gpu_decode
from clearhead.fast.gpu_decode import Stepper, Tile

SHAPES: dict[str, dict[str, Any]] = {
    "llama-1.1b": {
        "vocab": 32000, "width": 2048, "depth": 22, "heads": 32, "kv_heads": 4, "hidden": 5632, "context": 2048,
        "positions": "rotary", "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False,
    },
    "gpt2-124m": {"vocab": 50257},
}  # fmt: skip
MANY = {"llama-1.1b": 22, "gpt2-124m": 96}  # layers whose kernels do not fit into the cache, one kind at a time
FILLED, LIMIT = 640, 768
DEVICE = "cuda"


def made(shape: str, depth: int) -> Any:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return ch.build("gpt", **{**SHAPES[shape], "depth": depth}).to(DEVICE, torch.bfloat16).eval()


def stepper(model: Any, rows: int, **how: Any) -> Stepper:
    found = Stepper.of(
        model.embed, model.positions, model.blocks, model.norm, model.head, None, rows, LIMIT, **how
    )  # fmt: skip
    assert found is not None
    found.at.fill_(FILLED)
    for x in (found.stream, found.q, found.said, found.inside, *found.k, *found.v):
        torch.nn.init.normal_(x)
    return found


def microseconds(launch: Callable[[], object], rounds: int = 5, each: int = 5) -> float:
    """Of one replay of what is launched."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(each):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / each)
    return statistics.median(times)


def kernels(s: Stepper) -> dict[str, tuple[Callable[[], object], int, int]]:
    """For each kernel what launches it for all layers (or a few times), how often that is, and the bytes of one."""
    layers = list(zip(s.layers, s.k, s.v, strict=True))
    first, n = s.layers[0], len(s.layers)
    seen = 2 * s.rows * s.groups * s.head * (FILLED + 1) * s.k[0].element_size()

    def each(run: Callable[..., object]) -> Callable[[], object]:
        return lambda: [run(*layer) for layer in layers]

    return {
        "ask": (each(s.ask), n, first.qkv.nbytes),
        "attend": (each(s.attend), n, seen),
        "out": (each(lambda one, *_: s.add("out", s.said, one.out, one.out_bias)), n, first.out.nbytes),
        "inner": (each(lambda one, *_: s.inner(one)), n, first.up.nbytes),
        "down": (each(lambda one, *_: s.add("down", s.inside, one.down, one.down_bias)), n, first.down.nbytes),
        "read_out": (lambda: [s.read_out() for _ in range(4)], 4, s.readout.nbytes),
    }


def whole(s: Stepper) -> float:
    """Microseconds of a step; what it writes goes over what it wrote before."""

    def one() -> None:
        s.at.fill_(FILLED)
        s.count.zero_()
        s()
        s.take()

    return microseconds(one)


def table(shape: str, many: Any) -> None:
    s = stepper(many, 1)
    for name, (launch, n, size) in kernels(s).items():
        took = microseconds(launch) / n
        tile = s.tiles.get(name)
        print(
            f"{shape:11s} {name:9s} {took:7.2f} us  {size / 1e6:7.2f} MB  {size / took / 1e6:5.2f} TB/s  {tile or ''}"
        )


def candidates(columns: int) -> list[Tile]:
    """Programs of other sizes, each thread with 16 bytes of a row at a time and 32 to 128 weights in all."""
    least = min(1 << (columns - 1).bit_length(), 8192)
    widths = sorted({least, min(least, 2048), min(least, 1024), min(least, 512) if least <= 1024 else least})
    return [
        Tile(outputs=outputs, columns=held, warps=warps)
        for outputs, held, warps in itertools.product((2, 4, 8, 16), widths, (2, 4, 8))
        if held >= 256 * warps and 32 <= outputs * held // (32 * warps) <= 128
    ]


def room(s: Stepper, tile: Tile) -> None:
    """What read_out leaves for `pick`, for blocks of this size."""
    blocks = -(-s.vocab // tile.outputs)
    s.most, s.total = (torch.zeros(s.rows, blocks, device=DEVICE) for _ in range(2))
    s.which = torch.zeros(s.rows, blocks, device=DEVICE, dtype=torch.int32)


def search_tiles(shape: str, many: Any) -> dict[str, Tile]:
    s, best = stepper(many, 1), {}
    columns = {"out": s.heads * s.head, "down": s.hidden}
    for name, (launch, n, size) in kernels(s).items():
        if name == "attend":
            continue
        times = []
        for tile in candidates(columns.get(name, s.width)):
            s.tiles[name] = tile
            if name == "read_out":
                room(s, tile)
            times.append((microseconds(launch, rounds=3) / n, tile))
        times.sort(key=lambda one: one[0])
        best[name] = times[0][1]
        for took, tile in times[:4]:
            print(
                f"{shape:11s} {name:9s} {took:7.2f} us  {size / took / 1e6:5.2f} TB/s  "
                f"outputs {tile.outputs:2d} columns {tile.columns:4d} warps {tile.warps}"
            )
    for keys, splits in itertools.product((32, 64, 128), (4, 8, 16, 32)):
        s = stepper(many, 1, keys=keys, splits=splits)
        launch, n, _ = kernels(s)["attend"]
        print(f"{shape:11s} attend    {microseconds(launch, rounds=3) / n:7.2f} us  keys {keys} splits {splits}")
    return best


def bytes_of(model: Any, s: Stepper) -> int:
    unread = 0 if model.config.tied else model.embed.table.nbytes
    seen = 2 * len(s.layers) * s.rows * s.groups * s.head * (FILLED + 1) * 2
    return sum(p.nbytes for p in model.parameters()) - unread + seen


def report(label: str, model: Any, s: Stepper) -> None:
    took = whole(s)
    print(
        f"{label:44s} {took:8.1f} us a step  {s.rows / took * 1e6:9.0f} tokens/s  "
        f"{bytes_of(model, s) / took / 1e6:5.2f} TB/s"
    )


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="*", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--tiles", action="store_true", help="try programs of other sizes")
    parser.add_argument("--rows", type=int, nargs="*", default=[1])
    args = parser.parse_args()
    for shape in args.shape:
        many, model = made(shape, MANY[shape]), made(shape, SHAPES[shape].get("depth", 12))
        table(shape, many)
        best = search_tiles(shape, many) if args.tiles else {}
        del many
        for rows in args.rows:
            ways: dict[str, dict[str, Any]] = {"by matrix units": {"few": 0}}
            if rows <= gpu_decode.FEW:
                ways = {"": {}, "launched one after another": {"pdl": False}, **ways}
            if rows == 1 and best:
                ways["with the best of these tiles"] = {"tiles": best}
            for label, how in ways.items():
                if rows <= gpu_decode.MATRIX:
                    report(f"{shape}, {rows} rows {label}", model, stepper(model, rows, **how))
            usual, gpu_decode.MATRIX = gpu_decode.MATRIX, 0
            report(f"{shape}, {rows} rows by torch's products", model, stepper(model, rows, few=0))
            gpu_decode.MATRIX = usual


if __name__ == "__main__":
    main()

"""The time of a decode step on a GPU: each kernel, the bytes that it must read, and the bandwidth that it reaches.

    python benchmarks/step.py                      # one row: every kernel, and the whole step
    python benchmarks/step.py --tiles              # and the time of each kernel with other tiles
    python benchmarks/step.py --rows 1 2 4 8 16 64 # whole steps of more rows, with each kind of product

Each kernel is timed in a CUDA graph over many layers, whose weights together are larger than the cache, so that every
launch reads its weights from memory. A whole step appends the likeliest token; its bytes are those of the weights and
of the KV cache.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import clearhead as ch
from clearhead.fast import gpu_decode
from clearhead.fast.gpu_decode import GpuDecoder, ProductTile

SHAPES: dict[str, dict[str, Any]] = {
    "llama-1.1b": {
        "vocab": 32000,
        "width": 2048,
        "depth": 22,
        "heads": 32,
        "kv_heads": 4,
        "hidden": 5632,
        "context": 2048,
        "positions": "rotary",
        "norm": "rms",
        "mlp": "swiglu",
        "bias": False,
        "tied": False,
    },
    "gpt2-124m": {"vocab": 50257},
}
# layers: enough that one kind of weights does not fit into the cache
MANY = {"llama-1.1b": 22, "gpt2-124m": 96}
FILLED, LIMIT = 640, 768  # tokens in the KV cache, and its size
DEVICE = "cuda"


def build(shape: str, depth: int) -> Any:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return (
            ch.build("gpt", **{**SHAPES[shape], "depth": depth}).to(DEVICE, torch.bfloat16).eval()
        )


def decoder_of(model: Any, rows: int, **options: Any) -> GpuDecoder:
    decoder = GpuDecoder.of(model.decoder_stack, rows, LIMIT, **options)
    assert decoder is not None
    decoder.at.fill_(FILLED)
    for x in (
        decoder.residual,
        decoder.q,
        decoder.attention_out,
        decoder.mlp_hidden,
        *decoder.k,
        *decoder.v,
    ):
        torch.nn.init.normal_(x)
    return decoder


def microseconds(launch: Callable[[], object], rounds: int = 5, each: int = 5) -> float:
    """The time of one replay of the launched kernels: the median of several rounds."""
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


def kernels(decoder: GpuDecoder) -> dict[str, tuple[Callable[[], object], int, int]]:
    """For each kernel: a function that launches it for all layers, the number of launches, and the bytes of one."""
    d, layers = decoder, list(zip(decoder.layers, decoder.k, decoder.v, strict=True))
    first, n = d.layers[0], len(d.layers)
    cache_bytes = 2 * d.rows * d.kv_heads * d.head_width * (FILLED + 1) * d.k[0].element_size()

    def each(run: Callable[..., object]) -> Callable[[], object]:
        return lambda: [run(*layer) for layer in layers]

    def out(layer: Any, *_: object) -> None:
        d.add_projection("out", d.attention_out, layer.out, layer.out_bias)

    def down(layer: Any, *_: object) -> None:
        d.add_projection("down", d.mlp_hidden, layer.down, layer.down_bias)

    return {
        "qkv": (each(d.project_qkv), n, first.qkv.nbytes),
        "attend": (each(d.attend), n, cache_bytes),
        "out": (each(out), n, first.out.nbytes),
        "up": (each(lambda layer, *_: d.project_mlp(layer)), n, first.up.nbytes),
        "down": (each(down), n, first.down.nbytes),
        "logits": (lambda: [d.project_logits() for _ in range(4)], 4, d.head_weight.nbytes),
    }


def step_time(decoder: GpuDecoder) -> float:
    """Microseconds of a step, always at the same position."""

    def one() -> None:
        decoder.at.fill_(FILLED)
        decoder.count.zero_()
        decoder()
        decoder.append_token()

    return microseconds(one)


def kernel_table(shape: str, many: Any) -> None:
    decoder = decoder_of(many, 1)
    for name, (launch, n, size) in kernels(decoder).items():
        took = microseconds(launch) / n
        tile = decoder.tiles.get(name)
        print(
            f"{shape:11s} {name:9s} {took:7.2f} us  {size / 1e6:7.2f} MB  {size / took / 1e6:5.2f} TB/s  {tile or ''}"
        )


def candidates(columns: int) -> list[ProductTile]:
    """Tiles to try, in which each thread loads 16 bytes of a row at a time and 32 to 128 weights in all."""
    least = min(1 << (columns - 1).bit_length(), 8192)
    widths = sorted(
        {least, min(least, 2048), min(least, 1024), min(least, 512) if least <= 1024 else least}
    )
    return [
        ProductTile(outputs=outputs, columns=columns_held, warps=warps)
        for outputs, columns_held, warps in itertools.product((2, 4, 8, 16), widths, (2, 4, 8))
        if columns_held >= 256 * warps and 32 <= outputs * columns_held // (32 * warps) <= 128
    ]


def allocate_blocks(decoder: GpuDecoder, tile: ProductTile) -> None:
    """Allocate the maxima and sums of blocks of logits of this size."""
    blocks = -(-decoder.vocab // tile.outputs)
    decoder.block_max, decoder.block_sum = (
        torch.zeros(decoder.rows, blocks, device=DEVICE) for _ in range(2)
    )
    decoder.block_argmax = torch.zeros(decoder.rows, blocks, device=DEVICE, dtype=torch.int32)


def search_tiles(shape: str, many: Any) -> dict[str, ProductTile]:
    decoder, best = decoder_of(many, 1), {}
    columns = {"out": decoder.heads * decoder.head_width, "down": decoder.hidden}
    for name, (launch, n, size) in kernels(decoder).items():
        if name == "attend":
            continue
        times = []
        for tile in candidates(columns.get(name, decoder.width)):
            decoder.tiles[name] = tile
            if name == "logits":
                allocate_blocks(decoder, tile)
            times.append((microseconds(launch, rounds=3) / n, tile))
        times.sort(key=lambda one: one[0])
        best[name] = times[0][1]
        for took, tile in times[:4]:
            print(
                f"{shape:11s} {name:9s} {took:7.2f} us  {size / took / 1e6:5.2f} TB/s  "
                f"outputs {tile.outputs:2d} columns {tile.columns:4d} warps {tile.warps}"
            )
    for keys, splits in itertools.product((32, 64, 128), (4, 8, 16, 32)):
        decoder = decoder_of(many, 1, key_block=keys, splits=splits)
        launch, n, _ = kernels(decoder)["attend"]
        print(
            f"{shape:11s} attend    {microseconds(launch, rounds=3) / n:7.2f} us  keys {keys} splits {splits}"
        )
    return best


def bytes_read(model: Any, decoder: GpuDecoder) -> int:
    unread = 0 if model.config.tied else model.embed.table.nbytes
    cache_bytes = (
        2
        * len(decoder.layers)
        * decoder.rows
        * decoder.kv_heads
        * decoder.head_width
        * (FILLED + 1)
        * 2
    )
    return sum(p.nbytes for p in model.parameters()) - unread + cache_bytes


def report(label: str, model: Any, decoder: GpuDecoder) -> None:
    took = step_time(decoder)
    print(
        f"{label:44s} {took:8.1f} us per step  {decoder.rows / took * 1e6:9.0f} tokens/s  "
        f"{bytes_read(model, decoder) / took / 1e6:5.2f} TB/s"
    )


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape",
        nargs="*",
        choices=[*SHAPES],
        default=[*SHAPES],
        help="models to measure; all if not given",
    )
    parser.add_argument(
        "--tiles", action="store_true", help="also time each kernel with other tiles"
    )
    parser.add_argument(
        "--rows", type=int, nargs="*", default=[1], help="batch sizes of the whole steps"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device, and there is none")
    for shape in args.shape:
        many, model = build(shape, MANY[shape]), build(shape, SHAPES[shape].get("depth", 12))
        kernel_table(shape, many)
        best = search_tiles(shape, many) if args.tiles else {}
        del many
        for rows in args.rows:
            variants: dict[str, dict[str, Any]] = {"by matrix units": {"lane_rows": 0}}
            if rows <= gpu_decode.LANE_ROWS:
                variants = {"": {}, "without dependent launch": {"pdl": False}, **variants}
            if rows == 1 and best:
                variants["with the best of these tiles"] = {"tiles": best}
            for label, options in variants.items():
                if rows <= gpu_decode.KERNEL_ROWS:
                    report(
                        f"{shape}, {rows} rows {label}", model, decoder_of(model, rows, **options)
                    )
            original, gpu_decode.KERNEL_ROWS = gpu_decode.KERNEL_ROWS, 0
            report(
                f"{shape}, {rows} rows by torch's products",
                model,
                decoder_of(model, rows, lane_rows=0),
            )
            gpu_decode.KERNEL_ROWS = original


if __name__ == "__main__":
    main()

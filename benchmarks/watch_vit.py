"""The cost of watching a ViT-B/16 on large images: entropy and grid distance of every layer and head.

    python benchmarks/watch_vit.py --device cuda --dtype bfloat16          # 1,024 x 1,024 pixels, 4,096 patches
    python benchmarks/watch_vit.py --pixels 384                            # on a CPU

One model with random weights, plain and watched, in interleaved rounds of one run. The class token has no place in the
grid: distances leave out the weight on it.
"""

import argparse
import json
import statistics
import time

import torch
from torch import Tensor, nn

import clearhead as ch


def plain(model: nn.Module, images: Tensor) -> Tensor:
    return model(images)


def watched(model: nn.Module, images: Tensor) -> dict[str, dict[str, Tensor]]:
    side = images.shape[-1] // 16

    def keep(map: ch.look.AttentionMap) -> dict[str, Tensor]:
        return ch.look.statistics(
            map.sources[0], "entropy", "distance", grid=(side, side), special=1
        )

    with ch.watch(model, "blocks.*.attn.weights", keep=keep) as tape:
        model(images)
    return {name: tape.calls(name)[0] for name in tape.names}


def seconds(work, *given) -> float:
    cuda = given[1].is_cuda
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    work(*given)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pixels", type=int, default=1024, help="height and width of the images")
    parser.add_argument("--rows", type=int, default=4, help="images per batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.float32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = ch.build("vit", size=args.pixels).to(args.device, args.dtype).eval()
    for block in model.blocks:  # so that attention is not uniform
        nn.init.normal_(block.attn.query.weight, std=0.06)
    images = torch.randn(
        args.rows, 3, args.pixels, args.pixels, device=args.device, dtype=args.dtype
    )
    times: dict[str, list[float]] = {"plain": [], "watched": []}
    for turn in range(args.rounds + 1):  # the first turn warms up
        for name, work in (("plain", plain), ("watched", watched)):
            taken = seconds(work, model, images)
            if turn:
                times[name].append(taken)
    median = {name: statistics.median(list_) for name, list_ in times.items()}
    found = next(iter(watched(model, images).values()))
    print(
        json.dumps(
            {
                "pixels": args.pixels,
                "rows": args.rows,
                "device": args.device,
                "dtype": str(args.dtype),
                "seconds": median,
                "ratio": median["watched"] / median["plain"],
                "entropy, distance of layer 0": [
                    float(found[name].nanmean()) for name in ("entropy", "distance")
                ],
            }
        )
    )


if __name__ == "__main__":
    main()

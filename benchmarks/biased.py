"""Time and memory of attention with a bias or a window, forward and backward, beside plain causal attention.

    python benchmarks/biased.py --device cuda --dtype bfloat16 --tokens 16384
    python benchmarks/biased.py --tokens 2048

One layer of 12 heads with head dimension 64. All three stay fused: no tensor of 12 x tokens^2 scores is held.
"""

import argparse
import statistics
import time

import torch

from clearhead.layers import Alibi, Mask, attend


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.float32)
    parser.add_argument(
        "--turns", type=int, default=5, help="timed runs of each; the median is printed"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(
            1, 12, args.tokens, 64, device=args.device, dtype=args.dtype, requires_grad=True
        )
        for _ in range(3)
    )
    at, alibi = torch.arange(args.tokens, device=args.device), Alibi(12).to(args.device)
    causal, window = Mask(causal=True), Mask(causal=True, window=1024)
    calls = {
        "causal": lambda: attend(q, k, v, mask=causal),
        "causal, ALiBi": lambda: attend(q, k, v, mask=causal, bias=alibi.bias(at, at)),
        "causal, window of 1,024": lambda: attend(q, k, v, mask=window),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    peak: dict[str, float] = {}
    for turn in range(args.turns + 1):  # the first turn warms up, and compiles
        for name, call in calls.items():
            if q.is_cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            call().sum().backward()
            if q.is_cuda:
                torch.cuda.synchronize()
                peak[name] = torch.cuda.max_memory_allocated() / 1e6
            if turn:
                times[name].append(time.perf_counter() - start)
    for name, spent in times.items():
        memory = f"{peak[name]:8.0f} MB" if name in peak else ""
        print(f"{name:26}{statistics.median(spent) * 1e3:9.1f} ms{memory}")


if __name__ == "__main__":
    main()

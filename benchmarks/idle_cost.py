"""What the possibility of looking costs a model that nobody looks at: nothing.

    python benchmarks/idle_cost.py [--device cuda]

Two stacks with the same weights, one with our Attention and one whose attention has no tap and calls the kernel
directly, run in turns; and the number of graphs that torch.compile makes of ours.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from look_inside import Stack
from torch import Tensor, nn

from clearhead.layers import Attention


class Bare(nn.Module):
    """Causal self-attention with nothing between the projections and the kernel."""

    def __init__(self, like: Attention) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out, self.heads = (
            like.query,
            like.key,
            like.value,
            like.out,
            like.heads,
        )

    def forward(self, x: Tensor, **_: object) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=q.shape[-1] ** -0.5)
        return self.out(out.transpose(1, 2).flatten(2))


def bare(depth: int) -> Stack:
    model = Stack(depth)
    for block in model.blocks:
        block.attn = Bare(block.attn)
    return model


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--turns", type=int, default=60)
    args = parser.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    ours, rival = (m.to(args.device, dtype).eval() for m in (Stack(args.depth), bare(args.depth)))
    again = Stack(args.depth).to(args.device, dtype).eval()  # ours twice: how large the noise is
    graphs = torch._dynamo.explain(ours)(torch.randn(1, 64, 768, device=args.device, dtype=dtype))
    print(f"graphs: {graphs.graph_count}, breaks: {graphs.graph_break_count}")
    torch.compile(ours, fullgraph=True)(torch.randn(1, 64, 768, device=args.device, dtype=dtype))
    for tokens in (16, 256, 1024):
        x = torch.randn(1, tokens, 768, device=args.device, dtype=dtype)
        times: dict[str, list[float]] = {"with taps": [], "without": [], "with taps, again": []}
        for turn in range(args.turns + 5):
            for name, model in zip(times, (ours, rival, again), strict=True):
                if args.device == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
                model(x)
                if args.device == "cuda":
                    torch.cuda.synchronize()
                if turn >= 5:
                    times[name].append(time.perf_counter() - start)
        base = statistics.median(times["without"])
        shown = "  ".join(f"{name} {statistics.median(t) / base:.3f}" for name, t in times.items())
        print(f"{tokens:5} tokens, {args.device}: {shown}   (x of {base * 1e3:.2f} ms)")


if __name__ == "__main__":
    main()

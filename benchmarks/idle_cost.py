"""The cost of the taps in a model that is not watched: none that can be measured.

    python benchmarks/idle_cost.py [--device cuda]

Stacks of the same size take turns: ours; ours without the lines about taps; ours again, to show the size of the noise;
and one that calls torch's kernel without checks, masks or options. Times are medians, relative to that without taps.
Printed first: the number of graphs and graph breaks of ours under torch.compile.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from look_inside import Stack
from torch import Tensor, nn

from clearhead.layers import Attention, Mask
from clearhead.layers.attention import _check, _score, _split
from clearhead.layers.fused import fused


class Untapped(Attention):
    """Our self-attention without the lines that check for a tap."""

    def forward(self, x: Tensor, *, mask: Mask, **_: object) -> Tensor:  # type: ignore[override]
        q = _split(self.query(x), self.heads)
        k, v = self.remember(x)
        _check(q, k, v, mask, None)
        q, k, scale = _score(self.score)(q, k)
        out, _ = fused(
            q,
            k,
            v,
            mask=mask,
            bias=None,
            scale=scale,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.out(out.transpose(1, 2).flatten(2))


class Bare(nn.Module):
    """Causal self-attention with nothing between the projections and the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(768, 768) for _ in range(4))

    def forward(self, x: Tensor, **_: object) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (12, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


def stack(depth: int, attention: type[nn.Module] | None = None) -> Stack:
    model = Stack(depth)
    for block in model.blocks:
        if attention is not None:
            block.attn = attention(768, 12) if attention is Untapped else attention()
    return model


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--depth", type=int, default=4, help="blocks of each stack")
    parser.add_argument("--turns", type=int, default=60, help="timed runs of each stack")
    args = parser.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    models = {
        "ours": stack(args.depth),
        "without taps": stack(args.depth, Untapped),
        "ours again": stack(args.depth),
        "bare kernel": stack(args.depth, Bare),
    }
    for model in models.values():
        model.to(args.device, dtype).eval()
    ours = models["ours"]
    graphs = torch._dynamo.explain(ours)(torch.randn(1, 64, 768, device=args.device, dtype=dtype))
    print(f"graphs: {graphs.graph_count}, breaks: {graphs.graph_break_count}")
    torch.compile(ours, fullgraph=True)(torch.randn(1, 64, 768, device=args.device, dtype=dtype))
    for tokens in (16, 256, 1024):
        x = torch.randn(1, tokens, 768, device=args.device, dtype=dtype)
        times: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(args.turns + 5):  # the first turns warm up
            for name, model in models.items():
                if args.device == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
                model(x)
                if args.device == "cuda":
                    torch.cuda.synchronize()
                if turn >= 5:
                    times[name].append(time.perf_counter() - start)
        base = statistics.median(times["without taps"])
        ratios = "  ".join(f"{name} {statistics.median(t) / base:.3f}" for name, t in times.items())
        print(f"{tokens:5} tokens, {args.device}: {ratios}   (times {base * 1e3:.2f} ms)")


if __name__ == "__main__":
    main()

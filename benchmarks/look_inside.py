"""The cost of watching attention: entropy, distance and attention received of every layer and head.

    python benchmarks/look_inside.py --tokens 4096                          # on a CPU
    python benchmarks/look_inside.py --tokens 8192 --depth 4
    python benchmarks/look_inside.py --tokens 16384 --device cuda --dtype bfloat16
    python benchmarks/look_inside.py --tokens 131072 --device cuda --dtype bfloat16 --no-peer

One GPT-2-sized stack with the same weights, measured in three variants in one run:
    plain    our fused forward, not watched
    watched  our forward with the three statistics of every layer and head
    peer     Hugging Face's GPT-2 with eager attention and output_attentions=True, and the same statistics
Times are medians of interleaved runs. Memory is the peak above the model's own: on CUDA by torch's allocator,
on a CPU by the peak resident memory of a new process per variant.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Block, Mask

STATISTICS = ("entropy", "distance", "received")


class Stack(nn.Module):
    """The blocks of GPT-2 (Radford et al. 2019) at its smallest size."""

    def __init__(self, depth: int, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, mlp="gelu_tanh") for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        mask = Mask(causal=True)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.norm(x)


def make_ours(depth: int, device: str, dtype: torch.dtype) -> Stack:
    torch.manual_seed(0)
    model = Stack(depth).to(device=device, dtype=dtype).eval()
    for p in model.parameters():  # so that attention is neither uniform nor on a single key
        if p.ndim == 2:
            nn.init.normal_(p, std=0.04)
    return model


def make_peer(ours: Stack, tokens: int) -> nn.Module:
    """Hugging Face's GPT-2 with our weights."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_positions=tokens, n_layer=len(ours.blocks), vocab_size=8, attn_implementation="eager"
    )
    first = ours.norm.weight
    model = GPT2Model(config).to(device=first.device, dtype=first.dtype).eval()
    with torch.no_grad():
        model.wpe.weight.zero_()
        model.ln_f.load_state_dict(ours.norm.state_dict())
        for block, layer in zip(ours.blocks, model.h, strict=True):
            qkv = (block.attn.query, block.attn.key, block.attn.value)
            layer.attn.c_attn.weight.copy_(torch.cat([x.weight for x in qkv]).T)
            layer.attn.c_attn.bias.copy_(torch.cat([x.bias for x in qkv]))
            for theirs, mine in (
                (layer.attn.c_proj, block.attn.out),
                (layer.mlp.c_fc, block.mlp.up),
                (layer.mlp.c_proj, block.mlp.down),
            ):
                theirs.weight.copy_(mine.weight.T)
                theirs.bias.copy_(mine.bias)
            layer.ln_1.load_state_dict(block.attn_norm.state_dict())
            layer.ln_2.load_state_dict(block.mlp_norm.state_dict())
    return model


def plain(model: nn.Module, x: Tensor) -> None:
    model(x)


def watched(model: nn.Module, x: Tensor) -> dict[str, list[Tensor]]:
    with ch.watch(model, *(f"blocks.*.attn.{name}" for name in STATISTICS)) as tape:
        model(x)
    return {name: list(tape.match(f"blocks.*.attn.{name}").values()) for name in STATISTICS}


def peer(model: nn.Module, x: Tensor) -> dict[str, list[Tensor]]:
    weights = model(inputs_embeds=x, output_attentions=True, use_cache=False).attentions
    at = torch.arange(x.shape[1], device=x.device, dtype=weights[0].dtype)
    far = (at[:, None] - at).abs()
    measured: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    for p in weights:
        measured["entropy"].append(-(p * p.clamp_min(1e-30).log()).sum(-1))
        measured["distance"].append((p * far).sum(-1))
        measured["received"].append(p.sum(-2))
    return measured


VARIANTS = {"plain": plain, "watched": watched, "peer": peer}


def build(
    variant: str, depth: int, tokens: int, device: str, dtype: torch.dtype
) -> tuple[nn.Module, Tensor]:
    model: nn.Module = make_ours(depth, device, dtype)
    if variant == "peer":
        assert isinstance(model, Stack)
        model = make_peer(model, tokens)
    torch.manual_seed(1)
    return model, torch.randn(1, tokens, 768, device=device).to(dtype)


def clock(variant: str, model: nn.Module, x: Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    VARIANTS[variant](model, x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory(reset: bool = False) -> int:
    """Peak resident memory of this process in bytes; `reset` restarts the count from the present size (Linux only)."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(variant: str, args: argparse.Namespace) -> float:
    """Peak bytes above the model and its input, of one variant."""
    if args.device == "cuda":
        model, x = build(variant, args.depth, args.tokens, args.device, args.dtype)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        VARIANTS[variant](model, x)
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before)
    command = [
        sys.executable,
        __file__,
        "--tokens",
        str(args.tokens),
        "--depth",
        str(args.depth),
        "--memory-of",
        variant,
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.strip().splitlines()[-1])


def agree(depth: int, device: str) -> dict[str, float]:
    """The largest difference between our statistics and the peer's, at a size where both are cheap."""
    ours, x = build("watched", min(depth, 4), 300, device, torch.float32)
    theirs, _ = build("peer", min(depth, 4), 300, device, torch.float32)
    a, b = watched(ours, x), peer(theirs, x)
    return {
        name: max(
            float(((p - q).abs() / q.abs().clamp_min(1)).max())
            for p, q in zip(a[name], b[name], strict=True)
        )
        for name in STATISTICS
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096, help="length of the sequence")
    parser.add_argument("--depth", type=int, default=12, help="number of blocks")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.float32)
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each variant")
    parser.add_argument("--no-peer", action="store_true", help="leave out Hugging Face's GPT-2")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory-of", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()

    if args.memory_of:
        model, x = build(args.memory_of, args.depth, args.tokens, "cpu", torch.float32)
        # so that one-time buffers of the libraries do not count
        VARIANTS[args.memory_of](model, x[:, :64])
        before = peak_memory(reset=True)
        VARIANTS[args.memory_of](model, x)
        print(peak_memory() - before)
        return

    if not args.no_peer and not find_spec("transformers"):
        sys.exit(
            "the peer needs transformers: pip install -e .[bench], or leave it out by --no-peer"
        )
    variants = [variant for variant in VARIANTS if not (args.no_peer and variant == "peer")]
    result: dict[str, object] = {
        "tokens": args.tokens,
        "depth": args.depth,
        "device": args.device,
        "dtype": str(args.dtype),
        "torch": torch.__version__,
    }
    if not args.no_peer:
        result["difference from the peer's numbers, float32, 300 tokens"] = agree(
            args.depth, args.device
        )
    held = {}
    for variant in variants:
        held[variant] = memory(variant, args)
        if args.device == "cuda":
            torch.cuda.empty_cache()
    built = {
        variant: build(variant, args.depth, args.tokens, args.device, args.dtype)
        for variant in variants
    }
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for turn in range(args.repeat + 1):  # the first turn warms up
        for variant in variants:
            seconds = clock(variant, *built[variant])
            if turn:
                times[variant].append(seconds)
    median = {variant: statistics.median(times[variant]) for variant in variants}
    for variant in variants:
        result[variant] = {
            "seconds": median[variant],
            "spread": max(times[variant]) / min(times[variant]),
            "megabytes": held[variant] / 1e6,
        }
    if args.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        if name not in variants:
            print(f"{name}: {value}")
    print(f"\n{'':10}{'time':>12}{'of plain':>10}{'spread':>8}{'memory':>12}{'of plain':>10}")
    for variant in variants:
        print(
            f"{variant:10}{median[variant] * 1e3:9.1f} ms{median[variant] / median['plain']:9.2f}x"
            f"{max(times[variant]) / min(times[variant]):7.2f}x"
            f"{held[variant] / 1e6:9.0f} MB{held[variant] / held['plain']:9.2f}x"
        )
    if "peer" in variants:
        more = {variant: held[variant] - held["plain"] for variant in ("watched", "peer")}
        less = more["peer"] / max(more["watched"], 1e6)
        print(
            f"\nwatched is {median['peer'] / median['watched']:.1f}x faster than the peer, "
            f"with {less:.0f}x less memory above plain (counting at least 1 MB)"
        )


if __name__ == "__main__":
    main()

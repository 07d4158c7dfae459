"""What it costs to look inside: entropy, distance and attention received of every layer and head.

    python benchmarks/look_inside.py --tokens 4096                          # on a CPU
    python benchmarks/look_inside.py --tokens 8192 --depth 4
    python benchmarks/look_inside.py --tokens 16384 --device cuda --dtype bfloat16
    python benchmarks/look_inside.py --tokens 131072 --device cuda --dtype bfloat16 --no-peer

One GPT-2-sized stack with the same weights, three ways in one run:
    plain    our fused forward, nobody looking
    watched  our forward with the three statistics of every layer and head
    peer     Hugging Face's GPT-2 with eager attention and output_attentions=True, and the same statistics
Times are medians of interleaved runs. Memory is the peak above the model's own: on CUDA by torch's allocator,
on a CPU by the high-water mark of a fresh process for each way.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Block, Mask

WANT = ("entropy", "distance", "received")


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
    for p in model.parameters():  # weights that make attention neither flat nor one key
        if p.ndim == 2:
            nn.init.normal_(p, std=0.04)
    return model


def make_peer(ours: Stack, tokens: int) -> nn.Module:
    """Hugging Face's GPT-2 with our weights."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_positions=tokens, n_layer=len(ours.blocks), vocab_size=8, attn_implementation="eager")
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
                (layer.attn.c_proj, block.attn.out), (layer.mlp.c_fc, block.mlp.up), (layer.mlp.c_proj, block.mlp.down),
            ):  # fmt: skip
                theirs.weight.copy_(mine.weight.T)
                theirs.bias.copy_(mine.bias)
            layer.ln_1.load_state_dict(block.attn_norm.state_dict())
            layer.ln_2.load_state_dict(block.mlp_norm.state_dict())
    return model


def plain(model: nn.Module, x: Tensor) -> None:
    model(x)


def watched(model: nn.Module, x: Tensor) -> dict[str, list[Tensor]]:
    with ch.watch(model, *(f"blocks.*.attn.{name}" for name in WANT)) as tape:
        model(x)
    return {name: list(tape.match(f"blocks.*.attn.{name}").values()) for name in WANT}


def peer(model: nn.Module, x: Tensor) -> dict[str, list[Tensor]]:
    weights = model(inputs_embeds=x, output_attentions=True, use_cache=False).attentions
    at = torch.arange(x.shape[1], device=x.device, dtype=weights[0].dtype)
    far = (at[:, None] - at).abs()
    found: dict[str, list[Tensor]] = {name: [] for name in WANT}
    for p in weights:
        found["entropy"].append(-(p * p.clamp_min(1e-30).log()).sum(-1))
        found["distance"].append((p * far).sum(-1))
        found["received"].append(p.sum(-2))
    return found


WAYS = {"plain": plain, "watched": watched, "peer": peer}


def build(way: str, depth: int, tokens: int, device: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    model: nn.Module = make_ours(depth, device, dtype)
    if way == "peer":
        assert isinstance(model, Stack)
        model = make_peer(model, tokens)
    torch.manual_seed(1)
    return model, torch.randn(1, tokens, 768, device=device).to(dtype)


def clock(way: str, model: nn.Module, x: Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    WAYS[way](model, x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory(reset: bool = False) -> int:
    """The most bytes this process has held; `reset` starts over from what it holds now (Linux only)."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(way: str, args: argparse.Namespace) -> float:
    """Peak bytes above the model and its input."""
    if args.device == "cuda":
        model, x = build(way, args.depth, args.tokens, args.device, args.dtype)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        WAYS[way](model, x)
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
        way,
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.strip().splitlines()[-1])


def agree(depth: int, device: str) -> dict[str, float]:
    """The largest difference of our statistics from the peer's, same weights, at a size where both are cheap."""
    ours, x = build("watched", min(depth, 4), 300, device, torch.float32)
    theirs, _ = build("peer", min(depth, 4), 300, device, torch.float32)
    a, b = watched(ours, x), peer(theirs, x)
    return {
        name: max(float(((p - q).abs() / q.abs().clamp_min(1)).max()) for p, q in zip(a[name], b[name], strict=True))
        for name in WANT
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.float32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()

    if args.memory_of:
        model, x = build(args.memory_of, args.depth, args.tokens, "cpu", torch.float32)
        WAYS[args.memory_of](model, x[:, :64])  # the libraries' own buffers are not the way's
        before = peak_memory(reset=True)
        WAYS[args.memory_of](model, x)
        print(peak_memory() - before)
        return

    ways = [way for way in WAYS if not (args.no_peer and way == "peer")]
    result: dict[str, object] = {"tokens": args.tokens, "depth": args.depth, "device": args.device,
                                 "dtype": str(args.dtype), "torch": torch.__version__}  # fmt: skip
    if not args.no_peer:
        result["difference from the peer's numbers, float32, 300 tokens"] = agree(args.depth, args.device)
    held = {}
    for way in ways:
        held[way] = memory(way, args)
        if args.device == "cuda":
            torch.cuda.empty_cache()
    built = {way: build(way, args.depth, args.tokens, args.device, args.dtype) for way in ways}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(args.repeat + 1):  # the first turn warms up
        for way in ways:
            seconds = clock(way, *built[way])
            if turn:
                times[way].append(seconds)
    median = {way: statistics.median(times[way]) for way in ways}
    for way in ways:
        result[way] = {
            "seconds": median[way],
            "spread": max(times[way]) / min(times[way]),
            "megabytes": held[way] / 1e6,
        }
    if args.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        if name not in ways:
            print(f"{name}: {value}")
    print(f"\n{'':10}{'time':>12}{'of plain':>10}{'spread':>8}{'memory':>12}{'of plain':>10}")
    for way in ways:
        print(f"{way:10}{median[way] * 1e3:9.1f} ms{median[way] / median['plain']:9.2f}x"
              f"{max(times[way]) / min(times[way]):7.2f}x"
              f"{held[way] / 1e6:9.0f} MB{held[way] / held['plain']:9.2f}x")  # fmt: skip
    if "peer" in ways:
        more = {way: held[way] - held["plain"] for way in ("watched", "peer")}
        less = more["peer"] / max(more["watched"], 1e6)
        print(f"\nwatched is {median['peer'] / median['watched']:.1f}x faster than the peer, "
              f"with {less:.0f}x less memory above plain (counting at least 1 MB)")  # fmt: skip


if __name__ == "__main__":
    main()

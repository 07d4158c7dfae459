"""The cost of watching a model of transformers, unconverted: entropy, distance and received of every layer and head.

    python benchmarks/any_model.py --tokens 2048                                              # on a CPU
    python benchmarks/any_model.py --tokens 16384 --device cuda --dtype bfloat16
    python benchmarks/any_model.py --model llama --tokens 16384 --device cuda --dtype bfloat16 --no-eager
    python benchmarks/any_model.py --tokens 16384 --device cuda --dtype bfloat16 --no-eager --profile

One model of Hugging Face, GPT-2 (12 layers) or a Llama of 1.1B parameters, with random weights, in one run:
    plain    its forward pass with SDPA
    watched  the same inside `watch`, with the three statistics
    eager    its forward pass with attn_implementation="eager" and output_attentions=True, and the same statistics
    nnsight, transformer_lens   where they are installed: the weights that they return for a GPT-2, and the same
             statistics; TransformerLens with a model of its own of the same sizes
Times are medians of interleaved runs; memory is the peak above the model's own, as in look_inside.py. `twin` says
whether the log-sum-exp came from the operator behind SDPA (output_and_lse in look/foreign/torch_attention.py) or from
a pass of its own; --profile prints the kernels of one watched run.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache

import torch
from look_inside import STATISTICS, peak_memory
from torch import Tensor, nn

import clearhead as ch
from clearhead.look.foreign import torch_attention

SHAPES = {
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
    "llama": {
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
    },
}


def build(args: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """The model without its head, whose logits would take most of the memory, and its ids."""
    from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

    kinds = {
        "gpt2": (GPT2Model, GPT2Config, "n_positions"),
        "llama": (LlamaModel, LlamaConfig, "max_position_embeddings"),
    }
    kind, config, context = kinds[args.model]
    shape = {**SHAPES[args.model], context: args.tokens, "use_cache": False}
    if args.depth:
        shape["n_layer" if args.model == "gpt2" else "num_hidden_layers"] = args.depth
    torch.manual_seed(0)
    with torch.device(args.device):  # a CPU would take a minute to fill 1.1B parameters
        model = kind(config(**shape, attn_implementation="sdpa"))
        for p in model.parameters():  # so that attention is neither uniform nor on a single key
            if p.ndim == 2:
                nn.init.normal_(p, std=0.04)
    ids = torch.randint(32000, (1, args.tokens), generator=torch.Generator().manual_seed(1))
    return model.to(args.dtype).eval(), ids.to(args.device)


def as_variant(variant: str, model: nn.Module) -> nn.Module:
    """The same model, with the attention of a variant; for TransformerLens its own model of the same sizes."""
    if variant == "transformer_lens":
        return lens_model(model)
    model.set_attn_implementation("sdpa" if variant in ("plain", "watched") else "eager")
    return model


@cache
def lens_model(model: nn.Module) -> nn.Module:
    """A model of TransformerLens with the sizes of a GPT-2, and random weights."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    c, p = model.config, next(model.parameters())
    made = HookedTransformer(
        HookedTransformerConfig(
            n_layers=c.n_layer,
            d_model=c.n_embd,
            n_ctx=c.n_positions,
            d_head=c.n_embd // c.n_head,
            n_heads=c.n_head,
            d_mlp=4 * c.n_embd,
            d_vocab=c.vocab_size,
            act_fn="gelu_new",
            dtype=p.dtype,
            device=str(p.device),
        )
    )
    return made.to(p.dtype).eval()


def plain(model: nn.Module, ids: Tensor) -> Tensor:
    return model(ids).last_hidden_state


def watched(model: nn.Module, ids: Tensor) -> dict[str, list[Tensor]]:
    with ch.watch(model, *(f"**.{name}" for name in STATISTICS)) as tape:
        out = plain(model, ids)
    return {"output": [out]} | {
        name: list(tape.match(f"**.{name}").values()) for name in STATISTICS
    }


def eager(model: nn.Module, ids: Tensor) -> dict[str, list[Tensor]]:
    return of_weights(model(ids, output_attentions=True).attentions)


def with_nnsight(model: nn.Module, ids: Tensor) -> dict[str, list[Tensor]]:
    """The weights that the eager attention of each layer returns, saved by nnsight."""
    import nnsight

    traced = nnsight.NNsight(model)
    with traced.trace(ids, output_attentions=True):
        weights = nnsight.save([])
        for layer in traced.h:
            weights.append(layer.attn.output[1])
    return of_weights(weights)


def with_transformer_lens(model: nn.Module, ids: Tensor) -> dict[str, list[Tensor]]:
    """The weights in the cache of TransformerLens, which has a model of its own: see `build`."""
    _, cache = model.run_with_cache(
        ids, names_filter=lambda name: name.endswith("hook_pattern"), return_type=None
    )
    return of_weights(list(cache.values()))


def of_weights(weights: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """The statistics of whole matrices of weights."""
    at = torch.arange(weights[0].shape[-1], device=weights[0].device, dtype=weights[0].dtype)
    far = (at[:, None] - at).abs()
    measured: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    for p in weights:
        measured["entropy"].append(-(p * p.clamp_min(1e-30).log()).sum(-1))
        measured["distance"].append((p * far).sum(-1))
        measured["received"].append(p.sum(-2))
    return measured


# Each variant that is asked for: plain, watched and eager, and peers where they are installed.
VARIANTS = {"plain": plain, "watched": watched, "eager": eager}
PEERS = {"nnsight": with_nnsight, "transformer_lens": with_transformer_lens}
VARIANTS |= {name: run for name, run in PEERS.items() if importlib.util.find_spec(name)}


def seconds(variant: str, model: nn.Module, ids: Tensor) -> float:
    if ids.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    VARIANTS[variant](model, ids)
    if ids.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def memory(variant: str, model: nn.Module, ids: Tensor) -> float:
    """Peak bytes above the model and its ids, of one variant; on a CPU in a process of its own."""
    if ids.is_cuda:
        # kernels are compiled and chosen outside of the measurement
        VARIANTS[variant](model, ids[:, :64])
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        VARIANTS[variant](model, ids)
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before)
    out = subprocess.run(
        [sys.executable, *sys.argv, "--memory-of", variant],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(out.stdout.strip().splitlines()[-1])


def agree(full: nn.Module, ids: Tensor, args: argparse.Namespace) -> dict[str, object]:
    """Whether watching changes no bit, and the largest difference from eager statistics, float32, 300 tokens."""
    small = argparse.Namespace(
        **{**vars(args), "tokens": 300, "depth": min(args.depth or 4, 4), "dtype": torch.float32}
    )
    model, few = build(small)
    a, b = watched(model, few), eager(as_variant("eager", model), few)
    same = torch.equal(plain(full, ids), watched(full, ids)["output"][0])
    kinds = Counter(torch_attention._SAME.values())
    told = (
        f"used for {kinds[True]} kinds of calls, not for {kinds[False]}" if kinds else "not asked"
    )
    return {"equal bits": same, "twin": told} | {
        name: max(
            float(((p - q).abs() / q.abs().clamp_min(1)).max())
            for p, q in zip(a[name], b[name], strict=True)
        )
        for name in STATISTICS
    }


def profile(model: nn.Module, ids: Tensor) -> None:
    """Print the 15 kernels of one watched run that take longest."""
    kinds = [torch.profiler.ProfilerActivity.CPU] + [
        torch.profiler.ProfilerActivity.CUDA
    ] * ids.is_cuda
    with torch.profiler.profile(activities=kinds) as result:
        seconds("watched", model, ids)
    by = "self_cuda_time_total" if ids.is_cuda else "self_cpu_time_total"
    print(result.key_averages().table(sort_by=by, row_limit=15, max_name_column_width=60))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=SHAPES, default="gpt2")
    parser.add_argument("--tokens", type=int, default=2048, help="length of the sequence")
    parser.add_argument(
        "--depth", type=int, default=0, help="number of layers, if not the model's own"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.float32)
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each variant")
    parser.add_argument(
        "--no-eager", action="store_true", help="leave out eager attention and peers"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--profile", action="store_true", help="print the kernels of one watched run"
    )
    parser.add_argument("--memory-of", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()

    if args.memory_of:
        model, ids = build(args)
        model = as_variant(args.memory_of, model)
        VARIANTS[args.memory_of](model, ids[:, :64])
        before = peak_memory(reset=True)
        VARIANTS[args.memory_of](model, ids)
        print(peak_memory() - before)
        return

    variants = [
        v
        for v in VARIANTS
        if v in ("plain", "watched") or not (args.no_eager or (args.model != "gpt2" and v in PEERS))
    ]
    model, ids = build(args)
    result: dict[str, object] = {
        "model": args.model, "tokens": args.tokens, "device": args.device, "dtype": str(args.dtype),
        "torch": torch.__version__, **agree(model, ids, args),
    }  # fmt: skip
    if args.profile:
        profile(model, ids)
    held, times = {}, {variant: [] for variant in variants}
    for variant in variants:
        held[variant] = memory(variant, as_variant(variant, model), ids)
        if args.device == "cuda":
            torch.cuda.empty_cache()
    for turn in range(args.repeat + 1):  # the first turn warms up
        for variant in variants:
            time_taken = seconds(variant, as_variant(variant, model), ids)
            if turn:
                times[variant].append(time_taken)
    median = {variant: statistics.median(times[variant]) for variant in variants}
    for variant in variants:
        result[variant] = {
            "seconds": median[variant],
            "of plain": median[variant] / median["plain"],
            "megabytes": held[variant] / 1e6,
            "memory of plain": held[variant] / held["plain"],
            "spread": max(times[variant]) / min(times[variant]),
        }
    if args.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        if name not in variants:
            print(f"{name}: {value}")
    print(f"\n{'':18}{'time':>12}{'of plain':>10}{'spread':>8}{'memory':>12}{'of plain':>10}")
    for variant in variants:
        print(
            f"{variant:18}{median[variant] * 1e3:9.1f} ms{median[variant] / median['plain']:9.2f}x"
            f"{max(times[variant]) / min(times[variant]):7.2f}x"
            f"{held[variant] / 1e6:9.0f} MB{held[variant] / held['plain']:9.2f}x"
        )
    if "eager" in variants:
        print(
            f"\nwatched is {median['eager'] / median['watched']:.1f}x faster than eager attention with its weights"
        )


if __name__ == "__main__":
    main()

"""Training speed of GPT-2 124M at context 1024 in bfloat16, side by side with its peers in one run.

    python benchmarks/train_gpt.py                                # ours and Hugging Face's GPT-2, both compiled
    python benchmarks/train_gpt.py --rows 32 --peer ../nanoGPT    # and an unmodified nanoGPT checkout

Each does what its users would: forward, backward, clipping to norm 1, fused AdamW, all compiled.
    ours    the very pieces of the training loop: Objective and Optimiser, bfloat16 weights with float32 masters
    peer    transformers' GPT2LMHeadModel with its own loss, float32 weights under bfloat16 autocast
    nanogpt the checkout's GPT class under bfloat16 autocast, and its own configure_optimizers
All have 50,304 tokens, no dropout, and biases as the peer has them (nanoGPT's own default, none, is timed beside them).
Times are medians of interleaved rounds, so that a card that grows warm slows all of them alike.
"""

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import clearhead as ch
from clearhead.training.objective import Objective
from clearhead.training.optim import OptimConfig, Optimiser
from clearhead.training.progress import flops

VOCAB, CONTEXT = 50304, 1024
Step = Callable[[], torch.Tensor]


def ours(rows: int, bias: bool) -> tuple[Step, nn.Module]:
    torch.manual_seed(0)
    model = ch.build("gpt", vocab=VOCAB, context=CONTEXT, bias=bias).cuda().bfloat16()
    optimiser = Optimiser(model, OptimConfig(lr=3e-4), masters=True)
    objective = torch.compile(Objective(model, "sequences"))
    ids = torch.randint(0, VOCAB, (rows, CONTEXT + 1), device="cuda")
    batch = {"ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}

    def step() -> torch.Tensor:
        loss = objective(batch) / (rows * CONTEXT)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step, model


def peer(rows: int) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    sizes._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(sizes).cuda().train()
    compiled = torch.compile(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    ids = torch.randint(0, VOCAB, (rows, CONTEXT), device="cuda")

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def nanogpt(rows: int, checkout: Path, bias: bool) -> Step:
    found = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    if found is None or found.loader is None:
        sys.exit(f"{checkout / 'model.py'} cannot be read: --peer takes a nanoGPT checkout")
    module = importlib.util.module_from_spec(found)
    sys.modules["nanogpt_model"] = module
    found.loader.exec_module(module)
    torch.manual_seed(0)
    model = module.GPT(module.GPTConfig(vocab_size=VOCAB, block_size=CONTEXT, dropout=0.0, bias=bias)).cuda()
    optimiser = model.configure_optimizers(0.1, 3e-4, (0.9, 0.95), "cuda")
    compiled = torch.compile(model)
    ids = torch.randint(0, VOCAB, (rows, CONTEXT + 1), device="cuda")
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(x, y)[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def milliseconds(step: Step, steps: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="sequences a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps a round")
    parser.add_argument("--peer", type=Path, help="an unmodified nanoGPT checkout")
    parser.add_argument("--biased-only", action="store_true", help="leave out the runs without biases")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and there is none")
    torch.set_float32_matmul_precision("high")
    step, model = ours(args.rows, bias=True)
    ways = {"ours": step, "transformers": peer(args.rows)}
    if args.peer:
        ways["nanoGPT"] = nanogpt(args.rows, args.peer, bias=True)
    if not args.biased_only:
        ways["ours, no biases"] = ours(args.rows, bias=False)[0]
        if args.peer:
            ways["nanoGPT, no biases"] = nanogpt(args.rows, args.peer, bias=False)
    for way in ways.values():
        milliseconds(way, 4)  # compile and warm up
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            times[name].append(milliseconds(way, args.steps))
    tokens, cost = args.rows * CONTEXT, flops(model, CONTEXT)
    found = {
        name: {
            "milliseconds": statistics.median(ms),
            "tokens_a_second": tokens / statistics.median(ms) * 1e3,
            "share_of_989": tokens / statistics.median(ms) * 1e3 * cost / 989e12,
            "to_transformers": statistics.median(times["transformers"]) / statistics.median(ms),
        }
        for name, ms in times.items()
    }
    if args.json:
        print(json.dumps({"rows": args.rows, "device": torch.cuda.get_device_name(), **found}, indent=1))
        return
    print(f"{torch.cuda.get_device_name()}, {args.rows} sequences of {CONTEXT} tokens a step")
    for name, x in found.items():
        print(
            f"{name:20s} {x['tokens_a_second'] / 1e3:7.1f}k tokens/s  {x['milliseconds']:7.2f} ms  "
            f"{x['share_of_989']:5.1%} of 989 TFLOP/s  {x['to_transformers']:.3f}x transformers"
        )


if __name__ == "__main__":
    main()

"""Training speed of GPT-2 124M with context 1024 in bfloat16, beside transformers and nanoGPT in one run.

    python benchmarks/train_gpt.py                                # ours and Hugging Face's GPT-2, both compiled
    python benchmarks/train_gpt.py --rows 32 --peer ../nanoGPT    # and an unmodified nanoGPT checkout

Each is compiled, and trains as its users would: forward, backward, clipping to norm 1, fused AdamW.
    ours          the steps of the training loop (Trainer.step): bfloat16 weights with float32 masters
    transformers  GPT2LMHeadModel with its own loss, float32 weights under bfloat16 autocast
    nanoGPT       the checkout's GPT class under bfloat16 autocast, with its own configure_optimizers
All have a vocabulary of 50,304, no dropout, and biases like GPT-2; ours and nanoGPT are also timed without biases (the
default of nanoGPT's training). Times are medians of interleaved rounds, so that a GPU that heats up slows all alike.
"""

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from clearhead.data import make_data
from clearhead.training import read_recipe
from clearhead.training.distributed import World
from clearhead.training.logs import training_flops
from clearhead.training.prefetch import MicroBatch
from clearhead.training.setup import resolve
from clearhead.training.trainer import Trainer

VOCAB, CONTEXT = 50304, 1024
Step = Callable[[], torch.Tensor]


def ours(rows: int, bias: bool) -> tuple[Step, float]:
    """A training step, and its floating-point operations."""
    # Copying sequences of half the context gives the vocabulary and the context; the batch itself is random.
    data = {"name": "copy", "symbols": VOCAB - 1, "length": CONTEXT // 2, "rows": rows}
    model = {"name": "gpt", "context": CONTEXT, "bias": bias}
    recipe = read_recipe(
        {
            "steps": 1_000_000,
            "precision": "bfloat16",
            "compile": True,
            "data": data,
            "model": model,
            "optim": {"lr": 3e-4},
        }
    )
    copies = make_data("copy", {key: value for key, value in data.items() if key != "name"}, seed=0)
    world = World.join("cuda")
    trainer = Trainer(recipe, resolve(recipe, copies, {}), copies, world)
    ids = torch.randint(0, VOCAB, (rows, CONTEXT + 1), device=world.device)
    batch = {"ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
    tokens, numbers = rows * CONTEXT, itertools.count()
    part = MicroBatch(batch, torch.arange(rows, device=world.device), 0, tokens, tokens)

    def step() -> torch.Tensor:
        updates, _ = trainer.step([part], next(numbers), tokens)
        return updates[0].losses["loss"]

    return step, training_flops(trainer.objective, batch)


def transformers(rows: int) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = GPT2Config(
        vocab_size=VOCAB,
        n_positions=CONTEXT,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
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
    path = checkout / "model.py"
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    if not path.is_file() or spec is None or spec.loader is None:
        sys.exit(f"{path} cannot be read: --peer expects a nanoGPT checkout")
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model = module.GPT(
        module.GPTConfig(vocab_size=VOCAB, block_size=CONTEXT, dropout=0.0, bias=bias)
    ).cuda()
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64, help="sequences per step")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds; the median is printed")
    parser.add_argument("--steps", type=int, default=8, help="steps per round")
    parser.add_argument(
        "--peer", type=Path, help="folder of an unmodified nanoGPT checkout, to be timed too"
    )
    parser.add_argument("--biased-only", action="store_true", help="skip the models without biases")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device, and there is none")
    torch.set_float32_matmul_precision("high")
    if not importlib.util.find_spec("transformers"):
        sys.exit("this benchmark needs transformers: pip install -e .[bench]")
    step, flops = ours(args.rows, bias=True)
    steps = {"ours": step, "transformers": transformers(args.rows)}
    if args.peer:
        steps["nanoGPT"] = nanogpt(args.rows, args.peer, bias=True)
    if not args.biased_only:
        steps["ours, no biases"] = ours(args.rows, bias=False)[0]
        if args.peer:
            steps["nanoGPT, no biases"] = nanogpt(args.rows, args.peer, bias=False)
    for step in steps.values():
        milliseconds(step, 4)  # compile and warm up
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, step in steps.items():
            times[name].append(milliseconds(step, args.steps))
    results = {
        name: {
            "milliseconds": statistics.median(ms),
            "tokens_per_second": args.rows * CONTEXT / statistics.median(ms) * 1e3,
            "share_of_989": flops / statistics.median(ms) * 1e3 / 989e12,
            "to_transformers": statistics.median(times["transformers"]) / statistics.median(ms),
        }
        for name, ms in times.items()
    }
    if args.json:
        print(
            json.dumps(
                {"rows": args.rows, "device": torch.cuda.get_device_name(), **results}, indent=1
            )
        )
        return
    print(f"{torch.cuda.get_device_name()}, {args.rows} sequences of {CONTEXT} tokens per step")
    for name, x in results.items():
        print(
            f"{name:20s} {x['tokens_per_second'] / 1e3:7.1f}k tokens/s  {x['milliseconds']:7.2f} ms  "
            f"{x['share_of_989']:5.1%} of 989 TFLOP/s  {x['to_transformers']:.3f}x transformers"
        )


if __name__ == "__main__":
    main()

"""A training step of LoRA beside transformers + PEFT in one run: tokens per second and peak memory.

    OMP_NUM_THREADS=2 python benchmarks/lora.py                  # SmolLM2-135M's shape on a CPU, float32
    python benchmarks/lora.py --device cuda                      # a 1.1B Llama on a GPU, bfloat16
    python benchmarks/lora.py --device cuda --compile            # both compiled
    python benchmarks/lora.py --device cuda --recompute          # both with gradient checkpointing

All have the same random weights, the same initial adapters (rank 16 on all linear maps of the blocks), the same
batches, and AdamW. They train as their users would:
    ours          the steps of the training loop (Trainer.step); in bfloat16 with float32 masters of the adapters
    peft          LlamaForCausalLM with its own loss, and peft's adapters. In bfloat16 as transformers' Trainer has it:
                  bfloat16 weights, float32 adapters, autocast
    peft, plain   in bfloat16 only: adapters in bfloat16 too, without autocast and without float32 masters
Times are medians of interleaved rounds, so that a machine that is busy slows all alike; on a CPU also of the seconds
that the processors worked, which other programs do not change. The losses of the first steps are printed. Memory is
measured in a process of its own for each: the peak of a step, of what torch has allocated on a GPU, or of the whole
process on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from clearhead.data import make_data
from clearhead.training import read_recipe
from clearhead.training.distributed import World
from clearhead.training.prefetch import MicroBatch
from clearhead.training.setup import resolve
from clearhead.training.trainer import Trainer

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "tie_word_embeddings": True,
    },
    "llama-1.1b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "tie_word_embeddings": False,
    },
    "tiny": {
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "tie_word_embeddings": True,
    },
}
# shape, rows, tokens, rounds
DEFAULTS = {"cpu": ("smollm2-135m", 2, 256, 5), "cuda": ("llama-1.1b", 8, 1024, 20)}
LR = 1e-4
BETAS, DECAY, CLIP = (0.9, 0.95), 0.1, 1.0
# Our maps of a block: theirs.
MAPS = {
    "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
}  # fmt: skip
Step = Callable[[], torch.Tensor]


def write_base(args: argparse.Namespace, folder: Path) -> None:
    """Write a Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[args.shape], max_position_embeddings=args.tokens)
    LlamaForCausalLM(config).to(dtype_of(args)).save_pretrained(folder)


def dtype_of(args: argparse.Namespace) -> torch.dtype:
    return torch.bfloat16 if args.device == "cuda" else torch.float32


def batches(args: argparse.Namespace) -> list[torch.Tensor]:
    """The ids of four batches, with one token more than the inputs."""
    dice = torch.Generator().manual_seed(1)
    vocab = SHAPES[args.shape]["vocab_size"]
    ids = [torch.randint(0, vocab, (args.rows, args.tokens + 1), generator=dice) for _ in range(4)]
    return [x.to(args.device) for x in ids]


def trainer_of(args: argparse.Namespace, base: Path) -> Trainer:
    # Copying sequences of half the context gives the vocabulary and the context; the batches themselves are random.
    options = {
        "symbols": SHAPES[args.shape]["vocab_size"] - 1,
        "length": args.tokens // 2,
        "rows": args.rows,
    }
    recipe = read_recipe(
        {
            "steps": 1_000_000, "precision": "bfloat16" if args.device == "cuda" else "float32",
            "compile": args.compile, "recompute": args.recompute, "data": {"name": "copy", **options},
            "pretrained": str(base), "lora": {"rank": args.rank, "maps": "all"},
            "optim": {"lr": LR, "betas": BETAS, "decay": DECAY, "clip": CLIP},
            "schedule": {"shape": "constant", "warmup": 0},
        }
    )  # fmt: skip
    data = make_data("copy", options, seed=0)
    return Trainer(recipe, resolve(recipe, data, {}), data, World.join(args.device))


def ours(args: argparse.Namespace, base: Path) -> tuple[Step, Trainer]:
    trainer, numbers = trainer_of(args, base), itertools.count()
    rows, tokens = torch.arange(args.rows, device=args.device), args.rows * args.tokens
    parts = [
        MicroBatch(
            {"ids": x[:, :-1].contiguous(), "targets": x[:, 1:].contiguous()},
            rows,
            0,
            tokens,
            tokens,
        )
        for x in batches(args)
    ]

    def step() -> torch.Tensor:
        number = next(numbers)
        updates, _ = trainer.step([parts[number % len(parts)]], number, tokens)
        return updates[0].losses["loss"]

    return step, trainer


def peft(
    args: argparse.Namespace, base: Path, adapters: dict[str, torch.Tensor], *, plain: bool
) -> Step:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(
        base, dtype=dtype_of(args), attn_implementation="sdpa"
    ).to(args.device)
    model.config.use_cache = False
    if args.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    options = LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    adapted: Any = get_peft_model(model, options, autocast_adapter_dtype=not plain).train()
    learned = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    for name, x in adapters.items():
        learned[name].data.copy_(x)
    assert not adapters or learned.keys() == adapters.keys()
    forward = torch.compile(adapted) if args.compile else adapted
    optimiser = torch.optim.AdamW(
        learned.values(), lr=LR, betas=BETAS, weight_decay=DECAY, fused=True
    )
    autocast = torch.autocast(
        args.device, torch.bfloat16, enabled=args.device == "cuda" and not plain
    )
    given, numbers = batches(args), itertools.count()

    def step() -> torch.Tensor:
        ids = given[next(numbers) % len(given)]
        with autocast:
            loss = forward(
                input_ids=ids[:, :-1], labels=ids[:, :-1], shift_labels=ids[:, 1:].contiguous()
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned.values(), CLIP)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def renamed(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The adapters of our model under peft's names."""
    found = {}
    for name, x in trainer.players["model"].weights().items():
        block, ours_name, leaf = re.fullmatch(r"blocks\.(\d+)\.(.+)\.lora_([ab])", name).groups()  # type: ignore[union-attr]
        found[
            f"base_model.model.model.layers.{block}.{MAPS[ours_name]}.lora_{leaf.upper()}.default.weight"
        ] = x
    return found


def contenders(args: argparse.Namespace) -> list[str]:
    return ["ours", "peft", "peft, plain"] if args.device == "cuda" else ["ours", "peft"]


def build(
    args: argparse.Namespace, base: Path, name: str, adapters: dict[str, torch.Tensor] | None = None
) -> Step:
    return (
        ours(args, base)[0]
        if name == "ours"
        else peft(args, base, adapters or {}, plain="plain" in name)
    )


def seconds(args: argparse.Namespace, step: Step) -> tuple[float, float, float]:
    """The time of one step, the seconds that processors worked for it, and its loss."""
    wait = torch.cuda.synchronize if args.device == "cuda" else (lambda: None)
    wait()
    start, worked = time.perf_counter(), time.process_time()
    loss = step()
    wait()
    return time.perf_counter() - start, time.process_time() - worked, float(loss)


def peak_memory(args: argparse.Namespace, step: Step) -> float:
    """The most memory in use within a few steps, in MB."""
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak of resident memory
    for _ in range(2):
        seconds(args, step)
    if args.device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1e3  # type: ignore[index]


def measured_apart(base: Path, name: str) -> float:
    """The peak memory of one contender, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--base", str(base), "--memory-of", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    return float(done.stdout.splitlines()[-1])


def compare(args: argparse.Namespace, base: Path) -> dict[str, Any]:
    step, trainer = ours(args, base)
    steps = {"ours": step}
    steps |= {n: build(args, base, n, renamed(trainer)) for n in contenders(args)[1:]}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    times: dict[str, list[float]] = {name: [] for name in steps}
    works: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.warmup + args.rounds):
        for name, one in steps.items():
            took, worked, loss = seconds(args, one)
            losses[name].append(loss)
            if number >= args.warmup:
                times[name].append(took)
                works[name].append(worked)
    tokens = args.rows * args.tokens
    result: dict[str, Any] = {
        "shape": args.shape,
        "device": args.device,
        "threads": torch.get_num_threads(),
    }
    result |= {"rows": args.rows, "tokens": args.tokens, "rank": args.rank, "rounds": args.rounds}
    result |= {"compile": args.compile, "recompute": args.recompute, "torch": torch.__version__}
    for name in steps:
        result[name] = {
            "tokens_per_second": tokens / statistics.median(times[name]),
            "ours_is_faster_by": _ratio(times[name], times["ours"]),
            "losses": losses[name][:3],
        }
        if args.device == "cpu":
            result[name]["ours_works_less_by"] = _ratio(works[name], works["ours"])
    return result


def _ratio(theirs: list[float], mine: list[float]) -> float:
    """The median of the ratios of neighbouring steps."""
    return statistics.median(a / b for a, b in zip(theirs, mine, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=[*DEFAULTS], default="cpu")
    parser.add_argument(
        "--shape", choices=[*SHAPES], help="by default smollm2-135m on a CPU, llama-1.1b on a GPU"
    )
    parser.add_argument("--rows", type=int, help="rows per batch")
    parser.add_argument("--tokens", type=int, help="tokens per row")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, help="measured steps of each")
    parser.add_argument("--warmup", type=int, default=3, help="steps of each that are not measured")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for option, default in zip(
        ("shape", "rows", "tokens", "rounds"), DEFAULTS[args.device], strict=True
    ):
        if getattr(args, option) is None:
            setattr(args, option, default)
    if args.memory_of:
        print(peak_memory(args, build(args, args.base, args.memory_of)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_base(args, Path(folder))
        memory = (
            {}
            if args.no_memory
            else {name: measured_apart(Path(folder), name) for name in contenders(args)}
        )
        result = compare(args, Path(folder))
    for name, megabytes in memory.items():
        result[name]["peak_megabytes"] = megabytes
    if args.json:
        print(json.dumps(result))
        return
    print(", ".join(f"{key} {x}" for key, x in result.items() if not isinstance(x, dict)))
    for name in contenders(args):
        one = result[name]
        used = f"{one['peak_megabytes']:10,.0f} MB" if memory else ""
        work = (
            f" ({one['ours_works_less_by']:.2f}x by processor time)" if args.device == "cpu" else ""
        )
        print(
            f"{name:12s} {one['tokens_per_second']:10,.0f} tokens/s {used}   ours is {one['ours_is_faster_by']:.2f}x"
            f"{work}   losses {', '.join(f'{x:.4f}' for x in one['losses'])}"
        )


if __name__ == "__main__":
    main()

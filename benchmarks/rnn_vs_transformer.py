"""The cost of longer sentences: two recurrent networks and a Transformer with similar numbers of parameters.

    python benchmarks/rnn_vs_transformer.py
    python benchmarks/rnn_vs_transformer.py --lengths 16,64,256 --device cuda --json

An RNN whose memory is one vector, an RNN with additive attention, a Transformer with the fused kernel, and the same
Transformer with explicit scores. Source and target have the same length, the weights are random. Measured:

chain     the longest chain of dependent matrix products, counted as the model runs (on the CPU, where nn.GRU runs step
          by step): of a forward pass, and of decoding a sentence token by token
train     milliseconds of loss and gradients, without an optimiser's step and without dropout
forward   milliseconds of a forward pass without gradients, with all target tokens as input
kept      megabytes saved for the backward pass, without the weights, and without the output layer and its loss, which
          are the same for all
write     milliseconds to decode a sentence greedily, with a KV cache, to its full length

train, forward and kept are measured for one sentence, where nothing runs in parallel to the chain, and for a batch that
has the same number of tokens at every length. Times are medians of rounds in which the models take turns: CPU time for
one thread, since other processes change it little, and wall time otherwise.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from results import keep, rounded
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.layers import Attention
from clearhead.layers.attention import Tap
from clearhead.training.objectives.tokens import TranslationObjective

VOCAB, START, END = 6000, 1, 2
WIDTH = {"vocab": VOCAB, "width": 160, "dropout": 0.0}
LAYERS = {"depth": 3, "heads": 5, "hidden": 448, "order": "pre", "context": 1024}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN": ("rnn-seq2seq", {"attention": "none", "hidden": 512}),
    "RNN with attention": ("rnn-seq2seq", {"attention": "additive", "hidden": 368}),
    "Transformer": ("transformer", LAYERS),
    "Transformer, scores written out": ("transformer", LAYERS),
}
# not measured in decoding, where a query has one row of scores anyway
WRITTEN_OUT = "Transformer, scores written out"
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
TOKENS = 1024  # source tokens of a batch, and target tokens
PASSES = 3  # over all lengths, so that a disturbance does not affect one length only
SECONDS, MAX_ROUNDS = 0.2, 10  # limits of the rounds of a measurement in a pass

aten = torch.ops.aten
PRODUCTS = {
    **dict.fromkeys(
        (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, torch.ops.mkldnn._linear_pointwise), 1
    ),
    aten._scaled_dot_product_flash_attention_for_cpu: 2,  # queries with keys, weights with values
}


class Chain(TorchDispatchMode):
    """Counts the longest chain of products: an output is as deep as its deepest input, that of a product one deeper.

    The depth is an attribute of the storage, so that views and tensors written in place (a cache) have it too.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = max((depth(x) for x in _tensors((args, kwargs or {}))), default=0)
        out = func(*args, **(kwargs or {}))
        for x in _tensors(out):
            deeper = max(depth(x), before + PRODUCTS.get(func.overloadpacket, 0))
            setattr(x.untyped_storage(), "depth", deeper)  # noqa: B010 (a type checker rejects a new attribute)
        return out


def depth(x: Tensor) -> int:
    """The number of products in the longest chain that led to a tensor."""
    return getattr(x.untyped_storage(), "depth", 0)


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [y for part in parts for y in _tensors(part)]


class WrittenOut(Tap):
    """Computes attention explicitly, with scores and weights for every pair of tokens."""

    explicit = True


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, choices = MODELS[name]
    model: nn.Module = ch.build(kind, **WIDTH, **choices)
    if name == WRITTEN_OUT:
        for part in model.modules():
            if isinstance(part, Attention):
                part.tap = WrittenOut()
    return model


def sizes(length: int) -> dict[str, int]:
    """The number of rows of a sentence and of a batch; no batch if it would be a single sentence."""
    return {"sentence": 1} | ({"batch": TOKENS // length} if length < TOKENS else {})


def sentences(rows: int, length: int, device: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(END + 1, VOCAB, (3, rows, length)).to(device)
    return {"source": ids[0], "ids": ids[1], "targets": ids[2]}


def forward_chain(model: nn.Module, length: int) -> int:
    batch = sentences(1, length, "cpu")
    with torch.no_grad(), Chain():
        return depth(model(batch["ids"], source=batch["source"]))


def written_chain(model: Any, length: int) -> int:
    """The chain of greedy decoding; `search` would interrupt it by turning tokens into Python integers."""
    source, ids = sentences(1, length, "cpu")["source"], torch.tensor([[START]])
    with torch.no_grad(), Chain():
        state = model.start({"source": source}, 1, length)
        for _ in range(length):
            logits, state = model.step(ids, state)
            ids = logits[:, -1:].argmax(-1)
    return depth(ids)


def train(model: nn.Module, batch: dict[str, Tensor]) -> None:
    model.zero_grad()
    objective = TranslationObjective(TranslationObjective.Config(), {"model": model}, None)  # type: ignore[arg-type] (its loss needs no data)
    objective.loss(batch).backward()


def forward(model: nn.Module, batch: dict[str, Tensor]) -> None:
    with torch.no_grad():
        model(batch["ids"], source=batch["source"])


def write(model: nn.Module, batch: dict[str, Tensor]) -> None:
    source = batch["source"]
    hypotheses = search(
        model, {"source": source}, Plan(start=START, end=END, limit=source.shape[1], banned=[END])
    )
    assert len(hypotheses[0][0].ids) == source.shape[1]


def kept(model: Any, batch: dict[str, Tensor]) -> float:
    """Megabytes of all storages that are saved for the backward pass, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    # bytes by address; all live as long as the output, so that no address is reused
    saved: dict[int, int] = {}

    def record(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with saved_tensors_hooks(record, lambda x: x):
        out = model.states(batch["ids"], source=batch["source"])
    total = sum(size for address, size in saved.items() if address not in weights)
    del out
    return total / 1e6


def peak(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """Peak megabytes of a training step on a GPU, above what was allocated before."""
    model.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    train(model, batch)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def turns(
    jobs: Mapping[str, Callable[[], None]], times: dict[str, list[float]], device: str
) -> None:
    """Run the jobs in turns for SECONDS, at least once each, and append the milliseconds of every run to `times`."""
    clock = (
        time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    )
    begin = time.perf_counter()
    for done in range(MAX_ROUNDS):
        if done and time.perf_counter() - begin > SECONDS:
            break
        for name, job in jobs.items():
            start = clock()
            job()
            if device != "cpu":
                torch.cuda.synchronize()
            times.setdefault(name, []).append(1e3 * (clock() - start))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, or a CUDA device")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--lengths",
        default=",".join(map(str, LENGTHS)),
        help="numbers of tokens, separated by commas",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the numbers instead of writing docs/results"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lengths, device = [int(n) for n in args.lengths.split(",")], args.device
    models = {name: build(name) for name in MODELS}
    writers = {name: model for name, model in models.items() if name != WRITTEN_OUT}
    numbers: dict[str, Any] = {
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(device),
        "parameters": {
            name: sum(p.numel() for p in model.parameters()) for name, model in models.items()
        },
        "tokens_a_batch": TOKENS,
        "lengths": lengths,
    }

    def record(what: str, length: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            numbers.setdefault(what, {}).setdefault(name, []).append(value)
        if not args.json:
            print(
                f"{length:5} {what:16}",
                "   ".join(f"{name} {x:.5g}" for name, x in values.items()),
                flush=True,
            )
        if what.endswith("_sentence") and what != "write_sentence" and "batch" not in sizes(length):
            record(what.replace("sentence", "batch"), length, values)

    for n in lengths:
        record(
            "chain_forward", n, {name: forward_chain(model, n) for name, model in models.items()}
        )
        record("chain_write", n, {name: written_chain(model, n) for name, model in writers.items()})
    for model in models.values():
        model.to(device)
    for n in lengths:
        for what, rows in sizes(n).items():
            batch = sentences(rows, n, device)
            record(f"kept_{what}", n, {name: kept(model, batch) for name, model in models.items()})
            if device != "cpu":
                train(models["Transformer"], batch)  # so that one-time allocations do not count
                record(
                    f"peak_{what}", n, {name: peak(model, batch) for name, model in models.items()}
                )
    times: dict[tuple[str, int], dict[str, list[float]]] = {}
    for _ in range(PASSES):
        for n in lengths:
            for what, rows in sizes(n).items():
                batch = sentences(rows, n, device)
                for job, some in ((train, models), (forward, models), (write, writers)):
                    if job is not write or what == "sentence":
                        jobs = {
                            name: functools.partial(job, model, batch)
                            for name, model in some.items()
                        }
                        turns(jobs, times.setdefault((f"{job.__name__}_{what}", n), {}), device)
    for (what, n), by_name in times.items():
        record(what, n, {name: statistics.median(each) for name, each in by_name.items()})
    if args.json:
        print(json.dumps(rounded(numbers), indent=1))
    else:
        keep("rnn_vs_transformer" + ("" if device == "cpu" else "_cuda"), **numbers)


if __name__ == "__main__":
    main()

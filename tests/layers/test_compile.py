"""Blocks compile into one graph, export, copy and pickle; a compiled model can be watched, which leaves it as it was.

The checker of shapes that tests install cannot be traced, so this file runs itself as a script, as users would:
`test_compile.py JOB ...` runs these jobs and prints their results.
"""

import copy
import json
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead import edit, watch
from clearhead.fast import products
from clearhead.layers import Additive, Block, Linear, Mask, make_positions
from clearhead.layers.norm import RMSNorm
from clearhead.look import Notice, silence

B, T, H, E = 2, 7, 3, 4
WIDTH = H * E


class Model(nn.Module):
    """A stack of blocks that builds its mask from tensors and numbers."""

    def __init__(self, positions: str = "none", **block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positions = make_positions(positions, width=WIDTH, heads=H, head=E, context=T)
        for table in self.positions.parameters():
            nn.init.normal_(table)
        self.blocks = nn.ModuleList(Block(WIDTH, H, **block) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor | None = None, **mask) -> Tensor:
        x, mask = self.positions.add(x), Mask(**mask)
        for block in self.blocks:
            x = block(x, context, mask=mask, positions=self.positions)
        return x


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Random inputs, other numbers of the same shapes for each seed."""
    random = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(B, T, WIDTH, generator=random),
        "context": torch.randn(B, 5, 6, generator=random),
        "lengths": torch.randint(0, T + 1, (B,), generator=random),
        "documents": torch.randint(0, 2, (B, T), generator=random),
        "allow": torch.rand(B, 1, T, T, generator=random) > 0.4,
    }


RMS = {"kv_heads": 1, "order": "post", "norm": "rms", "mlp": "swiglu"}
# The arguments of the model, which tensors it is called with besides x, and the other arguments of the call.
QUICK = {
    "window": ({}, (), {"causal": True, "window": 3}),
    "lengths": ({}, ("lengths",), {}),
    "rotary": ({"positions": "rotary"}, (), {"causal": True}),
    "cross": ({"cross": True, "context": 6}, ("context",), {}),
}
CASES = QUICK | {
    "no mask": ({}, (), {}),
    "causal": ({}, (), {"causal": True}),
    "alibi": ({"positions": "alibi"}, (), {"causal": True}),
    "learned": ({"positions": "learned"}, (), {"causal": True}),
    "documents": ({}, ("documents",), {"causal": True}),
    "allow": ({}, ("allow",), {}),
    "relative": ({"positions": "relative"}, (), {}),
    "grouped, post, rms, swiglu": (RMS, (), {}),
    "additive": ({"score": Additive(E, H)}, (), {"causal": True}),
}


def double_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return 2 * F.linear(x, weight, bias)


def double_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float | None) -> Tensor:
    return 2 * F.rms_norm(x, shape, weight, eps)


def replaced(model: nn.Module) -> nn.Module:
    """The model with other products and norms, so that it can be seen whether they are used."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.product = double_product
        elif isinstance(module, RMSNorm):
            module.normalise = double_norm
    return model


def accelerated(model: nn.Module) -> nn.Module:
    products.LARGE = 1  # weights from which the fast product is used
    return products.accelerate(model)


CHANGES = {"as built": lambda model: model, "replaced": replaced, "accelerated": accelerated}


def inputs(names: tuple[str, ...], seed: int) -> dict[str, Tensor]:
    return {name: tensors(seed)[name] for name in ("x", *names)}


def compiled(case: str, backend: str, change: str = "as built") -> dict[str, object]:
    """The number of graphs, and how far the compiled and the exported model are from the eager one."""
    arguments, names, call = CASES[case]
    model, result = CHANGES[change](Model(**arguments)).eval().requires_grad_(False), {}
    with torch.no_grad():
        first, other = inputs(names, 0), inputs(names, 1)
        result["graphs"] = torch._dynamo.explain(model)(**first, **call).graph_count
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        exported = torch.export.export(model, (), {**first, **call}).module()
        for name, run in (("compiled", compiled), ("exported", exported)):
            off = [run(**x, **call) - model(**x, **call) for x in (first, other)]
            result[name] = max(float(d.abs().max()) for d in off)
    return result


def trained(case: str) -> dict[str, object]:
    """How far the gradients of a compiled model are from those of the eager one."""
    arguments, names, call = CASES[case]
    model, x = Model(**arguments), inputs(names, 0)
    runs = (torch.compile(model, fullgraph=True, backend="aot_eager"), model)
    compiled, eager = (torch.autograd.grad(run(**x, **call).square().sum(), list(model.parameters())) for run in runs)
    return {"gradient": max(float((a - b).abs().max()) for a, b in zip(compiled, eager, strict=True))}


def copied(change: str) -> dict[str, object]:
    """Whether copies give the same bits, also when the original has changed, and whether the change has an effect."""
    model, x = CHANGES[change](Model(**RMS)).eval(), tensors()["x"]
    with torch.no_grad():
        plain, before = Model(**RMS).eval()(x), model(x)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for parameter in model.parameters():
            parameter.zero_()
        return {
            "same": [torch.equal(each(x), before) for each in copies],
            "changed": float((before - plain).abs().max()),
        }


def watched(way: str) -> dict[str, object]:
    """What is recorded inside a compiled model, which warnings there are, and whether it is left as it was."""
    model, x = Model("rotary").eval(), tensors()["x"]
    names = ["blocks.*.attn.weights", "blocks.*.attn.entropy", "blocks.1"]
    with watch(model, *names) as want:
        model(x, causal=True)
    count = []

    def backend(graph, inputs):
        count.append(1)
        return graph.forward

    if way == "wrapped":
        model = torch.compile(model, backend=backend)
    elif way == "in place":
        model.compile(backend=backend)
    else:
        model.blocks[0].compile(backend=backend)
    result, warned = {}, []

    def run(inside=None) -> Tensor:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with inside or torch.enable_grad() as tape:
                out = model(x, causal=True)
        warned.append([issubclass(warning.category, Notice) for warning in caught])
        if inside is not None and tape is not None:
            result.setdefault("names", tape.names == want.names)
            for name in tape.names:
                a, b = (each[name].dense() if name.endswith("weights") else each[name] for each in (tape, want))
                result["off"] = max(result.get("off", 0.0), float((a - b).abs().max()))
        return out

    before = run()
    graphs = len(count)
    during = run(watch(model, *names))
    edited = run(edit(model, {"blocks.0.attn.heads": silence([0])}))
    after = run()
    return result | {
        "notices": warned,
        "compiled": graphs,
        "recompiled": len(count) - graphs,
        "watched": float((during - before).abs().max()),
        "edited": float((edited - before).abs().max()),
        "after": torch.equal(after, before),
    }


def run(*jobs: str) -> dict[str, dict[str, object]]:
    """Run all jobs in one process without the checker; the result of a job that fails is its error."""
    script = subprocess.run([sys.executable, __file__, *jobs], capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    return json.loads(script.stdout.splitlines()[-1])


WAYS = ("wrapped", "in place", "a block of it")
REPLACED = [f"compiled:grouped, post, rms, swiglu:aot_eager:{change}" for change in ("replaced", "accelerated")]
SLOW = [f"compiled:{case}:aot_eager" for case in CASES if case not in QUICK]
SLOW += ["compiled:rotary:inductor", "trained:relative"]


@pytest.fixture(scope="module")
def results(once) -> dict[str, dict[str, object]]:
    quick = [f"compiled:{case}:aot_eager" for case in QUICK]
    copies = [f"copied:{change}" for change in CHANGES]
    cases = [*quick, *REPLACED, *copies, "trained:window", *(f"watched:{way}" for way in WAYS)]
    folder = once("compile", lambda path: (path / "results.json").write_text(json.dumps(run(*cases))))
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def slow_results() -> dict[str, dict[str, object]]:
    return run(*SLOW)


def check(result: dict[str, object]) -> None:
    assert "error" not in result, result["error"]
    assert result.get("graphs", 1) == 1
    assert result.get("compiled", 0.0) < 1e-5
    assert result.get("exported", 0.0) < 1e-5
    assert result.get("gradient", 0.0) < 1e-3  # of gradients up to a few hundred


@pytest.mark.parametrize("case", QUICK)
def test_a_stack_of_blocks_compiles_into_one_graph_and_exports(results, case):
    check(results[f"compiled:{case}:aot_eager"])


@pytest.mark.parametrize("job", REPLACED)
def test_so_does_one_with_replaced_products_and_norms(results, job):
    check(results[job])


@pytest.mark.parametrize("change", CHANGES)
def test_copies_and_pickles_give_the_same_bits_with_replaced_products_and_norms_too(results, change):
    result = results[f"copied:{change}"]
    assert "error" not in result, result["error"]
    assert result["same"] == [True, True]
    if change == "replaced":
        assert result["changed"] > 0.1
    else:
        assert result["changed"] < 1e-5


def test_a_compiled_stack_has_the_gradients_of_the_eager_one(results):
    check(results["trained:window"])


@pytest.mark.slow
@pytest.mark.parametrize("job", SLOW)
def test_all_other_cases_and_inductor(slow_results, job):
    check(slow_results[job])


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_is_watched_in_eager_mode_with_a_notice(results, way):
    result = results[f"watched:{way}"]
    assert "error" not in result, result["error"]
    assert result["notices"] == [[], [True], [True], []]
    assert result["names"]
    assert result["off"] < 1e-6
    assert result["watched"] < 1e-5
    assert result["edited"] > 1e-2
    assert result["compiled"] == 1
    assert result["recompiled"] == 0
    assert result["after"]


if __name__ == "__main__":
    torch.set_num_threads(1)  # tiny tensors: a second thread only slows them down
    results = {}
    for job in sys.argv[1:]:
        torch._dynamo.reset()
        try:
            name, *arguments = job.split(":")
            jobs = {"compiled": compiled, "trained": trained, "copied": copied, "watched": watched}
            results[job] = jobs[name](*arguments)
        except Exception as error:
            results[job] = {"error": f"{type(error).__name__}: {error}"[:400]}
    print(json.dumps(results))

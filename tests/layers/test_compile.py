"""Blocks compile into one graph and export, and a compiled model is watched truly and left as it was.

The checker of shapes that tests install cannot be traced, so this file runs itself as a script, as users would:
`test_compile.py NAME ...` tries those cases and prints what came out.
"""

import json
import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from clearhead import edit, watch
from clearhead.layers import Additive, Block, Mask, make_positions
from clearhead.look import Notice, silence

B, T, H, E = 2, 7, 3, 4
WIDTH = H * E


class Model(nn.Module):
    """A stack of blocks that is told its mask as tensors and numbers, and makes it inside."""

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
    """Other numbers of the same shapes for each seed."""
    random = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(B, T, WIDTH, generator=random),
        "context": torch.randn(B, 5, 6, generator=random),
        "lengths": torch.randint(0, T + 1, (B,), generator=random),
        "documents": torch.randint(0, 2, (B, T), generator=random),
        "allow": torch.rand(B, 1, T, T, generator=random) > 0.4,
    }


# How the model is made, which tensors it is given beside x, and what else it is told.
QUICK = {
    "no mask": ({}, (), {}),
    "causal": ({}, (), {"causal": True}),
    "window": ({}, (), {"causal": True, "window": 3}),
    "lengths": ({}, ("lengths",), {}),
    "rotary": ({"positions": "rotary"}, (), {"causal": True}),
    "alibi": ({"positions": "alibi"}, (), {"causal": True}),
    "learned": ({"positions": "learned"}, (), {"causal": True}),
    "cross": ({"cross": True, "context": 6}, ("context",), {}),
}
CASES = QUICK | {
    "documents": ({}, ("documents",), {"causal": True}),
    "allow": ({}, ("allow",), {}),
    "relative": ({"positions": "relative"}, (), {}),
    "grouped, post, rms, swiglu": ({"kv_heads": 1, "order": "post", "norm": "rms", "mlp": "swiglu"}, (), {}),
    "additive": ({"score": Additive(E, H)}, (), {"causal": True}),
}


def given(names: tuple[str, ...], seed: int) -> dict[str, Tensor]:
    return {name: tensors(seed)[name] for name in ("x", *names)}


def tried(case: str, backend: str) -> dict[str, object]:
    """How many graphs, and how far the compiled and the exported model are from the eager one."""
    make, names, told = CASES[case]
    model, result = Model(**make).eval().requires_grad_(False), {}
    with torch.no_grad():
        first, other = given(names, 0), given(names, 1)
        result["graphs"] = torch._dynamo.explain(model)(**first, **told).graph_count
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        exported = torch.export.export(model, (), {**first, **told}).module()
        for name, run in (("compiled", compiled), ("exported", exported)):
            off = [run(**inputs, **told) - model(**inputs, **told) for inputs in (first, other)]
            result[name] = max(float(d.abs().max()) for d in off)
    return result


def learnt(case: str) -> dict[str, object]:
    """How far the gradients of a compiled model are from those of the eager one."""
    make, names, told = CASES[case]
    model, inputs = Model(**make), given(names, 0)
    runs = (torch.compile(model, fullgraph=True, backend="aot_eager"), model)
    compiled, eager = (
        torch.autograd.grad(run(**inputs, **told).square().sum(), list(model.parameters())) for run in runs
    )
    return {"gradient": max(float((a - b).abs().max()) for a, b in zip(compiled, eager, strict=True))}


def looked(way: str) -> dict[str, object]:
    """What is seen inside a compiled model, what is said, and whether it then is as it was."""
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
    result, said = {}, []

    def run(inside=None) -> Tensor:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with inside or torch.enable_grad() as tape:
                out = model(x, causal=True)
        said.append([warning.category.__name__ for warning in heard])
        if inside is not None and tape is not None:
            result.setdefault("names", tape.names == want.names)
            for name in tape.names:
                a, b = (each[name].dense() if name.endswith("weights") else each[name] for each in (tape, want))
                result["off"] = max(result.get("off", 0.0), float((a - b).abs().max()))
        return out

    before = run()
    graphs = len(count)
    watched = run(watch(model, *names))
    edited = run(edit(model, {"blocks.0.attn.heads": silence([0])}))
    after = run()
    return result | {
        "said": said,
        "compiled": graphs,
        "recompiled": len(count) - graphs,
        "watched": float((watched - before).abs().max()),
        "edited": float((edited - before).abs().max()),
        "after": torch.equal(after, before),
    }


def run(*jobs: str) -> dict[str, dict[str, object]]:
    """Each job in one process without the checker; a job that fails says how."""
    done = subprocess.run([sys.executable, __file__, *jobs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


WAYS = ("wrapped", "in place", "a block of it")
SLOW = [f"tried:{case}:aot_eager" for case in CASES if case not in QUICK] + ["tried:rotary:inductor", "learnt:relative"]


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, object]]:
    quick = [f"tried:{case}:aot_eager" for case in QUICK]
    return run(*quick, "learnt:window", *(f"looked:{way}" for way in WAYS))


@pytest.fixture(scope="module")
def told_slowly() -> dict[str, dict[str, object]]:
    return run(*SLOW)


def good(result: dict[str, object]) -> None:
    assert "error" not in result, result["error"]
    assert result.get("graphs", 1) == 1
    assert result.get("compiled", 0.0) < 1e-5
    assert result.get("exported", 0.0) < 1e-5
    assert result.get("gradient", 0.0) < 1e-3  # of gradients up to a few hundred


@pytest.mark.parametrize("case", QUICK)
def test_a_stack_of_blocks_is_one_graph_and_exports(told, case):
    good(told[f"tried:{case}:aot_eager"])


def test_a_compiled_stack_learns_as_the_eager_one(told):
    good(told["learnt:window"])


@pytest.mark.slow
@pytest.mark.parametrize("job", SLOW)
def test_so_do_the_others_and_inductor(told_slowly, job):
    good(told_slowly[job])


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_is_watched_in_eager_mode_and_says_so(told, way):
    result = told[f"looked:{way}"]
    assert "error" not in result, result["error"]
    assert result["said"] == [[], [Notice.__name__], [Notice.__name__], []]
    assert result["names"]
    assert result["off"] < 1e-6
    assert result["watched"] < 1e-5
    assert result["edited"] > 1e-2
    assert result["compiled"] == 1
    assert result["recompiled"] == 0
    assert result["after"]


if __name__ == "__main__":
    torch.set_num_threads(1)  # tiny tensors: a second only gets in the way
    results = {}
    for job in sys.argv[1:]:
        torch._dynamo.reset()
        try:
            name, *arguments = job.split(":")
            results[job] = {"tried": tried, "learnt": learnt, "looked": looked}[name](*arguments)
        except Exception as error:
            results[job] = {"error": f"{type(error).__name__}: {error}"[:400]}
    print(json.dumps(results))

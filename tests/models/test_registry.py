"""The laws of every registered family of models, each in several of its words.

Tracing cannot follow the checker of shapes that tests install, so exporting is done by this file run as a script.
"""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Attention
from clearhead.models import FAMILIES, family, name_of

B, T, V = 2, 7, 11
WORDS = {"vocab": V, "context": 9, "width": 12}
LLAMA = {"positions": "rotary", "kv_heads": 1, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}
CASES: dict[str, tuple[str, dict]] = {
    "gpt": ("gpt", {**WORDS, "depth": 2, "heads": 3, "hidden": 13}),
    "gpt like Llama": ("gpt", {**WORDS, **LLAMA, "depth": 2, "heads": 3}),
    "gpt, post, relative, cosine": (
        "gpt",
        {**WORDS, "depth": 1, "heads": 3, "order": "post", "positions": "relative", "score": "cosine"},
    ),
    "gpt without blocks": ("gpt", {**WORDS, "depth": 0, "heads": 1}),
    "reader, sum": ("reader", {**WORDS, "mix": "sum", "hidden": 13}),
    "reader, forget": ("reader", {**WORDS, "mix": "forget", "heads": 3, "gamma": (0.9, 0.5, 1.0)}),
    "reader, learns to forget": ("reader", {**WORDS, "mix": "forget", "heads": 3, "learned": True}),
    "reader, attention": ("reader", {**WORDS, "heads": 3}),
    "reader, attention, alibi": ("reader", {**WORDS, "heads": 3, "positions": "alibi", "norm": "rms"}),
    "deep, plain": ("deep", {"width": 5, "depth": 3, "connect": "plain"}),
    "deep, dense": ("deep", {"width": 5, "depth": 3, "connect": "dense", "norm": "rms", "activation": "tanh"}),
    "deep, residual": ("deep", {"width": 5, "depth": 3, "norm": "layer"}),
}
SEQUENCES = [case for case, (_, options) in CASES.items() if "vocab" in options]
every = pytest.mark.parametrize("case", CASES)
sequences = pytest.mark.parametrize("case", SEQUENCES)


def build(case: str, seed: int = 0) -> nn.Module:
    name, options = CASES[case]
    torch.manual_seed(seed)
    model = ch.build(name, **options)
    with torch.no_grad():  # what starts at zero, such as a bias, would hide that it is missing
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.eval()


def inputs(case: str, rows: int = B, seed: int = 1) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    if case in SEQUENCES:
        return torch.randint(0, V, (rows, T), generator=dice)
    return torch.randn(rows, CASES[case][1]["width"], generator=dice)


def bits(x: Tensor) -> bytes:
    return x.detach().contiguous().view(torch.uint8).numpy().tobytes()


def test_every_family_is_here():
    assert {name for name, _ in CASES.values()} == set(FAMILIES) == set(ch.models())
    assert all(ch.models().values())


@every
def test_builds_and_runs(case):
    model, x = build(case), inputs(case)
    assert name_of(model) == CASES[case][0]
    assert isinstance(model, family(CASES[case][0])[0])
    out = model(x)
    assert out.shape == ((B, T, V) if case in SEQUENCES else x.shape)
    assert out.dtype == torch.float32
    assert bool(out.isfinite().all())
    if case in SEQUENCES:
        assert torch.equal(model.head(model.states(x)), out)
        assert model.head.bias is None
    assert model.bfloat16()(x if case in SEQUENCES else x.bfloat16()).dtype == torch.bfloat16


@every
def test_every_parameter_gets_a_gradient(case):
    model = build(case).double().train()
    x = inputs(case)
    out = model(x if case in SEQUENCES else x.double())
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert bool(p.grad.isfinite().all()), name
        # A bias of all keys moves all scores of a query alike, which softmax cannot see.
        assert p.grad.abs().max() > 1e-9 or name.endswith("key.bias"), name


@sequences
@pytest.mark.parametrize("cut", [1, 4, 6])
def test_the_future_cannot_move_the_past(case, cut):
    model, x = build(case), inputs(case)
    other = torch.cat([x[:, :cut], (x[:, cut:] + 3) % V], dim=1)
    before, after = model(x), model(other)
    torch.testing.assert_close(after[:, :cut], before[:, :cut], rtol=0.0, atol=1e-5)
    torch.testing.assert_close(model(x[:, :cut]), before[:, :cut], rtol=0.0, atol=1e-5)
    assert not torch.allclose(after[:, cut:], before[:, cut:])


@every
def test_a_neighbour_in_the_batch_cannot_move_an_answer(case):
    model, x = build(case), inputs(case, rows=3)
    together, others = model(x), model(torch.cat([x[:1], inputs(case, rows=4, seed=5)]))
    for row in range(3):
        torch.testing.assert_close(model(x[row : row + 1])[0], together[row], rtol=0.0, atol=1e-5)
    torch.testing.assert_close(others[0], together[0], rtol=0.0, atol=1e-5)


@sequences
def test_packed_documents_are_as_if_apart(case):
    model, x = build(case), inputs(case)
    documents = torch.tensor([[0, 0, 1, 1, 1, 1, 2], [5, 5, 5, 5, 5, 7, 7]])
    at = torch.tensor([[0, 1, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 0, 1]])
    packed = model(x, documents=documents, at=at)
    for row, number in ((0, 0), (0, 1), (0, 2), (1, 5), (1, 7)):
        here = documents[row] == number
        apart = model(x[row, here][None])[0]
        torch.testing.assert_close(packed[row, here], apart, rtol=0.0, atol=1e-5)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_what_is_saved_and_loaded_is_the_same_to_the_bit(case, dtype, tmp_path):
    model, x = build(case).to(dtype), inputs(case)
    x = x if case in SEQUENCES else x.to(dtype)
    ch.save(model, tmp_path / "model")
    dice = torch.get_rng_state()
    again = ch.load(tmp_path / "model", device="cpu")
    assert torch.equal(dice, torch.get_rng_state())  # nothing was drawn only to be replaced
    assert again.config == model.config == again.model.config
    assert not again.model.training
    ours, theirs = (dict(m.named_parameters(remove_duplicate=False)) for m in (model, again.model))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert (ours[name].dtype, bits(ours[name])) == (theirs[name].dtype, bits(theirs[name])), name
        assert theirs[name].requires_grad, name
    ties = [[[n for n, q in m.items() if q is p] for p in m.values()] for m in (ours, theirs)]
    assert ties[0] == ties[1]
    for (name, a), (_, b) in zip(model.named_buffers(), again.model.named_buffers(), strict=True):
        assert (a.dtype, bits(a)) == (b.dtype, bits(b)), name  # constants too, though no file has them
    assert bits(again.model(x)) == bits(model(x))


@every
def test_watching_changes_no_bit(case):
    model, x = build(case), inputs(case)
    before = model(x)
    with ch.watch(model, "**") as tape:
        during = model(x)
    assert bits(during) == bits(before)
    assert bits(model(x)) == bits(before)
    assert not [hook for m in model.modules() for hook in (*m._forward_hooks, *m._forward_pre_hooks)]
    assert all(m.tap is None for m in model.modules() if isinstance(m, Attention))
    silent = {n for n, m in model.named_modules() if isinstance(m, nn.ModuleList)} | {"positions"}
    assert {name for name in tape.names if name not in tape} <= silent
    if any(isinstance(m, Attention) for m in model.modules()):
        assert "blocks.0.attn.weights" in tape
        torch.testing.assert_close(tape["blocks.0.attn.weights"].dense().sum(-1), torch.ones(B, 3, T))


def loss(case: str, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)
    return F.cross_entropy(out.flatten(0, 1), y.flatten()) if case in SEQUENCES else F.mse_loss(out, y)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case != "gpt without blocks"]
)  # a token alone knows nothing
def test_overfits_one_batch(case):
    model, x, y = build(case).train(), inputs(case), inputs(case, seed=9)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    first = float(loss(case, model, x, y).detach())
    for _ in range(80):
        optimiser.zero_grad()
        loss(case, model, x, y).backward()
        optimiser.step()
    assert float(loss(case, model, x, y).detach()) < 0.1 * first


@every
def test_an_unknown_option_names_the_nearest(case):
    name, options = CASES[case]
    with pytest.raises(ValueError, match=r"unknown key model\.widht; the nearest is width"):
        ch.build(name, **options, widht=3)
    with pytest.raises(ValueError, match=r"model\.width = '12': expected a whole number"):
        ch.build(name, **options | {"width": "12"})
    with pytest.raises(ValueError, match="width=0: expected 1 or more"):
        ch.build(name, **options | {"width": 0})


WRONG = {
    ("gpt", "positions", "sinusiod"): r"the nearest is sinusoid",
    ("gpt", "positions", "sincos2d"): r"expected one of 'none', 'sinusoid'",
    ("gpt", "norm", "lyer"): r"the nearest is layer",
    ("gpt", "heads", 5): r"width=12 does not divide into heads=5",
    ("gpt", "kv_heads", 2): r"kv_heads=2 does not divide heads=3",
    ("gpt", "depth", -1): r"depth=-1: expected 0 or more",
    ("gpt", "hidden", 0): r"hidden=0: expected 1 or more",
    ("gpt", "dropout", 1.0): r"dropout=1.0: expected a share",
    ("reader", "mix", "som"): r"the nearest is sum",
    ("reader", "gamma", 0.0): r"gamma=0.0: expected one number in \(0, 1\], or 3, one a head",
    ("reader", "gamma", (0.5, 0.9)): r"gamma=\(0.5, 0.9\): expected one number",
    ("reader", "learned", True): r"only mix='forget' has a gamma to learn",
    ("deep", "connect", "residul"): r"the nearest is residual",
    ("deep", "depth", -1): r"depth=-1: expected 0 or more",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: " ".join(map(str, wrong)))
def test_a_wrong_word_says_what_was_expected(wrong):
    name, key, value = wrong
    options = CASES[{"gpt": "gpt", "reader": "reader, attention", "deep": "deep, plain"}[name]][1]
    with pytest.raises(ValueError, match=WRONG[wrong]):
        ch.build(name, **options | {key: value})


def test_two_words_that_do_not_go_together():
    with pytest.raises(ValueError, match="'rotary' act inside attention: with mix='sum' expected none"):
        ch.build("reader", vocab=V, mix="sum", positions="rotary")
    with pytest.raises(ValueError, match="1 is the end of its range"):
        ch.build("reader", vocab=V, mix="forget", learned=True, gamma=1.0)
    with pytest.raises(ValueError, match=r"rotary.*pairs of columns"):
        ch.build("gpt", vocab=V, width=9, heads=3, positions="rotary")


def test_an_unknown_family_names_the_nearest():
    with pytest.raises(ValueError, match="no model 'GTP': expected one of gpt, reader, deep; the nearest is gpt"):
        ch.build("GTP", vocab=V)
    with pytest.raises(ValueError, match="Linear is of no known family"):
        name_of(nn.Linear(2, 2))


DOORS = {
    "the verb first": "import clearhead as ch; ch.models(); ch.models.build",
    "the room first": "import clearhead.models; import clearhead as ch; ch.models(); ch.models.build",
    "a file of the room first": "import clearhead.models.gpt; import clearhead as ch; ch.models(); ch.models.gpt.GPT",
    "from": "from clearhead import models; import clearhead as ch; assert models is ch.models; models()",
}


def test_verbs_and_rooms_are_there_whatever_was_imported_first():
    running = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for code in DOORS.values()
    ]
    for name, process in zip(DOORS, running, strict=True):
        said = process.communicate()[1]
        assert process.returncode == 0, f"{name}: {said}"


def exported(case: str) -> dict[str, float]:
    """How far the exported model is from the eager one, for a batch of its own and one of another size."""
    model, x = build(case).requires_grad_(False), inputs(case)
    rows = torch.export.Dim("rows", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},)).module()
        return {f"{n} rows": float((program(y) - model(y)).abs().max()) for n in (2, 5) for y in [inputs(case, rows=n)]}


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, float | str]]:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@every
def test_exports(told, case):
    assert "error" not in told[case], told[case]["error"]
    assert max(told[case].values()) < 1e-5


def tried(work: Callable[[str], dict], case: str) -> dict:
    try:
        return work(case)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:600]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({case: tried(exported, case) for case in CASES}))

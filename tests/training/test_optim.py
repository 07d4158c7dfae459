"""The optimiser equals torch's on the same gradients, and a resumed run equals an uninterrupted one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from clearhead.layers import Block, Learned, Patches, Stack, Tokens
from clearhead.training.ema import EMA
from clearhead.training.optim import schedule
from clearhead.training.optim.muon import Muon
from clearhead.training.optim.optimisers import NAMES, OptimConfig, Optimiser, is_inside, is_matrix
from clearhead.training.optim.schedule import Scheduled

DEVICES = ["cpu", pytest.param("cuda", marks=[
    pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
])]  # fmt: skip


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = Tokens(11, 6)
        self.positions = Learned(6, 7)
        self.blocks = nn.ModuleList([Block(6, 2, score="cosine"), Block(6, 3, norm="rms", bias=False)])
        self.head = nn.Linear(6, 11)


def make(dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return Model().to(device, dtype)


def push(params, seed, dtype=None):
    """Set the same gradients on any device and in any dtype, or add them to existing ones, like autograd."""
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        grad = torch.randn(p.shape, generator=generator).to(dtype or p.dtype).to(p)
        p.grad = grad if p.grad is None else p.grad + grad


def same(ours, theirs):
    """Assert that tensors are equal to the bit, name by name."""
    assert list(ours) == list(theirs)
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def copies(tensors):
    return {name: x.detach().clone() for name, x in tensors.items()}


# Equality with torch


def torch_run(config, steps=4, *, clip=None, grads_in=None):
    """The model after steps of torch.optim, with decay of matrices only; every third learning rate is halved."""
    model = make()
    params = dict(model.named_parameters())
    scales = {n for n in params if "norm" in n or n.endswith(("bias", "sharpness"))}
    groups = [
        {"params": [p for n, p in params.items() if n not in scales], "weight_decay": config.decay},
        {"params": [params[n] for n in params if n in scales], "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        optimiser = torch.optim.SGD(groups, config.lr, momentum=config.momentum)
    else:
        optimiser = torch.optim.AdamW(groups, config.lr, betas=config.betas, eps=config.eps)
    norms = []
    for step in range(steps):
        push(params.values(), step, grads_in)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf")))
        for group in optimiser.param_groups:
            group["lr"] = config.lr * (0.5 if step % 3 == 2 else 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return copies(params), norms


def our_run(config, steps=4, *, masters=False, optimiser=None, first=0, device="cpu"):
    if optimiser is None:
        optimiser = Optimiser(make(torch.bfloat16 if masters else torch.float32, device), config, masters=masters)
    norms = []
    for step in range(first, steps):
        push(optimiser.parameters.values(), step)
        norms.append(optimiser.step(0.5 if step % 3 == 2 else 1.0))
        assert all(p.grad is None for p in [*optimiser.parameters.values(), *optimiser.masters.values()])
    return optimiser, norms


@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
@pytest.mark.parametrize(
    "config",
    [{"name": "adamw", "lr": 0.01}, {"name": "sgd", "lr": 0.1}, {"name": "sgd", "lr": 0.1, "momentum": 0.0}],
    ids=["adamw", "sgd", "sgd without momentum"],
)
def test_updates_equal_those_of_torch(config, clip):
    """SGD and the norms to the bit; the fused AdamW kernel orders a few products differently."""
    config = OptimConfig(**config, clip=clip)
    optimiser, norms = our_run(config)
    theirs, their_norms = torch_run(config, clip=clip)
    torch.testing.assert_close(torch.stack(norms), torch.stack(their_norms), rtol=0, atol=0)
    tolerance = {"rtol": 0, "atol": 0} if config.name == "sgd" else {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(copies(optimiser.parameters), theirs, **tolerance)
    assert norms[0].ndim == 0


def test_master_weights_equal_a_float32_run_on_the_same_gradients():
    """Both start from the same bfloat16 numbers, and the gradients are rounded to bfloat16."""
    config = OptimConfig(lr=0.01)
    low, _ = our_run(config, masters=True)
    high = make().bfloat16().float()
    optimiser = Optimiser(high, config, masters=False)
    for step in range(4):
        push(high.parameters(), step, torch.bfloat16)
        optimiser.step(0.5 if step % 3 == 2 else 1.0)
    same(low.masters, copies(optimiser.parameters))
    same({n: p.detach() for n, p in low.parameters.items()}, {n: m.bfloat16() for n, m in low.masters.items()})
    assert low.weights().keys() == low.parameters.keys()
    assert all(w.dtype == torch.float32 for w in low.weights().values())
    assert optimiser.weights()["head.weight"] is high.head.weight


@pytest.mark.parametrize("name", NAMES)
def test_small_updates_are_not_lost_with_master_weights(name):
    """Updates far below the resolution of bfloat16 change the master weights, and in the end the model."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False)).bfloat16()
    first = model[0].weight.detach().clone()
    optimiser = Optimiser(model, OptimConfig(name=name, lr=1e-5, decay=0.0, clip=None), masters=True)
    for _ in range(300):
        model[0].weight.grad = torch.eye(3).bfloat16()
        optimiser.step()
    assert (optimiser.masters["0.weight"] - first.float()).abs().max() > 5e-4
    assert not torch.equal(model[0].weight, first)


@pytest.mark.parametrize("masters", [False, True])
def test_gradients_of_micro_batches_are_summed(masters):
    """bfloat16 gradients are summed in float32: 256 + 1 + 1 is 258, not 256."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).to(torch.bfloat16 if masters else torch.float32)
    optimiser = Optimiser(model, OptimConfig(name="sgd", clip=None), masters=masters)
    p = model[0].weight
    for value in (256.0, 1.0, 1.0):
        p.grad = torch.full_like(p, value) + (0 if p.grad is None else p.grad)
        optimiser.gather()
        assert (p.grad is None) == masters
    assert optimiser.step().item() == 258.0 * 2


def test_parameters_without_gradients_are_skipped_unless_all_are():
    optimiser = Optimiser(model := make(), OptimConfig(lr=0.1), masters=False)
    with pytest.raises(RuntimeError, match="backward"):
        optimiser.step()
    before = copies(optimiser.parameters)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    optimiser.step()
    assert [n for n, p in model.named_parameters() if not torch.equal(p, before[n])] == ["head.weight"]


def test_an_infinite_norm_is_returned():
    optimiser = Optimiser(model := make(), OptimConfig(), masters=False)
    push(model.parameters(), 0)
    model.head.bias.grad[0] = float("nan")
    assert optimiser.step().isnan()


# Parameter groups


def test_only_matrices_are_decayed():
    model = nn.ModuleDict({"model": Model(), "patches": Patches(6, patch=2, registers=3), "conv": nn.Conv2d(3, 4, 1)})
    no = {n for n, p in model.named_parameters() if not is_matrix(p)}
    assert all("norm" in n or n.endswith(("bias", "sharpness", "patches.cls")) for n in no)
    assert {"model.blocks.0.attn.sharpness", "patches.cls", "model.blocks.1.mlp_norm.weight", "conv.bias"} <= no
    decayed = Optimiser(model := make(), OptimConfig(lr=0.1, decay=1.0), masters=False)
    before = copies(decayed.parameters)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    decayed.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (0.9 if is_matrix(p) else 1.0), rtol=1e-6, atol=0)


def test_muon_updates_only_matrices_between_hidden_states():
    optimiser = Optimiser(model := make(), OptimConfig(name="muon"), masters=False)
    state = optimiser.tensors()
    inside = {n for n, _ in model.named_parameters() if f"optim/{n}/momentum_buffer" in state}
    assert inside == {
        f"blocks.{i}.{part}.weight"
        for i in (0, 1)
        for part in ("attn.query", "attn.key", "attn.value", "attn.out", "mlp.up", "mlp.down")
    }
    rest = {n for n, _ in model.named_parameters() if f"optim/{n}/exp_avg" in state}
    assert rest == {n for n, _ in model.named_parameters()} - inside
    stack = {n for n, p in Stack(4, 2).named_parameters() if is_inside(n, p)}
    assert stack == {"layers.0.weight", "layers.1.weight"}


def test_muon_combines_torch_muon_and_adamw():
    config = OptimConfig(name="muon", lr=0.01, clip=None)
    optimiser, _ = our_run(config)
    model = make()
    named = dict(model.named_parameters())
    inside = [p for n, p in named.items() if is_inside(n, p)]
    groups = [
        {"params": [p for n, p in named.items() if not is_inside(n, p) and is_matrix(p)], "weight_decay": 0.1},
        {"params": [p for n, p in named.items() if not is_matrix(p)], "weight_decay": 0.0},
    ]
    theirs = [
        Muon(inside, momentum=0.9),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True),
    ]
    for step in range(4):
        push(named.values(), step)
        for each in theirs:
            for group in each.param_groups:
                group["lr"] = 0.01 * (0.5 if step % 3 == 2 else 1.0)
            each.step()
            each.zero_grad()
    same(copies(optimiser.parameters), copies(named))


# Resuming


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("masters", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(device, name, masters):
    config = OptimConfig(name=name, lr=0.01)
    whole, norms = our_run(config, 6, masters=masters, device=device)
    first, _ = our_run(config, 3, masters=masters, device=device)
    saved, weights = copies(first.tensors()), copies(first.weights())

    torch.manual_seed(1)
    model = Model().to(device, torch.bfloat16 if masters else torch.float32)  # other weights, to be overwritten
    second = Optimiser(model, config, masters=masters)
    state = second.tensors()
    assert state.keys() == saved.keys()
    with torch.no_grad():
        for key, value in saved.items():
            state[key].copy_(value)
        for key, value in weights.items():
            second.weights()[key].copy_(value)
    second.restore()
    _, more = our_run(config, 6, optimiser=second, first=3)
    same(copies(second.parameters), copies(whole.parameters))
    same(copies(second.weights()), copies(whole.weights()))
    same(copies(second.tensors()), copies(whole.tensors()))
    assert torch.equal(torch.stack(more), torch.stack(norms[3:]))


@pytest.mark.parametrize("name", NAMES)
def test_prepared_state_equals_the_state_that_torch_creates(name):
    """The zeros have the names, dtypes, shapes and devices of the state after a first step of torch."""
    optimiser = Optimiser(make(), OptimConfig(name=name), masters=False)
    bundle = copies(optimiser.tensors())
    assert not any(x.any() for x in bundle.values())
    for each in optimiser._optimisers:
        each.state.clear()
    our_run(OptimConfig(name=name), 1, optimiser=optimiser)
    made = optimiser.tensors()
    describe = lambda x: (x.shape, x.dtype, x.device, x.stride())  # noqa: E731
    assert {k: describe(x) for k, x in bundle.items()} == {k: describe(x) for k, x in made.items()}


def test_the_state_has_stable_names():
    optimiser = Optimiser(make(torch.bfloat16), OptimConfig(), masters=True)
    names = optimiser.tensors()
    weight = "blocks.0.attn.query.weight"
    for name in (f"optim/{weight}/exp_avg", f"optim/{weight}/step", f"master/{weight}"):
        assert names[name].dtype == torch.float32
    assert len(names) == 4 * len(optimiser.parameters)
    assert names[f"master/{weight}"] is optimiser.weights()[weight]


# Devices and processes


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("masters", [False, True])
def test_a_step_does_not_synchronise_with_the_device(name, masters):
    config = OptimConfig(name=name)
    optimiser, _ = our_run(config, 1, masters=masters, device="cuda")
    push(optimiser.parameters.values(), 1)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        optimiser.gather()
        norm = optimiser.step(0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert norm.is_cuda
    here, _ = our_run(config, 1, masters=masters)
    there, _ = our_run(config, 1, masters=masters, device="cuda")
    if name != "muon":  # muon iterates in another precision there
        for n, w in here.weights().items():
            torch.testing.assert_close(there.weights()[n].cpu(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without processes")
def test_sharded_parameters_train_like_unsharded_ones(tmp_path):
    script = Path(__file__).parent / "sharded.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "meet"), str(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)


# Bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "adam"}, r"'adam'.*adamw, sgd, muon"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"eps": -1.0}, "eps=-1.0"),
        ({"betas": (0.9, 1.0)}, "betas="),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"decay": -0.1}, "decay=-0.1"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"ema": 1.0}, "ema=1.0"),
        (
            {"ema": Scheduled(start=0.9, final=1.5)},
            r"^ema=\{start = 0.9, final = 1.5\}: expected a share, .* below 1, or 1 as the end of a schedule$",
        ),
        ({"ema": Scheduled(start=1.0, final=0.9)}, r"^ema=\{start = 1.0, final = 0.9\}: expected"),
        ({"decay": Scheduled(start=-1.0, final=0.9)}, r"^decay=\{start = -1.0, final = 0.9\}: expected 0 or more$"),
        ({"lr": float("nan")}, "lr=nan"),
    ],
)
def test_invalid_options_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        OptimConfig(**fields)


def test_a_scheduled_average_may_end_at_one_where_it_stops_moving():
    ema = OptimConfig(ema=Scheduled(start=0.97, final=1.0)).ema
    weights = {"x": torch.ones(3)}
    average = EMA(weights, {"x": torch.ones(3)})
    weights["x"].zero_()
    average.update(schedule.value_at(ema, step=0, steps=5))
    torch.testing.assert_close(average.values["x"], torch.full((3,), 0.97))
    average.update(schedule.value_at(ema, step=4, steps=5))
    torch.testing.assert_close(average.values["x"], torch.full((3,), 0.97))


def test_no_clipping_is_written_as_zero():
    assert OptimConfig(clip=None) == OptimConfig(clip=0.0)


def test_unsuitable_parameters_are_refused():
    with pytest.raises(ValueError, match="nothing to train"):
        Optimiser(nn.Linear(2, 2).requires_grad_(False), OptimConfig(), masters=False)
    p = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="two names"):
        Optimiser({"a": p, "b": p}, OptimConfig(), masters=False)
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    assert list(Optimiser(frozen, OptimConfig(), masters=False).weights()) == ["weight"]

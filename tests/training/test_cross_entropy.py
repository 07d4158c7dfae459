"""The fused output layer and cross-entropy equals the two in sequence, and never holds all logits in memory.

torch.compile cannot trace the checker of shapes that tests install, so this file also runs itself as a script.
"""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead.training.objectives import cross_entropy
from clearhead.training.objectives.cross_entropy import linear_cross_entropy, measured

B, T, D, V = 3, 67, 5, 11  # 201 tokens: chunks of at least 64 tokens do not divide them
TARGETS = ("all", "some", "none")
CHUNKED = 1 << 9  # a cache so small that chunks have the smallest size


def drawn(dtype: torch.dtype = torch.float64, counted: str = "all", seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and targets, of which all, some or none have a loss; the same numbers in every dtype."""
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(B, T, D, generator=dice, dtype=torch.float64).to(dtype)
    weight = torch.randn(V, D, generator=dice, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, V, (B, T), generator=dice)
    share = {"all": 0.0, "some": 0.4, "none": 2.0}[counted]
    targets = targets.masked_fill(torch.rand(B, T, generator=dice) < share, cross_entropy.IGNORED)
    return x.requires_grad_(), weight.requires_grad_(), targets


def apart(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The oracle: torch's cross-entropy of the full logits."""
    logits = (x @ weight.T).flatten(0, -2)
    return F.cross_entropy(
        logits, targets.flatten(), ignore_index=cross_entropy.IGNORED, label_smoothing=smoothing, reduction="sum"
    )


@pytest.fixture(params=["whole", "chunked"])
def cache(request, monkeypatch) -> str:
    if request.param == "chunked":
        monkeypatch.setattr(cross_entropy, "CACHE", CHUNKED)
    return request.param


@pytest.mark.parametrize("counted", TARGETS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_equal_those_of_torch(cache, counted, smoothing):
    x, weight, targets = drawn(counted=counted)
    rows = cross_entropy._rows(x.detach().flatten(0, 1), weight.detach())
    assert rows == (B * T if cache == "whole" else 51)
    want = apart(x, weight, targets, smoothing)
    mine = linear_cross_entropy(x, weight, targets, smoothing=smoothing)
    assert mine.dtype == torch.float64
    torch.testing.assert_close(mine, want, rtol=1e-12, atol=1e-12)
    scale = 0.37  # gradient of what follows the loss
    for got, true in zip(
        torch.autograd.grad(scale * mine, (x, weight)), torch.autograd.grad(scale * want, (x, weight)), strict=True
    ):
        torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("counted", TARGETS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_measured_gives_the_same_loss_and_counts_correct_predictions(cache, counted, smoothing):
    x, weight, targets = drawn(counted=counted)
    loss, right = measured(x, weight, targets, smoothing=smoothing)
    torch.testing.assert_close(loss, apart(x, weight, targets, smoothing).detach(), rtol=1e-12, atol=1e-12)
    assert int(right) == int(((x @ weight.T).argmax(-1) == targets).sum())
    assert not loss.requires_grad
    with torch.no_grad():
        quiet = linear_cross_entropy(x, weight, targets, smoothing=smoothing)
    assert torch.equal(quiet, loss)
    assert torch.equal(linear_cross_entropy(x.detach(), weight.detach(), targets, smoothing=smoothing), loss)


@pytest.mark.parametrize(
    ("dtype", "room"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=["float32", "bfloat16"]
)
def test_bfloat16_and_float16_are_summed_in_float32(cache, dtype, room):
    """Errors are relative to the largest value: bfloat16 rounds at 4e-3; the inputs are rounded for both."""
    x, weight, targets = drawn(dtype, counted="some")
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    mine, want = linear_cross_entropy(x, weight, targets), apart(*wide, targets)
    assert mine.dtype == torch.float32
    mine.backward()
    want.backward()
    assert abs(float(mine.detach()) / float(want.detach()) - 1) < room
    for got, true in ((x.grad, wide[0].grad), (weight.grad, wide[1].grad)):
        assert got.dtype == dtype
        assert float((got.double() - true).abs().max() / true.abs().max()) < room


def test_gradients_agree_with_finite_differences(cache):
    x, weight, targets = drawn(counted="some")
    x = x.detach()[:, ::8].clone().requires_grad_()
    targets = targets[:, ::8]
    assert torch.autograd.gradcheck(lambda x, w: linear_cross_entropy(x, w, targets, smoothing=0.1), (x, weight))


@pytest.mark.parametrize("frozen", ["x", "weight"])
def test_inputs_or_weights_may_be_frozen(frozen):
    x, weight, targets = drawn()
    held = x if frozen == "x" else weight
    held.requires_grad_(False)
    linear_cross_entropy(x, weight, targets).backward()
    assert held.grad is None
    other = weight if frozen == "x" else x
    torch.testing.assert_close(other.grad, torch.autograd.grad(apart(x, weight, targets), other)[0])


def test_an_empty_batch_has_zero_loss_and_gradients():
    x, weight, targets = drawn()
    loss = linear_cross_entropy(x[:0], weight, targets[:0])
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not weight.grad.any()
    assert [float(n) for n in measured(x[:0], weight, targets[:0])] == [0.0, 0.0]


def test_huge_logits_do_not_overflow(cache):
    x, weight, targets = drawn(torch.float32)
    with torch.no_grad():
        x *= 1e4
    loss = linear_cross_entropy(x, weight, targets)
    loss.backward()
    torch.testing.assert_close(loss, apart(x, weight, targets))
    assert bool(x.grad.isfinite().all())
    assert bool(weight.grad.isfinite().all())


def test_a_second_derivative_is_refused():
    x, weight, targets = drawn()
    (first,) = torch.autograd.grad(linear_cross_entropy(x, weight, targets), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first.sum(), x)


class Sizes(TorchDispatchMode):
    """Records the largest result of any operation, including those inside the fused one."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.inside = 0, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "clearhead":
            self.inside = True
            with self:
                return cross_entropy._loss_and_gradients._init_fn(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


def test_the_full_logits_of_a_large_vocabulary_are_never_in_memory():
    n, v, d = 512, 50_000, 8
    dice = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(k, d, generator=dice).requires_grad_() for k in (n, v))
    targets = torch.randint(0, v, (n,), generator=dice)
    with Sizes() as sizes:
        loss = linear_cross_entropy(x, weight, targets)
        loss.backward()
    assert sizes.inside
    assert sizes.largest == 64 * v
    with Sizes() as sizes:
        measured(x, weight, targets)
    assert sizes.largest == 64 * v
    with Sizes() as sizes:
        want = apart(x.detach(), weight.detach(), targets)
    assert sizes.largest == n * v  # so the test can detect full logits
    torch.testing.assert_close(loss, want)


def compiled(backend: str) -> dict[str, float]:
    """The differences of a loss compiled to one graph, and its gradients, from the eager ones."""
    x, weight, targets = drawn(counted="some")

    def both(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(torch.tanh(x), weight, targets, smoothing=0.1) * 0.5

    off = {}
    fast = torch.compile(both, fullgraph=True, backend=backend)
    for name, values in (("loss", lambda f: [f(x, weight, targets)]),
                         ("gradient", lambda f: torch.autograd.grad(f(x, weight, targets), (x, weight)))):  # fmt: skip
        off[name] = max(float((a - b).detach().abs().max()) for a, b in zip(values(fast), values(both), strict=True))
    with torch.no_grad():
        off["quiet"] = float((fast(x, weight, targets) - both(x, weight, targets)).abs())
    return off


def script(backend: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, backend], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_compiles_into_one_graph():
    assert max(script("aot_eager").values()) < 1e-10


@pytest.mark.slow
def test_it_compiles_with_inductor():
    assert max(script("inductor").values()) < 1e-10


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("counted", TARGETS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "room"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=["float32", "bfloat16"]
)
def test_the_triton_kernel_agrees_with_torch(dtype, room, counted, smoothing):
    x, weight, targets = drawn(dtype, counted=counted)
    here = [t.detach().cuda().requires_grad_() for t in (x, weight)]
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    mine = linear_cross_entropy(*here, targets.cuda(), smoothing=smoothing)
    want = apart(*wide, targets, smoothing)
    mine.backward()
    want.backward()
    assert abs(float(mine.detach()) - float(want.detach())) <= room * abs(float(want.detach()))
    for got, true in zip(here, wide, strict=True):
        assert float((got.grad.cpu().double() - true.grad).abs().max()) <= room * float(true.grad.abs().max())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("counted", TARGETS)
def test_capped_logits(counted: str, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 2's: cap * tanh(logits / cap), in chunks, with the gradients of torch."""
    monkeypatch.setattr(cross_entropy, "CACHE", CHUNKED)
    cap, results = 1.5, []
    for fused in (True, False):
        x, weight, targets = drawn(counted=counted)
        if fused:
            loss = linear_cross_entropy(x, weight, targets, smoothing=smoothing, cap=cap)
        else:
            logits = cap * torch.tanh((x @ weight.T).flatten(0, -2) / cap)
            loss = F.cross_entropy(
                logits,
                targets.flatten(),
                ignore_index=cross_entropy.IGNORED,
                label_smoothing=smoothing,
                reduction="sum",
            )
        loss.backward()
        results.append((loss.detach(), x.grad, weight.grad))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-10)
    x, weight, targets = drawn(counted=counted)
    torch.testing.assert_close(measured(x, weight, targets, smoothing=smoothing, cap=cap)[0], results[1][0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(compiled(sys.argv[1])))

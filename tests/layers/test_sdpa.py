"""The choice of SDPA's backend: cuDNN is for training and long inputs, not for decoding and short prompts."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import pytest
import torch
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.layers import Mask, Tap, attend
from clearhead.layers import sdpa as sdpa_file

H, E = 3, 8


@pytest.mark.parametrize(
    ("queries", "gradient", "pays"),
    [(1, False, False), (512, False, False), (513, False, True), (1, True, True), (4096, True, True)],
)
def test_cudnn_is_for_training_and_long_inputs(queries, gradient, pays):
    assert sdpa_file.cudnn_pays(queries, gradient) == pays


class OnGpu(torch.Tensor):
    """A CPU tensor that claims to be on a GPU."""

    is_cuda = True


def tensor(requires_grad: bool, queries: int = 5) -> torch.Tensor:
    return torch.zeros(1, H, queries, E).as_subclass(OnGpu).requires_grad_(requires_grad)


@pytest.mark.parametrize("queries", [1, 512, 513])
@pytest.mark.parametrize("enabled", [True, False], ids=["gradients enabled", "no_grad"])
@pytest.mark.parametrize("learns", [None, "q", "k", "v", "mask"])
def test_training_is_recognised_by_any_input_that_needs_a_gradient(learns, enabled, queries):
    inputs = [tensor(learns == name, queries) for name in ("q", "k", "v", "mask")]
    training = enabled and learns is not None
    with torch.set_grad_enabled(enabled):
        assert sdpa_file._avoids_cudnn(*inputs) == (not training and queries <= 512)
        assert sdpa_file._avoids_cudnn(*inputs[:3]) == (not (training and learns != "mask") and queries <= 512)


def test_the_cpu_is_left_alone():
    q = torch.zeros(1, H, 1, E)
    with torch.no_grad():
        assert not sdpa_file._avoids_cudnn(q, q, q)


@contextmanager
def cudnn(enabled: bool):
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(enabled)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(before)


@pytest.fixture
def switched(monkeypatch) -> list[tuple[str, bool]]:
    """The calls of SDPA and of its choice, each with whether cuDNN was enabled; all inputs count as decoding."""
    calls = []
    monkeypatch.setattr(sdpa_file, "_avoids_cudnn", lambda *inputs: True)
    for owner, name in ((torch.nn.functional, "scaled_dot_product_attention"), (torch, "_fused_sdp_choice")):
        original = getattr(owner, name)

        def record(*args, original=original, name=name, **kwargs):
            calls.append((name, cuda.cudnn_sdp_enabled()))
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, record)
    return calls


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(lengths=[3])], ids=["free", "causal", "lengths"])
def test_cudnn_is_off_during_the_call_and_as_before_after_it(switched, mask, enabled):
    x = torch.zeros(1, H, 5, E)
    with cudnn(enabled):
        attend(x, x, x, mask=mask)
        assert cuda.cudnn_sdp_enabled() == enabled
    assert switched == [("scaled_dot_product_attention", False)]


def test_the_call_that_returns_the_log_sum_exp_makes_the_same_choice(switched):
    x = torch.zeros(1, H, 5, E)
    with cudnn(True):
        attend(x, x, x, tap=Tap())
        assert cuda.cudnn_sdp_enabled()
    assert switched[0] == ("_fused_sdp_choice", False)


def test_cudnn_is_as_before_after_an_error():
    with cudnn(True):
        with pytest.raises(ZeroDivisionError):
            sdpa_file._CUDNN.without(lambda: 1 // 0)
        assert cuda.cudnn_sdp_enabled()


def test_a_caller_who_allows_only_cudnn_keeps_it():
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert sdpa_file._CUDNN.without(cuda.cudnn_sdp_enabled)


def test_threads_that_overlap_leave_cudnn_as_it_was():
    """The switch belongs to the process: the first call to end must not turn it on for the second."""
    both_inside, one_left = Barrier(2, timeout=10), Barrier(2, timeout=10)

    def first() -> None:
        both_inside.wait()

    def second() -> bool:
        both_inside.wait()
        one_left.wait()
        return cuda.cudnn_sdp_enabled()

    def run_first() -> None:
        sdpa_file._CUDNN.without(first)
        one_left.wait()

    with cudnn(True), ThreadPoolExecutor(2) as threads:
        other = threads.submit(sdpa_file._CUDNN.without, second)
        threads.submit(run_first).result()
        assert other.result() is False
        assert cuda.cudnn_sdp_enabled()

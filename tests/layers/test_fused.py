"""The fused kernel really answers: asked of torch itself, for the inputs that it was given."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from clearhead.layers import Alibi, Bilinear, Mask, Relative, attend
from clearhead.layers import fused as fused_file

N = 40
AT = torch.arange(N)


def relative() -> Relative:
    made = Relative(4)
    torch.nn.init.normal_(made.table)
    return made


CASES = {
    "nothing": {},
    "causal": {"mask": Mask(causal=True)},
    "lengths": {"mask": Mask(lengths=[N, 7])},
    "causal window": {"mask": Mask(causal=True, window=5)},
    "documents": {"mask": Mask(documents=torch.arange(N)[None] // 9)},
    "alibi": {"mask": Mask(causal=True), "bias": Alibi(4).bias(AT, AT)},
    "bilinear": {"score": Bilinear(8, 4)},
    "cosine": {"score": "cosine"},
}


@pytest.fixture
def chosen(monkeypatch) -> list[int]:
    """The backend that SDPA chose, call by call."""
    backends, sdpa = [], F.scaled_dot_product_attention

    def count(q, k, v, mask=None, *, dropout_p, is_causal, scale, enable_gqa):
        backends.append(
            torch._fused_sdp_choice(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        )
        return sdpa(q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)

    monkeypatch.setattr(fused_file.F, "scaled_dot_product_attention", count)
    return backends


def inputs(groups: int = 4, value: int = 8, learn: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, h, N, e, requires_grad=learn) for h, e in ((4, 8), (groups, 8), (groups, value))]


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("value", [8, 5, 11])
@pytest.mark.parametrize("name", CASES)
def test_training_runs_fused_on_a_cpu(chosen, name, groups, value):
    attend(*inputs(groups, value), **CASES[name]).sum().backward()
    assert set(chosen) == {SDPBackend.FLASH_ATTENTION.value}


def test_a_learned_bias_runs_fused_when_nobody_learns(chosen):
    bias = relative()
    with torch.no_grad():
        attend(*inputs(learn=False), bias=bias.bias(AT, AT))
    assert chosen == [SDPBackend.FLASH_ATTENTION.value]


def test_a_bias_that_learns_and_dropout_do_not(chosen):
    """What the documentation says torch's kernels cannot do on a CPU: if this fails, it has learned to."""
    attend(*inputs(), bias=relative().bias(AT, AT))
    attend(*inputs(), dropout=0.1)
    assert chosen == [SDPBackend.MATH.value] * 2


def test_a_window_looks_only_at_the_keys_it_can_reach(monkeypatch):
    """The work of a window grows with the window, not with the square of the text."""
    keys, sdpa = [], F.scaled_dot_product_attention

    def count(q, k, v, *args, **more):
        keys.append(k.shape[2])
        return sdpa(q, k, v, *args, **more)

    monkeypatch.setattr(fused_file.F, "scaled_dot_product_attention", count)
    q, k, v = torch.randn(3, 1, 1, 4096, 8).unbind(0)
    attend(q, k, v, mask=Mask(causal=True, window=64))
    assert len(keys) == 64
    assert max(keys) <= 127


def test_a_step_of_decoding_needs_no_mask(chosen, monkeypatch):
    monkeypatch.setattr(Mask, "dense", None)  # whoever renders the mask fails
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 4, N, 8), torch.randn(2, 4, N, 8)
    step = attend(q, k, v, mask=Mask(causal=True, window=9, offset=30))
    alone = attend(q, k[:, :, 22:31], v[:, :, 22:31])
    torch.testing.assert_close(step, alone)
    assert set(chosen) == {SDPBackend.FLASH_ATTENTION.value}

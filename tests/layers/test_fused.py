"""The fused kernels really run: torch itself reports the backend for the inputs that SDPA received."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from clearhead.layers import Alibi, Bilinear, Mask, Relative, attend

N = 40
AT = torch.arange(N)


def relative() -> Relative:
    positions = Relative(4)
    torch.nn.init.normal_(positions.table)
    return positions


CASES = {
    "no mask": {},
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
    """The backends that SDPA chose, call by call."""
    backends, sdpa = [], F.scaled_dot_product_attention

    def record(q, k, v, mask=None, *, dropout_p, is_causal, scale, enable_gqa):
        backends.append(
            torch._fused_sdp_choice(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        )
        return sdpa(q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    return backends


def inputs(groups: int = 4, value: int = 8, learn: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, h, N, e, requires_grad=learn) for h, e in ((4, 8), (groups, 8), (groups, value))]


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("value", [8, 5, 11])
@pytest.mark.parametrize("name", CASES)
def test_training_is_fused_on_a_cpu(chosen, name, groups, value):
    attend(*inputs(groups, value), **CASES[name]).sum().backward()
    assert set(chosen) == {SDPBackend.FLASH_ATTENTION.value}


def test_a_learned_bias_is_fused_without_gradients(chosen):
    bias = relative()
    with torch.no_grad():
        attend(*inputs(learn=False), bias=bias.bias(AT, AT))
    assert chosen == [SDPBackend.FLASH_ATTENTION.value]


def test_the_gradient_of_a_bias_and_dropout_are_not_fused_on_a_cpu(chosen):
    """The documentation says that torch's CPU kernels cannot do them: if this fails, they can now."""
    attend(*inputs(), bias=relative().bias(AT, AT))
    attend(*inputs(), dropout=0.1)
    assert chosen == [SDPBackend.MATH.value] * 2


def test_a_window_reads_only_the_keys_in_its_reach(monkeypatch):
    """The work grows with the window, not with the square of the length."""
    keys, sdpa = [], F.scaled_dot_product_attention

    def record(q, k, v, *args, **more):
        keys.append(k.shape[2])
        return sdpa(q, k, v, *args, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    q, k, v = torch.randn(3, 1, 1, 4096, 8).unbind(0)
    attend(q, k, v, mask=Mask(causal=True, window=64))
    assert len(keys) == 64
    assert max(keys) <= 127


def test_a_decoding_step_renders_no_mask(chosen, monkeypatch):
    monkeypatch.setattr(Mask, "dense", None)  # rendering the mask would fail
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 4, N, 8), torch.randn(2, 4, N, 8)
    step = attend(q, k, v, mask=Mask(causal=True, window=9, offset=30))
    alone = attend(q, k[:, :, 22:31], v[:, :, 22:31])
    torch.testing.assert_close(step, alone)
    assert set(chosen) == {SDPBackend.FLASH_ATTENTION.value}

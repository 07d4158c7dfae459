"""Edits and gradients: which take the fused kernel, and what they change."""

from contextlib import ExitStack

import pytest
import torch

import clearhead.layers.attention as attention_file
from clearhead import edit, watch
from clearhead.layers import Attention, Mask
from clearhead.look import Notice
from support.two_blocks import WIDTH, B, E, H, T, hooks_and_taps, inputs

# Gradients


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(lengths=[4, 7])], ids=["free", "causal", "lengths"])
@pytest.mark.parametrize("groups", [H, 1])
def test_gradients_equal_those_of_attention_in_plain_torch(mask, groups):
    torch.manual_seed(0)
    attention, x = Attention(WIDTH, H, kv_heads=groups), inputs()
    names = ["q", "k", "v", "scores", "weights", "heads", "query", "out"]
    with watch(attention, *names, grad=True) as tape:
        attention(x, mask=mask).square().sum().backward()

    query = attention.query(x)
    q, k, v = (y.unflatten(-1, (-1, E)).transpose(1, 2) for y in (query, attention.key(x), attention.value(x)))
    scores = q @ k.repeat_interleave(H // groups, dim=1).mT / E**0.5
    allowed = mask.dense(T, T)
    weights = (scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))).softmax(-1)
    heads = weights @ v.repeat_interleave(H // groups, dim=1)
    out = attention.out(heads.transpose(1, 2).flatten(2))
    parts = dict(zip(names, (q, k, v, scores, weights, heads, query, out), strict=True))
    grads = torch.autograd.grad(out.square().sum(), list(parts.values()))
    for name, grad in zip(names, grads, strict=True):
        record = tape[name].dense() if name == "weights" else tape[name]
        torch.testing.assert_close(record.detach(), parts[name].detach())
        torch.testing.assert_close(tape.gradient(name), grad)


def test_only_gradients_of_scores_and_weights_need_explicit_attention(model, fused):
    for leaf, slow in {"scores": True, "weights": True, "heads": False, "q": False}.items():
        fused.clear()
        with ExitStack() as stack:
            if slow:
                stack.enter_context(pytest.warns(Notice, match="gradients"))
            with watch(model, f"blocks.0.attn.{leaf}", grad=True) as tape:
                out = model(inputs())
        assert len(fused) == (2 if slow else 3)
        with pytest.raises(ValueError, match=r"1 of 1 calls .* have no gradient"):
            tape.gradient(f"blocks.0.attn.{leaf}")
        out.sum().backward()
        assert tape.gradient(f"blocks.0.attn.{leaf}").any()


# Edits


@pytest.fixture
def fused(monkeypatch) -> list[str]:
    """An entry for each call of the fused kernels."""
    calls, kernel = [], attention_file.fused

    def count(*args, **more):
        calls.append("fused")
        return kernel(*args, **more)

    monkeypatch.setattr(attention_file, "fused", count)
    return calls


@pytest.mark.parametrize("leaf", ["q", "k", "v", "heads"])
def test_edits_of_inputs_and_outputs_of_the_kernel_keep_it_fused(model, fused, leaf):
    before = model(inputs())
    fused.clear()
    with edit(model, {f"**.{leaf}": lambda y: y * 2}):
        assert not torch.equal(model(inputs()), before)
    assert len(fused) == 3


@pytest.mark.parametrize("leaf", ["scores", "weights"])
def test_edits_of_scores_and_weights_are_computed_explicitly_with_a_notice(model, fused, leaf):
    before = model(inputs())
    fused.clear()
    with (
        pytest.warns(Notice, match=rf"'blocks\.\*\.attn\.{leaf}' is edited"),
        edit(model, {f"blocks.*.attn.{leaf}": lambda y: y * 2}),
    ):
        assert not torch.equal(model(inputs()), before)
    assert len(fused) == 1  # the cross-attention, which is not edited
    fused.clear()
    assert torch.equal(model(inputs()), before)
    assert fused == ["fused"] * 3


UNMASK = {  # edits that try to make later keys win
    "very large": lambda s: s + torch.ones_like(s).triu(1) * 1e30,
    "infinite": lambda s: s.masked_fill(torch.ones_like(s).triu(1) > 0, float("inf")),
    "not a number": lambda s: s.masked_fill(torch.ones_like(s).triu(1) > 0, float("nan")),
}


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("change", UNMASK)
def test_no_edit_of_scores_gives_weight_to_masked_keys(model, change):
    before = model(inputs())
    with edit(model, {"blocks.*.attn.scores": UNMASK[change]}), watch(model, "blocks.*.attn.weights") as tape:
        torch.testing.assert_close(model(inputs()), before)
    for map in tape.match("**").values():
        assert not map.dense().triu(1).any()


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
def test_equal_scores_give_equal_weights_to_all_allowed_keys(model):
    with edit(model, {"blocks.0.attn.scores": torch.zeros_like}), watch(model, "blocks.0.attn.weights") as tape:
        model(inputs())
    even = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(tape["blocks.0.attn.weights"].dense(), even.expand(B, H, T, T))


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("leaf", ["q", "k", "v", "scores", "weights", "heads"])
def test_a_watch_records_edited_values_whether_it_began_before_or_after(model, leaf):
    name, change = f"blocks.0.attn.{leaf}", {f"blocks.0.attn.{leaf}": torch.ones_like}
    with watch(model, name) as outer, edit(model, change), watch(model, name) as inner:
        model(inputs())
    for tape in (outer, inner):
        record = tape[name].dense() if leaf == "weights" else tape[name]
        assert torch.equal(record, torch.ones_like(record))


def test_nested_edits_apply_in_the_order_they_began(model):
    with edit(model, {"norm": lambda y: y + 1}), edit(model, {"norm": lambda y: y * 2}):
        out = model(inputs())
    torch.testing.assert_close(out, (model(inputs()) + 1) * 2)


def test_nested_watches_record_their_own_names_and_calls(model):
    with watch(model, "**.entropy", "norm") as outer:
        model(inputs(3))
        with watch(model, "blocks.0.attn.entropy", "blocks.0.attn.q", keep="last") as inner:
            model(inputs(4)), model(inputs(5))
        model(inputs(6))
    assert [call.shape[1] for call in outer.calls("norm")] == [3, 4, 5, 6]
    assert [call.shape[2] for call in outer.calls("blocks.0.attn.entropy")] == [3, 4, 5, 6]
    assert [call.shape[2] for call in inner.calls("blocks.0.attn.entropy")] == [5]
    assert not hooks_and_taps(model)

"""watch and edit on torch.nn's attention and on models written by hand, and the traces that they must not leave."""

import gc
import threading
import weakref
from contextlib import ExitStack, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clearhead as ch
from clearhead.layers import Attention
from clearhead.look import Notice
from clearhead.look.foreign import torch_attention
from support.foreign_models import build, inputs, outputs
from support.two_blocks import hooks_and_taps

B, T, S, H, E = 2, 7, 5, 3, 4
WIDTH = H * E


def tokens(n: int = T, seed: int = 1) -> Tensor:
    return torch.randn(B, n, WIDTH, generator=torch.Generator().manual_seed(seed))


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


# nn.MultiheadAttention

KINDS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "bias of keys": {"add_bias_kv": True, "batch_first": True},
    "zero key": {"add_zero_attn": True, "batch_first": True},
    "own widths": {"kdim": WIDTH, "vdim": WIDTH, "batch_first": True},
    "dropout": {"dropout": 0.5, "batch_first": True},
}
MASKS = {
    "none": {},
    "boolean": {"attn_mask": torch.ones(T, S, dtype=torch.bool).triu(1)},
    "additive": {"attn_mask": torch.linspace(-1, 1, T * S).reshape(T, S)},
    "padding": {"key_padding_mask": torch.tensor([[False] * S, [False] * 3 + [True] * 2])},
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_multihead_attention_gives_the_same_bits_and_weights_per_head(kind, mask, need_weights):
    module = seeded(lambda: nn.MultiheadAttention(WIDTH, H, **KINDS[kind]))
    q, k = tokens(), tokens(S, seed=2)
    if not module.batch_first:
        q, k = q.transpose(0, 1), k.transpose(0, 1)
    how = {**MASKS[mask], "need_weights": need_weights}
    before = module(q, k, k, **how)
    with ch.watch(module, "*") as tape:
        after = module(q, k, k, **how)
    assert torch.equal(before[0], after[0])
    reference = module.double()(q.double(), k.double(), k.double(), **{
        key: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for key, x in how.items()
    } | {"need_weights": True, "average_attn_weights": False})[1]  # fmt: skip
    torch.testing.assert_close(tape["weights"].dense().double(), reference, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tape["entropy"].double(), torch.special.entr(reference).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tape["received"].double(), reference.sum(-2), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tape["weights"].dense() @ tape["v"], tape["heads"])
    scores = tape["scores"].masked_fill(tape["weights"].dense() == 0, float("-inf"))
    torch.testing.assert_close(scores.softmax(-1), tape["weights"].dense())
    if need_weights:
        assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("need_weights", [True, False])
def test_edits_of_multihead_attention(need_weights):
    module, x = seeded(lambda: nn.MultiheadAttention(WIDTH, H, batch_first=True)), tokens()
    with ch.watch(module, "heads") as tape:
        before = module(x, x, x, need_weights=need_weights)[0]
    kept = tape["heads"].clone()
    kept[:, 1] = 0.0
    expected = module.out_proj(kept.transpose(1, 2).flatten(2))
    with ch.edit(module, {"heads": ch.look.silence([1])}):
        edited = module(x, x, x, need_weights=need_weights)[0]
    torch.testing.assert_close(edited, expected)
    assert not torch.equal(edited, before)
    for leaf in ("q", "k", "v"):
        with ch.edit(module, {leaf: torch.clone}):
            torch.testing.assert_close(module(x, x, x, need_weights=need_weights)[0], before)
        with ch.edit(module, {leaf: torch.zeros_like}):
            assert not torch.equal(module(x, x, x, need_weights=need_weights)[0], before)
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    with (
        pytest.warns(Notice, match="explicitly"),
        ch.edit(module, {"scores": torch.zeros_like}),
        ch.watch(module, "weights") as tape,
    ):
        module(x, x, x, attn_mask=mask, need_weights=need_weights)
    even = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(tape["weights"].dense(), even.expand(B, H, T, T))  # no edit allows a masked key


def test_gradients_of_multihead_attention():
    module, x = seeded(lambda: nn.MultiheadAttention(WIDTH, H, batch_first=True)), tokens()
    with pytest.warns(Notice), ch.watch(module, "weights", "heads", grad=True) as tape:
        out, _ = module(x, x, x, average_attn_weights=False)
    out.square().sum().backward()
    again, weights = module(x, x, x, average_attn_weights=False)
    assert torch.equal(out, again)
    assert tape.gradient("weights").shape == weights.shape
    assert tape.gradient("weights").any()
    assert tape.gradient("heads").any()


# nn.Transformer

STACKS = {
    "encoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 20, batch_first=True), 2), 2),
    "decoder": (lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 20, batch_first=True), 2), 4),
    "both": (lambda: nn.Transformer(WIDTH, 2, 2, 2, 20, batch_first=True), 6),
}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # which the fast path uses
@pytest.mark.parametrize("stack", STACKS)
def test_transformers_of_torch_equal_themselves_without_the_fast_path(stack):
    make, attentions = STACKS[stack]
    model, x = seeded(make), tokens()
    args = (x,) if stack == "encoder" else (x, tokens(S, seed=2))
    padding = torch.tensor([[False] * T, [False] * 4 + [True] * 3])
    how = {} if stack == "decoder" else {"src_key_padding_mask": padding}
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        expected = model(*args, **how)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    with pytest.warns(Notice, match="fast path") as said, ch.watch(model, "**.weights") as tape:
        out = model(*args, **how)
    assert len([w for w in said if issubclass(w.category, Notice)]) == 1
    assert torch.equal(out, expected)
    assert len(tape.names) == attentions
    if stack == "encoder":
        assert not tape["layers.0.self_attn.weights"].dense()[1, ..., 4:].any()
        torch.testing.assert_close(model(*args, **how)[~padding], out[~padding])  # the fast path, up to rounding


# Models written by hand


class Hand(nn.Module):
    """Calls SDPA with inputs of any number of axes."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.qkv, self.axes = nn.Linear(WIDTH, 3 * WIDTH), axes

    def forward(self, x: Tensor, **how) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, WIDTH)).unbind(2)
        shape = {3: (), 4: (H, E), 5: (H, E)}[self.axes]
        if shape:
            q, k, v = (y.unflatten(-1, shape).transpose(1, 2) for y in (q, k, v))
        if self.axes == 5:
            q, k, v = (torch.stack([y, 2 * y, -y]) for y in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, **how)


ARGUMENTS = {
    "free": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": torch.ones(T, T, dtype=torch.bool).tril()},
    "additive": {"attn_mask": torch.linspace(-2, 2, T * T).reshape(T, T)},
    "scale": {"scale": 0.9},
}


@pytest.mark.parametrize("axes", [3, 4, 5])
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_any_number_of_axes_and_any_arguments(axes, kind):
    model, how = seeded(lambda: Hand(axes)), ARGUMENTS[kind]
    before = model(tokens(), **how)
    with ch.watch(model, "*") as tape:
        after = model(tokens(), **how)
    assert torch.equal(before, after)
    q, k, v = (tape[leaf].double() for leaf in "qkv")
    assert q.shape == {3: (B, 1, T, WIDTH), 4: (B, H, T, E), 5: (3 * B, H, T, E)}[axes]
    mask = (
        torch.ones(T, T, dtype=torch.bool).tril() if how.get("is_causal") else how.get("attn_mask", torch.zeros(T, T))
    )
    scores = q @ k.mT * how.get("scale", q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    torch.testing.assert_close(tape["weights"].dense().double(), weights, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(tape["entropy"].double(), torch.special.entr(weights).sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tape["heads"].flatten().double(), (weights @ v).flatten(), rtol=1e-4, atol=1e-5)
    with ch.edit(model, {"heads": torch.clone, "q": torch.clone}):
        torch.testing.assert_close(model(tokens(), **how), before)
    with pytest.warns(Notice), ch.edit(model, {"weights": torch.clone}):
        torch.testing.assert_close(model(tokens(), **how), before)


class Twice(nn.Module):
    """Calls attention twice, the second time over half as many keys, and holds one of our own attentions beside it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (H, E)).transpose(1, 2)
        y = F.scaled_dot_product_attention(query=x, key=x, value=x, is_causal=True)
        return F.scaled_dot_product_attention(y, x[:, :, :S], x[:, :, :S])


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theirs, self.ours = Twice(), Attention(WIDTH, H)

    def forward(self, x: Tensor) -> Tensor:
        return self.ours(self.theirs(x).transpose(1, 2).flatten(2))


def test_two_calls_of_one_module_and_our_own_attention_beside_it():
    model = seeded(Mixed)
    before = model(tokens())
    with ch.watch(model, "**.weights", "theirs") as tape:
        assert torch.equal(model(tokens()), before)
    assert tape.names == ["theirs", "theirs.weights", "theirs@1.weights", "ours.weights"]
    assert [tape[name].shape[2:] for name in tape.names[1:]] == [(T, T), (T, S), (T, T)]
    with ch.edit(model, {"**.heads": torch.zeros_like}):
        assert torch.equal(model(tokens()), model.ours.out.bias.expand(B, T, WIDTH))


def test_calls_outside_of_the_model_are_not_its_own():
    model = seeded(lambda: Hand(4))
    x = torch.randn(1, 2, 3, 4)
    with ch.watch(model, "weights") as tape:
        F.scaled_dot_product_attention(x, x, x)
        model(tokens())
    assert len(tape.calls("weights")) == 1


class Silent(nn.Module):
    """Attention in its own way, which nothing can see."""

    def forward(self, x: Tensor) -> Tensor:
        weights = (x @ x.mT).exp()
        return weights / weights.sum(-1, keepdim=True) @ x


def test_attention_that_nothing_can_see_is_said():
    model = Silent()
    with (
        pytest.warns(Notice, match=r"no attention call at 'weights': this Silent called neither"),
        ch.watch(model, "weights") as tape,
    ):
        model(tokens())
    with pytest.raises(KeyError, match="nothing was recorded at 'weights': this Silent called neither"):
        tape["weights"]
    with pytest.raises(ValueError, match="the edit of 'heads' changed nothing"), ch.edit(model, {"heads": torch.neg}):
        model(tokens())


def test_a_model_that_did_not_run_is_not_said_to_have_no_attention():
    with pytest.warns(Notice, match="this Silent was not called inside the `with`"), ch.watch(Silent(), "weights"):
        pass


# Checkpointing


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = Hand(4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_not_recorded_and_edits_under_checkpointing_are_refused(reentrant):
    model, x = seeded(lambda: Checkpointed(reentrant)), tokens().requires_grad_()
    with ch.watch(model, "**.weights", "inner", "inner.qkv") as tape:
        model(x).sum().backward()
    assert [len(tape.calls(name)) for name in tape.names] == [1, 1, 1]
    grad = x.grad.clone()
    x.grad = None
    model(x).sum().backward()
    assert torch.equal(x.grad, grad)
    for name in ("inner.heads", "inner.qkv"):
        with pytest.raises(ValueError, match="gradient checkpointing"), ch.edit(model, {name: lambda y: 2 * y}):
            model(x)
    refused = pytest.raises(ValueError, match="gradient checkpointing") if reentrant else nullcontext()
    with torch.no_grad(), refused, ch.edit(model, {"inner.heads": lambda y: 2 * y}):
        if reentrant:
            model(x)
        else:
            torch.testing.assert_close(model(x), 2 * model.inner(x) / 2)


# Compiled models and FlexAttention


def test_a_compiled_model_runs_eagerly():
    model = seeded(lambda: Hand(4))
    compiled = torch.compile(model, backend="eager")
    with pytest.warns(Notice, match="compiled"), ch.watch(compiled, "weights") as tape:
        out = compiled(tokens())
    assert torch.equal(out, model(tokens()))
    assert tape["weights"].shape == (B, H, T, T)


@torch.no_grad()
@pytest.mark.filterwarnings(
    "ignore:flex_attention called without:UserWarning", "ignore:_compile flag:DeprecationWarning"
)
@pytest.mark.parametrize("name", ["llama", "gemma3", "bert"])
def test_flex_attention_runs_uncompiled_and_shows_the_weights_of_sdpa(name, monkeypatch):
    flex, sdpa, given = build(name, "flex_attention"), build(name), inputs(name, padded=True)
    with torch.compiler.set_stance("force_eager"):
        before = outputs(flex, given)
    tapes = []
    for model in (flex, sdpa):
        with ch.watch(model, "**.weights", "**.entropy") as tape:
            out = outputs(model, given)
        tapes.append(tape)
        assert model is sdpa or torch.equal(out, before)
    for address, map in tapes[0].match("**.weights").items():
        torch.testing.assert_close(map.dense(), tapes[1][address].dense(), rtol=1e-4, atol=1e-5)
    edited = []
    for model in (flex, sdpa):
        with ch.edit(model, {"**.heads": ch.look.silence([1])}):
            edited.append(outputs(model, given))
    torch.testing.assert_close(*edited, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(torch_attention, "DENSE_LIMIT", 100)
    with pytest.raises(ValueError, match=r"over the limit of 100: .*'sdpa'"), ch.watch(flex, "**.weights"):
        outputs(flex, given)


# The log-sum-exp


@torch.no_grad()
def test_the_operator_stands_in_for_sdpa_only_after_it_gave_the_same_bits(monkeypatch):
    monkeypatch.setattr(torch_attention, "DEVICES", {"cpu"})
    monkeypatch.setattr(torch_attention, "FROM", 2)
    monkeypatch.setattr(torch_attention, "_SAME", {})
    model, x = seeded(lambda: Hand(4)), torch.cat([tokens()] * 10, dim=1)
    expected = model(x, is_causal=True)
    for _ in range(2):
        with ch.watch(model, "weights", "entropy") as tape:
            assert torch.equal(model(x, is_causal=True), expected)
        call = tape._calls["weights"][0]
        q, k = call.q.double(), call.k.double()
        scores = (q @ k.mT * call.scale).masked_fill(torch.ones(70, 70).triu(1) > 0, float("-inf"))
        torch.testing.assert_close(call.given.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert list(torch_attention._SAME.values()) == [True]
    wrong = dict.fromkeys(torch_attention._SAME, False)
    monkeypatch.setattr(torch_attention, "_SAME", wrong)
    with ch.watch(model, "weights", "entropy") as tape:
        model(x, is_causal=True)
    assert tape._calls["weights"][0].given is None


# Leaving no trace


class StopError(Exception):
    """Raised on purpose."""


def stop(x: Tensor) -> Tensor:
    raise StopError


def all_hooks(model: nn.Module) -> list[object]:
    found = hooks_and_taps(model)
    return found + [
        h for m in model.modules() for h in (*m._forward_hooks_with_kwargs, *m._forward_pre_hooks_with_kwargs)
    ]


@pytest.mark.parametrize(
    "way", ["the end", "an exception inside", "an exception of the model", "an exception of an edit"]
)
def test_no_hook_mode_or_activation_is_left_behind(way):
    model = seeded(Mixed)
    x = tokens()
    depth = torch._C._len_torch_function_stack()
    kept: list[weakref.ref] = []

    def note(y: Tensor) -> Tensor:
        kept.append(weakref.ref(y))
        return y

    with ExitStack() as stack:
        if way != "the end":
            stack.enter_context(pytest.raises((StopError, RuntimeError)))
        with ch.watch(model, "**.entropy", "theirs"), ch.edit(model, {"**.q": note}):
            assert torch._C._len_torch_function_stack() == depth + 1
            if way == "an exception of the model":
                model(x[..., :5])
            if way == "an exception of an edit":
                with ch.edit(model, {"theirs.heads": stop}):
                    model(x)
            model(x)
            if way == "an exception inside":
                raise StopError
    assert torch._C._len_torch_function_stack() == depth
    assert not all_hooks(model)
    gc.collect()
    assert not [ref for ref in kept if ref() is not None]
    with ch.watch(model, "theirs.weights") as tape:  # and it can be watched again
        model(x)
    assert tape["theirs.weights"].shape == (B, H, T, T)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None  # the tape does not hold the model
    assert tape["theirs.weights"].row(3).shape == (B, H, T)


def test_watches_nest_and_need_not_end_in_order():
    model = seeded(Mixed)
    first, second = ExitStack(), ExitStack()
    one = first.enter_context(ch.watch(model, "theirs.weights"))
    two = second.enter_context(ch.watch(model.theirs, "weights"))  # a part of the same model
    model(tokens())
    first.close()
    model(tokens())
    with torch.overrides.BaseTorchFunctionMode():
        model(tokens())
    second.close()
    assert len(one.calls("theirs.weights")) == 1
    assert len(two.calls("weights")) == 3
    assert torch._C._len_torch_function_stack() == 0
    assert not all_hooks(model)


def test_other_threads_are_neither_recorded_nor_edited():
    model = seeded(Mixed)
    before, results = model(tokens()), []
    with ch.watch(model, "**.weights") as tape, ch.edit(model, {"theirs.heads": torch.zeros_like}):
        thread = threading.Thread(target=lambda: results.append(model(tokens())))
        thread.start()
        thread.join()
        assert "theirs.weights" not in tape
        assert not torch.equal(model(tokens()), before)
    assert torch.equal(results[0], before)
    assert len(tape.calls("theirs.weights")) == 1


def test_records_are_not_changed_by_later_writes():
    model, mask = seeded(lambda: Hand(4)), torch.ones(40, 40, dtype=torch.bool).tril()
    with torch.no_grad(), ch.watch(model, "weights") as tape:
        model(tokens(40), attn_mask=mask)
        before = tape["weights"].dense()
        mask.fill_(True)
        assert torch.equal(tape["weights"].dense(), before)
        model(tokens(40), attn_mask=mask)  # the same memory, another mask
    assert tape.calls("weights")[1].dense().triu(1).any()


class Rewriting(nn.Module):
    """Attends twice, with one mask that it changes in between."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x.unflatten(-1, (H, E)).transpose(1, 2)
        y = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        mask.fill_(True)
        return F.scaled_dot_product_attention(y, x, x, attn_mask=mask)


def test_a_mask_that_is_rewritten_within_a_pass_is_copied_again():
    model = Rewriting()
    with torch.no_grad(), ch.watch(model, "weights") as tape:
        model(tokens(40), torch.ones(40, 40, dtype=torch.bool).tril())
    assert not tape["weights"].dense().triu(1).any()
    assert tape["@1.weights"].dense().triu(1).any()


@torch.no_grad()
@pytest.mark.parametrize("length", [T, 40])  # of few tokens the weights are stored, of many the queries and keys
def test_under_autocast_statistics_use_the_dtype_of_the_kernel_and_are_not_rounded(length):
    model, x = Rewriting(), tokens(length)
    with torch.autocast("cpu", torch.bfloat16), ch.watch(model, "weights", "entropy", "position", "q", "k") as tape:
        model(x, torch.ones(length, length, dtype=torch.bool))
        dense, mass = tape["weights"].dense(), tape["weights"].mass([0, 3])  # read under autocast too
    assert tape["q"].dtype == torch.float32
    q, k = (tape[leaf].to(torch.bfloat16).double() for leaf in "qk")
    weights = (q @ k.mT * E**-0.5).softmax(-1)
    at = torch.arange(length).double()
    torch.testing.assert_close(dense.double(), weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mass.double(), weights[..., [0, 3]].sum(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(tape["entropy"].double(), torch.special.entr(weights).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tape["position"][..., 0].double(), weights @ at, rtol=1e-5, atol=1e-5)

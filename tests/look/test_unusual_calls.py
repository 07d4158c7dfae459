"""What torch's attention takes in unusual forms: recorded as the kernel computes it, or a Notice says why not."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import clearhead as ch
from clearhead.look import Notice

r = torch.randn


class Plain(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **how)


def quiet():
    return warnings.catch_warnings(action="ignore", category=Notice)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_mask_of_half_precision_attention_is_not_rounded(dtype):
    torch.manual_seed(0)
    model, n = Plain(), 6
    q, k, v = (r(1, 2, n, 8).to(dtype) for _ in range(3))
    mask = 1000 + 3 * torch.rand(n, n)
    expected = (q.double() @ k.double().mT * 8**-0.5 + mask).softmax(-1)
    with ch.watch(model, "weights", "entropy") as tape:
        before = model(q, k, v, attn_mask=mask)
    assert torch.equal(before, model(q, k, v, attn_mask=mask))
    torch.testing.assert_close(tape["weights"].dense().double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(tape["entropy"].double(), torch.special.entr(expected).sum(-1), rtol=0, atol=1e-3)
    with quiet(), ch.edit(model, {"weights": torch.clone}):
        torch.testing.assert_close(model(q, k, v, attn_mask=mask), before, rtol=0, atol=0.02)
    with quiet(), ch.watch(model, "weights", grad=True) as tape:
        model(q.requires_grad_(), k, v, attn_mask=mask)
    torch.testing.assert_close(tape["weights"].dense().double(), expected, rtol=0, atol=1e-4)


def test_autocast_rounds_a_mask_and_so_does_the_record():
    torch.manual_seed(0)
    model, n, (q, k) = Plain(), 6, (r(1, 2, 6, 8) for _ in range(2))
    mask, units = 1000 + 3 * torch.rand(n, n), torch.eye(n).expand(1, 2, n, n)
    with torch.autocast("cpu", torch.bfloat16), ch.watch(model, "weights") as tape:
        out = model(q, k, units, attn_mask=mask)
    torch.testing.assert_close(tape["weights"].dense(), out.float(), rtol=0, atol=5e-3)


GROUPED = {
    "three axes": (r(4, 5, 8), r(2, 5, 8), r(2, 5, 8)),
    "five axes": (r(2, 3, 4, 5, 8), r(2, 3, 2, 5, 8), r(2, 3, 2, 5, 8)),
    "other heads of values": (r(1, 4, 5, 8), r(1, 4, 5, 8), r(1, 2, 5, 8)),
    "fewer heads of values": (r(1, 4, 5, 8), r(1, 2, 5, 8), r(1, 1, 5, 8)),
}


@pytest.mark.parametrize("kind", GROUPED)
def test_grouped_heads(kind):
    model, given = Plain(), GROUPED[kind]
    before = model(*given, enable_gqa=True)
    with ch.watch(model, "*") as tape:
        assert torch.equal(model(*given, enable_gqa=True), before)
    q, k, v = (tape[leaf] for leaf in "qkv")
    assert q.shape == (6 if kind == "five axes" else 1, 4, 5, 8)
    k, v = (x.repeat_interleave(4 // x.shape[1], 1) for x in (k, v))
    weights = (q @ k.mT * 8**-0.5).softmax(-1)
    torch.testing.assert_close(tape["weights"].dense(), weights)
    torch.testing.assert_close(tape["heads"], weights @ v)
    torch.testing.assert_close(tape["entropy"], torch.special.entr(weights).sum(-1))
    for leaf in ("q", "k", "v", "heads", "scores", "weights"):
        with quiet(), ch.edit(model, {leaf: torch.clone}):
            torch.testing.assert_close(model(*given, enable_gqa=True), before)
        with quiet(), ch.edit(model, {leaf: torch.zeros_like}):
            assert not torch.equal(model(*given, enable_gqa=True), before)


BROADCAST = {
    "grouped, four axes": (r(2, 4, 5, 8), r(2, 2, 5, 8), r(2, 2, 5, 8)),
    "three axes": (r(4, 5, 8), r(4, 5, 8), r(4, 5, 8)),
    "two axes": (r(5, 8), r(5, 8), r(5, 8)),
    "one head of queries": (r(2, 1, 5, 8), r(2, 4, 5, 8), r(2, 4, 5, 8)),
    "one head of keys": (r(2, 4, 5, 8), r(2, 1, 5, 8), r(2, 1, 5, 8)),
}


@pytest.mark.parametrize("kind", [*GROUPED, *BROADCAST])
def test_gradients_of_queries_keys_and_values(kind):
    given = [x.clone().requires_grad_() for x in {**GROUPED, **BROADCAST}[kind]]
    model, how = Plain(), {"enable_gqa": kind in GROUPED or "grouped" in kind}
    before = model(*given, **how)
    expected = torch.autograd.grad(before.square().sum(), given)
    with ch.watch(model, "q", "k", "v", "entropy", grad=True) as tape:
        out = model(*(x * 1.0 for x in given), **how)
        out.square().sum().backward()
    assert torch.equal(out, before) or kind == "one head of queries"  # another kernel takes them broadcast
    for leaf, x in zip("qkv", expected, strict=True):
        found = tape.gradient(leaf)
        if found.numel() != x.numel():  # queries that are broadcast: the gradient of each copy
            found = found.sum(1)
        torch.testing.assert_close(found.reshape(x.shape), x)


SHARED = {  # keys and values of one row or head for several of the queries
    "three axes": (r(3, 9, 8), r(1, 5, 8), r(1, 5, 8)),
    "four axes": (r(3, 2, 9, 8), r(1, 2, 5, 8), r(1, 1, 5, 8)),
    "five axes": (r(2, 3, 4, 9, 8), r(2, 1, 4, 5, 8), r(1, 1, 4, 5, 8)),
    "float64, with a float32 mask": (r(3, 2, 9, 8).double(), r(1, 2, 5, 8).double(), r(1, 2, 5, 8).double()),
}


@pytest.mark.parametrize("leaf", ["q", "k", "v"])
@pytest.mark.parametrize("kind", SHARED)
def test_edits_where_rows_broadcast(kind, leaf):
    given, how = SHARED[kind], {"attn_mask": torch.linspace(-1, 1, 45).view(9, 5)} if "mask" in kind else {}
    model = Plain()
    with ch.edit(model, {leaf: lambda x: 2 * x}):
        edited = model(*given, **how)
    doubled = [2 * x if name == leaf else x for name, x in zip("qkv", given, strict=True)]
    torch.testing.assert_close(edited, model(*doubled, **how))


NONE = torch.ones(0, 5, dtype=torch.bool)
UNRECORDED = {
    "no keys": (lambda model: model(r(1, 4, 5, 8), r(1, 4, 0, 8), r(1, 4, 0, 8)), "no queries or no keys"),
    "no queries": (lambda model: model(r(1, 4, 0, 8), *[r(1, 4, 5, 8)] * 2, attn_mask=NONE), "no queries or no keys"),
    "no features": (lambda model: model(r(1, 4, 5, 0), r(1, 4, 5, 0), r(1, 4, 5, 8)), "no heads or no features"),
    "no heads": (lambda model: model(*[r(1, 0, 5, 8)] * 3), "no heads or no features"),
    "meta": (lambda model: model(*[r(1, 2, 3, 4, device="meta")] * 3), "hold no numbers"),
    "vmap": (lambda model: torch.func.vmap(model)(*[r(2, 1, 2, 3, 4)] * 3), r"torch\.func"),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of torch.func.vmap
@pytest.mark.parametrize("leaf", ["weights", "entropy", "scores", "heads"])
@pytest.mark.parametrize("kind", UNRECORDED)
def test_calls_that_cannot_be_recorded_run_and_a_notice_says_why(kind, leaf):
    run, reason = UNRECORDED[kind]
    model = Plain()
    with pytest.warns(Notice, match=f"this Plain is not recorded: .*{reason}"), ch.watch(model, leaf) as tape:
        out = run(model)
    assert out.shape == run(model).shape
    assert leaf not in tape
    assert tape.names == []
    with quiet(), ch.edit(model, {"heads": torch.zeros_like}):
        run(model)


class Explicit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None] @ x[:, None].mT).softmax(-1) @ x[:, None]


@pytest.mark.parametrize("kind", ["meta", "vmap"])
def test_explicit_attention_that_cannot_be_recorded(kind):
    model = Explicit()
    run = model if kind == "meta" else torch.func.vmap(model)
    x = r(2, 3, 4, device="meta") if kind == "meta" else r(5, 2, 3, 4)
    with pytest.warns(Notice, match="is not recorded"), ch.watch(model, "weights"):
        run(x)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Plain(), Plain()])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x, x, x)
        return x


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_pass_that_was_interrupted_inside_the_with_is_forgotten(kind):
    def stop(*_) -> None:
        raise kind

    model, x = Two(), r(1, 2, 5, 4)
    with ch.watch(model, "**.weights") as tape:
        hook = model.parts[0].register_forward_hook(stop)
        with pytest.raises(kind):
            model(x)
        hook.remove()
        F.scaled_dot_product_attention(x, x, x)  # outside of the model
        model(x)
        model(x)
    assert tape.names == ["parts.0.weights", "parts.1.weights"]
    assert [len(tape.texts(name)) for name in tape.names] == [3, 2]


def test_a_copy_made_inside_the_with_is_neither_recorded_nor_edited():
    model, x = Two(), r(1, 2, 5, 4)
    with ch.watch(model, "**.weights", "parts.0") as tape:
        twin = copy.deepcopy(model)
        twin(x)
        model(x)
    assert [len(tape.calls(name)) for name in tape.names] == [1] * 3
    with ch.edit(model, {"parts.1.heads": torch.zeros_like, "parts.1": torch.zeros_like}):
        twin = copy.deepcopy(model)
        assert not model(x).any()
        assert twin(x).any()
    assert torch.equal(twin(x), model(x))


class HeatMap(nn.Module):
    """A convolution that returns a map which sums to 1 over the image, not over its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.conv(x)
        return z, z.flatten(2).softmax(-1).view_as(z)


def test_returned_maps_whose_rows_do_not_sum_to_1_are_no_attention():
    model = HeatMap()
    with pytest.warns(Notice, match="no attention call at 'weights'"), ch.watch(model, "weights") as tape:
        model(r(1, 3, 6, 6))
    assert tape.names == []


class Reduced(nn.Module):
    """Attention in a form of its own to every second token, whose weights are returned."""

    def __init__(self, tokens_second: bool) -> None:
        super().__init__()
        self.tokens_second = tokens_second

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q = x.unflatten(-1, (3, -1)).transpose(1, 2)
        weights = (q @ q[:, :, ::2].mT).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return x, weights.transpose(1, 2) if self.tokens_second else weights


def test_returned_weights_need_the_tokens_as_queries():
    x = r(2, 7, 12)
    with ch.watch(model := Reduced(False), "weights") as tape:
        model(x)
    assert tape["weights"].shape == (2, 3, 7, 4)
    wrong = pytest.warns(Notice, match=r"weights of shape \(2, 7, 3, 4\) were returned and not taken as attention")
    with wrong, ch.watch(model := Reduced(True), "weights"):
        model(x)
    with pytest.raises(ValueError, match="changed nothing: weights of shape"), ch.edit(model, {"heads": torch.neg}):
        model(x)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.script, self.attends = torch.jit.script(nn.Sequential(nn.Linear(4, 4))), Plain()

    def forward(self, x: Tensor) -> Tensor:
        x = self.script(x)
        return self.attends(x, x, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_module_of_torchscript_is_refused_and_others_are_watched():
    model, x = Scripted(), r(1, 2, 3, 4)
    with ch.watch(model, "**.weights", "attends") as tape:
        model(x)
    assert tape.names == ["attends", "attends.weights"]
    for enter in (ch.watch(model, "script"), ch.edit(model, {"script": torch.neg})):
        with pytest.raises(ValueError, match="'script' is compiled by TorchScript"), enter:
            model(x)


class OneInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("kind", ["fx", "export"])
def test_a_traced_model_is_watched(kind):
    x = r(1, 2, 3, 4)
    model = torch.fx.symbolic_trace(OneInput()) if kind == "fx" else torch.export.export(OneInput(), (x,)).module()
    with ch.watch(model, "weights") as tape:
        model(x)
    assert tape["weights"].shape == (1, 2, 3, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tile_of_a_query_whose_scores_are_all_very_low(dtype):
    model, n = Plain(), 40
    q, mask = torch.randn(1, 1, n, 4, dtype=dtype), torch.zeros(n, n, dtype=dtype)
    mask[0], mask[1] = torch.finfo(dtype).min, -1e4
    with ch.watch(model, "weights", "entropy") as tape:
        model(q, q, q, attn_mask=mask)
    map = tape["weights"]
    torch.testing.assert_close(map.tile((0, 2), (1, 3)), map.dense()[:, :, :2, 1:3])


def test_entropy_has_no_negative_zero():
    x = r(1, 2, 3, 4)
    with ch.watch(model := Plain(), "entropy") as tape:
        model(x, x, x, is_causal=True)
    assert not torch.signbit(tape["entropy"]).any()


# Heads that are not those of the module

N = 5


class Fewer(nn.Module):
    """A module that says it has four heads, and attends with two, in one of the ways in which attention is seen."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.num_heads = way, 4

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        if self.way == "sdpa":
            return F.scaled_dot_product_attention(q, q, q)
        if self.way == "flex":
            return flex_attention(q, q, q)
        weights = (q @ q.mT).softmax(-1)
        return weights @ q if self.way == "by hand" else (x, weights)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # of flex_attention, which is not compiled
@pytest.mark.parametrize("way", ["sdpa", "flex", "by hand", "returned weights"])
def test_another_number_of_heads_than_the_module_has_is_refused(way):
    model, x = Fewer(way), r(1, N, 8)
    refused = pytest.raises(ValueError, match=r"this Fewer has 4 heads and calls attention with 2")
    with refused, ch.watch(model, "weights"):
        model(x)
    with refused, ch.edit(model, {"heads": ch.look.silence([0])}):
        model(x)
    model.num_heads = 2
    with ch.watch(model, "weights") as tape:
        model(x)
    assert tape["weights"].shape == (1, 2, N, N)


class Windows(nn.Module):
    """Attention within windows, with the heads before or after them."""

    num_heads = 3

    def forward(self, x: Tensor, windows: int, heads: int, mask: Tensor | None = None) -> Tensor:
        x = x.unflatten(1, (windows, -1)).unflatten(-1, (self.num_heads, -1))
        q = x.movedim(-2, heads)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask).movedim(heads, -2).flatten(1, 2).flatten(-2)


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_heads_before_the_windows_are_the_heads(masked):
    model, x, mask = Windows(), r(2, 10, 12), torch.rand(5, 5) > 0.3 if masked else None
    before = model(x, 2, 1, mask)
    records = []
    for heads in (1, 2):
        with ch.watch(model, "weights", "entropy", "heads") as tape:
            assert torch.equal(model(x, 2, heads, mask), model(x, 2, 1, mask))
        records.append([tape.calls(name)[0] for name in ("entropy", "heads")])
        with ch.edit(model, {"heads": ch.look.silence([1])}):
            edited = model(x, 2, heads, mask)
        assert not edited[..., 4:8].any()
        assert torch.equal(edited[..., 8:], before[..., 8:])
        for leaf in ("q", "v", "scores"):
            with quiet(), ch.edit(model, {leaf: torch.clone}):
                torch.testing.assert_close(model(x, 2, heads, mask), before)
    for one, other in zip(*records, strict=True):
        assert one.shape[:2] == (4, 3)  # the windows are rows
        torch.testing.assert_close(one, other)
    with pytest.raises(ValueError, match="which axis has its heads is not known"), ch.watch(model, "weights"):
        model(r(2, 15, 12), 3, 1)


class Packed(nn.Module):
    """One query per head, of which those of a key head stand where queries do, in a module that has no head counts."""

    def forward(self, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        rows, _, _, features = q.shape
        q = q.reshape(rows, k.shape[1], -1, features)
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask).flatten(1, 2)[:, :, None]


MASKS = {
    "none": None,
    "of rows": torch.arange(N) > torch.tensor([0, 2]).view(2, 1, 1, 1),
    "of heads": r(2, 2, 3, N),
}


@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rows", [1, 2])  # 1: the same queries for all rows
def test_one_query_of_packed_heads_is_one_query(mask, rows):
    model, q, k, mask = Packed(), r(rows, 6, 1, 4), r(2, 2, N, 4), MASKS[mask]
    before = model(q, k, mask)
    with ch.watch(model, "*") as tape:
        assert torch.equal(model(q, k, mask), before)
    repeated, bias = k.repeat_interleave(3, 1), mask
    if mask is not None and mask.shape[1] == 2:
        bias = mask.flatten(1, 2)[:, :, None]
    expected = F.scaled_dot_product_attention(q, repeated, repeated, attn_mask=bias)
    torch.testing.assert_close(before, expected)
    torch.testing.assert_close(tape["heads"], expected)
    torch.testing.assert_close(tape["weights"].dense() @ repeated, expected)
    assert torch.equal(tape["q"], q.expand(2, -1, -1, -1))
    assert torch.equal(tape["k"], k)
    for leaf in ("q", "k", "v", "heads", "scores", "weights"):
        with quiet(), ch.edit(model, {leaf: torch.clone}):
            torch.testing.assert_close(model(q, k, mask), before)
    with ch.edit(model, {"heads": ch.look.silence([4])}):
        edited = model(q, k, mask)
    assert not edited[:, 4].any()
    assert torch.equal(edited[:, :4], before[:, :4])
    assert torch.equal(edited[:, 5], before[:, 5])

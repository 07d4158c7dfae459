"""Attention that modules compute by softmax and product themselves is seen; what only looks like it is not."""

import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from foreign_models import build, inputs, outputs
from torch import Tensor, nn

import clearhead as ch
from clearhead.look import Notice

B, T, H, E = 2, 6, 3, 4
WIDTH = H * E


class Heads(nn.Module):
    """A projection to queries, keys and values (b, h, n, e), and one back."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.5)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, E)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def joined(self, out: Tensor) -> Tensor:
        return self.out(out.transpose(1, 2).flatten(2))


class Operator(Heads):
    """As nanoGPT and timm write it: a method, dropout, and @."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.mT * E**-0.5).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, float("-inf"))
        return self.joined(self.drop(scores.softmax(dim=-1)) @ v)


class Cast(Heads):
    """As transformers writes it: a softmax in float32 that is cast, and torch.matmul."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = F.softmax(torch.matmul(q, k.mT) * E**-0.5, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.joined(torch.matmul(F.dropout(weights, 0.1, self.training), v))


class Einsum(Heads):
    """As papers write it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * E**-0.5, 3)
        return self.joined(torch.einsum("b h i j, b h j d -> b h i d", weights, v))


class Flat(Heads):
    """As BLOOM and DeBERTa write it: rows and heads in one axis, and torch.bmm."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.drop((q @ k.mT * E**-0.5).softmax(-1)).view(-1, T, T)
        return self.joined(torch.bmm(weights, v.reshape(-1, T, E)).view(B, H, T, E))


class Windows(Heads):
    """Attention in windows of 2 x 2 of an image (b, y, x, c), as in Swin."""

    def forward(self, x: Tensor) -> Tensor:
        b, y, w, c = x.shape
        parts = x.view(b, y // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.split(parts)
        out = self.joined((q @ k.mT * E**-0.5).softmax(-1) @ v)
        return out.view(b, y // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, y, w, c)


class Channels(Heads):
    """Attention between channels (El-Nouby et al. 2021): its softmax is over the channels of a head."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.mT for part in self.split(x))
        return self.joined(((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v).mT)


class Linear(Heads):
    """Linear attention (Shen et al. 2021): softmaxes over features of queries, and over the tokens of keys."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(q.softmax(-1) @ (k.softmax(-2).mT @ v))


class Efficient(Linear):
    """The same where a head has as many features as there are tokens."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        return F.pad(q, (0, T - E)), F.pad(k, (0, T - E)), v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        context = (k.softmax(-2).mT @ v) / T
        return self.joined(q.softmax(-1) @ context)


class Context(Efficient):
    """The same without a softmax of the keys."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(q.softmax(-1) @ torch.einsum("bhnd,bhne->bhde", k, v))


class Classes(Heads):
    """A mean of class embeddings, by the class probabilities of each token and head."""

    def forward(self, x: Tensor) -> Tensor:
        q, _, _ = self.split(x)
        return self.joined(q.softmax(-1) @ torch.ones(B, H, E, E))


class Unused(Heads):
    """A softmax whose weights are only returned, and another product."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        self.kept = weakref.ref((q @ k.mT).softmax(-1))
        return self.joined(q @ (k.mT @ v))


class Fused(Heads):
    """A fused attention, and a gate that looks like another."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(F.scaled_dot_product_attention(q, k, v) + (q @ k.mT).softmax(-1) @ v)


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def given(kind: type[nn.Module]) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, 4, 6, WIDTH) if kind is Windows else torch.randn(B, T, WIDTH)


ATTENTION = [Operator, Cast, Einsum, Flat, Windows]


@torch.no_grad()
@pytest.mark.parametrize("kind", ATTENTION)
def test_explicit_attention_is_seen_and_keeps_its_bits(kind):
    model, x = seeded(kind), given(kind)
    before = model(x)
    with ch.watch(model, "weights", "entropy", "received", "v", "heads") as tape:
        assert torch.equal(model(x), before)
    weights = tape["weights"].dense()
    rows, n = (B * 6, 4) if kind is Windows else (B, T)
    assert weights.shape == (rows, H, n, n)
    torch.testing.assert_close(weights @ tape["v"], tape["heads"])
    torch.testing.assert_close(tape["entropy"], torch.special.entr(weights).sum(-1))
    torch.testing.assert_close(tape["received"], weights.sum(-2))
    assert bool(weights.triu(1).any()) != (kind is Operator)


@torch.no_grad()
@pytest.mark.parametrize("kind", ATTENTION)
def test_silencing_a_head_equals_zeroing_its_slice(kind):
    model, x = seeded(kind), given(kind)
    with ch.edit(model, {"heads": ch.look.silence([1])}):
        silenced = model(x)
    hook = model.out.register_forward_pre_hook(
        lambda _, args: (args[0].unflatten(-1, (H, E)).index_fill(-2, torch.tensor(1), 0.0).flatten(-2),)
    )
    assert torch.equal(silenced, model(x))
    hook.remove()


@torch.no_grad()
@pytest.mark.parametrize("leaf", ["weights", "v"])
@pytest.mark.parametrize("kind", ATTENTION)
def test_weights_and_values_can_be_edited(kind, leaf):
    model, x = seeded(kind), given(kind)
    bias = model.out.bias
    with (
        warnings.catch_warnings(action="ignore", category=Notice),
        ch.watch(model, "weights") as tape,
        ch.edit(model, {leaf: lambda y: 2 * y}),
    ):
        doubled = model(x)
    torch.testing.assert_close(doubled - bias, 2 * (model(x) - bias))
    total = tape["weights"].dense().sum(-1)
    torch.testing.assert_close(total, torch.full_like(total, 2.0 if leaf == "weights" else 1.0))


@pytest.mark.parametrize("leaf", ["q", "k", "scores"])
def test_what_lies_behind_cannot_be_edited(leaf, recwarn):
    model = seeded(Operator)
    with pytest.raises(ValueError, match=f"{leaf} cannot be edited .* expected heads, weights or v"):  # noqa: SIM117
        with ch.edit(model, {leaf: lambda y: 2 * y}):
            model(given(Operator))


@pytest.mark.parametrize("kind", [Channels, Linear, Efficient, Context, Classes, Unused])
def test_other_softmaxes_are_not_taken_for_attention(kind):
    model = seeded(kind)
    with pytest.warns(Notice, match="no attention call at 'weights'"), ch.watch(model, "weights") as tape:
        model(given(kind))
    assert tape.names == []
    if kind is Unused:
        gc.collect()
        assert model.kept() is None  # an interception keeps no tensor alive


def test_the_notice_for_a_model_of_timm_names_the_switch_of_its_fused_attention(monkeypatch):
    monkeypatch.setattr(Channels, "__module__", "timm.models.xcit")
    model = seeded(Channels)
    with pytest.warns(Notice, match=r"set_fused_attn\(True, experimental=True\)"), ch.watch(model, "weights"):
        model(given(Channels))


def test_a_module_with_a_fused_attention_has_that_alone():
    model = seeded(Fused)
    with ch.watch(model, "weights") as tape:
        model(given(Fused))
    assert tape.names == ["weights"]
    assert len(tape.calls("weights")) == 1


def test_dropout_and_gradients_while_training():
    model, x = seeded(Operator).train(), given(Operator)
    with pytest.warns(Notice, match="explicitly"), ch.watch(model, "weights", grad=True) as tape:
        model(x).sum().backward()
    torch.testing.assert_close(tape["weights"].dense().sum(-1), torch.ones(B, H, T))  # without dropout
    assert tape.gradient("weights").shape == (B, H, T, T)


@pytest.mark.parametrize("inplace", [False, True])
def test_the_weights_are_those_before_dropout(inplace):
    model, x = seeded(Operator).train(), given(Operator)
    model.drop.inplace = inplace
    with torch.no_grad(), ch.watch(model, "weights", "entropy") as tape:
        model(x)
    with torch.no_grad(), ch.watch(model.eval(), "weights", "entropy") as plain:
        model(x)
    torch.testing.assert_close(tape["weights"].dense(), plain["weights"].dense())
    torch.testing.assert_close(tape["entropy"], plain["entropy"])


FORMS = {
    "output (b, q, h, e)": lambda w, v: torch.einsum("bhqk,bhkd->bqhd", w, v).transpose(1, 2),
    "ellipsis": lambda w, v: torch.einsum("...ij,...jd->...id", w, v),
    "list": lambda w, v: torch.einsum("bhqk,bhkd->bhqd", [w, v]),
    "bfloat16": lambda w, v: (w.bfloat16() @ v.bfloat16()).float(),
    "half": lambda w, v: (w.half() @ v.half()).float(),
    "double": lambda w, v: (w.double() @ v.double()).float(),
    "type": lambda w, v: (w.type(torch.float64) @ v.double()).float(),
    "type_as": lambda w, v: (w.type_as(v.double()) @ v.double()).float(),
}


class Form(Heads):
    """One of these ways to multiply weights and values."""

    form = "list"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(FORMS[self.form]((q @ k.mT * E**-0.5).softmax(-1), v))


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_einsums_and_casts(form):
    model, x = seeded(Form), given(Form)
    model.form = form
    before = model(x)
    with ch.watch(model, "weights", "heads") as tape:
        assert torch.equal(model(x), before)
    q, k, v = model.split(x)
    weights = (q @ k.mT * E**-0.5).softmax(-1)
    torch.testing.assert_close(tape["weights"].dense(), weights)
    torch.testing.assert_close(tape["heads"].float(), weights @ v, rtol=0.05, atol=0.02)
    with ch.edit(model, {"heads": ch.look.silence([0, 1, 2])}):
        torch.testing.assert_close(model(x), model.out.bias.expand(B, T, WIDTH))


@torch.no_grad()
def test_an_eager_model_of_transformers_is_edited_while_it_generates():
    model, fused, ids = build("llama", "eager"), build("llama"), inputs("llama")["input_ids"]
    how = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    written = []
    for one in (model, fused):
        with ch.edit(one, {"model.layers.1.self_attn.heads": ch.look.silence([0, 2])}):
            written.append(one.generate(ids, **how))
    assert torch.equal(*written)
    with ch.watch(model, "**.weights") as tape:
        outputs(model, {"input_ids": ids})
    assert [record.shape for record in tape.match("**.weights").values()] == [(2, 4, 7, 7)] * 2

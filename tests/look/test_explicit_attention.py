"""Attention that modules compute by softmax and product themselves is seen; what only looks like it is not."""

import gc
import threading
import weakref
from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from clearhead.look import Notice
from support.attention_by_hand import WIDTH, B, ByHand, E, H, T, seeded
from support.foreign_models import build, inputs, outputs


class Operator(ByHand):
    """As nanoGPT and timm write it: a method, dropout, and @."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.mT * E**-0.5).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, float("-inf"))
        return self.joined(self.drop(scores.softmax(dim=-1)) @ v)


class Interrupted(ByHand):
    """Something else happens between the softmax and the product."""

    def between(self):
        pass

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = (q @ k.mT).softmax(-1)
        self.between()
        return self.joined(weights @ v)


class Channels(ByHand):
    """Attention between channels (El-Nouby et al. 2021): its softmax is over the channels of a head."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.mT for part in self.split(x))
        return self.joined(((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v).mT)


class Linear(ByHand):
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


class Classes(ByHand):
    """A mean of class embeddings, by the class probabilities of each token and head."""

    def forward(self, x: Tensor) -> Tensor:
        q, _, _ = self.split(x)
        return self.joined(q.softmax(-1) @ torch.ones(B, H, E, E))


class Unused(ByHand):
    """A softmax whose weights are only returned, and another product."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        self.kept = weakref.ref((q @ k.mT).softmax(-1))
        return self.joined(q @ (k.mT @ v))


class Fused(ByHand):
    """A fused attention, and a gate that looks like another."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(F.scaled_dot_product_attention(q, k, v) + (q @ k.mT).softmax(-1) @ v)


def given() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, T, WIDTH)


@pytest.mark.parametrize("leaf", ["q", "k", "scores"])
def test_what_lies_behind_cannot_be_edited(leaf, recwarn):
    model = seeded(Operator)
    with pytest.raises(ValueError, match=f"{leaf} cannot be edited .* expected heads, weights or v"):  # noqa: SIM117
        with ch.edit(model, {leaf: lambda y: 2 * y}):
            model(given())


@pytest.mark.parametrize("kind", [Channels, Linear, Efficient, Context, Classes, Unused])
def test_other_softmaxes_are_not_taken_for_attention(kind):
    model = seeded(kind)
    with pytest.warns(Notice, match="no attention call at 'weights'"), ch.watch(model, "weights") as tape:
        model(given())
    assert tape.names == []
    if kind is Unused:
        gc.collect()
        assert model.kept() is None  # an interception keeps no tensor alive


def test_the_notice_for_a_model_of_timm_names_the_switch_of_its_fused_attention(monkeypatch):
    monkeypatch.setattr(Channels, "__module__", "timm.models.xcit")
    model = seeded(Channels)
    with pytest.warns(Notice, match=r"set_fused_attn\(True, experimental=True\)"), ch.watch(model, "weights"):
        model(given())


def test_a_module_with_a_fused_attention_has_that_alone():
    model = seeded(Fused)
    with ch.watch(model, "weights") as tape:
        model(given())
    assert tape.names == ["weights"]
    assert len(tape.calls("weights")) == 1


def test_dropout_and_gradients_while_training():
    model, x = seeded(Operator).train(), given()
    with pytest.warns(Notice, match="explicitly"), ch.watch(model, "weights", grad=True) as tape:
        model(x).sum().backward()
    torch.testing.assert_close(tape["weights"].dense().sum(-1), torch.ones(B, H, T))  # without dropout
    assert tape.gradient("weights").shape == (B, H, T, T)


@pytest.mark.parametrize("inplace", [False, True])
def test_the_weights_are_those_before_dropout(inplace):
    model, x = seeded(Operator).train(), given()
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


class Form(ByHand):
    """One of these ways to multiply weights and values."""

    form = "list"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(FORMS[self.form]((q @ k.mT * E**-0.5).softmax(-1), v))


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_einsums_and_casts(form):
    model, x = seeded(Form), given()
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


def watch_another():
    other = seeded(Operator)
    with ch.watch(other, "weights") as tape:
        other(torch.randn(B, 3, WIDTH))
    assert tape["weights"].shape == (B, H, 3, 3)


def ended_by_a_thread(stack):
    thread = threading.Thread(target=stack.close)
    thread.start()
    thread.join(20)


@pytest.mark.filterwarnings("ignore:no attention call at 'entropy':clearhead.errors.Notice")
@pytest.mark.parametrize("ends", ["another", "it", "it in a thread"])
def test_a_watch_that_ends_in_a_forward_pass_loses_nothing_of_the_others(ends):
    model, x = seeded(Interrupted), torch.randn(B, T, WIDTH)
    with ch.watch(model, "weights") as tape, ExitStack() as inner:
        inner.enter_context(ch.watch(model, "entropy"))
        if ends == "another":
            model.between = watch_another
        elif ends == "it":
            model.between = inner.close
        else:
            model.between = lambda: ended_by_a_thread(inner)
        model(x)
        model(x)
    shapes = [record.shape for name in tape.names for record in tape.calls(name)]
    assert shapes.count((B, H, T, T)) == 2

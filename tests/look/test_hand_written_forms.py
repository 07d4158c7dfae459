"""Forms in which attention is written by hand are recorded exactly; softmaxes of the same shapes are not taken."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.look import Notice
from support.attention_by_hand import WIDTH, B, ByHand, E, H, T, seeded, silenced_by_hook


class Head(ByHand):
    """One head, as in Karpathy's lecture: three axes."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) * WIDTH**-0.5
        scores = scores.masked_fill(torch.tril(torch.ones(x.shape[1], x.shape[1])) == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        out = self.drop(weights) @ v
        self.keep(weights[:, None], out[:, None])
        return self.out(out)


class Untransposed(ByHand):
    """Values (b, k, h, e), by einsum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.three(x)
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * E**-0.5).softmax(-1)
        out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        self.keep(weights, out.transpose(1, 2))
        return self.out(out.flatten(2))


class HeadsLast(ByHand):
    """Weights (b, q, k, h), by a softmax over axis 2."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.three(x)
        weights = (torch.einsum("bqhd,bkhd->bqkh", q, k) * E**-0.5).softmax(2)
        out = torch.einsum("bqkh,bkhd->bqhd", weights, v)
        self.keep(weights.permute(0, 3, 1, 2), out.transpose(1, 2))
        return self.out(out.flatten(2))


class Flat(ByHand):
    """Rows and heads in one axis from the start, by bmm."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.transpose(1, 2).reshape(-1, x.shape[1], E) for y in self.three(x))
        weights = torch.bmm(q, k.mT).mul(E**-0.5).softmax(-1)
        out = torch.bmm(self.drop(weights), v)
        self.keep(weights.unflatten(0, (-1, H)), out.unflatten(0, (-1, H)))
        return self.out(out.unflatten(0, (-1, H)).transpose(1, 2).flatten(2))


class TimeFirst(ByHand):
    """Tokens first, (n, b, d), as in fairseq."""

    def forward(self, x: Tensor) -> Tensor:
        n, b, _ = x.shape
        q, k, v = (y.contiguous().view(n, b * H, E).transpose(0, 1) for y in self.qkv(x).chunk(3, -1))
        weights = F.softmax(torch.bmm(q, k.transpose(1, 2)) * E**-0.5, -1)
        out = torch.bmm(weights, v)
        self.keep(weights.unflatten(0, (-1, H)), out.unflatten(0, (-1, H)))
        return self.out(out.transpose(0, 1).reshape(n, b, WIDTH))


class HeadsFirst(ByHand):
    """Heads before rows in one axis: not known to be rows and heads, so that each is a row of one head."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.permute(2, 0, 1, 3).reshape(-1, x.shape[1], E) for y in self.three(x))
        weights = torch.bmm(q, k.mT).mul(E**-0.5).softmax(-1)
        out = torch.bmm(weights, v)
        self.keep(weights[:, None], out[:, None])
        return self.out(out.unflatten(0, (H, -1)).permute(1, 2, 0, 3).flatten(2))


class Returned(ByHand):
    """A softmax of three axes whose weights are used with four."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1)
        weights = self.drop(weights).view(x.shape[0], H, *weights.shape[1:])
        return self.kept(weights, weights @ v)


class Core(nn.Module):
    """A module that is called with projected queries, keys and values."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.weights = (q @ k.mT * E**-0.5).softmax(-1)
        return self.weights @ v


class WithCore(ByHand):
    def __init__(self) -> None:
        super().__init__()
        self.core = Core()

    def forward(self, x: Tensor) -> Tensor:
        out = self.core(*self.split(x))
        self.keep(self.core.weights, out)
        return self.out(out.transpose(1, 2).flatten(2))


class Unbatched(ByHand):
    """Tokens (n, d), weights (h, q, k)."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.transpose(0, 1) for y in self.three(x))
        weights = (q @ k.mT * E**-0.5).softmax(-1)
        out = weights @ v
        self.keep(weights[None], out[None])
        return self.out(out.transpose(0, 1).flatten(1))


class ClassToken(ByHand):
    """A class token that the module itself puts before the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(torch.cat([torch.ones_like(x[:, :1]), x], 1))
        weights = (q @ k.mT * E**-0.5).softmax(-1)
        return self.kept(weights, weights @ v)


class Ids(ByHand):
    """A module that is called with ids."""

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.split(F.one_hot(ids, WIDTH).float())
        weights = (q @ k.mT * E**-0.5).softmax(-1)
        return self.kept(weights, weights @ v)


class Values(ByHand):
    """The weights as the second factor of an einsum, as arguments by name, or copied."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = (q @ k.mT * E**-0.5).softmax(-1)
        return self.kept(weights, self.times(weights, v))


class ValuesFirst(Values):
    def times(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhkd,bhqk->bhqd", v, weights)


class ByName(Values):
    def times(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.matmul(input=weights, other=v)


class Copied(Values):
    def times(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights.clone() @ v


class Pooled(ByHand):
    """Fewer keys than tokens, made of them by pooling (MViTv2)."""

    num_heads = H

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        k, v = (F.avg_pool2d(y, (2, 1)) for y in (k, v))
        weights = (q @ k.mT * E**-0.5).softmax(-1)
        return self.kept(weights, weights @ v)


class Sink(ByHand):
    """A key without a value that takes weight: the others sum to less than 1 (GPT-OSS)."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.cat([q @ k.mT * E**-0.5, torch.ones(*q.shape[:3], 1)], dim=-1)
        weights = F.dropout(scores.softmax(-1)[..., :-1], 0.1, self.training)
        return self.kept(weights, weights @ v)


class Operator(ByHand):
    """As nanoGPT and timm write it: a mask, dropout, and @."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.mT * E**-0.5).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, float("-inf"))
        weights = scores.softmax(dim=-1)
        return self.kept(weights, self.drop(weights) @ v)


class Cast(ByHand):
    """As transformers writes it: a softmax in float32 that is cast, and torch.matmul."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = F.softmax(torch.matmul(q, k.mT) * E**-0.5, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.kept(weights, torch.matmul(F.dropout(weights, 0.1, self.training), v))


class Einsum(ByHand):
    """As papers write it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * E**-0.5, 3)
        return self.kept(weights, torch.einsum("b h i j, b h j d -> b h i d", weights, v))


class FlatView(ByHand):
    """As BLOOM and DeBERTa write it: rows and heads are put into one axis after the softmax, and torch.bmm."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = (q @ k.mT * E**-0.5).softmax(-1)
        out = torch.bmm(self.drop(weights).view(-1, T, T), v.reshape(-1, T, E))
        return self.kept(weights, out.view(B, H, T, E))


class Windows(ByHand):
    """Attention in windows of 2 x 2 of an image (b, y, x, c), as in Swin."""

    def forward(self, x: Tensor) -> Tensor:
        b, y, w, c = x.shape
        parts = x.view(b, y // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.split(parts)
        weights = (q @ k.mT * E**-0.5).softmax(-1)
        out = self.kept(weights, weights @ v)
        return out.view(b, y // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, y, w, c)


INPUTS = {TimeFirst: (T, B, WIDTH), Unbatched: (T, WIDTH), Windows: (B, 4, 6, WIDTH)}
TAKEN = [
    Head, Untransposed, HeadsLast, Flat, TimeFirst, HeadsFirst, Returned, WithCore, Unbatched, ClassToken, Ids,
    ValuesFirst, ByName, Copied, Pooled, Sink, Operator, Cast, Einsum, FlatView, Windows,
]  # fmt: skip


def given(kind: type[nn.Module]) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(WIDTH, (B, T)) if kind is Ids else torch.randn(INPUTS.get(kind, (B, T, WIDTH)))


def address(kind: type[nn.Module], leaf: str) -> str:
    return f"core.{leaf}" if kind is WithCore else leaf


@torch.no_grad()
@pytest.mark.parametrize("kind", TAKEN)
def test_it_is_recorded_exactly_and_keeps_its_bits(kind):
    model, x = seeded(kind), given(kind)
    before = model(x)
    leaves = ("weights", "heads", "v", "entropy", "received")
    with ch.watch(model, *(f"**.{leaf}" for leaf in leaves)) as tape:
        assert torch.equal(model(x), before)
    weights, heads, v, entropy, received = (tape[address(kind, leaf)] for leaf in leaves)
    torch.testing.assert_close(weights.dense(), model.weights)
    assert torch.equal(heads, model.heads)
    torch.testing.assert_close(weights.dense() @ v, heads)
    torch.testing.assert_close(entropy, torch.special.entr(model.weights).sum(-1))
    torch.testing.assert_close(received, model.weights.sum(-2))


@torch.no_grad()
@pytest.mark.parametrize("kind", [kind for kind in TAKEN if kind not in (Head, HeadsFirst)])
def test_silencing_a_head_zeroes_its_slice(kind):
    model, x = seeded(kind), given(kind)
    with ch.edit(model, {address(kind, "heads"): ch.look.silence([1])}):
        silenced = model(x)
    assert torch.equal(silenced, silenced_by_hook(model, x))


@pytest.mark.parametrize("kind", TAKEN)
def test_gradients_of_weights_while_training(kind):
    """The sum of weight times gradient is the derivative by a factor of the weights: the output before its bias."""
    model, x = seeded(kind), given(kind)
    with warnings.catch_warnings(action="ignore", category=Notice), ch.watch(model, "**.weights", grad=True) as tape:
        out = model.train()(x)
        (out - model.out.bias).sum().backward()
    name = address(kind, "weights")
    total = (tape[name].dense() * tape.gradient(name)).sum()
    torch.testing.assert_close(total, (out - model.out.bias).sum().detach(), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("leaf", ["weights", "v"])
@pytest.mark.parametrize("kind", [Operator, Cast, Einsum, FlatView, Windows])
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


class Classes(ByHand):
    """A mean of as many class embeddings as there are tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x[..., :T].softmax(-1) @ torch.ones(B, T, WIDTH))


class Linear(ByHand):
    """Linear attention with three axes, as many features as tokens, and context that is divided."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (F.pad(y, (0, T - E)) for y in x.chunk(3, -1))
        context = k.softmax(-2).mT @ v / T
        return q.softmax(-1) @ context


class EinsumLinear(ByHand):
    """The context of linear attention by einsum: a softmax of keys over tokens, multiplied with values."""

    def forward(self, x: Tensor) -> Tensor:
        _, k, v = self.three(x)
        k = F.pad(k, (0, T - E))  # as many features as tokens
        return torch.einsum("bnhd,bnhe->bhde", k.softmax(1), v)


class Channels(ByHand):
    """Attention between channels with three axes; its values are (b, c, n)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT
        return (x @ x.mT).softmax(-1) @ x


class FewChannels(ByHand):
    """The same with half of the channels, more than there are tokens."""

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :4, :8].mT
        return (x @ x.mT).softmax(-1) @ x


class ImageChannels(ByHand):
    """The same in an image with as many channels as positions."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2)
        return (x @ x.mT).softmax(-1) @ x


class ChannelHeads(ByHand):
    """Attention between channels per head, with more channels than tokens, or as many as rows."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.transpose(1, 2).mT for y in self.three(x))
        return (q @ k.mT).softmax(-1) @ v


class KnownChannelHeads(ChannelHeads):
    """The same in a module that has its number of heads."""

    num_heads = H


class ImageChannelHeads(ByHand):
    """Attention between the channels of a head of an image (b, c, y, x), as in Restormer."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).unflatten(1, (H, E))
        return (x @ x.mT).softmax(-1) @ x


class Prototypes(ByHand):
    """A mixture of as many prototypes as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(1, H, T, E))

    def forward(self, x: Tensor) -> Tensor:
        q, _, _ = self.split(x)
        return (q @ self.prototypes.mT).softmax(-1) @ self.prototypes.expand(len(x), -1, -1, -1)


class ScaledContext(ByHand):
    """Linear attention without a softmax of the keys, with as many features of a head as tokens."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        context = k.sigmoid().mT @ v / x.shape[1]
        return q.softmax(-1) @ context


class ChannelCore(WithCore):
    """The same in a module of its own, which is called with (b, h, c, n)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.core(*(y.transpose(1, 2).mT for y in self.three(x)))


class Elsewhere(ByHand):
    """A softmax whose weights are multiplied transposed."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1).mT @ x


class Exponentials(ByHand):
    """Attention without a softmax of torch."""

    def forward(self, x: Tensor) -> Tensor:
        e = (x @ x.mT).exp()
        return e / e.sum(-1, keepdim=True) @ x


NOT_TAKEN = {
    "classes": (Classes, (B, T, WIDTH), r"shape \(2, 6, 6\) .*scores are no product"),
    "linear": (Linear, (B, T, WIDTH), "as linear attention does"),
    "linear by einsum": (EinsumLinear, (B, T, WIDTH), "no softmax|not taken"),
    "channels": (Channels, (B, T, WIDTH), "not for certain"),
    "as many channels as tokens": (Channels, (B, WIDTH, WIDTH), "not for certain"),
    "as many channels as rows": (Channels, (WIDTH, T, WIDTH), "not for certain"),
    "more channels than tokens": (FewChannels, (B, 4, WIDTH), "not for certain"),
    "image": (ImageChannels, (B, 16, 4, 4), "not for certain"),
    "heads": (ChannelHeads, (B, 3, WIDTH), "not for certain"),
    "known heads": (KnownChannelHeads, (B, 3, WIDTH), "not for certain"),
    "known heads, as many channels as tokens": (KnownChannelHeads, (B, E, WIDTH), "not for certain"),
    "heads, as many channels as rows": (ChannelHeads, (E, T, WIDTH), "not for certain"),
    "as many channels of a head as tokens": (ChannelHeads, (B, E, WIDTH), "not for certain"),
    "image, as many channels of a head as tokens": (ImageChannelHeads, (B, WIDTH, 2, 2), "not for certain"),
    "core": (ChannelCore, (B, T, WIDTH), "'core' and not taken"),
    "prototypes": (Prototypes, (B, T, WIDTH), "its values are parameters"),
    "scaled context": (ScaledContext, (B, E, WIDTH), "scores are no product"),
    "transposed": (Elsewhere, (B, T, WIDTH), "no product of its weights with values was seen"),
    "exponentials": (Exponentials, (B, T, WIDTH), "took no softmax.*scaled_dot_product_attention is always seen"),
}


@torch.no_grad()
@pytest.mark.parametrize("case", NOT_TAKEN)
def test_what_only_looks_like_attention_is_not_taken_and_the_notice_says_why(case):
    kind, size, reason = NOT_TAKEN[case]
    model, x = seeded(kind), torch.randn(size)
    before = model(x)
    with pytest.warns(Notice, match=reason), ch.watch(model, "**.weights") as tape:
        assert torch.equal(model(x), before)
    assert tape.names == []


class Contiguous(Values):
    def times(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v.contiguous()


@torch.no_grad()
@pytest.mark.parametrize("kind", [Untransposed, ValuesFirst, ByName, Contiguous, Flat])
def test_attention_is_seen_with_as_many_tokens_as_features_of_a_head(kind):
    model = seeded(kind)
    with ch.watch(model, "weights") as tape:
        model(torch.randn(B, E, WIDTH))
    torch.testing.assert_close(tape["weights"].dense(), model.weights)


class TwoWays(ByHand):
    """Both softmaxes of one matrix of scores, each multiplied after both were taken."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        (q, _, v), (_, k, u) = ((z.transpose(1, 2) for z in self.three(some)) for some in (x, y))
        scores = q @ k.mT * E**-0.5
        self.both = one, two = scores.softmax(-1), scores.mT.softmax(-1)
        return one @ u, two @ v


@torch.no_grad()
def test_two_softmaxes_before_two_products_are_both_seen_and_edited():
    model, x, y = seeded(TwoWays), torch.randn(B, T, WIDTH), torch.randn(B, 9, WIDTH)
    with ch.watch(model, "weights") as tape:
        model(x, y)
    assert tape.names == ["weights", "@1.weights"]
    for name, expected in zip(tape.names, model.both, strict=True):
        torch.testing.assert_close(tape[name].dense(), expected)
    with ch.edit(model, {"heads": torch.zeros_like}):
        assert not any(out.any() for out in model(x, y))


# Attention of which a part is not seen


class HeadMask(ByHand):
    """Weights that are multiplied with something else before they meet their values."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.out(((q @ k.mT).softmax(-1) * torch.ones(H, 1, 1) @ v).transpose(1, 2).flatten(2))


class Routed(nn.Module):
    """A mixture of two linear experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


def stack(*kinds: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(kind() for kind in kinds)).eval()


@torch.no_grad()
def test_a_notice_names_a_module_whose_softmax_was_seen_and_not_taken_where_others_are():
    model, x = stack(Head, HeadMask, HeadMask), torch.randn(B, T, WIDTH)
    reason = r"a softmax of shape \(2, 3, 6, 6\) was seen in '1' \(and in 1 other module\) and not taken as"
    with pytest.warns(Notice, match=f"attention may be missing on this tape: {reason}"), ch.watch(model, "**.weights"):
        model(x)
    changes = {"**.heads": ch.look.silence([0])}
    with pytest.warns(Notice, match=f"attention may be left unedited: {reason}"), ch.edit(model, changes):
        model(x)
    with ch.watch(model, "0.weights"), ch.edit(model, {"0.heads": ch.look.silence([0])}):  # no other module is meant
        model(x)
    reason = r"no attention call at '1.weights': a softmax .* in '1' and not taken"
    with pytest.warns(Notice, match=reason), ch.watch(model, "1.weights", "0.weights"):
        model(x)


@torch.no_grad()
def test_a_softmax_of_a_router_is_not_said_to_be_missing():
    model = stack(Head, Routed)
    with ch.watch(model, "**.weights"), ch.edit(model, {"**.heads": ch.look.silence([0])}):
        model(torch.randn(B, T, WIDTH))

"""watch and edit: what a name means, what is kept of it, what is computed for it, and what is left behind."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import clearhead.layers.attention as attention_file
import clearhead.look.capture as capture_file
from clearhead import edit, watch
from clearhead.layers import Additive, Attention, Block, Cache, Mask
from clearhead.look import MEANING, AttentionMap, Notice, silence
from clearhead.look.call import LazyCall

B, T, H, E = 2, 7, 3, 4
WIDTH = H * E
LEAVES = ("q", "k", "v", "scores", "weights", "heads", *MEANING)
PARTS = ("query", "key", "value", "out")


class Model(nn.Module):
    """Two blocks that look back at themselves, the second also at a context."""

    def __init__(self, **block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(WIDTH, H, **block), Block(WIDTH, H, cross=True, **block)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mask = Mask(causal=True)
        return self.norm(self.blocks[1](self.blocks[0](x, mask=mask), x, mask=mask))


@pytest.fixture
def model() -> Model:
    return Model()


def asked(tokens: int = T, **kind) -> Tensor:
    return torch.randn(B, tokens, WIDTH, generator=torch.Generator().manual_seed(1)).to(**kind)


def traces(model: nn.Module) -> list[object]:
    """All that a watch or an edit may have left."""
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    return hooks + [m.tap for m in model.modules() if isinstance(m, Attention) and m.tap is not None]


# Names


def inside(path: str) -> list[str]:
    """An attention and all that is in it."""
    return [path, *(f"{path}.{part}" for part in (*LEAVES, *PARTS))]


BOTH = ["blocks.0.attn", "blocks.1.attn"]
ALL = [*BOTH, "blocks.1.cross"]
NAMED = {
    "norm": ["norm"],
    "blocks.1": ["blocks.1"],
    "blocks.*": ["blocks.0", "blocks.1"],
    "*": ["blocks", "norm"],
    "*.*.mlp": ["blocks.0.mlp", "blocks.1.mlp"],
    "blocks.*.cross": ["blocks.1.cross"],
    "**.cross": ["blocks.1.cross"],
    "blocks.**.up": ["blocks.0.mlp.up", "blocks.1.mlp.up"],
    "**.1.**.up": ["blocks.1.mlp.up"],
    **{f"blocks.*.attn.{leaf}": [f"{path}.{leaf}" for path in BOTH] for leaf in LEAVES},
    **{f"**.{leaf}": [f"{path}.{leaf}" for path in ALL] for leaf in (*LEAVES, "query")},
    "blocks.0.attn.*": inside("blocks.0.attn")[1:],
    "blocks.1.cross.**": inside("blocks.1.cross")[1:],
}


@pytest.mark.parametrize("pattern", NAMED)
def test_a_star_is_one_segment_and_two_are_any_number(model, pattern):
    with watch(model, pattern) as tape:
        assert tape.names == NAMED[pattern]


def test_two_stars_alone_are_everything(model):
    with watch(model, "**") as tape:
        modules = [name for name, _ in model.named_modules() if name]
        assert set(tape.names) == {*modules, *(f"{path}.{leaf}" for path in ALL for leaf in LEAVES)}


def test_names_come_once_and_in_the_models_order(model):
    names = ["norm", "blocks.*.mlp", "**.entropy", "blocks.1.attn.q", "blocks.1.mlp", "blocks.0"]
    with watch(model, *names) as tape:
        assert tape.names == [
            "blocks.0", "blocks.0.attn.entropy", "blocks.0.mlp", "blocks.1.attn.q", "blocks.1.attn.entropy",
            "blocks.1.cross.entropy", "blocks.1.mlp", "norm",
        ]  # fmt: skip
        model(asked())
    assert list(tape.match("blocks.*.mlp")) == ["blocks.0.mlp", "blocks.1.mlp"]
    assert torch.equal(tape.match("norm")["norm"], tape["norm"])


def test_a_bare_attention_has_addresses_without_dots():
    attention = Attention(WIDTH, H)
    with watch(attention, "**.heads", "weights", "out") as tape:
        attention(asked())
    assert tape.names == ["weights", "heads", "out"]
    assert tape["weights"].shape == (B, H, T, T)


class Odd(nn.Module):
    """A user's own: attention in a dictionary, in a sequence, twice at one place, and modules named like ours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        shared = Attention(WIDTH, H)
        self.eyes = nn.ModuleDict({"left eye": nn.Sequential(nn.LayerNorm(WIDTH), shared), "weights": shared})
        self.q, self.k, self.heads, self.entropy = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.model = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.entropy(self.heads(self.k(self.q(self.model(self.eyes["left eye"](x))))))


def test_attention_is_found_wherever_a_module_holds_it():
    odd = Odd()
    with watch(odd, "eyes.left eye.1.weights", "model", "**.heads") as tape:
        odd(asked())
    assert tape.names == ["eyes.left eye.1.weights", "eyes.left eye.1.heads", "heads", "model"]
    assert isinstance(tape["eyes.left eye.1.weights"], AttentionMap)
    assert tape["heads"].shape == (B, T, WIDTH)


@pytest.mark.parametrize("name", ["q", "k", "heads", "entropy", "model"])
def test_calls_of_a_module_join_along_tokens_whatever_its_name(name):
    odd, x = Odd(), asked()
    with watch(odd, name, grad=True) as tape:
        for part in x.split([T - 1, 1], dim=1):
            odd(part).sum().backward()
    calls = tape.calls(name)
    assert torch.equal(tape[name], torch.cat(calls, dim=1))
    assert torch.equal(tape.gradient(name), torch.cat([call.grad for call in calls], dim=1))


def test_what_holds_a_model_is_watched_as_the_model(model):
    bundle = SimpleNamespace(model=model, tokens=None)
    with watch(bundle, "norm") as tape, edit(bundle, {"norm": torch.zeros_like}):
        assert not model(asked()).any()
    assert torch.equal(tape["norm"], model(asked()))


# What is computed and kept


@pytest.fixture
def counted(monkeypatch) -> SimpleNamespace:
    """How often, and for what, anything was computed beside the answer."""
    seen = SimpleNamespace(statistics=[], settled=0, scores=0)
    statistics, settle, scores = capture_file.statistics, capture_file.settle, LazyCall.scores

    def count_statistics(source, *want):
        seen.statistics.append(want)
        return statistics(source, *want)

    def count_settle(source):
        seen.settled += 1
        return settle(source)

    def count_scores(self, rows, keys):
        seen.scores += 1
        return scores(self, rows, keys)

    monkeypatch.setattr(capture_file, "statistics", count_statistics)
    monkeypatch.setattr(capture_file, "settle", count_settle)
    monkeypatch.setattr(LazyCall, "scores", count_scores)
    return seen


@pytest.mark.parametrize("leaf", ["q", "k", "v", "heads", "query"])
def test_what_is_there_anyway_costs_no_computation(model, counted, leaf):
    with watch(model, f"**.{leaf}"):
        model(asked())
    assert (counted.statistics, counted.settled, counted.scores) == ([], 0, 0)


def test_one_statistic_of_one_layer_is_all_that_is_computed(model, counted):
    with watch(model, "blocks.1.attn.entropy") as tape:
        model(asked())
    assert (counted.statistics, counted.settled, counted.scores) == ([("entropy",)], 0, 1)
    assert tape.names == ["blocks.1.attn.entropy"]
    assert {type(call) for calls in tape._calls.values() for call in calls} == {Tensor}


def test_several_statistics_of_a_layer_share_one_pass(model, counted):
    with watch(model, "blocks.0.attn.rms", "blocks.0.attn.entropy", "blocks.0.attn.received"):
        model(asked())
    assert [set(want) for want in counted.statistics] == [{"rms", "entropy", "received"}]
    assert counted.scores == 1


def test_a_map_is_not_computed_before_it_is_looked_at(model, counted):
    with watch(model, "blocks.0.attn.weights") as tape:
        model(asked(40))
    assert (counted.statistics, counted.settled, counted.scores) == ([], 1, 0)
    tape["blocks.0.attn.weights"].row(3)
    assert counted.scores


@pytest.mark.parametrize("keep", ["all", "last"])
def test_all_calls_are_kept_or_the_last(model, keep):
    parts = asked().split([4, 2, 1], dim=1)
    names = ["norm", "blocks.0.attn.weights", "blocks.0.attn.entropy", "blocks.0.attn.heads"]
    with watch(model, *names, keep=keep) as tape:
        out = [model(part) for part in parts]
    kept = slice(None) if keep == "all" else slice(-1, None)
    for call, want in zip(tape.calls("norm"), out[kept], strict=True):
        assert torch.equal(call, want)
    for name in names[1:]:
        assert [call.shape[2] for call in tape.calls(name)] == [4, 2, 1][kept]


def test_a_function_says_what_to_keep(model):
    """Of a map too, of which only what the function took is then held."""
    x = asked(40)
    with watch(model, "blocks.*.attn.weights", "blocks.0.attn.q", "norm") as tape:
        model(x)
    kinds = []

    def smaller(record):
        kinds.append(type(record))
        return record.pool(4) if isinstance(record, AttentionMap) else record[..., 0]

    with watch(model, *tape.names, keep=smaller) as small:
        model(x)
    assert kinds.count(AttentionMap) == 2
    for name in tape.names:
        assert type(small._calls[name][0]) is Tensor
        full = tape[name]
        assert torch.equal(small[name], full.pool(4) if isinstance(full, AttentionMap) else full[..., 0])


def test_what_a_function_kept_of_each_call_can_be_taken_apart(model):
    with watch(model, "blocks.0.attn.weights", keep=lambda map: map.top(2)) as tape:
        model(asked()), model(asked())
    with pytest.raises(ValueError, match=r"2 calls .* take them apart with tape\.calls"):
        tape["blocks.0.attn.weights"]
    (weights, keys), _ = tape.calls("blocks.0.attn.weights")
    assert weights.shape == keys.shape == (B, H, T, 2)


@pytest.mark.parametrize("name", ["norm", *(f"blocks.0.attn.{leaf}" for leaf in LEAVES)])
def test_texts_that_do_not_follow_one_another_do_not_join(model, name):
    with watch(model, name) as tape:
        model(asked(3)), model(asked(4))
    assert len(tape.calls(name)) == 2
    with pytest.raises(ValueError, match=f"2 calls of '{name}' .* take them apart"):
        tape[name]


# One record for every kind of attention


class Reader(nn.Module):
    """Bahdanau et al. 2015: a recurrent decoder looks at its source once a step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.cell = steps, nn.GRUCell(WIDTH, WIDTH)
        self.cross = Attention(WIDTH, 1, score=Additive(WIDTH))

    def forward(self, source: Tensor) -> Tensor:
        memory, state = self.cross.remember(source), source.new_zeros(source.shape[0], WIDTH)
        for _ in range(self.steps):
            state = self.cell(self.cross(state[:, None], memory, mask=Mask(lengths=[T, 4]))[:, 0], state)
        return state


def test_recurrent_cross_and_self_attention_give_one_kind_of_record(model):
    torch.manual_seed(0)
    reader, x = Reader(5), asked()
    with watch(reader, "cross.weights", "cross.entropy", "cross.q", "cross.k") as steps:
        reader(x)
    with watch(model, "**.weights", "**.entropy") as tape:
        model(x)
    maps = [steps["cross.weights"], *tape.match("**.weights").values()]
    assert [map.shape for map in maps] == [(B, 1, 5, T), *[(B, H, T, T)] * 3]
    for map, entropy in zip(maps, (steps["cross.entropy"], *tape.match("**.entropy").values()), strict=True):
        assert type(map) is AttentionMap
        torch.testing.assert_close(map.dense().sum(-1), torch.ones(map.shape[:3]))
        torch.testing.assert_close(map.entropy(), entropy)
    q, k = steps["cross.q"], steps.calls("cross.k")[0]
    scores = torch.tanh(q[:, :, :, None] + k[:, :, None]) @ reader.cross.score.v[0]
    scores[1, :, :, 4:] = float("-inf")
    torch.testing.assert_close(maps[0].dense(), scores.softmax(-1).detach())


@torch.no_grad()
def test_a_decoding_loop_joins_into_one_map(model):
    block, x = model.blocks[0], asked()
    cache = Cache(B, H, T, E)
    with watch(block, "attn.weights", "attn.heads", "mlp", "attn.received") as steps:
        for part in x.split([4, 1, 1, 1], dim=1):
            block(part, mask=cache.mask(), cache=cache)
            cache.advance(part.shape[1])
    with watch(block, *steps.names) as tape:
        block(x, mask=Mask(causal=True))
    assert steps["attn.weights"].shape == (B, H, T, T)
    for name in steps.names:
        now, whole = (t[name].dense() if name == "attn.weights" else t[name] for t in (steps, tape))
        torch.testing.assert_close(now, whole)


# Gradients


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(lengths=[4, 7])], ids=["free", "causal", "lengths"])
@pytest.mark.parametrize("groups", [H, 1])
def test_gradients_are_those_of_attention_written_out(mask, groups):
    torch.manual_seed(0)
    attention, x = Attention(WIDTH, H, kv_heads=groups), asked()
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


def test_gradients_of_scores_and_weights_are_computed_the_slow_way_and_others_not(model, fused):
    for leaf, slow in {"scores": True, "weights": True, "heads": False, "q": False}.items():
        fused.clear()
        with ExitStack() as stack:
            if slow:
                stack.enter_context(pytest.warns(Notice, match="gradients"))
            with watch(model, f"blocks.0.attn.{leaf}", grad=True) as tape:
                out = model(asked())
        assert len(fused) == (2 if slow else 3)
        with pytest.raises(ValueError, match=r"1 of 1 calls .* have no gradient"):
            tape.gradient(f"blocks.0.attn.{leaf}")
        out.sum().backward()
        assert tape.gradient(f"blocks.0.attn.{leaf}").any()


# Edits


@pytest.fixture
def fused(monkeypatch) -> list[str]:
    """A word for each time that the fused kernels were asked."""
    asked, kernel = [], attention_file.fused

    def count(*args, **more):
        asked.append("fused")
        return kernel(*args, **more)

    monkeypatch.setattr(attention_file, "fused", count)
    return asked


@pytest.mark.parametrize("leaf", ["q", "k", "v", "heads"])
def test_edits_of_what_a_kernel_takes_and_gives_stay_fused(model, fused, leaf):
    before = model(asked())
    fused.clear()
    with edit(model, {f"**.{leaf}": lambda y: y * 2}):
        assert not torch.equal(model(asked()), before)
    assert len(fused) == 3


@pytest.mark.parametrize("leaf", ["scores", "weights"])
def test_edits_of_what_a_kernel_never_shows_are_written_out_and_say_so(model, fused, leaf):
    before = model(asked())
    fused.clear()
    with (
        pytest.warns(Notice, match=rf"'blocks\.\*\.attn\.{leaf}' is edited"),
        edit(model, {f"blocks.*.attn.{leaf}": lambda y: y * 2}),
    ):
        assert not torch.equal(model(asked()), before)
    assert len(fused) == 1  # the cross-attention, which nobody edits
    fused.clear()
    assert torch.equal(model(asked()), before)
    assert fused == ["fused"] * 3


LOUD = {
    "the future is shouted at": lambda s: s + torch.ones_like(s).triu(1) * 1e30,
    "infinitely": lambda s: s.masked_fill(torch.ones_like(s).triu(1) > 0, float("inf")),
    "not a number": lambda s: s.masked_fill(torch.ones_like(s).triu(1) > 0, float("nan")),
}


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("change", LOUD)
def test_no_edit_of_scores_looks_where_the_mask_forbids(model, change):
    before = model(asked())
    with edit(model, {"blocks.*.attn.scores": LOUD[change]}), watch(model, "blocks.*.attn.weights") as tape:
        torch.testing.assert_close(model(asked()), before)
    for map in tape.match("**").values():
        assert not map.dense().triu(1).any()


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
def test_scores_edited_to_one_number_share_evenly_among_those_allowed(model):
    with edit(model, {"blocks.0.attn.scores": torch.zeros_like}), watch(model, "blocks.0.attn.weights") as tape:
        model(asked())
    even = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(tape["blocks.0.attn.weights"].dense(), even.expand(B, H, T, T))


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("leaf", ["q", "k", "v", "scores", "weights", "heads"])
def test_watching_sees_what_an_edit_made_whichever_came_first(model, leaf):
    name, change = f"blocks.0.attn.{leaf}", {f"blocks.0.attn.{leaf}": torch.ones_like}
    with watch(model, name) as outer, edit(model, change), watch(model, name) as inner:
        model(asked())
    for tape in (outer, inner):
        seen = tape[name].dense() if leaf == "weights" else tape[name]
        assert torch.equal(seen, torch.ones_like(seen))


def test_edits_follow_one_another_in_the_order_they_were_made(model):
    with edit(model, {"norm": lambda y: y + 1}), edit(model, {"norm": lambda y: y * 2}):
        out = model(asked())
    torch.testing.assert_close(out, (model(asked()) + 1) * 2)


def test_nested_watches_hear_each_their_own(model):
    with watch(model, "**.entropy", "norm") as outer:
        model(asked(3))
        with watch(model, "blocks.0.attn.entropy", "blocks.0.attn.q", keep="last") as inner:
            model(asked(4)), model(asked(5))
        model(asked(6))
    assert [call.shape[1] for call in outer.calls("norm")] == [3, 4, 5, 6]
    assert [call.shape[2] for call in outer.calls("blocks.0.attn.entropy")] == [3, 4, 5, 6]
    assert [call.shape[2] for call in inner.calls("blocks.0.attn.entropy")] == [5]
    assert not traces(model)


# Leaving no trace


class QuietError(Exception):
    pass


def raising(y: Tensor) -> Tensor:
    raise QuietError


WAYS = {
    "the end": lambda model: model(asked()),
    "an exception inside": lambda model: (_ for _ in ()).throw(QuietError),
    "an exception of the model": lambda model: model(asked()[..., :3]),
}


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("way", WAYS)
def test_hooks_and_taps_are_gone_after(model, way):
    before = model(asked())
    everything = {"blocks.*": torch.neg, "**.heads": silence([0]), "**.scores": torch.neg, "**.q": torch.neg}
    for enter in (lambda: watch(model, "**"), lambda: watch(model, "**", grad=True), lambda: edit(model, everything)):
        with enter():
            assert traces(model)
            try:
                WAYS[way](model)
            except (QuietError, RuntimeError):
                assert way != "the end"
        assert not traces(model)
    with pytest.raises(QuietError), edit(model, {"blocks.1.attn.heads": raising}), watch(model, "**"):
        model(asked())
    assert not traces(model)
    assert torch.equal(model(asked()), before)


@pytest.mark.parametrize(
    ("enter", "error"),
    [
        (lambda model: watch(model, "**", "blocks.7"), KeyError),
        (lambda model: edit(model, {"**.heads": torch.neg, "norm": torch.neg, "blocks.7": torch.neg}), KeyError),
        (lambda model: edit(model, {"**.heads": torch.neg, "norm": torch.neg, "**.rms": torch.neg}), ValueError),
    ],
    ids=["watch", "edit", "edit of a measurement"],
)
def test_hooks_and_taps_are_gone_after_an_error_on_the_way_in(model, enter, error):
    with pytest.raises(error), enter(model):
        pass
    assert not traces(model)
    with watch(model, "norm"):  # and the model is free for the next
        pass


def test_one_that_watches_on_is_not_silenced_by_one_that_ends(model):
    """Watches need not end in the order they began."""
    first, second = ExitStack(), ExitStack()
    first.enter_context(watch(model, "**.q"))
    tape = second.enter_context(watch(model, "**.q"))
    first.close()
    model(asked())
    second.close()
    assert tape["blocks.0.attn.q"].shape == (B, H, T, E)
    assert not traces(model)


# Records belong to the tape


class Writes(nn.Module):
    """Writes into what its modules were given and gave, as code that saves memory does."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.up, self.attn, self.down = nn.Linear(WIDTH, WIDTH), attention, nn.ReLU(inplace=True)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        y = self.attn(x, mask=Mask(causal=True))
        x.mul_(7)
        return self.down(y.sub_(3))


ATTENTIONS = {
    "heads": lambda: Attention(WIDTH, H),
    "no last projection": lambda: Attention(WIDTH, 1, out=False),
    "no projection": lambda: Attention(WIDTH, H, project="none"),
    "raw values": lambda: Attention(WIDTH, H, project="qk"),
    "a score of its own": lambda: Attention(WIDTH, H, score=Additive(E, H)),
}


def told(tape, path: str = "") -> dict[str, Tensor]:
    """All that is recorded of an attention."""
    records = {leaf: tape[path + leaf] for leaf in LEAVES}
    return {leaf: x.dense() if isinstance(x, AttentionMap) else x.clone() for leaf, x in records.items()}


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("tokens", [T, 40])  # the weights of few are kept, those of many implied
def test_records_are_not_changed_by_what_is_written_later(kind, tokens):
    torch.manual_seed(0)
    model, x = Writes(ATTENTIONS[kind]()), asked(tokens)
    y = model.up(x).detach()
    with watch(model.attn, *LEAVES) as want:
        out = model.attn(y, mask=Mask(causal=True)).detach()
    with watch(model, "up", "attn", "attn.*") as tape:
        model(x)
    assert torch.equal(tape["up"], y)
    assert torch.equal(tape["attn"], out)
    for leaf, record in told(tape, "attn.").items():
        torch.testing.assert_close(record, told(want)[leaf], msg=f"{leaf} was changed")


WRITTEN = {
    "lengths": (torch.tensor([40, 30]), lambda lengths: Mask(lengths=lengths)),
    "offset": (torch.tensor([0, 3]), lambda offset: Mask(causal=True, offset=offset)),
    "documents": (torch.arange(40)[None] // 7, lambda documents: Mask(documents=documents)),
    "allow": (torch.ones(40, 40, dtype=torch.bool).tril(), lambda allow: Mask(allow=allow)),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_a_map_keeps_the_mask_it_was_seen_under(what):
    """A loop that counts its lengths or offsets up in place moves no map of an earlier step."""
    torch.manual_seed(0)
    (tensor, mask), attention, x = WRITTEN[what], Attention(WIDTH, H), asked(40)
    with watch(attention, *LEAVES) as want:
        attention(x, mask=mask(tensor))
    expected, mine = told(want), tensor.clone()
    with watch(attention, *LEAVES) as tape:
        attention(x, mask=mask(mine))
    mine.fill_(1)
    for leaf, record in told(tape).items():
        torch.testing.assert_close(record, expected[leaf], msg=f"{leaf} was changed")


# Threads


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
def test_the_calls_of_another_thread_are_neither_recorded_nor_edited(model):
    before = model(asked())
    with ThreadPoolExecutor(1) as other:
        with watch(model, "**", grad=True) as tape:
            torch.testing.assert_close(other.submit(model, asked()).result(), before)
            assert not any(name in tape for name in tape.names)
        for leaf in ("q", "k", "v", "scores", "weights", "heads"):
            with edit(model, {f"**.{leaf}": torch.zeros_like}):
                torch.testing.assert_close(other.submit(model, asked()).result(), before)


def test_the_watch_of_a_second_thread_waits_for_the_first(model):
    waiting, entered, names = threading.Event(), threading.Event(), []

    def second() -> None:
        waiting.set()
        with watch(model, "norm") as tape:
            entered.set()
            model(asked())
        names.extend(tape.names)

    thread = threading.Thread(target=second)
    with watch(model, "blocks.*") as tape:
        with watch(model, "norm"):  # the same thread need not wait for itself
            thread.start()
            assert waiting.wait(10)
            assert not entered.wait(0.2)
        assert not entered.wait(0.1)
        model(asked())
    assert entered.wait(10)
    thread.join(10)
    assert names == ["norm"]
    assert len(tape.calls("blocks.0")) == 1
    assert not traces(model)


# Training and precision


@pytest.mark.parametrize("score", ["scaled", "additive"])
@pytest.mark.parametrize("names", [["**"], ["**.weights"], ["**.entropy", "**.heads"]], ids=str)
def test_in_training_watching_changes_no_bit_under_the_same_seed(names, score):
    torch.manual_seed(0)
    block, x = Block(WIDTH, H, dropout=0.3, score=Additive(E, H) if score == "additive" else score), asked()

    def run() -> Tensor:
        torch.manual_seed(5)
        return block.train()(x, mask=Mask(causal=True))

    before = run()
    with watch(block, *names) as tape:
        assert torch.equal(run(), before)
    assert torch.equal(run(), before)
    if "attn.weights" in tape:  # the weights before any was dropped
        torch.testing.assert_close(tape["attn.weights"].dense().sum(-1), torch.ones(B, H, T))


@pytest.mark.parametrize("score", ["scaled", "cosine", "additive"])
def test_a_bfloat16_model_is_watched_in_single_precision(score):
    torch.manual_seed(0)
    block = Block(64, 4, score=Additive(16, 4) if score == "additive" else score).bfloat16()
    x = torch.randn(B, 300, 64).bfloat16()
    before = block(x, mask=Mask(causal=True))
    names = ["attn.weights", "attn.entropy", "attn.received", "attn.q", "attn.heads"]
    with watch(block, *names) as tape:
        assert torch.equal(block(x, mask=Mask(causal=True)), before)
    assert tape["attn.q"].dtype == tape["attn.heads"].dtype == torch.bfloat16
    map = tape["attn.weights"]
    weights = map.dense()
    assert weights.dtype == tape["attn.entropy"].dtype == map.pool(4).dtype == torch.float32
    # The half-precision kernel's exponentials, and so its log-sum-exp, are good to 2^-14.
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, 4, 300), atol=1e-4, rtol=0)
    torch.testing.assert_close(map.pool(4).sum(-1), torch.ones(B, 4, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        tape["attn.entropy"], -torch.special.xlogy(weights, weights).sum(-1), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(tape["attn.received"], weights.sum(-2), atol=1e-4, rtol=1e-4)

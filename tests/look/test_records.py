"""What a tape records: only what is asked for, joined over the steps of a text, and never changed afterwards."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import clearhead.look.capture.tap as tap_file
from clearhead import build, watch
from clearhead.layers import Additive, Attention, Block, Cache, Mask
from clearhead.look import AttentionMap
from clearhead.look.maps.call import LazyCall
from support.two_blocks import LEAVES, WIDTH, B, E, H, T, inputs

# What is computed and kept


@pytest.fixture
def counted(monkeypatch) -> SimpleNamespace:
    """Counts what is computed besides the output of the model."""
    counts = SimpleNamespace(statistics=[], copied=0, scores=0)
    statistics, compact_copy, scores = tap_file.statistics, tap_file.compact_copy, LazyCall.scores

    def count_statistics(source, *want):
        counts.statistics.append(want)
        return statistics(source, *want)

    def count_copy(source):
        counts.copied += 1
        return compact_copy(source)

    def count_scores(self, rows, keys):
        counts.scores += 1
        return scores(self, rows, keys)

    monkeypatch.setattr(tap_file, "statistics", count_statistics)
    monkeypatch.setattr(tap_file, "compact_copy", count_copy)
    monkeypatch.setattr(LazyCall, "scores", count_scores)
    return counts


@pytest.mark.parametrize("leaf", ["q", "k", "v", "heads", "query"])
def test_tensors_that_exist_anyway_are_recorded_without_computation(model, counted, leaf):
    with watch(model, f"**.{leaf}"):
        model(inputs())
    assert (counted.statistics, counted.copied, counted.scores) == ([], 0, 0)


def test_only_the_watched_statistic_of_the_watched_layer_is_computed(model, counted):
    with watch(model, "blocks.1.attn.entropy") as tape:
        model(inputs())
    assert (counted.statistics, counted.copied, counted.scores) == ([("entropy",)], 0, 1)
    assert tape.names == ["blocks.1.attn.entropy"]
    assert {type(call) for calls in tape._calls.values() for call in calls} == {Tensor}


def test_several_statistics_of_a_layer_share_one_pass(model, counted):
    with watch(model, "blocks.0.attn.rms", "blocks.0.attn.entropy", "blocks.0.attn.received"):
        model(inputs())
    assert [set(want) for want in counted.statistics] == [{"rms", "entropy", "received"}]
    assert counted.scores == 1


def test_a_map_is_not_computed_before_it_is_used(model, counted):
    with watch(model, "blocks.0.attn.weights") as tape:
        model(inputs(40))
    assert (counted.statistics, counted.copied, counted.scores) == ([], 1, 0)
    tape["blocks.0.attn.weights"].row(3)
    assert counted.scores


@pytest.mark.parametrize("keep", ["all", "last"])
def test_keep_chooses_all_calls_or_the_last(model, keep):
    parts = inputs().split([4, 2, 1], dim=1)
    names = ["norm", "blocks.0.attn.weights", "blocks.0.attn.entropy", "blocks.0.attn.heads"]
    with watch(model, *names, keep=keep) as tape:
        out = [model(part) for part in parts]
    kept = slice(None) if keep == "all" else slice(-1, None)
    for call, expected in zip(tape.calls("norm"), out[kept], strict=True):
        assert torch.equal(call, expected)
    for name in names[1:]:
        assert [call.shape[2] for call in tape.calls(name)] == [4, 2, 1][kept]


def test_keep_can_be_a_function_of_each_record(model):
    """Of a map only the result of the function is stored."""
    x = inputs(40)
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


def test_results_of_keep_are_returned_call_by_call(model):
    with watch(model, "blocks.0.attn.weights", keep=lambda map: map.top(2)) as tape:
        model(inputs()), model(inputs())
    with pytest.raises(ValueError, match=r"recorded for 2 texts: take them apart with tape\.texts or tape\.calls"):
        tape["blocks.0.attn.weights"]
    (weights, keys), _ = tape.calls("blocks.0.attn.weights")
    assert weights.shape == keys.shape == (B, H, T, 2)


@pytest.mark.parametrize("name", ["norm", *(f"blocks.0.attn.{leaf}" for leaf in LEAVES)])
def test_calls_on_different_texts_do_not_join(model, name):
    with watch(model, name) as tape:
        model(inputs(3)), model(inputs(4))
    assert len(tape.calls(name)) == len(tape.texts(name)) == 2
    with pytest.raises(ValueError, match=f"'{name}' was recorded for 2 texts: take them apart"):
        tape[name]


# The same record for every kind of attention


class RecurrentDecoder(nn.Module):
    """A decoder that attends to its source once per step (Bahdanau et al. 2015)."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.cell = steps, nn.GRUCell(WIDTH, WIDTH)
        self.cross = Attention(WIDTH, 1, score=Additive(WIDTH))

    def forward(self, source: Tensor) -> Tensor:
        memory, state = self.cross.remember(source), source.new_zeros(source.shape[0], WIDTH)
        for _ in range(self.steps):
            state = self.cell(self.cross(state[:, None], memory, mask=Mask(lengths=[T, 4]))[:, 0], state)
        return state


def test_recurrent_cross_and_self_attention_give_the_same_kind_of_record(model):
    torch.manual_seed(0)
    decoder, x = RecurrentDecoder(5), inputs()
    with watch(decoder, "cross.weights", "cross.entropy", "cross.q", "cross.k") as steps:
        decoder(x)
    with watch(model, "**.weights", "**.entropy") as tape:
        model(x)
    maps = [steps["cross.weights"], *tape.match("**.weights").values()]
    assert [map.shape for map in maps] == [(B, 1, 5, T), *[(B, H, T, T)] * 3]
    for map, entropy in zip(maps, (steps["cross.entropy"], *tape.match("**.entropy").values()), strict=True):
        assert type(map) is AttentionMap
        torch.testing.assert_close(map.dense().sum(-1), torch.ones(map.shape[:3]))
        torch.testing.assert_close(map.entropy(), entropy)
    q, k = steps["cross.q"], steps.calls("cross.k")[0]
    scores = torch.tanh(q[:, :, :, None] + k[:, :, None]) @ decoder.cross.score.v[0]
    scores[1, :, :, 4:] = float("-inf")
    torch.testing.assert_close(maps[0].dense(), scores.softmax(-1).detach())


@torch.no_grad()
def test_a_decoding_loop_joins_into_one_map(model):
    block, x = model.blocks[0], inputs()
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


# Records are copies


class InPlace(nn.Module):
    """Overwrites the inputs and outputs of its modules, as code that saves memory does."""

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
    "a module as score": lambda: Attention(WIDTH, H, score=Additive(E, H)),
}


def records_of(tape, path: str = "") -> dict[str, Tensor]:
    """All records of an attention."""
    records = {leaf: tape[path + leaf] for leaf in LEAVES}
    return {leaf: x.dense() if isinstance(x, AttentionMap) else x.clone() for leaf, x in records.items()}


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("tokens", [T, 40])  # of few tokens the weights are stored, of many the queries and keys
def test_records_are_not_changed_by_later_writes(kind, tokens):
    torch.manual_seed(0)
    model, x = InPlace(ATTENTIONS[kind]()), inputs(tokens)
    y = model.up(x).detach()
    with watch(model.attn, *LEAVES) as reference:
        out = model.attn(y, mask=Mask(causal=True)).detach()
    with watch(model, "up", "attn", "attn.*") as tape:
        model(x)
    assert torch.equal(tape["up"], y)
    assert torch.equal(tape["attn"], out)
    for leaf, record in records_of(tape, "attn.").items():
        torch.testing.assert_close(record, records_of(reference)[leaf], msg=f"{leaf} was changed")


WRITTEN = {
    "lengths": (torch.tensor([40, 30]), lambda lengths: Mask(lengths=lengths)),
    "offset": (torch.tensor([0, 3]), lambda offset: Mask(causal=True, offset=offset)),
    "documents": (torch.arange(40)[None] // 7, lambda documents: Mask(documents=documents)),
    "allow": (torch.ones(40, 40, dtype=torch.bool).tril(), lambda allow: Mask(allow=allow)),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_a_map_keeps_its_own_copy_of_the_mask(what):
    """A loop that counts lengths or offsets up in place does not change the maps of earlier steps."""
    torch.manual_seed(0)
    (tensor, mask), attention, x = WRITTEN[what], Attention(WIDTH, H), inputs(40)
    with watch(attention, *LEAVES) as reference:
        attention(x, mask=mask(tensor))
    expected, mine = records_of(reference), tensor.clone()
    with watch(attention, *LEAVES) as tape:
        attention(x, mask=mask(mine))
    mine.fill_(1)
    for leaf, record in records_of(tape).items():
        torch.testing.assert_close(record, expected[leaf], msg=f"{leaf} was changed")


# Training and precision


@pytest.mark.parametrize("score", ["scaled", "additive"])
@pytest.mark.parametrize("names", [["**"], ["**.weights"], ["**.entropy", "**.heads"]], ids=str)
def test_in_training_watching_changes_no_bit_under_the_same_seed(names, score):
    torch.manual_seed(0)
    block, x = Block(WIDTH, H, dropout=0.3, score=Additive(E, H) if score == "additive" else score), inputs()

    def run() -> Tensor:
        torch.manual_seed(5)
        return block.train()(x, mask=Mask(causal=True))

    before = run()
    with watch(block, *names) as tape:
        assert torch.equal(run(), before)
    assert torch.equal(run(), before)
    if "attn.weights" in tape:  # the weights before dropout
        torch.testing.assert_close(tape["attn.weights"].dense().sum(-1), torch.ones(B, H, T))


@pytest.mark.parametrize("score", ["scaled", "cosine", "additive"])
def test_maps_and_statistics_of_a_bfloat16_model_are_in_float32(score):
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


def test_a_tape_gives_the_addresses_with_records_in_turn(model):
    with watch(model, "blocks.1.attn.entropy", "blocks.0") as tape:
        assert list(tape) == []
        model(inputs())
    assert list(tape) == ["blocks.0", "blocks.1.attn.entropy"]


def test_a_tape_is_shown_in_one_line():
    model = build("gpt", vocab=5, context=8, width=8, depth=4, heads=2).eval()
    with watch(model, "blocks.*.mlp") as tape:
        assert repr(tape) == "Tape(no records)"
        model(torch.tensor([[1, 2]]))
    assert repr(tape) == "Tape(4 with a record: 'blocks.0.mlp', ..., 'blocks.3.mlp')"

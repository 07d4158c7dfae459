"""Steps of one token with nothing between their operations: the very bits of the blocks, and only where it may."""

import pytest
import torch

import clearhead as ch
from clearhead.layers import Block, Positions, Swift, linear, norm

B, V = 3, 11
GPT2 = {"vocab": V, "width": 12, "depth": 2, "heads": 3, "context": 16}
LLAMA = {**GPT2, "positions": "rotary", "kv_heads": 1, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}
KINDS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": {**LLAMA, "window": 4, "head": 6},
    "llama, aligned": {**LLAMA, "head": 16},
    "qwen2": {**LLAMA, "bias": "qkv"},
    "norms after": {**GPT2, "order": "post"},
    "no norm, sinusoid": {**GPT2, "norm": "none", "positions": "sinusoid", "score": "dot"},
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(linear, "LARGE", 8)
    monkeypatch.setattr(norm, "FEW", 24)  # two rows of a batch are few, three are not


def model(kind: str = "llama"):
    torch.manual_seed(0)
    return ch.build("gpt", **KINDS[kind]).eval()


def written(made, rows: int, ragged: bool, swift: bool) -> torch.Tensor:
    ids = torch.randint(0, V, (rows, 12), generator=torch.Generator().manual_seed(1))
    state = made.start({}, rows, limit=12)
    assert state.swift is not None
    state.swift = state.swift if swift else None
    made.read(ids[:, :5], state, torch.arange(rows) + 2 if ragged else None)
    return torch.cat([made.step(ids[:, i : i + 1], state)[0] for i in range(5, 12)], dim=1)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("rows", [1, 2, B])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_very_bits_of_the_blocks(kind, rows, ragged):
    made = model(kind)
    quick, slow = written(made, rows, ragged, True), written(made, rows, ragged, False)
    assert torch.equal(quick, slow)


@pytest.mark.parametrize("where", ["attn.query", "attn.key", "attn.value", "attn.out", "mlp.down", "attn_norm"])
@torch.no_grad()
def test_what_is_not_a_number_stays_so(where):
    made = model()
    made.blocks[1].get_submodule(where).weight.fill_(torch.nan)
    assert bool(written(made, 1, False, True).isnan().all())


@torch.no_grad()
def test_hooks_and_taps_are_called():
    made, ids = model(), torch.zeros(1, 1, dtype=torch.long)
    state = made.start({}, 1, limit=3)
    made.step(ids, state)
    with ch.watch(made, "blocks.1.attn.weights", "blocks.0.mlp") as tape:
        made.step(ids, state)
    assert tape["blocks.1.attn.weights"].dense().shape == (1, 3, 1, 2)
    with ch.edit(made, {"blocks.0.attn.query": lambda x: x + 1.0}):
        assert not state.swift.unheard
    assert state.swift.unheard


@torch.no_grad()
def test_a_choice_that_is_not_known_is_left_to_the_blocks():
    blocks = [Block(12, 3)]
    assert Swift.of(blocks, Positions(), None) is None  # not joined
    blocks[0].eval().join()
    assert Swift.of(blocks, Positions(), None) is not None
    with torch.enable_grad():
        assert Swift.of(blocks, Positions(), None) is None
    for options in ({"positions": "alibi"}, {"score": "cosine"}, {"project": "k=v"}):
        assert ch.build("gpt", **{**GPT2, **options}).eval().start({}, 1, limit=3).swift is None
    assert ch.build("gpt", **GPT2).train().start({}, 1, limit=3).swift is None


@pytest.mark.parametrize("shape", [(12,), (1, 12), (2, 1, 12), (3, 12)])
def test_the_rms_norm_of_a_few_numbers(shape):
    torch.manual_seed(0)
    layer, x = norm.RMSNorm(12, eps=1e-3), torch.randn(shape) * 3 + 1
    torch.nn.init.normal_(layer.weight)
    expected = layer(x)  # with gradients: torch's own
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer.double()(x.double()), expected.double())
        assert layer(torch.full((1, 12), torch.nan).double()).isnan().all()


TRANSFORMER = {"vocab": V, "width": 12, "depth": 2, "heads": 3, "mlp": "silu", "readout_bias": True}
TRANSLATORS = {
    "base": TRANSFORMER,
    "norms before": {**TRANSFORMER, "order": "pre", "positions": "rotary", "kv_heads": 1, "norm": "rms"},
}


def translator(kind: str = "base"):
    torch.manual_seed(0)
    return ch.build("transformer", **TRANSLATORS[kind]).eval()


def translated(made, lengths: list[int], beams: int, swift: bool, copies: bool = False) -> torch.Tensor:
    chosen = torch.Generator().manual_seed(1)
    source = torch.randint(0, V, (len(lengths), 7), generator=chosen)
    ids = torch.randint(0, V, (len(lengths) * beams, 9), generator=chosen)
    state = made.start({"source": source, "lengths": torch.tensor(lengths)}, len(lengths), limit=9)
    assert (state.swift is None) == (0 in lengths)
    if not copies and state.swift is not None:
        state.swift, state.readout = Swift.of(made.decoder.blocks, made.decoder.positions, None), None
    state.swift = state.swift if swift else None
    if beams > 1:
        state.expand(beams)
    said = []
    for i in range(9):
        said.append(made.step(ids[:, i : i + 1], state)[0])
        if i == 4 and len(lengths) > 1:  # the first sentence is over, and the beams of the others change places
            rows = torch.arange(len(ids)).view(-1, beams).flip(1)[1:].flatten()
            state.reorder(rows)
            ids = ids[rows]
    return torch.cat([each.flatten() for each in said])


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("lengths", [[7], [7, 7], [7, 3, 5], [2, 0, 1]], ids=str)
@pytest.mark.parametrize("kind", TRANSLATORS)
@torch.no_grad()
def test_the_very_bits_of_blocks_that_look_at_a_source(kind, lengths, beams):
    made = translator(kind)
    assert torch.equal(translated(made, lengths, beams, True), translated(made, lengths, beams, False))


@pytest.mark.parametrize("beams", [1, 4])
@torch.no_grad()
def test_copies_of_weights_are_made_once_and_anew_when_those_change(beams, monkeypatch):
    made, lengths, packed = translator(), [7, 3, 5], []
    pack = linear._Packed
    monkeypatch.setattr(linear, "_Packed", lambda weight: packed.append(weight) or pack(weight))

    def both() -> torch.Tensor:
        quick = translated(made, lengths, beams, True, copies=True)
        torch.testing.assert_close(quick, translated(made, lengths, beams, False))
        return quick

    first = both()
    assert len(packed) == 2 * 6 + 1  # qkv, out, query, out, up and down of two blocks, and the readout
    assert torch.equal(both(), first)
    assert len(packed) == 2 * 6 + 1
    made.decoder.blocks[0].cross.out.weight.data[3, 5] += 1.0  # unseen by autograd
    made.decoder.blocks[1].attn.key.weight.mul_(2.0)  # a part of a product
    assert not torch.allclose(both(), first)
    assert len(packed) == 2 * 6 + 1 + 2


@pytest.mark.parametrize("where", ["attn.query", "cross.query", "cross.key", "cross.value", "cross.out", "cross_norm"])
@torch.no_grad()
def test_what_is_not_a_number_of_a_source_stays_so(where):
    made = translator()
    made.decoder.blocks[1].get_submodule(where).weight.fill_(torch.nan)
    source = torch.ones(1, 3, dtype=torch.long)
    logits, _ = made.step(source[:, :1], made.start({"source": source}, 1, limit=2))
    assert bool(logits.isnan().all())


@torch.no_grad()
def test_a_look_at_a_source_is_heard():
    made, source = translator(), torch.ones(1, 3, dtype=torch.long)
    state = made.start({"source": source}, 1, limit=2)
    with ch.watch(made, "decoder.blocks.1.cross.weights") as tape:
        assert not state.swift.unheard
        made.step(source[:, :1], state)
    assert tape["decoder.blocks.1.cross.weights"].dense().shape == (1, 3, 1, 3)
    with ch.watch(made, "decoder", "head") as tape:
        logits, _ = made.step(source[:, :1], state)
    assert torch.equal(tape["head"], logits)
    assert tape["decoder"].shape == (1, 1, 12)
    state = made.start({"source": source}, 1, limit=2)
    with torch.enable_grad():
        made.step(source[:, :1], state)[0].sum().backward()
    assert made.decoder.blocks[0].cross.query.weight.grad is not None

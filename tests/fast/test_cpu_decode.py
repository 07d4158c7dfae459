"""Decode steps on a CPU equal the model's own steps, and are used only where they are supported."""

import pytest
import torch

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.fast import CpuDecoder, products
from clearhead.fast.cpu_decode import BlockSteps

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
    monkeypatch.setattr(products, "LARGE", 8)
    monkeypatch.setattr(products, "SMALL_NORM", 24)  # two rows use the fast norm, three do not


def model(kind: str = "llama"):
    torch.manual_seed(0)
    return ch.build("gpt", **KINDS[kind]).eval()


def logits_of(made, rows: int, ragged: bool, fast: bool) -> torch.Tensor:
    ids = torch.randint(0, V, (rows, 12), generator=torch.Generator().manual_seed(1))
    state = made.start({}, rows, limit=12)
    made.read(ids[:, :5], state, torch.arange(rows) + 2 if ragged else None)
    decoder = CpuDecoder.of(made, state)
    assert decoder is not None
    return torch.cat(
        [decoder.step(ids[:, i : i + 1], state) if fast else made.step(ids[:, i : i + 1], state)[0]
         for i in range(5, 12)], dim=1,
    )  # fmt: skip


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("rows", [1, 2, B])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_cpu_step_equals_the_models_own_step(kind, rows, ragged):
    made = model(kind)
    torch.testing.assert_close(
        logits_of(made, rows, ragged, True), logits_of(made, rows, ragged, False), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("where", ["attn.query", "attn.key", "attn.value", "attn.out", "mlp.down", "attn_norm"])
@torch.no_grad()
def test_a_step_with_nan_is_left_to_the_model(where):
    made = model()
    made.blocks[1].get_submodule(where).weight.fill_(torch.nan)
    state = made.start({}, 1, limit=3)
    made.read(torch.zeros(1, 2, dtype=torch.long), state)
    decoder = CpuDecoder.of(made, state)
    if decoder is None:  # the cache has NaN already
        return
    at = state.kv.caches[0].furthest
    step = decoder.step(torch.zeros(1, 1, dtype=torch.long), state)
    assert step is None or bool(step.isnan().all())
    if step is None:
        assert state.kv.caches[0].furthest == at  # as if the step had not been tried
        assert bool(made.step(torch.zeros(1, 1, dtype=torch.long), state)[0].isnan().all())


@torch.no_grad()
def test_a_decoder_notices_hooks_and_taps():
    made = model()
    decoder = CpuDecoder.of(made, made.start({}, 1, limit=3))
    assert decoder.unhooked
    ids = torch.ones(1, 2, dtype=torch.long)
    with ch.watch(made, "blocks.1.attn.weights"):
        made(ids)
        assert not decoder.unhooked
    for address in ("blocks.0.attn.query", "blocks.0.mlp"):
        with ch.edit(made, {address: lambda x: x + 1.0}):
            made(ids)
            assert not decoder.unhooked
    assert decoder.unhooked


@torch.no_grad()
def test_a_model_with_unsupported_options_gets_no_cpu_decoder():
    def of(**options):
        made = ch.build("gpt", **{**GPT2, **options}).eval()
        return CpuDecoder.of(made, made.start({}, 1, limit=3))

    assert of() is not None
    for options in ({"positions": "alibi"}, {"score": "cosine"}, {"project": "k=v"}, {"depth": 0}):
        assert of(**options) is None, options
    made = model()
    state = made.start({}, 1, limit=3)
    with torch.enable_grad():
        assert CpuDecoder.of(made, state) is None
    assert CpuDecoder.of(made.train(), state) is None


@pytest.mark.parametrize("tie", [("attn.key", "attn.query"), ("mlp.gate", "mlp.up")], ids=str)
@torch.no_grad()
def test_a_search_sees_updates_in_place_of_a_weight_that_two_maps_share(tie):
    """Two maps of one input would be joined, and the weight would then be at two places of the joined weights."""
    torch.manual_seed(0)
    made = ch.build("gpt", **{**KINDS["llama"], "kv_heads": 3}).eval()
    one, other = (made.blocks[0].get_submodule(name) for name in tie)
    one.weight = other.weight
    plan = Plan(start=[[1, 2]], end=None, limit=8)

    def expected() -> list[int]:
        ids = [1, 2]
        for _ in range(8):
            ids.append(int(made(torch.tensor([ids]))[0, -1].argmax()))
        return ids[2:]

    first = list(search(made, {}, plan)[0][0].ids)
    assert first == expected()
    other.weight.copy_(torch.randn_like(other.weight) * 5)
    assert one.weight is other.weight
    assert expected() != first
    assert list(search(made, {}, plan)[0][0].ids) == expected()


TRANSFORMER = {"vocab": V, "width": 12, "depth": 2, "heads": 3, "mlp": "silu", "readout_bias": True}
TRANSLATORS = {
    "base": TRANSFORMER,
    "norms before": {**TRANSFORMER, "order": "pre", "positions": "rotary", "kv_heads": 1, "norm": "rms"},
}


def translator(kind: str = "base"):
    torch.manual_seed(0)
    return ch.build("transformer", **TRANSLATORS[kind]).eval()


def translated(made, lengths: list[int], beams: int, fast: bool, copies: bool = False) -> torch.Tensor:
    chosen = torch.Generator().manual_seed(1)
    source = torch.randint(0, V, (len(lengths), 7), generator=chosen)
    ids = torch.randint(0, V, (len(lengths) * beams, 9), generator=chosen)
    state = made.start({"source": source, "lengths": torch.tensor(lengths)}, len(lengths), limit=9)
    decoder = CpuDecoder.of(made, state)
    assert (decoder is None) == (0 in lengths)  # an empty source has no keys to attend to
    if decoder is not None and not copies:
        decoder = CpuDecoder(decoder.stack, BlockSteps.of(made.decoder.blocks, made.decoder.positions, None))
        decoder._head = None
    if beams > 1:
        state.expand(beams)
    logits = []
    for i in range(9):
        step = decoder.step if fast and decoder is not None else lambda *x: made.step(*x)[0]
        logits.append(step(ids[:, i : i + 1], state))
        if i == 4 and len(lengths) > 1:  # the first sentence has ended, and the beams of the others change places
            rows = torch.arange(len(ids)).view(-1, beams).flip(1)[1:].flatten()
            state.reorder(rows)
            ids = ids[rows]
    return torch.cat([each.flatten() for each in logits])


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("lengths", [[7], [7, 7], [7, 3, 5], [2, 0, 1]], ids=str)
@pytest.mark.parametrize("kind", TRANSLATORS)
@torch.no_grad()
def test_a_cpu_step_with_cross_attention_equals_the_models_own_step(kind, lengths, beams):
    made = translator(kind)
    fast, slow = (translated(made, lengths, beams, fast) for fast in (True, False))
    torch.testing.assert_close(fast, slow, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("beams", [1, 4])
@torch.no_grad()
def test_packed_weights_are_copied_once_and_again_when_they_change(beams, monkeypatch):
    made, lengths, packed = translator(), [7, 3, 5], []
    pack = products._Packed
    monkeypatch.setattr(products, "_Packed", lambda weight: packed.append(weight) or pack(weight))

    def both() -> torch.Tensor:
        fast = translated(made, lengths, beams, True, copies=True)
        torch.testing.assert_close(fast, translated(made, lengths, beams, False))
        return fast

    first = both()
    assert len(packed) == 2 * 6 + 1  # qkv, out, query, out, up and down of two blocks, and the output layer
    assert torch.equal(both(), first)
    assert len(packed) == 2 * 6 + 1
    made.decoder.blocks[0].cross.out.weight.data[3, 5] += 1.0  # unseen by autograd
    made.decoder.blocks[1].attn.key.weight.mul_(2.0)  # a part of a joined product
    assert not torch.allclose(both(), first)
    assert len(packed) == 2 * 6 + 1 + 2


@pytest.mark.parametrize("where", ["attn.query", "cross.query", "cross.key", "cross.value", "cross.out", "cross_norm"])
@torch.no_grad()
def test_nan_in_cross_attention_stays_nan(where):
    made = translator()
    made.decoder.blocks[1].get_submodule(where).weight.fill_(torch.nan)
    source = torch.ones(1, 3, dtype=torch.long)
    state = made.start({"source": source}, 1, limit=2)
    decoder = CpuDecoder.of(made, state)
    logits = None if decoder is None else decoder.step(source[:, :1], state)
    if logits is None:
        logits = made.step(source[:, :1], state)[0]
    assert bool(logits.isnan().all())


@pytest.mark.filterwarnings("ignore:nothing was recorded")
@torch.no_grad()
def test_a_decoder_notices_hooks_of_a_translator():
    made, source = translator(), torch.ones(1, 3, dtype=torch.long)
    state = made.start({"source": source}, 1, limit=2)
    decoder = CpuDecoder.of(made, state)
    with ch.watch(made, "decoder.blocks.1.cross.weights"):
        assert not decoder.unhooked
    with ch.watch(made, "decoder"):
        assert not decoder.unhooked
    with ch.watch(made, "encoder"):
        assert decoder.unhooked  # the steps do not run it
    with ch.watch(made, "head") as tape:
        logits = decoder.step(source[:, :1], state)
    assert torch.equal(tape["head"], logits)

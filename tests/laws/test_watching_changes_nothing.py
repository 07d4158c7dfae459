"""Watching changes no bit of an answer, leaves nothing behind, and hears only its own thread."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from drawn import normal
from torch import Tensor, nn
from tower import HEAD, HEADS, WIDTH, Tower

import clearhead
from clearhead.layers import POSITIONS, Additive, Attention, Cache, Mask

BLOCKS = {
    "pre": {},
    "post": {"order": "post", "norm": "rms", "mlp": "swiglu"},
    "cross": {"cross": True, "context": 8},
    "grouped": {"kv_heads": 1},
    "cosine": {"score": "cosine"},
    "unprojected": {"project": "none"},
}
MASKS = {
    "free": Mask(),
    "causal": Mask(causal=True),
    "window": Mask(causal=True, window=3),
    "lengths": Mask(lengths=[4, 0]),
    "documents": Mask(documents=torch.tensor([[0, 0, 1, 1, 1, 2, 2]])),
    "allow": Mask(allow=torch.arange(7) != 2),
}


def make(kind: str = "rotary", block: str = "pre", **more) -> Tower:
    return Tower(kind, **BLOCKS[block], **more)


def asked(block: str = "pre", tokens: int = 7, dtype=torch.float32) -> tuple[Tensor, Tensor | None]:
    context = normal(1, 2, 5, 8, dtype=dtype) if block == "cross" else None
    return normal(0, 2, tokens, WIDTH, dtype=dtype), context


def traces(model: nn.Module) -> list[object]:
    """All that a watch or an edit may have left."""
    hooks = [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    return hooks + [m.tap for m in model.modules() if isinstance(m, Attention) and m.tap is not None]


def heard(tape: clearhead.look.Tape, times: int = 1) -> bool:
    """Every address of a tower spoke, but for the list that holds its blocks, and its positions."""
    names = [name for name in tape.names if name not in ("blocks", "positions")]
    return all(name in tape and len(tape.calls(name)) == times for name in names)


def assert_same_bits(model: nn.Module, run) -> None:
    before = run()
    with clearhead.watch(model, "**") as tape:
        during = run()
    assert torch.equal(during, before)
    assert torch.equal(run(), before)
    assert heard(tape)
    assert not traces(model)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_and_masks(block, mask):
    model, (x, context) = make(block=block), asked(block)
    assert_same_bits(model, lambda: model(x, context, mask=MASKS[mask]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", POSITIONS)
def test_positions(kind, causal):
    model, (x, _) = make(kind), asked()
    assert_same_bits(model, lambda: model(x, mask=Mask(causal=causal)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("tokens", [1, 33, 150])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_and_precisions(causal, tokens, dtype):
    model, (x, _) = make("none").to(dtype), asked(tokens=tokens, dtype=dtype)
    assert_same_bits(model, lambda: model(x, mask=Mask(causal=causal)))


def test_a_score_of_its_own():
    model, (x, _) = Tower(depth=1, score=Additive(HEAD, HEADS)), asked()
    assert_same_bits(model, lambda: model(x, mask=Mask(causal=True)))


@pytest.mark.parametrize("block", ["pre", "post", "grouped"])
@pytest.mark.parametrize("mask", ["free", "causal", "window"])
def test_gradients_too(block, mask):
    model, (x, _) = make(block=block), asked(block)

    def run() -> Tensor:
        grads = torch.autograd.grad(model(x, mask=MASKS[mask]).square().sum(), list(model.parameters()))
        return torch.cat([grad.flatten() for grad in grads])

    assert_same_bits(model, run)


def test_dropout_falls_where_it_would_have_fallen():
    model, (x, _) = make(dropout=0.3).train(), asked()

    def run() -> Tensor:
        torch.manual_seed(7)
        return model(x, mask=Mask(causal=True))

    assert_same_bits(model, run)


@torch.no_grad()
def test_a_cached_decode():
    model, (x, _) = make(block="grouped"), asked()

    def run() -> Tensor:
        caches, out = model.caches(2, 7), []
        for chunk in x.split([3, 1, 1, 2], dim=1):
            t, lead = chunk.shape[1], caches[0]
            out.append(model(chunk, at=lead.positions(t), mask=lead.mask(), caches=caches))
            for cache in caches:
                cache.advance(t)
        return torch.cat(out, dim=1)

    before = run()
    with clearhead.watch(model, "blocks.*.attn.weights", "blocks.*.attn.v", "blocks.*") as tape:
        assert torch.equal(run(), before)
    assert torch.equal(torch.cat(tape.calls("blocks.1"), dim=1), before)
    assert not traces(model)


def test_an_exception_leaves_nothing_behind():
    model, (x, _) = make(), asked()
    before = model(x)
    loud = {"blocks.*.attn.heads": clearhead.look.silence([0]), "blocks.0.mlp": lambda y: 2 * y}
    for enter in (lambda: clearhead.watch(model, "**"), lambda: clearhead.edit(model, loud)):
        with pytest.raises(ZeroDivisionError), enter():
            raise ZeroDivisionError
        with pytest.raises(ValueError, match="context"), enter():
            model(x, x)
        assert not traces(model)
    with pytest.raises(KeyError), clearhead.watch(model, "blocks.*.attn.weights", "blocks.*.attn.wieghts"):
        pass
    with pytest.raises(KeyError), clearhead.edit(model, loud | {"blocks.7": lambda y: y}):
        pass
    with (
        pytest.raises(ValueError, match="measurement"),
        clearhead.edit(model, loud | {"blocks.*.attn.rms": abs}),
    ):
        pass
    assert not traces(model)
    assert torch.equal(model(x), before)


def test_edits_are_undone_and_nest():
    model, (x, _) = make(), asked()
    before = model(x)
    with clearhead.edit(model, {"blocks.*.attn.heads": clearhead.look.silence([0])}):
        silenced = model(x)
        with clearhead.watch(model, "**") as tape, clearhead.edit(model, {"blocks.0": lambda y: y + 1}):
            assert not torch.equal(model(x), silenced)
        assert torch.equal(model(x), silenced)
        assert not tape["blocks.0.attn.heads"][:, 0].any()
    assert not torch.equal(silenced, before)
    assert torch.equal(model(x), before)
    assert not traces(model)


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("leaf", ["q", "k", "v", "scores", "weights", "heads"])
def test_an_edit_that_changes_nothing_changes_nothing(leaf):
    model, (x, _) = make(), asked()
    before = model(x, mask=Mask(causal=True))
    with clearhead.edit(model, {f"**.{leaf}": lambda y: y.clone()}):
        during = model(x, mask=Mask(causal=True))
    if leaf in ("scores", "weights"):  # these are computed explicitly, equal to rounding
        torch.testing.assert_close(during, before)
    else:
        assert torch.equal(during, before)


def test_other_threads_are_neither_recorded_nor_edited():
    model, (x, _) = make(), asked()
    before = model(x)
    with ThreadPoolExecutor(1) as other:
        with clearhead.watch(model, "**") as tape:
            assert torch.equal(other.submit(model, x).result(), before)
            assert not any(name in tape for name in tape.names)
            model(x)
        assert heard(tape)
        change = {"**.heads": clearhead.look.silence([0, 1, 2]), "blocks.0.mlp": torch.zeros_like}
        with clearhead.edit(model, change):
            assert torch.equal(other.submit(model, x).result(), before)
            assert not torch.equal(model(x), before)
    assert not traces(model)


@torch.no_grad()
def test_records_belong_to_the_tape():
    """What happens to the model, its input and its answer afterwards does not move them."""
    model, (x, _) = make("relative"), asked()
    with clearhead.watch(model, "**") as tape:
        out = model(x, mask=Mask(causal=True))
    names = [f"blocks.{name}" for name in ("0", "0.attn.q", "0.attn.v", "0.attn.heads", "1", "1.attn.scores")]
    records, map = [tape[name].clone() for name in names], tape["blocks.0.attn.weights"].dense()
    for tensor in (x, out, *model.parameters()):
        tensor.zero_()
    model(x)
    for name, record in zip(names, records, strict=True):
        assert torch.equal(tape[name], record)
    assert torch.equal(tape["blocks.0.attn.weights"].dense(), map)


@torch.no_grad()
def test_records_of_a_cached_step_outlive_the_next():
    """A short row's padding is overwritten in the cache, and not on the tape."""
    attention, (x, _), cache = Attention(WIDTH, HEADS), asked(), Cache(2, HEADS, 8, HEAD)
    with clearhead.watch(attention, "k", "v", "weights") as tape:
        attention(x[:, :4], mask=cache.mask(), cache=cache)
        cache.advance(torch.tensor([1, 4]))
        before = [tape["k"].clone(), tape["v"].clone(), tape["weights"].dense()]
        attention(x[:, 4:], mask=cache.mask(), cache=cache)
    after = [tape.calls("k")[0], tape.calls("v")[0], tape.calls("weights")[0].dense()]
    assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True))

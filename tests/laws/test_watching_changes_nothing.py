"""Watching changes no bit of a model's output, leaves nothing behind, and records its own thread only."""

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


def inputs(block: str = "pre", tokens: int = 7, dtype=torch.float32) -> tuple[Tensor, Tensor | None]:
    context = normal(1, 2, 5, 8, dtype=dtype) if block == "cross" else None
    return normal(0, 2, tokens, WIDTH, dtype=dtype), context


def traces(model: nn.Module) -> list[object]:
    """All that a watch or an edit may have left behind."""
    hooks = [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    return hooks + [m.tap for m in model.modules() if isinstance(m, Attention) and m.tap is not None]


def recorded(tape: clearhead.look.Tape, times: int = 1) -> bool:
    """Whether every address has a record, except for the list of blocks and the positions, which are not called."""
    names = [name for name in tape.names if name not in ("blocks", "positions")]
    return all(name in tape and len(tape.calls(name)) == times for name in names)


def assert_same_bits(model: nn.Module, run) -> None:
    before = run()
    with clearhead.watch(model, "**") as tape:
        during = run()
    assert torch.equal(during, before)
    assert torch.equal(run(), before)
    assert recorded(tape)
    assert not traces(model)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("block", BLOCKS)
def test_any_block_under_any_mask(block, mask):
    model, (x, context) = make(block=block), inputs(block)
    assert_same_bits(model, lambda: model(x, context, mask=MASKS[mask]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", POSITIONS)
def test_any_positions(kind, causal):
    model, (x, _) = make(kind), inputs()
    assert_same_bits(model, lambda: model(x, mask=Mask(causal=causal)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("tokens", [1, 33, 150])
@pytest.mark.parametrize("causal", [False, True])
def test_any_length_and_dtype(causal, tokens, dtype):
    model, (x, _) = make("none").to(dtype), inputs(tokens=tokens, dtype=dtype)
    assert_same_bits(model, lambda: model(x, mask=Mask(causal=causal)))


def test_a_module_as_score():
    model, (x, _) = Tower(depth=1, score=Additive(HEAD, HEADS)), inputs()
    assert_same_bits(model, lambda: model(x, mask=Mask(causal=True)))


@pytest.mark.parametrize("block", ["pre", "post", "grouped"])
@pytest.mark.parametrize("mask", ["free", "causal", "window"])
def test_gradients_are_the_same_too(block, mask):
    model, (x, _) = make(block=block), inputs(block)

    def run() -> Tensor:
        grads = torch.autograd.grad(model(x, mask=MASKS[mask]).square().sum(), list(model.parameters()))
        return torch.cat([grad.flatten() for grad in grads])

    assert_same_bits(model, run)


def test_dropout_drops_the_same_elements():
    model, (x, _) = make(dropout=0.3).train(), inputs()

    def run() -> Tensor:
        torch.manual_seed(7)
        return model(x, mask=Mask(causal=True))

    assert_same_bits(model, run)


class LastState(nn.Module):
    """A recurrent layer, whose output is a tuple, and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0][:, -1]


def foreign(kind: str) -> nn.Module:
    """A model with no module of this library."""
    torch.manual_seed(0)
    layer = {"batch_first": True, "dim_feedforward": 11, "dropout": 0.3}
    return {
        "transformer": lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, **layer),
        "recurrent": LastState,
        "convolutions": lambda: nn.Sequential(
            nn.Conv1d(7, 4, 3), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.3)
        ),
    }[kind]()  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["transformer", "recurrent", "convolutions"])
def test_any_torch_module(kind, training):
    model, (x, _) = foreign(kind).train(training), inputs()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def run() -> Tensor:
        model.load_state_dict(buffers, strict=False)  # the running means of a BatchNorm
        torch.manual_seed(7)
        return model(x)

    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            before = run()
            with clearhead.watch(model, "**") as tape:
                assert torch.equal(run(), before)
        assert any(name in tape for name in tape.names)
        assert not traces(model)


@torch.no_grad()
def test_decoding_with_a_cache():
    model, (x, _) = make(block="grouped"), inputs()

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
    model, (x, _) = make(), inputs()
    before = model(x)
    changes = {"blocks.*.attn.heads": clearhead.look.silence([0]), "blocks.0.mlp": lambda y: 2 * y}
    for enter in (lambda: clearhead.watch(model, "**"), lambda: clearhead.edit(model, changes)):
        with pytest.raises(ZeroDivisionError), enter():
            raise ZeroDivisionError
        with pytest.raises(ValueError, match="context"), enter():
            model(x, x)
        assert not traces(model)
    with pytest.raises(KeyError), clearhead.watch(model, "blocks.*.attn.weights", "blocks.*.attn.wieghts"):
        pass
    with pytest.raises(KeyError), clearhead.edit(model, changes | {"blocks.7": lambda y: y}):
        pass
    with (
        pytest.raises(ValueError, match="measurement"),
        clearhead.edit(model, changes | {"blocks.*.attn.rms": abs}),
    ):
        pass
    assert not traces(model)
    assert torch.equal(model(x), before)


def test_edits_are_undone_and_nest():
    model, (x, _) = make(), inputs()
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
def test_an_edit_that_returns_its_input_changes_nothing(leaf):
    model, (x, _) = make(), inputs()
    before = model(x, mask=Mask(causal=True))
    with clearhead.edit(model, {f"**.{leaf}": lambda y: y.clone()}):
        during = model(x, mask=Mask(causal=True))
    if leaf in ("scores", "weights"):  # computed explicitly, equal up to rounding
        torch.testing.assert_close(during, before)
    else:
        assert torch.equal(during, before)


def test_other_threads_are_neither_recorded_nor_edited():
    model, (x, _) = make(), inputs()
    before = model(x)
    with ThreadPoolExecutor(1) as other:
        with clearhead.watch(model, "**") as tape:
            assert torch.equal(other.submit(model, x).result(), before)
            assert not any(name in tape for name in tape.names)
            model(x)
        assert recorded(tape)
        change = {"**.heads": clearhead.look.silence([0, 1, 2]), "blocks.0.mlp": torch.zeros_like}
        with clearhead.edit(model, change):
            assert torch.equal(other.submit(model, x).result(), before)
            assert not torch.equal(model(x), before)
    assert not traces(model)


@torch.no_grad()
def test_records_do_not_change_with_the_model():
    """Nor with its inputs and outputs: they are copies."""
    model, (x, _) = make("relative"), inputs()
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
def test_records_of_a_cached_step_do_not_change_with_the_next():
    """The padding of a short row is overwritten in the cache, and not on the tape."""
    attention, (x, _), cache = Attention(WIDTH, HEADS), inputs(), Cache(2, HEADS, 8, HEAD)
    with clearhead.watch(attention, "k", "v", "weights") as tape:
        attention(x[:, :4], mask=cache.mask(), cache=cache)
        cache.advance(torch.tensor([1, 4]))
        before = [tape["k"].clone(), tape["v"].clone(), tape["weights"].dense()]
        attention(x[:, 4:], mask=cache.mask(), cache=cache)
    after = [tape.calls("k")[0], tape.calls("v")[0], tape.calls("weights")[0].dense()]
    assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True))

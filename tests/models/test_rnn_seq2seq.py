"""The recurrent translator against an implementation by loops over tokens and sentences; and its decoding steps."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.decode import Plan, forced, search
from clearhead.layers.recurrent import gru_step, lstm_step
from clearhead.models.rnn_seq2seq import FEEDS

B, S, T, V, W = 3, 6, 5, 11, 13  # rows, source tokens, target tokens, source vocabulary, target vocabulary
SIZES = {"vocab": V, "target_vocab": W, "width": 7, "hidden": 10, "dropout": 0.0}
ASKED = itertools.product(("additive", "dot", "bilinear"), ("input", "readout"))
WAYS = [("none", "start"), ("none", "input"), ("none", "readout"), *ASKED]
ways = pytest.mark.parametrize(("attention", "feed"), WAYS)
cells = pytest.mark.parametrize(("cell", "depth"), [("gru", 1), ("lstm", 1), ("gru", 2), ("lstm", 3)])
attentions = pytest.mark.parametrize("attention", list(FEEDS))


def build(**words) -> nn.Module:
    torch.manual_seed(0)
    model = ch.build("rnn-seq2seq", **SIZES | words).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p)
    return model


def batch(rows: int = B) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([4, S, 1, 5, 3])[:rows]
    return {
        "ids": torch.randint(0, W, (rows, T), generator=generator),
        "source": torch.randint(0, V, (rows, S), generator=generator),
        "lengths": lengths,
    }


Weights = dict[str, Tensor]


def cell_by_hand(p: Weights, at: str, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step of one layer (`at` is its name with {} for the kind of its weights) for one sentence."""
    given = p[at.format("weight_ih")] @ x + p[at.format("bias_ih")]
    held = p[at.format("weight_hh")] @ state[0] + p[at.format("bias_hh")]
    if len(state) == 1:
        (xr, xz, xn), (hr, hz, hn) = given.chunk(3), held.chunk(3)
        reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        return ((1 - update) * torch.tanh(xn + reset * hn) + update * state[0],)
    i, f, g, o = (given + held).chunk(4)
    memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def encode_by_hand(p: Weights, c, source: Tensor) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
    """The memory of a sentence, and every layer's last state."""
    sides = 1 + c.bidirectional
    x = [p["encoder.embed.table"][i] * c.width**0.5 for i in source]
    last = []
    for layer in range(c.depth):
        outs, ends = [], []
        for side in range(sides):
            state = (torch.zeros(c.hidden // sides, dtype=x[0].dtype),) * (1 if c.cell == "gru" else 2)
            at = f"encoder.blocks.0.cell.{{}}_l{layer}" + ("_reverse" if side else "")
            out = []
            for token in reversed(x) if side else x:
                state = cell_by_hand(p, at, token, state)
                out.append(state[0])
            outs.append(out[::-1] if side else out)
            ends.append(state)
        x = [torch.cat(token) for token in zip(*outs, strict=True)]
        last.append(tuple(torch.cat(part) for part in zip(*ends, strict=True)))
    return x, last


def attend_by_hand(p: Weights, c, state: Tensor, memory: list[Tensor]) -> tuple[Tensor, Tensor]:
    at = "decoder.blocks.0.cross"
    if c.attention == "additive":
        query, v = p[f"{at}.query.weight"] @ state, p[f"{at}.score.v"][0]
        scores = [v @ torch.tanh(query + p[f"{at}.key.weight"] @ h) for h in memory]
    elif c.attention == "bilinear":
        scores = [state @ p[f"{at}.score.weight"][0] @ h for h in memory]
    else:
        scores = [state @ h for h in memory]
    raised = torch.stack(scores).exp()
    weights = raised / raised.sum()
    return sum(w * h for w, h in zip(weights, memory, strict=True)), weights


def by_hand(p: Weights, c, ids: Tensor, source: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits (t, v) of one sentence without padding, and the weights (t, s)."""
    feed = c.feed or FEEDS[c.attention]
    memory, states = encode_by_hand(p, c, source)
    vector, logits, maps = states[-1][0], [], []
    for token in ids:
        e = p["decoder.embed.table"][token] * c.width**0.5
        context = vector
        if c.attention != "none" and feed == "input":
            context, weights = attend_by_hand(p, c, states[-1][0], memory)
        x = torch.cat([e, context]) if feed == "input" else e
        for layer in range(c.depth):
            states[layer] = cell_by_hand(p, f"decoder.blocks.0.cell.cell.{{}}_l{layer}", x, states[layer])
            x = states[layer][0]
        if c.attention != "none" and feed == "readout":
            context, weights = attend_by_hand(p, c, x, memory)
        seen = {"start": [x], "readout": [x, context], "input": [x, context, e]}[feed]
        out = torch.tanh(p["decoder.readout.weight"] @ torch.cat(seen) + p["decoder.readout.bias"])
        logits.append(p["head.weight"] @ out)
        if c.attention != "none":
            maps.append(weights)
    return torch.stack(logits), torch.stack(maps) if maps else None


def same_as_by_hand(model: nn.Module) -> None:
    x = batch()
    named = dict(model.named_parameters(remove_duplicate=False))
    copies = {id(q): q.detach().clone().requires_grad_() for q in named.values()}
    p = {name: copies[id(q)] for name, q in named.items()}
    p.setdefault("decoder.embed.table", p["encoder.embed.table"])
    theirs, theirs_maps = zip(
        *(by_hand(p, model.config, x["ids"][i], x["source"][i, :n]) for i, n in enumerate(x["lengths"])), strict=True
    )
    theirs = torch.stack(theirs)
    names = ["decoder.blocks.0.cross.weights"] if model.config.attention != "none" else ["decoder"]
    with ch.watch(model, *names) as tape:
        ours = model(**x)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)
    if model.config.attention != "none":
        maps = tape[names[0]].dense()
        assert maps.shape == (B, 1, T, S)
        for i, n in enumerate(x["lengths"]):
            torch.testing.assert_close(maps[i, 0, :, :n], theirs_maps[i].detach(), rtol=0.0, atol=1e-12)
            assert bool((maps[i, 0, :, n:] == 0.0).all())
        torch.testing.assert_close(maps.sum(-1), torch.ones(B, 1, T, dtype=maps.dtype))
    noise = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(2))
    (ours * noise).sum().backward()
    (theirs * noise).sum().backward()
    for name, q in named.items():
        assert q.grad is not None, name
        torch.testing.assert_close(q.grad, copies[id(q)].grad, rtol=0.0, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
        assert float(q.grad.abs().max()) > 1e-6, name


@ways
@cells
def test_logits_attention_and_gradients_equal_those_of_loops(attention, feed, cell, depth):
    same_as_by_hand(build(attention=attention, feed=feed, cell=cell, depth=depth))


@attentions
@pytest.mark.parametrize("words", [{"bidirectional": False}, {"tied": False}, {"target_vocab": None, "vocab": W}],
                         ids=["one direction", "untied", "one table"])  # fmt: skip
def test_other_options_equal_those_of_loops(attention, words):
    same_as_by_hand(build(attention=attention, depth=2, cell="lstm", **words))


@ways
@cells
def test_padding_and_other_rows_do_not_change_the_logits(attention, feed, cell, depth):
    model, x = build(attention=attention, feed=feed, cell=cell, depth=depth), batch()
    together = model(**x)
    padded = torch.cat([x["source"], torch.full((B, 3), 4)], dim=1)
    for i, n in enumerate(x["lengths"]):
        padded[i, n:] = (padded[i, n:] + 1 + i) % V
    torch.testing.assert_close(model(x["ids"], source=padded, lengths=x["lengths"]), together, rtol=0.0, atol=1e-13)
    for i, n in enumerate(x["lengths"]):
        alone = model(x["ids"][i : i + 1], source=x["source"][i : i + 1, :n])
        torch.testing.assert_close(alone[0], together[i], rtol=0.0, atol=1e-13)


def steps(model: nn.Module, x: dict[str, Tensor], sizes: list[int]) -> Tensor:
    state, out = model.start({k: x[k] for k in ("source", "lengths")}, len(x["source"]), limit=T), []
    for ids in x["ids"].split(sizes, dim=1):
        logits, state = model.step(ids, state)
        out.append(logits)
    assert state.at.tolist() == [T] * B
    return torch.cat(out, dim=1)


@ways
@cells
@torch.no_grad()
def test_decoding_steps_equal_the_forward_pass(attention, feed, cell, depth):
    model, x = build(attention=attention, feed=feed, cell=cell, depth=depth), batch()
    expected = model(**x)
    for sizes in ([1] * T, [2, 1, 2], [T]):
        torch.testing.assert_close(steps(model, x, sizes), expected, rtol=0.0, atol=1e-12)


@ways
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_states_can_be_expanded_and_reordered(attention, feed, cell):
    model, x = build(attention=attention, feed=feed, cell=cell, depth=2), batch()
    inputs = {k: x[k] for k in ("source", "lengths")}

    def expected_logits(rows: list[int], texts: Tensor) -> Tensor:
        """The logits after these texts, each with the source of its row."""
        return model(texts, **{k: v[rows] for k, v in inputs.items()})[:, -1:]

    generator = torch.Generator().manual_seed(3)
    state = model.start(inputs, len(inputs["source"]), limit=9)
    _, state = model.step(x["ids"][:, :2], state)
    state.expand(2)
    assert state.rows == 2 * B
    rows, texts = [0, 0, 1, 1, 2, 2], x["ids"][:, :2].repeat_interleave(2, dim=0)
    # Beams change places within their sources; a source leaves; sources change places.
    for index in ([1, 0, 3, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 0, 5, 4], [2, 3, 1, 1]):
        token = torch.randint(0, W, (len(rows), 1), generator=generator)
        texts = torch.cat([texts, token], dim=1)
        logits, state = model.step(token, state)
        torch.testing.assert_close(logits, expected_logits(rows, texts), rtol=0.0, atol=1e-12)
        state.reorder(torch.tensor(index))
        rows, texts = [rows[i] for i in index], texts[index]
        assert state.rows == len(index)
        assert state.at.tolist() == [texts.shape[1]] * len(index)


@attentions
@torch.no_grad()
def test_the_log_probability_of_a_search_is_that_of_forced_decoding(attention):
    model, x = build(attention=attention), batch(5)
    inputs = {k: x[k] for k in ("source", "lengths")}
    for beams in (1, 3):
        for row, (found, *_) in enumerate(search(model, inputs, Plan(start=1, end=2, beams=beams, limit=6))):
            ids = torch.tensor([[1, *found.ids]])
            targets = torch.tensor([[*found.ids, 2 if found.finished else -100]])
            alone = {k: v[row : row + 1] for k, v in inputs.items()}
            assert abs(float(forced(model, alone, ids, targets).sum()) - found.logprob) < 1e-5


def test_watching_decoding_steps_gives_the_attention_of_the_forward_pass():
    for attention, feed in (("additive", "input"), ("additive", "readout"), ("bilinear", "readout")):
        model, x = build(attention=attention, feed=feed), batch()
        address = "decoder.blocks.0.cross.weights"
        with ch.watch(model, address, "decoder.blocks.0.cell", "encoder.blocks.0") as at_once:
            model(**x)
        with torch.no_grad(), ch.watch(model, address, "decoder.blocks.0.cell") as stepped:
            steps(model, x, [1] * T)
        torch.testing.assert_close(stepped[address].dense(), at_once[address].dense(), rtol=0.0, atol=1e-12)
        assert at_once["decoder.blocks.0.cell"].shape == (B, T, 10)
        torch.testing.assert_close(stepped["decoder.blocks.0.cell"], at_once["decoder.blocks.0.cell"])
        assert at_once["encoder.blocks.0"].shape == (B, S, 10)


def test_editing_the_attention_changes_the_logits():
    model, x = build(), batch()
    before = model(**x)
    with (
        pytest.warns(ch.look.Notice, match="explicitly"),
        ch.edit(model, {"decoder.blocks.0.cross.weights": torch.zeros_like}),
    ):
        edited = model(**x)
    assert not torch.allclose(edited, before)


@attentions
def test_it_overfits_one_batch(attention):
    torch.manual_seed(0)
    model = ch.build("rnn-seq2seq", **SIZES | {"hidden": 24, "width": 12, "attention": attention})
    x, targets = batch(), (batch()["ids"] + 3) % W
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(**x).flatten(0, 1), targets.flatten())
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.05


@ways
def test_dropout_acts_in_training_only(attention, feed):
    words = {"dropout": 0.5, "depth": 2, "attention": attention, "feed": feed}
    model, x = ch.build("rnn-seq2seq", **SIZES | words).train(), batch()
    assert not torch.equal(model(**x), model(**x))
    model.eval()
    assert torch.equal(model(**x), model(**x))


def test_dropout_between_layers_acts_at_every_step():
    """The output between layers is dropped anew at each step, by about the configured share."""
    model = ch.build("rnn-seq2seq", **SIZES | {"dropout": 0.5, "depth": 2, "hidden": 200}).train()
    x, seen = batch(), []
    real = F.dropout

    def counted(x: Tensor, *args, **words) -> Tensor:
        y = real(x, *args, **words)
        seen.append((tuple(x.shape), float((y == 0).float().mean())))
        return y

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "dropout", counted)
        model(**x)
    between = [share for shape, share in seen if shape == (B, 200)]
    assert len(between) == T
    assert all(0.4 < share < 0.6 for share in between)


def test_wrong_lengths_and_options_raise():
    model, x = build(), batch()
    with pytest.raises(ValueError, match="lengths from 0 to 6: expected 1 to 6"):
        model(x["ids"], source=x["source"], lengths=torch.tensor([0, S, 1]))
    with pytest.raises(ValueError, match="lengths from 1 to 7: expected 1 to 6"):
        model(x["ids"], source=x["source"], lengths=torch.tensor([1, 7, 1]))
    for words, message in (
        ({"hidden": 9}, "hidden=9 does not divide into two directions"),
        ({"attention": "dot", "feed": "start"}, "feed='start' uses no attention"),
        ({"depth": 0}, "depth=0: expected 1 or more"),
        ({"dropout": 1.0}, "dropout=1.0: expected a share"),
        ({"cell": "gur"}, "the nearest is gru"),
        ({"attention": "aditive"}, "the nearest is additive"),
    ):
        with pytest.raises(ValueError, match=message):
            ch.build("rnn-seq2seq", **SIZES | words)
    assert build(hidden=9, bidirectional=False)(**x).shape == (B, T, W)


@attentions
def test_bfloat16_and_autocast_are_close_to_float32(attention):
    model, x = build(attention=attention, cell="lstm").float(), batch()
    exact = model(**x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(**x)
    half = model.bfloat16()(**x)
    assert half.dtype == torch.bfloat16
    for near in (mixed, half):
        torch.testing.assert_close(near.float(), exact, rtol=0.0, atol=0.05 * float(exact.detach().abs().max()))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("step", [gru_step, lstm_step])
def test_the_fused_cuda_step_equals_the_one_in_torch(step: Callable):
    generator = torch.Generator().manual_seed(0)
    gates = 3 if step is gru_step else 4
    drawn = [torch.randn(B, n * 10, generator=generator, dtype=torch.float64) for n in (gates, gates, 1)]
    answers = []
    for device in ("cpu", "cuda"):
        given = [x.detach().to(device).requires_grad_() for x in drawn]
        out = step(*given)
        out = out if step is gru_step else torch.stack(out)
        (out * torch.arange(10.0, device=device)).sum().backward()
        answers.append([out.detach().cpu(), *(x.grad.cpu() for x in given)])
    for ours, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@attentions
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_gpu_gives_the_same_logits(attention, cell):
    model, x = build(attention=attention, cell=cell, depth=2), batch()
    expected = model(**x)
    model = model.cuda()
    lengths = x.pop("lengths")
    x = {k: v.cuda() for k, v in x.items()}
    for where in (lengths, lengths.cuda()):  # on the host or on the device
        torch.testing.assert_close(model(**x, lengths=where).cpu(), expected, rtol=0.0, atol=1e-10)

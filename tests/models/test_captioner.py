"""The captioner: its decoders against the papers' formulas and torch.nn, its encoder, and what training sees of it."""

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.models.captioner import Trace, sample_places

B, T, V, D, N = 2, 5, 11, 8, 6  # rows, tokens, vocabulary, width, width of the state
ENCODER = {"name": "resnet", "width": 4, "depths": [1, 1], "stem": "small"}


def build(**options):
    torch.manual_seed(0)
    model = ch.build("captioner", vocab=V, width=D, encoder=ENCODER, dropout=0.0, context=16, **options).double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.eval()


def given():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, V, (B, T), generator=generator)
    return ids, torch.randn(B, 3, 12, 16, generator=generator, dtype=torch.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def written_out(model, ids, images, draws=None):
    """Eq. 1 to 7 and 13 of Xu et al. 2015 in numpy, one row and one step at a time: logits, weights."""
    w = {name: p.detach().numpy() for name, p in model.state_dict().items()}
    hidden = w["decoder.blocks.0.cross.query.weight"].shape[0]
    kind = model.config.attention
    with torch.no_grad():
        memory = model.look(images).numpy()
    table = w["head.weight"]
    logits, alphas = np.zeros((*ids.shape, V)), []
    for b, a in enumerate(memory):
        first = np.tanh(w["decoder.first.weight"] @ a.mean(0) + w["decoder.first.bias"])
        h, c = first[:hidden], first[hidden:]
        for t, y in enumerate(ids[b].tolist()):
            embedded = table[y] * np.sqrt(D)
            keys = a @ w["decoder.blocks.0.cross.key.weight"].T + w["decoder.blocks.0.cross.key.bias"]
            query = w["decoder.blocks.0.cross.query.weight"] @ h + w["decoder.blocks.0.cross.query.bias"]
            e = np.tanh(keys + query) @ w["decoder.blocks.0.cross.score.v"][0]
            alpha = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
            alphas.append(alpha)
            if kind == "soft":
                z = alpha @ a
            else:
                z = a[alpha.argmax() if draws is None else int((np.cumsum(alpha) <= draws[b, t]).sum())]
            gate = w["decoder.blocks.0.gate.weight"][0] @ h + w["decoder.blocks.0.gate.bias"][0]
            z = sigmoid(gate) * z
            cell = "decoder.blocks.0.cell.cell."
            gates = w[cell + "weight_ih_l0"] @ np.concatenate([embedded, z]) + w[cell + "bias_ih_l0"]
            gates = gates + w[cell + "weight_hh_l0"] @ h + w[cell + "bias_hh_l0"]
            i, f, g, o = np.split(gates, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            deep = w["decoder.readout.weight"] @ np.concatenate([h, z]) + w["decoder.readout.bias"]
            logits[b, t] = table @ (embedded + deep)
    return logits, np.array(alphas).reshape(*ids.shape, -1)


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_the_recurrent_decoder_is_that_of_show_attend_and_tell(attention):
    model, (ids, images) = build(decoder="rnn", hidden=N, attention=attention), given()
    logits, alphas = written_out(model, ids, images)
    with torch.no_grad(), ch.watch(model, "decoder.blocks.0.cross.weights") as tape:
        ours = model(ids, images=images)
    np.testing.assert_allclose(ours.numpy(), logits, rtol=0, atol=1e-10)
    weights = tape["decoder.blocks.0.cross.weights"].dense()[:, 0]
    np.testing.assert_allclose(weights.numpy(), alphas, rtol=0, atol=1e-6)


def test_hard_attention_samples_the_given_places_and_traces_them():
    model, (ids, images) = build(decoder="rnn", hidden=N, attention="hard"), given()
    draws = torch.rand(B, T, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits, alphas = written_out(model, ids, images, draws.numpy())
    trace = Trace([], [])
    with torch.no_grad():
        ours = model.head(model.states(ids, images=images, draws=draws, trace=trace))
    np.testing.assert_allclose(ours.numpy(), logits, rtol=0, atol=1e-10)
    np.testing.assert_allclose(torch.stack(trace.weights, 1).numpy(), alphas, rtol=0, atol=1e-10)
    places = torch.stack(trace.places, 1)
    assert len(places.unique()) > 1
    assert torch.equal(places, torch.from_numpy((alphas.cumsum(-1) <= draws.numpy()[..., None]).sum(-1)))


def test_a_negative_draw_takes_the_weighted_sum():
    hard, soft = (build(decoder="rnn", hidden=N, attention=kind) for kind in ("hard", "soft"))
    soft.load_state_dict(hard.state_dict())
    ids, images = given()
    draws = torch.full((B, T), -1.0)
    draws[1] = 0.3
    ours, expected = hard.states(ids, images=images, draws=draws), soft.states(ids, images=images)
    torch.testing.assert_close(ours[0], expected[0])
    assert not torch.allclose(ours[1], expected[1])


def test_places_are_sampled_in_proportion_to_their_weights():
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3]).expand(10_000, 4)
    draws = (torch.arange(10_000) + 0.5) / 10_000
    assert torch.bincount(sample_places(weights, draws), minlength=4).tolist() == [1000, 0, 6000, 3000]


def test_without_attention_the_decoder_sees_only_the_mean_of_the_places():
    model, (ids, images) = build(decoder="rnn", hidden=N, attention="none"), given()
    memory = model.look(images)
    model.look = lambda _: memory.mean(1, keepdim=True).expand(-1, 3, -1)  # other places with the same mean
    moved = model(ids, images=images)
    del model.look
    torch.testing.assert_close(model(ids, images=images), moved)
    cell = nn.LSTM(2 * D, N, batch_first=True).double()
    cell.load_state_dict(model.decoder.blocks[0].cell.cell.state_dict())
    mean, x = memory.mean(1), model.decoder.embed(ids)
    first = torch.tanh(model.decoder.first(mean))[None].chunk(2, dim=-1)
    out, _ = cell(torch.cat([x, mean[:, None].expand(-1, T, -1)], -1), tuple(part.contiguous() for part in first))
    deep = x + model.decoder.readout(torch.cat([out, mean[:, None].expand(-1, T, -1)], -1))
    torch.testing.assert_close(moved, deep @ model.head.weight.T)


def test_the_transformer_decoder_equals_torchs():
    model, (ids, images) = build(decoder="transformer", depth=2, heads=2, hidden=13), given()
    layer = nn.TransformerDecoderLayer(D, 2, 13, 0.0, "gelu", batch_first=True, norm_first=True)
    theirs = nn.TransformerDecoder(layer, 2, nn.LayerNorm(D)).double().eval()
    names = {"attn": ("self_attn", "norm1"), "cross": ("multihead_attn", "norm2")}
    with torch.no_grad():
        for ours, one in zip(model.decoder.blocks, theirs.layers, strict=True):
            for kind, (attention, norm) in names.items():
                mine, its = getattr(ours, kind), getattr(one, attention)
                its.in_proj_weight.copy_(torch.cat([mine.query.weight, mine.key.weight, mine.value.weight]))
                its.in_proj_bias.copy_(torch.cat([mine.query.bias, mine.key.bias, mine.value.bias]))
                its.out_proj.load_state_dict(mine.out.state_dict())
                getattr(one, norm).load_state_dict(getattr(ours, f"{kind}_norm").state_dict())
            one.norm3.load_state_dict(ours.mlp_norm.state_dict())
            one.linear1.load_state_dict(ours.mlp.up.state_dict())
            one.linear2.load_state_dict(ours.mlp.down.state_dict())
        theirs.norm.load_state_dict(model.decoder.norm.state_dict())
        x = model.decoder.positions.add(model.decoder.embed(ids))
        mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
        expected = theirs(x, model.look(images), tgt_mask=mask) @ model.head.weight.T
        torch.testing.assert_close(model(ids, images=images), expected, rtol=0.0, atol=1e-10)


def test_the_memory_has_a_vector_per_place_row_by_row():
    model, (_, images) = build(places="none"), given()
    features = model.encoder.grid(images)
    assert features.shape == (B, 8, 6, 8)
    memory = model.look(images)
    assert memory.shape == (B, 48, D)
    one = model.memory.norm(model.memory.project(features[:, :, 2, 5]))
    torch.testing.assert_close(memory[:, 2 * 8 + 5], one)


def test_the_grid_of_each_encoder_is_what_it_pools():
    for name, options in {
        "resnet": {"width": 4, "depths": (1, 1)},
        "mobilenet": {"width": 4, "widths": (4, 6), "depths": (1, 1), "strides": (1, 2), "hidden": 7},
        "vit": {"size": 24, "patch": 8, "width": 12, "depth": 1, "heads": 3, "pool": "mean", "registers": 2},
    }.items():
        model = ch.build(name, classes=0, **options).eval()
        images = torch.randn(2, 3, 24, 16 if name != "vit" else 24)
        grid = model.grid(images)
        assert grid.shape[1] == model.grid_channels
        torch.testing.assert_close(grid.mean((2, 3)), model.states(images))


@torch.no_grad()
def test_the_memory_may_hold_the_tokens_without_a_place():
    encoder = {"name": "vit", "size": 12, "patch": 4, "width": D, "depth": 1, "heads": 2, "registers": 2}
    images = torch.randn(B, 3, 12, 12)
    plain = ch.build("captioner", vocab=V, width=D, encoder=encoder, bridge="none", special=True, places="none").eval()
    tokens = plain.encoder.encode(images)
    assert tokens.shape == (B, 3 + 9, D)
    assert torch.equal(plain.look(images), tokens)
    model = ch.build("captioner", vocab=V, width=D, encoder=encoder, bridge="linear", special=True).eval()
    memory, tokens = model.look(images), model.encoder.encode(images)
    projected = tokens @ model.memory.project.weight.T + model.memory.project.bias
    torch.testing.assert_close(memory[:, :3], projected[:, :3])  # and no position is added to them
    assert not torch.allclose(memory[:, 3:], projected[:, 3:], atol=0.1)
    with pytest.raises(ValueError, match="bridge='none': the encoder has 8 channels, expected width=12"):
        ch.build("captioner", vocab=V, width=12, encoder=encoder, bridge="none")


def test_a_frozen_encoder_stays_in_evaluation_mode():
    model = build(decoder="rnn")
    model.encoder.requires_grad_(False)
    model.train()
    norms = [m for m in model.encoder.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    ids, images = given()
    model(ids, images=images).sum().backward()
    assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True))
    assert model.decoder.training
    assert model.memory.project.weight.grad is not None
    model.encoder.requires_grad_(True)
    model.train()
    model(ids, images=images)
    assert not torch.equal(norms[0].running_mean, before[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "rnn", "positions": "learned"}, "positions='learned' is for decoder='transformer'"),
        ({"decoder": "rnn", "encoder_depth": 1, "positions": "rotary"}, "positions='rotary' is for decoder='tr"),
        ({"decoder": "rnn", "order": "post"}, "order='post' is for decoder='transformer': a decoder='rnn' does not"),
        ({"decoder": "rnn", "mlp": "relu"}, "mlp='relu' is for decoder='transformer'"),
        ({"decoder": "rnn", "inner_dropout": 0.2}, r"inner_dropout=0\.2 is for decoder='transformer'"),
        ({"cell": "gru"}, "cell='gru' is for decoder='rnn'"),
        ({"gate": False}, "gate=False is for decoder='rnn'"),
        ({"attention": "hard"}, "attention='hard' is for decoder='rnn'"),
    ],
    ids=str,
)
def test_options_of_the_other_decoder_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ch.build("captioner", vocab=V, encoder=ENCODER, **options)


def test_blocks_that_read_the_grid_have_their_options_whatever_the_decoder():
    build(decoder="rnn", encoder_depth=1, order="post", mlp="relu", inner_dropout=0.1, heads=8)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"name": "resnt"}, r"encoder\.name='resnt'.*the nearest is resnet"),
        ({}, r"encoder\.name=None: expected a family of image models, one of mobilenet, resnet"),
        ({"name": "vit", "widht": 3}, r"unknown key model\.encoder\.widht; the nearest is width"),
    ],
    ids=str,
)
def test_an_unknown_encoder_or_option_is_refused(encoder, message):
    with pytest.raises(ValueError, match=message):
        ch.build("captioner", vocab=V, encoder=encoder)

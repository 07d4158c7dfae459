"""Training of captioners: the terms of the objective, encoders that are frozen, filled or slower, and the recipes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import clearhead as ch
from clearhead.data import IGNORE, make_data
from clearhead.models.captioner import Trace
from clearhead.training import read_recipe, train
from clearhead.training.objectives import Moment, objective_class
from clearhead.training.objectives.captions import Captions, CaptionsConfig
from clearhead.training.optim.optimisers import part_scales

CONFIGS = Path(__file__).parents[2] / "configs"
ENCODER = {"name": "resnet", "width": 4, "depths": [1, 1], "stem": "small"}
DATA = make_data("scenes", {"rows": 4, "pixels": 24, "valid_rows": 5, "valid_batches": 1}, seed=0)


def objective(options=None, **model):
    torch.manual_seed(0)
    made = ch.build("captioner", vocab=len(DATA.tokens), width=8, hidden=6, encoder=ENCODER, dropout=0.0, **model)
    return Captions(CaptionsConfig(**options or {}), {"model": made.double()}, DATA).train()


def batch(rows=3, tokens=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    vocab = len(DATA.tokens)
    targets = torch.randint(4, vocab, (rows, tokens), generator=generator)
    targets[0, 3:] = IGNORE
    ids = torch.randint(4, vocab, (rows, tokens), generator=generator)
    return {
        "images": torch.randn(rows, 3, 12, 12, generator=generator, dtype=torch.float64),
        "ids": ids,
        "targets": targets,
    }


def weights_of(model, given):
    with ch.watch(model, "decoder.blocks.0.cross.weights") as tape:
        logits = model(given["ids"], images=given["images"])
    return logits, tape["decoder.blocks.0.cross.weights"].dense()[:, 0]


def test_the_loss_is_the_cross_entropy_and_the_doubly_stochastic_term():
    one, given = objective({"doubly": 0.7, "smoothing": 0.1}, decoder="rnn"), batch()
    terms = one.loss(given)
    model = one.player("model")
    logits, alpha = weights_of(model, given)
    words = F.cross_entropy(logits.mT, given["targets"], ignore_index=IGNORE, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(terms["words"], words)
    expected = 0.0
    for row in range(3):  # Eq. 14 of Xu et al. 2015, over the real tokens of each caption
        real = given["targets"][row] != IGNORE
        expected += 0.7 * sum((1 - float(alpha[row, real, i].sum().detach())) ** 2 for i in range(alpha.shape[-1]))
    assert float(terms["doubly"].detach()) == pytest.approx(expected, rel=1e-5)


def test_without_the_terms_the_loss_is_the_cross_entropy_of_any_decoder():
    for model in ({"decoder": "transformer", "heads": 2}, {"decoder": "rnn", "attention": "none"}):
        one, given = objective(**model), batch()
        logits = one.player("model")(given["ids"], images=given["images"])
        expected = F.cross_entropy(logits.mT, given["targets"], ignore_index=IGNORE, reduction="sum")
        torch.testing.assert_close(one.loss(given), expected)
    with pytest.raises(ValueError, match=r"doubly=1\.0 is for decoder='rnn' with attention"):
        objective({"doubly": 1.0}, decoder="transformer", heads=2)


def test_the_mean_of_reinforce_is_the_gradient_of_the_expected_log_probability():
    """All places of a caption of one token, weighted by their probabilities: Eq. 10 and 11 without sampling."""
    one = objective({"reward": 0.4, "entropy": 0.0}, decoder="rnn", attention="hard")
    model = one.player("model").eval()
    one.training = True
    given = batch(rows=1, tokens=1)
    given["targets"][:] = 5
    one.baseline.fill_(-1.7)
    v = model.decoder.blocks[0].cross.score.v
    alpha = weights_of(model, given)[1][0, 0].double()
    edges = torch.cat([torch.zeros(1), alpha.cumsum(0)])
    total, log_p = torch.zeros_like(v), []
    for place, share in enumerate(alpha.tolist()):
        draws = (edges[place] + edges[place + 1]).div(2).reshape(1, 1)
        terms = one.loss({**given, "draws": draws})
        assert terms["words"].requires_grad
        log_p.append(-float(terms["words"].detach()))
        (gradient,) = torch.autograd.grad(sum(terms.values()), v)
        total += share * gradient
    # The same by autograd: sum_s alpha_s (log p_s - b), with log p_s fixed.
    trace = Trace([], [])
    model.states(given["ids"], images=given["images"], draws=torch.full((1, 1), -1.0), trace=trace)
    value = (trace.weights[0][0] * (torch.tensor(log_p) + 1.7)).sum()
    (expected,) = torch.autograd.grad(-0.4 * value, v)
    assert expected.abs().max() > 1e-8
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-9)


def test_images_without_a_sample_have_no_reinforce_term_and_the_share_is_kept():
    one, given = objective({"expected": 0.5}, decoder="rnn", attention="hard"), batch(rows=200, tokens=2)
    moment = Moment(seed=1, step=3, steps=9, rows=torch.arange(200))
    draws = one.prepare(given, moment)["draws"]
    assert draws.shape == given["ids"].shape
    assert ((draws < 0).all(1) | (draws >= 0).all(1)).all()
    assert 70 < int((draws[:, 0] < 0).sum()) < 130
    none = {**given, "draws": torch.full_like(draws, -1.0)}
    assert float(one.loss(none)["reinforce"].detach()) == 0.0
    assert float(one.loss({**given, "draws": draws})["reinforce"].detach()) != 0.0
    assert "draws" not in one.eval().prepare(given, moment)


def test_the_baseline_is_a_moving_average_of_the_log_probability():
    one, given = objective({"baseline_momentum": 0.75, "expected": 0.0}, decoder="rnn", attention="hard"), batch()
    rewards = []
    for step in range(3):
        moment = Moment(seed=1, step=step, steps=9, rows=torch.arange(3))
        ready = one.prepare(given, moment)
        with torch.no_grad():
            x = one.player("model").states(ready["ids"], images=ready["images"], draws=ready["draws"])
            each = F.cross_entropy(one.player("model").head(x).mT, ready["targets"], reduction="none")
        rewards.append(float((-each.sum(1) / (ready["targets"] != IGNORE).sum(1)).mean()))
        one.loss(ready)
        one.after_step(moment)
        expected = rewards[0] if step == 0 else 0.75 * expected + 0.25 * rewards[-1]
        assert float(one.baseline) == pytest.approx(expected, rel=1e-4)


def test_exact_is_the_share_of_captions_that_greedy_decoding_writes():
    torch.manual_seed(0)
    model = ch.build("captioner", vocab=len(DATA.tokens), width=16, encoder=ENCODER, dropout=0.0, decoder="rnn")
    given = {name: torch.from_numpy(x) for name, x in DATA.valid(0).items()}
    pixels = given["images"].float() / 127.5 - 1
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(25):  # until some of the five captions are right
        loss = F.cross_entropy(model(given["ids"], images=pixels).mT, given["targets"], ignore_index=IGNORE)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    one = Captions(CaptionsConfig(), {"model": model}, DATA).eval()
    sums = {name: float(x) for name, x in one.measure({**given, "images": pixels}).items()}
    bundle = ch.Bundle(model, DATA.tokens, preprocessing=DATA.preprocessing)
    images = [image.numpy().transpose(1, 2, 0) for image in given["images"]]
    texts = [result.text for result in ch.caption(bundle, images, beams=1)]
    wanted = [DATA.tokens.decode(row[row != IGNORE][:-1].numpy()) for row in given["targets"]]
    assert sums["rows"] == 5
    assert sums["exact"] == sum(a == b for a, b in zip(texts, wanted, strict=True))


# Trainings


def recipe(**changes):
    table = {
        "steps": 3, "seed": 1,
        "data": {"name": "scenes", "rows": 6, "pixels": 24, "valid_rows": 6, "valid_batches": 1},
        "model": {"name": "captioner", "decoder": "rnn", "width": 8, "encoder": ENCODER},
        "optim": {"lr": 0.01}, "run": {"log_every": 1},
    }  # fmt: skip
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            table.setdefault(section, {})[key] = value
        else:
            table[section] = value
    return table


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The folder of a classifier of images with one more stage than the captioner's encoder."""
    torch.manual_seed(7)
    model = ch.build("resnet", classes=5, width=4, depths=(1, 1, 1), stem="small")
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            norm.running_mean.normal_()
    return str(ch.save(model, tmp_path_factory.mktemp("encoder") / "model"))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_frozen_encoder_keeps_its_pretrained_weights_and_statistics(encoder, tmp_path, precision):
    start = {"folder": encoder, "into": "encoder", "differ": ["depths"]}
    run = train(
        recipe(freeze=["encoder"], pretrained=start, precision=precision, optim__ema=0.5), out=tmp_path / "run",
        device="cpu", quiet=True,
    )  # fmt: skip
    theirs = ch.load(encoder, device="cpu").model.state_dict()
    ours = run.model.model.encoder.state_dict()
    assert len(ours) > 10
    for name, x in ours.items():
        assert torch.equal(x, theirs[name]), name
    assert run.metrics[-1]["valid_exact"] == 0.0
    with pytest.raises(
        ValueError, match=r"freeze = 'encodr': this model has no such submodule.*the nearest is encoder"
    ):
        train(recipe(freeze=["encodr"]), out=tmp_path / "other", device="cpu", quiet=True)


def test_the_options_of_an_encoder_must_be_those_of_its_checkpoint(encoder, tmp_path):
    start = {"folder": encoder, "into": "encoder"}
    with pytest.raises(ValueError, match=r"model\.encoder\.depths = \[1, 1\]: the checkpoint .* has depths"):
        train(recipe(pretrained=start), out=tmp_path / "a", device="cpu", quiet=True)
    options = {**ENCODER, "depths": [1, 1, 1], "eps": 0.01}
    with pytest.raises(ValueError, match=r"model\.encoder\.eps = 0\.01"):
        train(recipe(pretrained=start, model__encoder=options), out=tmp_path / "b", device="cpu", quiet=True)


def test_the_encoder_can_learn_at_its_own_rate(tmp_path):
    """With plain gradient descent, a tenth of the rate is a tenth of the change in the first step."""
    options = {"steps": 1, "optim": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "decay": 0.0, "clip": 0.0}}
    before = train(recipe(**{**options, "optim": {**options["optim"], "lr": 1e-30}}), out=tmp_path / "0", quiet=True)
    runs = [
        train(recipe(**{**options, "optim": {**options["optim"], **more}}), out=tmp_path / name, quiet=True)
        for name, more in {"a": {}, "b": {"rates": {"encoder": 0.1}}}.items()
    ]
    start, a, b = (dict(run.model.model.named_parameters()) for run in (before, *runs))
    name, other = "encoder.stem.first.conv.weight", "decoder.readout.weight"
    torch.testing.assert_close(b[name] - start[name], 0.1 * (a[name] - start[name]), rtol=1e-3, atol=1e-7)
    assert (a[name] - start[name]).abs().max() > 1e-4
    assert torch.equal(a[other], b[other])


def test_rates_name_submodules():
    names = ["encoder.stem.weight", "encoder.stem.bias", "head.weight"]
    rates = {"encoder": 0.5, "encoder.stem": 0.1}
    assert part_scales(names, rates) == {"encoder.stem.weight": 0.1, "encoder.stem.bias": 0.1, "head.weight": 1.0}
    with pytest.raises(ValueError, match=r"rates\.encodr: no trained parameter belongs to it.*the nearest is encoder"):
        part_scales(names, {"encodr": 0.1})
    with pytest.raises(ValueError, match=r"rates\.encoder=0\.0: expected a number above 0; freeze"):
        read_recipe(recipe(optim__rates={"encoder": 0.0}))


def test_a_resumed_training_with_hard_attention_equals_an_uninterrupted_one(tmp_path):
    hard = {"name": "captions", "doubly": 0.1}
    table = recipe(model__attention="hard", objective=hard, optim__ema=0.9, schedule={"shape": "constant"})
    whole = train(table, "steps=6", out=tmp_path / "whole", device="cpu", quiet=True)
    train(table, "steps=3", out=tmp_path / "parts", device="cpu", quiet=True)
    parts = train(table, "steps=6", out=tmp_path / "parts", device="cpu", quiet=True)
    for (name, a), (_, b) in zip(
        whole.model.model.state_dict().items(), parts.model.model.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name
    last = [[row["reinforce"] for row in run.metrics if "reinforce" in row][-1] for run in (whole, parts)]
    assert last[0] == last[1] != 0.0


def test_captions_are_chosen_for_captioners_and_samples_are_logged(tmp_path):
    run = train(recipe(run={"log_every": 1, "sample_every": 3}), out=tmp_path / "run", device="cpu", quiet=True)
    (samples,) = [row["samples"] for row in run.metrics if "samples" in row]
    assert {"given", "written", "wanted"} <= samples[0].keys()
    assert isinstance(ch.load(tmp_path / "run", device="cpu").tokens, ch.tokens.Words)
    assert objective_class("captions") is Captions


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("captioner*.toml")), ids=lambda path: path.stem)
def test_no_captioner_starts_from_a_model_of_text(path):
    """871 test images of Flickr8k are described in Multi30k's training text, which the shipped text models know."""
    made = read_recipe(path)
    assert made.data["name"] == "flickr8k"
    starts = [] if made.pretrained is None else [made.pretrained]
    for start in starts:
        assert (start.into, Path(start.folder).parts[0]) == ("encoder", "encoders")

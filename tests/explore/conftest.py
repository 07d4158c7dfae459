"""A tiny language model over characters, tiny captioners, runs, a client of the explorer, and its page in a browser."""

import json
import os
import time

import browser as web
import pytest
import torch
from browser import MARKUP
from starlette.testclient import TestClient

import clearhead as ch
from clearhead.data import make_data
from clearhead.explore.app import make_app
from clearhead.tokens import Characters, Words
from clearhead.weights import shipped

HOME = "http://127.0.0.1:8000"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,!?'\"<>/=;&()\n-"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a GPT with random weights: rotary positions, so that a text may be long."""
    torch.manual_seed(7)
    tokens = Characters.of(LETTERS)
    model = ch.build("gpt", vocab=len(tokens), context=12_000, width=24, depth=3, heads=4, positions="rotary")
    return ch.save(ch.Bundle(model, tokens, model.config), tmp_path_factory.mktemp("models") / "tiny")


CAPTIONERS = {  # kind: the name of the shipped model of this kind, if there is one, and its options
    "transformer": ("captioner", {"decoder": "transformer", "depth": 2, "heads": 2}),
    "rnn": ("captioner-rnn", {"decoder": "rnn"}),
    "bottleneck": ("bottleneck", {"decoder": "rnn", "attention": "none"}),
}


@pytest.fixture(scope="session")
def captioners(tmp_path_factory):
    """The folders of captioners with random weights, by kind; they have the names of shipped ones that are not here."""
    root, data = tmp_path_factory.mktemp("captioners"), make_data("scenes", {"pixels": 24}, seed=0)
    encoder, folders = {"name": "resnet", "width": 4, "depths": [1, 1], "stem": "small"}, {}
    for kind, (name, options) in CAPTIONERS.items():
        torch.manual_seed(3)
        model = ch.build("captioner", vocab=len(data.tokens), width=8, context=10, encoder=encoder, **options)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.3 * torch.randn_like(p)
        bundle = ch.Bundle(model, data.tokens, preprocessing=data.preprocessing)
        folders[kind] = ch.save(bundle, root / (f"tiny-{name}" if name in shipped() else name))
    return folders


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Three runs: with statistics of heads, with an unfinished last line, and with several losses."""
    root = tmp_path_factory.mktemp("runs")
    adversarial(root / "adversarial")
    for name, last in (("first", ""), ("deep/second", '{"step": 9')):
        (root / name).mkdir(parents=True)
        lines = [
            {"step": i, "loss": 3.0 - 0.1 * i, "lr": 1e-3, "norm": 1.0}
            | ({"inside": {"blocks.0.attn.entropy": [1.0, 0.5 * i], "blocks.0": 1.0}} if i % 2 else {})
            for i in range(1, 9)
        ]
        lines[4:4] = [{"step": 4, "samples": [{"given": "The man", "written": " is mat", "wanted": " sat."}]}]
        lines.append({"step": 8, "samples": [{"given": "The man", "written": f" is {MARKUP}", "wanted": " sat."}]})
        (root / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + last)
        (root / name / "recipe.toml").write_text('steps = 20\n[model]\nname = "gpt"\n[data]\nname = "text"\n')
    return root


def adversarial(folder):
    """Write a run with the losses and measurements of a GAN."""
    folder.mkdir()
    (folder / "recipe.toml").write_text('steps = 20\n[model]\nname = "mlp"\n[data]\nname = "gaussians"\n')
    lines = [
        {"step": i, "discriminator_loss": 2.0 - 0.1 * i, "generator_loss": 1.0 + 0.1 * i, "lr_generator": 1e-3,
         "lr_discriminator": 1e-3, "norm_generator": 1.0, "norm_discriminator": 2.0, "momentum": 0.9 + 0.01 * i,
         "seconds": 0.1, "rate": 1000.0, "share": 0.1}
        for i in range(1, 9)
    ]  # fmt: skip
    lines += [{"step": 8, "valid_generator_loss": 1.5, "valid_near": 0.6, "valid_modes": 7.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    measurements = {"generator_loss": ("nats/row", "lower"), "near": ("share", "higher"), "modes": ("modes", "higher")}
    setup = {
        "unit": "vectors", "losses": ["discriminator_loss", "generator_loss"],
        "measurements": {f"valid_{name}": {"unit": u, "better": b} for name, (u, b) in measurements.items()},
    }  # fmt: skip
    (folder / "setup.json").write_text(json.dumps(setup))
    os.utime(folder / "metrics.jsonl", (0, 0))  # the oldest run


@pytest.fixture(scope="session")
def app(tiny, talker, runs):
    return make_app([tiny, talker], runs=runs, device="cpu")


@pytest.fixture
def client(app):
    with TestClient(app, base_url=HOME) as found:
        yield found


def events(client, path, body):
    """The lines of a stream."""
    with client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        return [json.loads(line) for line in answer.iter_lines()]


@pytest.fixture(scope="session")
def stream():
    return events


@pytest.fixture
def ask(client):
    return lambda path, body: events(client, path, body)


@pytest.fixture(scope="session")
def chrome():
    if web.WHY_NOT:
        pytest.skip(web.WHY_NOT)
    found = web.start()
    yield found
    found.quit()


TALK = ["a", "dog", "runs", "."]  # each follows the one before; <end> follows the last, and "a" follows <end>


@pytest.fixture(scope="session")
def talker(tmp_path_factory):
    """The folder of a chat model over words that reads 16 tokens: it answers "a dog runs." and ends any other text."""
    tokens = Words(TALK)
    model = ch.build("gpt", vocab=len(tokens), context=16, width=8, depth=1, heads=2, positions="rotary", tied=False)
    after = {tokens.end: 4} | {i: i + 1 for i in (4, 5, 6)}
    with torch.no_grad():
        for p in model.blocks.parameters():
            p.zero_()  # so that the next token depends on the last one only
        model.embed.table.copy_(3 * torch.eye(len(tokens)))
        model.head.weight.zero_()
        for i in range(len(tokens)):
            model.head.weight[after.get(i, tokens.end), i] = 9.0
    bundle = ch.Bundle(model, tokens, chat="<start>{{ messages[-1].content }}<end>")
    return ch.save(bundle, tmp_path_factory.mktemp("models") / "talker")


@pytest.fixture(scope="session")
def vectors(tmp_path_factory):
    """The folder of a model that no view shows."""
    model = ch.build("mlp", inputs=4, outputs=4, hidden=8)
    return ch.save(ch.Bundle(model, None, model.config), tmp_path_factory.mktemp("models") / "vectors")


@pytest.fixture(scope="session")
def server(chrome, tiny, talker, vectors, captioners, runs):
    found = web.Server(str(tiny), str(talker), str(vectors), *map(str, captioners.values()), "--runs", str(runs))
    chrome.get(found.address)
    while time.monotonic() < found.began + 60 and not chrome.execute_script(
        "return document.querySelectorAll('.steps li').length"
    ):
        time.sleep(0.02)
    found.soon = time.monotonic() - found.began  # seconds until the first usable view
    yield found
    found.stop()


@pytest.fixture
def page(server, chrome):
    """A fresh page; errors and warnings in its console fail the test."""
    yield web.Page(chrome, server.address)
    assert web.problems(chrome) == []

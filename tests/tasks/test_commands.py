"""The verbs of language models on the command line: each is its public function."""

import json

import pytest
import torch
from typer.testing import CliRunner

from clearhead import Bundle, build
from clearhead.cli import app
from clearhead.tasks import classify, embed, fill, generate
from clearhead.tokens import Subwords
from clearhead.weights import load, save

TEXTS = ["the cat sat on the mat", "a dog ran to the cat", "two cats and a dog"] * 4
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def call(*words: object, stdin: str = "") -> str:
    found = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A writer, one without a template, one without tokens, a filler and a sorter, with weights of no use."""
    torch.manual_seed(0)
    home, tokens = tmp_path_factory.mktemp("models"), Subwords.of(TEXTS, size=300)
    sizes = {"context": 64, "width": 16, "depth": 1, "heads": 2}
    writer = build("gpt", vocab=len(tokens), positions="rotary", **sizes)
    save(Bundle(writer, tokens, writer.config, chat=TEMPLATE), home / "writer")
    save(Bundle(writer, tokens, writer.config), home / "mute")
    save(Bundle(writer, None, writer.config), home / "dumb")
    filler = build("bert", vocab=len(tokens) + 1, **sizes)  # and the mask
    save(Bundle(filler, tokens, filler.config), home / "filler")
    sorter = build("bert", vocab=len(tokens) + 1, answer="class", classes=2, **sizes)
    save(Bundle(sorter, tokens, sorter.config, labels=("bad", "good")), home / "sorter")
    return home


def test_generate_prints_what_generate_writes(folder):
    made = load(folder / "writer", device="cpu")
    words = {"max_new": 12, "temperature": 0.9, "seed": 3}
    options = [f"{name}={value}" for name, value in words.items()]
    wanted = generate(made, "the cat", **words)
    assert call("generate", folder / "writer", "the cat", *options) == wanted.text + "\n"
    assert call("generate", folder / "writer", "-", *options, stdin="the cat") == wanted.text + "\n"
    told = json.loads(call("generate", folder / "writer", "the cat", *options, "--json"))
    assert told["pieces"] == wanted.pieces
    several = call("generate", folder / "writer", "the cat", *options, "samples=2")
    both = generate(made, "the cat", samples=2, **words)
    assert several == f"{both.text}\n\n{both.others[0].text}\n"


def test_chat_remembers_what_was_said(folder):
    once = call("chat", folder / "writer", "max_new=5", stdin="a dog\n\n")
    twice = call("chat", folder / "writer", "max_new=5", "--system", "be kind", stdin="a dog\na cat\n")
    made = load(folder / "writer", device="cpu")
    asked = "user: a dog\nassistant:"
    assert once == generate(made, asked, max_new=5).text + "\n"
    first = generate(made, f"system: be kind\n{asked}", max_new=5).text
    talk = f"system: be kind\nuser: a dog\nassistant: {first}\nuser: a cat\nassistant:"
    assert twice == f"{first}\n{generate(made, talk, max_new=5).text}\n"


def test_fill_classify_and_embed(folder, tmp_path):
    gaps = fill(load(folder / "filler", device="cpu"), "the [MASK] sat", top=3)
    assert json.loads(call("fill", folder / "filler", "the [MASK] sat", "--top", 3, "--json")) == [
        [[word, pytest.approx(share)] for word, share in gaps[0]]
    ]
    assert gaps[0][0][0] in call("fill", folder / "filler", "the [MASK] sat")
    path = tmp_path / "texts.txt"
    path.write_text("the cat\na dog ran\n")
    sorted_by_us = classify(load(folder / "sorter", device="cpu"), ["the cat", "a dog ran"])
    assert json.loads(call("classify", folder / "sorter", path, "--json")) == [
        [[name, pytest.approx(share)] for name, share in one] for one in sorted_by_us
    ]
    vectors = embed(load(folder / "writer", device="cpu"), ["the cat", "a dog ran"])
    for texts in ([path], ["the cat", "a dog ran"]):
        told = json.loads(call("embed", folder / "writer", *texts))
        assert told == [pytest.approx(row) for row in vectors.tolist()]


def test_score_reads_a_text_or_stdin(folder):
    given = call("score", folder / "writer", "the cat sat", "--json")
    assert call("score", folder / "writer", "-", "--json", stdin="the cat sat") == given
    assert json.loads(given)["pieces"][0] == "the"


def test_answers_that_cannot_be_written_cost_no_work(folder, tmp_path):
    (tmp_path / "rows.tsv").write_text("the cat\tgood\n")
    words = ["evaluate", str(folder / "sorter"), str(tmp_path / "rows.tsv"), "--out", str(tmp_path)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 1
    assert f"--out {tmp_path}: expected the name of a file" in found.output
    assert "accuracy" not in found.output


def test_parity_of_our_own_folder(folder):
    told = json.loads(call("parity", folder / "writer", "--json"))
    assert told["model"] == "gpt"
    assert "embed.table" in told["used"]


def test_mistakes_are_sentences(folder):
    for words, sentence in [
        (("generate", folder / "filler", "the"), "BERT"),
        (("generate", folder / "writer", "the", "top_q=1"), "top_p"),
        (("fill", folder / "writer", "a [MASK]"), "fills no gaps"),
        (("fill", folder / "filler", "no gap"), "has no gap"),
        (("classify", folder / "writer", "the"), "sorts nothing"),
        (("classify", folder / "sorter", "misspelt.txt"), "misspelt.txt: there is no such file; expected a text, a"),
        (("embed", folder / "writer", folder), "this is a folder; expected a text"),
        (("chat", folder / "mute"), "has no chat template"),  # before anything is typed
        (("generate", folder / "dumb", "the"), "this GPT was trained on numbers, not on texts"),
        (("generate", "everyday", "the", f"max_new={10**20}"), "too large to count with"),
        (("generate", "everyday", "the", f"max_new={10**13}"), "the memory was full when"),  # petabytes
        (("generate", folder / "writer", "the", "--dtype", "int4"), "float16, int8"),
        (("evaluate", folder / "writer", "shakesper"), "no set of that name: there is shakespeare"),
        (("score", folder / "mute", "a"), "'a' is one token, with nothing before it"),
    ]:
        found = CliRunner().invoke(app, [str(word) for word in words])
        assert found.exit_code == 1
        assert sentence in found.output
        assert "Traceback" not in found.output

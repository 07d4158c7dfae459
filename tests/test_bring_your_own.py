"""The commands of docs/16-bring-your-own.md, in order, with small files and checkpoints of the names that it uses."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import clearhead as ch
from clearhead import tokens
from clearhead.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "16-bring-your-own.md"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LETTERS = "abcdefgh"
PAIRS = [(f"{a} {b} {c}", f"{c} {b} {a}") for a in LETTERS for b in LETTERS for c in "ab"]
# Words that make a command of the page small: by its verb, and by its first argument.
SMALL = ["model.width=16", "model.depth=1", "model.heads=2", "data.size=300"]
BRIEF = {
    "train": ["steps=2", *SMALL], "finetune": ["steps=2"], "chat": ["max_new=2"], "generate": ["max_new=2"],
    "translate": ["limit=4"], "shakespeare.txt": ["data.context=16", "data.rows=2"], "ita.tsv": ["run.decode=4"],
}  # fmt: skip


def commands() -> list[str]:
    """The lines of the page's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    own = tokens.Subwords.of(
        [f"{a} {b}" for a, b in PAIRS] + ["good bad Who? user assistant ROMEO: Io mangiando"], size=300
    )
    sizes = {"vocab": len(own), "width": 16, "depth": 1, "heads": 2, "context": 64}
    gpt = ch.build("gpt", positions="rotary", norm="rms", mlp="swiglu", bias=False, **sizes)  # a Llama
    for name, made in {
        "minilm": ch.Bundle(ch.build("bert", answer="sentence", **sizes), own),
        "smollm2": ch.Bundle(gpt, own, chat=TEMPLATE),
        "opus-mt-fr-en": ch.Bundle(ch.build("transformer", **sizes), tokens.Pair(own, own)),
    }.items():
        ch.save(made, path / name, layout="huggingface" if name == "smollm2" else "clearhead")
    (path / "shakespeare.txt").write_text("".join(f"ROMEO:\n{a} {b}.\n\n" for a, b in PAIRS * 4))
    for name in ("reviews", "reviews-valid", "reviews-test"):
        with (path / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["sentence", "label"])
            rows.writerows((f"{a}, it is said", "good" if "a" in a else "bad") for a, _ in PAIRS)
    chats = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in PAIRS]
    (path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    (path / "ita.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    for name in ("captions", "captions-val", "captions-test"):
        (path / f"{name}.tsv").write_text("fr\ten\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    return path


def test_every_command_of_the_page_works(folder, monkeypatch):
    monkeypatch.chdir(folder)
    lines = commands()
    assert len(lines) >= 18
    for line in lines:
        program, verb, *words = shlex.split(line, comments=True)
        assert program == "clearhead"
        more = [*BRIEF.get(verb, ()), *(BRIEF.get(words[0], ()) if verb == "train" else ())]
        given = {word.partition("=")[0] for word in more}
        kept = [word for word in words if word.partition("=")[0] not in given]
        done = CliRunner().invoke(app, [verb, *kept, *more], input="a b\n\n")
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
    assert (folder / "alignment.png").is_file()
    assert (folder / "runs" / "apart" / "model" / "adapter_config.json").is_file()

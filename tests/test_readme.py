"""The front door tells the truth: its map is that of the house, and every command that a page shows can be given."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

from clearhead.cli import app
from clearhead.training.objectives import objectives
from test_house import HOUSE, ROOMS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
VERBS = typer.main.get_command(app).commands
MAKEFILE = (ROOT / "Makefile").read_text()
MAKE = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def commands(page: Path) -> list[str]:
    """The lines of blocks without a language, and code in the text, that begin with a command of ours."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for line in lines if re.match(r"(clearhead|make|python benchmarks/\S+|torchrun) \S", line)]


GIVEN = [(page.stem, line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), GIVEN, ids=[f"{page}: {line.split('#')[0].strip()}" for page, line in GIVEN])
def test_a_command_of_a_page_can_be_given(page, line):
    """Parsed, not run: verbs, options and values are known, and the recipes and scripts are there."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        settings = [word for word in words[1:] if "=" in word]
        assert set(words[1:]) - set(settings) <= MAKE
        assert all(f"$({setting.partition('=')[0]})" in MAKEFILE for setting in settings)
        return
    for recipe in (word for word in words if word.startswith("configs/")):
        assert (ROOT / recipe).is_file()
    if words[0] == "python":
        flags = {
            node.value for node in ast.walk(ast.parse((ROOT / words[1]).read_text())) if isinstance(node, ast.Constant)
        }
        assert [word for word in words if word.startswith("--") and word not in flags] == []
        return
    words = words[words.index("clearhead") + 1 :]
    words = words[: words.index(">")] if ">" in words else words
    if words[0].startswith("-"):
        return
    verb = VERBS[words[0]]
    if words[1:] and not any(word.isupper() for word in words):  # else only the verb is named, or RECIPE stands for one
        with verb.make_context(words[0], words[1:]):
            pass


def test_there_are_commands_to_look_at():
    assert len(GIVEN) > 40
    assert {"clearhead", "make", "python", "torchrun"} == {line.split()[0] for _, line in GIVEN}


def test_the_map_is_that_of_the_house():
    told = re.search(r"^src/clearhead/\n(.*?)^tests/", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    rooms = re.findall(r"^  (\w+)(?:/|\.py) ", told, re.MULTILINE)
    assert rooms == [room for room in [*ROOMS, "zoo"] if room != "__main__"]
    inside = {room: (HOUSE / room).is_dir() for room in rooms}
    assert [room for room in rooms if inside[room] != (f"  {room}/ " in told)] == []
    missing, room = [], ""
    for line in told.splitlines():
        room = found[1] if (found := re.match(r"  (\w+)/", line)) else room
        named = re.findall(r"[\w/]+\.py\b|(?<=^    )\w+/", line) if line.startswith("    ") else []
        missing += [name for name in named if not (HOUSE / room / name).exists()]
    assert missing == []


def test_every_page_is_named_at_the_door():
    front = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[2:] if f"](docs/{page.name})" not in front] == []


def test_every_objective_is_in_the_table_of_the_training_page():
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "09-training.md").read_text(), re.MULTILINE)
    assert set(objectives()) <= set(rows)

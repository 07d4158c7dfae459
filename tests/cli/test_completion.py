"""Shell completion: what it offers for each argument, and that it imports neither torch nor numpy."""

import os
import subprocess
import sys

import pytest

from clearhead import weights
from clearhead.cli import completion
from clearhead.config import shipped_recipes
from clearhead.data import names


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with runs, models, a recipe, and other files."""
    for path, text in {
        "runs/done/recipe.toml": "steps = 1\n[data]\nname = 'copy'\n[model]\nname = 'gpt'\n",
        "runs/done/metrics.jsonl": "",
        "runs/done/model/config.json": "{}",
        "runs/going/recipe.toml": "steps = 1\n[data]\nname = 'copy'\n[model]\nname = 'gpt'\n",
        "runs/going/metrics.jsonl": "",
        "runs/stopped/recipe.toml": "",
        "runs/stopped/unfinished/config.json": "{}",
        "runs/stopped/checkpoints/step-00000001/index.json": "{}",
        "runs/apart/recipe.toml": "",
        "runs/apart/model/adapter_config.json": "{}",
        "mine/config.json": "{}",
        "small.gguf": "",
        "two words/config.json": "{}",
        ".hidden/config.json": "{}",
        "my.toml": "steps = 1\n[data]\nname = 'copy'\n[model]\nname = 'gpt'\n",
        "not.toml": "[tool]\n",
        "torn.toml": "[tool\n",
        "long.json": '{"steps": 1, "data": {}, "model": {}}' + " " * completion.LONGEST,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_models_are_shipped_ones_and_those_in_this_folder(here):
    everything = completion.models("")
    assert set(everything) == {*weights.shipped(), "mine", "runs/apart", "runs/done", "runs/stopped", "small.gguf"}
    assert len(set(everything)) == len(everything)
    assert completion.models("en-d") == ["en-de", "en-de-rnn"]
    assert completion.folders("runs/") == ["runs/apart", "runs/done", "runs/stopped"]
    assert completion.folders("no/such/folder") == []
    assert completion.folders(f"{here}/mi") == [f"{here}/mine"]


def test_recipes_and_runs(here):
    assert completion.recipes("") == ["my.toml", *shipped_recipes()]
    assert completion.recipes("rev") == ["reverse-positions", "reverse"]
    assert completion.recipes("runs/d") == ["runs/done/recipe.toml"]
    assert completion.runs("") == ["runs/done", "runs/going"]


def test_data_sets_are_names_of_data():
    assert set(completion.sets("")) <= set(names())
    assert completion.sets("mu") == ["multi30k"]


def test_completion_imports_neither_torch_nor_numpy(here):
    code = (
        "import sys; from clearhead.cli import main\n"
        "try: main()\n"
        "except SystemExit: print([m for m in ('torch', 'numpy', 'rich', 'matplotlib') if m in sys.modules])"
    )
    for line, offered in (("translate m", "mine"), ("train my", "my.toml"), ("evaluate en-de ta", "tatoeba")):
        asked = {
            "_CLEARHEAD_COMPLETE": "complete_bash",
            "COMP_WORDS": f"clearhead {line}",
            "COMP_CWORD": str(line.count(" ") + 1),
        }
        found = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
        assert found.stdout.split("\n")[:2] == [offered, "[]"], found


def test_fish_gets_one_name_per_line_on_a_narrow_terminal(here):
    asked = {
        "_CLEARHEAD_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "clearhead translate ", "COLUMNS": "20",
    }  # fmt: skip
    line = [sys.executable, "-m", "clearhead"]
    found = subprocess.run(line, env=os.environ | asked, capture_output=True, text=True)
    assert found.stdout.split("\n")[:-1] == completion.models("")


def test_bash_completes_with_the_script_of_show_completion(here):
    (here / "clearhead").write_text(f'#!/bin/sh\nexec {sys.executable} -m clearhead "$@"\n')
    (here / "clearhead").chmod(0o755)
    script = """
    eval "$(clearhead --show-completion)"
    COMP_WORDS=(clearhead translate runs/d) COMP_CWORD=2
    $(complete -p clearhead | sed 's/.*-F \\([^ ]*\\).*/\\1/') clearhead
    echo "${COMPREPLY[@]}"
    """
    path = f"{here}:{os.environ['PATH']}"
    found = subprocess.run(["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert found.stdout == "runs/done\n", found.stderr

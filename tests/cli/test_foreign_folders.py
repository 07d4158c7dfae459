"""The command line opens a folder that no family here reads, and says so on stderr."""

import json

import pytest

from support.command_line import call
from support.foreign_folders import foreign_folder

pytest.importorskip("transformers")
SAYS = "opened with transformers, watched by interception"


def run(*words):
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result


def test_texts_are_generated_scored_and_described(tmp_path):
    folder = foreign_folder("opt", tmp_path / "opt")
    answer = run("generate", folder, "the cat", "max_new=3", "--json", "--device", "cpu")
    assert f"opt: {SAYS}" in answer.stderr
    written = json.loads(answer.stdout)
    assert len(written["pieces"]) <= 3
    score = json.loads(run("score", folder, "the cat sat", "--json", "--device", "cpu").stdout)
    assert score["pieces"] == ["the", "cat", "sat"]
    about = json.loads(run("models", folder, "--json").stdout)
    assert (about["family"], about["note"]) == ("OPTForCausalLM", SAYS)
    refused = call("translate", folder, "the cat", "--device", "cpu")
    assert refused.exit_code == 1
    assert "this OPTForCausalLM cannot translate" in refused.stderr


def test_texts_are_embedded(tmp_path):
    answer = run("embed", foreign_folder("electra", tmp_path / "electra"), "the cat", "a dog", "--device", "cpu")
    assert [len(json.loads(line)["vector"]) for line in answer.stdout.splitlines()] == [24, 24]
    assert SAYS in answer.stderr

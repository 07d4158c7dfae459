"""look, compare and figure on the command line."""

import json
import shlex
import subprocess
import sys

import pytest

from clearhead.cli import completion
from clearhead.cli.registered import FIGURES, SECTIONS, VIEWS, names, summaries
from clearhead.report import compare, figures, registry, view  # noqa: F401  (each registers what it offers)
from support.command_line import call


def test_names_and_summaries_read_from_source_are_those_registered():
    for kind, known in ((VIEWS, registry.VIEWS), (SECTIONS, registry.SECTIONS), (FIGURES, registry.FIGURES)):
        assert set(names(kind)) == set(known)
        assert summaries(kind) == {name: known[name].help for name in names(kind)}


def test_completion_offers_views_and_figures_without_torch():
    assert completion.views("att") == ["attention", "attribution"]
    assert completion.figures("ir") == ["iris"]
    code = "import sys; from clearhead.cli import completion as c; c.views(''), c.figures('')"
    code += "; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_help_of_look_has_every_view_with_its_options():
    shown = call("look", "--help").stdout
    for name in names(VIEWS):
        assert f"  {name}: " in shown
    assert "methods=" in shown


def test_look_prints_a_table_and_says_how_to_draw():
    found = call("look", "everyday", "A man is", "saliency", "method=gradient")
    assert found.exit_code == 0
    assert "' man'" in found.stdout
    assert "-o FILE draws it" in found.stderr


def test_the_example_of_words_works_and_a_piece_of_a_word_is_refused():
    lines = [line.strip() for line in call("view", "--help").stdout.splitlines()]
    (line,) = [line for line in lines if line.endswith(" neighbours")]
    found = call(*shlex.split(line)[1:], "--json")
    assert json.loads(found.stdout)["words"][0][0] == "woman"
    refused = call("view", "everyday", "king - man + woman", "neighbours")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "splits it into ' k' + 'ing'" in refused.stderr


def test_look_writes_a_file_and_prints_its_name(tmp_path):
    path = tmp_path / "maps.png"
    found = call("look", "everyday", "A man is", "attention", "layer=2", "-o", path)
    assert (found.exit_code, found.stdout.strip()) == (0, str(path))
    assert path.read_bytes()[1:4] == b"PNG"


def test_look_without_an_input_takes_an_example_and_without_a_view_lists_those_that_fit():
    given = json.loads(call("look", "resnet-cifar10", "filters", "most=3", "--json").stdout)
    assert given["channels"] == [0, 1, 2]
    listed = json.loads(call("look", "resnet-cifar10", "--json").stdout)
    assert listed["filters"].startswith("Filters of the first convolution")
    assert "cls" not in listed
    # A text may be the name of a view.
    assert json.loads(call("look", "everyday", "attention lens", "saliency", "method=gradient", "--json").stdout)[
        "tokens"
    ]


def test_look_with_two_inputs():
    words = ("look", "everyday", "The man lost his", "patching", "target=way", "against=hair", "--json")
    found = json.loads(call(*words, "--other", "The girl lost his").stdout)
    assert found["columns"] == ["The", " man", " lost", " his"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("everyday", "A man", "cls"), "the view cls does not fit this GPT"),
        (("everyday", "A man", "lense"), "the nearest is lens"),
        (("everyday", "A man is here"), "no view 'A man is here'"),
        (("everyday", "A man", "attention", "layer=7"), "layer 7: there are 5, counted from 0"),
        (("everyday", "A man", "attention", "layre=1"), "unknown key layre; the nearest is layer"),
        (("everyday", "A man", "attention", "-o", "maps.gif"), "ends in .png, .svg, .pdf, .html, .json"),
        (("resnet-cifar10", "no-such.png", "fields"), "there is no such file"),
        (("cloze", "word " * 300, "attention"), "this model reads 128 at once"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence(words, message):
    found = call("look", *words)
    assert found.exit_code == 1
    assert message in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


def test_compare_writes_a_report_and_prints_numbers(tmp_path):
    path = tmp_path / "report.html"
    texts = tmp_path / "texts.txt"
    texts.write_text("A dog runs.\nIt rains.\nTwo men talk.\nThe boy is here.\n")
    found = call("compare", "everyday", "everyday", "--data", texts, "-o", path)
    assert found.exit_code == 0
    assert "parameters" in found.stdout
    assert found.stdout.strip().endswith(str(path))
    assert path.read_text().startswith("<!doctype html>")
    assert call("compare", "everyday", "everyday", "-o", tmp_path / "report.pdf").exit_code == 1


def test_compare_measures_the_sections_that_are_named(tmp_path):
    path = tmp_path / "numbers.json"
    found = call("compare", "everyday", "cloze", "--sections", "sizes, fields", "-o", path)
    assert found.exit_code == 0, found.exception
    assert "Receptive fields: this is measured on images, and these models read texts." in " ".join(
        found.stdout.split()
    )
    assert list(json.loads(path.read_text())["sections"]) == ["sizes"]
    assert call("compare", "everyday", "cloze", "--sections", "size").exit_code == 1
    assert "or a .json file" in " ".join(call("compare", "--help").stdout.replace("│", " ").split())


def test_figure_lists_and_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = call("figure").stdout
    assert all(name in listed for name in registry.FIGURES)
    found = call("figure", "iris", "--json")
    assert found.exit_code == 0, found.exception
    assert json.loads(found.stdout) == {"figure": "iris", "file": "iris.png"}
    assert (tmp_path / "iris.png").is_file()
    assert "the nearest is iris" in " ".join(call("figure", "irsi").stderr.split())

"""Options written name=value: their help, and the errors for unknown names and wrong types."""

import inspect
import re
import subprocess
import sys

import pytest
import typer

from clearhead import tasks
from clearhead.cli import app
from clearhead.cli.arguments import NOT_OPTIONS, keyword_options, options_class
from clearhead.cli.option_help import argument_docs, options_help
from clearhead.config import ConfigError
from support.command_line import call

VERBS = typer.main.get_command(app).commands
FUNCTIONS = {"generate": tasks.generate, "translate": tasks.translate, "evaluate": tasks.evaluate, "chat": tasks.chat}


def keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in NOT_OPTIONS]


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_every_keyword_option_of_a_function_is_in_the_help_with_its_meaning(verb):
    assert keywords(FUNCTIONS[verb])
    help_text = call(verb, "--help").stdout
    for name in keywords(FUNCTIONS[verb]):
        assert re.search(rf"^ +{name}=\S* +\w", help_text, re.MULTILINE), name


def test_the_help_shows_defaults_as_they_are_typed():
    help_text = options_help("tasks/generate.py", "generate")
    assert re.search(r"^ +max_new=100 ", help_text, re.MULTILINE)
    assert re.search(r"^ +slide=false ", help_text, re.MULTILINE)
    assert re.search(r"^ +temperature= ", help_text, re.MULTILINE)  # None


def test_meanings_come_from_the_args_section():
    docs = argument_docs("Summary.\n\nArgs:\n    a: First\n        and more.\n    b: Second.\n\nReturns:\n    c: No.\n")
    assert docs == {"a": "First and more.", "b": "Second."}
    assert argument_docs("Summary.") == {}


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_every_bracket(verb):
    """rich would take [data] for markup, and leave it out."""
    shown = call(verb, "--help").stdout
    texts = [VERBS[verb].help, VERBS[verb].epilog, *(getattr(p, "help", "") or "" for p in VERBS[verb].params)]
    for bracket in re.findall(r"\[\w+\]", "\n".join(texts)):
        assert bracket in shown
    assert "\\[" not in shown


@pytest.mark.parametrize(("verb", "bracket"), [("fill", "[MASK]"), ("models", "[model]"), ("data", "[data]")])
def test_brackets_in_help_are_visible(verb, bracket):
    assert bracket in call(verb, "--help").stdout


def test_no_help_imports_torch_or_numpy():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from clearhead.cli import app\n"
        f"for words in [['--help'], *([verb, '--help'] for verb in {list(VERBS)})]:\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0, words\n"
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'fastapi') if m in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


# Values


def test_words_become_keyword_arguments():
    words = ["max_new=5", "temperature=0.5", "stop=['a', 'b']", "seed=[1, 2]", "slide=true"]
    expected = {"max_new": 5, "temperature": 0.5, "stop": ["a", "b"], "seed": [1, 2], "slide": True}
    assert keyword_options(tasks.generate, words) == expected
    assert keyword_options(tasks.generate, ["stop=."]) == {"stop": "."}
    assert keyword_options(tasks.generate, None) == {}


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_the_options_are_those_of_the_signature(verb):
    options = options_class(FUNCTIONS[verb])()
    parameters = inspect.signature(FUNCTIONS[verb]).parameters
    assert {name: getattr(options, name) for name in keywords(FUNCTIONS[verb])} == {
        name: parameters[name].default for name in keywords(FUNCTIONS[verb])
    }
    assert not hasattr(options, "done")


@pytest.mark.parametrize(
    ("function", "word", "message"),
    [
        ("generate", "top_q=1", "unknown key top_q; the nearest (is|are) .*top_p"),
        ("generate", "max_tokens=1", "unknown key max_tokens"),
        ("generate", "max_new=many", "max_new = 'many': expected a whole number, got text"),
        ("generate", "max_new=1.5", "max_new = 1.5: expected a whole number"),
        ("generate", "temperature=hot", "temperature = 'hot': expected a number"),
        ("generate", "slide=1", "slide = 1: expected true or false"),
        ("generate", "temperature", "'temperature': expected name=value"),
        ("translate", "beam=5", "unknown key beam; the nearest (is|are) .*beams"),
        ("translate", "done=1", "unknown key done"),
        ("translate", "sample=yes", "sample = 'yes': expected true or false"),
        ("evaluate", "splitt=test", "unknown key splitt; the nearest (is|are) .*split"),
        ("evaluate", "stride=far", "stride = 'far': expected a whole number"),
        ("chat", "sed=1", "unknown key sed; the nearest (is|are) .*seed"),
        ("chat", "seed=one", "seed = 'one': expected a whole number"),
    ],
)
def test_an_unknown_option_names_the_nearest_and_a_wrong_type_is_a_sentence(function, word, message):
    with pytest.raises(ConfigError, match=message):
        keyword_options(FUNCTIONS[function], [word])


@pytest.mark.parametrize("words", [
    ("generate", "everyday", "The man", "temperatur=1"), ("translate", "en-de", "A dog.", "beans=5"),
    ("chat", "everyday", "top_k=x"), ("evaluate", "everyday", "shakespeare", "strid=3"),
])  # fmt: skip
def test_a_wrong_option_fails_in_one_sentence_before_the_model_is_loaded(words, monkeypatch):
    def load(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr("clearhead.weights.load", load)
    found = call(*words)
    assert (found.exit_code, found.stdout) == (1, "")
    (sentence,) = found.stderr.splitlines()
    assert words[-1].partition("=")[0] in sentence


def test_an_unknown_flag_names_the_nearest():
    found = call("generate", "everyday", "The man", "--devise", "cpu")
    assert found.exit_code == 2
    assert "--device" in found.stderr

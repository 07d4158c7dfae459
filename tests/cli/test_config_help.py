"""Every word of every recipe is explained by its own source, and shown by models NAME and data NAME."""

import json
import re

import pytest
from typer.testing import CliRunner

from clearhead.cli import app
from clearhead.cli.config_help import words_of
from clearhead.data import data_config, names
from clearhead.models import families, family


def call(*words):
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(
    "kind", [*map(data_config, names()), *(family(name)[1] for name in families())], ids=lambda kind: kind.__module__
)
def test_every_word_has_a_meaning(kind):
    for word in words_of(kind):
        assert re.search(r"[a-z]", word.meaning), word.name
        assert json.dumps(word.to_dict())


def test_words_have_defaults_and_choices():
    found = json.loads(call("models", "gpt", "--json").stdout)
    assert "default" not in found["vocab"]
    assert found["heads"] == {"default": 12, "meaning": "of attention, in each block"}
    assert (found["positions"]["default"], found["positions"]["choices"][:2]) == ("learned", ["none", "sinusoid"])
    assert re.search(r"^vocab +needed +different tokens *$", call("models", "gpt").stdout, re.MULTILINE)


def test_a_shipped_model_has_a_card():
    found = call("models", "everyday").stdout
    assert re.search(r"^does +Goes on with everyday English", found, re.MULTILINE)
    assert re.search(r"^scores +[\d.]+ +everyday valid perplexity *$", found, re.MULTILINE)
    assert json.loads(call("models", "everyday", "--json").stdout)["scores"]["everyday valid perplexity"] > 1


def test_inherited_words_are_there():
    found = call("data", "recall").stdout
    assert re.search(r"^symbols +10 +how many different symbols *$", found, re.MULTILINE)
    assert re.search(r"^age +how many guests", found, re.MULTILINE)


def test_an_unknown_name_is_told_with_its_nearest():
    for words, near in ((("models", "gtp"), "gpt"), (("data", "revers"), "reverse")):
        found = call(*words)
        assert found.exit_code == 1
        assert words[1] in found.output
        assert near in found.output

"""Errors of users are one sentence; bugs show their traceback."""

import errno

import pytest
import torch

import clearhead
from clearhead.cli import app
from clearhead.cli.verb import explain
from clearhead.errors import InputError, InputKeyError, MissingFileError, UserError


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (InputError("beams=0:\n  expected 1 or more"), "beams=0: expected 1 or more"),
        (InputKeyError("no model 'x'"), "no model 'x'"),
        (MissingFileError("a.txt: there is no such file"), "a.txt: there is no such file"),
        (UserError(), "UserError"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), "a.txt: No such file or directory"),
        (OSError(errno.ENOSPC, "No space left on device"), "the output cannot be written: No space left on device"),
        (OverflowError("int too big"), "a number is too large: expected less than 2^63"),
        (MemoryError(), "out of memory: expected smaller numbers"),
        (MemoryError("Unable to allocate 3.64 TiB for an array"), "out of memory when 3.64 TiB were allocated at once"),
    ],
)
def test_an_error_of_the_user_is_one_sentence(problem, sentence):
    assert explain(problem).startswith(sentence)
    assert "\n" not in explain(problem)


def test_running_out_of_memory_in_torch_is_one_sentence():
    with pytest.raises(RuntimeError) as found:
        torch.empty(1 << 60)
    assert explain(found.value).startswith("out of memory")


@pytest.mark.parametrize(
    "problem", [ValueError("x"), KeyError("x"), TypeError("x"), RuntimeError("x"), OSError("x"), AssertionError()]
)
def test_any_other_exception_is_a_bug(problem):
    assert explain(problem) is None


# Subcommands that list or show what a folder of the library holds, and a subcommand with a second name.
OTHERS = {"models", "data", "recipe", "explore", "look"}


def test_python_and_the_command_line_use_the_same_words():
    names = {command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands}
    assert names >= OTHERS
    for name in names - OTHERS:
        function = getattr(clearhead, name.replace("-", "_"))
        assert callable(function)
        assert function.__name__ == name.replace("-", "_")
    assert clearhead.explore.serve
    assert clearhead.weights.certificate is clearhead.parity  # its name until 0.3

"""Texts of the command line: as given, the lines of files, or stdin."""

import io
import sys
from types import SimpleNamespace

import pytest

from clearhead.cli.text_input import lines_of, text_or_stdin
from clearhead.errors import UserError


@pytest.fixture
def stdin(monkeypatch):
    def put(text):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))

    return put


def test_texts_are_taken_as_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lines_of("A dog runs.", "two\nlines", "", "x" * 10_000) == ["A dog runs.", "two\nlines", "", "x" * 10_000]
    assert lines_of("see notes.txt") == ["see notes.txt"]  # several words are a text
    assert text_or_stdin("A dog.") == "A dog."


def test_a_file_gives_its_lines(tmp_path):
    path = tmp_path / "texts"
    path.write_text("erste Zeile\n\nzweite Zeile\n", encoding="utf-8")
    assert lines_of(str(path), "third") == ["erste Zeile", "", "zweite Zeile", "third"]
    path.write_text("")
    assert lines_of(str(path)) == []


def test_a_dash_reads_stdin(stdin):
    stdin("eins\nzwei – drei\n")
    assert lines_of("-") == ["eins", "zwei – drei"]
    stdin("eins\nzwei\n")
    assert text_or_stdin("-") == "eins\nzwei\n"


@pytest.mark.parametrize("name", ["missing.txt", "missing.tsv", "missing.csv.gz", "missing.md"])
def test_the_name_of_a_missing_file_is_an_error(name):
    with pytest.raises(UserError, match=f"{name}: there is no such file; expected a text, a file with one text per"):
        lines_of(name)


def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="this is a folder; expected a text"):
        lines_of(str(tmp_path))

"""Texts of the command line: as given, the lines of files, or stdin."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import sys
from types import SimpleNamespace

import pytest

from clearhead.cli.text_input import Column, read_texts, text_or_stdin, total_size
from clearhead.data import text_files
from clearhead.data.text_files import read_text
from clearhead.errors import Notice, UserError

COMPRESSED = {"a.txt": bytes, "a.txt.gz": gzip.compress, "a.txt.bz2": bz2.compress, "a.txt.xz": lzma.compress}


def lines_of(*inputs):
    return [item.text for block in read_texts(inputs) for item in block]


@pytest.fixture
def stdin(monkeypatch):
    def put(content):
        content = content.encode() if isinstance(content, str) else content
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

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


def test_a_line_that_is_not_utf8_or_too_long_is_an_item_with_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "CHUNK", 5)
    monkeypatch.setattr(text_files, "LONGEST", 20)
    path = tmp_path / "texts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\nb\xffd\nc\0d\n" + b"x" * 1000 + b"\n\nlast " + b"y" * 50)
    items = [item for block in read_texts([str(path)]) for item in block]
    too_long = "this line has more than 20 characters"
    assert [(item.place.partition(":")[2], item.text, item.problem.rpartition(": expected")[0]) for item in items] == [
        ("1", "one", ""),
        ("2", "b\ufffdd", "column 2: the byte 0xFF is not UTF-8 text"),
        ("3", "c\0d", "column 2: a NUL character"),
        ("4", "", too_long),
        ("5", "", ""),
        ("6", "", too_long),
    ]


def test_what_a_pipe_has_is_passed_on_before_the_rest_comes(monkeypatch):
    reader, writer = os.pipe()
    with open(reader, "rb") as file, open(writer, "wb", buffering=0) as sender:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
        blocks = read_texts(["-"])
        sender.write(b"o")  # could not begin a byte order mark
        sender.write(b"ne\ntwo\nth")
        assert [item.text for item in next(blocks)] == ["one", "two"]
        sender.write(b"ree\n")
        assert [item.text for item in next(blocks)] == ["three"]


def test_the_size_of_stdin_is_unknown_and_that_of_files_is_the_sum_of_their_lines(tmp_path):
    assert total_size(["-"]) is None
    assert total_size(["a text", "another"]) == 2
    for name, compress in COMPRESSED.items():
        path = tmp_path / name
        path.write_bytes(compress(b"one line\n" * 10_000 + b"end"))
        items = [item for block in read_texts([str(path)]) for item in block]
        assert len(items) == 10_001
        assert sum(item.size for item in items) == pytest.approx(total_size([str(path)]))


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_every_file_that_can_be_trained_on_can_be_read_line_by_line(tmp_path, stdin, name, encoding):
    content = "Hündin\r\n日本\n".encode(encoding)
    if encoding == "utf-16-be":
        content = codecs.BOM_UTF16_BE + content
    path = tmp_path / name
    path.write_bytes(COMPRESSED[name](content))
    assert lines_of(str(path)) == ["Hündin", "日本"]
    assert read_text(path) == "Hündin\r\n日本\n"
    stdin(content)
    assert lines_of("-") == ["Hündin", "日本"]


TABLES = {
    "a.csv": 'id,Text,label\n1,"A dog, and\na cat",x\n2,Two,y\n',
    "a.tsv": "Text\tlabel\nA dog, and\tx\nTwo\ty\n",
    "a.jsonl": '{"id": 1, "Text": "A dog, and\\na cat"}\n{"id": 2, "Text": "Two"}\n',
    "a.json": '[{"id": 1, "Text": "A dog, and\\na cat"}, {"id": 2, "Text": "Two"}]',
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_gives_its_column_of_texts(tmp_path, name):
    path, column = tmp_path / name, Column(usual=("sentence", "text"))
    path.write_text(TABLES[name])
    items = [item for block in read_texts([str(path), "third"], column) for item in block]
    expected = "A dog, and" if name == "a.tsv" else "A dog, and\na cat"
    assert [item.text for item in items] == [expected, "Two", "third"]
    assert items[1].place.startswith(f"{path}:")
    assert total_size([str(path)], column) is None
    assert [item.text for block in read_texts([str(path)], Column(name="Text")) for item in block][-1] == "Two"
    assert lines_of(str(path))[0] == TABLES[name].split("\n")[0]  # without a column, lines


def test_the_column_of_the_training_comes_before_usual_names(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("id,body,text\n1,good,x\n2,bad,y\n")
    column = Column(usual=("text",), trained="body")
    with pytest.warns(Notice, match="the texts are those of the column body, which the model was trained on; --column"):
        assert [item.text for block in read_texts([str(path)], column) for item in block] == ["good", "bad"]
    named = Column(name="text", usual=("text",), trained="body")
    assert [item.text for block in read_texts([str(path)], named) for item in block] == ["x", "y"]
    other = Column(usual=("text",), trained="review")
    assert [item.text for block in read_texts([str(path)], other) for item in block] == ["x", "y"]


def test_the_column_of_texts_is_named_where_it_cannot_be_recognised(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1, "body": "One"}\n{"id": 2}\n{"id": 3, "body": 4}\n')
    with pytest.raises(UserError, match="has the columns id, body: expected --column with the one of the texts"):
        list(read_texts([str(path)], Column(usual=("text",))))
    items = [item for block in read_texts([str(path)], Column(name="body")) for item in block]
    assert [(item.text, item.problem) for item in items] == [
        ("One", ""), ("", ""), ("4", "the column 'body' is a number, 4: expected text")
    ]  # fmt: skip
    with pytest.raises(UserError, match="there is no column 'bodi': expected one of id, body; the nearest is body"):
        list(read_texts([str(path)], Column(name="bodi")))

"""Files of rows: every format, compressed or not, gives the same rows with places; bad files are told by line."""

import bz2
import gzip
import json
import lzma
import os
import random
import string
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

from clearhead.data import DataError, text_files
from clearhead.data.tables import formats
from clearhead.data.tables.reading import is_table, open_table
from clearhead.data.text_files import open_bytes, read_lines

ROWS = [
    {"text": "A fine film, is it not?", "label": "1"},
    {"text": 'He said "no";\nand left\tat 5 | 6.', "label": "0"},
    {"text": "Ça va, été 日本 🙂", "label": "1"},
]
PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def quoted(rows, delimiter=","):
    lines = [delimiter.join(rows[0])]
    lines += [delimiter.join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in rows]
    return "".join(f"{line}\r\n" for line in lines)


def plain(rows):
    return "".join(f"{line}\n" for line in ("\t".join(rows[0]), *("\t".join(row.values()) for row in rows)))


def objects(rows):
    return "".join(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows))


FORMATS = {
    "a.csv": quoted(ROWS),
    "semicolon.csv": quoted(ROWS, ";"),
    "tab.csv": quoted(ROWS, "\t"),
    "bar.CSV": quoted(ROWS, "|"),
    "a.jsonl": objects(ROWS),
    "a.ndjson": objects(ROWS),
    "a.json": json.dumps(ROWS, indent=2),
    "flat.json": json.dumps(ROWS),
    "lines.json": objects(ROWS),
}


def opened(tmp_path, name, content, **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_table(path, **options)


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(tmp_path, name, pack):
    table = opened(tmp_path, name + pack, PACK[pack](FORMATS[name].encode()))
    assert is_table(table.path)
    assert table.columns == ("text", "label")
    assert table.header
    for _ in range(2):  # each time from the beginning
        rows = list(table.rows("text", "label"))
        assert [dict(row.values) for row in rows] == ROWS
        assert table.share_read() == 1.0
    with open_bytes(table.path) as file:
        assert file.read() == FORMATS[name].encode()


def test_a_place_is_the_line_on_which_a_row_begins(tmp_path):
    csv = [row.where for row in opened(tmp_path, "a.csv", FORMATS["a.csv"]).rows()]
    assert csv == [f"{tmp_path}/a.csv:{line}" for line in (2, 3, 5)]
    listed = [row.where for row in opened(tmp_path, "a.json", FORMATS["a.json"]).rows()]
    assert listed == [f"{tmp_path}/a.json:{line}" for line in (2, 6, 10)]


def test_tsv_has_no_quotes(tmp_path):
    table = opened(tmp_path, "a.tsv", '"Stop!"\t"Halt!"\r\nGo "now".\tGeh\u2028"jetzt".')
    assert (table.columns, table.header, table.delimiter) == (("1", "2"), False, "\t")
    assert [tuple(row.values.values()) for row in table.rows()] == [
        ('"Stop!"', '"Halt!"'),
        ('Go "now".', 'Geh\u2028"jetzt".'),
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl"])
def test_a_byte_order_mark_gives_the_encoding(tmp_path, name, encoding):
    table = opened(tmp_path, name, FORMATS[name].encode(encoding))
    assert table.encoding == encoding
    assert [dict(row.values) for row in table.rows()] == ROWS


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("text,label\na,b\n", True),
        ("Review,Mood\nnice,happy\n", True),
        ("phrase id,stars given\nnice,5\nbad,1\n", True),  # numbers below
        ("en\tde\nGo.\tGeh.\n", True),
        ("text_en\ttext_de\nGo.\tGeh.\n", True),
        ("Go.\tGeh.\nStop.\tHalt.\n", False),
        ("nice\tpositive\nbad\tnegative\n", False),
        ("class\tnoun\nrun\tverb\ncat\tnoun\n", False),  # noun is a value of its column
        ("de\tvon\nnoch\tstill\n", False),  # one of them is no language
        ("5\t6\n7\t8\n", False),
        (",text\n0,nice\n", True),
    ],
)
def test_a_header_is_recognised(tmp_path, content, header):
    name = "a.tsv" if "\t" in content else "a.csv"
    table = opened(tmp_path, name, content)
    assert table.header is header
    assert opened(tmp_path, name, content, header=not header).header is not header
    assert len(list(table.rows())) == content.count("\n") - header


def test_a_column_without_a_value_says_nothing_about_the_header():
    """The rows below are shorter than the first: an empty column has neither numbers nor texts, nor a mean length."""
    labels = [[f"{'very ' * n}good film", "yn"[n % 2]] for n in range(40)]
    for rows in (labels, [row[::-1] for row in labels]):
        assert formats.has_header([["opinion", "outcome", "extra"], *rows])
    texts = [["a good film"], ["no good film"]]
    assert not formats.has_header([["opinion", "outcome"], *texts])
    assert not formats.has_header([["opinion", "outcome"]])


def test_a_column_that_is_asked_for_makes_a_header(tmp_path):
    content = "mood\tremark\nhappy\tnice\n"
    assert not opened(tmp_path, "a.tsv", content).header
    assert opened(tmp_path, "a.tsv", content, named=("mood",)).columns == ("mood", "remark")


def test_columns_by_name(tmp_path):
    table = opened(tmp_path, "a.csv", "Sentence,Label,text\na,b,c\n")
    assert table.column(None, "text", "sentence") == "text"  # in the order of the usual names
    assert table.column(None, "body", "sentence") == "Sentence"
    assert table.column("Label") == "Label"
    with pytest.raises(
        DataError,
        match=r"a\.csv: there is no column 'lable': expected one of Sentence, Label, text; the nearest is Label$",
    ):
        table.column("lable", "label")
    with pytest.raises(
        DataError, match=r"none of the columns Sentence, Label, text is called source or src.*source = "
    ):
        table.column(None, "source", "src")
    with pytest.raises(DataError, match=r"no column 'text': expected one of 1, 2; .*header = true"):
        opened(tmp_path, "b.tsv", "a\tb\nc\td\n").column("text")


BAD = {
    "ragged": ("a.csv", "text,label\na,b\nc,d,e\n",
               r"a\.csv:3: expected 2 columns, as in the first row, got 3 columns: "
               r"'c,d,e'; a text with a comma in it must be in double quotes"),
    "ragged tsv": ("a.tsv", "a\tb\nc\n", r"a\.tsv:2: expected 2 columns, as in the first row, got 1 column: 'c'$"),
    "quoted tsv": ("a.tsv", 'a\tb\n"c\td"\te\n', r"a\.tsv:2: .*only a \.csv file has quoted fields"),
    "latin-1": ("a.csv", "text,label\nété,1\ncaf".encode() + b"\xe9,0\n",
                r"a\.csv:3: column 4: the byte 0xE9 is not UTF-8 text: .*as Windows-1252 it is 'é'; iconv -f WINDOWS"),
    "empty": ("a.csv", "", r"a\.csv is empty"),
    "blank": ("a.csv", "\n\n", r"a\.csv is empty: expected rows"),
    "only a header": ("a.csv", "text,label\n", r"a\.csv has only a header"),
    "unclosed quote": ("a.csv", 'text,label\na,1\n"b,2\nc,3\n',
                       r"a\.csv:3: a double quote that is opened in this row is not closed"),
    "after a quote": ("a.csv", 'text,label\n"b"c,2\n', r"a\.csv:2: a quoted field .* something else than a comma"),
    "carriage return": ("a.csv", "text,label\rb,2\r", r"a\.csv:1: a carriage return inside a line"),
    "NUL": ("a.csv", "text,label\na\0b,1\n", r"a\.csv:2: column 2: a NUL character"),
    "UTF-16 without a mark": ("a.csv", "text,label\nb,2\n".encode("utf-16-le"),
                              r"a\.csv:1: column 2: a NUL .*UTF-16 with"),
    "same names": ("a.csv", "text,label,text\na,b,c\n", r"a\.csv:1: the columns 1 and 3 are both called 'text'"),
    "broken line": ("a.jsonl", '{"text": "a"}\n{"text": "b"\n', r"a\.jsonl:2: column 13: not JSON: "),
    "no object": ("a.jsonl", '{"text": "a"}\n["b"]\n', r'a\.jsonl:2: expected an object like .*, got a list'),
    "mixed keys": ("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n',
                   r"a\.jsonl:2: there is no 'text' in this row: it has txt; the nearest is txt"),
    "null": ("a.jsonl", '{"text": "a"}\n{"text": null}\n', r"a\.jsonl:2: the column 'text' is empty"),
    "spaces": ("a.csv", "text,label\n  ,1\n", r"a\.csv:2: the column 'text' is empty"),
    "number": ("a.jsonl", '{"text": "a"}\n{"text": 5}\n',
               r"a\.jsonl:2: the column 'text' is a number, 5: expected text"),
    "broken list": ("a.json", '[\n{"text": "a"},\n{"text" "b"}]', r"a\.json:3: column 9: not JSON"),
    "open list": ("a.json", '[\n{"text": "a"}\n', r"a\.json: the list is not closed"),
    "list of texts": ("a.json", '["a", "b"]', r"a\.json:1: expected a list of objects, \{\.\.\.\}, got '\"a\""),
    "two lists": ("a.json", '[{"text": "a"}]\n[{"text": "b"}]', r"a\.json:2: expected the end of the file, or one"),
    "after the list": ("a.json", '[{"text": "a"}] more', r"a\.json:1: expected the end of the file, .*got 'more'"),
    "no comma": ("a.json", '[{"text": "a"}\n{"text": "b"}]', r"a\.json:2: expected a comma or \], got '\{"),
    "two commas": ("a.json", '[{"text": "a"},,{"text": "b"}]', r"a\.json:1: expected an object, .* after the comma"),
    "last comma": ("a.json", '[{"text": "a"},]', r"a\.json:1: expected an object, .*got '\]'"),
    "no list": ("a.json", '{"text": "a"}\n]{"text": "b"}', r"a\.json:2: expected another object, .*got '\]"),
    "deep line": ("a.jsonl", '{"text": ' + "[" * 99_999 + "]" * 99_999 + "}", r"a\.jsonl:1: .*nested too deeply"),
    "deep list": ("a.json", '[\n{"text": ' + "[" * 99_999 + "]" * 99_999 + "}]", r"a\.json:2: .*nested too deeply"),
    "long number": ("a.jsonl", '{"text": ' + "1" * 5000 + "}", r"a\.jsonl:1: a number has more than 4,300 digits"),
    "long number in a list": ("a.json", '[\n{"text": ' + "1" * 5000 + "}]", r"a\.json:2: a number has more than"),
    "half a character": ("a.jsonl", '{"text": "a"}\n{"text": "b \\ud83d"}\n',
                         r"a\.jsonl:2: the column 'text': '.ud83d' is half a character, at 2: expected text"),
    "truncated": ("a.csv.gz", gzip.compress(b"text,label\na,b\n" * 50)[:-9], r"a\.csv\.gz is not a complete gzip file"),
    "no bzip2": ("a.csv.bz2", "text,label\n", r"a\.csv\.bz2 is not a complete bzip2 file"),
    "no xz": ("a.csv.xz", "text,label\n", r"a\.csv\.xz is not a complete xz file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_told_by_place(tmp_path, case):
    name, content, message = BAD[case]
    with pytest.raises(DataError, match=message):  # noqa: PT012  (some are found when opened, some when read)
        table = opened(tmp_path, name, content)
        for row in table.rows(table.columns[0]):
            row.text(table.columns[0])


def test_the_column_of_an_error_in_a_long_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "CHUNK", 64)
    monkeypatch.setattr(formats, "CHUNK", 64)
    for before in ("", "\n"):
        text = before + "[" + ",".join(json.dumps({"text": "word " * 5, "n": i}) for i in range(40))
        at = text.rfind('"n"') + 3
        with pytest.raises(json.JSONDecodeError) as expected:
            json.loads(text[:at] + "x" + text[at:] + "]")
        with pytest.raises(
            DataError, match=rf"a\.json:{expected.value.lineno}: column {expected.value.colno}: not JSON"
        ):
            list(opened(tmp_path, "a.json", text[:at] + "x" + text[at:] + "]").rows())


def test_a_pipe_is_no_table(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"a\.csv is a pipe or a device, which can be read only once: expected a file"):
        open_table(tmp_path / "a.csv")


def test_a_damaged_parquet_file_is_told(tmp_path, monkeypatch):
    """With stand-ins for the optional package, whose damaged pages raise OSError when they are read."""

    class File:
        def __init__(self, file):
            self.metadata, self.schema_arrow = SimpleNamespace(num_rows=3), SimpleNamespace(names=["text"])

        def iter_batches(self, batch_size):
            raise OSError("Corrupt snappy compressed data.")

    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(ArrowException=LookupError))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(ParquetFile=File))
    with pytest.raises(DataError, match=r"a\.parquet is a damaged Parquet file: Corrupt snappy"):
        opened(tmp_path, "a.parquet", "PAR1")


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(DataError, match=r"is a folder: expected a file"):
        open_table(tmp_path)


def test_labels_may_be_numbers(tmp_path):
    table = opened(tmp_path, "a.jsonl", '{"y": 1}\n{"y": true}\n{"y": " very good "}\n{"y": 2.0}\n{"y": 2.5}\n')
    rows = list(table.rows("y"))
    assert [row.label("y") for row in rows[:4]] == ["1", "true", "very good", "2"]
    with pytest.raises(DataError, match=r"a\.jsonl:5: the column 'y' is a number, 2.5: expected a label"):
        rows[4].label("y")


def test_fields_longer_than_the_limit_of_csv_are_read(tmp_path, monkeypatch):
    long = "word " * 100_000
    (row,) = opened(tmp_path, "a.csv", f"text,label\n{long},1\n").rows()
    assert row.values["text"] == long
    monkeypatch.setattr(formats, "FIELD", 1000)
    monkeypatch.setattr(formats.csv, "field_size_limit", lambda limit=None: 131_072)
    table = opened(tmp_path, "b.csv", "text,label\na,1\n")
    (tmp_path / "b.csv").write_text('text,label\na,1\n"b\n' + "c" * (1 << 25))
    with pytest.raises(DataError, match=r"b\.csv:3: a double quote .*not closed within 1,000 characters"):
        list(table.rows())


def test_lines_are_streamed(tmp_path):
    dice = random.Random(0)
    text = "".join(dice.choices(string.ascii_letters + "\n\r é日🙂", k=20_000)) + "end"
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    expected = [line.removesuffix("\r") for line in text.split("\n")]
    with pytest.MonkeyPatch.context() as patch:
        for size in (1, 7, 4096, 1 << 20):
            patch.setattr(text_files, "CHUNK", size)
            lines = list(read_lines(path))
            assert [line for _, line in lines] == expected
            assert lines[41][0] == f"{path}:42"
    (tmp_path / "b.txt").write_text("a\nb\n")
    assert [line for _, line in read_lines(tmp_path / "b.txt")] == ["a", "b"]


@pytest.mark.parametrize("size", [1, 5, 64])
def test_places_do_not_depend_on_the_size_of_a_chunk(tmp_path, monkeypatch, size):
    monkeypatch.setattr(text_files, "CHUNK", size)
    monkeypatch.setattr(formats, "CHUNK", size)
    for case in ("latin-1", "NUL", "broken list", "unclosed quote"):
        test_bad_files_are_told_by_place(tmp_path, case)
    test_a_place_is_the_line_on_which_a_row_begins(tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text_files, "CHUNK", 1 << 12)
    monkeypatch.setattr(formats, "CHUNK", 1 << 12)
    row = {"a.csv": '"a text",1\n', "a.jsonl": '{"text": "a"}\n', "a.json": ',\n{"text": "a"}'}[name]
    head, foot = {"a.csv": ('text,label\n"a",1\n', ""), "a.json": ('[{"text": "a"}', "]")}.get(name, (row, ""))
    peaks = []
    for rows in (2, 1_000, 10_000):  # the first fills the caches
        table = opened(tmp_path, name, head + row * (rows - 1) + foot)
        tracemalloc.start()
        assert sum(1 for _ in table.rows("text")) == rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 10_000 < 10 * len(head + row * 1_000 + foot)


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST", 1 << 21)
    path = tmp_path / "a.txt"
    path.write_text("short\n" + "a" * (1 << 23))
    with pytest.raises(DataError, match=r"a\.txt:2: this line has more than 2,097,152 characters"):
        list(read_lines(path))


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an optional extra")
    from pyarrow import parquet

    chat = [{"role": "user", "content": "Hi"}]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b", None], "label": [0, 1, 1], "messages": [chat] * 3}), path)
    for one in (path, tmp_path / "b.parquet.gz"):
        if one != path:
            one.write_bytes(gzip.compress(path.read_bytes()))
        table = open_table(one)
        assert table.columns == ("text", "label", "messages")
        assert table.known_rows == 3
        rows = list(table.rows("label"))
        assert rows[1].values == {"text": "b", "label": 1, "messages": chat}
        assert rows[1].where == f"{one}: row 2"
        with pytest.raises(DataError, match=r"parquet(\.gz)?: row 3: the column 'text' is empty"):
            list(table.rows("text"))
    path.write_text("nothing of the kind")
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file"):
        open_table(path)


def test_parquet_without_pyarrow_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(RuntimeError, match=r"a\.parquet: Parquet files need the package pyarrow: pip install"):
        open_table(tmp_path / "a.parquet")


def test_a_first_line_that_names_the_delimiter_is_no_row(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_text("sep=;\r\ntext;label\r\na, b, c;1\r\nd, e, f;0\r\n")
    table = open_table(path)
    assert (table.delimiter, table.columns) == (";", ("text", "label"))
    assert [(row.where, dict(row.values)) for row in table.rows()] == [
        (f"{path}:3", {"text": "a, b, c", "label": "1"}), (f"{path}:4", {"text": "d, e, f", "label": "0"})
    ]  # fmt: skip


def test_translations_in_an_object_are_columns(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"id": 1, "translation": {"fr": "un chat", "en": "a cat"}}\n' * 2)
    table = open_table(path)
    assert table.columns == ("id", "fr", "en")
    assert next(table.rows("fr", "en")).values == {"id": 1, "fr": "un chat", "en": "a cat"}


def test_folders_of_text_files_are_labels(tmp_path):
    for name, text in {
        "pos/2.txt": "good",
        "pos/1.txt": "fine\nfilm",
        "neg/a.md": "bad",
        "neg/b.txt": "",
        "x.txt": "y",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    table = open_table(tmp_path)
    assert [tuple(row.values.values()) for row in table.rows("text", "label")] == [
        ("bad", "neg"), ("fine\nfilm", "pos"), ("good", "pos")
    ]  # fmt: skip
    with pytest.raises(DataError, match="is a folder: expected a file, or folders inside with the texts of one class"):
        open_table(tmp_path / "pos")


def test_nan_of_json_is_a_missing_value(tmp_path):
    (tmp_path / "gaps.jsonl").write_text('{"text": NaN, "label": 1}\n{"text": "Fine.", "label": NaN}\n')
    rows = list(open_table(tmp_path / "gaps.jsonl").rows())
    assert [(row.has("text"), row.has("label")) for row in rows] == [(False, True), (True, False)]

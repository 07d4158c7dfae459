"""What is understood of a file: its kind and why, its lengths, its [data] section, in bounded memory."""

import gzip
import json
import re
import subprocess
import sys
from importlib import import_module

import pytest
from chat_folder import chat_folder

from clearhead.data import DataError, data_config, make_data, understand
from clearhead.data.text.documents import Documents
from clearhead.tokens import Pair, Words, save

REVIEWS = [(f"film {i}, it was {'good ' * (i % 4)}in the end", i % 2) for i in range(40)]
PAIRS = [(f"It is {i}.", f"Es ist {i}.") for i in range(40)]
CHAT = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A dog."}]


def table(head, rows, delimiter=","):
    return "".join(delimiter.join(f'"{value}"' for value in row) + "\n" for row in [head, *rows])


def plain(rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "names.csv": (table(("sentence", "label"), REVIEWS), "labelled", {"text": "sentence", "label": "label"}),
    "other.csv": (table(("review", "mood"), REVIEWS), "labelled", {"text": "review", "label": "mood"}),
    "ids.csv": (table(("id", "Text", "Stars"), [(i, *row) for i, row in enumerate(REVIEWS)]), "labelled",
                {"text": "Text", "label": "Stars"}),
    "bare.tsv": (plain(REVIEWS), "labelled", {"text": "1", "label": "2"}),
    "numbers.jsonl": (lines(*({"text": a, "label": b} for a, b in REVIEWS)), "labelled",
                      {"text": "text", "label": "label"}),
    "pairs.tsv": (plain(PAIRS), "pairs", {"source": "1", "target": "2", "join": False}),
    "tatoeba.txt": (plain((*pair, "CC-BY") for pair in PAIRS), "pairs", {"source": "1", "target": "2", "join": False}),
    "languages.csv": (table(("id", "en", "de"), [(i, *row) for i, row in enumerate(PAIRS)], ";"), "pairs",
                      {"source": "en", "target": "de", "join": False}),
    "pairs.json": (json.dumps([{"src": a, "tgt": b} for a, b in PAIRS]), "pairs",
                   {"source": "src", "target": "tgt", "join": False}),
    "book.txt": ("It was a dark night.\n\nThe end.\n" * 20, "text", {}),
    "posts.jsonl": (lines(*({"id": i, "text": a, "more": {"x": 1}} for i, (a, _) in enumerate(REVIEWS))), "text",
                    {"column": "text"}),
    "chats.jsonl": (lines(*({"messages": CHAT} for _ in range(5))), "chats", {"messages": "messages"}),
    "answers.csv": (table(("question", "answer"), PAIRS), "chats", {"prompt": "question", "answer": "answer"}),
}  # fmt: skip


LABELS = [(f"some text number {i} about it", ["sports", "tech"][i % 2]) for i in range(30)]
FIRST = [(label, text) for text, label in LABELS]
FILES |= {
    "unusual.csv": (table(("Statement", "Verdict"), LABELS), "labelled", {"text": "Statement", "label": "Verdict"}),
    "spam.csv": (table(("v1", "v2"), FIRST), "labelled", {"text": "v2", "label": "v1"}),
    "first.tsv": (plain(FIRST), "labelled", {"text": "2", "label": "1"}),
    "news.csv": (table((3, "Head 0", "A long text, as it is"), [(i % 4 + 1, f"Head {i}", f"A long text {i}, as it is")
                                                                 for i in range(30)]), "labelled",
                 {"text": "3", "label": "1"}),
    "again.tsv": (plain([(["Go.", "Run!", "Hi."][i // 10], f"Va {i} !") for i in range(30)]), "pairs",
                  {"source": "1", "target": "2", "join": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_the_kind_and_the_section_of_a_file(tmp_path, name):
    content, kind, columns = FILES[name]
    (tmp_path / name).write_text(content)
    found = understand(name, tmp_path)
    assert found.kind == kind, found.why
    assert found.options == {"name": kind, "path": name, **columns}
    assert found.rows == found.read > 0
    assert not found.sampled
    json.dumps(found.to_dict())
    assert set(found.options) - {"name"} <= set(data_config(kind).__dataclass_fields__)
    if kind in ("labelled", "pairs"):
        data = make_data(kind, {k: v for k, v in found.options.items() if k != "name"}, seed=0, root=tmp_path)
        assert data.steps_per_epoch > 0
        assert "for validation (share = " in data.description


ODD = table(("uid", "utt", "cls", "reply"), [(i, text, label, f"re {text}") for i, (text, label) in enumerate(LABELS)])


@pytest.mark.parametrize(
    ("given", "kind", "columns"),
    [
        ({"text": "utt", "label": "cls"}, "labelled", {"text": "utt", "label": "cls"}),
        ({"source": "utt", "target": "reply"}, "pairs", {"source": "utt", "target": "reply", "join": False}),
        ({"prompt": "utt", "answer": "reply"}, "chats", {"prompt": "utt", "answer": "reply"}),
        ({"column": "reply"}, "text", {"column": "reply"}),
        ({"text": "utt", "label": "cls", "header": True}, "labelled", {"text": "utt", "label": "cls", "header": True}),
    ],
)
def test_columns_that_the_user_names_decide_the_kind(tmp_path, given, kind, columns):
    (tmp_path / "odd.csv").write_text(ODD)
    with pytest.raises(
        DataError, match=r"uid, utt, cls, reply do not tell .*named by data.text=COLUMN data.label=COLUMN"
    ):
        understand("odd.csv", tmp_path)
    found = understand("odd.csv", tmp_path, given=given)
    assert found.kind == kind
    assert found.options == {"name": kind, "path": "odd.csv", **columns}


def test_columns_by_number_and_a_header_alone(tmp_path):
    (tmp_path / "a.tsv").write_text(plain(PAIRS))
    found = understand("a.tsv", tmp_path, given={"text": 2, "label": 1})
    assert {"name": "labelled", "text": "2", "label": "1"}.items() <= found.options.items()
    (tmp_path / "b.csv").write_text(table(("Alpha", "Beta"), PAIRS))
    assert understand("b.csv", tmp_path).header is False
    found = understand("b.csv", tmp_path, given={"header": True})
    assert found.options == {
        "name": "pairs", "path": "b.csv", "source": "Alpha", "target": "Beta", "join": False, "header": True
    }  # fmt: skip
    assert found.rows == len(PAIRS)


def test_columns_that_do_not_fit_together_are_refused(tmp_path):
    (tmp_path / "odd.csv").write_text(ODD)
    for given, message in (
        ({"text": "utt", "target": "reply"}, r"data.text = utt, data.target = reply: expected columns of one kind"),
        (
            {"text": "utt", "label": "clas"},
            r"no column 'clas': expected one of uid, utt, cls, reply; the nearest is cls",
        ),
        ({"name": "pairs"}, r"none of the columns uid, utt, cls, reply is called source"),
    ):
        with pytest.raises(DataError, match=message):
            understand("odd.csv", tmp_path, given=given)


def test_a_table_in_a_folder_is_read_and_not_what_is_said_about_it(tmp_path):
    (tmp_path / "README.md").write_text("What this is.\n" * 3)
    (tmp_path / "LICENSE.txt").write_text("Do as you like.\n")
    (tmp_path / "reviews.csv").write_text(table(("text", "label"), REVIEWS))
    found = understand(tmp_path)
    assert (found.kind, found.files, found.rows) == ("labelled", (str(tmp_path / "reviews.csv"),), len(REVIEWS))
    assert [file.name for file in Documents([tmp_path]).files] == ["reviews.csv"]
    (tmp_path / "a.txt").write_text("A text.")
    assert [file.name for file in Documents([tmp_path]).files] == ["a.txt"]
    for name in ("a.txt", "reviews.csv"):
        (tmp_path / name).unlink()
    assert [file.name for file in Documents([tmp_path]).files] == ["LICENSE.txt", "README.md"]


@pytest.mark.parametrize("name", ["train", "valid"])
def test_two_tables_of_the_same_name_are_refused(tmp_path, name):
    for file in ("train.csv", f"{name}.en.csv", f"{name}.fr.csv"):
        (tmp_path / file).write_text(table(("text", "label"), REVIEWS))
    with pytest.raises(DataError, match=rf"has (train.csv and )?{name}.en.csv and {name}.fr.csv: expected one of them"):
        understand(tmp_path)


def test_numbers_of_a_file(tmp_path):
    rows = [*REVIEWS, REVIEWS[0], ("", 1), ("a " * 30, "")]
    (tmp_path / "a.csv").write_text(table(("text", "label"), rows))
    found = understand(tmp_path / "a.csv", context=9)
    assert (found.rows, found.empty, found.duplicates) == (43, 2, 1)
    assert found.labels == {"0": 21, "1": 20}
    words = sorted(len(text.split()) for text, _ in [*REVIEWS, REVIEWS[0]])
    assert vars_of(found.lengths["text"]["words"]) == (words[20], words[38], words[-1])
    longer = sum(n > 9 for n in words)
    assert found.cut.startswith(f"{longer} of 43 rows ({longer / 43:.1%}) have more than 9 words: longest cuts them")
    assert found.first[0] == {"text": REVIEWS[0][0], "label": "0"}
    assert found.split == "share = 0.1 of the different texts is kept for validation: about 4 of 41 rows"


def vars_of(lengths):
    return lengths.median, lengths.most, lengths.largest


def test_tokens_are_counted_with_the_tokenizers_of_a_folder(tmp_path):
    (tmp_path / "a.csv").write_text(table(("text", "label"), [("a dog runs", 1), ("a", 0)]))
    save(Words(["a", "dog", "runs"]), tmp_path / "words")
    found = understand("a.csv", tmp_path, tokens="words", context=4)
    assert vars_of(found.lengths["text"]["tokens"]) == (3, 3, 3)
    assert found.cut == "1 of 2 rows (50.0%) have more than 4 tokens: longest cuts them"
    assert found.options["tokens"] == "words"
    (tmp_path / "b.csv").write_text(table(("en", "de"), [("a dog", "ein Hund rennt"), ("a", "ein")]))
    save(Pair(Words(["a", "dog"]), Words(["ein", "Hund", "rennt"])), tmp_path / "pair")
    lengths = understand("b.csv", tmp_path, tokens="pair").lengths
    assert [lengths[side]["tokens"].largest for side in ("en", "de")] == [2, 3]
    with pytest.raises(DataError, match="tokenizers of a translation model"):
        understand("a.csv", tmp_path, tokens="pair")


def test_folders(tmp_path):
    with pytest.raises(DataError, match=r"has no text files .* and no tables"):
        understand(tmp_path)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match=r"has no text files .* and no tables"):
        understand(tmp_path)
    (tmp_path / "x.csv").write_text(table(("text", "label"), REVIEWS))
    assert understand(tmp_path).options["path"] == str(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_text(table(("text", "label"), REVIEWS))
    with pytest.raises(DataError, match=r"has 2 tables, and none is called train: expected one of x\.csv, y\.csv"):
        understand(tmp_path)
    (tmp_path / "train.csv").write_text(table(("text", "label"), REVIEWS))
    (tmp_path / "dev.csv").write_text(table(("text", "label"), REVIEWS[:4]))
    found = understand(tmp_path)
    assert found.options["valid_path"] == str(tmp_path / "dev.csv")
    assert found.split == "dev.csv is for validation"
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "texts" / name).write_text("one\ntwo\n")
    found = understand("texts", tmp_path)
    assert (found.kind, found.options, found.rows) == ("text", {"name": "text", "path": "texts"}, 4)


def test_columns_that_tell_nothing_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c,d\ne f,g,h,i\n")
    with pytest.raises(DataError, match=r"a\.csv: the columns 1, 2, 3, 4 do not tell what is in them: expected"):
        understand(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="context=0"):
        understand(tmp_path / "a.csv", context=0)


def test_a_bad_row_is_told_by_its_line(tmp_path):
    rows = table(("text", "label"), REVIEWS * 5)
    (tmp_path / "a.csv").write_text(rows + "ragged\n")
    with pytest.raises(DataError, match=r"a\.csv:202: expected 2 columns"):
        understand(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_a_large_file_is_sampled(tmp_path, monkeypatch, name):
    module = import_module("clearhead.data.tables.understand")
    head = "text,label\n" if name == "a.csv" else ""
    (tmp_path / name).write_text(head + "the same text,1\n" * 200_000)
    monkeypatch.setattr(module, "ROWS", 1000)
    monkeypatch.setattr(import_module("clearhead.data.text_files"), "CHUNK", 1 << 12)
    found = understand(tmp_path / name)
    assert found.sampled
    assert found.read == 1000
    assert found.rows == pytest.approx(200_000, rel=0.3)
    monkeypatch.setattr(module, "CHARACTERS", 5000)
    assert understand(tmp_path / name).read < 500


def test_a_number_of_rows_that_is_not_known_is_said_to_be_an_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("clearhead.data.tables.understand"), "ROWS", 3000)
    content = "text,label\n" + "a,1\n" * 4000
    (tmp_path / "a.csv").write_text(content)  # less than is read at once
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content.encode()))
    for name in ("a.csv", "a.csv.gz"):
        found = understand(tmp_path / name)
        assert found.sampled
        assert found.to_dict()["sampled"]
        assert found.read == 3000
        assert found.rows == pytest.approx(4000, rel=0.01)
    monkeypatch.setattr(import_module("clearhead.data.text_files"), "CHUNK", 1 << 10)
    assert understand(tmp_path / "a.csv.gz").rows > 3000
    monkeypatch.setattr(import_module("clearhead.data.tables.understand"), "ROWS", 4000)
    assert not understand(tmp_path / "a.csv").sampled


def test_what_a_context_cuts_is_what_a_training_cuts(tmp_path):
    folder = chat_folder(tmp_path / "model")
    chats = [{"prompt": f"{i} " + "word " * 8 * (i % 3), "answer": f"{i} is it."} for i in range(12)]
    (tmp_path / "chats.jsonl").write_text(lines(*chats))
    turns = [{"role": role, "content": f"turn {i}"} for i in range(6) for role in ("user", "assistant")]
    (tmp_path / "turns.jsonl").write_text(lines({"messages": turns}, {"messages": turns[:2]}))
    for name, longest in (("chats.jsonl", 60), ("chats.jsonl", 90), ("turns.jsonl", 80)):
        found = understand(tmp_path / name, tokens=str(folder), context=longest)
        options = {key: value for key, value in found.options.items() if key != "name"}
        told = make_data("chats", {**options, "longest": longest, "share": 0.0}, seed=0).description
        numbers = [int(n) for n in re.findall(r"(\d+) (?:without their oldest|left out, whose)", told)]
        assert found.cut.startswith(f"{sum(numbers)} of {found.rows} rows")
        assert numbers
    texts = [("word " * n, n % 2) for n in range(1, 40)]
    (tmp_path / "a.csv").write_text(table(("text", "label"), texts))
    save(Words(["word"]), tmp_path / "words")
    found = understand(tmp_path / "a.csv", tokens=str(tmp_path / "words"), context=20)
    options = {key: value for key, value in found.options.items() if key != "name"}
    told = make_data("labelled", {**options, "longest": 20}, seed=0).description
    assert "21 texts are cut" in told
    assert found.cut.startswith("21 of 39 rows (53.8%) have more than 20 tokens: longest cuts them")


MEASURE = """
import resource, sys
from clearhead.data import DataError, understand
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    found = understand(sys.argv[1])
    print(found.rows, found.read)
except DataError as problem:
    print(problem)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def measured(path):
    out = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    *said, grown = out.stdout.splitlines()
    return said[0], int(grown) * (1 if sys.platform == "linux" else 1 / 1024)  # KiB


@pytest.mark.slow
def test_ten_gigabytes_need_little_memory(tmp_path):
    """A sparse file of 10 GB that begins as a CSV file, one that is empty, and one whose quote is never closed."""
    size, limit = 10 * 1000**3, 400 * 1024  # KiB
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.write(b"text,label\n" + b"some text of a row,1\n" * 400_000)
        file.truncate(size)
    said, grown = measured(path)
    rows, read = map(int, said.split())
    assert read == 200_000
    assert rows == pytest.approx(size / 21, rel=0.3)
    assert grown < limit
    with path.open("wb") as file:
        file.truncate(size)
    said, grown = measured(path)
    assert "a.csv:1: column 1: a NUL character" in said
    assert grown < limit
    with path.open("wb") as file:
        file.write(b'text,label\na,1\n"b,2\n' + b"some text of a row,1\n" * 2_000_000)
        file.truncate(size)
    said, grown = measured(path)
    assert "a.csv:3: a double quote that is opened in this row is not closed within 16,777,216 characters" in said
    assert grown < limit


def test_the_input_of_an_instruction_is_a_part_of_the_question(tmp_path):
    rows = [{"instruction": "Answer.", "input": f"Is {i} even?" if i else "", "output": "Yes."} for i in range(4)]
    (tmp_path / "alpaca.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = understand("alpaca.jsonl", tmp_path)
    assert (found.kind, found.duplicates, found.empty) == ("chats", 0, 0)
    assert found.lengths["instruction"]["characters"].largest == len("Answer.\nIs 1 even?")
    assert found.why == "the columns instruction, input and output are a question and its answer"


def test_folders_inside_are_labels_if_asked(tmp_path):
    for name in ("pos/1.txt", "pos/2.txt", "neg/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}")
    assert (
        understand(tmp_path).why
        == "the folder has 3 text files; data.name=labelled takes the folders inside for labels"
    )
    found = understand(tmp_path, given={"name": "labelled"})
    assert (found.kind, found.labels) == ("labelled", {"pos": 2, "neg": 1})
    opened = make_data("labelled", {name: x for name, x in found.options.items() if name != "name"}, seed=0)
    assert opened.classes == ("neg", "pos")


@pytest.mark.parametrize(
    ("columns", "given", "expected"),
    [
        (("text", "label", "team", "id"), {}, {"label": ("team",)}),
        (("text", "label", "team", "id"), {"label": "team"}, {}),
        (("text", "body", "label"), {}, {"text": ("body",)}),
        (("text", "body", "label"), {"text": "body"}, {}),
        (("source", "target", "body"), {}, {"source": ("body",), "target": ("body",)}),
        (("instruction", "input", "output", "body"), {}, {"prompt": ("body",), "answer": ("body",)}),
        (("text", "body", "score"), {"column": "text"}, {}),
        (("text", "score"), {"column": "text"}, {}),
    ],
    ids=str,
)
def test_other_columns_that_could_be_meant(columns, given, expected, tmp_path):
    short = {"label": "yes no", "team": "red blue", "id": "0 1", "score": "0.5 0.25"}
    rows = [{name: short[name].split()[i % 2] if name in short else f"{name} number {i} of it" for name in columns}
            for i in range(12)]  # fmt: skip
    (tmp_path / "a.jsonl").write_text(lines(*rows))
    assert understand(tmp_path / "a.jsonl", given=given).candidates == expected

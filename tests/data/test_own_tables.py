"""Labelled texts, pairs and masked texts from tables as people have them: every format, columns by name, the split."""

import gzip
import json

import pytest

from clearhead.config import ConfigError
from clearhead.data import DataError, make_data, understand
from clearhead.data.text.parallel import Line
from clearhead.data.text.translations import split_pairs
from clearhead.training import train

TEXTS = [(f"text number {i}, and {'good' if i % 3 else 'bad'}", "very good" if i % 3 else "bad") for i in range(60)]
WORDS = {"vocabulary": "words", "minimum": 1}


def csv(head, rows, delimiter=","):
    return "".join(delimiter.join(f'"{value}"' for value in row) + "\n" for row in [head, *rows])


def write(path, head, rows):
    """Write rows in the format of a path's suffix."""
    objects = [dict(zip(head, row, strict=True)) for row in rows]
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an optional extra")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(objects), path)
        return
    content = {
        ".csv": csv(head, rows),
        ".tsv": "".join("\t".join(map(str, row)) + "\n" for row in [head, *rows]),
        ".jsonl": "".join(json.dumps(one) + "\n" for one in objects),
        ".json": json.dumps(objects, indent=1),
    }[path.suffixes[0]]
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())


def labelled(folder, **options):
    return make_data("labelled", {"path": "a.csv", **WORDS, **options}, seed=0, root=folder)


def seen(data, part):
    """The texts and labels of training or validation."""
    batches = (
        map(data.batch, range(data.steps_per_epoch)) if part == "train" else map(data.valid, range(data.valid_batches))
    )
    return [
        (data.tokens.decode(ids[1 : n - 1]), data.classes[label])
        for batch in batches
        for ids, n, label in zip(batch["ids"], batch["lengths"], batch["labels"], strict=True)
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz", "a.parquet"])
def test_labelled_texts_of_every_format_are_the_same(tmp_path, name):
    (tmp_path / "plain.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in TEXTS))
    expected = labelled(tmp_path, path="plain.tsv")
    write(tmp_path / name, ("Review", "mood"), TEXTS)
    for columns in ({}, {"text": "Review"}, {"text": "Review", "label": "mood"}):
        data = labelled(tmp_path, path=name, **columns)
        assert data.classes == ("bad", "very good")
        for part in ("train", "valid"):
            assert sorted(seen(data, part)) == sorted(seen(expected, part))
        assert data.description == expected.description


def test_columns_among_others_are_chosen_by_name(tmp_path):
    rows = [(i, text, label, label == "bad") for i, (text, label) in enumerate(TEXTS)]
    write(tmp_path / "a.jsonl", ("id", "body", "label", "is_bad"), rows)
    assert labelled(tmp_path, path="a.jsonl").classes == ("bad", "very good")
    assert labelled(tmp_path, path="a.jsonl", label="is_bad").classes == ("false", "true")
    assert len(labelled(tmp_path, path="a.jsonl", label="id", share=0.0).classes) == 60
    with pytest.raises(
        DataError, match=r"no column 'lable': expected one of id, body, label, is_bad; the nearest is label"
    ):
        labelled(tmp_path, path="a.jsonl", label="lable")
    with pytest.raises(DataError, match=r"text and label are both the column 'label'"):
        labelled(tmp_path, path="a.jsonl", text="label", label="label")
    with pytest.raises(DataError, match=r"a\.jsonl:1: the column 'id' is a number, 0: expected text"):
        labelled(tmp_path, path="a.jsonl", text="id")


def test_columns_without_a_header_are_chosen_by_number(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"{i}\t{label}\t{text}\n" for i, (text, label) in enumerate(TEXTS)))
    with pytest.raises(
        DataError, match=r'a\.tsv:1: expected two columns, text TAB label, got 3 .*text = "1" and label = "2"'
    ):
        labelled(tmp_path, path="a.tsv")
    data = labelled(tmp_path, path="a.tsv", text="3", label="2")
    assert sorted(seen(data, "train") + seen(data, "valid"))[0][1] in ("bad", "very good")
    assert data.classes == ("bad", "very good")


def test_the_user_says_whether_there_is_a_header(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nnice\tgood\nugly\tbad\n")
    for header, texts in ((None, 2), (True, 2), (False, 3)):
        data = labelled(tmp_path, path="a.tsv", share=0.0, header=header)
        assert data.description.startswith(f"{texts} texts to train on, 0 for validation")


def test_texts_that_are_there_twice_are_in_one_part(tmp_path):
    (tmp_path / "a.csv").write_text(csv(("text", "label"), TEXTS * 3))
    data = labelled(tmp_path, share=0.3)
    train, valid = ({text for text, _ in seen(data, part)} for part in ("train", "valid"))
    assert train
    assert valid
    assert not train & valid
    n = len(seen(data, "valid"))
    assert data.description == f"{180 - n} texts to train on, {n} for validation (share = 0.3 of the different texts)"


@pytest.mark.parametrize("valid", [False, True], ids=["a split", "a file for validation"])
def test_rows_without_a_value_are_left_out_and_counted(tmp_path, valid):
    write(tmp_path / "a.csv", ("text", "label"), [*TEXTS, ("", "bad"), ("  ", "bad"), ("no label", "")])
    write(tmp_path / "a.jsonl", ("source", "target"), [*TEXTS, ("nothing", None), ("", "nothing")])
    more = {"valid_path": "a.csv"} if valid else {}
    data = labelled(tmp_path, **more)
    assert len(seen(data, "train")) + (0 if valid else len(seen(data, "valid"))) == 60
    assert data.classes == ("bad", "very good")
    number = 6 if valid else 3
    assert data.description.endswith(f"; {number} rows without a text or a label left out")
    pairs = make_data("pairs", {"path": "a.jsonl"}, seed=0, root=tmp_path)
    assert pairs.description.endswith("; 2 rows without a source or a target left out")
    write(tmp_path / "b.csv", ("text", "label"), [("", "bad"), ("no label", "")])
    with pytest.raises(DataError, match=r"b\.csv: no row has a value in 'text' and in 'label'"):
        labelled(tmp_path, path="b.csv")


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_empty_lines_at_the_end_are_left_out(tmp_path, name):
    write(tmp_path / name, ("text", "label"), TEXTS)
    with (tmp_path / name).open("a") as file:
        file.write("\n\r\n\n")
    assert labelled(tmp_path, path=name).description.startswith("5")
    assert understand(tmp_path / name).rows == 60


def test_masked_texts_of_folders_and_tables_without_empty_ones(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_text("one text\n\nanother text\n")
    (tmp_path / "set" / "b.txt").write_text("a third text\n")
    write(tmp_path / "a.jsonl", ("text",), [("in a table",), ("",), (None,), ("one text",)])
    options = {"of": ["set", "a.jsonl"], "valid_share": 0.0, **WORDS}
    data = make_data("masked", options, seed=0, root=tmp_path)
    assert data.description == (
        "4 texts to train on, 0 for validation (valid_share = 0.0 of the different texts); 2 rows without text left out"
    )
    data = make_data("masked", {**options, "of": "set", "valid_path": "a.jsonl"}, seed=0, root=tmp_path)
    assert data.description == (
        "3 texts to train on, 2 for validation (from a.jsonl); 1 text of validation is in training too; "
        "2 rows without text left out"
    )
    assert data.files == ("set", "a.jsonl")


def test_a_rare_label_stays_in_training(tmp_path):
    (tmp_path / "a.csv").write_text(csv(("text", "label"), [*TEXTS, *((f"rare {i}", f"rare {i}") for i in range(20))]))
    data = labelled(tmp_path, share=0.5)
    assert len(data.classes) == 22
    assert {label for _, label in seen(data, "valid")} <= {label for _, label in seen(data, "train")}


def test_a_label_of_validation_alone_is_told_by_line_and_column(tmp_path):
    (tmp_path / "a.csv").write_text(csv(("text", "label"), TEXTS))
    (tmp_path / "v.csv").write_text(csv(("text", "label"), [TEXTS[0], ("new", "verygood")]))
    with pytest.raises(
        DataError,
        match=r"v\.csv:3: column 'label': no training text has the label 'verygood': expected one of bad, very good; "
        "the nearest is very good",
    ):
        labelled(tmp_path, valid_path="v.csv")
    (tmp_path / "v.csv").write_text(csv(("text", "label"), [TEXTS[0], ("new", "bad")]))
    assert labelled(tmp_path, valid_path="v.csv").description == (
        "60 texts to train on, 2 for validation (from v.csv); 1 text of validation is in training too"
    )


def test_cut_texts_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text(csv(("text", "label"), [*TEXTS, ("long " * 40, "bad")]))
    assert labelled(tmp_path, longest=24).description.endswith("; 1 text is cut to longest = 24 tokens")


PAIRS = [(f"It is {i // 2}.", f"Es ist {i // 3}.") for i in range(60)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.tsv.gz", "a.parquet"])
@pytest.mark.parametrize("join", [True, False])
def test_pairs_of_every_format_are_the_same(tmp_path, name, join):
    (tmp_path / "plain.txt").write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS))
    write(tmp_path / name, ("de", "id", "en"), [(other, i, one) for i, (one, other) in enumerate(PAIRS)])
    more = {"join": join} | ({} if join else WORDS)
    expected = make_data("pairs", {"path": "plain.txt", **more}, seed=0, root=tmp_path)
    data = make_data("pairs", {"path": name, "source": "en", **more}, seed=0, root=tmp_path)
    for key, array in expected.batch(0).items():
        assert (data.batch(0)[key] == array).all()
    assert data.description == expected.description
    assert "for validation (share = 0.05 of the different sources)" in data.description


def test_pairs_are_split_by_either_side():
    lines = [Line(source=one, target=other, where="") for one, other in PAIRS]
    for side, other in (("source", "target"), ("target", "source")):
        train, valid = split_pairs(lines, 0.3, side)
        assert valid
        assert len(train) + len(valid) == 60
        assert not {getattr(line, side) for line in train} & {getattr(line, side) for line in valid}
        assert {getattr(line, other) for line in train} & {getattr(line, other) for line in valid}


def test_a_column_of_pairs_that_is_missing_is_told(tmp_path):
    write(tmp_path / "a.csv", ("source", "traget", "id"), [("a b", "c", 1), ("d", "e", 2)])
    with pytest.raises(DataError, match=r"none of the columns source, traget, id is called target or tgt .*target = "):
        make_data("pairs", {"path": "a.csv"}, seed=0, root=tmp_path)
    with pytest.raises(ConfigError, match="tokens is for join=false"):
        make_data("pairs", {"path": "a.csv", "tokens": "x"}, seed=0, root=tmp_path)


def test_left_out_pairs_are_counted(tmp_path):
    write(tmp_path / "a.csv", ("source", "target"), [*PAIRS, ("a " * 30, "b")])
    data = make_data("pairs", {"path": "a.csv", "join": False, "longest": 9, **WORDS}, seed=0, root=tmp_path)
    assert data.description.endswith("; 1 pair of more than 9 tokens left out")


def test_a_mixture_of_translations_reads_tables(tmp_path):
    write(tmp_path / "a.csv", ("en", "de"), PAIRS)
    write(tmp_path / "b.jsonl", ("source", "target"), PAIRS)
    data = make_data("translations", {"of": ["a.csv", "b.jsonl"], "valid_share": 0.0, **WORDS}, seed=0, root=tmp_path)
    assert sum(len(data.batch(i)["ids"]) for i in range(data.steps_per_epoch)) == 120


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_masked_texts_of_tables(tmp_path, name):
    (tmp_path / "plain.txt").write_text("".join(f"{text}\n\n" for text, _ in TEXTS))
    write(tmp_path / name, ("sentence", "label"), TEXTS)
    expected = make_data("masked", {"of": "plain.txt", **WORDS}, seed=0, root=tmp_path)
    for more in ({}, {"column": "sentence"}):
        data = make_data("masked", {"of": name, **WORDS, **more}, seed=0, root=tmp_path)
        assert (data.batch(0)["ids"] == expected.batch(0)["ids"]).all()
    assert "for validation (valid_share = 0.02 of the different texts)" in data.description


def test_a_training_says_how_it_was_divided(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(csv(("text", "label"), TEXTS))
    recipe = {
        "data": {"name": "labelled", "path": "a.csv", **WORDS},
        "model": {"name": "bert", "width": 8, "depth": 1, "heads": 2, "answer": "class"}, "steps": 1,
    }  # fmt: skip
    run = train(recipe, out=tmp_path / "run", data=tmp_path, device="cpu")
    expected = labelled(tmp_path).description
    assert f"data: {expected}" in capsys.readouterr().err
    assert any(expected in path.read_text() for path in run.folder.glob("*.json*"))

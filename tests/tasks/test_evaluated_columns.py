"""The columns of a file that an evaluation reads: those of the model's training, or those that the user names."""

import json

import pytest
import torch

from clearhead import Bundle, build, config, evaluate, load, save
from clearhead.data import DataError
from clearhead.data.files import fingerprint
from clearhead.data.text.labelled import LabelledConfig, divided
from clearhead.data.text.translations import PairConfig
from clearhead.errors import Notice
from clearhead.tasks.evaluation.columns import labelled_columns, pair_columns
from clearhead.tokens import Pair, Words
from clearhead.training import train

WORDS = ["un", "deux", "one", "two"]


def translator(**columns):
    torch.manual_seed(0)
    words = Words(WORDS)
    model = build("transformer", vocab=len(words), width=8, depth=1, heads=1, context=16)
    return Bundle(model, Pair(words, words), columns=columns)


def of_a_set(folder, **data):
    """A translator whose recipe names its languages."""
    save(translator(), folder / "run" / "model")
    config.write({"steps": 1, "data": data, "model": {"name": "transformer"}}, folder / "run" / "recipe.toml")
    return load(folder / "run", device="cpu")


def table(folder, *rows, name="a.tsv"):
    (folder / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder / name


FRENCH, ENGLISH = [("fr", "en"), ("un", "one")], [("en", "fr"), ("one", "un")]


@pytest.mark.parametrize("rows", [FRENCH, ENGLISH], ids=["in order", "swapped"])
@pytest.mark.parametrize("how", ["named", "columns", "recipe"])
def test_a_file_is_read_in_the_direction_of_the_model_or_of_the_user(tmp_path, rows, how):
    path = table(tmp_path, *rows)
    if how == "named":
        found = evaluate(translator(), path, source="fr", target="en", beams=1, limit=2)
    elif how == "columns":
        found = evaluate(translator(source="fr", target="en"), path, beams=1, limit=2)
    else:
        found = evaluate(of_a_set(tmp_path, name="tatoeba", source="fr", target="en"), path, beams=1, limit=2)
    assert found.references == ["one"]


@pytest.mark.parametrize(
    ("columns", "words", "rows", "expected"),
    [
        ({}, (None, None), [("un", "one")], ("1", "2")),
        ({"source": "2", "target": "1"}, (None, None), [("one", "un")], ("2", "1")),
        ({"source": "2", "target": "1"}, ("1", "2"), [("un", "one")], ("1", "2")),
        ({"source": "2", "target": "1"}, (None, None), [("target", "source"), ("one", "un")], ("source", "target")),
        ({"source": "1", "target": "2"}, (None, None), ENGLISH, ("en", "fr")),
        ({"source": "fr", "target": "en"}, (None, None), [("un", "one")], ("1", "2")),
        ({"source": "fr", "target": "en"}, (None, None), [("en_GB", "fr_FR"), ("one", "un")], ("fr_FR", "en_GB")),
        ({"source": "fr", "target": "en"}, ("en", "fr"), ENGLISH, ("en", "fr")),
        ({}, ("French", None), ENGLISH, ("fr", "en")),
        ({}, ("2", "1"), ENGLISH, ("fr", "en")),
        ({}, ("fr", "en"), [("source", "target"), ("un", "one")], ("source", "target")),
        ({}, ("fr", "en"), [("un", "one")], ("1", "2")),
        ({}, ("eo", "gsw_CH"), [("un", "one")], ("1", "2")),
    ],
)  # fmt: skip
def test_columns_of_pairs(tmp_path, columns, words, rows, expected):
    found = pair_columns(translator(**columns), table(tmp_path, *rows), *words)
    assert (found.first, found.second) == expected


@pytest.mark.parametrize(
    ("columns", "words", "rows", "message"),
    [
        ({"source": "fr", "target": "en"}, (None, None), [("en", "de"), ("one", "eins")], r"the columns en, de, and "
         r"the model was trained on fr as the source and en as the target: expected source=COLUMN target=COLUMN"),
        ({"source": "2", "target": "1"}, (None, None), ENGLISH, r"was trained on 2 as the source and 1 as the target"),
        ({}, ("de", "en"), ENGLISH, r"there is no column 'de': expected one of en, fr"),
        ({}, ("3", "1"), [("un", "one")], r"there is no column '3': expected one of 1, 2"),
        ({}, ("fr", "fr"), ENGLISH, r"source and target are both the column 'fr'"),
    ],
)  # fmt: skip
def test_a_direction_that_contradicts_the_file_is_refused(tmp_path, columns, words, rows, message):
    with pytest.raises(DataError, match=message):
        pair_columns(translator(**columns), table(tmp_path, *rows), *words)


def test_a_classifier_is_evaluated_on_the_column_that_it_learned(tmp_path):
    rows = [("text", "label", "helpful")]
    rows += [(f"{'ab'[i % 2]} {'cd'[i // 2 % 2]} {i}", str(i % 2), str(i // 2 % 2)) for i in range(40)]
    path = table(tmp_path, *rows)
    recipe = {
        "steps": 1, "model": {"name": "bert", "answer": "class", "width": 8, "depth": 1, "heads": 2},
        "data": {"name": "labelled", "path": str(path), "label": "helpful", "vocabulary": "words", "minimum": 1},
    }  # fmt: skip
    run = train(recipe, out=tmp_path / "run", device="cpu", quiet=True)
    truth = [row[2] for row in rows[1:]]
    save(run.model, tmp_path / "moved")
    for made in (run.model, load(tmp_path / "run"), load(tmp_path / "moved")):
        assert evaluate(made, path, split="all").references == truth
    assert evaluate(run.model, path, label="label", split="all").references == [row[1] for row in rows[1:]]
    with pytest.raises(DataError, match=r"no column 'lable'.*the nearest is label"):
        evaluate(run.model, path, label="lable")


def classifier(folder, **data):
    """A classifier whose run was trained on this data."""
    words = Words(["a", "b", "c", "d"])
    model = build("bert", answer="class", classes=2, vocab=len(words) + 1, width=8, depth=1, heads=2, context=8)
    save(Bundle(model, words, labels=("0", "1")), folder / "model")
    config.write({"steps": 1, "data": {"name": "labelled", **data}, "model": {"name": "bert"}}, folder / "recipe.toml")
    return load(folder, device="cpu")


def test_of_the_table_that_a_classifier_was_trained_on_the_held_out_rows_are_evaluated(tmp_path):
    texts = [f"{'abcd'[i % 4]} {'x' * i}" for i in range(30)]
    rows = [(text, str(i % 2)) for i, text in enumerate(texts)]
    path = table(tmp_path, ("text", "label"), ("a", ""), *rows, ("", "1"))
    made = classifier(tmp_path / "run", path=str(path), share=0.4)
    train, valid, _, description = divided(LabelledConfig(path=str(path), share=0.4), None)
    assert "2 rows without a text or a label left out" in description
    assert 5 < len(valid) < len(train)
    found = evaluate(made, path)
    assert (found.data, found.left_out, found.remark) == (
        f"{path} valid", 2, "held out of its training; split=all takes all"
    )  # fmt: skip
    for split, expected in ((None, valid), ("valid", valid), ("train", train)):
        assert evaluate(made, path.name, split=split, root=tmp_path).references == [line.label for line in expected]
    assert evaluate(made, path, split="all").references == [label for _, label in rows]
    assert evaluate(made, path, split="all").data == str(path)
    with pytest.raises(ValueError, match=r"split='test': expected one of valid, train, all"):
        evaluate(made, path, split="test")
    other = table(tmp_path, ("text", "label"), ("a", ""), *rows, name="other.tsv")
    assert (len(evaluate(made, other).references), evaluate(made, other).left_out) == (30, 1)
    known = classifier(tmp_path / "known", path=str(path), valid_path=str(other))
    assert len(evaluate(known, other).references) == 30
    with pytest.warns(Notice, match=r"a\.tsv: the model was trained on all of it"):
        assert len(evaluate(known, path).references) == 30


def test_a_table_is_known_by_its_content_and_a_change_is_said(tmp_path):
    rows = [(f"{'abcd'[i % 4]} {'x' * i}", str(i % 2)) for i in range(30)]
    path = table(tmp_path, ("text", "label"), *rows)
    made = classifier(tmp_path / "run", path=str(path), share=0.4)
    known = {"attempts": [{"files": {str(path): fingerprint(path)}}]}
    (tmp_path / "run" / "facts.json").write_text(json.dumps(known))
    assert evaluate(made, path).data == f"{path} valid"
    copied = table(tmp_path, ("text", "label"), *rows, name="copied.tsv")
    assert evaluate(made, copied).data == f"{copied} valid"
    table(tmp_path, ("text", "label"), ("d new", "1"), *rows)
    with pytest.warns(Notice, match=r"a\.tsv has changed since the training: rows that are now held out may have been"):
        evaluate(made, path)


def test_of_the_pairs_that_a_translator_was_trained_on_the_held_out_ones_are_translated(tmp_path):
    rows = [(f"{a} {b}", f"{b} {a}") for a in WORDS for b in WORDS]
    path = table(tmp_path, *rows, ("un", ""))
    made = of_a_set(tmp_path, name="pairs", path=str(path), share=0.25)
    train, valid, *_ = PairConfig(path=str(path), share=0.25).read(None)
    for split, expected in ((None, valid), ("train", train)):
        found = evaluate(made, path, split=split, beams=1, limit=2)
        assert (found.references, found.left_out) == ([line.target for line in expected], 1)
    assert len(evaluate(made, path, split="all", beams=1, limit=2).references) == len(rows)


def test_columns_that_a_file_does_not_have_are_found_by_their_usual_names(tmp_path):
    words = Words(["a", "b"])
    model = build("bert", answer="class", classes=2, vocab=len(words) + 1, width=8, depth=1, heads=2, context=8)
    made = Bundle(model, words, labels=("0", "1"), columns={"text": "review", "label": "helpful"})
    for head, expected in (
        (("review", "label", "helpful"), ("review", "helpful")),
        (("text", "label"), ("text", "label")),
    ):
        found = labelled_columns(made, table(tmp_path, head, ("a", "0", "1")[: len(head)]), None, None)
        assert (found.first, found.second) == expected
    found = labelled_columns(made, table(tmp_path, ("a b", "0"), ("b a", "1")), None, None)
    assert (found.first, found.second) == ("1", "2")


def test_the_columns_of_a_training_are_kept_with_its_model(tmp_path):
    path = table(tmp_path, *[(f"{a} {b}", f"{b} {a}") for a in WORDS for b in WORDS])
    data = {"name": "pairs", "path": str(path), "source": "2", "target": "1", "join": False, "vocabulary": "words"}
    recipe = {"steps": 1, "data": data, "model": {"name": "transformer", "width": 8, "depth": 1, "heads": 1}}
    run = train(recipe, out=tmp_path / "run", device="cpu", quiet=True)
    assert load(tmp_path / "run").columns == {"source": "2", "target": "1"}
    assert evaluate(run.model, path, split="all", beams=1, limit=2).references[1] == "un deux"

"""clearhead data FILE: what it prints for a file, and what for a name."""

import json

import pytest
from PIL import Image

from clearhead.cli.data_report import section
from clearhead.config import Table, load
from clearhead.data import make_data, understand
from clearhead.tokens import Words, save
from support.command_line import call


def run(*words):
    return call("data", *words)


@pytest.fixture
def reviews(tmp_path):
    rows = "".join(f'"A film, number {i}",{"good" if i % 3 else "bad"}\n' for i in range(30))
    path = tmp_path / "reviews.csv"
    path.write_text("sentence,sentiment\n" + rows + '"A film, number 1",good\n')
    return path


def test_a_file_is_described(reviews):
    out = run(reviews, "--context", 3).stdout
    for line in (
        "format csv, utf-8, comma-separated",
        "header yes",
        "columns sentence, sentiment",
        "kind labelled: the columns sentence and sentiment are texts and labels",
        "rows 31",
        "labels good: 21, bad: 10",
        "duplicates 1 row with the texts of an earlier one",
        "split share = 0.1 of the different texts is kept for validation: about 3 of 31 rows",
        "cut 31 of 31 rows (100.0%) have more than 3 words: longest cuts them; a word is a token or more, which "
        "--tokens FOLDER counts",
        "1 sentence A film, number 0",
        "sentence characters 17 17 17",
        'name = "labelled"',
        'text = "sentence"',
    ):
        assert any(" ".join(found.split()) == line for found in out.splitlines()), line


def test_the_printed_section_opens_the_data(reviews, tmp_path):
    out = run(reviews).stdout
    (tmp_path / "recipe.toml").write_text(out[out.index("[data]") :])
    options = load(tmp_path / "recipe.toml")["data"]
    assert isinstance(options, Table)
    assert make_data("labelled", options.without("name"), seed=0).classes == ("bad", "good")


def test_json_has_all_of_it(reviews, tmp_path):
    save(Words(["A", "film"]), tmp_path / "words")
    found = json.loads(run(reviews, "--json", "--tokens", tmp_path / "words").stdout)
    assert found["options"]["text"] == "sentence"
    assert found["lengths"]["sentence"]["tokens"] == {"median": 5, "most": 5, "largest": 5}
    assert found["labels"] == {"good": 21, "bad": 10}


def test_a_name_keeps_its_meaning(reviews, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reverse").write_text("a file of the same name")
    assert "symbols" in run("reverse").stdout
    assert "shakespeare" in run().stdout
    assert "the nearest is reverse" in run("rverse").stderr
    assert "reviews.csv" in run("reviews.csv").stdout
    assert "there is no file or folder" in run("nothing.csv").stderr
    assert run("nothing.csv").exit_code == 1


def test_a_chat_needs_the_folder_of_a_tokenizer(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n")
    assert section(understand(path)).endswith('tokens = "FOLDER"  # a checkpoint with a chat template')


def test_images_are_described(tmp_path):
    for i, name in enumerate(("cat/1.png", "dog/1.png", "dog/2.png")):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6 + i)).save(tmp_path / "pets" / name)
    out = " ".join(run(tmp_path / "pets").stdout.split())
    for words in ("images 3", "classes dog: 2, cat: 1", "sizes 8 x 6, 8 x 7, 8 x 8", 'name = "images"'):
        assert words in out
    assert json.loads(run(tmp_path / "pets", "--json").stdout)["labels"] == {"dog": 2, "cat": 1}
    (tmp_path / "pets" / "3.png").write_bytes((tmp_path / "pets" / "cat" / "1.png").read_bytes())
    assert "some images are in no folder of a class" in " ".join(run(tmp_path / "pets").stdout.split())

"""Unusual texts: nothing breaks, nothing is dropped without a notice, and every line keeps its place."""

import gzip
import io
import json
import lzma
import sys

import pytest
import torch

from clearhead import Bundle, build, save, translate
from clearhead.cli import main
from clearhead.data.files import as_line
from clearhead.look import Notice
from clearhead.tokens import Characters, Pair, Subwords, Words
from support.command_line import call

ENGLISH = ["A dog runs .", "The cat eats a mouse .", "Two dogs see the cat ."] * 3
GERMAN = ["Ein Hund rennt .", "Die Katze frisst eine Maus .", "Zwei Hunde sehen die Katze ."] * 3
CONTEXT = 24
KINDS = {
    "words": Words.of,
    "subwords": lambda texts: Subwords.of(texts, size=300),
    "unigram": lambda texts: Subwords.of(texts, size=300, kind="unigram"),
    "characters": lambda texts: Characters.of("".join(texts), special=True),
}
BAD = {
    "nothing": "",
    "white space": " \t\u00a0\u2003 ",
    "ten thousand words": "dog " * 10_000,
    "one long word": "a" * 30_000,
    "emoji": "A 🙂 dog 👩‍👧‍👦 runs 🏳️‍🌈🇩🇪 .",
    "other alphabets": "Привет, мир! 日本語です。 مرحبا بالعالم नमस्ते",
    "control characters": "A\x00 dog\x07 \x1b[31mruns\x1b[0m \x7f\u202e\ufffe\r\x0b .",
    "what looks special": "<end> <pad> <unk> <start> A dog",
    "combining marks": "Z̸̢̛a̷͊l̵͝g̶̀o̴̾" * 20,
    "line ends": "A dog\nruns\r\n.\u2028The\x85cat",
}


def bundle(kind: str = "words", family: str = "transformer", **options) -> Bundle:
    torch.manual_seed(3)
    tokens = Pair(KINDS[kind](ENGLISH), KINDS[kind](GERMAN))
    sizes = {"vocab": len(tokens.source), "target_vocab": len(tokens.target), "width": 8, "depth": 1}
    sizes |= {"heads": 2, "positions": "learned"} if family == "transformer" else {"hidden": 6}
    model = build(family, **{**sizes, "context": CONTEXT, **options})
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)  # so that its output depends on its input
    return Bundle(model, tokens, model.config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(bundle("subwords"), tmp_path_factory.mktemp("bad") / "model")


def translated(folder, text, *options, stdin=None):
    return call("translate", folder, text, "beams=2", "limit=6", *options, stdin=stdin)


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_has_a_translation_and_changes_no_other(kind):
    made = bundle(kind)
    with pytest.warns(Notice):
        *found, last = translate(made, [*BAD.values(), ENGLISH[0]], beams=2, limit=6)
    assert len(found) == len(BAD)
    assert last.text == translate(made, ENGLISH[0], beams=2, limit=6).text
    for name, one in zip(BAD, found, strict=True):
        if name in ("nothing", "white space"):
            assert (one.text, one.source, one.target, one.cut) == ("", [], [], False)
        else:
            assert len(one.target) > 0, name
        assert one.alignment.shape == (len(one.target), len(one.source))
        json.dumps(one.to_dict())


def test_a_recurrent_model_translates_them_too():
    made = bundle("subwords", "rnn-seq2seq", attention="none")
    with pytest.warns(Notice):
        found = translate(made, list(BAD.values()), beams=2, limit=6)
    assert len(found) == len(BAD)
    assert all(one.to_dict()["alignment"] == [] for one in found)  # it has no attention


def test_long_texts_are_named_in_one_notice():
    made = bundle()
    with pytest.warns(Notice) as notices:
        found = translate(made, ["A dog", "dog " * 50, "", "cat " * 10_000, "cat"], beams=1)
    assert [one.cut and len(one.source) == CONTEXT for one in found] == [False, True, False, True, False]
    assert [str(one.message) for one in notices] == [
        "text 2, 4 of 5 is longer than the 24 tokens that this model reads (the longest has 10001): the rest was "
        "left out; split it"
    ]
    whole = "dog " * (CONTEXT - 1)  # plus the end token
    assert len(translate(made, whole, beams=1).source) == CONTEXT


def test_a_translation_is_no_longer_than_the_limit_and_the_context():
    made = bundle()  # with a table of positions
    assert len(translate(made, "A dog", beams=1, limit=3).target) <= 3
    assert len(translate(made, "A dog", beams=1, limit=10_000).target) <= CONTEXT
    with pytest.raises(ValueError, match="expected 1 token or more"):
        translate(made, "A dog", limit=0)


# Files, stdin and the command line


def test_every_line_of_a_file_gives_one_line(folder, tmp_path):
    path = tmp_path / "in.txt"
    texts = ["A dog .", "", "\x07\x01", "   ", "🙂", *ENGLISH, ""]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    found = translated(folder, path)
    assert found.exit_code == 0
    lines = found.stdout.split("\n")
    assert len(lines) == len(texts) + 1
    assert [i for i, line in enumerate(lines) if not line] == [1, 3, len(texts) - 1, len(texts)]
    assert lines[0] == translated(folder, "A dog .").stdout.rstrip("\n")
    assert [json.loads(line)["input"] for line in translated(folder, path, "--json").stdout.splitlines()] == texts


def test_line_ends_within_a_translation_become_spaces():
    assert as_line("a\nb\r\nc\rd\x0be\x85f\u2028g") == "a b c d e f g"
    assert as_line("") == ""


def test_a_model_that_writes_line_ends_still_gives_one_line_per_text(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Subwords, "decode", lambda self, ids: "ein\nHund\r\n")
    path = tmp_path / "in.txt"
    path.write_text("A dog\nThe cat\n")
    assert translated(folder, path).stdout == "ein Hund\nein Hund\n"
    assert json.loads(translated(folder, path, "--json").stdout.splitlines()[0])["text"] == "ein\nHund\r\n"


@pytest.mark.parametrize(
    "content", [b"A dog .\r\n\r\nThe cat\r\n", b"\xef\xbb\xbfA dog .\n\nThe cat", b"A dog .\n\nThe cat\n"]
)
def test_line_ends_of_windows_byte_order_marks_and_gzip_make_no_difference(folder, tmp_path, content):
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    found = translated(folder, path)
    assert found.stdout.split("\n")[1:] == ["", translated(folder, "The cat").stdout.rstrip("\n"), ""]
    assert found.stdout.startswith(translated(folder, "A dog .").stdout)
    assert translated(folder, "-", stdin=content).stdout == found.stdout
    (tmp_path / "in.gz").write_bytes(gzip.compress(content))
    assert translated(folder, tmp_path / "in.gz").stdout == found.stdout
    (tmp_path / "in.txt.xz").write_bytes(lzma.compress(content))
    assert translated(folder, tmp_path / "in.txt.xz").stdout == found.stdout
    path.write_bytes(content.decode("utf-8-sig").encode("utf-16"))
    assert translated(folder, path).stdout == found.stdout


def test_an_empty_file_gives_no_output(folder, tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbf")
    for found in (
        translated(folder, tmp_path / "empty.txt"),
        translated(folder, tmp_path / "mark.txt"),
        translated(folder, "-", stdin=b""),
    ):
        assert (found.exit_code, found.stdout) == (0, "")
    assert translated(folder, tmp_path / "empty.txt", "--json").stdout == ""
    assert translated(folder, "").stdout == "\n"  # one empty text


@pytest.mark.parametrize(
    ("content", "line", "empty"),
    [
        (b"A dog\nb\xff\xfed\nThe cat\n", 2, [2]), (b"\n\n\xc3\nA dog\n", 3, [1, 2, 3]),
        ("A dog".encode("utf-16-le"), 1, [1]), (b"\xed\xa0\x80", 1, [1]),
    ],
)  # fmt: skip
def test_a_line_that_is_not_utf8_is_named_and_the_others_are_translated(folder, tmp_path, content, line, empty):
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    found = translated(folder, path)
    assert found.exit_code == 1
    assert [i for i, one in enumerate(found.stdout.split("\n")[:-1], 1) if not one] == empty
    first, last = found.stderr.splitlines()
    assert first.startswith(f"{path}:{line}: column ")
    assert "is not UTF-8 text" in first or "a NUL character: expected text, in UTF-8, or" in first
    assert last == f"1 of {found.stdout.count(chr(10))} lines has no result"
    assert translated(folder, "-", stdin=content).stderr.startswith(f"stdin:{line}: column ")


def test_a_long_sentence_is_not_taken_for_a_file_name(folder):
    """Asking the system for a file of this name would raise an error."""
    for text in ("dog " * 100, "a" * 5000, "dog\0cat", "A dog\nruns", "x/" * 300):
        found = translated(folder, text)
        assert found.exit_code == 0
        assert found.stdout.count("\n") == 1


def test_a_long_line_of_a_file_gives_a_notice_of_one_line(folder, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("A dog\n" + "dog " * 10_000 + "\n")
    found = translated(folder, path)
    assert found.exit_code == 0
    assert found.stdout.count("\n") == 2
    assert found.stderr.startswith(f"{path}:2: longer than the 24 tokens that this model reads (it has 100")
    assert found.stderr.count("\n") == 1


def test_an_argument_that_is_not_utf8_is_an_error(folder):
    found = translated(folder, "A dog \udcff")  # how Python represents such a byte
    assert found.exit_code == 1
    assert "half a character" in found.stderr


def test_output_is_utf8_whatever_the_locale(folder, monkeypatch):
    monkeypatch.setattr(Subwords, "decode", lambda self, ids: "größer 🙂")
    monkeypatch.setattr(sys, "argv", ["clearhead", "translate", str(folder), "A dog", "limit=6"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with pytest.raises(SystemExit, match="0"):
        main()
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().decode() == "größer 🙂\n"

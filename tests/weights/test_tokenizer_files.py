"""Tokenizer files of Hugging Face folders: every format gives the ids of the library that wrote it."""

import json
from pathlib import Path
from typing import Any

import pytest

import clearhead as ch
from clearhead.errors import InputError
from clearhead.tokens import Pieces, Subwords
from clearhead.tokens.chat_template import read_template
from clearhead.weights import WeightsError
from clearhead.weights.huggingface.tokenizers import read_subwords

TEXTS = [
    "A dog runs, it's naïve.", "", " ", "Über Straße 漢字 x", "\tTabs\n\nand  spaces ", "e\u0301 İstanbul ﬁne ½",
    "👩\u200d👧!", "unaffable [CLS] [MASK]", "\x00\x07 control \u200b", "x" * 120, "don't 3.14 C++",
]  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", ",", "it", "'", "s", "na", "##ive", "##ï",
         "ve", ".", "un", "##aff", "##able", "x", "##x", "!", "A", "Dog", "uber", "strasse", "##ber", "u", "[", "]",
         "cls", "e", "don", "t", "3", "14", "c", "+", "漢", "ist", "##anbul", "##f", "##ine", "mask"]  # fmt: skip


def bert(folder: Path, **config: Any) -> Any:
    """Write a folder with vocab.txt; returns the tokenizer of transformers for it."""
    transformers = pytest.importorskip("transformers")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    # BERT's own default, which the class of transformers 5.0 does not have.
    given = {"do_lower_case": True} if "do_lower_case" not in config else {}
    return transformers.BertTokenizer.from_pretrained(folder, **given)


@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": True}, {"do_lower_case": False}, {"strip_accents": False}], ids=str
)
@pytest.mark.parametrize("text", TEXTS)
def test_word_pieces_equal_those_of_bert_tokenizer(config: dict, text: str, tmp_path: Path) -> None:
    theirs, ours = bert(tmp_path, **config), read_subwords(tmp_path)
    wrapped = theirs(text, split_special_tokens=True)["input_ids"]
    assert ours.wrapped(text).tolist() == wrapped
    assert ours.encode(text).tolist() == wrapped[1:-1]
    assert (wrapped[0], wrapped[-1]) == (2, 3)
    assert (ours.pad, ours.start, ours.end, ours.unknown) == (0, 2, 3, 1)
    assert ours.decode(wrapped) == theirs.decode(wrapped, skip_special_tokens=True)


def test_special_tokens_in_a_text_are_recognised_only_by_marked(tmp_path: Path) -> None:
    theirs, ours = bert(tmp_path), read_subwords(tmp_path)
    text = "a [MASK] runs"
    assert 4 not in ours.encode(text)
    assert 4 not in ours.wrapped(text)
    assert ours.marked(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert 4 in ours.marked(text)


def test_byte_pairs_equal_those_of_gpt2_tokenizer(tmp_path: Path) -> None:
    learned = json.loads(Subwords.of(TEXTS * 2, size=330).to_str())["model"]
    vocab = {word: i for word, i in learned["vocab"].items() if i > 3} | {
        "<|endoftext|>": 0
    }  # without our special tokens
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    merges = [" ".join(pair) for pair in learned["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    theirs, ours = (
        pytest.importorskip("transformers").GPT2Tokenizer.from_pretrained(tmp_path),
        read_subwords(tmp_path),
    )
    for text in TEXTS:
        assert ours.wrapped(text).tolist() == theirs(text, split_special_tokens=True)["input_ids"], text
        assert ours.decode(ours.encode(text)) == text
    assert ours.end == 0
    assert ours.marked("a<|endoftext|>").tolist()[-1] == ours.end
    (tmp_path / "merges.txt").write_text("a b c\n")
    with pytest.raises(WeightsError, match=r"merges.txt:1: 'a b c': expected two tokens that make a third"):
        read_subwords(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": b"\xff\xfe"}, r"vocab.txt: is not UTF-8 text"),
        ({"vocab.json": b"{}", "merges.txt": b"\xff\xfe"}, r"merges.txt: is not UTF-8 text"),
        ({"vocab.json": b'{"a": -1}', "merges.txt": b""}, r"vocab.json:1: the token 'a' has the id -1"),
        ({"vocab.json": b'{"a": 1.5}', "merges.txt": b""}, r"vocab.json:1: the token 'a' has the id 1.5"),
        ({"vocab.json": b'{"a": 0, "b": 0}', "merges.txt": b""}, r"vocab.json: two tokens have the same id"),
    ],
)
def test_damaged_tokenizer_files_are_named(files: dict, message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_subwords(tmp_path)


def test_a_chat_template_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"chat_template.jinja: is not UTF-8 text"):
        read_template(tmp_path)


def test_a_vocabulary_without_cls_and_sep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\n[UNK]\n")
    with pytest.raises(WeightsError, match=r"vocab.txt: there is no \[CLS\] token"):
        read_subwords(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    assert read_subwords(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "{{ a }}"}}, "{{ a }}"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool", "template": "x"},
                                                      {"name": "default", "template": "y"}]}}, "y"),
        ({"tokenizer_config.json": {"chat_template": "old"}, "chat_template.jinja": "new"}, "new"),
    ],
)  # fmt: skip
def test_a_chat_template_is_kept(files: dict, expected: str | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    template = read_template(tmp_path)
    assert template == expected
    tokens = Subwords.of(["a dog"], size=270)
    model = ch.build("gpt", vocab=len(tokens), width=6, depth=1, heads=3, context=9)
    bundle = ch.Bundle(model, tokens, model.config, chat=template)
    for layout in ("clearhead", "huggingface"):
        again = ch.load(ch.save(bundle, tmp_path / "model", layout=layout), device="cpu")
        assert again.chat == template
        assert again.tokens == tokens
    ch.save(ch.Bundle(model, tokens, model.config), tmp_path / "model")
    assert ch.load(tmp_path / "model", device="cpu").chat is None  # that of the model before it is removed


def test_a_tokenizer_without_a_hugging_face_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    tokens = ch.tokens.Characters.of("a dog")
    model = ch.build("gpt", vocab=len(tokens), width=6, depth=1, heads=3, context=9)
    ch.save(ch.build("gpt", vocab=270, width=6, depth=1, heads=3), tmp_path / "a", tokens=Subwords.of(["a"], size=270))
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    with pytest.raises(WeightsError, match=r"Characters\(.*: a Hugging Face folder has subwords"):
        ch.save(model, tmp_path / "a", tokens=tokens, layout="huggingface")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_sentencepiece_tokenizers_are_kept_and_mistakes_refused(tmp_path: Path) -> None:
    from clearhead.tokens.sentencepiece import SentencePieceModel

    model = SentencePieceModel(
        pieces=("<unk>", "<s>", "</s>", "\u2581a", "b"), scores=(0.0, 0.0, 0.0, -1.0, -2.0), types=(2, 3, 3, 1, 1)
    )
    tokens = Pieces(model, special={"pad": 0}, first=True)
    assert tokens.encode("ab  a b").tolist() == [3, 4, 3, 0, 4]  # a space alone is unknown
    assert tokens.decode([1, 3, 4, 2]) == "ab"
    assert tokens.words([1, 3, 4, 3, 2]) == [-1, 0, 0, 1, -1]
    assert tokens.pieces([1, 3, 4]) == ["<s>", " a", "b"]
    assert Pieces.from_dict(json.loads(json.dumps(tokens.to_dict()))) == tokens
    ch.tokens.save(tokens, tmp_path)
    assert ch.tokens.load(tmp_path) == tokens
    assert ch.tokens.load(tmp_path) != Pieces(model)
    with pytest.raises(ValueError, match="half a character"):
        tokens.encode("\ud800")
    with pytest.raises(ValueError, match="special id stop=1: expected one of pad, start, end, unknown"):
        Pieces(model, special={"stop": 1})
    with pytest.raises(ValueError, match="2 pieces with 1 numbers"):
        Pieces(model, {"<unk>": 0, "a": 0})
    with pytest.raises(ValueError, match="there is no piece for what is unknown"):
        Pieces(model, {"a": 0})
    with pytest.raises(ValueError, match="kind 'word': expected unigram or bpe"):
        SentencePieceModel(pieces=("<unk>",), scores=(0.0,), types=(2,), kind="word")

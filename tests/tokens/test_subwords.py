"""Subwords: lossless, deterministic, and compatible with the tokenizer.json of other libraries."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead import tokens
from clearhead.tokens import Subwords, split

TEXTS = [
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Un homme en T-shirt bleu, debout sur une échelle, nettoie l'unique fenêtre.",
    "Two dogs are running over the green grass; the dogs don't stop.",
] * 5
KINDS = ("bpe", "unigram")
LEARNED = {kind: Subwords.of(TEXTS, size=380, kind=kind) for kind in KINDS}

anything = st.text()
odd = st.lists(st.sampled_from(["<pad>", "<start>", "<end>", "<unk>", " ", "\n", "\x00", "👩‍👧", "é", "a", "'t"])).map(
    "".join
)


@pytest.mark.parametrize("kind", KINDS)
@given(text=anything | odd)
def test_decode_undoes_encode(kind, text):
    subwords = LEARNED[kind]
    ids = subwords.encode(text)
    assert ids.dtype == np.int64
    assert subwords.decode(ids) == text
    assert subwords.decode([1, *ids, 2, 0]) == text  # special ids are left out
    assert not set(ids.tolist()) & {0, 1, 2, 3}
    assert [one.tolist() for one in subwords.encode_all([text, "x"])] == [ids.tolist(), subwords.encode("x").tolist()]


@pytest.mark.parametrize("kind", KINDS)
@given(text=anything)
def test_pieces_join_to_the_text_and_words_are_in_order(kind, text):
    subwords = LEARNED[kind]
    ids, n = subwords.encode(text), len(split(text))
    pieces, words = subwords.pieces(ids), subwords.words(text)
    assert len(pieces) == len(words) == len(ids)
    assert words == subwords.words(ids)
    assert set(words) <= {-1, *range(n)}
    real = [word for word in words if word >= 0]
    assert real == sorted(real)
    if text.isascii():
        assert "".join(pieces) == text


def test_a_piece_belongs_to_the_word_in_which_it_begins():
    subwords = LEARNED["bpe"]
    text = " Ein Mann, läuft 👍"
    words = subwords.words(text)
    by_word = {}
    for piece, word in zip(subwords.pieces(subwords.encode(text)), words, strict=True):
        by_word[word] = by_word.get(word, "") + piece
    assert [by_word[w].strip() for w in range(4)] == ["Ein", "Mann", ",", "l<c3><a4>uft"] or by_word[
        3
    ].strip() == "läuft"
    assert words[-1] == 4
    assert subwords.words([1, *subwords.encode(text), 2]) == [-1, *words, -1]
    assert subwords.pieces([0, 1, 2, 3]) == ["<pad>", "<start>", "<end>", "<unk>"]
    half = subwords.encode("👍")[:2]  # an incomplete character, which a model may write
    assert subwords.words(half) == [0, 1]
    assert subwords.pieces(half) == ["<f0>", "<9f>"]
    assert "\ufffd" in subwords.decode(half)


def test_a_piece_of_white_space_belongs_to_no_word():
    subwords = LEARNED["bpe"]
    ids = subwords.encode("dogs\n\ngrass")
    spaces = [piece.isspace() for piece in subwords.pieces(ids)]
    assert any(spaces)
    assert [word == -1 for word in subwords.words(ids)] == spaces


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_come_first(kind):
    subwords = LEARNED[kind]
    assert (subwords.pad, subwords.start, subwords.end, subwords.unknown) == (0, 1, 2, 3)
    assert 260 < len(subwords) <= 380
    assert len(subwords.encode(TEXTS[0])) < 0.75 * len(TEXTS[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_pieces_in_any_process(kind):
    code = (
        "import sys, json; from clearhead.tokens import Subwords\n"
        "texts = json.load(sys.stdin)\n"
        f"sys.stdout.write(Subwords.of(texts, size=380, kind={kind!r}).to_str())"
    )
    other = subprocess.run([sys.executable, "-c", code], input=json.dumps(TEXTS), capture_output=True, text=True)
    assert Subwords(other.stdout) == LEARNED[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_lower_drops_case_and_nothing_else(kind):
    subwords = Subwords.of(TEXTS, size=380, kind=kind, lower=True)
    assert subwords.decode(subwords.encode("Ein MANN, ÉCHELLE 👍 <pad>")) == "ein mann, échelle 👍 <pad>"
    assert subwords != LEARNED[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_subwords_are_saved_as_a_standard_tokenizer_json(kind, tmp_path):
    from tokenizers import Tokenizer

    subwords = LEARNED[kind]
    assert tokens.save(subwords, tmp_path) == tmp_path / "tokenizer.json"
    assert tokens.load(tmp_path) == subwords == pickle.loads(pickle.dumps(subwords))
    standard = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert standard.encode(TEXTS[1], add_special_tokens=False).ids == subwords.encode(TEXTS[1]).tolist()
    assert hash(tokens.load(tmp_path)) == hash(subwords)


def test_transformers_reads_our_tokenizer_json(tmp_path):
    from transformers import PreTrainedTokenizerFast

    path = tokens.save(LEARNED["bpe"], tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path))
    assert theirs(TEXTS[2])["input_ids"] == LEARNED["bpe"].encode(TEXTS[2]).tolist()


def test_a_foreign_tokenizer_json_is_read(tmp_path):
    """It marks spaces otherwise, has other names of special tokens, and asks for padding, which must not happen."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "▁a": 4, "▁do": 5, "g": 6}
    theirs = Tokenizer(models.BPE({**vocab, "▁": 7, "a": 8, "d": 9, "o": 10, "▁d": 11},
                                  [("▁", "a"), ("▁", "d"), ("▁d", "o")], unk_token="[UNK]"))  # fmt: skip
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    theirs.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    theirs.enable_padding(length=9)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = tokens.load(tmp_path)
    assert (ours.pad, ours.unknown, ours.start, ours.end, len(ours)) == (0, 1, 2, 3, 12)
    assert ours.encode("a dog").tolist() == [4, 5, 6]
    assert ours.decode([2, 4, 5, 6, 3]) == "a dog"
    assert ours.pieces([4, 5, 6]) == [" a", " do", "g"]
    assert ours.words([2, 4, 5, 6, 3]) == [-1, 0, 1, 1, -1]


def test_few_texts_give_few_pieces():
    assert len(Subwords.of([], size=5000)) == 260
    assert Subwords.of([""], size=260).decode(Subwords.of([""], size=260).encode("Größe")) == "Größe"


def test_the_error_names_a_damaged_file(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b'{"version": "1.0"')
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
        tokens.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        tokens.load(tmp_path)

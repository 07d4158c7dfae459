"""SentencePiece models: the same pieces of any text and the same text of any pieces as the library's own."""

import io
import itertools
import random

import numpy as np
import pytest

from clearhead.tokens import Pieces
from clearhead.tokens.sentencepiece import SPACE, SentencePieceModel

spm = pytest.importorskip("sentencepiece")

TEXTS = [
    "", " ", "  a  dog ", "\t\n", "\na\n", "\x85", "a\x85", "\x85 a \x85", "\u3000a\u3000", "a\u00a0", "▁▁", " ▁a ▁ b▁",
    "漢", "a 漢", "漢 a", " 漢 漢  a ", "e\u0301 é", "ﬁne ① ½", "Ａｂ　ｃ", "\u200bx", "\x00 \x07", "\ufeffdog",
    "👩\u200d👧", "a\u0300\u0301b", "dog dog  dog", "<s>a</s>", "<unk>", "<0x41>", "<sep> <sep>dog", "A dog runs.",
    "Straße",
]  # fmt: skip
LETTERS = "adogrunsAS.e\u0301\x85\u3000\n"
SETTINGS = [
    dict(zip(("lead", "tidy", "suffix"), flags, strict=True)) for flags in itertools.product([True, False], repeat=3)
]


def model(kind="unigram", **settings) -> SentencePieceModel:
    """A small model: words with and without their space, unusual white space, a defined piece, perhaps all bytes."""
    suffix = settings.get("suffix", False)
    words = ["dog", "run", "a", "as", "do", "og", "un", "ru"]
    spaced = [word + SPACE if suffix else SPACE + word for word in words]
    normal = list(dict.fromkeys([SPACE, *LETTERS, *words, *spaced]))
    byte = [f"<0x{i:02X}>" for i in range(256)] if settings.get("bytewise") else []
    rng = random.Random(0)
    scores = np.float32([-rng.randint(10, 90) / 10 for _ in normal]).tolist()
    return SentencePieceModel(
        pieces=("<unk>", "<s>", "</s>", *normal, "<sep>", *byte),
        scores=(0.0, 0.0, 0.0, *scores, *[0.0] * (1 + len(byte))),
        types=(2, 3, 3, *[1] * len(normal), 4, *[6] * len(byte)),
        kind=kind,
        **settings,
    )


def library(ours: SentencePieceModel):
    return spm.SentencePieceProcessor(model_proto=ours.to_bytes())


@pytest.fixture(scope="module")
def rules() -> dict[str, bytes]:
    """The normalisation rules that the library ships, by name."""
    compiled = {}
    for name in ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity"):
        file = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(["a dog runs"] * 3), model_writer=file, minloglevel=2, hard_vocab_limit=False,
            vocab_size=20, normalization_rule_name=name,
        )  # fmt: skip
        compiled[name] = SentencePieceModel.of(file.getvalue()).rules
    assert compiled.pop("identity") == b""
    return {"identity": b"", **compiled}


@pytest.mark.parametrize("bytewise", [False, True], ids=["unknown", "bytes"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_texts_are_encoded_and_decoded_as_the_library_does(kind, settings, bytewise, rules):
    rng = random.Random(1)
    drawn = ["".join(rng.choices(LETTERS + "   ▁漢ß", k=rng.randint(1, 30))) for _ in range(12)]
    for rule in rules.values():
        ours = model(kind, bytewise=bytewise, rules=rule, **settings)
        theirs, tokens = library(ours), Pieces(ours)
        for text in [*TEXTS, *drawn]:
            pieces, ids = theirs.encode(text, out_type=str), theirs.encode(text)
            assert ours.cut(text) == pieces, text
            assert ours.text(pieces) == theirs.decode(pieces), text
            if tokens.unknown not in ids:  # the library shows the unknown token, ours leaves it out
                assert tokens.decode(ids) == theirs.decode(ids), text


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_any_pieces_are_decoded_as_the_library_does(settings):
    ours = model(bytewise=True, **settings)
    theirs, rng = library(ours), random.Random(2)
    byte = [piece for piece in ours.pieces if piece.startswith("<0x")]
    spaced = [piece for piece in ours.pieces if SPACE in piece]
    for _ in range(300):
        groups = rng.choices([ours.pieces[1:], spaced, byte, [SPACE], ["<s>"]], k=rng.randint(0, 9))
        pieces = [rng.choice(group) for group in groups]
        assert ours.text(pieces) == theirs.decode(pieces), pieces


@pytest.mark.parametrize("suffix", [False, True])
def test_a_model_that_does_not_escape_spaces(suffix):
    ours = model(escape=False, suffix=suffix)
    theirs = library(ours)
    for text in TEXTS:
        pieces = theirs.encode(text, out_type=str)
        assert ours.cut(text) == pieces, text
        assert ours.text(pieces) == theirs.decode(pieces), text


def test_decode_drops_only_the_spaces_that_encode_adds():
    def again(text: str, **settings) -> str:
        tokens = Pieces(model(**settings))
        return tokens.decode(tokens.encode(text))

    assert again(" a\x85") == "a\x85"
    assert again("\x85a ", suffix=True) == "\x85a "  # the space after the last word is part of its piece
    assert again("a dog", suffix=True, lead=False) == "a dog"
    assert again("  a ", tidy=False) == "  a "
    assert again("a 漢") == "a"  # neither the unknown character nor the space before it


def test_a_file_of_another_kind_raises():
    data = model().to_bytes()
    assert SentencePieceModel.of(data).kind == "unigram"
    trainer = data.rindex(b"\x18\x01\xc0\x01")  # model_type: 1 of the trainer's settings
    with pytest.raises(ValueError, match="of kind '9': expected unigram or bpe"):
        SentencePieceModel.of(data[:trainer] + b"\x18\x09" + data[trainer + 2 :])

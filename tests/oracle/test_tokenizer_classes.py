"""Folders without a tokenizer.json: the ids of transformers' tokenizers, or of sentencepiece itself."""

import inspect
import io
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead.tokens import Pair, Pieces, Subwords
from clearhead.tokens.sentencepiece import SentencePieceModel
from clearhead.weights import WeightsError
from clearhead.weights.huggingface.tokenizer_classes import read_pair, read_tokenizer

LINES = [
    "A dog runs over the green grass.", "Two men talk in the street.", "The woman does not read her book.",
    "Three children play in the water!", "An old man sleeps, sitting on a bench.", "Nobody knows it: 1,000?",
]  # fmt: skip
TEXTS = [
    *LINES, "", "e\u0301 é", "ﬁne ﬀ ①② ½", "Ａｂｃ　ｄ", "\u200bzero", "a\u00a0b", "漢字かな", "a  b",
    "👩\u200d👩\u200d👧 family", "\x07bell\x1f", "dog" * 99,
]  # fmt: skip
SPACES = [" ", "  a  dog ", "\t\n", "a "]  # some tokenizers of transformers keep a space at the end
LANGUAGES = ["eng_Latn", "fra_Latn", "deu_Latn"]


@pytest.fixture(scope="module")
def spm() -> dict[str, bytes]:
    """Small SentencePiece models: fairseq's unigram and bpe, and T5's."""
    library, rng = pytest.importorskip("sentencepiece"), random.Random(0)
    shuffled = [" ".join(rng.sample(words, len(words))) for words in map(str.split, LINES) for _ in range(9)]

    def train(**options: Any) -> bytes:
        file = io.BytesIO()
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES + shuffled), model_writer=file, minloglevel=2, hard_vocab_limit=False,
            vocab_size=90, **options,
        )  # fmt: skip
        return file.getvalue()

    t5 = train(model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return {"unigram": train(model_type="unigram"), "bpe": train(model_type="bpe"), "t5": t5}


def write(folder: Path, files: dict[str, bytes | dict]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def byte_pairs() -> dict[str, bytes | dict]:
    """vocab.json and merges.txt of a RoBERTa."""
    learned = json.loads(Subwords.of(LINES * 2, size=330).to_str())["model"]
    vocab = {word: i for word, i in learned["vocab"].items() if i > 3}
    vocab |= {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": max(vocab.values()) + 1}
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in learned["merges"]), ""])
    return {"vocab.json": vocab, "merges.txt": merges.encode()}


def m2m_files(spm: dict[str, bytes]) -> dict[str, bytes | dict]:
    """Ids in an order of their own, and pieces that have none."""
    pieces = SentencePieceModel.of(spm["bpe"]).pieces[3:]
    words = ["<s>", "<pad>", "</s>", "<unk>", *random.Random(2).sample(pieces, len(pieces) - 5)]
    return {"vocab.json": {word: i for i, word in enumerate(words)}, "sentencepiece.bpe.model": spm["bpe"]}


def normal_for(kind: type) -> list[str]:
    """Texts that a class of transformers normalises as SentencePiece does.

    Classes of transformers 5.0 do not read the rules of the model's file: these texts do not need them.
    """
    if "_spm_precompiled_charsmap" in inspect.signature(kind).parameters:
        return TEXTS
    return [text for text in TEXTS if text.isprintable() and unicodedata.is_normalized("NFKC", text)]


@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}], ids=str)
@pytest.mark.parametrize("kind", ["RobertaTokenizer", "BartTokenizer"])
def test_byte_pairs_of_roberta_and_bart(kind: str, settings: dict, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    mask = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False,
            "single_word": False, "special": True}  # fmt: skip
    write(tmp_path, {**byte_pairs(), "tokenizer_config.json": settings | {"mask_token": mask}})
    theirs, ours = getattr(transformers, kind).from_pretrained(tmp_path), read_tokenizer(tmp_path, kind)
    for text in [*TEXTS, *SPACES, "the <mask> dog </s>"]:
        ids = theirs(text, split_special_tokens=True)["input_ids"]
        assert ours.wrapped(text).tolist() == ids, text
        assert (ids[0], ids[-1]) == (0, 2)
    text = "the <mask> dog"
    assert ours.marked(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert (ours.start, ours.pad, ours.end, ours.unknown) == (0, 1, 2, 3)


def test_a_named_class_decides_what_is_around_a_text(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, {**byte_pairs(), "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}})
    theirs, ours = transformers.GPT2Tokenizer.from_pretrained(tmp_path), read_tokenizer(tmp_path, "RobertaTokenizer")
    for text in TEXTS:
        assert ours.wrapped(text).tolist() == theirs(text, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize(
    ("kind", "file", "model", "settings"),
    [
        ("T5Tokenizer", "spiece.model", "t5", {}),
        ("T5Tokenizer", "spiece.model", "t5", {"extra_ids": 7}),
        ("XLMRobertaTokenizer", "sentencepiece.bpe.model", "unigram", {}),
    ],
)
def test_sentencepiece_models_of_t5_and_xlmr(
    kind: str, file: str, model: str, settings: dict, spm: dict[str, bytes], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, {file: spm[model], "tokenizer_config.json": settings})
    theirs, ours = getattr(transformers, kind).from_pretrained(tmp_path), read_tokenizer(tmp_path, kind)
    assert len(ours) == len(theirs)
    for text in [*normal_for(type(theirs)), *SPACES, "<s> a </s>", "the <mask> <extra_id_3> dog"]:
        ids = theirs(text, split_special_tokens=True)["input_ids"]
        assert ours.wrapped(text).tolist() == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    names = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_6>"] if kind[0] == "T" else ["<s>", "<mask>"]
    assert [ours.special_names[name] for name in names] == theirs.convert_tokens_to_ids(names)


@pytest.mark.parametrize(
    ("kind", "model", "last"),
    [("MBartTokenizer", "unigram", True), ("MBart50Tokenizer", "unigram", False), ("NllbTokenizer", "bpe", False)],
)
def test_ids_of_fairseq_with_languages(
    kind: str, model: str, last: bool, spm: dict[str, bytes], tmp_path: Path
) -> None:
    """Beside sentencepiece itself, as the models were trained: classes of transformers differ in spaces and rules."""
    library = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=spm[model])
    settings = {"tokenizer_class": kind, "additional_special_tokens": LANGUAGES, "src_lang": "fra_Latn"}
    write(tmp_path, {"sentencepiece.bpe.model": spm[model], "tokenizer_config.json": settings})
    size = library.get_piece_size() + 1
    tokens = read_tokenizer(tmp_path)
    after = {name: size + i for i, name in enumerate([*LANGUAGES, "<mask>"])}
    assert tokens.special_names == {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, **after}
    decoder = {str(i): {"content": name} for name, i in after.items()}
    listed = [{"content": name} for name in LANGUAGES]
    for other in ({"added_tokens_decoder": decoder}, {"extra_special_tokens": listed}):
        write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": kind, "src_lang": "fra_Latn", **other}})
        assert read_tokenizer(tmp_path) == tokens
    pair = read_pair(tmp_path)
    for text in [*TEXTS, *SPACES]:
        ids = [i + 1 if i else 3 for i in library.encode(text)]
        assert tokens.encode(text).tolist() == ids, text
        assert pair.read(text).tolist() == ([*ids, 2, size + 1] if last else [size + 1, *ids, 2])
        german = Pair(tokens, tokens, before=size + 2).read(text).tolist()
        assert german == ([*ids, 2, size + 2] if last else [size + 2, *ids, 2])


def test_pieces_of_nllb_are_those_of_transformers(spm: dict[str, bytes], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {"additional_special_tokens": LANGUAGES}
    write(tmp_path, {"sentencepiece.bpe.model": spm["bpe"], "tokenizer_config.json": settings})
    theirs, ours = transformers.NllbTokenizer.from_pretrained(tmp_path), read_tokenizer(tmp_path, "NllbTokenizer")
    for text in normal_for(type(theirs)):
        assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"], text


def test_pieces_of_m2m_100(spm: dict[str, bytes], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, m2m_files(spm) | {"tokenizer_config.json": {"src_lang": "fr"}})
    theirs, pair = transformers.M2M100Tokenizer.from_pretrained(tmp_path), read_pair(tmp_path, "M2M100Tokenizer")
    for text in [*TEXTS, *SPACES]:
        assert pair.read(text).tolist() == theirs(text)["input_ids"], text
    assert {name: pair.source.vocab[name] for name in pair.source.languages} == theirs.lang_token_to_id
    assert pair.source.special_names["__zu__"] == theirs.get_lang_id("zu")
    ids = theirs("Two dogs talk.")["input_ids"]
    assert pair.target.decode(ids) == theirs.decode(ids[1:], skip_special_tokens=True) == "Two dogs talk."


def tiny(folder: Path, vocab: int, kind: str, **words: Any) -> None:
    """Write a random translator without a tokenizer."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 40,
             "init_std": 0.5}  # fmt: skip
    sizes = (
        {"d_model": 16, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        if kind == "t5"
        else sizes
    )
    config = transformers.AutoConfig.for_model(kind, vocab_size=vocab, **sizes, **words)
    transformers.AutoModelForSeq2SeqLM.from_config(config).eval().save_pretrained(folder)


@pytest.mark.parametrize("kind", ["bart", "t5", "m2m_100"])
def test_folders_with_such_files_translate_as_transformers_and_are_kept(
    kind: str, spm: dict[str, bytes], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    files = {"bart": byte_pairs(), "t5": {"spiece.model": spm["t5"]}, "m2m_100": m2m_files(spm)}[kind]
    write(tmp_path, {**files, "tokenizer_config.json": {}})
    name = {"bart": "BartTokenizer", "t5": "T5Tokenizer", "m2m_100": "M2M100Tokenizer"}[kind]
    tiny(tmp_path, len(read_tokenizer(tmp_path, name)), kind)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    splitter = getattr(transformers, name).from_pretrained(tmp_path)
    bundle, text = ch.load(tmp_path, device="cpu"), "Two dogs run over the bench."
    source = splitter(text)["input_ids"]
    forced = {"forced_bos_token_id": splitter.get_lang_id("de")} if kind == "m2m_100" else {}
    theirs.generation_config.forced_eos_token_id = None
    tokens = bundle.tokens.target
    banned = [[i] for i in (tokens.pad, tokens.start) if i is not None]  # which a translation does not have
    out = theirs.generate(
        torch.tensor([source]), num_beams=1, do_sample=False, max_new_tokens=6 + len(forced), bad_words_ids=banned,
        **forced,
    )  # fmt: skip
    language = {"target_language": "de"} if forced else {}
    answer = ch.translate(bundle, text, beams=1, limit=6, **language)
    expected = out[0, 1 + len(forced) :].tolist()
    assert answer.target == tokens.pieces(expected)
    for layout in ("clearhead", "huggingface"):
        folder = ch.save(bundle, tmp_path / layout, layout=layout)
        again = ch.load(folder, device="cpu")
        assert again.tokens == bundle.tokens
        assert again.tokens.read(text).tolist() == source
    kept = transformers.AutoTokenizer.from_pretrained(tmp_path / "huggingface")
    assert kept(text)["input_ids"] == source


def encoder(folder: Path, vocab: int) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=vocab, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=40,
    )  # fmt: skip
    transformers.RobertaForMaskedLM(config).eval().save_pretrained(folder)


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "XLMRobertaTokenizerFast"}], ids=str)
def test_an_xlmr_saved_as_a_roberta_keeps_its_tokenizer(settings: dict, spm: dict[str, bytes], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(tmp_path, {"sentencepiece.bpe.model": spm["unigram"], "tokenizer_config.json": settings})
    theirs = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    encoder(tmp_path, len(theirs))
    bundle = ch.load(tmp_path, device="cpu")
    for text in normal_for(type(theirs)):
        assert bundle.tokens.wrapped(text).tolist() == theirs(text)["input_ids"]
    folder = ch.save(bundle, tmp_path / "saved", layout="huggingface")
    assert ch.load(folder, device="cpu").tokens == bundle.tokens


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": b"<s> 1\n", "bpe.codes": b"a b 1\n"}, r"is in bpe.codes, .*expected a tokenizer.json"),
        ({"vocab.json": {"<s>": 0}}, r"its tokenizer is in vocab.json, which is not read .*AutoTokenizer"),
        ({"vocab.txt": b"[UNK]\n[CLS]\n[SEP]\n", "tokenizer_config.json": {"tokenizer_class": "BertJapaneseTokenizer"}},
         r"its tokenizer is a BertJapaneseTokenizer, in vocab.txt, which is not read here: expected a tokenizer.json"),
        ({"sentencepiece.bpe.model": b"", "tokenizer_config.json": {"tokenizer_class": "CamembertTokenizerFast"}},
         r"its tokenizer is a CamembertTokenizer, in sentencepiece.bpe.model, which is not read here"),
        ({"spiece.model": b"\x00"}, r"its tokenizer is in spiece.model"),
        ({"vocab.json": {"a": 0}, "merges.txt": b""}, r"vocab.json: there is no <s>, the cls token"),
        ({"sentencepiece.bpe.model": b"\xff\xff"}, r"sentencepiece.bpe.model: not a whole SentencePiece model"),
    ],
)  # fmt: skip
def test_other_files_of_a_look_alike_are_named(files: dict, message: str, tmp_path: Path) -> None:
    write(tmp_path, files)
    encoder(tmp_path, 20)
    with pytest.raises(ValueError, match=message):
        ch.load(tmp_path, device="cpu")


def test_settings_without_the_source_language_are_refused(spm: dict[str, bytes], tmp_path: Path) -> None:
    file = {"sentencepiece.bpe.model": spm["bpe"]}
    write(tmp_path, file | {"tokenizer_config.json": {"tokenizer_class": "NllbTokenizer"}})
    with pytest.raises(WeightsError, match=r"does not have eng_Latn among its languages: expected a tokenizer.json"):
        read_tokenizer(tmp_path)
    write(tmp_path, m2m_files(spm) | {"tokenizer_config.json": {"src_lang": "xx"}})
    with pytest.raises(WeightsError, match="does not have __xx__ among its languages"):
        read_tokenizer(tmp_path, "M2M100Tokenizer")
    gaps = {"added_tokens_decoder": {"500": {"content": "eng_Latn"}}, "tokenizer_class": "NllbTokenizer"}
    write(tmp_path, file | {"tokenizer_config.json": gaps})
    with pytest.raises(WeightsError, match="added_tokens_decoder has gaps: expected all ids from"):
        read_tokenizer(tmp_path)


def test_a_model_of_other_rules_is_refused(spm: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path, {"sentencepiece.bpe.model": spm["t5"]})
    with pytest.raises(WeightsError, match=r"begins with \('<pad>', .*: expected \('<unk>', '<s>', '</s>'\)"):
        read_tokenizer(tmp_path, "XLMRobertaTokenizer")


def test_languages_of_pieces_are_special_and_kept(spm: dict[str, bytes]) -> None:
    model = SentencePieceModel.of(spm["bpe"])
    vocab = {piece: i for i, piece in enumerate([*model.pieces, "__de__", "__en__"])}
    tokens = Pieces(model, vocab, languages=["__de__", "__en__"])
    assert tokens.decode([vocab["__de__"], *tokens.encode("a dog")]) == "a dog"
    assert Pieces.from_dict(tokens.to_dict()) == tokens
    assert tokens != Pieces(model, vocab)
    with pytest.raises(ValueError, match="the language '__fr__' has no id"):
        Pieces(model, vocab, languages=["__fr__"])
    with pytest.raises(ValueError, match="languages = 'x': expected a list"):
        Pieces.from_dict(tokens.to_dict() | {"languages": "x"})

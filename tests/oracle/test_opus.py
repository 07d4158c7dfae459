"""A small opus-mt folder: the same ids, texts, translations and alignments as transformers and sentencepiece."""

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.data import make_data
from clearhead.tokens import Pair, Pieces
from clearhead.tokens.sentencepiece import SentencePieceModel
from clearhead.weights import WeightsError

ENGLISH = [
    "A dog runs over the green grass.", "Two men are talking on the street.", "The woman isn't reading her book.",
    "Three children play in the water!", "An old man, sitting on a bench, sleeps.", "Nobody knows: 1,000 or 3.5?",
]  # fmt: skip
GERMAN = [
    "Ein Hund rennt über das grüne Gras.", "Zwei Männer reden auf der Straße.", "Die Frau liest ihr Buch nicht.",
    "Drei Kinder spielen im Wasser!", "Ein alter Mann schläft, auf einer Bank sitzend.", "Niemand weiß es: 1.000?",
]  # fmt: skip
ODD = [
    "", " ", "  a  dog ", "\t\n", "e\u0301 é", "ﬁne ﬀ ①② ½", "Ａｂｃ　ｄ", "\u200bzero", "a\u00a0b", "▁▁",
    "▁a▁", "漢字かな", "👩\u200d👩\u200d👧 family 🇩🇪", "\x00 nul", "\x07bell\x1f", "ﷺ", "가각ᄀ",
    "Ǆ … µ", "İı ß ẞ", "\ufeffbom", "\u2028x\u2029", "a\u0300\u0301\u0302b", "हिन्दी עברית مرحبا", "dog" * 99,
    "ﾊﾝｶｸ ｶﾞ ㍿", "\U000e0001", ">>de", ">><< a", "a >>deu<<", "über das Gras", "rennt nicht, Straße", "\x85 x \x85",
]  # fmt: skip
CODES = [">>deu<<", ">>nds<<"]


def trained(lines: list[str], **options: Any) -> bytes:
    spm, file = pytest.importorskip("sentencepiece"), io.BytesIO()
    rng = random.Random(0)
    shuffled = [" ".join(rng.sample(words, len(words))) for words in (line.split() for line in lines) for _ in range(9)]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines + shuffled), model_writer=file, minloglevel=2, hard_vocab_limit=False,
        **{"vocab_size": 150, "model_type": "unigram"} | options,
    )  # fmt: skip
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like Helsinki-NLP's, with language codes before the text; random weights of large variance."""
    transformers_marian, path = (
        pytest.importorskip("transformers.models.marian"),
        tmp_path_factory.mktemp("opus-mt-en-gmw"),
    )
    (path / "source.spm").write_bytes(trained(ENGLISH))
    (path / "target.spm").write_bytes(trained(GERMAN))
    pieces = [p for side in ("source", "target") for p in SentencePieceModel.read(path / f"{side}.spm").pieces[3:]]
    words = ["</s>", "<unk>", *random.Random(1).sample(sorted(set(pieces)), len(set(pieces))), *CODES, "<pad>"]
    (path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (path / "tokenizer_config.json").write_text('{"source_lang": "eng", "target_lang": "gmw"}')
    pad = len(words) - 1
    torch.manual_seed(0)
    config = transformers_marian.MarianConfig(
        vocab_size=len(words), d_model=12, encoder_layers=1, decoder_layers=2, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=13, decoder_ffn_dim=13, pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=None, max_position_embeddings=64, scale_embedding=True,
        activation_function="swish", bos_token_id=0,
    )  # fmt: skip
    model = transformers_marian.MarianMTModel(config).eval()
    torch.manual_seed(0)  # what follows does not depend on how the library draws its weights
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" not in name:
                norm = name.endswith("layer_norm.weight")
                p.copy_(torch.randn_like(p) * 0.5 + norm)
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, 0] += 2.0
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def bundle(folder: Path) -> ch.Bundle:
    return ch.load(folder, device="cpu")


def tokenizer(folder: Path) -> Any:
    module = pytest.importorskip("transformers.models.marian.tokenization_marian")
    with pytest.MonkeyPatch.context() as patch:  # it warns that an optional library is missing
        patch.setattr(module.MarianTokenizer, "_setup_normalizer", lambda self: None)
        return module.MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return tokenizer(folder)


def check_tokens(pair: Pair, theirs: Any, text: str) -> None:
    ids = theirs(text, split_special_tokens=True)["input_ids"]
    assert pair.read(text).tolist() == ids, text
    assert pair.written(text).tolist() == theirs(text_target=text, split_special_tokens=True)["input_ids"], text
    decoded = theirs.decode(ids, skip_special_tokens=True)
    assert pair.source.decode(ids) == pair.target.decode(ids) == decoded, text


@pytest.mark.parametrize(
    "text", [*ODD, *ENGLISH, *GERMAN, *(f"{code} A dog." for code in CODES), ">>deu<<A", ">>deu<<"]
)
def test_ids_and_text_equal_those_of_marian_tokenizer(bundle, theirs, text):
    if text == ">><< a":  # theirs takes it for an unknown language code, and loses the text
        assert bundle.tokens.read(text).tolist() == bundle.tokens.read(" " + text).tolist()
        return
    check_tokens(bundle.tokens, theirs, text)


@given(
    st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("aeiour  ,.\u0301\u0308\u200dDWß"), max_size=60)
)
def test_random_texts_give_the_same_ids(bundle, theirs, text):
    if not text.startswith(">>"):
        check_tokens(bundle.tokens, theirs, text)


KINDS: dict[str, dict[str, Any]] = {
    "folded": {"normalization_rule_name": "nmt_nfkc_cf", "user_defined_symbols": ["<sep>", "Hund"]},
    "bytes": {"byte_fallback": True, "remove_extra_whitespaces": False, "vocab_size": 400},
    "pairs": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "vocab_size": 400},
    "suffix": {"treat_whitespace_as_suffix": True},
    "bare": {"add_dummy_prefix": False, "split_by_whitespace": False},
    "untidy pairs": {"model_type": "bpe", "remove_extra_whitespaces": False, "user_defined_symbols": ["  "]},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_equal_those_of_sentencepiece_for_every_setting(kind):
    data = trained(GERMAN, **KINDS[kind])
    oracle, ours = (
        pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=data),
        SentencePieceModel.of(data),
    )
    again = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=ours.to_bytes())
    assert SentencePieceModel.of(ours.to_bytes()) == ours
    rng = random.Random(2)
    drawn = ["".join(rng.choices("aenrtHundß  ,.äü\u0308漢\x07\u3000ﬁ", k=rng.randint(1, 50))) for _ in range(300)]
    for text in [*ODD, *ENGLISH, *GERMAN, *drawn, "<sep> ein  Hund<sep>"]:
        pieces = oracle.encode(text, out_type=str)
        assert ours.cut(text) == pieces, text
        assert again.encode(text, out_type=str) == pieces, text
        assert ours.text(pieces) == oracle.decode(pieces), text


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("seed", range(12))
def test_near_ties_are_split_as_sentencepiece_does(kind, seed):
    """Short pieces with scores in tenths: sums that are equal up to rounding, and characters without a piece."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abc\u2581", k=rng.randint(1, 5))) for _ in range(40)]
    words = list(dict.fromkeys(word for word in words if "\u2581" not in word[1:]))
    types = [1 if len(word) < 3 else rng.choice([1, 1, 1, 4, 5]) for word in words]
    scores = [-rng.randint(1, 30 if seed % 2 else 400) / 10 for _ in words]
    ours = SentencePieceModel(
        pieces=("<unk>", "<s>", "</s>", *words), scores=(0.0, 0.0, 0.0, *np.float32(scores).tolist()),
        types=(2, 3, 3, *types), kind=kind, tidy=False,
    )  # fmt: skip
    oracle = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=ours.to_bytes())
    for _ in range(30):
        text = "".join(rng.choices("abcd ", weights=[9, 9, 9, 1, 3], k=rng.randint(1, 400)))
        assert ours.cut(text) == oracle.encode(text, out_type=str), text


@pytest.mark.parametrize("beams", [1, 4])
def test_translations_equal_those_of_transformers(folder, bundle, theirs, beams):
    model = pytest.importorskip("transformers.models.marian").MarianMTModel.from_pretrained(folder).eval()
    texts = [">>deu<< " + text for text in ENGLISH]
    inputs = theirs(texts, return_tensors="pt", padding=True)
    rows = model.generate(
        **inputs, num_beams=beams, do_sample=False, max_new_tokens=20, bad_words_ids=[[bundle.special.pad]],
        length_penalty=1.0, early_stopping=False,
    )  # fmt: skip
    translations = ch.translate(bundle, texts, beams=beams, limit=20)
    for one, row in zip(translations, rows.tolist(), strict=True):
        expected = [i for i in row[1:] if i != bundle.special.pad]
        assert one.target == bundle.tokens.target.pieces(expected)
        assert one.text == theirs.decode(expected, skip_special_tokens=True)
    assert len({one.text for one in translations}) > 3


def test_alignments_equal_those_of_transformers(folder, bundle, theirs):
    transformers_marian = pytest.importorskip("transformers.models.marian")
    model = transformers_marian.MarianMTModel.from_pretrained(folder, attn_implementation="eager").eval()
    one = ch.translate(bundle, ENGLISH[0], beams=3, limit=9)
    ids = [bundle.tokens.target.vocab[piece.replace(" ", "▁")] for piece in one.target]
    before = torch.tensor([[bundle.special.start, *ids[:-1]]])
    inputs = theirs(ENGLISH[0], return_tensors="pt")
    with torch.no_grad():
        weights = model(**inputs, decoder_input_ids=before, output_attentions=True).cross_attentions
    np.testing.assert_allclose(one.alignment, torch.stack(weights).mean((0, 2))[0].numpy(), atol=1e-5)
    assert one.source[-1] == "</s>"
    np.testing.assert_allclose(one.alignment.sum(1), 1.0, atol=1e-5)


def test_a_saved_folder_is_read_by_transformers(folder, bundle, theirs, tmp_path):
    ch.save(bundle, tmp_path, layout="huggingface")
    again, model = tokenizer(tmp_path), pytest.importorskip("transformers").MarianMTModel.from_pretrained(tmp_path)
    for text in [*ODD, *ENGLISH, ">>nds<< A dog."]:
        assert again(text)["input_ids"] == theirs(text)["input_ids"], text
        assert again(text_target=text)["input_ids"] == theirs(text_target=text)["input_ids"], text
    assert (again.pad_token_id, again.eos_token_id, again.unk_token_id) == (bundle.special.pad, 0, 1)
    inputs = again(ENGLISH[0], return_tensors="pt")
    expected = ch.translate(bundle, ENGLISH[0], beams=1, limit=20)
    row = model.eval().generate(**inputs, num_beams=1, max_new_tokens=20)[0].tolist()[1:]
    assert again.decode(row, skip_special_tokens=True) == expected.text
    assert ch.load(tmp_path, device="cpu").tokens == bundle.tokens
    kept = ch.load(ch.save(bundle, tmp_path / "ours"), device="cpu")
    assert kept.tokens == bundle.tokens
    assert ch.translate(kept, ENGLISH[1]).text == ch.translate(bundle, ENGLISH[1]).text


def test_separate_vocabularies_of_source_and_target(folder, tmp_path):
    """separate_vocabs: vocab.json is of the source, target_vocab.json of the target."""
    sides = []
    for side in ("source", "target"):
        model = SentencePieceModel.read(folder / f"{side}.spm")
        words = ["</s>", "<unk>", *model.pieces[:2:-1], "<pad>"]
        special = {"pad": len(words) - 1, "end": 0, "unknown": 1}
        sides.append(Pieces(model, {word: i for i, word in enumerate(words)}, special=special))
    source, target = sides
    assert source.vocab != target.vocab
    pair = Pair(source, Pieces(target.model, target.vocab, special=special | {"start": target.pad}))
    sizes = {"vocab": len(source), "target_vocab": len(target)}
    model = ch.build("transformer", **sizes, width=12, depth=1, heads=3, pairs="halves")
    ch.save(model, tmp_path / "saved", tokens=pair, layout="huggingface")
    theirs = tokenizer(tmp_path / "saved")
    assert ch.load(tmp_path / "saved", device="cpu").tokens == pair
    for text in [*ENGLISH, *GERMAN]:
        assert pair.read(text).tolist() == theirs(text)["input_ids"], text
        assert pair.written(text).tolist() == theirs(text_target=text)["input_ids"], text


def test_one_tokenizer_for_both_sides(tmp_path):
    subwords = ch.tokens.Subwords.of(ENGLISH + GERMAN, size=300)
    model = ch.build("transformer", vocab=len(subwords), width=12, depth=1, heads=3, pairs="halves")
    pair = Pair(subwords, subwords)
    ch.save(model, tmp_path, tokens=pair, layout="huggingface")
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    text = ENGLISH[0]
    assert theirs(text)["input_ids"] == [*subwords.encode(text).tolist(), 2]  # a source ends with EOS
    again = ch.load(tmp_path, device="cpu")
    for text in [*ENGLISH, *GERMAN]:
        assert again.tokens.read(text).tolist() == pair.read(text).tolist() == theirs(text)["input_ids"]
        assert again.tokens.written(text).tolist() == pair.written(text).tolist()
    assert again.special == ch.weights.Special(pad=0, start=1, ends=(2,))
    assert (
        ch.translate(again, text, limit=5).target
        == ch.translate(ch.Bundle(model, pair, model.config, special=again.special), text, limit=5).target
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("source.spm", b"", r"source.spm: not a SentencePiece model: there are no pieces"),
        ("target.spm", b"\x0a\xff\xff", r"target.spm: not a whole SentencePiece model"),
        ("target.spm", None, r"there is no target.spm in this folder"),
        ("vocab.json", b"[1]", r"vocab.json.*expected a table"),
        ("vocab.json", b'{"<unk>": 1}', r"vocab.json: there is no <pad>, the pad token"),
        ("vocab.json", b'{"<unk>": 1, "</s>": 0, "<pad>": 2}', r"the pad token is \d+, but 2 in the vocabulary"),
    ],
)  # fmt: skip
def test_damaged_tokenizer_files_are_named(folder, tmp_path, name, content, message):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as problem:
        ch.load(tmp_path, device="cpu")
    assert isinstance(problem.value, WeightsError) or name == "vocab.json"


def test_a_truncated_sentencepiece_model_is_never_equal_to_the_whole(folder):
    data = (folder / "source.spm").read_bytes()
    whole = SentencePieceModel.of(data)
    for cut in random.Random(0).sample(range(len(data)), 50):
        try:
            truncated = SentencePieceModel.of(data[:cut])
        except ValueError:
            continue
        assert truncated != whole  # the file ended between two of its pieces


def test_the_first_loss_of_a_fine_tuning_equals_theirs(folder, theirs, tmp_path):
    """Pairs in a CSV file, read with the checkpoint's tokenizers; decoding starts from the padding token."""
    transformers_marian = pytest.importorskip("transformers.models.marian")
    rows = "".join(f'"{one}","{other}"\n' for one, other in zip(ENGLISH, GERMAN, strict=True))
    (tmp_path / "pairs.csv").write_text("en,de\n" + rows)
    data = {"name": "pairs", "path": "pairs.csv", "join": False, "tokens": str(folder), "share": 0.0}
    recipe = {
        "data": data, "pretrained": str(folder), "model": {"name": "transformer", "dropout": 0.0}, "steps": 1,
        "optim": {"lr": 1e-6}, "run": {"log_every": 1},
    }  # fmt: skip
    run = ch.train(recipe, out=tmp_path / "run", data=tmp_path, device="cpu", quiet=True)
    first = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[0])

    batch = theirs(ENGLISH, text_target=GERMAN, return_tensors="pt", padding=True)
    labels = batch["labels"].masked_fill(batch["labels"] == theirs.pad_token_id, -100)
    model = transformers_marian.MarianMTModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    assert first["loss"] == pytest.approx(float(expected), abs=1e-5)

    ours = make_data("pairs", {k: v for k, v in data.items() if k != "name"}, seed=0, root=tmp_path)
    pad = theirs.pad_token_id
    assert ours.tokens == ch.load(folder, device="cpu").tokens
    assert ours.sizes == {"vocab": len(theirs)}
    assert (ours.batch(0)["ids"][:, 0] == pad).all()
    assert ours.batch(0)["ids"].shape[0] == len(ENGLISH)
    again = ch.load(run.folder, device="cpu")  # what was trained is a translator with the same start of decoding
    assert again.special.start == pad
    assert again.tokens == ours.tokens

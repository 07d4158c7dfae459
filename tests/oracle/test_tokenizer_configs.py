"""tokenizer_config.json: its settings win over a tokenizer.json as in transformers, and saved folders keep them."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import clearhead as ch
from clearhead.tokens import Subwords
from clearhead.weights import Special

transformers = pytest.importorskip("transformers")

LINES = ["a good film", "the old man reads", "an élan of Å 日本 text", "don't", "I LOVED it", "", "  two  spaces ", "é"]
SIZES = {"hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def word_pieces(folder: Path) -> Path:
    """A BERT of masked tokens with a tokenizer.json that lowercases."""
    letters = sorted({c for line in LINES for c in line + line.lower() if c.strip()})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters), "film", "good"]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(names[:5])
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    torch.manual_seed(0)
    transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(vocab), **SIZES)).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def byte_pairs(folder: Path, kind: str) -> Path:
    """A RoBERTa or a GPT-2 with a tokenizer.json without a space before a text."""
    learned = json.loads(Subwords.of(LINES * 3, size=330).to_str())
    backend = Tokenizer.from_str(json.dumps(learned | {"added_tokens": []}))
    backend.add_special_tokens(["<start>", "<pad>", "<end>", "<unk>"])
    torch.manual_seed(0)
    vocab = backend.get_vocab_size()
    if kind == "Roberta":
        backend.post_processor = processors.RobertaProcessing(("<end>", 2), ("<start>", 1), add_prefix_space=False)
        transformers.RobertaModel(transformers.RobertaConfig(vocab_size=vocab, **SIZES)).save_pretrained(folder)
    else:
        config = transformers.GPT2Config(vocab_size=vocab, n_embd=12, n_layer=1, n_head=2)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def settings(folder: Path, **words: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder


def check(folder: Path, **given: Any) -> None:
    theirs, bundle = transformers.AutoTokenizer.from_pretrained(folder, **given), ch.load(folder, device="cpu")
    for line in LINES:
        assert bundle.tokens.wrapped(line).tolist() == theirs(line)["input_ids"], line
    saved = ch.save(bundle, folder / "saved", layout="huggingface")
    again, ours = transformers.AutoTokenizer.from_pretrained(saved), ch.load(saved, device="cpu").tokens
    assert ours == bundle.tokens
    assert [again(line)["input_ids"] for line in LINES] == [theirs(line)["input_ids"] for line in LINES]
    assert ch.tokens.load(folder) == bundle.tokens  # as data.tokens = folder reads it


@pytest.mark.parametrize(
    "words",
    [
        {}, {"do_lower_case": False}, {"strip_accents": False}, {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False}, {"do_lower_case": None},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["BertTokenizer", "BertTokenizerFast"])
def test_word_pieces(words: dict, kind: str, tmp_path: Path) -> None:
    if words.get("do_lower_case", True) is None:
        settings(word_pieces(tmp_path), tokenizer_class=kind, **words)
        assert ch.load(tmp_path, device="cpu").tokens.encode("Good") == ch.load(tmp_path).tokens.encode("good")
        return
    # BERT's own default, which the class of transformers 5.0 does not have.
    given = {"do_lower_case": True} if "do_lower_case" not in words else {}
    check(settings(word_pieces(tmp_path), tokenizer_class=kind, **words), **given)


def test_without_a_class_what_is_given_counts(tmp_path: Path) -> None:
    path = word_pieces(tmp_path) / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false'))

    def ids(text: str, **words: Any) -> list[int]:
        return ch.load(settings(tmp_path, **words), device="cpu").tokens.wrapped(text).tolist()

    assert ids("I") != ids("i") == ids("I", do_lower_case=True)
    generic = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}
    assert ids("I") == ids("I", **generic) == transformers.AutoTokenizer.from_pretrained(tmp_path)("I")["input_ids"]


@pytest.mark.parametrize("space", [True, False, None])
@pytest.mark.parametrize("kind", ["Roberta", "GPT2"])
def test_a_space_before_a_text(kind: str, space: bool | None, tmp_path: Path) -> None:
    names = {"bos_token": "<start>", "eos_token": "<end>", "unk_token": "<unk>", "pad_token": "<pad>"}
    if kind == "Roberta":
        names |= {"cls_token": "<start>", "sep_token": "<end>", "mask_token": "<unk>"}
    words = {} if space is None else {"add_prefix_space": space}
    check(settings(byte_pairs(tmp_path, kind), tokenizer_class=f"{kind}Tokenizer", **names, **words))


def test_a_saved_bert_fills_masks_in_transformers(tmp_path: Path) -> None:
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    settings(word_pieces(tmp_path), tokenizer_class="BertTokenizer", unk_token="[UNK]", **names)
    saved = ch.save(ch.load(tmp_path, device="cpu"), tmp_path / "saved", layout="huggingface")
    kept = transformers.AutoTokenizer.from_pretrained(saved).special_tokens_map
    assert {name: kept[name] for name in names} == names
    before, after = (transformers.pipeline("fill-mask", model=str(one))("a [MASK] film") for one in (tmp_path, saved))
    assert after == before


@pytest.mark.parametrize("words", [{}, {"add_bos_token": False}, {"add_eos_token": True}, {"add_bos_token": True}])
def test_pieces_keep_what_is_around_a_text(words: dict, tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 9), model_writer=file, minloglevel=2, hard_vocab_limit=False, vocab_size=300,
        model_type="bpe", byte_fallback=True,
    )  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(file.getvalue())
    vocab = library.SentencePieceProcessor(model_proto=file.getvalue()).get_piece_size()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=vocab, **SIZES, bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    settings(tmp_path, tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", **words)
    bundle = ch.load(tmp_path, device="cpu")
    ids = bundle.tokens.wrapped("film").tolist()
    assert (ids[0] == 1, ids[-1] == 2) == (words.get("add_bos_token", True), words.get("add_eos_token", False))
    for layout in ("clearhead", "huggingface"):
        again = ch.load(ch.save(bundle, tmp_path / layout, layout=layout), device="cpu")
        assert again.tokens == bundle.tokens
        assert again.tokens.wrapped("film").tolist() == ids
    kind = json.loads((tmp_path / "huggingface" / "tokenizer_config.json").read_text())["tokenizer_class"]
    theirs = getattr(transformers, kind).from_pretrained(tmp_path / "huggingface")
    assert theirs("film")["input_ids"] == ids


ENDS = {
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config(
        vocab_size=23, n_embd=12, n_layer=1, n_head=2, bos_token_id=4, eos_token_id=[5, 6], pad_token_id=7)),
    "llama": ("LlamaForCausalLM", transformers.LlamaConfig(
        vocab_size=23, **SIZES, bos_token_id=4, eos_token_id=[5, 6], pad_token_id=7)),
    "t5": ("T5ForConditionalGeneration", transformers.T5Config(
        vocab_size=23, d_model=12, d_kv=6, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)),
    "bart": ("BartForConditionalGeneration", transformers.BartConfig(
        vocab_size=23, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, forced_eos_token_id=2)),
    "marian": ("MarianMTModel", transformers.MarianConfig(
        vocab_size=23, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, pad_token_id=22,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, decoder_start_token_id=22, eos_token_id=0,
        forced_eos_token_id=0)),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_special_ids_are_kept(case: str, tmp_path: Path) -> None:
    """Also several EOS ids, which only generation_config.json has in some folders, and the one that is forced."""
    name, config = ENDS[case]
    torch.manual_seed(0)
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    words = json.loads(path.read_text())
    last = {"bart": 2, "marian": 0}.get(case)
    forced = {} if last is None else {"forced_eos_token_id": last}
    path.write_text(json.dumps(words | {"eos_token_id": [5, 6], **forced}))
    bundle = ch.load(tmp_path, device="cpu")
    assert bundle.special.ends == (5, 6)
    assert bundle.special.last == last
    for layout in ("clearhead", "huggingface"):
        assert ch.load(ch.save(bundle, tmp_path / layout, layout=layout), device="cpu").special == bundle.special
    kinds = ("eos_token_id", "pad_token_id", "forced_eos_token_id", "decoder_start_token_id")
    kept = transformers.GenerationConfig.from_pretrained(tmp_path / "huggingface")
    original = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert [getattr(kept, kind) for kind in kinds] == [getattr(original, kind) for kind in kinds]


def test_a_tokenizer_of_sentences_that_lowercases(tmp_path: Path) -> None:
    word_pieces(tmp_path)
    settings(tmp_path, tokenizer_class="BertTokenizer", do_lower_case=False)
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=90, **SIZES))
    bert.save_pretrained(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    for lowers in (True, False):
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": lowers}))
        bundle = ch.load(tmp_path, device="cpu")
        assert (bundle.tokens.encode("GOOD").tolist() == bundle.tokens.encode("good").tolist()) == lowers
    assert Special.of(bundle.tokens).pad == 0

"""export: folders that transformers and PEFT open with the same answers, in the place of nothing else."""

import io
import json
import sys

import pytest
import torch

import clearhead as ch
from clearhead import tokens
from clearhead.errors import InputError
from clearhead.inputs.texts import read_ids
from clearhead.weights import WeightsError

TEXTS = ["Tom bought a red car.", "Mary sold it!", "good films", "a bad bad film"]


def bundle(family, own=None, **options):
    own = own or tokens.Subwords.of(TEXTS * 3, size=290)
    torch.manual_seed(0)
    sizes = {"vocab": len(own), "width": 24, "depth": 2, "heads": 3, "context": 32}
    model = ch.build(family, **sizes | options)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return ch.Bundle(model, tokens.Pair(own, own) if family == "transformer" else own)


@pytest.fixture
def labels(tmp_path):
    (tmp_path / "labels.csv").write_text(
        "text,label\n" + "".join(f"{text},{('bad', 'good')[i % 2]}\n" for i, text in enumerate(TEXTS * 10))
    )
    return tmp_path / "labels.csv"


def word_pieces(folder):
    """A tokenizer in BERT's oldest format."""
    folder.mkdir()
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{x}" for x in "abcdeo")]
    (folder / "vocab.txt").write_text("\n".join(known) + "\n")
    return known


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fine_tuned_classifier_gives_the_same_scores_in_a_pipeline(labels, tmp_path):
    transformers = pytest.importorskip("transformers")
    known = word_pieces(tmp_path / "bert")
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 20}
    config = transformers.BertConfig(vocab_size=len(known), max_position_embeddings=16, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    run = ch.finetune(tmp_path / "bert", labels, "steps=2", out=tmp_path / "run", device="cpu", quiet=True)
    folder = ch.export(run.folder, tmp_path / "there" / "reviews")
    pipe = transformers.pipeline("text-classification", model=str(folder), device="cpu", top_k=None)
    texts = [*TEXTS, "a bad film " * 30]  # the last is longer than the model reads
    with pytest.warns(ch.errors.Notice):
        ours = ch.classify(run.model, texts)
    for theirs, mine in zip(pipe(texts, batch_size=3, truncation=True), ours, strict=True):
        assert {one["label"]: one["score"] for one in theirs} == pytest.approx(dict(mine), abs=1e-5)
    their_tokens = transformers.AutoTokenizer.from_pretrained(folder)
    pair = their_tokens("a bad film", "good")
    assert pair["token_type_ids"] == [0] * (len(pair["input_ids"]) - 5) + [1] * 5
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "classes: bad, good" in card
    assert "# reviews\n" in card
    assert dict(ch.classify(ch.load(folder, device="cpu"), TEXTS[0])) == pytest.approx(dict(ours[0]), abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{}, {"positions": "learned", "scaled": False}, {"pairs": "halves", "base": 100.0}], ids=str
)
def test_a_translator_of_ours_is_a_pegasus(options, tmp_path):
    transformers = pytest.importorskip("transformers")
    made = bundle("transformer", order="pre", **options)
    folder = ch.export(made, tmp_path / "there")
    their_tokens = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    given = their_tokens(TEXTS, padding=True, return_tensors="pt")
    lengths = given["attention_mask"].sum(1)
    for text, row, length in zip(TEXTS, given["input_ids"], lengths, strict=True):
        assert row[:length].tolist() == made.tokens.read(text).tolist()
    written = torch.randint(3, 280, (len(TEXTS), 7))
    again = ch.load(folder, device="cpu")
    expected = made.model(ids=written, source=given["input_ids"], lengths=lengths)
    torch.testing.assert_close(theirs(**given, decoder_input_ids=written).logits, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again.model(ids=written, source=given["input_ids"], lengths=lengths), expected)
    ids = theirs.generate(**given, max_new_tokens=6, do_sample=False)
    answers = [one.text for one in ch.translate(made, TEXTS, beams=1, limit=6)]
    assert their_tokens.batch_decode(ids, skip_special_tokens=True) == answers
    assert [one.text for one in ch.translate(again, TEXTS, beams=1, limit=6)] == answers


def test_nothing_that_exists_is_overwritten(tmp_path, monkeypatch):
    model = bundle("gpt")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, problem in {"used": "used is not empty", "file": "file is a file"}.items():
        with pytest.raises(InputError, match=problem):
            ch.export(model, tmp_path / name)
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert (ch.export(model, tmp_path / "empty") / "config.json").is_file()
    with pytest.raises(WeightsError, match="rnn-seq2seq: there is no Hugging Face layout"):
        ch.export("en-de-rnn", tmp_path / "new")
    monkeypatch.setattr(sys.modules["clearhead.weights.exported"], "write_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ch.export(model, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "used"]


def test_a_result_that_they_have_no_class_for_is_known_before_the_training(labels, tmp_path, capsys):
    mean = bundle("bert", answer="sentence", pool="mean", pooler=False)
    ch.save(mean, tmp_path / "mean")
    recipe = ch.training.finetune_recipe(tmp_path / "mean", labels, "steps=1", out=tmp_path / "run", device="cpu")
    run = ch.train(recipe, out=tmp_path / "run", device="cpu")
    before, _, _ = capsys.readouterr().err.partition("step 1")
    obstacle = "pool='mean', pooler=False"
    assert "`clearhead export` will not be able" in before
    assert obstacle in before
    with pytest.raises(WeightsError, match=obstacle):
        ch.export(run.folder, tmp_path / "there")
    words = "model.pool=first", "model.pooler=true", "steps=1"
    run = ch.finetune(tmp_path / "mean", labels, *words, out=tmp_path / "first", device="cpu")
    assert "clearhead export" not in capsys.readouterr().err
    assert json.loads((ch.export(run.folder, tmp_path / "there") / "config.json").read_text())["model_type"] == "bert"


@pytest.mark.parametrize(
    ("file", "text", "obstacle", "word"),
    [
        ("pairs.tsv", "{0} red cars\t{0} rote Autos\n", "a Pegasus has target_vocab=None", "data.joint=true"),
        ("play.txt", "Mary sold {0} red cars.\n", "a GPT-2 has positions='learned'", "model.positions=learned"),
    ],
)
def test_a_new_model_of_a_file_says_whether_it_can_be_exported(file, text, obstacle, word, tmp_path, capsys):
    (tmp_path / file).write_text("".join(text.format(i) for i in range(99)))
    words = ["steps=1", "data.size=290", "model.width=24", "model.depth=1", "model.heads=3"]
    ch.train(tmp_path / file, *words, out=tmp_path / "run", device="cpu")
    before, _, _ = capsys.readouterr().err.partition("step 1")
    assert before.count("`clearhead export` will not be able") == 1
    assert obstacle in before
    run = ch.train(tmp_path / file, *words, word, out=tmp_path / "other", device="cpu")
    assert "clearhead export" not in capsys.readouterr().err
    assert ch.export(run.folder, tmp_path / "there").is_dir()


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # of transformers, in PEFT
def test_adapters_that_were_kept_apart(tmp_path, capsys):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS * 10))
    ch.save(bundle("gpt"), tmp_path / "own")
    base = ch.export(tmp_path / "own", tmp_path / "base")
    words = {"method": "lora", "rank": 2, "merge": False, "device": "cpu"}
    run = ch.finetune(base, tmp_path / "lines.txt", "steps=1", "data.rows=1", out=tmp_path / "run", **words)
    assert "clearhead export" not in capsys.readouterr().err
    small = ch.export(run.folder, tmp_path / "adapters", apart=True)
    assert "library_name: peft" in (small / "README.md").read_text()
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    whole = transformers.AutoModelForCausalLM.from_pretrained(ch.export(run.folder, tmp_path / "whole"))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        merged = whole.eval()(ids).logits
        torch.testing.assert_close(peft.PeftModel.from_pretrained(model, small).eval()(ids).logits, merged)
    with pytest.raises(InputError, match="apart is for adapters"):
        ch.export(base, tmp_path / "none", apart=True)
    run = ch.finetune(
        tmp_path / "own", tmp_path / "lines.txt", "steps=1", "data.rows=1", out=tmp_path / "run2", **words
    )
    assert "is not in Hugging Face's layout, so that PEFT cannot open" in capsys.readouterr().err
    with pytest.raises(WeightsError, match="is not in Hugging Face's layout"):
        ch.export(run.folder, tmp_path / "none", apart=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"answer": "class", "classes": 2}),
        ("bert", {"answer": "words", "vocab": 291}),
        ("bert", {"answer": "sentence", "pooler": False, "pool": "mean"}),
        ("bert", {"answer": "class", "classes": 2, "types": 1}),
        ("bert", {"answer": "class", "classes": 2, "types": 1, "offset": 1}),  # a RoBERTa
        ("bert", {"answer": "words", "vocab": 291, "types": 0}),  # a DistilBERT
        ("gpt", {}),
    ],
    ids=str,
)  # fmt: skip
def test_a_text_has_the_same_ids_and_outputs_wherever_it_is_read(family, options, tmp_path):
    transformers = pytest.importorskip("transformers")
    made = bundle(family, **options)
    assert made.tokens.wrapped("").tolist() == []
    folder = ch.export(made, tmp_path / "there")
    their_tokens, again = transformers.AutoTokenizer.from_pretrained(folder), ch.load(folder, device="cpu")
    (kind,) = json.loads((folder / "config.json").read_text())["architectures"]
    theirs = getattr(transformers, kind).from_pretrained(folder).eval()
    text = "a [MASK] bad film" if "fill" in made.can else "a bad film"
    ids, masks = read_ids(made, text)
    found = read_ids(again, text)
    assert (found[0].tolist(), found[1]) == (ids.tolist(), masks)
    given = their_tokens(text, return_tensors="pt")
    assert given["input_ids"][0].tolist() == ids.tolist()
    out = theirs(**given)
    row = torch.from_numpy(ids)[None]
    if family == "gpt":
        torch.testing.assert_close(out.logits, made.model(row), rtol=1e-4, atol=1e-5)
        return
    assert ids.tolist()[:1] + ids.tolist()[-1:] == [made.tokens.start, made.tokens.end]
    assert (their_tokens.cls_token_id, their_tokens.sep_token_id) == (made.tokens.start, made.tokens.end)
    two = their_tokens(text, "good", return_tensors="pt")
    assert two["input_ids"][0].tolist() == [*ids.tolist(), *made.tokens.encode("good").tolist(), made.tokens.end]
    assert torch.isfinite(theirs(**two)[0]).all()
    if "fill" in made.can:
        assert their_tokens.mask_token_id == len(made.tokens) == ids[masks[0]]
        expected = [(piece, pytest.approx(p, abs=1e-5)) for piece, p in ch.fill(made, text, top=3)[0]]
        assert ch.fill(again, text, top=3)[0] == expected
    if "embed" in made.can:
        torch.testing.assert_close(out.last_hidden_state, made.model.encode(row), rtol=1e-4, atol=1e-5)
    else:
        torch.testing.assert_close(out.logits, made.model(row), rtol=1e-4, atol=1e-5)
    assert ch.load(ch.export(again, tmp_path / "twice"), device="cpu").tokens == again.tokens


def test_pieces_of_an_encoder_have_start_and_end_around_a_text(tmp_path):
    library, transformers = pytest.importorskip("sentencepiece"), pytest.importorskip("transformers")
    file = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 9), model_writer=file, minloglevel=2, hard_vocab_limit=False, vocab_size=300,
        model_type="bpe", byte_fallback=True,
    )  # fmt: skip
    made = bundle("bert", tokens.Pieces(file.getvalue()), answer="class", classes=2)
    folder = ch.export(made, tmp_path / "there")
    ids = [1, *made.tokens.encode("a bad film").tolist(), 2]
    for one in (made, ch.load(folder, device="cpu")):
        assert read_ids(one, "a bad film")[0].tolist() == ids
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    if type(reader) is not transformers.LlamaTokenizer:  # transformers 5.0 overlooks the class that the folder names
        reader = transformers.LlamaTokenizer.from_pretrained(folder)
    assert reader("a bad film")["input_ids"] == ids

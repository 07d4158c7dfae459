"""Text as characters, words or subwords: what a tokenizer is trained on, document ends, tables, and whole runs."""

import gzip
import json
import math

import numpy as np
import pytest
from chat_folder import spaced_folder

import clearhead as ch
from clearhead.data import DataError, make_data
from clearhead.data.text import documents as streams
from clearhead.data.text import plain as tokenized
from clearhead.data.text.documents import Documents, divided
from clearhead.tokens import Subwords, Words

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat,", "and", "it's", "größer", "3.5", "\n", "\n\n  ", "runs.\n"]
TEXT = " ".join(np.random.default_rng(1).choice(WORDS, 4000))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def open_text(folder, **options):
    given = {"path": "a.txt", "context": 9, "rows": 6, "tokens": "bpe", "size": 300, **options}
    return make_data("text", given, seed=0, root=folder)


def test_the_ids_of_subwords_are_those_of_the_text(folder):
    data = open_text(folder, share=0.0)
    *ids, end = data.ids.tolist()
    assert end == data.tokens.end
    assert ids == data.tokens.encode(TEXT).tolist()
    assert data.tokens.decode(data.ids.astype(np.int64)) == TEXT
    assert data.sizes == {"vocab": len(data.tokens)} == {"vocab": 300}


@pytest.mark.parametrize("tokens", ["words", "bpe"])
def test_pieces_of_a_long_text_give_the_ids_of_the_whole(folder, tokens, monkeypatch):
    whole = open_text(folder, tokens=tokens)
    monkeypatch.setattr(streams, "PIECE", 64)
    monkeypatch.setattr(streams, "REACH", 60)
    monkeypatch.setattr(tokenized, "BATCH", 200)
    parts = open_text(folder, tokens=tokens)
    assert len(list(Documents([folder / "a.txt"]).pieces())) > 200
    assert parts.tokens.decode(parts.ids.astype(np.int64)) == whole.tokens.decode(whole.ids.astype(np.int64))
    given = open_text(folder, tokens=str(ch.tokens.save(whole.tokens, folder / "t").parent))
    assert given.ids.tolist()[:-1] == whole.tokens.encode(TEXT).tolist()


@pytest.mark.parametrize("kind", ["prepend", "first", "always"])
def test_pieces_begin_without_a_space_of_their_own(folder, kind, monkeypatch):
    model = str(spaced_folder(folder / "model", kind, ""))
    whole = open_text(folder, tokens=model)
    assert whole.ids.tolist()[:-1] == whole.tokens.encode(TEXT).tolist()
    for part in (64, 65, 66):
        monkeypatch.setattr(streams, "PIECE", part)
        monkeypatch.setattr(streams, "REACH", 60)
        monkeypatch.setattr(tokenized, "BATCH", 200)
        assert open_text(folder, tokens=model).ids.tolist() == whole.ids.tolist()


@pytest.mark.parametrize("text", ["x" * 1000, "字" * 1000, "a b " * 300, " " * 999])
def test_no_character_is_lost_between_pieces(text, monkeypatch):
    monkeypatch.setattr(streams, "PIECE", 64)
    monkeypatch.setattr(streams, "REACH", 16)
    for chunk in (1, 50, 64, 5000):
        pieces = list(divided([text[i : i + chunk] for i in range(0, len(text), chunk)], None))
        assert "".join(piece.text for piece in pieces) == text
        assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert max(len(piece.text) for piece in pieces) < 128


@pytest.mark.parametrize("tokens", ["characters", "words", "bpe", "given"])
def test_validation_may_have_a_file_of_its_own(folder, tokens, monkeypatch):
    (folder / "v.txt").write_text("the cat sat on a zebra. " * 9)
    if tokens == "given":
        ch.tokens.save(open_text(folder).tokens, folder / "given")
    valid = (folder / "v.txt").read_text()
    for large in (1 << 26, 10):  # in memory, and in files
        monkeypatch.setattr(tokenized, "LARGE", large)
        data = open_text(folder, tokens=tokens, valid_path="v.txt", valid_rows=4)
        decode = data.tokens.decode
        ids = np.concatenate([batch["ids"].flatten() for batch in map(data.valid, range(data.valid_batches))])
        targets = np.concatenate([data.valid(i)["targets"].flatten() for i in range(data.valid_batches)])
        assert decode(np.append(ids[:1], targets[targets >= 0])).startswith("the cat sat on a ")
        assert len(data.ids) == data.cut
        trained = open_text(folder, tokens=tokens, share=0.0)
        if tokens == "characters":
            assert "z" in data.tokens.pieces(range(len(data.tokens)))
            assert decode(targets[targets >= 0]) == valid[1:]
        else:  # the tokenizer is that of the training text
            assert data.tokens == trained.tokens
            assert data.ids.tolist() == trained.ids.tolist()
        count = int((targets >= 0).sum()) + 1
        assert f"{count} tokens for validation (from v.txt)" in data.description
        assert data.files == ("a.txt", "v.txt")


@pytest.mark.parametrize("tokens", ["words", "bpe"])
def test_a_tokenizer_is_trained_on_the_training_part_only(folder, tokens):
    """What only validation has does not change the tokenizer, and the cut is at the share of the characters."""
    first, zeds = "abab cdcd " * 90, "zzzz " * 20
    (folder / "z.txt").write_text(first + zeds)
    (folder / "y.txt").write_text(first + "yyyy " * 20)
    one, other = (open_text(folder, path=f"{name}.txt", tokens=tokens, share=0.1) for name in "zy")
    assert one.tokens == other.tokens
    pieces = one.tokens.pieces(range(len(one.tokens)))
    assert any("abab" in piece for piece in pieces)
    assert not any("zz" in piece for piece in pieces)
    assert one.tokens.decode(one.ids[: one.cut].astype(np.int64)).rstrip() == first.rstrip()
    if tokens == "bpe":
        assert one.tokens.decode(one.ids[one.cut :].astype(np.int64)) == zeds


def test_a_large_text_is_sampled_evenly(folder, monkeypatch):
    monkeypatch.setattr(streams, "PIECE", 100)
    monkeypatch.setattr(tokenized, "SAMPLE", 2000)
    (folder / "l.txt").write_text("".join(f"{i:03} " * 25 for i in range(100)))
    reading = tokenized.TokenizerSample(Documents([folder / "l.txt"]), 0.5, lambda name, share: None)
    texts = reading.sample()
    assert reading.limit == 5000
    assert 1500 < sum(map(len, texts)) <= 2000
    numbers = sorted({int(word) for text in texts for word in text.split() if len(word) == 3})
    assert numbers[0] < 5
    assert 45 < numbers[-1] < 50  # up to the end of the training part, and no further
    assert max(np.diff(numbers)) < 8
    assert "learned from 1," in open_text(folder, path="l.txt", share=0.5).description


def test_documents_end_with_the_end_token(folder):
    (folder / "b.txt").write_text("the cat\n\nthe dog\n\nsat")
    data = open_text(folder, path=["b.txt", "a.txt"], separator="\n\n", tokens="words", minimum=1, context=2)
    ids, end = data.ids.astype(np.int64), data.tokens.end
    assert [data.tokens.decode(row) for row in np.split(ids, data.ends)[:3]] == ["the cat", "the dog", "sat"]
    assert (ids[data.ends - 1] == end).all()
    assert (ids == end).sum() == len(data.ends)
    assert data.special.ends == (end,)
    assert data.special.start == end  # where a document begins for a model that has never read <start>


def test_a_tokenizer_that_begins_texts_begins_each_document(folder):
    tokens = ch.tokens.load(_with_start(folder))
    data = open_text(folder, path=["a.txt", "a.txt"], tokens="start")
    first, second = np.split(data.ids.astype(np.int64), data.ends)[:2]
    assert first.tolist() == second.tolist() == [*tokens.wrapped(TEXT).tolist(), tokens.end]
    assert first[0] == tokens.start


def _with_start(folder):
    from tokenizers import processors

    tokens = Subwords.of([TEXT], size=300)
    backend = tokens._tokenizer
    backend.post_processor = processors.TemplateProcessing(single="<start> $A", special_tokens=[("<start>", 1)])
    return ch.tokens.save(Subwords(backend.to_str()), folder / "start").parent


def test_special_ids_of_a_checkpoint_are_around_its_documents(folder):
    """Names of tokens that are not the usual ones: the ids come from the files of the folder."""
    text = _with_start(folder).joinpath("tokenizer.json")
    text.write_text(text.read_text().replace("<start>", "<|begin|>").replace("<end>", "<|over|>"))
    (folder / "start" / "config.json").write_text(json.dumps({"model_type": "llama", "bos_token_id": 1}))
    (folder / "start" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|over|>"}))
    data = open_text(folder, tokens="start")
    assert data.tokens.start is data.tokens.end is None
    assert data.tokens.pieces(data.ids[[0, -1]].astype(np.int64)) == ["<|begin|>", "<|over|>"]
    assert (data.special.start, data.special.ends) == (1, (2,))


def test_folders_and_compressed_files_are_read_in_order(folder):
    inside = folder / "texts"
    (inside / "b").mkdir(parents=True)
    (inside / "b" / "2.md").write_text("second ")
    (inside / "1.txt.gz").write_bytes(gzip.compress(b"first "))
    (inside / "3.txt").write_text("third " * 9)
    (inside / ".hidden.txt").write_text("no")
    (inside / "picture.png").write_bytes(b"\xff")
    data = open_text(folder, path="texts", tokens="characters")
    assert data.tokens.decode(data.ids.astype(np.int64)) == f"first {'third ' * 9}second "
    assert len(data.ends) == 3


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("t.csv", 'id,text\n1,the cat\n2,\n3,"a\ndog"\n', None),
        ("t.jsonl", '{"body": "the cat"}\n{"body": null}\n{"body": "a\\ndog"}\n', None),
        ("t.tsv", "x\tthe words\n1\tthe cat\n2\t\n3\ta\\ndog\n", "the words"),
    ],
)
def test_each_row_of_a_table_is_a_document(folder, name, content, column):
    (folder / name).write_text(content)
    dog = "a\\ndog" if name == "t.tsv" else "a\ndog"
    data = open_text(folder, path=name, column=column, tokens="characters", context=3)
    assert data.tokens.decode(data.ids.astype(np.int64)) == f"the cat\n{dog}\n"
    assert data.ends.tolist() == [8, 8 + len(dog) + 1]
    assert "1 row without text left out" in data.description
    subwords = open_text(folder, path=name, column=column, context=3)
    parts = np.split(subwords.ids.astype(np.int64), subwords.ends)
    assert [subwords.tokens.decode(part) for part in parts[:2]] == ["the cat", dog]
    with pytest.raises(DataError, match="no column 'txt'"):
        open_text(folder, path=name, column="txt")


def test_an_unknown_kind_of_tokens_names_the_nearest(folder):
    with pytest.raises(DataError, match=r"tokens='wrds': .*expected characters, words, bpe, or a folder .*is words"):
        open_text(folder, tokens="wrds")


def test_capitals_can_be_ignored(folder):
    (folder / "c.txt").write_text("The CAT sat " * 30)
    data = open_text(folder, path="c.txt", tokens="words", lower=True)
    assert data.tokens == Words.of(["the cat sat " * 27], lower=True)


def recipe(**data):
    return {
        "steps": 20,
        "data": {"name": "text", "path": "a.txt", "context": 16, "rows": 4, "size": 280, "valid_most": 1, **data},
        "model": {"name": "gpt", "width": 16, "depth": 1, "heads": 2},
    }


@pytest.mark.parametrize("tokens", ["characters", "words", "bpe"])
def test_a_run_can_generate_and_be_evaluated(folder, tokens):
    run = ch.train(recipe(tokens=tokens), out=folder / "run", data=folder, device="cpu", quiet=True)
    assert run.finished
    model = ch.load(folder / "run", device="cpu")
    written = ch.generate(model, "the cat", max_new=8, seed=1)
    assert written.text
    assert written.text == "".join(ch.stream(model, "the cat", max_new=8, seed=1))
    if tokens != "characters":
        assert ch.generate(model, "", max_new=2).text  # begins where a document begins
    (folder / "b.txt").write_text("the cat sat größer\n")
    scores = ch.evaluate(model, folder / "b.txt")
    assert 1 < scores.perplexity < 2 * len(model.tokens)
    assert scores.bits_per_byte == pytest.approx(-scores.logprob / math.log(2) / 21)
    assert scores.bits_per_character == pytest.approx(-scores.logprob / math.log(2) / 19)
    if tokens == "bpe":  # the tokenizer of a run is that of the next
        more = recipe(tokens=str(folder / "run")) | {"pretrained": str(folder / "run"), "steps": 2}
        del more["model"]
        again = ch.train(more, out=folder / "more", data=folder, device="cpu", quiet=True)
        assert again.metrics[-1]["valid_loss"] < run.metrics[0]["loss"]
        assert ch.load(folder / "more", device="cpu").special == model.special


def test_a_generated_text_ends_with_its_document(folder):
    """A model of short documents learns to end them."""
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": "the cat\nsat."}) + "\n" for _ in range(200)))
    table = recipe(path="d.jsonl", tokens="bpe", rows=8) | {"steps": 80, "optim": {"lr": 0.02}}
    table["model"] |= {"positions": "rotary"}
    ch.train(table, out=folder / "run", data=folder, device="cpu", quiet=True)
    model = ch.load(folder / "run", device="cpu")
    for prompt in ("", "the"):
        written = ch.generate(model, prompt, max_new=12)
        assert prompt + written.text == "the cat\nsat."
        assert written.ended == "end"


def test_a_checkpoint_with_more_embeddings_than_tokens_is_trained_further(folder):
    tokens = Subwords.of([TEXT], size=300)
    model = ch.build("gpt", vocab=len(tokens) + 12, context=16, width=16, depth=1, heads=2)
    ch.save(model, folder / "wide", tokens=tokens)
    table = recipe(tokens="wide") | {"pretrained": str(folder / "wide"), "steps": 2}
    del table["model"]
    run = ch.train(table, out=folder / "run", data=folder, device="cpu", quiet=True)
    assert run.finished
    again = ch.load(folder / "run", device="cpu")
    assert again.config.vocab == len(tokens) + 12
    assert again.tokens == tokens

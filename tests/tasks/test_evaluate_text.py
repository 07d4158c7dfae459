"""evaluate, for language models and classifiers, against loops over tokens and texts."""

import json
import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import f1_score

from clearhead import Bundle, build, config
from clearhead.data import make_data
from clearhead.data.files import DataError
from clearhead.data.text.chats import split_chats
from clearhead.data.text.conversations import Columns, read_chats
from clearhead.errors import InputError, Notice
from clearhead.tasks import classify, evaluate
from clearhead.tasks.evaluation.classes import ClassScores
from clearhead.tasks.text import likelihood
from clearhead.tokens import Characters, Words
from clearhead.tokens import save as save_tokens
from clearhead.weights import save
from support.command_line import call

TEXT = "the cat sat on the mat. the dog sat on the cat. " * 3


def writer(context: int = 16) -> Bundle:
    torch.manual_seed(0)
    tokens = Characters.of(TEXT)
    model = build("gpt", vocab=len(tokens), context=context, width=16, depth=2, heads=2, positions="rotary")
    return Bundle(model, tokens, model.config)


def sorter() -> Bundle:
    torch.manual_seed(0)
    tokens = Words.of(["good bad film . ! very"])
    model = build(
        "bert", vocab=len(tokens), context=16, width=16, depth=1, heads=2, answer="class", classes=2, pool="mean"
    )
    return Bundle(model, tokens, model.config, labels=("negative", "positive"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.tsv"
    path.write_text("good film !\tpositive\nbad film .\tnegative\nvery bad\tnegative\ngood\tpositive\n")
    return path


@torch.no_grad()
@pytest.mark.parametrize("stride", [1, 5, 16])
def test_perplexity_counts_every_token_once_given_the_tokens_before_it_in_its_window(text, stride):
    made = writer()
    found = evaluate(made, text, stride=stride)
    ids = torch.from_numpy(made.tokens.encode(TEXT))
    total, told, begin = 0.0, 1, 0
    while told < len(ids):  # written out: windows of the context, of which only the new tokens count
        window = ids[begin : begin + 17]
        logp = made.model(window[None, :-1])[0].log_softmax(-1)
        for i in range(told, begin + len(window)):
            total += float(logp[i - begin - 1, ids[i]])
        told, begin = begin + len(window), begin + stride
    assert found.tokens == len(ids) - 1
    assert found.logprob == pytest.approx(total, rel=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-total / (len(ids) - 1)), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(-total / math.log(2) / len(TEXT), rel=1e-4)
    assert found.bits_per_character == found.bits_per_byte  # of a text in ASCII


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.csv", "texts"])
def test_several_texts_are_evaluated_one_by_one(tmp_path, name):
    texts, made, path = ["the cat sat.", "a dog", "the mat on the mat. the mat on the mat."], writer(), tmp_path / name
    if name == "texts":
        path.mkdir()
        for i, text in enumerate(texts):
            (path / f"{i}.txt").write_text(text)
    elif name == "texts.csv":
        path.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(["", *texts])))
    else:
        path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts))
    found, each = evaluate(made, path), [likelihood(made, text) for text in texts]
    assert found.logprob == pytest.approx(sum(one.logprob for one in each), rel=1e-5)
    assert (found.tokens, found.characters) == (sum(one.counted for one in each), sum(map(len, texts)))
    with pytest.raises(InputError, match="stride and last are for a text file"):
        evaluate(made, path, last=0.5)


def test_chats_need_a_chat_template(tmp_path):
    (tmp_path / "chats.jsonl").write_text('{"prompt": "a", "answer": "cat"}\n')
    with pytest.raises(
        InputError, match="has chats, and this GPT has no chat template: expected a chat model, or texts"
    ):
        evaluate(writer(), tmp_path / "chats.jsonl")


def trained_on(made, folder, **data):
    """A model whose run was trained on this data."""
    folder.mkdir()
    config.write({"steps": 1, "data": data, "model": {"name": "gpt"}}, folder / "recipe.toml")
    return replace(made, folder=folder / "model")


def test_of_the_text_that_a_model_was_trained_on_the_end_is_evaluated(text, tmp_path):
    made = trained_on(writer(), tmp_path / "run", name="text", path=str(text), share=0.25)
    found = evaluate(made, text)
    assert (found.logprob, found.bytes) == (evaluate(made, text, last=0.25).logprob, len(TEXT) // 4)
    assert found.remark == "the last 25%, held out of its training; last=1 takes all"
    assert evaluate(made, text, last=1.0).bytes == len(TEXT)
    with pytest.raises(ValueError, match=r"split='train' is for chats: of a text last=SHARE takes the end"):
        evaluate(made, text, split="train")
    (tmp_path / "other.txt").write_text(TEXT)
    assert evaluate(made, tmp_path / "other.txt").bytes == len(TEXT)
    known = trained_on(writer(), tmp_path / "known", name="text", path=str(text), valid_path="other.txt")
    with pytest.warns(Notice, match=r"text\.txt: the model was trained on all of it"):
        assert evaluate(known, text).bytes == len(TEXT)


UNEVEN = "extraordinarily " * 9 + "a b. c d. " * 31  # long words, then many short ones


@pytest.mark.parametrize("share", [0.25, 0.3, 0.47])
@pytest.mark.parametrize(
    "options", [{}, {"tokens": "words", "minimum": 1, "separator": ". "}, {"tokens": "saved"}], ids=str
)
def test_what_is_evaluated_by_default_is_what_training_held_out(tmp_path, monkeypatch, options, share):
    """To the character, for a share of the characters as for one of the ids."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uneven.txt").write_text(UNEVEN)
    save_tokens(Words.of([UNEVEN], minimum=1), tmp_path / "saved")
    options = {"path": "uneven.txt", "share": share, **options}
    data = make_data("text", {**options, "context": 4}, seed=0)
    held_out = data.tokens.decode(data.ids[data.cut :])
    model = build("gpt", vocab=len(data.tokens), context=16, width=8, depth=1, heads=1, positions="rotary")
    made = trained_on(Bundle(model, data.tokens, special=data.special), tmp_path / "run", name="text", **options)
    found = evaluate(made, "uneven.txt")
    evaluated, held_out = ("".join(text.replace(".", "").split()) for text in (UNEVEN[-found.characters :], held_out))
    assert evaluated == held_out


def test_of_shakespeare_the_end_is_evaluated_where_it_was_trained_on(tmp_path):
    (tmp_path / "shakespeare.txt").write_text(TEXT)
    made = trained_on(writer(), tmp_path / "run", name="shakespeare", share=0.25)
    found = evaluate(made, "shakespeare", root=tmp_path)
    assert (found.characters, found.remark) == (36, "the last 25%, held out of its training; last=1 takes all")
    assert evaluate(made, "shakespeare", root=tmp_path, last=1.0).characters == len(TEXT)
    assert evaluate(writer(), "shakespeare", root=tmp_path).characters == len(TEXT)
    whole = trained_on(writer(), tmp_path / "whole", name="shakespeare", share=0.0)
    with pytest.warns(Notice, match="shakespeare: the model was trained on all of it"):
        evaluate(whole, "shakespeare", root=tmp_path)


def test_rows_without_text_are_left_out_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": null}\n{"text": " "}\n{"text": "the mat"}\n')
    found = evaluate(writer(), tmp_path / "a.jsonl")
    assert (found.tokens, found.left_out) == (12, 2)


def test_of_the_chats_that_a_model_was_trained_on_the_held_out_ones_are_evaluated(tmp_path):
    rows = [{"prompt": f"cat {'at' * i}?", "answer": "the mat. "[: i % 7 + 1]} for i in range(12)]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"prompt": "a", "answer": None}]))
    chats = read_chats(path, Columns()).chats
    data = {"name": "chats", "path": str(path), "tokens": "none", "share": 0.4}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokens = Characters.of(TEXT + "?")
    model = build("gpt", vocab=len(tokens), context=64, width=8, depth=1, heads=1, positions="rotary")
    made = trained_on(Bundle(model, tokens, model.config, chat=template), tmp_path / "run", **data)
    train, valid = split_chats(chats, 0.4)
    answers = {name: sum(len(chat.messages[-1]["content"]) for chat in some) for name, some in
               (("valid", valid), ("train", train), ("all", chats))}  # fmt: skip
    assert len(set(answers.values())) == 3
    for split, name in ((None, "valid"), ("valid", "valid"), ("train", "train"), ("all", "all")):
        found = evaluate(made, path, split=split)
        assert (found.characters, found.left_out) == (answers[name], 1)
        assert found.data == (str(path) if name == "all" else f"{path} {name}")


def test_macro_f1_is_that_of_scikit_learn():
    scores = ClassScores(data="", hypotheses=list("abbcaad"), references=list("abcccba"), seconds=1.0)
    assert scores.f1 == pytest.approx(f1_score(list("abcccba"), list("abbcaad"), average="macro", zero_division=0))
    assert scores.to_dict()["f1"] == scores.f1


def test_the_last_share_of_a_text_can_be_evaluated(text):
    found = evaluate(writer(), text, last=0.25)
    assert found.bytes == round(len(TEXT) * 0.25)
    assert found.tokens == found.bytes - 1


def test_accuracy_and_confusion_are_those_of_the_predictions(labels):
    made = sorter()
    found = evaluate(made, labels)
    predicted = [classify(made, line.split("\t")[0])[0][0] for line in labels.read_text().splitlines()]
    assert found.hypotheses == predicted
    assert found.accuracy == sum(a == b for a, b in zip(predicted, found.references, strict=True)) / 4
    assert sum(n for row in found.confusion.values() for n in row.values()) == 4
    assert found.confusion["positive"]["negative"] == sum(
        a == "negative" and b == "positive" for a, b in zip(predicted, found.references, strict=True)
    )


def test_progress_is_reported_up_to_the_end(text, labels):
    for made, data in ((writer(), text), (sorter(), labels)):
        told = []
        evaluate(made, data, done=lambda n, of, told=told: told.append((n, of)))
        assert sum(n for n, _ in told) == told[0][1]


def test_wrong_data_and_options_raise(text, labels, tmp_path):
    with pytest.raises(DataError, match=r"none\.txt"):
        evaluate(writer(), tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"last=0.0: expected a share"):
        evaluate(writer(), text, last=0.0)
    with pytest.raises(ValueError, match=r"2 files: this GPT does not translate"):
        evaluate(writer(), [text, text])
    with pytest.raises(
        ValueError, match=r"split='test': the model was not trained on .*labels\.tsv, which is taken as"
    ):
        evaluate(sorter(), labels, split="test")
    labels.write_text("good\tpositive\nodd\tneutral\n")
    with pytest.raises(DataError, match=r"labels\.tsv:2: the label 'neutral' is none of the model's"):
        evaluate(sorter(), labels)


def test_the_command_evaluates_and_writes_predictions(text, labels, tmp_path):
    save(writer(), tmp_path / "writer")
    found = call("evaluate", tmp_path / "writer", text, "stride=4", "--json")
    assert json.loads(found.stdout)["tokens"] == len(TEXT) - 1
    refused = call("evaluate", tmp_path / "writer", text, "--out", tmp_path / "a.txt")
    assert refused.exit_code != 0
    assert not (tmp_path / "a.txt").exists()
    save(sorter(), tmp_path / "sorter")
    out = tmp_path / "predicted.txt"
    found = call("evaluate", tmp_path / "sorter", labels, "--out", out)
    assert "accuracy" in found.stdout
    assert set(out.read_text().split()) <= {"negative", "positive"}

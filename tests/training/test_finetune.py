"""finetune: a checkpoint and a file of data become a training, or a sentence that says what would fit."""

import json
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead import tokens
from clearhead.config import ConfigError
from clearhead.data import DataError
from clearhead.data.text import chats, labelled, plain, translations
from clearhead.errors import InputError, InputTypeError
from clearhead.training import finetune, finetune_recipe, read_recipe, train
from clearhead.training.own_data import memory
from clearhead.training.own_data.finetune import _check_valid, choose_task
from clearhead.training.own_data.new_recipe import is_data, new_recipe, with_steps
from clearhead.training.run_folder import FolderError
from clearhead.weights.tensor_files import Tensors

TEMPLATE = (
    "{% for m in messages %}{{ 'Q ' if m.role == 'user' else 'A ' }}{{ m.content }} {{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}A {% endif %}"
)
WORDS = [chr(i) for i in range(97, 123)]


def bundle(family="gpt", **more):
    torch.manual_seed(0)
    own = tokens.Subwords.of(["a b c d e f g h good bad Q A"] * 3, size=300)
    sizes = {"width": 16, "depth": 1, "heads": 2, "vocab": len(own), "context": 64}
    options = {"gpt": {"positions": "rotary"}, "bert": {"answer": "words"}, "transformer": {}}[family]
    model = ch.build(family, **(sizes | options))
    return ch.Bundle(model, tokens.Pair(own, own) if family == "transformer" else own, **more)


@pytest.fixture
def checkpoints(tmp_path):
    for name, made in {
        "gpt": bundle(), "chat": replace(bundle(), chat=TEMPLATE), "bert": bundle("bert"),
        "translator": bundle("transformer"),
    }.items():  # fmt: skip
        ch.save(made, tmp_path / name)
    return tmp_path


@pytest.fixture
def files(tmp_path):
    pairs = [(f"{a} {b}", f"{b} {a}") for a in "abcdefgh" for b in "abcdefgh"]
    (tmp_path / "lines.txt").write_text("".join(f"{a} {b} {a}\n" for a, b in pairs))
    (tmp_path / "labels.csv").write_text(
        "text,label\n" + "".join(f"{a},{'good' if 'a' in a else 'bad'}\n" for a, _ in pairs)
    )
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    chats = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in pairs]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    return tmp_path


FITS = {
    "chat": ("chats.jsonl", "next-token"), "gpt": ("lines.txt", "next-token"), "bert": ("labels.csv", "classification"),
    "translator": ("pairs.tsv", "translation"),
}  # fmt: skip


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("name", FITS)
def test_the_objective_follows_from_the_model_and_the_data(name, method, checkpoints, files, tmp_path):
    data, objective = FITS[name]
    run = finetune(
        checkpoints / name,
        files / data,
        "steps=2",
        "optim.lr=1e-2",
        method=method,
        rank=2,
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    setup = json.loads((tmp_path / "run" / "setup.json").read_text())
    assert run.finished
    assert setup["objective"] == objective
    before, after = ch.load(checkpoints / name).model.state_dict(), run.model.model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before.keys() & after.keys())
    assert run.model.chat == (TEMPLATE if name == "chat" else None)
    assert run.model.tokens == ch.load(checkpoints / name).tokens


# By checkpoint: what tokenizes a row, a part (training, validation) or all of its data, and how often it is called.
TOKENIZED = {
    "chat": (chats.Rendering, "tokenized", 64), "gpt": (plain, "tokenize", 1),
    "bert": (labelled.EncodedTexts, "__init__", 2), "translator": (translations.EncodedPairs, "__init__", 2),
}  # fmt: skip


@pytest.mark.parametrize("words", [[], ["data.valid_most=1", "seed=3"]])
@pytest.mark.parametrize("name", TOKENIZED)
def test_weights_are_read_once_and_data_is_tokenized_once(name, words, checkpoints, files, tmp_path, monkeypatch):
    read, called = Counter(), Counter()
    get, (owner, function, times) = Tensors.__getitem__, TOKENIZED[name]
    tokenize = getattr(owner, function)

    def counted_get(self, key):
        read[self.path, key] += 1
        return get(self, key)

    def counted_tokenize(*given, **more):
        called[function] += 1
        return tokenize(*given, **more)

    monkeypatch.setattr(Tensors, "__getitem__", counted_get)
    monkeypatch.setattr(owner, function, counted_tokenize)
    out = {"out": tmp_path / "run", "device": "cpu", "quiet": True}
    finetune(checkpoints / name, files / FITS[name][0], "steps=1", *words, **out)
    assert called[function] == times
    weights = {key: n for (path, key), n in read.items() if path.is_relative_to(checkpoints / name)}
    assert weights
    assert set(weights.values()) == {1}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, []) for name in ("chat", "bert", "translator", "masked")),
        *((name, ["data.valid_most=1", "seed=3"]) for name in ("chat", "bert", "translator", "masked")),
        ("chat", ["data.pack=true"]),
    ],
)  # fmt: skip
def test_the_data_of_a_plan_is_that_of_its_recipe(name, words, checkpoints, files, tmp_path, monkeypatch):
    plans = []

    def kept_with_steps(*given, **more):
        plans.append(with_steps(*given, **more))
        return plans[-1]

    monkeypatch.setattr(sys.modules[finetune.__module__], "with_steps", kept_with_steps)
    model, data = ("bert", "lines.txt") if name == "masked" else (name, FITS[name][0])
    recipe = finetune_recipe(checkpoints / model, files / data, "epochs=2", *words, out=tmp_path / "run", device="cpu")
    section, kept = recipe["data"], plans[0].data
    fresh = ch.data.make_data(section["name"], section.without("name"), seed=recipe.get("seed", 0))
    for fact in ("description", "keys", "sizes", "longest", "steps_per_epoch", "valid_batches", "special", "classes"):
        assert getattr(kept, fact) == getattr(fresh, fact)
    pairs = [(kept.batch(i), fresh.batch(i)) for i in range(3)]
    pairs += [(kept.valid(i), fresh.valid(i)) for i in range(fresh.valid_batches)]
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_columns_that_the_user_names_decide_what_is_learned(checkpoints, files, tmp_path):
    pairs = [(f"{a} {b}", f"{b} {a}") for a in "abcdefgh" for b in "abcdefgh"]
    (files / "odd.csv").write_text("uid,utt,cls\n" + "".join(f"{i},{a},{a[0]}\n" for i, (a, _) in enumerate(pairs)))
    (files / "first.tsv").write_text("".join(f"{b} .\t{a}\n" for a, b in pairs))
    for data, words, columns in (
        ("odd.csv", ["data.text=utt", "data.label=cls"], ("utt", "cls")),
        ("first.tsv", ["data.text=2", "data.label=1"], ("2", "1")),
        ("first.tsv", ["data.name=labelled"], ("1", "2")),
    ):
        for made in (
            finetune_recipe(checkpoints / "bert", files / data, *words, "steps=1", out=tmp_path / "run", device="cpu"),
            new_recipe(files / data, *words, "steps=1", "data.size=300"),
        ):
            assert made["data"]["name"] == "labelled"
            assert (str(made["data"]["text"]), str(made["data"]["label"])) == columns
            read_recipe(made)


@pytest.mark.parametrize(
    ("name", "content", "valid"),
    [
        ("gpt", "lines.txt", "a b a\nb a b\n" * 20),
        ("bert", "lines.txt", "a b z\nz a b\n" * 20),
        ("bert", "labels.csv", "text,label\na z,good\nb z,bad\n"),
        ("translator", "pairs.tsv", "source\ttarget\na z\tz a\n"),
        (
            "chat",
            "chats.jsonl",
            '{"messages": [{"role": "user", "content": "z"}, {"role": "assistant", "content": "a"}]}',
        ),
    ],
    ids=["text", "masked", "labelled", "pairs", "chats"],
)
def test_a_file_for_validation_works_for_every_kind(name, content, valid, checkpoints, files, tmp_path):
    own = files / f"valid{(files / content).suffix}"
    own.write_text(valid)
    made = finetune_recipe(
        checkpoints / name, files / content, "steps=1", valid=own, out=tmp_path / "run", device="cpu"
    )
    assert made["data"]["valid_path"] == str(own)
    opened = ch.data.make_data(made["data"]["name"], dict(made["data"].without("name")), seed=0)
    assert opened.valid_batches > 0
    assert str(own) in opened.description


@pytest.mark.parametrize(("name", "data"), [("bert", "labels.csv"), ("translator", "pairs.tsv")])
def test_validation_texts_that_are_longer_than_all_others_are_whole(name, data, checkpoints, files, tmp_path):
    long = "a b " * 20
    own = files / f"valid{(files / data).suffix}"
    own.write_text({"labels.csv": f"text,label\n{long},good\n", "pairs.tsv": f"source\ttarget\n{long}\t{long}\n"}[data])
    made = finetune_recipe(checkpoints / name, files / data, "steps=1", valid=own, out=tmp_path / "run", device="cpu")
    opened = ch.data.make_data(made["data"]["name"], dict(made["data"].without("name")), seed=0)
    assert opened.valid_batches == 1
    assert max(opened.training.buckets.lengths) < 32 < opened.valid(0)["lengths"][0]
    assert "cut" not in opened.description
    assert "left out" not in opened.description


def test_images_have_no_other_file_for_validation(checkpoints, files, tmp_path):
    with pytest.raises(InputError, match=r"valid='a.zip': images have no other file for validation: expected a folder"):
        _check_valid("images", "a.zip")


def test_masked_texts_are_as_long_as_the_context_allows(checkpoints, files, tmp_path):
    (files / "long.txt").write_text("".join(f"{'a b ' * n}c\n" for n in range(1, 60)))
    made = finetune_recipe(checkpoints / "bert", files / "long.txt", out=tmp_path / "run", device="cpu")
    assert made["data"]["longest"] == 64  # which is its context
    (files / "folder").mkdir()
    for i in range(3):
        (files / "folder" / f"{i}.txt").write_text(f"a b {i}\nb {i}\n" * 9)
    made = finetune_recipe(checkpoints / "bert", files / "folder", out=tmp_path / "run", device="cpu")
    assert made["data"]["longest"] == 32
    assert "for validation" in ch.data.make_data("masked", dict(made["data"].without("name")), seed=0).description


@pytest.mark.parametrize(
    ("name", "data"), [("bert", "labels.csv"), ("translator", "pairs.tsv"), ("chat", "chats.jsonl")]
)
def test_batches_may_be_smaller_than_the_context(name, data, checkpoints, files, tmp_path):
    made = finetune_recipe(
        checkpoints / name, files / data, "data.batch_tokens=40", "steps=1", out=tmp_path / "run", device="cpu"
    )
    assert made["data"]["batch_tokens"] == 40
    assert made["data"]["longest"] <= 40
    with pytest.raises(ConfigError, match=r"batch_tokens = 'many'"):
        finetune_recipe(checkpoints / name, files / data, "data.batch_tokens=many", out=tmp_path / "run", device="cpu")


@pytest.mark.parametrize(("name", "data"), [("bert", "labels.csv"), ("bert", "lines.txt"), ("chat", "chats.jsonl")])
def test_a_context_that_is_no_multiple_of_8_can_be_filled(name, data, checkpoints, files, tmp_path):
    made = ch.load(checkpoints / name)
    options = ch.config.dump(made.config) | {"context": 13, "positions": "learned"}
    options["vocab"] += data == "lines.txt"  # the mask
    ch.save(replace(made, model=ch.build(made.name.lower(), **options), config=None), tmp_path / "short")
    chats = [{"prompt": "a", "answer": "b " * n} for n in range(1, 6)]
    rows = {
        "labels.csv": "text,label\n" + "".join(f"{'a b ' * 20},{x}\na,{x}\n" for x in "xy"),
        "lines.txt": "".join(f"{'a b ' * 20}{x}\n" for x in "abcdefgh"),
        "chats.jsonl": "".join(json.dumps(one) + "\n" for one in chats),
    }
    (files / data).write_text(rows[data])
    run = finetune(tmp_path / "short", files / data, "steps=1", out=tmp_path / "run", device="cpu", quiet=True)
    assert run.finished
    section = dict(read_recipe(run.folder / "recipe.toml").data)
    opened = ch.data.make_data(section.pop("name"), section, seed=0)
    assert max(opened.batch(i)["ids"].shape[1] for i in range(opened.steps_per_epoch)) <= 13


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_tokenizer_of_another_run_is_not_overwritten(checkpoints, files, tmp_path):
    other = tokens.Subwords.of(["other words entirely"] * 3, size=280)
    sizes = {"width": 16, "depth": 1, "heads": 2, "vocab": len(other), "context": 64}
    ch.save(ch.Bundle(ch.build("gpt", positions="rotary", **sizes), other), tmp_path / "other")
    words = ("steps=1", "data.context=16")
    first = finetune(checkpoints / "gpt", files / "lines.txt", *words, out=tmp_path / "run", device="cpu", quiet=True)
    before = contents(first.folder)
    for make in (finetune_recipe, finetune):
        for data in (files / "lines.txt", ["other words"] * 40):
            with pytest.raises(
                FolderError, match=r"run.tokens has the tokenizer of another model: expected another run fol"
            ):
                make(tmp_path / "other", data, *words, out=tmp_path / "run", device="cpu")
    assert contents(first.folder) == before
    assert train(first.folder / "recipe.toml", out=first.folder, device="cpu", quiet=True).finished
    finetune_recipe(checkpoints / "gpt", files / "lines.txt", *words, out=tmp_path / "run", device="cpu")


def test_masked_words_and_the_head_alone(checkpoints, files, tmp_path):
    masked = finetune_recipe(checkpoints / "bert", files / "lines.txt", out=tmp_path / "m", device="cpu")
    assert masked["data"]["name"] == "masked"
    run = finetune(
        checkpoints / "bert",
        files / "labels.csv",
        "steps=2",
        method="head",
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    before, after = ch.load(checkpoints / "bert").model, run.model.model
    assert torch.equal(before.blocks[0].mlp.up.weight, after.blocks[0].mlp.up.weight)
    assert run.model.labels == ("bad", "good")


def test_what_does_not_fit_is_told_with_what_would(checkpoints, files, tmp_path):
    for name, data, message in (
        ("translator", "labels.csv", r"labels.csv holds labelled, .*This Transformer can learn from pairs"),
        ("gpt", "chats.jsonl", r"has no chat template, and the data has chats"),
        ("gpt", "pairs.tsv", r"pairs.tsv holds pairs, which needs a model that can translate"),
    ):
        with pytest.raises(InputError, match=message):
            finetune_recipe(checkpoints / name, files / data, out=tmp_path / "run", device="cpu")
    eyes, bert = ch.load("vit-cifar10", device="cpu"), ch.build("bert", vocab=9, width=8, heads=2, answer="sentence")
    embedder = ch.Bundle(bert, tokens.Words(["a"]))
    with pytest.raises(InputError, match=r"This BERT can learn from labelled \(the label of each text\)\. "):
        choose_task(embedder, "text", "lines.txt")
    with pytest.raises(
        InputError, match=r"needs a model of images that can classify or embed\. This BERT can learn from"
    ):
        choose_task(embedder, "images", "photos")
    with pytest.raises(InputError, match=r"This ViT can learn from images \(the class of each image\)\. "):
        choose_task(eyes, "labelled", "labels.csv")
    assert choose_task(eyes, "images", "photos").kind == "images"
    with pytest.raises(InputError, match=r"method='loar': expected one of full, lora, head"):
        finetune_recipe(checkpoints / "gpt", files / "lines.txt", method="loar")
    with pytest.raises(InputError, match=r"epochs=0.0: expected more than 0"):
        finetune_recipe(checkpoints / "gpt", files / "lines.txt", epochs=0.0, out=tmp_path / "run")
    with pytest.raises(DataError, match=r"'labl'.*the nearest is label"):
        finetune_recipe(checkpoints / "bert", files / "labels.csv", "data.label=labl", out=tmp_path / "run")


def test_a_training_that_cannot_fit_into_memory_is_refused_before_it_starts(checkpoints, files, tmp_path, monkeypatch):
    model = ch.load(checkpoints / "gpt").model
    full, lora = (memory.needed(model, "float32", method) for method in ("full", "lora"))
    weights = sum(p.numel() for p in model.parameters())
    assert full == 16 * weights
    assert 4 * weights < lora < full / 2
    monkeypatch.setattr(memory, "free_memory", lambda device: (full + lora) // 2)
    with pytest.raises(InputError, match=r"needs at least .* GB are free on cpu; method lora needs .* GB"):
        finetune_recipe(checkpoints / "gpt", files / "lines.txt", out=tmp_path / "run", device="cpu")
    finetune_recipe(checkpoints / "gpt", files / "lines.txt", method="lora", out=tmp_path / "run", device="cpu")


def test_adapters_are_not_averaged(checkpoints, files, tmp_path):
    made = finetune_recipe(checkpoints / "gpt", files / "lines.txt", "steps=4", method="lora", out=tmp_path / "run")
    run = {name: value for name, value in made["run"].items() if name != "best"}
    with pytest.raises(ConfigError, match="the mean of adapters is not the adapter of the mean weights"):
        read_recipe({**made, "run": {**run, "save_every": 1, "average": 2}})


def test_the_recipe_can_be_written_and_trained_by_itself(checkpoints, files, tmp_path):
    made = finetune_recipe(
        checkpoints / "gpt", files / "lines.txt", "steps=2", "data.context=16", out=tmp_path / "run", device="cpu"
    )
    ch.config.write(made, tmp_path / "mine.toml")
    assert read_recipe(tmp_path / "mine.toml") == read_recipe(made)
    assert train(tmp_path / "mine.toml", out=tmp_path / "again", device="cpu", quiet=True).finished


def test_adapters_are_kept_apart_in_a_small_folder(checkpoints, files, tmp_path):
    run = finetune(
        checkpoints / "gpt", files / "lines.txt", "steps=2", method="lora", merge=False, rank=2, out=tmp_path / "run",
        device="cpu", quiet=True,
    )  # fmt: skip
    assert (run.folder / "model" / "adapter_config.json").is_file()
    again = ch.load(run.folder, device="cpu")
    assert torch.equal(again.model.blocks[0].attn.query.weight, run.model.model.blocks[0].attn.query.weight)


@pytest.mark.parametrize(
    ("name", "family", "words"),
    [
        (
            "lines.txt",
            "gpt",
            ["data.context=16", "data.tokens=characters", "model.width=16", "model.depth=1", "model.heads=2"],
        ),
        ("pairs.tsv", "transformer", ["model.width=16", "model.depth=1", "model.heads=2", "data.size=300"]),
        ("labels.csv", "bert", ["model.width=16", "model.depth=1", "model.heads=2", "data.size=300"]),
    ],
)
def test_a_file_of_data_trains_a_new_model(name, family, words, files, tmp_path):
    run = train(files / name, *words, "steps=2", out=tmp_path / "run", device="cpu", quiet=True)
    assert run.finished
    assert json.loads((run.folder / "setup.json").read_text())["players"]["model"]["model"] == family


def test_new_models_follow_epochs_and_chats_need_a_checkpoint(files, tmp_path):
    words = ("data.tokens=characters", "data.context=16", "data.rows=2")
    one, three = (new_recipe(files / "lines.txt", f"epochs={n}", *words)["steps"] for n in (1, 3))
    assert three == 3 * one
    with pytest.raises(InputError, match=r"chats, which need a pretrained model: expected `clearhead finetune MODEL"):
        new_recipe(files / "chats.jsonl")
    with pytest.raises(InputError, match=r"epochs=many: expected a number"):
        new_recipe(files / "lines.txt", "epochs=many")
    with pytest.raises(ConfigError, match=r"unknown key epochs"):
        read_recipe({"steps": 1, "data": {"name": "reverse"}, "model": {"name": "gpt"}}, "epochs=3")


def test_recipes_and_run_folders_are_no_data(files, tmp_path):
    (tmp_path / "a.toml").write_text("steps = 1")
    (tmp_path / "a.json").write_text('{"steps": 1}')
    (tmp_path / "b.json").write_text('[{"text": "a"}]')
    (tmp_path / "c.json").write_text('\ufeff [{"text": "a"}]')
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("steps = 1")
    found = {
        name: is_data(tmp_path / name)
        for name in ("a.toml", "a.json", "b.json", "c.json", "run", "lines.txt", "missing.toml")
    }
    assert [name for name, yes in found.items() if yes] == ["b.json", "c.json", "lines.txt"]


def test_a_missing_file_of_data_is_told_with_the_nearest(files, tmp_path):
    told = r"line.txt: there is no such file: expected a recipe.* or a file of data; the nearest.* lines.txt"
    with pytest.raises(FileNotFoundError, match=told):
        train(tmp_path / "line.txt")


def test_rows_are_as_long_as_their_chats_with_the_template(checkpoints, files, tmp_path):
    long = "Q " * 20
    template = "{{ '" + long + "' }}" + TEMPLATE
    ch.save(replace(bundle(), chat=template), tmp_path / "wordy")
    made = finetune_recipe(tmp_path / "wordy", files / "chats.jsonl", out=tmp_path / "run", device="cpu")
    opened = ch.data.make_data("chats", dict(made["data"].without("name")), seed=0)
    assert "left out" not in opened.description
    assert "oldest turns" not in opened.description
    assert opened.longest <= 64


def test_packed_chats_have_as_many_tokens_per_step(checkpoints, files, tmp_path):
    sizes = []
    for words in ([], ["data.pack=true"]):
        made = finetune_recipe(checkpoints / "chat", files / "chats.jsonl", *words, out=tmp_path / "run", device="cpu")
        sizes.append((made["data"]["batch_tokens"], made["data"]["longest"], made["steps"]))
    (tokens, longest, steps), packed = sizes
    assert packed[0] == tokens
    assert packed[1] == tokens // -(-tokens // 64) > longest
    assert packed[2] <= steps


def test_a_finished_training_can_be_continued_for_more_epochs(checkpoints, files, tmp_path):
    how = {"method": "head", "out": tmp_path / "run", "device": "cpu", "quiet": True}
    assert finetune(checkpoints / "bert", files / "labels.csv", epochs=1.0, **how).step == 2
    assert finetune(checkpoints / "bert", files / "labels.csv", "epochs=20", **how).step == 40


@pytest.mark.parametrize("name", ["chat", "gpt", "translator"])
def test_only_classifiers_have_a_head_to_train_alone(name, checkpoints, files, tmp_path):
    message = (
        r"method='head' trains the output layer of a classifier, and this \w+ learns .*: expected method 'full' or"
    )
    with pytest.raises(InputError, match=message):
        finetune_recipe(checkpoints / name, files / FITS[name][0], method="head", out=tmp_path / "run", device="cpu")
    recipe = finetune_recipe(checkpoints / name, files / FITS[name][0], "steps=1", out=tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match=r"learn='head': a \w+ whose output layer has the weights of its embedding"):
        train({**recipe, "learn": "head"}, out=tmp_path / "run", device="cpu", quiet=True)


@pytest.mark.parametrize("data", ["lines.txt", "chats.jsonl"])
def test_a_model_of_windows_is_trained_within_its_context(data, files, tmp_path):
    own = tokens.Subwords.of(["a b c d e f g h good bad Q A"] * 3, size=300)
    model = ch.build(
        "gpt", width=16, depth=1, heads=2, vocab=len(own), context=24, window=8, positions="rotary"
    )  # fmt: skip
    ch.save(ch.Bundle(model, own, chat=TEMPLATE), tmp_path / "windows")
    assert ch.load(tmp_path / "windows").max_tokens is None
    run = finetune(tmp_path / "windows", files / data, "steps=1", out=tmp_path / "run", device="cpu", quiet=True)
    assert run.finished


def test_the_answers_of_chats_are_evaluated_as_they_are_validated(checkpoints, files, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text("".join((files / "chats.jsonl").read_text().splitlines(keepends=True)[:3]))
    how = {"valid": other, "out": tmp_path / "run", "device": "cpu", "quiet": True}
    run = finetune(checkpoints / "chat", files / "chats.jsonl", "steps=1", "optim.lr=1e-2", **how)
    found = ch.evaluate(run.model, other)
    assert found.loss == pytest.approx(run.metrics[-1]["valid_loss"], rel=1e-5)


class Rows:
    """A data frame, as far as it is used."""

    def __init__(self, rows):
        self.rows = rows

    def to_dict(self, orient):
        return {"records": self.rows}[orient]


@pytest.mark.parametrize("kind", [list, Rows])
def test_rows_in_memory_are_written_to_the_run_folder(kind, checkpoints, tmp_path):
    rows = [{"text": a, "label": np.int64(a in "abc")} for a in "abcdefgh" * 3]
    how = {"valid": kind(rows[:4]), "out": tmp_path / "run", "device": "cpu", "quiet": True}
    run = finetune(checkpoints / "bert", kind(rows), "steps=1", **how)
    assert run.model.labels == ("0", "1")
    assert (tmp_path / "run" / "data.jsonl").read_text().startswith('{"text": "a", "label": 1}\n')
    texts = finetune_recipe(checkpoints / "gpt", ["a b c d"] * 40, "data.context=8", out=tmp_path / "b", device="cpu")
    assert (texts["data"]["name"], texts["data"]["path"]) == ("text", str(tmp_path / "b" / "data.jsonl"))
    with pytest.raises(InputTypeError, match="row 1 is a int: expected a dictionary, or a text"):
        finetune_recipe(checkpoints / "gpt", ["a", 3], out=tmp_path / "c", device="cpu")
    with pytest.raises(InputError, match="no rows are given"):
        finetune_recipe(checkpoints / "gpt", [], out=tmp_path / "c", device="cpu")


def test_what_cannot_be_fine_tuned_is_told_before_anything_is_written(checkpoints, files, tmp_path):
    ch.save(ch.Bundle(bundle().model, None), tmp_path / "bare")
    with pytest.raises(InputError, match=r"bare has no tokenizer, so that its ids mean nothing here: expected"):
        finetune_recipe(tmp_path / "bare", files / "lines.txt", out=tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match=r"lines.txt' is a file: expected the name of a folder for the run"):
        finetune_recipe(checkpoints / "gpt", files / "lines.txt", out=files / "lines.txt", device="cpu")
    assert not (tmp_path / "run").exists()


def test_an_average_is_not_also_the_best(checkpoints, files, tmp_path):
    made = finetune_recipe(
        checkpoints / "gpt", files / "lines.txt", "data.context=8", "run.average=2", out=tmp_path / "run", device="cpu"
    )  # fmt: skip
    assert (made["run"]["average"], "best" in made["run"]) == (2, False)


def test_a_run_folder_is_resumed_by_its_name(checkpoints, files, tmp_path):
    how = {"out": tmp_path / "run", "device": "cpu", "quiet": True}
    finetune(checkpoints / "gpt", files / "lines.txt", "steps=1", "data.context=8", **how)
    run = train(tmp_path / "run", "steps=3", device="cpu", quiet=True)
    assert (run.step, run.folder) == (3, tmp_path / "run")


@pytest.mark.parametrize("languages", [{}, {"source": "fr", "target": "en"}])
def test_columns_named_after_languages_are_read_in_the_direction_of_the_model(languages, files, tmp_path):
    ch.save(replace(bundle("transformer"), columns=languages), tmp_path / "fr-en")
    (tmp_path / "pairs.tsv").write_text((files / "pairs.tsv").read_text().replace("source\ttarget", "en\tfr"))
    made = finetune_recipe(tmp_path / "fr-en", tmp_path / "pairs.tsv", out=tmp_path / "run", device="cpu")["data"]
    assert (made["source"], made["target"]) == (("fr", "en") if languages else ("en", "fr"))
    words = ("data.source=en", "data.target=fr")  # the user's word counts
    made = finetune_recipe(tmp_path / "fr-en", tmp_path / "pairs.tsv", *words, out=tmp_path / "run", device="cpu")[
        "data"
    ]
    assert (made["source"], made["target"]) == ("en", "fr")

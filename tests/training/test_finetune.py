"""finetune: a checkpoint and a file of data become a training, or a sentence that says what would fit."""

import json
from dataclasses import replace

import pytest
import torch

import clearhead as ch
from clearhead import tokens
from clearhead.config import ConfigError
from clearhead.data import DataError
from clearhead.errors import InputError
from clearhead.training import finetune, finetune_recipe, memory, read_recipe, train
from clearhead.training.data_recipe import is_data, new_recipe

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
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("steps = 1")
    found = {
        name: is_data(tmp_path / name) for name in ("a.toml", "a.json", "b.json", "run", "lines.txt", "missing.txt")
    }
    assert [name for name, yes in found.items() if yes] == ["b.json", "lines.txt"]


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

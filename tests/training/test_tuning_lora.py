"""Recipes with LoRA: what is trained, what checkpoints hold, exact resuming, and the results."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from trainings import go, metrics, recipe, same_bits, state, weights

import clearhead as ch
from clearhead.config import ConfigError
from clearhead.layers.lora import adapters
from clearhead.training import read_recipe, verify_resume
from clearhead.training.checkpoints import CheckpointError
from clearhead.weights import WeightsError, load, save

TEXTS = [f"the {a} was {b}" for a in ("film", "play", "song") for b in ("fine", "grand", "dull", "flat")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return go(recipe(), tmp_path_factory.mktemp("base") / "run").folder / "model"


@pytest.fixture
def table(base):
    table = recipe(pretrained=str(base), lora={"rank": 2}, run__save_every=4)
    del table["model"]
    return table


def moved(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_only_adapted_maps_of_the_result_differ_from_the_base(table, base, tmp_path):
    run = go(table, tmp_path / "run", 'lora.maps=["q", "down"]')
    before, after = weights(load(base, device="cpu")), weights(load(run.folder, device="cpu"))
    assert before.keys() == after.keys()
    assert moved(before, after) == {f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("attn.query", "mlp.down")}
    change = after["blocks.0.mlp.down.weight"] - before["blocks.0.mlp.down.weight"]
    assert torch.linalg.matrix_rank(change, rtol=1e-3) == 2
    losses = [record["loss"] for record in metrics(run.folder) if "loss" in record]
    assert losses[-1] < losses[0]


def test_checkpoints_hold_only_what_is_trained(table, tmp_path):
    run = go(table, tmp_path / "run")
    kept = {name for name in state(run.folder) if name.startswith("model/weight/")}
    assert kept
    assert all(name.endswith(("lora_a", "lora_b")) for name in kept)
    assert len(kept) == 2 * 2 * 6


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_result_is_the_base_with_the_updates_of_the_checkpoint(table, base, tmp_path, precision):
    """Also in bfloat16: the result is made of the exact base weights, not of their rounded copies."""
    run = go(table, tmp_path / "run", f"precision={precision}")
    saved, before, after = state(run.folder), weights(load(base, device="cpu")), weights(run.model)
    for name in ("blocks.0.attn.key", "blocks.1.mlp.up"):
        a, b = (saved[f"model/weight/{name}.lora_{leaf}"] for leaf in "ab")
        assert a.dtype == torch.float32
        torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + 2.0 * b @ a)
    assert torch.equal(after["embed.table"], before["embed.table"])


CASES = {
    "plain": [],
    "bfloat16, micro-batches": ["precision=bfloat16", "accumulate=2"],
    "dropout, average": ["lora.dropout=0.2", "optim.ema=0.8"],
    "recomputed, kept apart": ["recompute=true", "lora.merge=false"],
}


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_resumes_to_the_bit(table, tmp_path, case):
    whole = go(table, tmp_path / "whole", *CASES[case])
    shutil.copytree(whole.folder, tmp_path / "broken")
    for step in (tmp_path / "broken" / "checkpoints").glob("step-*8"):
        shutil.rmtree(step)
    broken = go(table, tmp_path / "broken", *CASES[case])
    same_bits(state(whole.folder), state(broken.folder))
    same_bits(weights(whole.model), weights(broken.model))
    assert metrics(whole.folder) == metrics(broken.folder)


@pytest.mark.slow
def test_a_killed_run_equals_an_uninterrupted_one(table, tmp_path):
    verdict = verify_resume(table | {"steps": 30}, out=tmp_path / "v", kills=2, device="cpu", quiet=True)
    assert verdict.passed, verdict


def test_resuming_with_another_base_is_refused(table, base, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    table["pretrained"] = str(tmp_path / "base")
    go(table, tmp_path / "run", "steps=4")
    bundle = load(tmp_path / "base", device="cpu")
    bundle.model.embed.table.data[0, 0] += 1e-6
    save(bundle, tmp_path / "base")
    with pytest.raises(CheckpointError, match="pretrained weights of the model have changed"):
        go(table, tmp_path / "run", "steps=8")


def test_adapters_kept_apart_are_a_small_folder_that_opens_on_its_base(table, base, tmp_path):
    merged = go(table, tmp_path / "merged")
    apart = go(table, tmp_path / "apart", "lora.merge=false")
    files = {path.name for path in (apart.folder / "model").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokens.json"} <= files
    assert "model.safetensors" not in files
    settings = json.loads((apart.folder / "model" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(base.resolve())
    assert settings["target_modules"] == ["down", "key", "out", "query", "up", "value"]
    assert all(".lora_" in name for name in load_file(apart.folder / "model" / "adapter_model.safetensors"))
    same_bits(weights(merged.model), weights(apart.model))
    kept = load(apart.folder, device="cpu", merge=False)
    assert len(adapters(kept.model)) == 12
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(kept.model(ids), merged.model.model(ids), rtol=1e-5, atol=1e-5)


def test_a_new_head_is_trained_and_kept_with_the_adapters(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    lines = [f"{text}\t{'good' if text.endswith(('fine', 'grand')) else 'bad'}\n" for text in TEXTS]
    (tmp_path / "labels.tsv").write_text("".join(lines))
    words = {"vocabulary": "words", "minimum": 1, "batch_tokens": 256, "longest": 16}
    sizes = {"width": 16, "depth": 1, "heads": 2, "context": 16, "dropout": 0.0}
    common = {"optim": {"lr": 0.02}, "run": {"log_every": 5}}
    masked = {"name": "masked", "of": "texts.txt", "valid_share": 0.1, **words}
    first = {"data": masked, "model": {"name": "bert", **sizes}, "steps": 2, **common}
    base = go(first, tmp_path / "base", data=tmp_path).folder
    words = {"batch_tokens": 256, "longest": 16, "tokens": str(base / "model")}
    labelled = {"name": "labelled", "path": "labels.tsv", "share": 0.3, **words}
    model = {"answer": "class", "pool": "mean"}
    second = {"data": labelled, "model": model, "pretrained": str(base), "lora": {}, "steps": 20, **common}
    runs = [go(second, tmp_path / str(merge), f"lora.merge={merge}", data=tmp_path) for merge in ("true", "false")]
    names = {name for name in state(runs[0].folder) if name.startswith("model/weight/head")}
    assert names == {"model/weight/head.weight", "model/weight/head.bias"}
    same_bits(weights(runs[0].model), weights(runs[1].model))
    assert runs[1].model.labels == ("bad", "good")
    assert ch.classify(runs[0].model, "the film was fine") == ch.classify(runs[1].model, "the film was fine")
    settings = json.loads((runs[1].folder / "model" / "adapter_config.json").read_text())
    assert "head" in settings["modules_to_save"]


BAD = {
    "lora adapts pretrained weights, which stay as they are, and the model starts from random": {"pretrained": None},
    "learn='head' trains no adapters": {"learn": "head"},
    "maps='every': expected some of q, k, v": {"lora": {"maps": "every"}},
    "rank": {"lora": {"rank": 0}},
    "alpha=0.0: expected a number above 0": {"lora": {"alpha": 0.0}},
    "keeps the adapters of one whole checkpoint": {
        "lora": {"merge": False}, "pretrained": {"folder": "x", "part": "y"},
    },
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_trained_is_told(table, message):
    changed = {key: value for key, value in (table | BAD[message]).items() if value is not None}
    changed["model"] = recipe()["model"]
    with pytest.raises(ConfigError, match=message):
        read_recipe(changed)


def test_weights_that_would_stay_random_are_refused(base, tmp_path):
    table = recipe(lora={}, pretrained={"folder": str(base), "part": "blocks", "into": "blocks"})
    with pytest.raises(ValueError, match=r"embed\.table is not one of them: it would stay random"):
        go(table, tmp_path / "run")


def test_options_that_adapters_cannot_hold_are_refused_before_files_are_written(table, base, tmp_path):
    bundle = load(go(table, tmp_path / "run", "lora.merge=false").folder, device="cpu", merge=False)
    object.__setattr__(
        bundle, "config", ch.config.read(type(bundle.config), {**ch.config.dump(bundle.config), "window": 3})
    )
    with pytest.raises(WeightsError, match="window=3, and the base model has None"):
        save(bundle, tmp_path / "out", layout="peft")
    assert not (tmp_path / "out").exists()


def test_other_layouts_are_saved_with_merged_weights(table, tmp_path):
    kept = load(go(table, tmp_path / "run", "lora.merge=false").folder, device="cpu", merge=False)
    again = load(save(kept, tmp_path / "out"), device="cpu")
    assert adapters(kept.model)  # the given model is not changed
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again.model(ids), kept.model(ids), rtol=1e-5, atol=1e-5)

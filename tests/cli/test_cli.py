"""The command line: stdout is the result, stderr everything else; exit code 0: done, 1: failed, 2: misuse."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib

import pytest
import typer
from filelock import FileLock

from clearhead import __version__, training
from clearhead.cli import app
from clearhead.config import write
from clearhead.training import logs as progress
from support.command_line import call

TINY = """\
steps = 30
seed = 1

[data]
name = "reverse"
symbols = 5
length = 4
rows = 8
valid_rows = 8
valid_batches = 1

[model]
name = "gpt"
context = 8
width = 16
depth = 1
heads = 2
"""


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch):
    monkeypatch.setattr(progress, "peak", lambda *_: 1e12)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


VERBS = typer.main.get_command(app).commands


def examples(verb):
    return VERBS[verb].epilog.replace("\\[", "[").split("\n\n")


def start(*words, module=("-m", "clearhead"), **options):
    line = [sys.executable, *module, *map(str, words)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


# Help and results


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_ends_with_examples(verb):
    found = call(verb, "--help")
    assert found.exit_code == 0
    shown = " ".join(found.stdout.split())
    assert shown.endswith(" ".join(examples(verb)))


@pytest.mark.parametrize(("verb", "example"), [(verb, example) for verb in VERBS for example in examples(verb)])
def test_every_example_can_be_parsed(verb, example):
    words = shlex.split(example.partition(" > ")[0])
    arguments = words[words.index("clearhead") + 1 :]
    assert arguments[0] == verb
    with VERBS[verb].make_context(verb, arguments[1:]) as context:
        assert context.params


def test_parsing_an_example_fails_for_an_unknown_option():
    with pytest.raises(Exception, match="--beams"):
        VERBS["translate"].make_context("translate", ["en-de", "A dog.", "--beams", "5"])


def test_version():
    assert call("--version").stdout == f"{__version__}\n"


def test_train_prints_a_table_and_resumes_its_folder(recipe, tmp_path):
    found = call("train", recipe, "run.log_every=5", "--out", tmp_path / "run", "--quiet", "--device", "cpu")
    assert found.exit_code == 0, found.output
    assert re.search(r"^step +30 of 30 *$", found.stdout, re.MULTILINE)
    assert re.search(r"^valid loss +[\d.]+ *$", found.stdout, re.MULTILINE)
    assert re.search(r"^tokens/s +[\d,]+ *$", found.stdout, re.MULTILINE)
    assert found.stderr == ""
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    again = call("train", recipe, "steps=40", "--out", tmp_path / "run", "--json", "--device", "cpu")
    assert again.exit_code == 0
    assert "step 30 of 40" in again.stderr
    result = json.loads(again.stdout)
    assert result["folder"] == str(tmp_path / "run")
    assert (result["finished"], result["step"], result["steps"]) == (True, 40, 40)
    assert {"loss", "norm", "lr", "valid_loss", "valid_accuracy"} <= result.keys()


def test_a_recipe_is_printed_instead_of_trained(recipe, tmp_path):
    printed = call("train", recipe, "steps=7", "--recipe").stdout
    assert tomllib.loads(printed)["steps"] == 7
    (tmp_path / "diary.txt").write_text("Tom bought a red car.\n" * 300)
    made = json.loads(
        call("train", tmp_path / "diary.txt", "epochs=2", "data.tokens=characters", "--recipe", "--json").stdout
    )
    assert made["data"]["tokens"] == "characters"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["train", "finetune"])
def test_options_that_are_values_of_the_recipe_are_told_how_to_write_them(command):
    found = call(command, "a", "b", "--lr", "3")
    assert "No such option: --lr. Values of the recipe are written NAME=VALUE" in " ".join(
        found.stderr.replace("│", "").split()
    )


def test_rank_is_for_lora(tmp_path):
    assert call("finetune", "everyday", "x.txt", "--rank", "4").stderr.strip() == "--rank is for --lora"


def test_the_validation_in_the_table_is_that_of_the_best_step(recipe, tmp_path):
    """A learning rate of 5 makes every step but the first worse."""
    words = ("steps=6", "run.valid_every=2", "run.best=valid_loss", "optim.lr=5", "schedule.warmup=0", "optim.clip=0")
    found = json.loads(call("train", recipe, *words, "--out", tmp_path / "run", "--json", "--device", "cpu").stdout)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {one["step"]: one["valid_loss"] for one in records if "valid_loss" in one}
    assert found["best"] == min(losses, key=losses.get) != 6
    assert found["valid_loss"] == losses[found["best"]]


def test_the_validation_in_the_table_is_that_of_the_mean(recipe, tmp_path):
    words = ("steps=6", "run.valid_every=6", "run.save_every=2", "run.average=2", "--device", "cpu", "--quiet")
    table = call("train", recipe, *words, "--out", tmp_path / "run").stdout
    assert re.search(r"^mean of steps +4, 6 *$", table, re.MULTILINE)
    found = json.loads(call("train", recipe, *words, "--out", tmp_path / "run", "--json").stdout)
    assert found["averaged"] == [4, 6]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = next(one["valid_loss"] for one in records if "valid_loss" in one)
    assert found["valid_loss"] != last
    assert f"{found['valid_loss']:.4g}" in table


def test_sigterm_saves_a_checkpoint_and_exits_with_0(recipe, tmp_path):
    child = start("train", recipe, "steps=100000", "--out", tmp_path / "run", "--json")
    while not (tmp_path / "run" / "metrics.jsonl").exists() and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    result = json.loads(out)
    assert not result["finished"]
    assert result["step"] < result["steps"] == 100000
    assert "the same command resumes it" in err
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_only_one_of_several_workers_prints(recipe, tmp_path):
    workers = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "clearhead")
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = start("train", recipe, "--out", tmp_path / "run", "--json", "--quiet", module=workers, env=one)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert json.loads(out)["finished"]


def test_sweep_and_plot(recipe, tmp_path):
    found = call("sweep", recipe, "steps=6", "run.log_every=2", "seed=1,2", "--out", tmp_path / "s", "--json", "-q")
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert [trial["choices"] for trial in result["trials"]] == [{"seed": "1"}, {"seed": "2"}]
    assert (tmp_path / "s" / "sweep.png").exists()
    found = call("plot", *(trial["folder"] for trial in result["trials"]), "-o", tmp_path / "both.png")
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines() == [str(tmp_path / "both.png")]
    found = call("sweep", recipe, "steps=6", "model.mlp=gelu,gelo", "--out", tmp_path / "t", "-q")
    assert found.exit_code == 1
    assert re.search("failed: model.mlp=gelo: .*gelu", found.stdout)


def test_a_model_is_exported_into_a_new_folder(tmp_path):
    found = call("export", "everyday", tmp_path / "there")
    assert (found.exit_code, found.stdout, found.stderr) == (0, f"{tmp_path / 'there'}\n", "")
    found = call("export", "everyday", tmp_path / "there")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith(f"{tmp_path / 'there'} is not empty, and is not overwritten")
    found = call("export", "vit-cifar10", tmp_path / "other")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith("positions='rotary': a ViT folder has positions='learned'")


def test_models_and_data_are_listed():
    listed = json.loads(call("models", "--json").stdout)
    assert "gpt" in listed["families"]
    assert "en-de" in listed["shipped"]
    assert re.search(r"^gpt +a decoder", call("models").stdout, re.MULTILINE)
    assert "reverse" in json.loads(call("data", "--json").stdout)
    assert re.search(r"^shakespeare +tiny", call("data").stdout, re.MULTILINE)


# Errors


def test_misuse_exits_with_2_and_names_the_nearest_command(recipe):
    for words in (["tran", recipe], ["train"], ["train", recipe, "--otu", "x"], ["sweep", recipe, "seed=1,2"]):
        found = call(*words)
        assert found.exit_code == 2, words
        assert found.stdout == ""
    assert "Did you mean 'train'" in call("tran").stderr
    assert call("verify-resume", recipe, "--out", "x", "--kills", "0").exit_code == 2


def fails(*words):
    """Run a command that must fail; returns its one line on stderr."""
    found = call(*words)
    assert found.exit_code == 1, found.output
    assert found.stdout == ""
    (sentence,) = found.stderr.splitlines()
    return sentence


def test_a_missing_recipe_names_the_nearest_file(recipe, tmp_path):
    assert re.search(
        "tony.toml: there is no such file; the nearest is .*tiny.toml", fails("train", tmp_path / "tony.toml")
    )
    (tmp_path / "nothing").mkdir()
    assert "nothing has no text files" in fails("train", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.lrr=1"], "on the command line: unknown key optim.lrr; the nearest is lr"),
        (["steps=many"], "on the command line: steps = 'many': expected a whole number, got text"),
        (["steps=0"], "on the command line: steps=0: expected 1 or more"),
        (["steps"], "on the command line: 'steps': expected name=value"),
        (["data.name=revers"], "data.name = 'revers': expected one of .*; the nearest (is|are) reverse"),
        (["model.name=gtp"], "model.name = 'gtp': expected one of .*; the nearest is gpt"),
        (["model.heads=3"], "model: .*heads=3"),
        (["--device", "gpu"], "device='gpu': expected auto, cpu, cuda"),
    ],
)
def test_a_wrong_override_is_a_sentence(recipe, tmp_path, words, message):
    assert re.search(message, fails("train", recipe, *words, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("rows = 8\n", "rowz = 8\n", "tiny.toml:8: unknown key data.rowz; the nearest is rows"),
        ("width = 16", 'width = "wide"', "tiny.toml:15: model.width = 'wide': expected a whole number, got text"),
        ("[data]", "[data", r"tiny.toml:4: "),
        ("steps = 30\n", "", "tiny.toml:1: missing steps"),
        ("valid_rows = 8", "valid_rows = 0", "tiny.toml:9: data: valid_rows=0: expected 1 or more"),
    ],
)
def test_an_error_in_a_recipe_names_its_line(recipe, tmp_path, before, after, message):
    recipe.write_text(TINY.replace(before, after))
    assert re.search(message, fails("train", recipe, "--out", tmp_path / "run"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file or folder .*pairs.tsv"),
        ("", "pairs.tsv is empty"),
        ("a\tb\nonly one\nc\td\n", "pairs.tsv:2: "),
    ],
)
def test_an_error_in_a_data_file_is_a_sentence(tmp_path, text, message):
    recipe, file = tmp_path / "pairs.toml", tmp_path / "pairs.tsv"
    model = {"name": "gpt", "context": 8, "width": 16, "depth": 1, "heads": 2}
    write({"steps": 3, "data": {"name": "pairs", "path": "pairs.tsv"}, "model": model}, recipe)
    if text is not None:
        file.write_text(text)
    assert re.search(message, fails("train", recipe, "--data", tmp_path, "--out", tmp_path / "run"))


def test_a_folder_that_cannot_be_used_is_a_sentence(recipe, tmp_path):
    call("train", recipe, "steps=2", "--out", tmp_path / "run", "-q")
    message = fails("train", recipe, "steps=2", "model.width=32", "--out", tmp_path / "run")
    assert "model.width was 16, now 32" in message
    (tmp_path / "file").write_text("")
    for command, *words in (("train",), ("sweep", "seed=1,2"), ("verify-resume",)):
        message = fails(command, recipe, *words, "--out", tmp_path / "file" / "run")
        assert re.search("file.run .*: Not a directory", message)
    with FileLock(tmp_path / "run" / "lock"):
        assert "is in use by process" in fails("train", recipe, "steps=2", "--out", tmp_path / "run")
    assert "there is no run folder" in fails("plot", tmp_path / "nowhere", "-o", tmp_path / "a.png")
    assert "expected a name that ends in one of" in fails("plot", tmp_path / "run", "-o", tmp_path / "a.doc")
    assert "nothing to sweep" in fails("sweep", recipe, "seed=1", "--out", tmp_path / "s")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
@pytest.mark.parametrize("words", [("data",), ("data", "--json")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_reported(words, unbuffered):
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "clearhead", *words]
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        found = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert (found.returncode, found.stderr) == (1, "the output cannot be written: No space left on device\n")


def test_a_bug_raises_its_own_exception(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: int("not a number"))
    found = call("train", recipe, "--out", tmp_path / "run")
    assert isinstance(found.exception, ValueError)
    assert "not a number" in str(found.exception)


def test_an_interrupt_exits_with_130(recipe, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupt)
    assert call("train", recipe, "--out", tmp_path / "run").exit_code == 130

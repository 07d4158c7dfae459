"""A model's folder: what goes in comes out, nothing else gets in, and every mistake names its file."""

import json
import os
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Learned
from clearhead.tokens import Characters, Pair, Subwords, Words
from clearhead.weights import Bundle, WeightsError

TEXT = "to be or not to be"
TOKENS = Characters.of(TEXT)


def build(**options) -> nn.Module:
    torch.manual_seed(0)
    return ch.build("gpt", vocab=len(TOKENS), **{"width": 6, "depth": 1, "heads": 3, "context": 20} | options)


@pytest.fixture
def folder(tmp_path):
    """A saved model."""
    return ch.save(build(), tmp_path / "model", tokens=TOKENS)


def numbers(folder) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_folder_is_three_plain_files(folder):
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokens.json"]
    said = json.loads((folder / "config.json").read_text())
    assert list(said) == ["clearhead", "model", "options"]
    assert said["clearhead"] == ch.__version__
    assert said["model"] == "gpt"
    assert ch.build(said["model"], **said["options"]).config == build().config
    stored = numbers(folder)  # another reader of the format finds them
    assert stored.keys() == dict(build().named_parameters()).keys()
    assert "head.weight" not in stored  # it is the embedding's table
    assert all(torch.equal(stored[name], p) for name, p in build().named_parameters())


def test_ready_answers_a_text(folder):
    bundle = ch.load(folder, device="cpu")
    assert isinstance(bundle, Bundle)
    assert bundle.device == torch.device("cpu")
    assert bundle.tokens == TOKENS
    logits = bundle(TEXT)
    assert logits.shape == (len(TEXT), len(TOKENS))
    assert not logits.requires_grad
    assert torch.equal(logits, build().eval()(torch.from_numpy(TOKENS.encode(TEXT))[None])[0])
    assert bundle.model.head.weight is bundle.model.embed.table
    with ch.watch(bundle, "blocks.*.attn.weights") as tape:
        assert torch.equal(bundle(TEXT), logits)
    assert tape["blocks.0.attn.weights"].shape == (1, 3, len(TEXT), len(TEXT))
    with pytest.raises(ValueError, match="the text is empty"):
        bundle("")
    with pytest.raises(ValueError, match="the text has 21 tokens: this model has learned positions of 20"):
        bundle("o" * 21)
    with pytest.raises(ValueError, match="'x' at 1"):
        bundle("oxo")


def test_dropout_is_off_in_a_ready_model(tmp_path):
    bundle = Bundle(build(dropout=0.5).train(), TOKENS, None)
    assert torch.equal(bundle(TEXT), bundle(TEXT))


def test_a_model_without_text(tmp_path):
    model = ch.build("deep", width=3)
    bundle = ch.load(ch.save(model, tmp_path), device="cpu")
    assert bundle.tokens is None
    with pytest.raises(ValueError, match="this Deep has no tokens"):
        bundle("a")
    with pytest.raises(WeightsError, match="7 tokens, and the model reads no tokens"):
        ch.save(model, tmp_path, tokens=TOKENS)


def test_a_ready_model_is_saved_with_its_tokens_and_replaces_another(folder, tmp_path):
    bundle = ch.load(folder, device="cpu")
    again = ch.load(ch.save(bundle, tmp_path / "again"), device="cpu")
    assert again.tokens == TOKENS
    assert torch.equal(again(TEXT), bundle(TEXT))
    ch.save(ch.build("deep", width=3), folder)
    other = ch.load(folder, device="cpu")
    assert type(other.model).__name__ == "Deep"
    assert other.tokens is None  # those of the model before it are gone


def test_a_compiled_model_is_saved_by_its_own_names(folder, tmp_path):
    ch.save(torch.compile(build(), backend="eager"), tmp_path / "compiled")
    assert numbers(tmp_path / "compiled").keys() == numbers(folder).keys()


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_types_are_kept_unless_another_is_asked_for(kind, tmp_path):
    model = build(positions="rotary").to(kind)
    model.embed.float()  # one of its own
    with torch.no_grad():
        model.norm.weight.view(torch.int64 if kind == torch.float64 else torch.int16)[0] = 0x7FC1  # any bits at all
    ch.save(model, tmp_path)
    loaded = ch.load(tmp_path, device="cpu").model
    for (name, a), b in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), name
    for word in ("float32", torch.float32):
        asked = ch.load(tmp_path, device="cpu", dtype=word).model
        assert {p.dtype for p in asked.parameters()} == {torch.float32}
        assert asked.positions.speed.dtype == torch.float64  # exact in a model of any type
    with pytest.raises(ValueError, match=r"dtype='bfloat61': expected one of .*; the nearest is bfloat16"):
        ch.load(tmp_path, dtype="bfloat61")


def test_a_loaded_model_does_not_hang_on_its_file(folder):
    bundle = ch.load(folder, device="cpu")
    before = bundle(TEXT)
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    shutil.rmtree(folder)
    assert torch.equal(bundle(TEXT), before)


def test_it_learns_as_the_model_that_was_saved(folder):
    losses = []
    for model in (build(), ch.load(folder, device="cpu").model.train()):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            model(torch.from_numpy(TOKENS.encode(TEXT))[None]).square().mean().backward()
            optimiser.step()
        losses.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))


@pytest.mark.parametrize(
    ("there", "expected"), [(("cuda", "mps"), "cuda"), (("cuda",), "cuda"), (("mps",), "mps"), ((), "cpu")]
)
def test_auto_takes_the_best_device_there_is(there, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in there)
    assert fill.find_device("auto").type == expected
    for name in {"cuda", "mps"} - set(there):
        with pytest.raises(ValueError, match=f"device='{name}': there is none here; there is .*cpu"):
            fill.find_device(name)
    with pytest.raises(ValueError, match="device='gpu': expected auto, cpu"):
        fill.find_device("gpu")


def test_a_run_folder_loads_its_model(folder, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("steps = 1\n")
    with pytest.raises(WeightsError, match="run: this run has no model/ yet"):
        ch.load(run)
    shutil.copytree(folder, run / "model")
    assert torch.equal(ch.load(run, device="cpu")(TEXT), ch.load(folder, device="cpu")(TEXT))


def test_what_is_not_there(folder, tmp_path):
    with pytest.raises(WeightsError, match=r"modle: there is no such folder; the nearest is model"):
        ch.load(tmp_path / "modle")
    with pytest.raises(WeightsError, match=r"config\.json: is a file, not a folder"):
        ch.load(folder / "config.json")
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        with pytest.raises(WeightsError, match=f"{folder}: there is no {name} in this folder"):
            ch.load(folder)


def change(folder, **values) -> None:
    said = json.loads((folder / "config.json").read_text())
    options = said["options"] | values.pop("options", {})
    (folder / "config.json").write_text(json.dumps(said | {"options": options} | values, indent=2))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model": "gtp"}, r"config\.json:3: no model 'gtp': expected one of gpt, .*; the nearest is gpt"),
        ({"options": {"widht": 6}}, r"config\.json:\d+: unknown key options\.widht; the nearest (is|are) width"),
        ({"options": {"width": "6"}}, r"config\.json:7: options\.width = '6': expected a whole number"),
        ({"options": {"heads": 4}}, r"config\.json:\d+: options: width=6 does not divide into heads=4"),
        ({"options": {"norm": "lyer"}}, r"config\.json:\d+: options\.norm = 'lyer': .*the nearest is layer"),
        ({"weights": 3}, r"config\.json:\d+: unknown key weights"),
        ({"options": {"vocab": 3}}, r"tokens\.json: there are 7 tokens, and the model was built for 3"),
    ],
)
def test_a_config_with_a_mistake(folder, values, expected):
    change(folder, **values)
    with pytest.raises(ValueError, match=expected):
        ch.load(folder)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", r"config\.json:1: "),
        ("{}", r"config\.json:1: missing clearhead \(text\), model \(text\), options \(a table\)"),
        ('["gpt"]', r"config\.json.*expected a table"),
    ],
)
def test_a_config_that_is_none(folder, content, expected):
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=expected):
        ch.load(folder)


def without(stored: dict[str, Tensor]) -> None:
    stored["blocks.0.attn.quary.bias"] = stored.pop("blocks.0.attn.query.bias")


def larger(stored: dict[str, Tensor]) -> None:
    stored["norm.weight"] = torch.ones(7)


def more(stored: dict[str, Tensor]) -> None:
    stored |= {"blocks.1.mlp.up.bias": torch.ones(2, 3), "x": torch.ones(1)}


def whole(stored: dict[str, Tensor]) -> None:
    stored["norm.weight"] = stored["norm.weight"].long()


WRONG = {
    without: r"the tensor blocks\.0\.attn\.query\.bias \(6,\) is missing; the nearest is blocks\.0\.attn\.quary\.bias",
    larger: r"the tensor norm\.weight has the shape \(7,\), expected \(6,\)",
    more: r"the tensor blocks\.1\.mlp\.up\.bias \(2, 3\) \(and 1 more\) has no place in this model",
    whole: r"the tensor norm\.weight is torch\.int64, expected one like torch\.float32",
}


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
def test_every_tensor_is_used_and_every_parameter_filled(folder, change):
    stored = numbers(folder)
    change(stored)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.safetensors: " + WRONG[change]):
        ch.load(folder)


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1])
def test_a_truncated_file_is_named(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"model\.safetensors: is not a whole safetensors file"):
        ch.load(folder)


@pytest.mark.parametrize("damage", [b"\xff" * 8, struct.pack("<Q", 1 << 40), b"\x80\x04\x95\x00\x00\x00\x00\x00"])
def test_a_damaged_file_is_named_and_nothing_is_unpickled(folder, damage):
    path = folder / "model.safetensors"
    path.write_bytes(damage + path.read_bytes()[8:])
    with pytest.raises(WeightsError, match=r"model\.safetensors: is not a whole safetensors file"):
        ch.load(folder)


def test_a_model_of_no_family_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="Linear is of no known family: expected one of gpt"):
        ch.save(nn.Linear(2, 2), tmp_path / "new")
    with pytest.raises(WeightsError, match="there are 7 tokens, and the model was built for 3"):
        ch.save(ch.build("reader", vocab=3), tmp_path / "new", tokens=TOKENS)
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_the_old_model_alone(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(native, "write_tensors", full)
    other = build()
    nn.init.ones_(other.embed.table)
    with pytest.raises(OSError, match="No space left"):
        ch.save(other, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_learned_positions_are_what_limits_a_text():
    assert isinstance(build().positions, Learned)
    assert Bundle(build(positions="rotary"), TOKENS, None)("o" * 50).shape == (50, len(TOKENS))


def test_a_pair_of_tokens_is_kept(tmp_path):
    subwords = Subwords.of(["a dog", "ein Hund"], size=270)
    for pair in (Pair(subwords, subwords), Pair(Words.of(["a dog"]), subwords)):
        bundle = ch.load(ch.save(ch.build("reader", vocab=270), tmp_path / "model", tokens=pair))
        assert bundle.tokens == pair
        with pytest.raises(ValueError, match="translates"):
            bundle("a dog")
    with pytest.raises(WeightsError, match=f"there are {len(subwords)} target tokens, and the model was built for 9"):
        ch.save(ch.build("reader", vocab=9), tmp_path / "new", tokens=Pair(Words.of(["a dog"]), subwords))

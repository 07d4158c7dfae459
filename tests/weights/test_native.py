"""Our own model folder: saving and loading is the identity, loading is strict, and every mistake names its file."""

import errno
import json
import os
import shutil
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.atomic_files import replacing
from clearhead.tokens import Pair, Subwords, Words
from clearhead.weights import Bundle, WeightsError
from clearhead.weights.fill import build_empty
from support.letters import TEXT, TOKENS, build


@pytest.fixture
def folder(tmp_path):
    """A saved model."""
    return ch.save(build(), tmp_path / "model", tokens=TOKENS)


def stored_tensors(folder) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_is_three_plain_files(folder):
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokens.json"]
    saved = json.loads((folder / "config.json").read_text())
    assert list(saved) == ["clearhead", "model", "options"]
    assert saved["clearhead"] == ch.__version__
    assert saved["model"] == "gpt"
    assert ch.build(saved["model"], **saved["options"]).config == build().config
    stored = stored_tensors(folder)  # read by the safetensors library
    assert stored.keys() == dict(build().named_parameters()).keys()
    assert "head.weight" not in stored  # it is the embedding table
    assert all(torch.equal(stored[name], p) for name, p in build().named_parameters())


def test_a_loaded_model_gives_the_same_output(folder):
    bundle = ch.load(folder, device="cpu")
    assert isinstance(bundle, Bundle)
    assert bundle.device == torch.device("cpu")
    assert (bundle.tokens, bundle.folder) == (TOKENS, folder)
    assert torch.equal(bundle(TEXT), Bundle(build(), TOKENS)(TEXT))
    assert bundle.model.head.weight is bundle.model.embed.table


def test_a_model_without_text(tmp_path):
    model = ch.build("deep", width=3)
    assert ch.load(ch.save(model, tmp_path), device="cpu").tokens is None
    with pytest.raises(WeightsError, match="7 tokens, and the model reads no tokens"):
        ch.save(model, tmp_path, tokens=TOKENS)


def test_a_saved_bundle_keeps_its_tokens_and_replaces_another_model(folder, tmp_path):
    bundle = ch.load(folder, device="cpu")
    again = ch.load(ch.save(bundle, tmp_path / "again"), device="cpu")
    assert again.tokens == TOKENS
    assert torch.equal(again(TEXT), bundle(TEXT))
    ch.save(ch.build("deep", width=3), folder)
    other = ch.load(folder, device="cpu")
    assert type(other.model).__name__ == "Deep"
    assert other.tokens is None  # those of the model before it are removed


def test_saving_keeps_the_training_mode(tmp_path):
    model = build().train()
    ch.save(model, tmp_path)
    assert model.training


def test_a_compiled_model_is_saved_under_its_own_names(folder, tmp_path):
    ch.save(torch.compile(build(), backend="eager"), tmp_path / "compiled")
    assert stored_tensors(tmp_path / "compiled").keys() == stored_tensors(folder).keys()
    ch.save(Bundle(torch.compile(build(), backend="eager"), TOKENS), tmp_path / "bundle")
    assert contents(tmp_path / "bundle") == contents(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtypes_and_bits_are_kept_unless_another_dtype_is_given(dtype, tmp_path):
    model = build(positions="rotary").to(dtype)
    model.embed.float()  # a dtype of its own
    with torch.no_grad():
        model.norm.weight.view(torch.int64 if dtype == torch.float64 else torch.int16)[0] = 0x7FC1  # a NaN in bfloat16
    ch.save(model, tmp_path)
    loaded = ch.load(tmp_path, device="cpu").model
    for (name, a), b in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), name
    for given in ("float32", torch.float32):
        converted = ch.load(tmp_path, device="cpu", dtype=given).model
        assert {p.dtype for p in converted.parameters()} == {torch.float32}
        assert converted.positions.speed.dtype == torch.float64  # constants stay exact
    with pytest.raises(ValueError, match=r"dtype='bfloat61': expected one of .*; the nearest .*bfloat16"):
        ch.load(tmp_path, dtype="bfloat61")


def test_a_loaded_model_does_not_depend_on_its_file(folder):
    bundle = ch.load(folder, device="cpu")
    before = bundle(TEXT)
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    shutil.rmtree(folder)
    assert torch.equal(bundle(TEXT), before)


def test_a_loaded_model_trains_like_the_one_that_was_saved(folder):
    trained = []
    for model in (build(), ch.load(folder, device="cpu").model.train()):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            model(torch.from_numpy(TOKENS.encode(TEXT))[None]).square().mean().backward()
            optimiser.step()
        trained.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))


def change(folder, **values) -> None:
    saved = json.loads((folder / "config.json").read_text())
    options = saved["options"] | values.pop("options", {})
    (folder / "config.json").write_text(json.dumps(saved | {"options": options} | values, indent=2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "gtp"}, r"config\.json:3: no model 'gtp': expected one of gpt, .*; the nearest .*gpt"),
        ({"options": {"widht": 6}}, r"config\.json:\d+: unknown key options\.widht; the nearest (is|are) width"),
        ({"options": {"width": "6"}}, r"config\.json:7: options\.width = '6': expected a whole number"),
        ({"options": {"heads": 4}}, r"config\.json:\d+: options: width=6 does not divide into heads=4"),
        ({"options": {"norm": "lyer"}}, r"config\.json:\d+: options\.norm = 'lyer': .*the nearest .*layer"),
        ({"weights": 3}, r"config\.json:\d+: unknown key weights"),
        ({"options": {"vocab": 3}}, r"tokens\.json: there are 7 tokens, and the model was built for 3"),
    ],
)
def test_a_config_with_a_mistake_is_refused(folder, values, message):
    change(folder, **values)
    with pytest.raises(ValueError, match=message):
        ch.load(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 10**9}, "depth=1000000000, but model.safetensors has only 20 tensors"),
        ({"vocab": 10**12}, r"vocab=1000000000000, but model.safetensors has only \d+ weights"),
        ({"width": 3 * 10**12}, r"width=3000000000000, but model.safetensors has only \d+ weights"),
        ({"width": 3 * 10**9, "heads": 10**9, "positions": "alibi"}, r"width=3000000000, but .* has only \d+ weights"),
        ({"head": 10**12, "positions": "rotary"}, r"head=1000000000000, but model.safetensors has only \d+ weights"),
        ({"context": 10**30}, "a model of these sizes cannot be built"),
        ({"context": 2**62}, "a model of these sizes cannot be built"),
    ],
)
def test_sizes_that_the_weights_cannot_have_are_refused_before_building(folder, options, message):
    change(folder, options=options)
    began = time.perf_counter()
    with pytest.raises(WeightsError, match=rf"config\.json: {message}"):
        ch.load(folder)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("family", "options", "changed"),
    [
        ("transformer", {"vocab": 7, "width": 6, "heads": 3, "depth": 0, "decoder_depth": 1}, {"decoder_depth": 10**9}),
        ("rnn-seq2seq", {"vocab": 7, "width": 6, "hidden": 8}, {"depth": 10**9}),
        ("mlp", {"inputs": 3, "outputs": 2, "depth": 1}, {"depth": 10**9}),
        ("deep", {"width": 3, "depth": 2, "connect": "dense"}, {"depth": 10**9}),
    ],
)  # fmt: skip
def test_every_family_refuses_more_layers_than_the_file_has_tensors(family, options, changed, tmp_path):
    ch.save(ch.build(family, **options), tmp_path)
    ch.load(tmp_path, device="cpu")
    change(tmp_path, options=changed)
    with pytest.raises(WeightsError, match=r"depth=1000000000, but model.safetensors has only \d+ tensors"):
        ch.load(tmp_path, device="cpu")


class Stages(nn.Linear):
    def __init__(self, options):
        super().__init__(2, 3)


def test_sizes_per_stage_are_checked_too():
    shapes, where, file = dict.fromkeys("abc", (2, 5)), Path("config.json"), Path("x/a.safetensors")
    fits = build_empty(Stages, SimpleNamespace(depth=(1, 2), width=(4, 8)), shapes, where, file)
    assert fits.weight.device.type == "meta"
    with pytest.raises(WeightsError, match=r"config.json: depth=\(2, 1000\), but a.safetensors has only 3 tensors"):
        build_empty(Stages, SimpleNamespace(depth=(2, 1000), width=(4, 8)), shapes, where, file)
    with pytest.raises(WeightsError, match=r"config.json: width=\(4, 1000\), but a.safetensors has only 30 weights"):
        build_empty(Stages, SimpleNamespace(depth=(1, 2), width=(4, 1000)), shapes, where, file)


def test_a_model_without_blocks_may_have_options_larger_than_its_weights(tmp_path):
    ch.save(ch.build("mlp", inputs=3, outputs=2, hidden=64, depth=0), tmp_path)
    assert ch.load(tmp_path, device="cpu").config.hidden == 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config\.json:1: "),
        ("{}", r"config\.json:1: missing clearhead \(text\), model \(text\), options \(a table\)"),
        ('["gpt"]', r"config\.json.*expected a table"),
    ],
)
def test_a_file_that_is_not_a_config_is_refused(folder, content, message):
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        ch.load(folder)


def misspelt_name(stored: dict[str, Tensor]) -> None:
    stored["blocks.0.attn.quary.bias"] = stored.pop("blocks.0.attn.query.bias")


def wrong_shape(stored: dict[str, Tensor]) -> None:
    stored["norm.weight"] = torch.ones(7)


def extra_tensors(stored: dict[str, Tensor]) -> None:
    stored |= {"blocks.1.mlp.up.bias": torch.ones(2, 3), "x": torch.ones(1)}


def integers(stored: dict[str, Tensor]) -> None:
    stored["norm.weight"] = stored["norm.weight"].long()


WRONG = {
    misspelt_name: r"the tensor blocks\.0\.attn\.query\.bias \(6,\) is missing; the nearest is blocks\.0\.attn\.quary",
    wrong_shape: r"the tensor norm\.weight has the shape \(7,\), expected \(6,\)",
    extra_tensors: r"the tensor blocks\.1\.mlp\.up\.bias \(2, 3\) \(and 1 more\) has no place in this model",
    integers: r"the tensor norm\.weight is torch\.int64, expected one like torch\.float32",
}


@pytest.mark.parametrize("damage", WRONG, ids=lambda damage: damage.__name__)
def test_tensors_that_do_not_fit_are_refused(folder, damage):
    stored = stored_tensors(folder)
    damage(stored)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.safetensors: " + WRONG[damage]):
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


def test_a_model_that_cannot_be_saved_creates_no_folder(tmp_path):
    with pytest.raises(ValueError, match="Linear belongs to no known family: expected one of gpt"):
        ch.save(nn.Linear(2, 2), tmp_path / "new")
    with pytest.raises(WeightsError, match="there are 7 tokens, and the model was built for 3"):
        ch.save(ch.build("reader", vocab=3), tmp_path / "new", tokens=TOKENS)
    assert not (tmp_path / "new").exists()


@pytest.fixture
def full_disk(monkeypatch):
    """Let writes of one file of a folder fail as on a full disk."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, a device without space")

    def fill(path):
        with replacing(path.with_name(f"x{path.name}")) as temporary:
            temporary.touch()
        path.with_name(f"x{path.name}").unlink()
        temporary.with_name(temporary.name.replace(".x", ".", 1)).symlink_to("/dev/full")

    return fill


@pytest.mark.parametrize("layout", ["clearhead", "huggingface"])
@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.jinja", "config.json"])
def test_a_full_disk_is_reported_with_the_name_of_the_file(layout, name, tmp_path, full_disk):
    tokens = Subwords.of(["a dog"], size=270)
    model = ch.build("gpt", vocab=len(tokens), width=6, depth=1, heads=3, context=20)
    bundle = Bundle(model, tokens, chat="{{ messages }}")
    full_disk(tmp_path / name)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number and the name are checked below
        ch.save(bundle, tmp_path, layout=layout)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / name))


def test_a_full_disk_leaves_the_old_model_unchanged(folder, full_disk):
    before = contents(folder)
    other = build()
    nn.init.ones_(other.embed.table)
    full_disk(folder / "model.safetensors")
    with pytest.raises(OSError, match="No space left"):
        ch.save(other, folder)
    assert contents(folder) == before


def test_a_pair_of_tokenizers_is_kept(tmp_path):
    subwords = Subwords.of(["a dog", "ein Hund"], size=270)
    for pair in (Pair(subwords, subwords), Pair(Words.of(["a dog"]), subwords)):
        bundle = ch.load(ch.save(ch.build("reader", vocab=270), tmp_path / "model", tokens=pair))
        assert bundle.tokens == pair
    with pytest.raises(WeightsError, match=f"there are {len(subwords)} target tokens, and the model was built for 9"):
        ch.save(ch.build("reader", vocab=9), tmp_path / "new", tokens=Pair(Words.of(["a dog"]), subwords))

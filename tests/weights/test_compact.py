"""The layout "compact": 8-bit matrices, and parts of a model that a folder beside it holds."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.tokens import Words
from clearhead.weights import Bundle, WeightsError
from clearhead.weights.fill import state
from clearhead.weights.native import compress, save_compact

TOKENS = Words(["a", "red", "dog"])
ENCODER = {"name": "resnet", "width": 6, "depths": [1], "stem": "small"}


def captioner(decoder: str) -> Bundle:
    """A captioner; the encoder is the same whatever the decoder."""
    torch.manual_seed(0)
    model = ch.build("captioner", vocab=len(TOKENS), width=8, heads=2, encoder=ENCODER, decoder=decoder, tied=False)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, x in state(model.encoder).items():
            x.fill_(1e6) if "running" in name else x.normal_() if x.is_floating_point() else None
    return Bundle(model, TOKENS)


@pytest.fixture
def folders(tmp_path):
    save_compact(captioner("transformer"), tmp_path / "one")
    save_compact(captioner("rnn"), tmp_path / "two", {"encoder": "one"})
    return tmp_path


def test_a_matrix_is_rounded_by_half_a_step_of_its_row_and_a_kernel_by_that_of_its_output():
    x = torch.randn(3, 4, 2, 2) * torch.tensor([1e-6, 1.0, 50.0])[:, None, None, None]
    stored = compress({"x": x, "b": torch.tensor([0.1]), "v": torch.tensor([1e6])}, frozenset("v"))
    assert {name: tensor.dtype for name, tensor in stored.items()} == {
        "x": torch.int8, "x.scale": torch.bfloat16, "b": torch.float16, "v": torch.float32,
    }  # fmt: skip
    back = stored["x"].float() * stored["x.scale"].float()[:, None, None, None]
    error = (back - x).abs().flatten(1).amax(1) / x.abs().flatten(1).amax(1)
    assert float(error.max()) <= 0.5 * 1.02 / 127  # the scale is rounded up
    assert float(error.min()) > 0


def test_a_row_of_zeros_stays_zero():
    stored = compress({"x": torch.zeros(2, 3)}, frozenset())
    assert not (stored["x"].float() * stored["x.scale"].float()[:, None]).any()


@pytest.mark.parametrize(("name", "decoder"), [("one", "transformer"), ("two", "rnn")])
def test_a_compact_folder_is_loaded_whole(folders, name, decoder):
    before, after = state(captioner(decoder).model), state(ch.load(folders / name, device="cpu").model)
    assert before.keys() == after.keys()
    for key, x in before.items():
        if not x.is_floating_point():
            continue
        assert after[key].dtype == torch.float32
        rows = x.reshape(len(x), -1) if x.ndim > 1 else x[None]
        most = rows.abs().amax(1).reshape(-1, *[1] * (x.ndim - 1)) if x.ndim > 1 else x.abs().amax()
        assert bool(((after[key].float() - x).abs() <= most * 0.005 + 1e-6).all()), key
    half = ch.load(folders / name, device="cpu", dtype="float16").model
    assert {p.dtype for p in half.parameters()} == {torch.float16}


def test_a_shared_part_is_stored_once_and_saved_whole(folders, tmp_path):
    stored = load_file(folders / "two" / "model.safetensors")
    assert not [key for key in stored if key.startswith("encoder.")]
    whole = ch.save(ch.load(folders / "two", device="cpu"), tmp_path / "elsewhere" / "whole")
    assert "shared" not in json.loads((whole / "config.json").read_text())
    first, again = ch.load(folders / "two", device="cpu").model, ch.load(whole, device="cpu").model
    assert all(torch.equal(x, state(again)[key]) for key, x in state(first).items())


def test_save_takes_the_layout_by_name(tmp_path):
    plain = ch.save(captioner("rnn"), tmp_path / "plain") / "model.safetensors"
    small = ch.save(captioner("rnn"), tmp_path / "small", layout="compact") / "model.safetensors"
    assert load_file(small)["head.weight"].dtype == torch.int8
    assert load_file(small)["head.weight"].nbytes == load_file(plain)["head.weight"].nbytes // 4


def test_another_encoder_is_not_shared(folders):
    other = captioner("rnn")
    with torch.no_grad():
        next(other.model.encoder.parameters()).mul_(1.5)
    with pytest.raises(WeightsError, match=r"one/model\.safetensors: the tensor encoder\.\S+ is not that of the model"):
        save_compact(other, folders / "three", {"encoder": "one"})
    assert not (folders / "three").exists()


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        ({"encoder": "none"}, "encoder is that of the folder none beside it, and there is no "),
        ({"encoder": "../one"}, r"encoder is shared with '\.\./one': expected the name of a folder beside this one"),
        ({"encoder": "."}, r"expected the name of a folder beside this one"),
        ({}, r"the tensor encoder\.\S+ \(.*\) is missing"),
        ({"encoder": "one", "head": "one"}, r"the tensor head\.weight is also in "),
    ],
)
def test_a_wrong_folder_is_named(folders, shared, words):
    path = folders / "two" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shared": shared}))
    with pytest.raises(WeightsError, match=words):
        ch.load(folders / "two", device="cpu")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"head.weight.scale": torch.ones(3).half()}, r"head\.weight\.scale has the shape \(3,\), expected \(7,\)"),
        ({"head.weight": torch.ones(7, 8)}, r"head\.weight is torch\.float32, expected int8"),
        ({"head.weight.scale": None}, r"head\.weight is torch\.int8, expected one like torch\.float32"),
        ({"extra.scale": torch.ones(3)}, r"extra\.scale \(3,\) has no place in this model"),
    ],
)
def test_a_wrong_scale_is_named(folders, changed, words):
    path = folders / "two" / "model.safetensors"
    tensors = load_file(path) | changed
    save_file({name: x for name, x in tensors.items() if x is not None}, path)
    with pytest.raises(WeightsError, match=words):
        ch.load(folders / "two", device="cpu")

"""Parity certificates: which tensors were used, and how far the outputs are from the reference's."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.layers.lora import add_adapters
from clearhead.models.transformer import Config
from clearhead.training import loop, train
from clearhead.weights import WeightsError, certificate, write_probe
from clearhead.weights.folder import READERS
from clearhead.weights.huggingface import folder as huggingface
from clearhead.weights.parity import NO_REFERENCE
from clearhead.weights.table import Layout, causal_lm_logits
from support.foreign_folders import foreign_folder
from support.image_models import patched_model, picture, processor_class, registered
from support.letters import TOKENS, build


def test_certificate_of_our_own_folder(tmp_path):
    folder = ch.save(build().half(), tmp_path / "a", tokens=TOKENS)
    result = certificate(folder)
    assert (result.kind, result.model, result.ignored) == ("clearhead", "gpt", {})
    assert result.used == {name: tuple(p.shape) for name, p in build().named_parameters()}
    assert result.types == {"float16": result.parameters}
    assert result.difference is None
    assert "not compared: it is in our own format, which is exact to the bit" in str(result)
    write_probe(ch.load(folder, device="cpu", dtype="float32"), folder)
    again = certificate(folder)
    assert again.reference == "probe.safetensors"
    assert again.difference == 0.0
    assert json.loads(json.dumps(again.to_dict()))["used"]["norm.weight"] == [6]


def test_certificate_of_a_language_model_against_transformers(tmp_path):
    pytest.importorskip("transformers")
    folder = ch.save(build(), tmp_path / "a", layout="huggingface")
    result = certificate(folder)
    assert result.reference.startswith("transformers ")
    assert 0.0 <= result.difference < 1e-5 < result.largest
    assert result.files == ("model.safetensors",)
    assert result.used["transformer.h.0.attn.c_attn.weight"] == (6, 18)
    assert "largest difference" in str(result)
    without = certificate(folder, compare=False)
    assert (without.difference, without.note) == (None, "compare=False")


def test_certificate_of_a_translator_against_transformers(tmp_path):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = ch.build("transformer", vocab=11, width=12, depth=1, heads=3, pairs="halves")
    bundle = ch.Bundle(model, special=ch.weights.Special(pad=0, start=0, ends=(1,)))
    result = certificate(ch.save(bundle, tmp_path / "a", layout="huggingface"))
    assert result.kind == "huggingface marian"
    assert result.difference < 1e-5
    assert Path(result.folder) == tmp_path / "a"


@pytest.mark.parametrize("options", [{"answer": "words"}, {"answer": "class", "classes": 3}, {"answer": "sentence"},
                                     {"answer": "sentence", "pooler": False},
                                     {"answer": "sentence", "pooler": False, "pool": "mean"}])  # fmt: skip
def test_certificate_of_bert_for_every_task_against_transformers(options, tmp_path):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = ch.build("bert", vocab=11, context=9, width=12, depth=1, heads=3, **options)
    result = certificate(ch.save(model, tmp_path, layout="huggingface"))
    assert result.reference.startswith("transformers ")
    assert result.difference < 1e-5


def adapters_of(folder, place):
    bundle = ch.load(folder, device="cpu")
    add_adapters(bundle.model, rank=2)
    return ch.save(dataclasses.replace(bundle, base=str(folder)), place, layout="peft")


def unfinished_run(_, place):
    """The folder of a training that stopped after its third step."""
    table = {
        "steps": 4,
        "data": {"name": "reverse", "symbols": 5, "length": [1, 4], "rows": 6, "valid_rows": 5, "valid_batches": 2},
        "model": {"name": "gpt", "context": 8, "width": 6, "depth": 1, "heads": 3},
    }
    step = loop.Loop._step

    def stop_at_3(self, parts):
        found = step(self, parts)
        self.stopping = self.step == 3
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_step", stop_at_3)
        assert not train(table, out=place, device="cpu", quiet=True).finished
    return place


def of_transformers(folder, place):
    return foreign_folder("neox", place)


LAYOUTS = {
    "peft": (adapters_of, "transformers alone does not add adapters"),
    "unfinished": (unfinished_run, "it is in our own format"),
    "transformers": (of_transformers, "transformers itself runs it"),
}


@pytest.mark.filterwarnings("ignore::clearhead.errors.Notice")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_without_a_reference_says_so(layout, tmp_path):
    make, note = LAYOUTS[layout]
    pytest.importorskip("transformers")
    result = certificate(make(ch.save(build(), tmp_path / "base", tokens=TOKENS), tmp_path / "made"))
    assert (result.kind, result.difference) == (layout, None)
    assert f"not compared: {note}" in str(result)


def test_every_layout_has_a_reference_or_a_note():
    assert set(READERS) - set(NO_REFERENCE) == {"huggingface", "gguf"}


def test_a_probe_detects_weights_of_another_model(tmp_path):
    folder = ch.save(build(), tmp_path / "a", layout="huggingface")
    write_probe(ch.load(folder, device="cpu"), folder)
    assert certificate(folder).difference == 0.0
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.0.attn.c_attn.weight"] = tensors["transformer.h.0.attn.c_attn.weight"].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors")
    assert certificate(folder).difference > 1e-4


def test_a_bad_probe_is_refused_by_name(tmp_path):
    folder = ch.save(build(), tmp_path / "a", layout="huggingface")
    probe, ids = folder / "probe.safetensors", torch.zeros(1, 3, dtype=torch.long)
    for tensors in ({"ids": ids}, {"logits": torch.zeros(1)}):
        save_file(tensors, probe)
        with pytest.raises(WeightsError, match=r"probe.safetensors: expected the inputs of the model by name"):
            certificate(folder)
    save_file({"ids": ids, "logits": torch.zeros(1, 3, 2)}, probe)
    with pytest.raises(WeightsError, match=r"logits has the shape \(1, 3, 2\), the model's \(1, 3, 7\)"):
        certificate(folder)
    probe.write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"probe.safetensors: is not a whole safetensors file"):
        certificate(folder)


def test_certificate_of_an_image_classifier_against_transformers(tmp_path):
    pytest.importorskip("transformers")
    with registered():
        bundle = ch.Bundle(patched_model(), preprocessing=Preprocessing(resize=(8, 8)), labels=("cat", "dog"))
        result = certificate(ch.save(bundle, tmp_path, layout="huggingface"))
        assert (result.kind, result.model) == ("huggingface vit", "patched")
        assert result.reference.startswith("transformers ")
        assert result.difference < 1e-5 < result.largest
        write_probe(ch.load(tmp_path, device="cpu"), tmp_path)
        assert certificate(tmp_path).reference == "probe.safetensors"
        assert certificate(tmp_path).difference == 0.0


def test_certificate_of_an_image_classifier_that_transformers_saved(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}
    config = transformers.ViTConfig(**sizes, image_size=10, patch_size=5, num_labels=4)
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    processor_class("ViT")(size={"height": 10, "width": 10}).save_pretrained(tmp_path)
    with registered():
        assert certificate(tmp_path).difference < 1e-5
        bundle = ch.load(tmp_path, device="cpu")
        assert (bundle.tokens, bundle.labels) == (None, ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"))
        found = dict(ch.classify(bundle, picture()))
        with torch.no_grad():
            expected = theirs(bundle.pixels(picture())[None]).logits[0].softmax(-1)
        assert found == {
            name: pytest.approx(float(p), abs=1e-6) for name, p in zip(bundle.labels, expected, strict=True)
        }
        again = ch.save(bundle, tmp_path / "again", layout="huggingface")
        assert not (again / "generation_config.json").exists()  # which only a model with tokens has
        assert ch.load(again, device="cpu").config == bundle.config
        with pytest.raises(WeightsError, match="there are 7 tokens, and the model reads no tokens"):
            ch.save(bundle, tmp_path / "again", layout="huggingface", tokens=TOKENS)


def test_every_layout_names_its_own_reference():
    """Language models share one; a layout with other inputs or outputs has its own, and none has a default."""
    assert {field.name: field.default for field in dataclasses.fields(Layout)}["reference"] is dataclasses.MISSING
    assert huggingface.get_layout("gpt2").reference is huggingface.get_layout("llama").reference is causal_lm_logits
    calls = []

    class Output:
        logits = torch.ones(2, 3)

    def pretrained(name):
        calls.append(name)
        return lambda *args, **kwargs: calls.append((args, sorted(kwargs))) or Output

    ids = torch.zeros(1, 2, dtype=torch.long)
    assert causal_lm_logits(pretrained, {"ids": ids}, None) is Output.logits
    marian = huggingface.get_layout("marian").reference
    assert marian(pretrained, {"ids": ids, "source": ids}, Config(vocab=3)) is Output.logits
    assert calls == ["AutoModelForCausalLM", ((ids,), []),
                     "AutoModelForSeq2SeqLM", ((), ["decoder_input_ids", "input_ids"])]  # fmt: skip

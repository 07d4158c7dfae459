"""The files of sentence-transformers: pooling, the longest text, and modules that would change the vectors."""

import json

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead import tokens
from clearhead.data.text.labelled import with_special
from clearhead.errors import CutNotice
from clearhead.weights import WeightsError

TEXT = "one two three four five six seven eight"


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    own = tokens.Subwords.of([TEXT, "<mask>"] * 3, size=300)
    options = {"width": 8, "depth": 1, "heads": 2, "context": 40, "answer": "sentence", "pool": "mean", "pooler": False}
    model = ch.build("bert", vocab=len(own), **options)
    return ch.save(ch.Bundle(model, own, longest=12), tmp_path / "model", layout="huggingface")


def change(folder, name, **words):
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | words))


def test_the_files_are_written_and_read(folder, tmp_path):
    kinds = [one["type"].rpartition(".")[2] for one in json.loads((folder / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 12
    bundle = ch.load(folder, device="cpu")
    assert (bundle.longest, bundle.max_tokens, bundle.config.pool) == (12, 40, "mean")
    for layout in ("clearhead", "huggingface"):
        assert ch.load(ch.save(bundle, tmp_path / layout, layout=layout), device="cpu").longest == 12


def test_a_text_is_cut_where_the_folder_says(folder):
    bundle = ch.load(folder, device="cpu")
    ids = with_special(bundle.tokenizer(), bundle.tokenizer().encode(f"{TEXT} {TEXT}"))
    with pytest.warns(CutNotice, match="longer than the 12 tokens that this model reads"):
        vector = ch.embed(bundle, f"{TEXT} {TEXT}")
    row = torch.from_numpy(np.array([[*ids[:11], ids[-1]]]))
    expected = torch.nn.functional.normalize(bundle.model(row)[0], dim=0).detach().numpy()
    np.testing.assert_allclose(vector, expected, atol=1e-6)
    change(folder, "sentence_bert_config.json", max_seq_length=100)
    assert ch.load(folder, device="cpu").longest is None
    change(folder, "sentence_bert_config.json", max_seq_length=None)
    change(folder, "tokenizer_config.json", model_max_length=20)
    assert ch.load(folder, device="cpu").longest == 20
    change(folder, "sentence_bert_config.json", max_seq_length=0)
    with pytest.raises(WeightsError, match="max_seq_length=0: expected 1 or more"):
        ch.load(folder, device="cpu")


def test_an_older_name_of_the_file_is_read(folder):
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    assert ch.load(folder, device="cpu").longest == 12


@pytest.mark.parametrize("kind", ["Dense", "LayerNorm", "WeightedLayerPooling"])
def test_a_module_that_changes_the_vectors_is_refused(kind, folder):
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    more = {"idx": 3, "name": "3", "path": f"3_{kind}", "type": f"sentence_transformers.models.{kind}"}
    path.write_text(json.dumps([*modules, more]))
    with pytest.raises(WeightsError, match=rf"modules.json: the module {kind} is not read here, .*: expected Transf"):
        ch.load(folder, device="cpu")


def test_pooling_that_the_modules_name_and_that_is_missing_is_refused(folder):
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"names the pooling in '1_Pooling', and there is no"):
        ch.load(folder, device="cpu")


def test_pooling_is_where_the_modules_say(folder):
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("1_Pooling", "my_pooling"))
    (folder / "1_Pooling").rename(folder / "my_pooling")
    change(folder, "my_pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    assert ch.load(folder, device="cpu").config.pool == "first"
    (folder / "my_pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    assert ch.load(folder, device="cpu").config.pool == "mean"
    (folder / "my_pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    with pytest.raises(WeightsError, match="pooling by max_tokens: expected one of cls_token, mean_tokens"):
        ch.load(folder, device="cpu")


def test_damaged_modules_are_refused(folder):
    (folder / "modules.json").write_text('{"type": 3}')
    with pytest.raises(WeightsError, match=r"modules.json: expected a list of modules, each with a type and a path"):
        ch.load(folder, device="cpu")


def test_a_classifier_in_the_same_folder_leaves_none_of_them(folder):
    model = ch.load(folder, device="cpu")
    options = {"width": 8, "depth": 1, "heads": 2, "context": 40, "answer": "class", "classes": 2}
    classifier = ch.Bundle(ch.build("bert", vocab=len(model.tokens), **options), model.tokens)
    ch.save(classifier, folder, layout="huggingface")
    assert not any((folder / name).exists() for name in ("modules.json", "sentence_bert_config.json"))
    assert ch.load(folder, device="cpu").config.answer == "class"

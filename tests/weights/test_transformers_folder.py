"""Folders that no family here reads open with transformers, and every task gives what transformers gives."""

import importlib.util
import json
import sys
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.errors import Notice, UserError
from clearhead.weights import WeightsError
from clearhead.weights.folder import describe
from support.foreign_folders import foreign, foreign_folder

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*opened with transformers:clearhead.errors.Notice"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # DeBERTa of transformers uses it
]
WRITERS = ("neox", "opt", "bloom", "vaultgemma")
TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("foreign")
    return lambda kind: foreign_folder(kind, root / kind) if not (root / kind).exists() else root / kind


@pytest.fixture(scope="module")
def bundle(folder):
    return cache(lambda kind: ch.load(folder(kind), device="cpu"))


def test_opening_says_how(folder):
    with pytest.warns(Notice, match="^neox: opened with transformers, watched by interception$"):
        ch.load(folder("neox"), device="cpu")
    about = describe(folder("neox"))
    assert about["family"] == "GPTNeoXForCausalLM"
    assert about["note"] == "opened with transformers, watched by interception"
    assert about["can"] == ["encode", "generate", "predict"]


@torch.no_grad()
@pytest.mark.parametrize("kind", WRITERS)
def test_the_logits_are_those_of_transformers_to_the_bit(bundle, kind):
    ids = torch.tensor([bundle(kind).prompt(TEXT)])
    assert torch.equal(bundle(kind).model(ids), foreign(kind)(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("kind", WRITERS)
def test_greedy_texts_are_those_of_transformers_whatever_shares_the_batch(bundle, kind):
    texts = ["the cat sat", "a", "the dog runs on the mat"]
    answers = ch.generate(bundle(kind), texts, max_new=9)
    for text, answer in zip(texts, answers, strict=True):
        ids = torch.tensor([bundle(kind).prompt(text)])
        theirs = foreign(kind).generate(ids, max_new_tokens=9, do_sample=False)[0, ids.shape[1] :].tolist()
        theirs = theirs[: theirs.index(2)] if 2 in theirs else theirs
        assert answer.pieces == bundle(kind).tokens.pieces(theirs)
        assert ch.generate(bundle(kind), text, max_new=9).pieces == answer.pieces


@pytest.mark.parametrize("kind", WRITERS)
def test_beams_and_samples_decode_with_its_cache(bundle, kind):
    best = ch.generate(bundle(kind), "the cat", max_new=4, beams=3)
    greedy = ch.generate(bundle(kind), "the cat", max_new=4)
    if len(best.pieces) == len(greedy.pieces):
        assert best.logprob >= greedy.logprob - 1e-5
    one = ch.generate(bundle(kind), "the cat", max_new=6, temperature=1.0, seed=3, samples=2)
    again = ch.generate(bundle(kind), "the cat", max_new=6, temperature=1.0, seed=3, samples=2)
    assert [one.text, one.others[0].text] == [again.text, again.others[0].text]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_score_is_the_sum_of_log_probabilities(bundle, kind):
    result = ch.score(bundle(kind), TEXT)
    ids = torch.tensor([bundle(kind).prompt(TEXT)])
    with torch.no_grad():
        logp = foreign(kind)(ids).logits.log_softmax(-1)[0, :-1]
    assert result.logprob == pytest.approx(float(logp.gather(1, ids[0, 1:, None]).sum()), abs=1e-4)


@pytest.mark.parametrize("kind", [*WRITERS, "electra", "albert", "mpnet", "classes", "deberta"])
def test_the_maps_of_a_text_are_those_of_eager_attention(bundle, kind):
    result = ch.look.attention(bundle(kind), TEXT)
    eager = foreign(kind)
    eager.set_attn_implementation("eager")
    ids = torch.from_numpy(bundle(kind).tokens.wrapped(TEXT))[None]
    with torch.no_grad():
        expected = eager(ids, output_attentions=True).attentions
    assert len(result.maps["self"]) == len(expected) == 2
    for found, weights in zip(result.maps["self"], expected, strict=True):
        torch.testing.assert_close(found.dense(), weights)
    assert len(result.pieces) == ids.shape[1]


def test_attention_that_is_not_seen_is_an_error_with_what_to_do(bundle, monkeypatch):
    from clearhead.explore.inspections import inspect_text
    from clearhead.look.foreign import intercept

    monkeypatch.delitem(intercept.HANDLERS, torch.bmm)  # so that the product of DeBERTa is one that is not seen
    deberta = bundle("deberta")
    todo = "call it with output_attentions=True, or set this in its config"
    with pytest.warns(Notice, match=todo), pytest.raises(UserError, match=f"no attention was seen in this .*{todo}"):
        ch.look.attention(deberta, TEXT)
    with pytest.warns(Notice, match=todo):
        found = inspect_text(deberta, [1, 5, 2])
    assert found.to_dict()["groups"] == []
    assert todo in found.to_dict()["reason"]
    with pytest.raises(UserError, match=todo):
        found.group("self")
    monkeypatch.setattr(deberta.model.theirs.config, "output_attentions", True)
    assert len(ch.look.attention(deberta, TEXT).maps["self"]) == 2


@pytest.mark.parametrize("kind", ["neox", "vaultgemma", "mpnet", "albert"])
def test_the_effects_of_heads_are_those_of_silencing_them(bundle, kind):
    effects = ch.look.head_effects(bundle(kind), TEXT)
    heads = ch.look.attention(bundle(kind), TEXT).maps["self"][0].shape[1]
    assert effects.change.shape[:2] == (2, heads)
    assert (effects.change.abs().sum(-1) > 0).all()
    assert len(set(effects.mean.flatten().tolist())) == 2 * heads


@torch.no_grad()
def test_masked_tokens_classes_and_vectors_are_those_of_transformers(bundle):
    mpnet, theirs = bundle("mpnet"), foreign("mpnet")
    found = ch.fill(mpnet, "the <mask> sat", top=3)[0]
    ids = torch.tensor([[1, 5, 4, 7, 2]])
    p, order = theirs(ids).logits[0, 2].softmax(-1).sort(descending=True)
    assert [word for word, _ in found] == [mpnet.tokens.pieces([i])[0] for i in order[:3].tolist()]
    assert [share for _, share in found] == pytest.approx(p[:3].tolist())
    texts = [TEXT, "a dog"]
    for text, classes in zip(texts, ch.classify(bundle("classes"), texts), strict=True):
        ids = torch.from_numpy(bundle("classes").tokens.wrapped(text))[None]
        shares = foreign("classes")(ids).logits[0].softmax(-1).tolist()
        assert dict(classes) == pytest.approx({f"LABEL_{i}": share for i, share in enumerate(shares)}, abs=1e-5)
    for text, vector in zip(texts, ch.embed(bundle("electra"), texts, normalise=False), strict=True):
        ids = torch.from_numpy(bundle("electra").tokens.wrapped(text))[None]
        mean = foreign("electra").electra(ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(torch.from_numpy(vector), mean, rtol=1e-4, atol=1e-5)


def test_positions_that_begin_after_the_padding_id_shorten_the_context(bundle):
    assert bundle("mpnet").max_tokens == 32 - 2  # its padding id is 1, whatever the config says
    assert bundle("electra").max_tokens == 32
    assert bundle("opt").max_tokens == 32


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [("umt5", "reads a text and writes another.*look.attention"), ("swin", "SwinModel reads pixel_values: expected")],
)
def test_models_that_do_not_read_one_text_are_refused(folder, kind, sentence):
    with pytest.raises(WeightsError, match=sentence):
        ch.load(folder(kind), device="cpu")


def test_a_missing_tensor_is_an_error_and_not_a_random_number(folder, tmp_path):
    damaged = foreign_folder("neox", tmp_path / "damaged")
    tensors = load_file(damaged / "model.safetensors")
    del tensors["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"]
    save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=r"1 tensors of GPTNeoXForCausalLM are missing.*layers\.1\.mlp"):
        ch.load(damaged, device="cpu")


def changed_folder(tmp_path, **changes):
    folder = foreign_folder("neox", tmp_path / "changed")
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(table | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_attention_heads": 5}, "changed: transformers cannot open it .*not divisible by the number of attention"),
        ({"hidden_size": 12 * 10**6}, "hidden_size=12000000, but no tensor has an axis of this size"),
        ({"num_hidden_layers": 10**4}, r"num_hidden_layers=10000, but there are only \d+ tensors"),
        ({"intermediate_size": 10**9}, r"asks for [\d,]{14,} parameters, and its files have [\d,]{5,6}$"),
    ],
)
def test_a_config_that_cannot_be_built_or_is_much_larger_than_the_files_is_refused(tmp_path, changes, sentence):
    with pytest.raises(WeightsError, match=sentence):
        ch.load(changed_folder(tmp_path, **changes), device="cpu")


def test_a_model_that_reads_no_text_says_what_it_reads(tmp_path):
    speech = {"architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True}
    with pytest.raises(WeightsError, match="WhisperForConditionalGeneration reads input_features: expected a model of"):
        ch.load(changed_folder(tmp_path, **speech), device="cpu")


def test_a_tensor_of_another_shape_is_named(tmp_path):
    folder = foreign_folder("neox", tmp_path / "shape")
    tensors, name = load_file(folder / "model.safetensors"), "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    save_file(tensors | {name: tensors[name][:-3].contiguous()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=r"layers\.1\.mlp\.dense_h_to_4h\.weight has the shape \(27, 24\), expected"):
        ch.load(folder, device="cpu")


@pytest.mark.parametrize("kernel", ["flash_attention_2", "somebody/kernel"])
def test_a_config_names_no_kernel_to_download(tmp_path, kernel):
    bundle = ch.load(changed_folder(tmp_path, _attn_implementation=kernel, attn_implementation=kernel), device="cpu")
    assert bundle.model.theirs.config._attn_implementation == "sdpa"


def test_what_is_not_read_of_a_folder_is_said(folder, tmp_path):
    with pytest.warns(
        Notice, match=r"read as ElectraModel, without the head of ElectraForPreTraining; 4 tensors are not"
    ):
        ch.load(folder("electra"), device="cpu")
    more = foreign_folder("neox", tmp_path / "more")
    tensors = load_file(more / "model.safetensors")
    save_file(tensors | {"gpt_neox.layers.9.x": torch.ones(3)}, more / "model.safetensors", {"format": "pt"})
    with pytest.warns(Notice, match=r"interception; 1 tensor is not used: gpt_neox\.layers\.9\.x$"):
        ch.load(more, device="cpu")


def test_weights_that_are_not_numbers_have_no_score(tmp_path):
    folder = foreign_folder("neox", tmp_path / "nan")
    tensors, name = load_file(folder / "model.safetensors"), "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    save_file(tensors | {name: tensors[name] * float("nan")}, folder / "model.safetensors", {"format": "pt"})
    bundle = ch.load(folder, device="cpu")
    with pytest.raises(UserError, match=r"logits are not numbers \(NaN\)"):
        ch.score(bundle, TEXT)
    with pytest.raises(UserError, match=r"logits are not numbers \(NaN\)"):
        ch.generate(bundle, TEXT, max_new=3)


def test_a_damaged_file_is_a_sentence(folder, tmp_path):
    damaged = foreign_folder("neox", tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(WeightsError, match=r"model\.safetensors: .*header"):
        ch.load(damaged, device="cpu")


def test_code_in_a_folder_is_not_run(tmp_path):
    damaged = foreign_folder("neox", tmp_path / "code")
    table = json.loads((damaged / "config.json").read_text())
    table["auto_map"] = {"AutoModelForCausalLM": "code.Model", "AutoConfig": "code.Config"}
    (damaged / "config.json").write_text(json.dumps(table))
    (damaged / "code.py").write_text("raise SystemExit('this code was run')")
    assert ch.load(damaged, device="cpu").name == "GPTNeoXForCausalLM"


def test_without_transformers_the_error_says_what_to_install(folder, monkeypatch):
    path = folder("neox")
    plain = importlib.util.find_spec
    none = lambda name, *more: None if name == "transformers" else plain(name, *more)  # noqa: E731
    for module in ("folder", "transformers_model"):
        monkeypatch.setattr(sys.modules[f"clearhead.weights.huggingface.{module}"], "find_spec", none)
    with pytest.raises(WeightsError, match=r"model_type is 'gpt_neox'.*pip install clearhead\[transformers\]"):
        ch.load(path, device="cpu")


def test_what_needs_a_family_is_refused(bundle, folder, tmp_path):
    with pytest.raises(UserError, match="belongs to no known family"):
        ch.save(bundle("neox"), tmp_path / "copy")
    with pytest.raises(UserError, match="belongs to no known family"):
        ch.weights.read_config(folder("neox"))

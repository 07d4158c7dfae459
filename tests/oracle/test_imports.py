"""Hugging Face folders of language models and BERT: read and written, with equal outputs and gradients."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import B, D, T, close
from language_models import BERT, CASES, CONTEXT, DEPTH, ENCODERS, LABELS, V, config_of, ids, oracle, output
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.weights import WeightsError, certificate
from clearhead.weights.huggingface import folder as huggingface

cases = pytest.mark.parametrize("case", CASES)


def whole(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)


def sharded(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size=3000)
    assert len(list(folder.glob("model-*.safetensors"))) > 2


def pickled(model: nn.Module, folder: Path) -> None:
    """As in old folders: all names of a shared table, and constants."""
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def without_head(model: nn.Module, folder: Path) -> None:
    """Without the head; the names of the tensors then lack their prefix."""
    model.base_model.save_pretrained(folder)


def is_whole_without_head(case: str) -> bool:
    """Whether a model has no weights besides those of its base model."""
    words = CASES[case][1]
    tied = words.get("tie_word_embeddings", case.startswith("gpt2"))
    return (tied and not case.startswith(ENCODERS)) or words.get("architectures", [""])[0].endswith("Model")


WAYS = [(case, write) for case in CASES for write in (whole, sharded, pickled)]


@pytest.mark.parametrize(
    ("case", "write"), WAYS + [(case, without_head) for case in CASES if is_whole_without_head(case)]
)
def test_a_loaded_folder_gives_their_outputs_and_gradients(case: str, write: Callable, tmp_path: Path) -> None:
    theirs = oracle(case)
    write(theirs, tmp_path)
    bundle = ch.load(tmp_path, device="cpu")
    ours = bundle.model
    assert not ours.training
    x = ids(CONTEXT)
    logits, their_logits = ours(x), output(theirs, x)
    close(logits, their_logits, "logits")
    probe = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    (logits * probe).sum().backward()
    (their_logits * probe).sum().backward()
    mine, expected = dict(ours.named_parameters()), dict(theirs.named_parameters())
    rows = list(huggingface.get_layout(theirs.config.model_type).rows(ours.config))
    assert mine.keys() == {name for row in rows for name in row.ours}
    prefix = huggingface.get_layout(theirs.config.model_type).prefix
    if not any(name.startswith(prefix) for name in expected):  # a base model
        expected = {f"{prefix}{name}": p for name, p in expected.items()}
    names = {row: next(name for name in row.theirs if name in expected) for row in rows}
    assert expected.keys() == set(names.values())
    for row, name in names.items():
        close(
            row.conversion.to_theirs(*(mine[part].grad for part in row.ours)),
            expected[name].grad,
            f"gradient of {name}",
        )


@cases
def test_a_saved_folder_is_read_by_transformers(case: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    oracle(case).save_pretrained(tmp_path / "theirs")
    bundle = ch.load(tmp_path / "theirs", device="cpu")
    ch.save(bundle, tmp_path / "ours", layout="huggingface")
    kind = getattr(transformers, json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"][0])
    again = kind.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    close(bundle.model(ids()), output(again, ids()), "logits")
    one, other = (load_file(tmp_path / who / "model.safetensors") for who in ("theirs", "ours"))
    prefix = huggingface.get_layout(CASES[case][0]).prefix
    if not any(name.startswith(prefix) for name in one):  # a base model
        one = {f"{prefix}{name}": x for name, x in one.items()}
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    back = ch.load(tmp_path / "ours", device="cpu")
    assert (back.config, back.special) == (bundle.config, bundle.special)
    kept = ch.load(ch.save(bundle, tmp_path / "kept"), device="cpu")
    assert (kept.config, kept.special) == (bundle.config, bundle.special)
    assert kept.labels == back.labels == bundle.labels == (LABELS if "classes" in case else None)


@cases
@torch.no_grad()
def test_dtypes_are_kept_unless_another_is_given(case: str, tmp_path: Path) -> None:
    oracle(case).bfloat16().save_pretrained(tmp_path)
    kept = ch.load(tmp_path, device="cpu").model
    assert {p.dtype for p in kept.parameters()} == {torch.bfloat16}
    converted = ch.load(tmp_path, device="cpu", dtype="float32").model
    assert all(torch.equal(a.float(), b) for a, b in zip(kept.parameters(), converted.parameters(), strict=True))


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(ENCODERS)])
@torch.no_grad()
def test_padding_and_token_types(case: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    ours = ch.load(tmp_path, device="cpu").model
    lengths = torch.tensor([T, 4])
    mask = (torch.arange(T) < lengths[:, None]).long()
    types = torch.randint(0, 3, (B, T), generator=torch.Generator().manual_seed(5))
    typed = ours.config.types > 0
    mine = ours(ids(), lengths=lengths, types=types if typed else None)
    x = ids().masked_fill(mask == 0, 0)  # a RoBERTa counts positions by the padding token
    expected = output(theirs, x, attention_mask=mask, **({"token_type_ids": types} if typed else {}))
    if mine.ndim == 3:
        mine, expected = (torch.cat([row[:n] for row, n in zip(x, lengths, strict=True)]) for x in (mine, expected))
    close(mine, expected, "outputs")


@torch.no_grad()
def test_heads_of_other_tasks_are_ignored_by_name(tmp_path: Path) -> None:
    """BertForPreTraining has a pooler and a next-sentence head, which masked tokens do not need; its names are old."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining(config_of("bert", vocab_size=V, **BERT)).eval()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in theirs.state_dict().items()
    }
    theirs.config.save_pretrained(tmp_path)
    torch.save(old, tmp_path / "pytorch_model.bin")
    bundle = ch.load(tmp_path, device="cpu")
    close(bundle.model(ids()), theirs(ids()).prediction_logits, "logits")
    ignored = certificate(tmp_path, compare=False).ignored.keys()
    assert {name.rpartition(".")[0] for name in ignored} >= {"bert.pooler.dense", "cls.seq_relationship"}
    assert not any("predictions" in name for name in ignored)


@pytest.mark.parametrize("pool", ["mean", "first"])
@torch.no_grad()
def test_sentence_embeddings_use_the_pooling_of_the_folder(pool: str, tmp_path: Path) -> None:
    theirs = oracle("bert, sentences")
    theirs.save_pretrained(tmp_path / "a")
    modes = {"pooling_mode_mean_tokens": pool == "mean", "pooling_mode_cls_token": pool == "first"}
    (tmp_path / "a" / "1_Pooling").mkdir()
    path = tmp_path / "a" / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"word_embedding_dimension": D, **modes}))
    bundle = ch.load(tmp_path / "a", device="cpu")
    lengths = torch.tensor([T, 4])
    mask = (torch.arange(T) < lengths[:, None]).long()
    states = theirs(ids(), attention_mask=mask).last_hidden_state
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    close(bundle.model(ids(), lengths=lengths), mean if pool == "mean" else states[:, 0], "vectors")
    assert bundle.config.pool == pool
    back = ch.load(ch.save(bundle, tmp_path / "b", layout="huggingface"), device="cpu")
    assert back.config == bundle.config
    path.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(WeightsError, match=r"1_Pooling/config.json: pooling by max_tokens: expected one of cls_token"):
        ch.load(tmp_path / "a")


def folder_of(tmp_path: Path, case: str = "gpt2", write: Callable = whole, **changes: Any) -> Path:
    write(oracle(case), tmp_path)
    words = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(words | changes, indent=1))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt3"}, r"config.json:\d+: model_type is 'gpt3': expected one of .*; the nearest is gpt2"),
        ({"model_type": "x"}, r"config.json:\d+: model_type is 'x': expected one of llama, mistral, qwen2"),
        ({"model_type": "marian"}, r"config.json.*there is no such token in the vocabulary|is missing"),
        ({"scale_attn_by_inverse_layer_idx": True}, r"config.json:\d+: scale_attn_by_inverse_layer_idx is True"),
        ({"quantization_config": {"bits": 4}}, r"json:\d+: quantization_config: quantised weights are not supported"),
        ({"n_layer": 4}, r"model.safetensors: the tensor transformer.h.3.* is missing"),
        ({"n_layer": 2}, r"model.safetensors: the tensor transformer.h.2.* has no place in this model"),
        ({"n_embd": 18}, r"the tensor transformer.wte.weight has the shape \(23, 15\), expected \(23, 18\)"),
        ({"n_layer": 10**9}, r"config.json: depth=1000000000, but model.safetensors has only 40 tensors"),
        ({"n_embd": 10**12, "n_head": 1}, r"json: width=10{12}, but model.safetensors has only 4854 weights"),
        ({"vocab_size": 10**30}, r"config.json: vocab=10{30}, but model.safetensors has only"),
        ({"n_positions": 10**30}, r"config.json: a model of these sizes cannot be built \(.*[Oo]verflow"),
        ({"n_head": 0}, r"config.json:\d+: n_head=0: expected 1 or more"),
        ({"n_layer": -1}, r"config.json:\d+: n_layer=-1: expected 0 or more"),
        ({"eos_token_id": "x"}, r"config.json:\d+: eos_token_id is 'x': expected a token id"),
        ({"n_head": 4}, r"config.json: width=15 does not divide into heads=4"),
        ({"activation_function": "gelu_neu"}, r"config.json:\d+: .*the nearest.* gelu_new"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_the_weights_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        ch.load(folder_of(tmp_path, **changes), device="cpu")


def test_a_llama_is_saved_without_its_dropout(tmp_path: Path) -> None:
    sizes = {"vocab": 30, "width": 8, "depth": 1, "heads": 2, "hidden": 12}
    words = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "bias": False}
    model = ch.build("gpt", **sizes, **words, dropout=0.1)
    loaded = ch.load(ch.save(model, tmp_path / "x", layout="huggingface"), device="cpu")
    assert loaded.config.dropout == 0.0
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.model.parameters(), strict=True))


@torch.no_grad()
def test_the_oldest_gpt2_folder(tmp_path: Path) -> None:
    """Its names have no prefix, and it holds the causal mask of every block, which is not a weight."""
    theirs = oracle("gpt2")
    theirs.config.save_pretrained(tmp_path)
    tensors = {name: x.clone() for name, x in theirs.transformer.state_dict().items()}
    for i in range(DEPTH):
        tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT, dtype=torch.uint8).tril()
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, tmp_path / "model.safetensors")
    close(ch.load(tmp_path, device="cpu").model(ids()), theirs(ids()).logits, "logits")
    assert len(certificate(tmp_path, compare=False).ignored) == 2 * DEPTH


def test_a_wrong_tensor_is_named(tmp_path: Path) -> None:
    path = folder_of(tmp_path) / "model.safetensors"
    tensors, name = load_file(path), "transformer.h.1.attn.c_attn.weight"

    def check(message: str, **changes: Tensor | None) -> None:
        new = tensors | {key.replace("__", "."): x for key, x in changes.items()}
        save_file({key: x for key, x in new.items() if x is not None}, path)
        with pytest.raises(WeightsError, match=message):
            ch.load(tmp_path, device="cpu")

    key = name.replace(".", "__")
    check(
        rf"model.safetensors: the tensor {name} has the shape \(15, 15\), expected \(15, 45\)",
        **{key: torch.ones(D, D)},
    )
    check(rf"model.safetensors: the tensor {name} \(15, 45\) is missing", **{key: None})
    check(rf"the tensor {name} is torch.int64", **{key: torch.ones(D, 3 * D, dtype=torch.long)})
    check(r"the tensor score.weight \(2, 15\) has no place", score__weight=torch.ones(2, D))
    check(r"wte.weight and lm_head.weight differ", lm_head__weight=torch.ones(V, D))


def test_a_missing_or_damaged_part_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path, write=sharded)
    part = sorted(tmp_path.glob("model-*.safetensors"))[1]
    data = part.read_bytes()
    part.write_bytes(data[:-3])
    with pytest.raises(WeightsError, match=rf"{part.name}: is not a whole safetensors file"):
        ch.load(tmp_path)
    part.unlink()
    with pytest.raises(WeightsError, match=rf"index.json: the tensor \S+ has the file {part.name}, which is missing"):
        ch.load(tmp_path)
    other = sorted(tmp_path.glob("model-*.safetensors"))[0]
    shutil.copy(other, part)
    with pytest.raises(WeightsError, match=rf"{part.name}: the tensor \S+ is missing, which model.safetensors.index"):
        ch.load(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    name = next(iter(table["weight_map"]))
    for elsewhere in ("../model.safetensors", "/etc/passwd", ".."):
        index.write_text(json.dumps({"weight_map": {name: elsewhere}}))
        with pytest.raises(WeightsError, match=rf"the tensor {name} has the file .*: expected a file beside the index"):
            ch.load(tmp_path)
    index.write_text("{}")
    with pytest.raises(WeightsError, match="there is no weight_map"):
        ch.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    path = folder_of(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"model\.safetensors: is not a whole safetensors file"):
        ch.load(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_a_truncated_pickle_is_named(keep: int, tmp_path: Path) -> None:
    path = folder_of(tmp_path, write=pickled) / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin: is not a file of weights"):
        ch.load(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


@pytest.mark.parametrize("old", [True, False])
def test_code_in_a_pickle_is_not_run(old: bool, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = folder_of(tmp_path, write=pickled) / "pytorch_model.bin"
    tensors = torch.load(path, weights_only=True) | {"transformer.wte.weight": Evil()}
    torch.save(tensors, path, _use_new_zipfile_serialization=not old)
    with pytest.raises(WeightsError, match=r"pytorch_model.bin: asks to run \S*print, expected tensors only"):
        ch.load(tmp_path)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "sinusoid"}, "positions='sinusoid': a GPT-2 has .*; or positions='sinusoid': a Llama has"),
        ({"order": "post"}, "order='post'"),
        (
            {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "window": 3},
            "window=3 with bias=True: a Mistral has no biases",
        ),
        ({"mlp": "swiglu"}, "mlp='swiglu': a GPT-2 has one of gelu, gelu_tanh, relu, silu, tanh"),
    ],
)
def test_options_that_they_do_not_have_are_refused(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        ch.save(ch.build("gpt", vocab=V, width=6, depth=1, heads=3, **options), tmp_path / "new", layout="huggingface")
    with pytest.raises(WeightsError, match="deep: there is no Hugging Face layout"):
        ch.save(ch.build("deep"), tmp_path / "new", layout="huggingface")
    with pytest.raises(ValueError, match=r"layout='hugingface': expected .*; the nearest is huggingface"):
        ch.save(ch.build("deep"), tmp_path / "new", layout="hugingface")
    assert not (tmp_path / "new").exists()

"""config.json with keys that are missing, old, or contradict each other: read as transformers reads them."""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import close
from language_models import CASES, ids, oracle
from torch import Tensor, nn

import clearhead as ch
from clearhead.weights import WeightsError
from clearhead.weights.huggingface import folder as huggingface

transformers = pytest.importorskip("transformers")

OWN = {"pooling", "cut"}  # keys of files beside config.json
# Keys that are another key of theirs, one of their files' many forms, or one that only some of several types have.
RESOLVED = {
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "layer_types", "sliding_window_pattern",
    "rope_local_base_freq", "use_bidirectional_attention", "decoder_vocab_size", "num_decoder_layers",
    "scale_decoder_outputs", "dense_act_fn", "is_gated_act", "n_positions", "encoder", "decoder", "sliding_window",
}  # fmt: skip
PARTS = {"vision-encoder-decoder": {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2"}}}
SIZED = {"num_key_value_heads", "head_dim"}  # None here means what they compute from other sizes


@pytest.mark.parametrize("kind", huggingface.LAYOUT_FILES)
def test_defaults_of_missing_keys_are_theirs(kind: str) -> None:
    theirs, layout = transformers.CONFIG_MAPPING[kind](**PARTS.get(kind, {})), huggingface.get_layout(kind)
    own = layout.defaults.get(kind, {})
    for field in fields(layout.theirs):
        if field.name in OWN | RESOLVED or not hasattr(theirs, field.name):
            continue
        default = own.get(field.name, field.default)
        if default is MISSING or (field.name in SIZED and default is None):
            continue
        expected = getattr(theirs, field.name)
        if field.name == "model_type":
            default = own.get("model_type", kind)
        assert default == (tuple(expected) if isinstance(expected, list) else expected), field.name


def edited(folder: Path, drop: tuple[str, ...] = (), **changes: Any) -> Path:
    """The folder, with other keys in its config.json."""
    path = folder / "config.json"
    words = {name: x for name, x in json.loads(path.read_text()).items() if name not in drop}
    path.write_text(json.dumps(words | changes))
    return folder


ROPES: dict[str, tuple[str, dict[str, Any]]] = {  # case, keys of config.json beside its rope_parameters
    "linear over rope_parameters": ("qwen2", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "with its own base": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50.0}}),
    "with the base beside it": (
        "llama", {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 70.0}
    ),
    "llama3 over rope_parameters": ("qwen3", {"rope_scaling": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8}}),
    "an empty rope_scaling": ("llama, wide heads", {"rope_scaling": {}}),
    "olmo2": ("olmo2", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "gemma2": ("gemma2", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "gemma3": ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "gemma3, old": ("gemma3", {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_parameters": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
@torch.no_grad()
def test_rope_scaling_replaces_rope_parameters(name: str, tmp_path: Path) -> None:
    case, changes = ROPES[name]
    oracle(case).save_pretrained(tmp_path)
    folder = edited(tmp_path, **changes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    close(ch.load(folder, device="cpu").model(ids()), theirs(ids()).logits, "logits")


@pytest.mark.parametrize("case", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma2"])
@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_a_scaling_that_we_do_not_have_is_refused_beside_rope_parameters(
    case: str, kind: str, tmp_path: Path
) -> None:  # fmt: skip
    oracle(case).save_pretrained(tmp_path)
    folder = edited(tmp_path, rope_scaling={"rope_type": kind, "factor": 4.0})
    with pytest.raises(WeightsError, match=f"rope_type='{kind}': expected default, linear, llama3"):
        ch.load(folder, device="cpu")


def pairs_logits(model: nn.Module, ours: bool) -> Tensor:
    return model(ids(), source=ids(5)) if ours else model(input_ids=ids(5), decoder_input_ids=ids()).logits


@pytest.mark.parametrize(
    ("case", "drop"),
    [("gemma2", ("attn_logit_softcapping",)), ("gemma2", ("final_logit_softcapping", "attn_logit_softcapping"))],
)
@torch.no_grad()
def test_a_gemma2_without_its_caps_has_the_usual_ones(case: str, drop: tuple[str, ...], tmp_path: Path) -> None:
    oracle(case).save_pretrained(tmp_path)
    folder = edited(tmp_path, drop)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    bundle = ch.load(folder, device="cpu")
    assert bundle.config.score_cap == 50.0
    close(bundle.model(ids()), theirs(ids()).logits, "logits")


def m2m(folder: Path) -> Path:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    more = {"encoder_ffn_dim": 13, "decoder_ffn_dim": 13, "max_position_embeddings": 32, "pad_token_id": 0}
    _random(transformers.M2M100Config(vocab_size=23, d_model=12, **sizes, **more)).save_pretrained(folder)
    return edited(folder, ("activation_function",))


def t5(folder: Path, proj: str = "relu", **changes: Any) -> Path:
    sizes = {"d_model": 12, "d_kv": 4, "d_ff": 13, "num_layers": 1, "num_heads": 3, "decoder_start_token_id": 0}
    _random(transformers.T5Config(vocab_size=23, feed_forward_proj=proj, **sizes)).save_pretrained(folder)
    return edited(folder, **changes)


def _random(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    return model.eval()


SEQUENCES = {
    "m2m_100 without activation_function": m2m,
    "t5, a gate with another activation": lambda folder: t5(folder, "gated-gelu", dense_act_fn="silu"),
    "t5, another activation": lambda folder: t5(folder, dense_act_fn="gelu_new"),
    "t5, silu without a gate": lambda folder: t5(folder, "silu"),
}


@pytest.mark.parametrize("name", SEQUENCES)
@torch.no_grad()
def test_the_activation_is_theirs(name: str, tmp_path: Path) -> None:
    folder = SEQUENCES[name](tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    close(pairs_logits(ch.load(folder, device="cpu").model, ours=True), pairs_logits(theirs, ours=False), "logits")


def test_an_activation_that_a_gate_of_ours_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"dense_act_fn='gelu', is_gated_act=True: expected one of .*gelu_new"):
        ch.load(t5(tmp_path, "gated-gelu", dense_act_fn="gelu"), device="cpu")


@pytest.mark.parametrize("case", ["gemma2", "gemma3"])
def test_a_gemma_of_a_hundred_million_blocks_is_refused_at_once(case: str, tmp_path: Path) -> None:
    oracle(case).save_pretrained(tmp_path)
    folder = edited(tmp_path, ("layer_types",), num_hidden_layers=10**8)
    with pytest.raises(WeightsError, match=r"depth=100000000, but model.safetensors has only \d+ tensors"):
        ch.load(folder, device="cpu")
    folder = edited(tmp_path, layer_types=["full_attention"])
    with pytest.raises(WeightsError, match=r"layer_types has 1 words: expected num_hidden_layers=100000000"):
        ch.load(folder, device="cpu")


@pytest.mark.parametrize("value", [["bert"], {"a": 1}, 3], ids=str)
def test_a_model_type_that_is_no_word_is_refused(value: Any, tmp_path: Path) -> None:
    oracle("llama").save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"config.json.*model_type is .*: expected one of llama"):
        ch.load(edited(tmp_path, model_type=value), device="cpu")


def test_a_roberta_without_token_types_is_refused(tmp_path: Path) -> None:
    assert CASES["roberta, sentences"][0] == "roberta"
    oracle("roberta, sentences").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config.json.*type_vocab_size=0: expected 1 or more"):
        ch.load(edited(tmp_path, type_vocab_size=0), device="cpu")


def test_the_number_of_labels_of_an_old_file_wins_over_their_names(tmp_path: Path) -> None:
    oracle("bert, classes").save_pretrained(tmp_path)
    names = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    with pytest.raises(WeightsError, match="id2label has 2 names, expected one for each of the classes 0 to 4"):
        ch.load(edited(tmp_path, **names), device="cpu")
    assert ch.load(edited(tmp_path, num_labels=5), device="cpu").labels is None

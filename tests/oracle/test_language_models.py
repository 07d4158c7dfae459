"""Loaded language models against transformers': in float64, writing, and watched."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import close
from language_models import CASES, CONTEXT, ENCODERS, ids, oracle, output

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.fast import CpuDecoder
from clearhead.weights import WeightsError
from clearhead.weights.huggingface import folder as huggingface
from support.float64_torch import Float64Torch

WRITERS = [case for case in CASES if not case.startswith(ENCODERS)]
writers = pytest.mark.parametrize("case", WRITERS)
# Options that the fast decoder leaves to the model's own steps, by the first word of a case.
SLOW = ("olmo2", "gemma2", "gemma3")
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5, 3]]


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def change(model_type: str) -> None:
        folder = model_type.removesuffix("_text").replace("-", "_")
        pytest.importorskip("transformers")
        for name in (f"models.{folder}.modeling_{folder}", "modeling_rope_utils"):
            monkeypatch.setattr(import_module(f"transformers.{name}"), "torch", Float64Torch())
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)

    return change


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_in_float64(case: str, in_float64: Callable[[str], None], tmp_path: Path) -> None:
    in_float64(CASES[case][0])
    theirs = oracle(case).double()
    table = theirs.get_input_embeddings()
    if hasattr(table, "embed_scale"):  # Gemma's, rounded to float32
        table.embed_scale = torch.tensor(table.embedding_dim**0.5, dtype=torch.float64)
    theirs.save_pretrained(tmp_path)
    ours = ch.load(tmp_path, device="cpu").model
    out, their_out = ours(ids(CONTEXT)), output(theirs, ids(CONTEXT))
    assert out.dtype == their_out.dtype == torch.float64
    close(out, their_out, "output")
    probe = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (out * probe).sum().backward()
    (their_out * probe).sum().backward()
    mine, expected = dict(ours.named_parameters()), dict(theirs.named_parameters())
    layout = huggingface.get_layout(theirs.config.model_type)
    if not any(name.startswith(layout.prefix) for name in expected):  # a base model
        expected = {f"{layout.prefix}{name}": p for name, p in expected.items()}
    for row in layout.rows(ours.config):
        name = next(name for name in row.theirs if name in expected)
        close(row.conversion.to_theirs(*(mine[part].grad for part in row.ours)), expected[name].grad, name)


@writers
@torch.no_grad()
def test_greedy_continuations_are_theirs(case: str, tmp_path: Path) -> None:
    """Prompts of three lengths at once, past the window of those that have one; theirs are written one by one."""
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    model = ch.load(tmp_path, device="cpu").model
    theirs.generation_config.eos_token_id = None
    more = CONTEXT - max(map(len, PROMPTS))
    expected = []
    for prompt in PROMPTS:
        out = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=more, pad_token_id=0)
        expected.append(out[0, len(prompt) :].tolist())
    answers = search(model, {}, Plan(start=PROMPTS, end=None, limit=more))
    assert [list(answer[0].ids) for answer in answers] == expected
    state = model.start({}, rows=1, limit=CONTEXT)
    assert (CpuDecoder.of(model, state) is None) == case.startswith(SLOW)
    hook = model.blocks[0].register_forward_hook(lambda *_: None)  # the fast decoder then does not skip the blocks
    slow = search(model, {}, Plan(start=PROMPTS, end=None, limit=more))
    hook.remove()
    assert [list(answer[0].ids) for answer in slow] == expected


@writers
@torch.no_grad()
def test_continuations_in_float64_with_and_without_the_cache(
    case: str, in_float64: Callable[[str], None], tmp_path: Path
) -> None:
    """Ids as transformers' `generate` gives them, and as the whole text gives them, read again for every token."""
    in_float64(CASES[case][0])
    theirs = oracle(case).double()
    theirs.save_pretrained(tmp_path)
    model = ch.load(tmp_path, device="cpu").model
    theirs.generation_config.eos_token_id = None
    prompt = PROMPTS[0]
    more = CONTEXT - len(prompt)
    out = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=more, pad_token_id=0)
    expected = out[0, len(prompt) :].tolist()
    assert list(search(model, {}, Plan(start=[prompt], end=None, limit=more))[0][0].ids) == expected
    text = list(prompt)
    for _ in range(more):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    assert text[len(prompt) :] == expected


@writers
@torch.no_grad()
def test_watched_weights_are_theirs_and_watching_changes_no_bit(case: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    model = ch.load(tmp_path, device="cpu").model
    before, expected = model(ids()), theirs(ids(), output_attentions=True).attentions
    with ch.watch(model, "blocks.*.attn.weights", "blocks.*.attn.entropy") as tape:
        assert torch.equal(model(ids()), before)
    for i, weights in enumerate(expected):
        close(tape[f"blocks.{i}.attn.weights"].dense(), weights, f"weights of block {i}")
        entropy = torch.special.entr(weights).sum(-1)
        torch.testing.assert_close(tape[f"blocks.{i}.attn.entropy"], entropy, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window=True: windows in some of the layers are not"),
        ("phi3, a window", {"partial_rotary_factor": 1.5}, "partial_rotary_factor=1.5: expected a share"),
        ("olmo2", {"attention_bias": True}, "attention_bias is True: expected False"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation is gelu: expected gelu_pytorch_tanh"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True: expected a model that"),
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
         "layer_types=.*: expected 3 of 'sliding_attention' and 'full_attention', the latter at every n-th place"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0: a Gemma 3 has none"),
        ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
         "rope_type='linear' of layers with a window: expected 'default'"),
    ],
)  # fmt: skip
def test_what_our_gpt_does_not_have_is_refused(case: str, changes: dict, message: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    table = ch.config.load(tmp_path / "config.json")
    ch.config.write({**table, **changes}, tmp_path / "config.json")
    with pytest.raises(ValueError, match=message):
        ch.load(tmp_path, device="cpu")


@pytest.mark.parametrize("case", ["qwen3", "phi3, a window", "olmo2", "gemma2", "gemma3"])
def test_missing_and_unknown_tensors_are_refused(case: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    oracle(case).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.post_attention_layernorm.weight"
    save_file({key: x for key, x in tensors.items() if key != name}, path)
    with pytest.raises(WeightsError, match=f"the tensor {name} .* is missing"):
        ch.load(tmp_path, device="cpu")
    save_file({**tensors, "model.layers.1.extra.weight": torch.ones(2)}, path)
    with pytest.raises(WeightsError, match=r"the tensor model.layers.1.extra.weight \(2,\) has no place"):
        ch.load(tmp_path, device="cpu")


@pytest.mark.parametrize("case", ["phi3, a window", "olmo2", "gemma2", "gemma3"])
@torch.no_grad()
def test_a_model_saved_in_our_layout_is_written_as_its_family_again(case: str, tmp_path: Path) -> None:
    """Our own layout does not tell where a model came from: its options do, except for a Phi-3, which is a Mistral."""
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path / "a")
    kept = ch.load(ch.save(ch.load(tmp_path / "a", device="cpu"), tmp_path / "b"), device="cpu")
    ch.save(kept, tmp_path / "c", layout="huggingface")
    again = ch.load(tmp_path / "c", device="cpu")
    close(again.model(ids()), theirs(ids()).logits, "logits")
    kind = ch.config.load(tmp_path / "c" / "config.json")["model_type"]
    assert kind == ("mistral" if case.startswith("phi3") else CASES[case][0])


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0],
    "original_max_position_embeddings": 8, "partial_rotary_factor": 1.0,
}  # fmt: skip


def longrope(folder: Path) -> Any:
    """Write a Phi-3 whose angles are others after 8 tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {**CASES["phi3, a window"][1], "sliding_window": None, "max_position_embeddings": 32}
    config = transformers.Phi3Config(
        vocab_size=23, rope_parameters=LONGROPE, original_max_position_embeddings=8, **sizes
    )
    model = transformers.Phi3ForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def test_a_phi3_with_other_angles_for_long_texts_opens_with_transformers(tmp_path: Path) -> None:
    theirs = longrope(tmp_path)
    notice = "opened with transformers.*; reads 8 tokens at once, since its angles are others beyond"
    with pytest.warns(ch.errors.Notice, match=notice):
        bundle = ch.load(tmp_path, device="cpu")
    assert torch.equal(bundle.model(ids(8)), theirs(ids(8)).logits)
    theirs.generation_config.eos_token_id = None
    out = theirs.generate(torch.tensor([PROMPTS[0]]), do_sample=False, max_new_tokens=6, pad_token_id=0)
    answers = search(bundle.model, {}, Plan(start=PROMPTS[:1], end=None, limit=6))
    assert list(answers[0][0].ids) == out[0, 3:].tolist()
    with pytest.raises(ValueError, match="a prompt of 3 tokens and 7 more: this model reads 8 at once"):
        search(bundle.model, {}, Plan(start=PROMPTS[:1], end=None, limit=7))


def test_without_transformers_such_a_phi3_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longrope(tmp_path)
    monkeypatch.setattr("clearhead.weights.huggingface.transformers_model.find_spec", lambda name: None)
    message = (
        r"rope_type='longrope' has other angles .*opens with transformers \(pip install clearhead\[transformers\]\)"
    )
    with pytest.raises(WeightsError, match=message):
        ch.load(tmp_path, device="cpu")

"""Folders of BART, mBART, M2M-100, Pegasus and T5: logits, gradients, padding, writing and saving beside theirs."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import HIDDEN, B, T, both, close
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.fast import CpuDecoder
from clearhead.weights import WeightsError, certificate
from clearhead.weights.huggingface import folder as huggingface
from support.float64_torch import Float64Torch

V, CONTEXT, WIDTH, HEADS, S = 23, 11, 24, 4, 6
BART = {
    "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN, "pad_token_id": 1,
    "max_position_embeddings": CONTEXT, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
T5 = {
    "d_model": WIDTH, "d_kv": 5, "d_ff": HIDDEN, "num_layers": 3, "num_decoder_layers": 2, "num_heads": HEADS,
    "relative_attention_num_buckets": 6, "relative_attention_max_distance": 5, "layer_norm_epsilon": 1e-3,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("bart", BART),
    "bart, scaled": ("bart", BART | {"scale_embedding": True, "activation_function": "relu"}),
    "mbart": ("mbart", BART),
    "m2m_100": ("m2m_100", BART),
    "m2m_100, not scaled, another padding": ("m2m_100", BART | {"scale_embedding": False, "pad_token_id": 0}),
    "pegasus": ("pegasus", BART | {"pad_token_id": 0, "scale_embedding": True}),
    "t5": ("t5", T5),
    "t5, gated": ("t5", T5 | {"feed_forward_proj": "gated-gelu", "d_kv": WIDTH // HEADS}),
    "t5, no scaling": (
        "t5", T5 | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False, "scale_decoder_outputs": False}
    ),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)


def oracle(case: str) -> nn.Module:
    """A random model; norms and biases are random too, so that a lost one changes the output."""
    transformers = pytest.importorskip("transformers")
    kind, words = CASES[case]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=V, attn_implementation="eager", **words)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p += (0.1 if kind == "t5" else 0.3) * torch.randn_like(p)  # a T5 does not scale its scores
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    return model.eval()


def rows(tokens: int, seed: int) -> Tensor:
    """Random ids without 0 and 1, which are padding: some count positions by it."""
    return torch.randint(2, V, (B, tokens), generator=torch.Generator().manual_seed(seed))


LENGTHS = torch.tensor([S, 4])
MASK = (torch.arange(S) < LENGTHS[:, None]).long()


def inputs(case: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A padded source and a target, as inputs of our forward and of theirs."""
    pad = CASES[case][1]["pad_token_id"]
    source, ids = rows(S, 3).masked_fill(MASK == 0, pad), rows(T, 4)
    return (
        {"ids": ids, "source": source, "lengths": LENGTHS},
        {"input_ids": source, "attention_mask": MASK, "decoder_input_ids": ids},
    )


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def change(kind: str) -> None:
        pytest.importorskip("transformers")
        monkeypatch.setattr(import_module(f"transformers.models.{kind}.modeling_{kind}"), "torch", Float64Torch())
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)  # of M2M-100's sinusoids

    return change


@both
@cases
def test_logits_and_gradients_with_padding(case: str, dtype: torch.dtype, in_float64: Any, tmp_path: Path) -> None:
    if dtype == torch.float64:
        in_float64(CASES[case][0])
    theirs = oracle(case).to(dtype)
    theirs.save_pretrained(tmp_path)
    ours = ch.load(tmp_path, device="cpu").model
    mine, others = inputs(case)
    logits, their_logits = ours(**mine), theirs(**others).logits
    close(logits, their_logits, "logits")
    probe = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    (logits * probe).sum().backward()
    (their_logits * probe).sum().backward()
    parameters, expected = dict(ours.named_parameters()), dict(theirs.named_parameters())
    table = list(huggingface.get_layout(theirs.config.model_type).rows(ours.config))
    assert parameters.keys() == {name for row in table for name in row.ours}
    used = set()
    for row in table:
        name = next((name for name in row.theirs if name in expected), None)
        if name is None:
            assert row.theirs == ("final_logits_bias",)  # a buffer
            continue
        used.add(name)
        if not expected[name].requires_grad:
            assert row.theirs[0].endswith("embed_positions.weight")  # of a Pegasus, which are not trained there
            continue
        grad = row.conversion.to_theirs(*(parameters[part].grad for part in row.ours))
        their_grad = expected[name].grad
        if "embed" in row.ours[0]:  # torch gives the padding row of an nn.Embedding no gradient
            keep = torch.arange(len(grad)) != CASES[case][1]["pad_token_id"]
            grad, their_grad = grad[keep], their_grad[keep]
        close(grad, their_grad, f"gradient of {name}")
    assert used == expected.keys()


@cases
@torch.no_grad()
def test_greedy_answers_are_theirs(case: str, tmp_path: Path) -> None:
    """Two sources, one padded; with the KV cache, by the fast decoder where it supports the model, and by its steps."""
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    model, (mine, others) = ch.load(tmp_path, device="cpu").model, inputs(case)
    start, more = theirs.config.decoder_start_token_id, 8
    theirs.generation_config.eos_token_id = theirs.generation_config.forced_eos_token_id = None
    del others["decoder_input_ids"]
    out = theirs.generate(**others, do_sample=False, num_beams=1, max_new_tokens=more)
    expected = out[:, 1:].tolist()
    source = {name: mine[name] for name in ("source", "lengths")}
    answers = search(model, source, Plan(start=start, end=None, limit=more))
    assert [list(answer[0].ids) for answer in answers] == expected
    state = model.start(source, rows=B, limit=more)
    assert (CpuDecoder.of(model, state) is None) == case.startswith("t5")
    hook = model.decoder.blocks[0].register_forward_hook(lambda *_: None)  # the fast decoder does not skip it then
    answers = search(model, source, Plan(start=start, end=None, limit=more))
    hook.remove()
    assert [list(answer[0].ids) for answer in answers] == expected


@cases
@torch.no_grad()
def test_answers_in_float64_with_and_without_the_cache(case: str, in_float64: Any, tmp_path: Path) -> None:
    """Ids as transformers' `generate` gives them, and as whole targets give them, read again for every token."""
    in_float64(CASES[case][0])
    theirs = oracle(case).double()
    theirs.save_pretrained(tmp_path)
    model, (mine, others) = ch.load(tmp_path, device="cpu").model, inputs(case)
    start, more = theirs.config.decoder_start_token_id, CONTEXT - 1
    theirs.generation_config.eos_token_id = theirs.generation_config.forced_eos_token_id = None
    del others["decoder_input_ids"]
    expected = theirs.generate(**others, do_sample=False, num_beams=1, max_new_tokens=more)[:, 1:].tolist()
    source = {name: mine[name] for name in ("source", "lengths")}
    answers = search(model, source, Plan(start=start, end=None, limit=more))
    assert [list(answer[0].ids) for answer in answers] == expected
    target = torch.full((B, 1), start)
    for _ in range(more):
        target = torch.cat([target, model(target, **source)[:, -1:].argmax(-1)], dim=1)
    assert target[:, 1:].tolist() == expected


@cases
@torch.no_grad()
def test_watched_weights_are_theirs(case: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    model, (mine, others) = ch.load(tmp_path, device="cpu").model, inputs(case)
    expected, before = theirs(**others, output_attentions=True), model(**mine)
    names = ("encoder.blocks.*.attn.weights", "decoder.blocks.*.attn.weights", "decoder.blocks.*.cross.weights")
    with ch.watch(model, *names) as tape:
        assert torch.equal(model(**mine), before)
    groups = (expected.encoder_attentions, expected.decoder_attentions, expected.cross_attentions)
    for name, layers in zip(names, groups, strict=True):
        for i, weights in enumerate(layers):
            real = MASK.bool() if name.startswith("encoder") else torch.ones(B, T, dtype=torch.bool)
            mine_here = tape[name.replace("*", str(i))].dense()
            close(mine_here.transpose(1, 2)[real], weights.transpose(1, 2)[real], f"{name}, block {i}")


@cases
@torch.no_grad()
def test_a_saved_folder_is_read_by_transformers(case: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path / "theirs")
    bundle = ch.load(tmp_path / "theirs", device="cpu")
    ch.save(bundle, tmp_path / "ours", layout="huggingface")
    words = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert words["model_type"] == CASES[case][0]
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    mine, others = inputs(case)
    close(bundle.model(**mine), again(**others).logits, "logits")
    one, other = (load_file(tmp_path / who / "model.safetensors") for who in ("theirs", "ours"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    back = ch.load(tmp_path / "ours", device="cpu")
    assert back.config == bundle.config
    assert (back.special.pad, back.special.start) == (bundle.special.pad, bundle.special.start)
    kept = ch.load(ch.save(bundle, tmp_path / "kept"), device="cpu")  # our own layout, without the model type
    close(kept.model(**mine), bundle.model(**mine), "logits")
    ch.save(kept, tmp_path / "again", layout="huggingface")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == CASES[case][0]


@torch.no_grad()
def test_a_t5_with_an_output_layer_of_its_own(tmp_path: Path) -> None:
    """As the files of T5 v1.1 have it."""
    transformers = pytest.importorskip("transformers")
    theirs = oracle("t5, no scaling")
    head = torch.randn(V, WIDTH)
    theirs.lm_head.weight = nn.Parameter(head)
    tensors = {name: x.clone() for name, x in theirs.state_dict().items() if "embed_tokens" not in name}
    theirs.config.save_pretrained(tmp_path)
    words = json.loads((tmp_path / "config.json").read_text())
    del words["scale_decoder_outputs"]  # which older files lack
    (tmp_path / "config.json").write_text(json.dumps(words | {"tie_word_embeddings": False}))
    save_file(tensors, tmp_path / "model.safetensors")
    bundle = ch.load(tmp_path, device="cpu")
    assert not bundle.config.tied
    mine, others = inputs("t5")
    close(bundle.model(**mine), theirs(**others).logits, "logits")
    ch.save(bundle, tmp_path / "ours", layout="huggingface")
    assert torch.equal(load_file(tmp_path / "ours" / "model.safetensors")["lm_head.weight"], head)
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    close(bundle.model(**mine), again.eval()(**others).logits, "logits")


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings=False: expected one table for source, target"),
        ("bart", {"decoder_attention_heads": 2}, "encoder_attention_heads=4 and decoder_attention_heads=2: expected"),
        ("m2m_100", {"d_model": 25}, "d_model=25: expected an even width"),
        ("t5", {"feed_forward_proj": "gated-relu"}, "feed_forward_proj"),
        ("t5", {"is_decoder": True}, "is_decoder is True: expected False"),
    ],
)  # fmt: skip
def test_what_our_transformer_does_not_have_is_refused(case: str, changes: dict, message: str, tmp_path: Path) -> None:
    oracle(case).save_pretrained(tmp_path)
    words = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(words | changes))
    with pytest.raises(ValueError, match=message):
        ch.load(tmp_path, device="cpu")


@pytest.mark.parametrize("case", ["bart", "mbart", "m2m_100", "t5"])
def test_missing_and_unknown_tensors_are_refused(case: str, tmp_path: Path) -> None:
    oracle(case).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "decoder" in name and ".1." in name)
    save_file({key: x for key, x in tensors.items() if key != name}, path)
    with pytest.raises(WeightsError, match=f"the tensor {name} .* is missing"):
        ch.load(tmp_path, device="cpu")
    save_file({**tensors, "model.encoder.extra": torch.ones(2)}, path)
    with pytest.raises(WeightsError, match=r"the tensor model.encoder.extra \(2,\) has no place"):
        ch.load(tmp_path, device="cpu")


@cases
def test_certificates(case: str, tmp_path: Path) -> None:
    oracle(case).save_pretrained(tmp_path)
    result = certificate(tmp_path)
    assert result.note is None
    assert result.difference < 1e-4

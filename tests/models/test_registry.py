"""Laws that every registered family must obey, each family with one or more sets of options.

A new family needs a line in CASES: what it reads and can do tells the rest. Inputs of images and vectors are its own
`example_inputs`.

The shape checker that tests install cannot be traced, so the models are exported by this file run as a script.
"""

import inspect
import itertools
import json
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Attention, Positions
from clearhead.models import CAPABILITIES, FAMILIES, INPUT_KEYS, family, family_of

B, T, S, V, W = 2, 7, 5, 11, 13  # rows, tokens, source tokens, vocabulary, target vocabulary
PIXELS = 24  # height and width of images, if the model takes any
WORDS = {"vocab": V, "context": 9, "width": 12}
ONE = {**WORDS, "dropout": 0.0}  # one vocabulary for source and target
PAIR = {**ONE, "target_vocab": W}
LLAMA = {"positions": "rotary", "kv_heads": 1, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False}
GEMMA = {
    **LLAMA, "tied": True, "depth": 2, "heads": 3, "head": 6, "order": "both", "norm": "rms_plus_one", "mlp": "geglu",
    "scaled": True, "window": 3, "full_every": 2, "scale": 0.3,
}  # fmt: skip
LIKE_T5 = {
    "positions": "relative", "buckets": 8, "reach": 6, "order": "pre", "norm": "rms", "mlp": "geglu", "bias": False,
    "score": "dot", "scaled": False, "readout_scaled": True,
}  # fmt: skip
LLAMA_BERT = {"positions": "rotary", "order": "pre", "norm": "rms", "mlp": "swiglu", "types": 0}
PICTURES = {"classes": 3, "size": 24, "patch": 8}
SMALL_VIT = {**PICTURES, "width": 12, "depth": 1, "heads": 3}
RESNET_STEM = {"stem": "resnet", "stem_width": 5, "head": "mlp"}
POST = {"order": "post", "norm": "rms", "mlp": "swiglu", "bias": False}
LOOK = {**WORDS, "dropout": 0.0}
TINY_RESNET = {"name": "resnet", "width": 4, "depths": [1, 1], "stem": "small"}
TINY_VIT = {"name": "vit", "size": 24, "patch": 8, "width": 12, "depth": 1, "heads": 3, "pool": "mean"}
TINY_CONVNEXT = {"name": "convnext", "width": 4, "depths": [1, 1], "kernel": 3, "layer_scale": 0.5}
TINY_MOBILENET = {
    "name": "mobilenet", "width": 4, "widths": [4, 6], "depths": [1, 2], "strides": [1, 2], "hidden": 0,
}  # fmt: skip
CLS = {"pool": "cls", "eps": 1e-3}
LIKE_GPT2 = {
    "places": "none", "positions": "learned", "mlp": "gelu_tanh", "special": True, "scaled": False, "eps": 1e-3,
}  # fmt: skip
CASES: dict[str, tuple[str, dict]] = {
    "gpt": ("gpt", {**WORDS, "depth": 2, "heads": 3, "hidden": 13}),
    "gpt like Llama": ("gpt", {**WORDS, **LLAMA, "depth": 2, "heads": 3}),
    "gpt, post, relative, cosine": (
        "gpt",
        {**WORDS, "depth": 1, "heads": 3, "order": "post", "positions": "relative", "score": "cosine"},
    ),
    "gpt, window, wide heads, qkv biased": (
        "gpt",
        {**WORDS, **LLAMA, "depth": 2, "heads": 2, "head": 10, "window": 3, "bias": "qkv", "base": 50.0},
    ),
    "gpt, stretched": (
        "gpt",
        {**WORDS, **LLAMA, "depth": 1, "heads": 1, "scaling": "llama3", "factor": 2.0, "trained": 4},
    ),
    "gpt like Gemma": ("gpt", {**WORDS, **GEMMA, "score_cap": 3.0, "logit_cap": 2.0}),
    "gpt like Gemma 3": ("gpt", {**WORDS, **GEMMA, "qk_norm": "head", "window_base": 100.0}),
    "gpt like OLMo 2": ("gpt", {**WORDS, **LLAMA, "depth": 1, "heads": 3, "order": "output", "qk_norm": "width"}),
    "gpt like Qwen3, half of the columns rotated": (
        "gpt",
        {**WORDS, **LLAMA, "depth": 2, "heads": 3, "qk_norm": "head", "rotated": 2},
    ),
    "gpt without blocks": ("gpt", {**WORDS, "depth": 0, "heads": 1}),
    "bert": ("bert", {**ONE, "depth": 2, "heads": 3, "hidden": 13}),
    "bert, two classes": ("bert", {**ONE, "depth": 2, "heads": 3, "answer": "class", "classes": 2}),
    "bert, sentence, mean": (
        "bert",
        {**ONE, "depth": 1, "heads": 3, "answer": "sentence", "pool": "mean", "pooler": False},
    ),
    "bert like RoBERTa": ("bert", {**ONE, "depth": 1, "heads": 3, "offset": 2}),
    "bert like DistilBERT, two classes": (
        "bert",
        {**ONE, "depth": 1, "heads": 3, "types": 0, "answer": "class", "classes": 2, "pooler_activation": "relu"},
    ),
    "bert like Llama": ("bert", {**ONE, **LLAMA_BERT, "depth": 1, "heads": 3}),
    "transformer": ("transformer", {**PAIR, "depth": 2, "heads": 3, "hidden": 13, "positions": "learned"}),
    "transformer like Llama": ("transformer", {**PAIR, **LLAMA, "order": "pre", "depth": 1, "heads": 3}),
    "transformer like BART": (
        "transformer",
        {**ONE, "depth": 1, "heads": 3, "positions": "learned", "offset": 2, "embed_norm": True},
    ),
    "transformer like T5": ("transformer", {**ONE, **LIKE_T5, "depth": 2, "heads": 3, "head": 5}),
    "transformer, one table": ("transformer", {**ONE, "depth": 1, "heads": 3}),
    "rnn": ("rnn-seq2seq", {**PAIR, "hidden": 14}),
    "rnn, deep, lstm, dot": ("rnn-seq2seq", {**PAIR, "hidden": 14, "depth": 2, "cell": "lstm", "attention": "dot"}),
    "rnn, bilinear, fed": (
        "rnn-seq2seq",
        {**ONE, "hidden": 15, "attention": "bilinear", "feed": "input", "bidirectional": False, "tied": False},
    ),
    "rnn, one vector": ("rnn-seq2seq", {**PAIR, "hidden": 14, "attention": "none", "cell": "lstm"}),
    "rnn, one vector, fed": ("rnn-seq2seq", {**PAIR, "hidden": 14, "attention": "none", "feed": "input", "depth": 2}),
    "vit": ("vit", {**PICTURES, "width": 12, "depth": 2, "heads": 3, "hidden": 13}),
    "vit, convolutions, rotary, pooled by attention": (
        "vit",
        {**SMALL_VIT, "stem": "conv", "patch": 4, "positions": "rotary", "pool": "attention", "channels": 1},
    ),
    "vit, resnet, registers, both, mlp head, layer scale": (
        "vit",
        {**SMALL_VIT, **RESNET_STEM, "positions": "sincos2d", "registers": 2, "pool": "both", "layer_scale": 0.1},
    ),
    "vit, post, concatenated, mean": (
        "vit",
        {**SMALL_VIT, **POST, "size": (16, 32), "join": "concatenate", "pool": "mean"},
    ),
    "resnet": ("resnet", {"classes": 3, "width": 4, "depths": (1, 2), "channels": 1}),
    "resnet, bottleneck, attention": (
        "resnet",
        {"classes": 3, "width": 4, "depths": (1, 1), "block": "bottleneck", "stem": "small", "attention": (0, 1)},
    ),
    "vit without an output layer": (
        "vit",
        {**SMALL_VIT, "classes": 0, "head": "mlp", "registers": 1},
    ),
    "convnext": ("convnext", {"classes": 3, "width": 4, "depths": (1, 2), "kernel": 3, "layer_scale": 0.5}),
    "mobilenet": (
        "mobilenet",
        {"classes": 3, "width": 4, "widths": (4, 6), "depths": (1, 2), "strides": (1, 2), "hidden": 12, "dropout": 0.0},
    ),
    "captioner, rnn": ("captioner", {**LOOK, "decoder": "rnn", "encoder": TINY_RESNET}),
    "captioner, rnn, hard, gru, deep": (
        "captioner",
        {**LOOK, "decoder": "rnn", "attention": "hard", "cell": "gru", "depth": 2, "encoder": TINY_VIT, "tied": False},
    ),
    "captioner, rnn, one vector": (
        "captioner",
        {**LOOK, "decoder": "rnn", "attention": "none", "encoder": TINY_MOBILENET, "hidden": 10},
    ),
    "captioner": (
        "captioner",
        {**LOOK, "depth": 2, "encoder_depth": 1, "heads": 3, "hidden": 13, "encoder": TINY_CONVNEXT},
    ),
    "captioner, no convolution": (
        "captioner",
        {**LOOK, "heads": 3, "order": "post", "places": "none", "positions": "learned", "encoder": TINY_VIT},
    ),
    "captioner, ViT and GPT-2": (
        "captioner",
        {**LOOK, **LIKE_GPT2, "depth": 2, "heads": 3, "bridge": "linear", "encoder": {**TINY_VIT, **CLS, "width": 6}},
    ),
    "captioner, ViT and GPT-2, equal widths": (
        "captioner",
        {**LOOK, **LIKE_GPT2, "heads": 2, "bridge": "none", "encoder": {**TINY_VIT, **CLS, "registers": 1}},
    ),
    "reader, sum": ("reader", {**WORDS, "mix": "sum", "hidden": 13}),
    "reader, forget": ("reader", {**WORDS, "mix": "forget", "heads": 3, "gamma": (0.9, 0.5, 1.0)}),
    "reader, learns to forget": ("reader", {**WORDS, "mix": "forget", "heads": 3, "learned": True}),
    "reader, attention": ("reader", {**WORDS, "heads": 3}),
    "reader, attention, alibi": ("reader", {**WORDS, "heads": 3, "positions": "alibi", "norm": "rms"}),
    "deep, plain": ("deep", {"width": 5, "depth": 3, "connect": "plain"}),
    "deep, dense": ("deep", {"width": 5, "depth": 3, "connect": "dense", "norm": "rms", "activation": "tanh"}),
    "deep, residual": ("deep", {"width": 5, "depth": 3, "norm": "layer"}),
    "mlp": ("mlp", {"inputs": 3, "outputs": 4, "hidden": 7, "depth": 2}),
    "mlp, no hidden layer": ("mlp", {"inputs": 3, "outputs": 1, "depth": 0}),
}
MODELS = {case: ch.build(name, **options) for case, (name, options) in CASES.items()}
TRANSLATIONS = [case for case, model in MODELS.items() if model.reads == "pairs"]
CAPTIONERS = [case for case, model in MODELS.items() if model.reads == "captions"]
WRITERS = [case for case, model in MODELS.items() if model.can & {"generate", "translate", "caption"}]
SEQUENCES = [case for case, model in MODELS.items() if model.reads in ("tokens", "pairs", "captions")]
CAUSAL = [case for case in SEQUENCES if MODELS[case].can & {"predict", "translate", "caption"}]
ENCODERS = [case for case in SEQUENCES if case not in CAUSAL]
FILLERS = [case for case in ENCODERS if "fill" in MODELS[case].can]
CLASSIFIERS = [case for case, model in MODELS.items() if "classify" in model.can]
FIRST = {name: case for case, (name, _) in reversed(CASES.items())}.values()  # the first case of each family


def first(cases: list[str]) -> list:
    """Parameters for these cases; all but the first of each family are slow."""
    return [case if case in FIRST else pytest.param(case, marks=pytest.mark.slow) for case in cases]


every = pytest.mark.parametrize("case", CASES)
causal = pytest.mark.parametrize("case", CAUSAL)
encoders = pytest.mark.parametrize("case", ENCODERS)
translations = pytest.mark.parametrize("case", TRANSLATIONS)
writers = pytest.mark.parametrize("case", WRITERS)
prompted = pytest.mark.parametrize("case", [case for case in WRITERS if "generate" in MODELS[case].can])
Inputs = dict[str, Tensor]


def build(case: str, seed: int = 0) -> nn.Module:
    name, options = CASES[case]
    torch.manual_seed(seed)
    model = ch.build(name, **options)
    with torch.no_grad():  # a parameter that starts at zero, such as a bias, would not be missed
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.eval()


def inputs(case: str, rows: int = B, seed: int = 1) -> Inputs:
    """Random arguments of a model's forward, by name: for sequences also lengths, types and a source."""
    generator = torch.Generator().manual_seed(seed)
    if case not in SEQUENCES:
        return MODELS[case].example_inputs(rows, PIXELS, generator)
    x = {"ids": torch.randint(0, answers(case), (rows, T), generator=generator)}
    if case in ENCODERS:
        x["lengths"] = torch.randint(2, T + 1, (rows,), generator=generator)
        if CASES[case][1].get("types", 2):
            x["types"] = torch.randint(0, 2, (rows, T), generator=generator)
    if case in CAPTIONERS:
        x["images"] = MODELS[case].example_inputs(rows, PIXELS, generator)["images"]
    if case in TRANSLATIONS:
        x["source"] = torch.randint(0, V, (rows, S), generator=generator)
        x["lengths"] = torch.randint(1, S + 1, (rows,), generator=generator)
    return x


def answers(case: str) -> int:
    """The size of the vocabulary that a model predicts."""
    return CASES[case][1].get("target_vocab", V)


def shape(case: str) -> tuple[int, ...]:
    """The shape of the output for B rows."""
    c = MODELS[case].config
    if case in CAUSAL or case in FILLERS:
        return B, T, answers(case)
    return B, c.classes if case in CLASSIFIERS else getattr(c, "outputs", None) or c.width


def some(x: Inputs, rows: slice) -> Inputs:
    return {name: part[rows] for name, part in x.items()}


def cast(x: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: part.to(dtype) if part.is_floating_point() else part for name, part in x.items()}


def bits(x: Tensor) -> bytes:
    return x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_registered_family_is_tested():
    assert {name for name, _ in CASES.values()} == set(FAMILIES) == set(ch.families())
    assert all(ch.families().values())


@every
def test_it_builds_and_runs(case):
    model, x = build(case), inputs(case)
    assert family_of(model) == CASES[case][0]
    assert isinstance(model, family(CASES[case][0])[0])
    out = model(**x)
    assert out.shape == shape(case)
    assert out.dtype == torch.float32
    assert bool(out.isfinite().all())
    if case in SEQUENCES:
        assert torch.equal(model.head(model.states(**x)), out)
        assert case in ENCODERS or model.head.bias is None
    assert model.bfloat16()(**cast(x, torch.bfloat16)).dtype == torch.bfloat16


PROMISED = {
    "predict": ("states", "head"),
    "generate": ("start", "read", "step"),
    "translate": ("start", "step"),
    "caption": ("start", "step"),
    "fill": ("states", "head"),
    "classify": (),
    "encode": ("encode",),
    "embed": (),
    "map": (),
    "project": ("project",),
}


@every
def test_it_has_the_methods_that_its_capabilities_promise(case):
    model = build(case)
    assert set(PROMISED) == set(CAPABILITIES)
    assert model.can
    assert all(hasattr(model, method) for capability in model.can for method in PROMISED[capability])
    assert all(hasattr(model, method) for method in model.methods)
    assert INPUT_KEYS[model.reads] in inspect.signature(model.forward).parameters
    examples = model.example_inputs(3, PIXELS, torch.Generator().manual_seed(0))
    assert INPUT_KEYS[model.reads] in examples
    assert len(model(**examples)) == 3


@every
def test_every_parameter_gets_a_gradient(case):
    model, x = build(case).double().train(), inputs(case)
    out = model(**cast(x, torch.float64))
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert bool(p.grad.isfinite().all()), name
        # A bias of all keys moves all scores of a query alike, which softmax cannot see; a bias in front of a 1x1
        # convolution without an activation moves all places alike, which the next batch norm takes away.
        assert p.grad.abs().max() > 1e-9 or name.endswith(("key.bias", "narrow.norm.bias")), name


@causal
@pytest.mark.parametrize("cut", [1, 4, 6])
def test_later_tokens_do_not_change_earlier_outputs(case, cut):
    model, x = build(case), inputs(case)
    ids, given = x["ids"], {name: part for name, part in x.items() if name != "ids"}
    other = torch.cat([ids[:, :cut], (ids[:, cut:] + 3) % V], dim=1)
    before, after = model(**x), model(other, **given)
    torch.testing.assert_close(after[:, :cut], before[:, :cut], rtol=0.0, atol=1e-5)
    torch.testing.assert_close(model(ids[:, :cut], **given), before[:, :cut], rtol=0.0, atol=1e-5)
    assert not torch.allclose(after[:, cut:], before[:, cut:])


@encoders
def test_an_encoder_is_bidirectional_and_ignores_padding(case):
    model, x = build(case), inputs(case, rows=3)
    answer, ids, lengths = model(**x), x["ids"], x["lengths"]
    exists = torch.arange(T) < lengths[:, None]
    tokens = exists if case in FILLERS else slice(None)
    padded = model(**{**x, "ids": torch.where(exists, ids, (ids + 4) % V)})
    torch.testing.assert_close(padded[tokens], answer[tokens], rtol=0.0, atol=1e-5)
    for row, n in enumerate(lengths.tolist()):
        alone = model(**{name: part[row : row + 1, :n] for name, part in x.items() if name != "lengths"})[0]
        torch.testing.assert_close(alone, answer[row, :n] if case in FILLERS else answer[row], rtol=0.0, atol=1e-5)
    last = torch.arange(T) == lengths[:, None] - 1
    moved = model(**{**x, "ids": torch.where(last, (ids + 4) % V, ids)})
    assert not torch.allclose(moved[:, 0], answer[:, 0], atol=1e-3)


@every
def test_other_rows_of_a_batch_do_not_change_an_output(case):
    model, x = build(case), inputs(case, rows=3)
    other_rows = inputs(case, rows=4, seed=5)
    together = model(**x)
    others = model(**{name: torch.cat([x[name][:1], other_rows[name]]) for name in x})
    for row in range(3):
        torch.testing.assert_close(model(**some(x, slice(row, row + 1)))[0], together[row], rtol=0.0, atol=1e-5)
    torch.testing.assert_close(others[0], together[0], rtol=0.0, atol=1e-5)


@translations
def test_the_source_changes_the_logits_and_its_padding_does_not(case):
    model, x = build(case), inputs(case, rows=3)
    ids, source, lengths = x.values()
    answer = model(**x)
    exists = torch.arange(S) < lengths[:, None]
    other = torch.where(exists, source, (source + 4) % V)
    longer = torch.cat([other, source[:, :2]], dim=1)
    torch.testing.assert_close(model(ids, source=other, lengths=lengths), answer, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(model(ids, source=longer, lengths=lengths), answer, rtol=0.0, atol=1e-5)
    for row, length in enumerate(lengths.tolist()):
        alone = model(ids[row : row + 1], source=source[row : row + 1, :length])[0]
        torch.testing.assert_close(alone, answer[row], rtol=0.0, atol=1e-5)
    moved = model(ids, source=torch.where(exists, (source + 4) % V, source), lengths=lengths)
    assert not torch.allclose(moved[:, 0], answer[:, 0], atol=1e-3)


@writers
@pytest.mark.parametrize("steps", [[1] * T, [3, 1, 1, 2], [T]], ids=str)
@torch.no_grad()
def test_decoding_steps_equal_the_forward_pass(case, steps):
    model, x = build(case), inputs(case)
    ids, given = x.pop("ids"), x
    state = model.start(given, len(ids), limit=T)
    assert state.rows == B
    for at, part in zip(itertools.accumulate(steps), ids.split(steps, dim=1), strict=True):
        logits, state = model.step(part, state)
        torch.testing.assert_close(logits, model(ids[:, :at], **given)[:, at - part.shape[1] :], rtol=0.0, atol=1e-5)


@prompted
@torch.no_grad()
def test_prompts_of_different_lengths_are_read_as_if_each_were_alone(case):
    """Rows with different prompts are dropped and duplicated, and continue from their own positions."""
    model, counts = build(case), [4, 0, 2]
    ids = inputs(case, rows=3)["ids"]
    state = model.start({}, 3, limit=T)
    model.read(ids[:, :4], state, torch.tensor(counts))
    assert state.kv.caches[0].at.tolist() == counts
    texts = [row[:n].tolist() for row, n in zip(ids, counts, strict=True)]
    for token, index in enumerate(([0, 1, 2], [2, 1, 1], [1, 0])):
        new = (torch.arange(len(texts)) * 3 + token) % V
        texts = [[*text, int(one)] for text, one in zip(texts, new, strict=True)]
        logits, state = model.step(new[:, None], state)
        for row, text in enumerate(texts):
            torch.testing.assert_close(logits[row, 0], model(torch.tensor([text]))[0, -1], rtol=0.0, atol=1e-5)
        state.reorder(torch.tensor(index))
        texts = [texts[i] for i in index]


@prompted
@torch.no_grad()
def test_watching_changes_no_bit_of_a_decoding_step(case):
    """Joined products stay joined when one of them is watched."""
    model, ids = build(case), inputs(case)["ids"]

    def decoded() -> bytes:
        state = model.start({}, B, limit=T)
        return bits(torch.cat([model.step(part, state)[0] for part in ids.split([3, 1, 1, 2], dim=1)], dim=1))

    before = decoded()
    with ch.watch(model, "**") as tape:
        during = decoded()
    assert during == before
    assert all(len(tape.calls(name)) == 4 for name in tape.names if name.endswith(("attn.query", "mlp.up")))


@pytest.mark.parametrize(("window", "positions", "ends"), [(None, "rotary", 1), (3, "learned", 1), (3, "rotary", 0)])
@torch.no_grad()
def test_only_a_window_without_absolute_positions_reads_beyond_the_context(window, positions, ends):
    model = ch.build("gpt", **WORDS, depth=1, heads=3, positions=positions, window=window).eval()
    model.start({}, 1, limit=9)
    if ends:
        with pytest.raises(ValueError, match="10 tokens, prompt and answer together: this model reads 9 at once"):
            model.start({}, 1, limit=10)
        return
    ids, state = torch.arange(30)[None] % V, model.start({}, 1, limit=30)
    logits = torch.cat([model.step(part, state)[0] for part in ids.split(7, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(ids), rtol=0.0, atol=1e-5)
    # Tokens before the window of one layer have no influence, wherever the text begins.
    torch.testing.assert_close(model(ids[:, 20:])[:, 2:], logits[:, 22:], rtol=0.0, atol=1e-5)


@writers
@torch.no_grad()
def test_rows_of_a_state_can_be_expanded_and_reordered(case):
    """Rows are doubled, change places within their sources, and are dropped."""
    model, x = build(case), inputs(case, rows=3)
    texts, given = x.pop("ids")[:, :1], x
    state = model.start(given, len(texts), limit=T)
    model.step(texts, state)
    state.expand(2)
    row, texts = torch.arange(3).repeat_interleave(2), texts.repeat_interleave(2, dim=0)
    for token, index in enumerate(([1, 0, 2, 2, 5, 4], [0, 0, 3, 2, 4, 5], [5, 4, 1, 1], [0, 1, 2, 3])):
        new = ((torch.arange(len(texts)) * 5 + token) % V)[:, None]
        texts = torch.cat([texts, new], dim=1)
        logits, state = model.step(new, state)
        expected = model(texts, **{name: part[row] for name, part in given.items()})[:, -1:]
        torch.testing.assert_close(logits, expected, rtol=0.0, atol=1e-5)
        kept = torch.tensor(index)
        state.reorder(kept)
        row, texts = row[kept], texts[kept]
        assert state.rows == len(index)


@pytest.mark.parametrize("case", [case for case in (*CAUSAL, *FILLERS) if MODELS[case].reads == "tokens"])
def test_packed_documents_are_read_as_if_each_were_alone(case):
    model, x = build(case), inputs(case)["ids"]
    documents = torch.tensor([[0, 0, 1, 1, 1, 1, 2], [5, 5, 5, 5, 5, 7, 7]])
    at = torch.tensor([[0, 1, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 0, 1]])
    packed = model(x, documents=documents, at=at)
    for row, number in ((0, 0), (0, 1), (0, 2), (1, 5), (1, 7)):
        here = documents[row] == number
        apart = model(x[row, here][None])[0]
        torch.testing.assert_close(packed[row, here], apart, rtol=0.0, atol=1e-5)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_saving_and_loading_is_the_identity_to_the_bit(case, dtype, tmp_path):
    model, x = build(case).to(dtype), cast(inputs(case), dtype)
    ch.save(model, tmp_path / "model")
    generator = torch.get_rng_state()
    again = ch.load(tmp_path / "model", device="cpu")
    assert torch.equal(generator, torch.get_rng_state())  # no random weights were made only to be replaced
    assert again.config == model.config == again.model.config
    assert not again.model.training
    ours, theirs = (dict(m.named_parameters(remove_duplicate=False)) for m in (model, again.model))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert (ours[name].dtype, bits(ours[name])) == (theirs[name].dtype, bits(theirs[name])), name
        assert theirs[name].requires_grad, name
    ties = [[[n for n, q in m.items() if q is p] for p in m.values()] for m in (ours, theirs)]
    assert ties[0] == ties[1]
    for (name, a), (_, b) in zip(model.named_buffers(), again.model.named_buffers(), strict=True):
        assert (a.dtype, bits(a)) == (b.dtype, bits(b)), name  # constants too, which are not saved
    assert bits(again.model(**x)) == bits(model(**x))


@every
def test_watching_changes_no_bit(case):
    model, x = build(case), inputs(case)
    before = model(**x)
    with ch.watch(model, "**") as tape:
        during = model(**x)
    assert bits(during) == bits(before)
    assert bits(model(**x)) == bits(before)
    assert not [hook for m in model.modules() for hook in (*m._forward_hooks, *m._forward_pre_hooks)]
    assert all(m.tap is None for m in model.modules() if isinstance(m, Attention))
    # Containers have no output, nor has the torch module of an RNN, of which only the weights are used step by step.
    containers = nn.ModuleList | Positions | nn.RNNBase
    without_output = {n for n, m in model.named_modules() if isinstance(m, containers)}
    without_output |= {"encoder"} if case in CAPTIONERS else set()  # which is asked for its grid
    assert {name for name in tape.names if name not in tape} <= without_output
    for name, m in model.named_modules():
        if isinstance(m, Attention):
            sums = tape[f"{name}.weights"].dense().sum(-1)
            source = case not in SEQUENCES or (case in CAPTIONERS and not name.startswith("decoder"))
            queries = sums.shape[-1] if source else S if name.startswith("encoder") else T
            torch.testing.assert_close(sums, torch.ones(B, m.heads, queries))


def loss(model: nn.Module, x: Inputs, y: Tensor) -> Tensor:
    out = model(**x)
    return F.mse_loss(out, y) if y.is_floating_point() else F.cross_entropy(out.flatten(0, -2), y.flatten())


def targets(case: str) -> Tensor:
    """Targets to overfit."""
    if shape(case)[:-1] == (B,):
        return torch.arange(B) % 2 if case in CLASSIFIERS else torch.randn(shape(case))
    return next(iter(inputs(case, seed=9).values()))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", first([case for case in CASES if case != "gpt without blocks"]))  # it has no context
def test_it_overfits_one_batch(case):
    model, x, y = build(case).train(), inputs(case), targets(case)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    first = float(loss(model, x, y).detach())
    for _ in range(80):
        optimiser.zero_grad()
        loss(model, x, y).backward()
        optimiser.step()
    assert float(loss(model, x, y).detach()) < 0.1 * first


@every
def test_an_unknown_option_or_value_raises_with_the_nearest_names(case):
    name, options = CASES[case]
    known = {field.name for field in fields(family(name)[1])}
    option, misspelt = ("width", "widht") if "width" in known else ("hidden", "hiden")
    with pytest.raises(ValueError, match=rf"unknown key model\.{misspelt}; the nearest (is|are) {option}"):
        ch.build(name, **options, **{misspelt: 3})
    with pytest.raises(ValueError, match=rf"model\.{option} = '12': expected a whole number"):
        ch.build(name, **options | {option: "12"})
    with pytest.raises(ValueError, match=f"{option}=0: expected 1 or more"):
        ch.build(name, **options | {option: 0})


WRONG = {
    ("gpt", "positions", "sinusiod"): r"the nearest is sinusoid",
    ("gpt", "positions", "sincos2d"): r"expected one of 'none', 'sinusoid'",
    ("gpt", "norm", "lyer"): r"the nearest is layer",
    ("gpt", "heads", 5): r"width=12 does not divide into heads=5",
    ("gpt", "kv_heads", 2): r"kv_heads=2 does not divide heads=3",
    ("gpt", "depth", -1): r"depth=-1: expected 0 or more",
    ("gpt", "hidden", 0): r"hidden=0: expected 1 or more",
    ("gpt", "head", 0): r"head=0: expected 1 or more",
    ("gpt", "window", 0): r"window=0: expected 1 or more",
    ("gpt", "bias", "kv"): r"model\.bias",
    ("gpt", "base", 500.0): r"base, scaling, rotated and window_base are for positions='rotary', not 'learned'",
    ("gpt", "scaling", "yearn"): r"the nearest is yarn",
    ("gpt", "dropout", 1.0): r"dropout=1.0: expected a share",
    ("bert", "answer", "word"): r"the nearest is words",
    ("bert", "classes", 2): r"classes=2 are for answer='class', and this is 'words'",
    ("bert", "types", -1): r"types=-1: expected 0 or more",
    ("reader", "mix", "som"): r"the nearest is sum",
    ("reader", "gamma", 0.0): r"gamma=0.0: expected one number in \(0, 1\], or 3, one per head",
    ("reader", "gamma", (0.5, 0.9)): r"gamma=\(0.5, 0.9\): expected one number",
    ("reader", "learned", True): r"only mix='forget' has a gamma to learn",
    ("vit", "heads", 5): r"width=12 does not divide into heads=5",
    ("vit", "size", 20): r"size=20 does not divide into patches of 8 x 8",
    ("vit", "pool", "men"): r"the nearest is mean",
    ("vit", "positions", "alibi"): r"expected one of 'none', 'learned'",
    ("vit", "join", "concat"): r"the nearest is concatenate",
    ("vit", "skip", 1.0): r"skip=1.0: expected a share",
    ("resnet", "depths", (2, 0)): r"depths=\(2, 0\): expected the number of blocks",
    ("resnet", "attention", (2,)): r"attention=\(2,\): expected stages from 0 to 1",
    ("resnet", "block", "bottelneck"): r"the nearest is bottleneck",
    ("resnet", "shrink", "frist"): r"the nearest is first",
    ("convnext", "kernel", 4): r"kernel=4: expected an odd number",
    ("convnext", "depths", ()): r"depths=\(\): expected the number of blocks",
    ("convnext", "skip", 1.0): r"skip=1.0: expected a share",
    ("mobilenet", "strides", (1,)): r"strides=\(1,\): expected one number per stage",
    ("mobilenet", "depths", (1, 0)): r"depths=\(1, 0\): expected 1 or more for each stage",
    ("captioner", "attention", "hard"): r"attention='hard' is for decoder='rnn'",
    ("captioner", "heads", 5): r"width=12 does not divide into heads=5",
    ("captioner", "width", 18): r"width=18: expected a multiple of 4 for places='sincos2d'",
    ("captioner", "bridge", "liner"): r"the nearest is linear",
    ("captioner", "bridge", "none"): r"bridge='none': the encoder has 8 channels, expected width=12",
    ("captioner", "special", True): r"special=True: a convnext has no tokens without a place: expected a vit",
    ("deep", "connect", "residul"): r"the nearest is residual",
    ("deep", "depth", -1): r"depth=-1: expected 0 or more",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: " ".join(map(str, wrong)))
def test_a_wrong_value_raises_with_what_was_expected(wrong):
    name, key, value = wrong
    options = CASES[{"reader": "reader, attention", "deep": "deep, plain"}.get(name, name)][1]
    with pytest.raises(ValueError, match=WRONG[wrong]):
        ch.build(name, **options | {key: value})


CONTRADICTIONS = [
    ("reader", {"vocab": V, "mix": "sum", "positions": "rotary"}, "'rotary' act inside attention: with mix='sum'"),
    ("reader", {"vocab": V, "mix": "forget", "learned": True, "gamma": 1.0}, "1 is the end of its range"),
    ("bert", {"vocab": V, "answer": "class"}, "answer='class' needs the number of classes"),
    ("vit", {"size": 24, "patch": 6, "stem": "conv"}, "patch=6 with stem='conv': it halves the grid, expected 2, 4, 8"),
    ("vit", {"join": "concatenate", "positions": "rotary"}, "is for positions learned and sincos2d, not 'rotary'"),
    ("vit", {"width": 12, "heads": 2, "positions": "rotary"}, "the head width 6 is not a multiple of 4"),
    ("gpt", {"vocab": V, "width": 9, "heads": 3, "positions": "rotary"}, r"rotary.*pairs of columns"),
]


@pytest.mark.parametrize(("name", "options", "problem"), CONTRADICTIONS)
def test_options_that_contradict_each_other_raise(name, options, problem):
    with pytest.raises(ValueError, match=problem):
        ch.build(name, **options)


def test_an_unknown_family_raises_with_the_nearest_names():
    names = ", ".join(FAMILIES)
    with pytest.raises(ValueError, match=f"no model 'GTP': expected one of {names}; the nearest is gpt"):
        ch.build("GTP", vocab=V)
    with pytest.raises(ValueError, match="Linear belongs to no known family"):
        family_of(nn.Linear(2, 2))


def test_public_folders_are_modules_and_verbs_are_functions():
    assert isinstance(ch.models, types.ModuleType)
    assert isinstance(ch.training, types.ModuleType)
    assert isinstance(ch.train, types.FunctionType)
    assert isinstance(ch.families, types.FunctionType)


def exported(case: str) -> dict[str, float]:
    """The largest difference of the exported model from the eager one, for two sizes of a batch."""
    model, rows = build(case).requires_grad_(False), torch.export.Dim("rows", min=1, max=64)

    def given(n: int) -> Inputs:  # an RNN packs rows by lengths on the host, which cannot be traced
        return {name: x for name, x in inputs(case, rows=n).items() if name != "lengths" or "rnn" not in case}

    with torch.no_grad():
        shapes = {name: {0: rows} for name in given(B)}
        program = torch.export.export(model, (), kwargs=given(B), dynamic_shapes=shapes).module()
        return {f"{n} rows": float((program(**x) - model(**x)).abs().max()) for n in (2, 5) for x in [given(n)]}


@pytest.fixture(scope="module")
def export_errors(once) -> Callable[[str], dict[str, float | str]]:
    def export(path: Path, cases: list[str]) -> None:
        done = subprocess.run([sys.executable, __file__, *cases], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (path / "errors.json").write_text(done.stdout.splitlines()[-1])

    def errors(case: str) -> dict[str, float | str]:
        quick = case in FIRST
        cases = [one for one in CASES if (one in FIRST) == quick]
        folder = once(f"export-{quick}", lambda path: export(path, cases))
        return json.loads((folder / "errors.json").read_text())[case]

    return errors


@pytest.mark.parametrize("case", first(list(CASES)))
def test_it_can_be_exported(export_errors, case):
    errors = export_errors(case)
    assert "error" not in errors, errors["error"]
    assert max(errors.values()) < 1e-5


def tried(work: Callable[[str], dict], case: str) -> dict:
    try:
        return work(case)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:600]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({case: tried(exported, case) for case in sys.argv[1:]}))

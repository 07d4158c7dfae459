"""Real checkpoints give the same logits, embeddings and greedy tokens as transformers.

benchmarks/fetch_checkpoints.py fetches them; $CLEARHEAD_CHECKPOINTS is their folder.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.weights import certificate

TOLERANCE = 1e-4  # in float32, for logits of some tens


def checkpoint(name: str) -> Path:
    root = os.environ.get("CLEARHEAD_CHECKPOINTS")
    if not root:
        pytest.skip("CLEARHEAD_CHECKPOINTS is not set: see benchmarks/fetch_checkpoints.py")
    if not (Path(root) / name).is_dir():
        pytest.skip(f"{root} has no {name}: see benchmarks/fetch_checkpoints.py")
    return Path(root) / name


def smollm2() -> tuple[ch.Bundle, Any]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path = next(checkpoint("smollm2").glob("*.gguf"))
    return ch.load(path, device="cpu"), transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name
    ).eval()


def test_gpt2_logits_equal_those_of_transformers() -> None:
    result = certificate(checkpoint("mgm"))
    assert result.reference.startswith("transformers")
    assert result.difference < TOLERANCE
    assert len(result.used) == 101
    assert result.ignored == {}


def test_smollm2_logits_equal_those_of_transformers() -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    result = certificate(checkpoint("smollm2"))
    assert result.difference < TOLERANCE
    assert len(result.used) == 272
    assert result.types.keys() == {"F32", "Q8_0", "Q4_1"}


@pytest.mark.parametrize(
    ("name", "used", "ignored", "answer"),
    [
        ("minilm", 101, 3, "sentence"),
        ("rxnfp", 203, 4, "words"),
        ("rxnfp-ft", 199, 0, "sentence"),
        ("rxnfp-classes", 201, 0, "class"),
    ],
)
def test_bert_outputs_equal_those_of_transformers(name: str, used: int, ignored: int, answer: str) -> None:
    result = certificate(checkpoint(name))
    assert result.difference < 1e-5
    assert (len(result.used), len(result.ignored)) == (used, ignored)
    assert ch.load(checkpoint(name), device="cpu").config.answer == answer


@torch.no_grad()
def test_minilm_embeddings_equal_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    folder = checkpoint("minilm")
    bundle, theirs = ch.load(folder, device="cpu"), transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [
        "A dog runs.",
        "Ein Hund rennt über die Straße.",
        "A puppy is running!",
        "Stock prices fell 3.5% on Monday.",
    ]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    rows = [bundle.tokens.wrapped(text) for text in texts]
    assert [row.tolist() for row in rows] == [tokenizer(text)["input_ids"] for text in texts]
    mask = batch["attention_mask"]
    expected = (theirs(**batch).last_hidden_state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    mine = bundle.model(batch["input_ids"], lengths=mask.sum(1))
    assert float((mine - expected).abs().max()) < 1e-5
    similarity = torch.nn.functional.normalize(mine) @ torch.nn.functional.normalize(mine).T
    assert similarity[0, 2] > 0.6 > 0.3 > similarity[0, 3]


@torch.no_grad()
def check_greedy(ours: nn.Module, theirs: Any, prompt: list[int], new: int = 200) -> None:
    """Our greedy search writes the same tokens as generate of transformers."""
    theirs.generation_config.eos_token_id = None
    start = torch.tensor([prompt])
    row = theirs.generate(start, attention_mask=torch.ones_like(start), do_sample=False, max_new_tokens=new)
    assert row.shape[1] == len(prompt) + new
    (answer,) = search(ours, {}, Plan(start=[prompt], end=None, limit=new))[0]
    assert list(answer.ids) == row[0, len(prompt) :].tolist()


def test_gpt2_greedy_tokens_equal_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    folder = checkpoint("mgm")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    check_greedy(ch.load(folder, device="cpu").model, theirs, [2, 17, 1000, 5])


@pytest.mark.slow
def test_smollm2_greedy_tokens_equal_those_of_transformers() -> None:
    bundle, theirs = smollm2()
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    check_greedy(bundle.model, theirs, bundle.tokens.marked(prompt).tolist())


@torch.no_grad()
def test_smollm2_answers_a_question() -> None:
    bundle = ch.load(checkpoint("smollm2"), device="cpu")
    assert "<|im_start|>" in bundle.chat
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = bundle.tokens.marked(prompt).tolist()
    while ids[-1] not in bundle.special.ends or len(ids) < 20:
        ids.append(int(bundle.model(torch.tensor([ids]))[0, -1].argmax()))
        assert len(ids) < 60
    assert "Paris" in bundle.tokens.decode(ids)


def check_statistics(ours: ch.Bundle, theirs: nn.Module, ids: list[int], **given: Any) -> None:
    """The statistics of every layer and head are the same, watched in our model and in that of transformers."""
    names, row = ("entropy", "distance", "received"), torch.tensor([ids])
    with torch.no_grad(), ch.watch(ours, *(f"**.{name}" for name in names)) as mine:
        ours.model(row)
    with torch.no_grad(), ch.watch(theirs, *(f"**.{name}" for name in names)) as other:
        theirs(row, **given)
    for name in names:
        a, b = (list(tape.match(f"**.{name}").values()) for tape in (mine, other))
        assert len(a) == len(b) > 0
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


TEXT = "The committee met on Monday, and the newspapers wrote about it for a week. " * 6


def test_minilm_statistics_equal_those_watched_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    folder = checkpoint("minilm")
    bundle = ch.load(folder, device="cpu")
    check_statistics(
        bundle, transformers.BertModel.from_pretrained(folder).eval(), bundle.tokens.wrapped(TEXT).tolist()
    )


def test_smollm2_statistics_equal_those_watched_in_transformers() -> None:
    bundle, theirs = smollm2()
    check_statistics(bundle, theirs, bundle.tokens.encode(TEXT).tolist(), use_cache=False)

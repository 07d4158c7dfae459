"""Decoding with models that most searches never meet: NaN weights, and values of another width than queries."""

import pytest
import torch

import clearhead as ch
from clearhead.decode import Choice, Plan, search, stream

SIZES = {"vocab": 11, "context": 16, "width": 12, "depth": 2, "heads": 3}
PROMPTS = [[1, 2, 3], [4, 5]]


def gpt(**options):
    torch.manual_seed(0)
    model = ch.build("gpt", **SIZES | options).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0 if p.ndim > 1 else 1.0)
    return model


@pytest.mark.parametrize("where", ["embed.table", "blocks.1.mlp.down.weight", "blocks.0.attn.value.weight"])
@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"choice": Choice(sample=True), "seed": 1}], ids=str)
def test_nan_weights_raise_instead_of_writing_nonsense(where, options):
    model = gpt()
    with torch.no_grad():
        model.get_parameter(where)[0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        search(model, {}, Plan(start=[[0, 1, 2]], end=None, limit=5, **options))


def test_nan_that_comes_late_raises_in_a_stream_too():
    model = gpt(positions="learned")
    with torch.no_grad():
        model.positions.table[6:] = torch.nan
    steps = stream(model, {}, Plan(start=[[1, 2, 3]], end=None, limit=8))
    assert [len(next(steps)) for _ in range(3)] == [1, 1, 1]
    with pytest.raises(ValueError, match="NaN"):
        list(steps)


@pytest.mark.parametrize(
    "options",
    [
        {"project": "qk", "kv_heads": 1},  # values of the whole width, keys of one head
        {"project": "qk", "head": 2},
        {"project": "k=v"},
        {"project": "q=k", "kv_heads": 3},
    ],
    ids=str,
)
def test_a_model_whose_values_are_not_as_wide_as_its_heads_decodes_as_it_reads(options):
    model = gpt(**options)
    found = search(model, {}, Plan(start=PROMPTS, end=None, limit=7))
    for prompt, (answer,) in zip(PROMPTS, found, strict=True):
        ids = list(prompt)
        for _ in range(7):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert list(answer.ids) == ids[len(prompt) :]


@pytest.mark.parametrize("options", [{}, {"choice": {"sample": True, "temperature": 0.7, "top_k": 5}}], ids=str)
@pytest.mark.parametrize("repetition", [0.5, 1.0, 2.5])
def test_the_log_probability_is_the_model_s_own_whatever_decides_the_choice(options, repetition):
    model, choice = gpt(), Choice(repetition=repetition, **options.get("choice", {}))
    for prompt, (answer,) in zip(
        PROMPTS, search(model, {}, Plan(start=PROMPTS, end=None, limit=6, choice=choice)), strict=True
    ):
        ids = torch.tensor([[*prompt, *answer.ids]])
        with torch.no_grad():
            logp = model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[0, len(prompt) - 1 :]
        assert answer.logprob == pytest.approx(float(logp.sum()), abs=1e-4)

"""Sampling, against the logits processors of transformers and against the frequencies of samples."""

import pytest
import torch

from clearhead.decode import Choice
from clearhead.decode import sampling as ours
from clearhead.decode.sampling import draw, penalise, uniforms

V = 37
process = pytest.importorskip("transformers.generation.logits_process")


def logits(rows: int = 3, vocab: int = V, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0))


def agree(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    assert torch.equal(mine.isneginf(), theirs.isneginf())
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("k", [1, 2, 5, V, 99])
def test_top_k_equals_transformers(k):
    x = logits()
    agree(ours.top_k(x, k), process.TopKLogitsWarper(k)(None, x))


@pytest.mark.parametrize("vocab", [V, 3000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_equals_transformers(p, scale, vocab):
    x = logits(vocab=vocab, scale=scale)
    agree(ours.top_p(x, p), process.TopPLogitsWarper(p)(None, x))


@pytest.mark.parametrize("p", [0.01, 0.2, 0.9, 1.0])
def test_min_p_equals_transformers(p):
    x = logits()
    agree(ours.min_p(x, p), process.MinPLogitsWarper(p)(None, x))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 7.0])
def test_the_repetition_penalty_equals_transformers(penalty):
    x, ids = logits(), torch.tensor([[3, 5, 3], [0, 0, 0], [36, 1, 2]])
    seen = torch.zeros(3, V, dtype=torch.bool).scatter_(1, ids, True)
    agree(penalise(x, seen, penalty), process.RepetitionPenaltyLogitsProcessor(penalty)(ids, x))


@pytest.mark.parametrize("top_k", [None, 12])
@pytest.mark.parametrize("top_p", [None, 0.8])
@pytest.mark.parametrize("min_p", [None, 0.1])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_all_options_together_equal_transformers(temperature, top_k, top_p, min_p):
    x = logits(scale=1.0)
    theirs = process.LogitsProcessorList([process.TemperatureLogitsWarper(temperature)])
    theirs += [process.TopKLogitsWarper(top_k)] if top_k else []
    theirs += [process.TopPLogitsWarper(top_p)] if top_p else []
    theirs += [process.MinPLogitsWarper(min_p)] if min_p else []
    choice = Choice(sample=True, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    agree(choice.narrowed(x), theirs(None, x))
    # Log-probabilities differ from logits by a constant: the same tokens are kept.
    assert torch.equal(choice.narrowed(x.log_softmax(-1)).isneginf(), theirs(None, x).isneginf())


def test_tokens_are_sampled_as_often_as_they_are_probable():
    x = logits(rows=1, vocab=7, scale=1.0)
    x[0, 2] = -torch.inf
    n = 20_000
    found = draw(x.expand(n, -1), uniforms(3, n, 1, 1)[:, 0]).flatten()
    share = torch.bincount(found, minlength=7) / n
    p = x.softmax(-1)[0]
    assert float((share - p).abs().max()) < 4 * (0.25 / n) ** 0.5
    assert share[2] == 0


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.249999, 1), (0.250001, 3), (0.9999999999, 3)])
def test_a_uniform_number_selects_the_token_at_its_cumulative_probability(uniform, token):
    x = torch.tensor([[-torch.inf, 0.25, -torch.inf, 0.75]]).log().nan_to_num(nan=-torch.inf)
    assert draw(x, torch.tensor([uniform], dtype=torch.float64)).tolist() == [[token]]


def test_each_row_has_its_own_random_numbers():
    whole = uniforms(5, 4, 3, 6)
    assert whole.shape == (12, 6)
    assert torch.equal(uniforms(5, 2, 3, 6), whole[:6])  # independent of later rows
    assert torch.equal(uniforms(5, 4, 3, 2), whole[:, :2])  # independent of the number of tokens
    apart = uniforms([7, 9], 2, 3, 6)
    assert torch.equal(uniforms([9], 1, 3, 6), apart[3:])  # independent of the place in the batch
    assert len({tuple(row) for row in torch.cat([whole, apart]).tolist()}) == 18


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"temperature": 0.0}, "temperature=0.0: expected a number above 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": 1e-40}, "temperature=1e-40: expected a number above 0, 1e-06 or more"),
        ({"repetition": 1e300}, r"repetition=1e\+300: expected a number above 0, 1e-06 to 1e\+06"),
        ({"top_k": 0}, "top_k=0: expected 1 or more"),
        ({"top_p": 0.0}, "top_p=0.0: expected a share above 0"),
        ({"min_p": 1.1}, "min_p=1.1: expected a share"),
        ({"repetition": 0.0}, "repetition=0.0"),
    ],
)
def test_impossible_options_raise(words, problem):
    with pytest.raises(ValueError, match=problem):
        Choice(sample=True, **words)

"""The search against single rows, greedy search, forced decoding and brute force."""

import itertools

import pytest
import torch

from clearhead.decode import STOPS, Choice, Ensemble, Plan, forced, search
from clearhead.decode.sampling import largest
from clearhead.models import build

PAD, START, END, WORDS = 0, 1, 2, (3, 4, 5, 6)
LENGTHS = torch.tensor([5, 2, 4])
BANNED = (PAD, START)


def model(seed: int = 0, **options):
    torch.manual_seed(seed)
    sizes = {"vocab": 7, "width": 16, "depth": 2, "heads": 2, "hidden": 20, "context": 16}
    made = build("transformer", **{**sizes, **options}).eval()
    with torch.no_grad():  # larger logits, so that rounding cannot change an answer
        for p in made.parameters():
            p.mul_(2.0)
    return made


def inputs(rows: int = 3) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {"source": torch.randint(3, 7, (rows, 5)), "lengths": LENGTHS[:rows]}


def alone(given: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    length = int(given["lengths"][row])
    return {"source": given["source"][row : row + 1, :length], "lengths": given["lengths"][row : row + 1]}


def logprob(made, given: dict[str, torch.Tensor], tokens: list[int]) -> float:
    ids, targets = torch.tensor([[START, *tokens[:-1]]]), torch.tensor([tokens])
    return float(forced(made, given, ids, targets).sum())


KINDS = [{"positions": "sinusoid"}, {"positions": "rotary", "order": "pre"}, {"positions": "relative"}, {"kv_heads": 1}]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("beams", [1, 4])
def test_a_batch_gives_the_answers_of_single_rows(options, beams):
    made, given = model(**options), inputs()
    words = {"start": START, "end": END, "limit": 6, "beams": beams, "best": beams, "banned": BANNED}
    together = search(made, given, Plan(**words))
    for row, answers in enumerate(together):
        (single,) = search(made, alone(given, row), Plan(**words))
        assert [h.ids for h in answers] == [h.ids for h in single]
        assert [h.logprob for h in answers] == pytest.approx([h.logprob for h in single], abs=1e-4)


def test_one_beam_is_greedy_search():
    made, given = model(), inputs()
    for row, (found,) in enumerate(search(made, given, Plan(start=START, end=END, limit=6, banned=BANNED))):
        ids: list[int] = []
        while len(ids) < 6:
            logits = made(torch.tensor([[START, *ids]]), **alone(given, row))[0, -1]
            logits[list(BANNED)] = -torch.inf
            token = int(logits.argmax())
            if token == END:
                break
            ids.append(token)
        assert found.ids == tuple(ids)
        assert found.finished is (len(ids) < 6)


@pytest.mark.parametrize("stop", STOPS)
def test_the_log_probability_of_an_answer_is_that_of_forced_decoding(stop):
    made, given = model(1), inputs()
    words = {"start": START, "end": END, "limit": 5, "beams": 4, "best": 4, "penalty": 0.7, "stop": stop}
    for row, answers in enumerate(search(made, given, Plan(**words))):
        assert [h.score for h in answers] == sorted((h.score for h in answers), reverse=True)
        for h in answers:
            tokens = [*h.ids, END] if h.finished else list(h.ids)
            assert h.tokens == len(tokens)
            assert h.logprob == pytest.approx(logprob(made, alone(given, row), tokens), abs=1e-4)
            assert h.score == pytest.approx(h.logprob / len(tokens) ** 0.7)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_wide_enough_beam_search_finds_the_answers_of_brute_force(penalty):
    made, given = model(2), inputs()
    limit, most = 3, sum(len(WORDS) ** n for n in range(4))
    words = {"start": START, "end": END, "limit": limit, "beams": 2 * most, "best": 3, "banned": BANNED}
    found = search(made, given, Plan(penalty=penalty, stop="sure", **words))
    for row, answers in enumerate(found):
        every = []
        for n in range(limit + 1):
            for ids in itertools.product(WORDS, repeat=n):
                tokens = [*ids, END] if n < limit else list(ids)
                every.append((logprob(made, alone(given, row), tokens) / len(tokens) ** penalty, ids))
        every.sort(reverse=True)
        assert [h.ids for h in answers] == [ids for _, ids in every[:3]]


def test_each_row_has_its_own_limit():
    made, given = model(), inputs()
    found = search(made, given, Plan(start=START, end=END, limit=[1, 4, 2], banned=(*BANNED, END)))
    assert [len(answers[0].ids) for answers in found] == [1, 4, 2]
    assert not any(answers[0].finished for answers in found)


def test_samples_follow_the_probabilities_of_the_model():
    made, given = model(3), inputs(1)
    samples = search(made, given, Plan(start=START, end=END, limit=1, choice=Choice(sample=True), best=4000, seed=5))[0]
    p = made(torch.tensor([[START]]), **given)[0, -1].softmax(-1).detach()
    ends = sum(h.finished for h in samples) / len(samples)
    assert ends == pytest.approx(float(p[END]), abs=0.03)
    for word in WORDS:
        share = sum(h.ids == (word,) for h in samples) / len(samples)
        assert share == pytest.approx(float(p[word]), abs=0.03)
    again = search(made, given, Plan(start=START, end=END, limit=1, choice=Choice(sample=True), best=4000, seed=5))[0]
    assert samples == again


def test_an_ensemble_averages_the_probabilities_of_its_models():
    given = inputs()
    words = {"start": START, "end": END, "limit": 6, "beams": 3, "banned": BANNED}
    a, b = model(4), model(5)
    one, same = search(a, given, Plan(**words)), search(Ensemble([a, a]), given, Plan(**words))
    assert [h[0].ids for h in one] == [h[0].ids for h in same]
    both = Ensemble([a, b])
    ids = torch.tensor([[START, 3]] * 3)
    mean = (a(ids, **given).softmax(-1) + b(ids, **given).softmax(-1)) / 2
    torch.testing.assert_close(both(ids, **given).exp(), mean)
    for row, (found,) in enumerate(search(both, given, Plan(**words))):
        tokens = [*found.ids, END] if found.finished else list(found.ids)
        assert found.logprob == pytest.approx(logprob(both, alone(given, row), tokens), abs=1e-4)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"beams": 2, "best": 3}, "best=3 of beams=2"),
        ({"penalty": float("nan")}, "penalty=nan: expected -10 to 10"),
        ({"stop": "soon"}, "stop='soon': expected one of full, likely, sure"),
        ({"choice": {"temperature": 0.0}}, "temperature=0.0"),
        ({"limit": 0}, "limit=0"),
        ({"limit": [3, 3]}, "one per row"),
    ],
)
def test_impossible_options_raise(words, problem):
    def plan(choice: dict | None = None, **other) -> Plan:
        return Plan(start=START, end=END, choice=Choice(**choice or {}), **other)

    with pytest.raises(ValueError, match=problem):
        search(model(), inputs(), plan(**words))


def test_no_rows_give_no_answers():
    given = {"source": torch.zeros(0, 5, dtype=torch.long), "lengths": torch.zeros(0, dtype=torch.long)}
    assert search(model(), given, Plan(start=START, end=END)) == []


@pytest.mark.parametrize(("v", "k"), [(7, 3), (5000, 2), (5003, 4), (70_001, 10), (4096, 1)])
def test_largest_equals_topk_on_long_rows(v, k):
    x = torch.randn(5, v)
    x[0, -1], x[1, 0] = 9.0, 9.0  # at the ends
    x[2, : v // 2] = -torch.inf
    high, at = largest(x, k)
    torch.testing.assert_close(high, x.topk(k).values)
    torch.testing.assert_close(x.gather(1, at), high)

"""Searches that continue prompts: batches, sampling, streams, end conditions, and texts beyond the context."""

import pytest
import torch

from clearhead.decode import Choice, Plan, search, stream
from clearhead.models import build

V, END = 13, 0
PROMPTS = [[3, 4, 5, 6, 7], [2], [9, 9, 1]]
KINDS = {
    "gpt2": {},
    "llama": {"positions": "rotary", "kv_heads": 1, "norm": "rms", "mlp": "swiglu", "bias": False, "tied": False},
    "window": {"positions": "rotary", "window": 3},
}


def model(kind: str = "gpt2", seed: int = 0, context: int = 40):
    torch.manual_seed(seed)
    made = build("gpt", vocab=V, width=16, depth=2, heads=2, hidden=20, context=context, **KINDS[kind]).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(4.0 if p.ndim > 1 else 1.0)  # larger logits, so that rounding cannot change an answer
    return made


@torch.no_grad()
def greedy(made, text: list[int], new: int, ends: tuple[int, ...] = (END,), reach: int | None = None) -> list[int]:
    """Greedy search by forward passes over the whole text; with `reach`, over the newer part as with slide=True."""
    found: list[int] = []
    while len(found) < new:
        whole, begin = text + found, 0
        while reach is not None and len(whole) - begin > reach:
            begin += reach // 2
        token = int(made(torch.tensor([whole[begin:]]))[0, -1].argmax())
        if token in ends:
            break
        found.append(token)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_different_lengths_are_continued_as_if_each_were_alone(kind):
    made = model(kind)
    found = search(made, {}, Plan(start=PROMPTS, end=END, limit=9))
    for prompt, (answer,) in zip(PROMPTS, found, strict=True):
        assert list(answer.ids) == greedy(made, prompt, 9)
        assert answer.finished == (len(answer.ids) < 9)


def test_there_can_be_several_end_tokens_or_none():
    made = model()
    endless = search(made, {}, Plan(start=PROMPTS, end=None, limit=9))
    assert [len(a.ids) for (a,) in endless] == [9, 9, 9]
    ends = {endless[0][0].ids[4], endless[2][0].ids[2]}
    for prompt, (answer,) in zip(PROMPTS, search(made, {}, Plan(start=PROMPTS, end=list(ends), limit=9)), strict=True):
        assert list(answer.ids) == greedy(made, prompt, 9, tuple(ends))


@torch.no_grad()
def test_beam_search_from_prompts_is_no_worse_than_greedy_search():
    made = model()
    one = search(made, {}, Plan(start=PROMPTS, end=None, limit=4, penalty=0.0))
    wide = search(made, {}, Plan(start=PROMPTS, end=None, limit=4, beams=V**3, penalty=0.0))
    for prompt, (a,), (b,) in zip(PROMPTS, one, wide, strict=True):
        assert b.logprob >= a.logprob - 1e-5
        ids = torch.tensor([[*prompt, *b.ids]])
        logp = made(ids[:, :-1]).log_softmax(-1)[0, len(prompt) - 1 :]
        assert b.logprob == pytest.approx(float(logp.gather(1, ids[0, len(prompt) :, None]).sum()), abs=1e-4)


SAMPLED = {"start": PROMPTS, "end": END, "limit": 9, "choice": Choice(sample=True, temperature=1.5, top_k=9)}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_samples_of_a_row_depend_only_on_its_seed(kind):
    made = model(kind)
    seeds = [11, 12, 13]
    together = search(made, {}, Plan(**SAMPLED, seed=seeds, best=2))
    assert [len(row) for row in together] == [2, 2, 2]
    for prompt, seed, answers in zip(PROMPTS, seeds, together, strict=True):
        (alone,) = search(made, {}, Plan(**{**SAMPLED, "start": [prompt]}, seed=[seed], best=2))
        assert [a.ids for a in alone] == [a.ids for a in answers]
    again = search(made, {}, Plan(**{**SAMPLED, "start": PROMPTS[::-1]}, seed=seeds[::-1], best=2))
    assert [[a.ids for a in row] for row in again[::-1]] == [[a.ids for a in row] for row in together]
    other = search(made, {}, Plan(**SAMPLED, seed=[11, 12, 14], best=2))
    assert [a.ids for a in other[0]] == [a.ids for a in together[0]]
    assert [a.ids for a in other[2]] != [a.ids for a in together[2]]


def test_a_sample_that_was_cut_off_continues_with_the_random_numbers_of_its_seed():
    made = model()
    words = {**SAMPLED, "end": None, "seed": [11, 12, 13]}
    whole = [answers[0].ids for answers in search(made, {}, Plan(**words))]
    prompts = [[*prompt, *ids[:4]] for prompt, ids in zip(PROMPTS, whole, strict=True)]
    rest = search(made, {}, Plan(**words | {"start": prompts, "limit": 5, "drawn": 4}))
    assert [answers[0].ids for answers in rest] == [ids[4:] for ids in whole]
    with pytest.raises(ValueError, match="drawn=-1"):
        Plan(**words | {"drawn": -1})


def test_more_samples_begin_with_the_same_ones():
    made = model()
    few, many = (search(made, {}, Plan(**SAMPLED, seed=[1, 2, 3], best=n)) for n in (2, 5))
    for a, b in zip(few, many, strict=True):
        assert [x.ids for x in a] == [x.ids for x in b[:2]]  # in the order of drawing, whichever is best


def test_a_stream_gives_the_tokens_of_the_search():
    made = model()
    words = {**SAMPLED, "seed": [1, 2, 3], "best": 2}
    texts: dict[int, list[int]] = {i: [] for i in range(6)}
    for new in stream(made, {}, Plan(**words)):
        for row, token in new.items():
            texts[row].append(token)
    found = search(made, {}, Plan(**words))
    for i, row in enumerate(found):
        whole = {(*a.ids, END) if a.finished else a.ids for a in row}
        assert whole == {tuple(texts[2 * i]), tuple(texts[2 * i + 1])}
    with pytest.raises(ValueError, match="beams=3 cannot be streamed"):
        next(stream(made, {}, Plan(start=PROMPTS, end=END, beams=3)))


def test_a_stream_leaves_gradients_enabled_between_tokens():
    for _ in stream(model(), {}, Plan(start=PROMPTS, end=None, limit=2)):
        assert torch.is_grad_enabled()


def test_a_row_ends_when_the_callback_ended_says_so():
    made = model()
    whole = search(made, {}, Plan(start=PROMPTS, end=None, limit=9))
    asked = []

    def ended(row: int, ids, log_prob: float) -> bool:
        asked.append((row, len(ids)))
        return row == 1 and len(ids) == 3

    found = search(made, {}, Plan(start=PROMPTS, end=None, limit=9, ended=ended))
    assert found[1][0].ids == whole[1][0].ids[:3]
    assert not found[1][0].finished
    assert found[0][0].ids == whole[0][0].ids
    assert (1, 4) not in asked


@pytest.mark.parametrize("penalty", [1.5, 0.7])
def test_the_repetition_penalty_counts_the_prompt_and_the_answer(penalty):
    transformers = pytest.importorskip("transformers.generation.logits_process")
    made, process = model(), transformers.RepetitionPenaltyLogitsProcessor(penalty)
    found = search(made, {}, Plan(start=PROMPTS, end=END, limit=8, choice=Choice(repetition=penalty)))
    for prompt, (answer,) in zip(PROMPTS, found, strict=True):
        text = list(prompt)
        for token in [*answer.ids, END] if answer.finished else answer.ids:
            ids = torch.tensor([text])
            with torch.no_grad():
                assert int(process(ids, made(ids)[:, -1]).argmax()) == token
            text.append(token)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_beyond_the_context_the_older_half_is_forgotten(kind, beams):
    """Rows fill the context at different steps, and prompts may be longer than it."""
    made = model(kind, context=8)
    prompts = [*PROMPTS, list(range(1, 12)), [5] * 21, list(range(1, 9))]
    with pytest.raises(ValueError, match=r"a prompt of 21 tokens and 20 more: this model reads 8 at once.*slide"):
        search(made, {}, Plan(start=prompts, end=None, limit=20))
    found = search(made, {}, Plan(start=prompts, end=None, limit=20, slide=True, beams=beams))
    if beams == 1:
        for prompt, (answer,) in zip(prompts, found, strict=True):
            assert list(answer.ids) == greedy(made, prompt, 20, ends=(), reach=8)
    assert [len(a.ids) for (a,) in found] == [20] * 6
    fits = search(made, {}, Plan(start=[prompts[0]], end=None, limit=4))  # exactly full
    assert list(fits[0][0].ids) == greedy(made, prompts[0], 4, ends=())


def test_a_model_with_a_window_continues_beyond_its_context():
    made = model("window", context=8)
    (answer,) = search(made, {}, Plan(start=[PROMPTS[0]], end=None, limit=30))[0]
    assert list(answer.ids) == greedy(made, PROMPTS[0], 30, ends=())


def test_empty_prompts_and_a_wrong_number_of_seeds_raise():
    with pytest.raises(ValueError, match="of a token or more"):
        search(model(), {}, Plan(start=[[1], []], end=END))
    assert search(model(), {}, Plan(start=[], end=END)) == []
    with pytest.raises(ValueError, match="2 seeds for 3 rows"):
        search(model(), {}, Plan(**SAMPLED, seed=[1, 2]))

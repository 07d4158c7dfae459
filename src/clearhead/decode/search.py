"""One search loop: greedy search is a beam search with one beam, and sampling draws where it would take the best.

A model has `start(inputs, rows, limit) -> state` and `step(ids, state) -> (logits, state)`, and, if it continues
prompts, `read(ids, state, counts)`; a state has `expand(n)` and `reorder(index)`. Rows whose search is over leave the
batch, so that short answers do not wait for long ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from ..fast import hooked
from .hypotheses import Beams, Candidates, Ended, Finished
from .plan import Hypothesis, Plan
from .runner import ModelRunner
from .sampling import draw, largest, penalise, uniforms


@torch.no_grad()
def search(model: Any, inputs: Mapping[str, Tensor], plan: Plan) -> list[list[Hypothesis]]:
    """Return the hypotheses of every row of the inputs, or of every prompt.

    A beam search returns the best ones, the best first; samples stay in the order in which they were drawn, so that
    further samples change none of the first.

    Args:
        model: A model with `start` and `step`.
        inputs: What `start` needs: `source` and `lengths` of a translator, nothing of a language model.
        plan: The options: prompts, beams, limit, sampling.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> (answer,) = search(model, {}, Plan(start=[[1, 2, 3]], end=0, limit=5))[0]
        >>> 0 <= len(answer.ids) <= 5
        True
    """
    answers: list[list[Hypothesis]] = []
    for _ in _steps(model, inputs, plan, answers):
        # the steps are needed only for their effect: they fill `answers`
        pass
    return answers


@torch.no_grad()
def stream(model: Any, inputs: Mapping[str, Tensor], plan: Plan) -> Iterator[dict[int, int]]:
    """Yield the token of every unfinished answer after each step of a search with one beam, or of sampling.

    Args:
        model: A model with `start` and `step`.
        inputs: What `start` needs.
        plan: The options of the search.

    Yields:
        Tokens by the number of the answer: i for row i; with n samples per row, i n + j for sample j of row i. An end
        token is yielded too.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> len(list(stream(model, {}, Plan(start=[[1, 2]], end=None, limit=3))))
        3
    """
    if plan.beams > 1 and not plan.choice.sample:
        raise InputError(
            f"beams={plan.beams} cannot be streamed: which beam is best is known at the end; expected 1"
        )
    for tokens, _, _ in _steps(model, inputs, plan, []):
        yield tokens


@torch.no_grad()
def follow(
    model: Any, inputs: Mapping[str, Tensor], plan: Plan
) -> Iterator[list[list[Hypothesis]]]:
    """Yield each row's hypotheses after every step, the best first, and at last the result of `search`.

    Args:
        model: A model with `start` and `step`.
        inputs: What `start` needs.
        plan: The options of the search.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> steps = list(follow(model, {}, Plan(start=[[1]], end=None, limit=3, beams=2)))
        >>> [len(step[0][0].ids) for step in steps]
        [1, 2, 3, 3]
    """
    answers: list[list[Hypothesis]] = []
    for _, beams, done in _steps(model, inputs, plan, answers):
        unfinished = _unfinished(beams, plan)
        ranked = []
        for i, finished in enumerate(done):
            hypotheses = [*finished.hypotheses, *unfinished.get(i, [])]
            ranked.append(sorted(hypotheses, key=lambda h: -h.score))
        yield ranked
    yield answers


def _unfinished(beams: Beams, plan: Plan) -> dict[int, list[Hypothesis]]:
    """The beams of each unfinished answer as hypotheses, scored as if they ended now."""
    unfinished: dict[int, list[Hypothesis]] = {}
    rows = zip(beams.rows(), beams.ranks.tolist(), beams.logprobs.tolist(), strict=True)
    for (answer, texts), ranks, logprobs in rows:
        scored = Finished(len(texts), plan.penalty, plan.stop)
        for text, rank, logprob in zip(texts, ranks, logprobs, strict=True):
            if rank > -math.inf:  # a copy that fills up the beams has no rank
                scored.add(text, rank, logprob, False)
        unfinished[answer] = scored.hypotheses
    return unfinished


Steps = Iterator[tuple[dict[int, int], Beams, list[Finished]]]


def _steps(
    model: Any,
    inputs: Mapping[str, Tensor],
    plan: Plan,
    answers: list[list[Hypothesis]],
    drawn: Float[Tensor, "n t"] | None = None,
) -> Steps:
    """Yield after each step the new tokens, the unfinished and the finished hypotheses; at the end fill `answers`.

    `drawn` are the random numbers of sampling; None: they are drawn with the plan's seed.
    """
    prompts, room = _prompts(plan, inputs)
    rows = len(prompts)
    if not rows:
        return
    if plan.choice.sample:
        # each sample is an answer with a single beam
        samples, width = plan.best, 1
    else:
        samples, width = 1, plan.beams
    if plan.choice.sample and drawn is None:
        # the random numbers of tokens that were written before, with the same seed, are skipped
        drawn = uniforms(plan.seed, rows, samples, plan.drawn + max(room))[:, plan.drawn :]
    if len(set(map(len, prompts))) > 1 and hooked(model):
        yield from _one_by_one(model, inputs, plan, answers, drawn)
        return

    # each sample is a row of its own, so that all of them are written at once
    if samples > 1:
        inputs = {name: x.repeat_interleave(samples, dim=0) for name, x in inputs.items()}
        room = [n for n in room for _ in range(samples)]
    runner = ModelRunner(model, inputs, prompts, samples, width, plan, max(room))
    beams = Beams(rows * samples, width, runner.last, runner.device)
    done = [Finished(width, plan.penalty, plan.stop) for _ in range(rows * samples)]
    ends = _end_tokens(plan)
    if drawn is not None:
        drawn = drawn.to(runner.device)

    try:
        for written in range(1, max(room) + 1):
            runner.slide(beams)
            candidates = _candidates(runner, beams, plan, drawn, written)
            # with several beams no token is final before the end
            tokens: dict[int, int] = {}
            if width == 1:
                tokens = dict(zip(beams.answers, candidates.token[:, 0].tolist(), strict=True))
            keep = beams.advance(
                candidates, ends=ends, done=done, written=written, room=room, ended=plan.ended
            )
            yield tokens, beams, done
            if keep is None:
                break
            # finished rows leave the batch; beams may change places even if none does
            runner.keep(keep, always=width > 1)
    finally:
        runner.close()

    # the samples of a prompt become the hypotheses of one row again
    for first in range(0, len(done), samples):
        hypotheses: list[Hypothesis] = []
        # in the order in which they were drawn: the first sample is the same, however many there are
        for finished in done[first : first + samples]:
            hypotheses += finished.hypotheses[: plan.best]
        answers.append(hypotheses)


def _prompts(plan: Plan, inputs: Mapping[str, Tensor]) -> tuple[list[list[int]], list[int]]:
    """The prompt of each row, and the number of tokens that it may write."""
    # a language model has no inputs: its prompts say how many rows there are
    rows = 0
    if inputs:
        rows = next(iter(inputs.values())).shape[0]
    elif not isinstance(plan.start, int):
        rows = len(plan.start)
    if isinstance(plan.start, int):
        prompts = [[plan.start]] * rows
    else:
        prompts = [list(map(int, row)) for row in plan.start]
    if isinstance(plan.limit, int):
        room = [plan.limit] * rows
    else:
        room = list(plan.limit)
    if len(room) != rows or min(room, default=1) < 1:
        raise InputError(
            f"limit={plan.limit}: expected 1 token or more, one number for all rows or one per row"
        )
    if len(prompts) != rows or not all(prompts):
        raise InputError(
            f"{len(prompts)} prompts for {rows} rows: expected one per row, of a token or more"
        )
    return prompts, room


def _end_tokens(plan: Plan) -> set[int]:
    """The tokens that end an answer."""
    if plan.end is None:
        return set()
    if isinstance(plan.end, int):
        return {plan.end}
    return set(map(int, plan.end))


def _one_by_one(
    model: Any,
    inputs: Mapping[str, Tensor],
    plan: Plan,
    answers: list[list[Hypothesis]],
    drawn: Tensor | None,
) -> Steps:
    """Search row by row: in one batch, hooks would see the padding of shorter prompts as queries."""
    samples = plan.best if plan.choice.sample else 1
    assert not isinstance(plan.start, int)
    for i, prompt in enumerate(plan.start):
        first = i * samples  # the number of the row's first answer
        limit = plan.limit if isinstance(plan.limit, int) else plan.limit[i]
        row_plan = replace(plan, start=[prompt], limit=limit, ended=_renumbered(plan.ended, first))
        row_inputs = {name: x[i : i + 1] for name, x in inputs.items()}
        # the numbers that this row would have had in one batch: results do not depend on hooks
        row_drawn = None if drawn is None else drawn[first : first + samples]
        for tokens, beams, done in _steps(model, row_inputs, row_plan, answers, row_drawn):
            yield {first + number: token for number, token in tokens.items()}, beams, done


def _renumbered(ended: Ended | None, first: int) -> Ended | None:
    """`ended` for a search whose answer 0 is answer `first` of the whole search."""
    if ended is None:
        return None
    return lambda number, ids, logprob: ended(first + number, ids, logprob)


def _candidates(
    runner: ModelRunner, beams: Beams, plan: Plan, drawn: Float[Tensor, "n t"] | None, written: int
) -> Candidates:
    """Take a step, and return the continuations of each row."""
    choice = plan.choice

    # a CUDA graph chooses the token itself
    graph = runner.graph_step(beams, drawn, written)
    if graph is not None:
        token, gained = graph
        total = beams.logprobs + gained
        return Candidates(torch.zeros_like(token), token, total, total)

    # `ranked` decides what is chosen; `logp` are the log-probabilities that are reported
    logits = runner.step(beams.last)  # (rows x beams, v)
    logp = runner.log_softmax(logits)
    ranked = logp
    if choice.repetition != 1.0:
        seen = runner.seen(beams, logits.shape[-1])
        # only the choice is penalised: the reported log-probability is the model's own
        ranked = penalise(logits, seen, choice.repetition).log_softmax(-1)
    if plan.banned:
        columns: slice | list[int]
        if isinstance(plan.banned, range):
            columns = slice(plan.banned.start, plan.banned.stop)  # cheaper than a list of indices
        else:
            columns = list(plan.banned)
        ranked[:, columns] = -math.inf

    # sampling has one beam, which each candidate continues
    if drawn is not None:
        token = draw(choice.narrowed(ranked), drawn[beams.answers, written - 1])
        total = beams.logprobs + logp.gather(1, token)
        return Candidates(torch.zeros_like(token), token, total, total)

    # each of n beams may end at this step: of 2 n candidates, n are left to continue
    most = 1
    if beams.beams > 1:
        most = 2 * beams.beams
    origin, token, rank = _best(ranked, beams.ranks, most)
    if ranked is logp:
        return Candidates(origin, token, rank, rank)
    first_rows = torch.arange(len(origin), device=origin.device)[:, None] * beams.beams
    logprob = beams.logprobs.gather(1, origin) + logp[first_rows + origin, token]
    return Candidates(origin, token, rank, logprob)


def _best(
    logp: Float[Tensor, "r v"], ranks: Float[Tensor, "b n"], most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest continuations of all beams of each row: which beam, which token, and their summed rank."""
    # the best `most` of a row have at most as many of one beam: these are searched before all are compared
    high, token = largest(logp, min(most, logp.shape[-1]))  # (b n, k)
    total = (ranks.view(-1, 1) + high).view(ranks.shape[0], -1)  # (b, n k)
    rank, at = total.topk(min(most, total.shape[1]), dim=1)
    origin = at // high.shape[1]
    return origin, token.view(total.shape).gather(1, at), rank

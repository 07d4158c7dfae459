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
from .beams import Beams, Candidates, Ended, Finished
from .plan import Hypothesis, Plan
from .runner import ModelRunner
from .sampling import draw, largest, penalise, uniforms


@torch.no_grad()
def search(model: Any, inputs: Mapping[str, Tensor], plan: Plan) -> list[list[Hypothesis]]:
    """Return the best hypotheses of every row of the inputs, or of every prompt, the best first.

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
        unfinished: dict[int, list[Hypothesis]] = {}
        for (answer, texts), ranks, sums in zip(
            beams.rows(), beams.ranks.tolist(), beams.logprobs.tolist(), strict=True
        ):
            ranked = Finished(len(texts), plan.penalty, plan.stop)
            for text, rank, logprob in zip(texts, ranks, sums, strict=True):
                if rank > -math.inf:
                    ranked.add(text, rank, logprob, False)
            unfinished[answer] = ranked.hypotheses
        yield [
            sorted([*d.hypotheses, *unfinished.get(i, [])], key=lambda h: -h.score)
            for i, d in enumerate(done)
        ]
    yield answers


Steps = Iterator[tuple[dict[int, int], Beams, list[Finished]]]


def _steps(
    model: Any,
    inputs: Mapping[str, Tensor],
    plan: Plan,
    answers: list[list[Hypothesis]],
    drawn: Float[Tensor, "n t"] | None = None,
) -> Steps:
    """Yield after each step the new tokens, the unfinished and the finished hypotheses; at the end fill `answers`.

    `drawn` are the random numbers of sampling, if not those of the plan's seed.
    """
    prompts, room = _prompts(plan, inputs)
    rows, samples = len(prompts), plan.best if plan.choice.sample else 1
    if not rows:
        return
    if plan.choice.sample and drawn is None:
        drawn = uniforms(plan.seed, rows, samples, plan.drawn + max(room))[:, plan.drawn :]
    if len(set(map(len, prompts))) > 1 and hooked(model):
        yield from _one_by_one(model, inputs, plan, answers, drawn)
        return
    if samples > 1:  # each sample is a row of its own
        inputs = {name: x.repeat_interleave(samples, dim=0) for name, x in inputs.items()}
        room = [n for n in room for _ in range(samples)]
    width = 1 if plan.choice.sample else plan.beams
    runner = ModelRunner(model, inputs, prompts, samples, width, plan, max(room))
    beams = Beams(rows * samples, width, runner.last, runner.device)
    done = [Finished(width, plan.penalty, plan.stop) for _ in range(rows * samples)]
    if plan.end is None:
        ends = set()
    elif isinstance(plan.end, int):
        ends = {plan.end}
    else:
        ends = set(map(int, plan.end))
    drawn = None if drawn is None else drawn.to(runner.device)
    try:
        for written in range(1, max(room) + 1):
            runner.slide(beams)
            candidates = _candidates(runner, beams, plan, drawn, written)
            if width == 1:
                tokens = dict(zip(beams.answers, candidates.token[:, 0].tolist(), strict=True))
            else:
                tokens = {}
            keep = beams.advance(
                candidates, ends=ends, done=done, written=written, room=room, ended=plan.ended
            )
            yield tokens, beams, done
            if keep is None:
                break
            runner.keep(keep, always=width > 1)
    finally:
        runner.close()
    best = [finished.hypotheses[: plan.best] for finished in done]
    answers += [
        [one for answer in best[i : i + samples] for one in answer]
        for i in range(0, len(best), samples)
    ]


def _prompts(plan: Plan, inputs: Mapping[str, Tensor]) -> tuple[list[list[int]], list[int]]:
    """The prompt of each row, and the number of tokens that it may write."""
    if isinstance(plan.start, int):
        prompts = None
    else:
        prompts = [list(map(int, row)) for row in plan.start]
    if inputs:
        rows = next(iter(inputs.values())).shape[0]
    else:
        rows = len(prompts or ())
    if isinstance(plan.limit, int):
        room = [plan.limit] * rows
    else:
        room = list(plan.limit)
    if len(room) != rows or min(room, default=1) < 1:
        raise InputError(
            f"limit={plan.limit}: expected 1 token or more, one number for all rows or one per row"
        )
    if prompts is not None and (len(prompts) != rows or not all(prompts)):
        raise InputError(
            f"{len(prompts)} prompts for {rows} rows: expected one per row, of a token or more"
        )
    return prompts if prompts is not None else [[int(plan.start)]] * rows, room  # type: ignore[arg-type]


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
        first, limit = i * samples, plan.limit if isinstance(plan.limit, int) else plan.limit[i]
        alone = replace(plan, start=[prompt], limit=limit, ended=_renumbered(plan.ended, first))
        own_inputs = {name: x[i : i + 1] for name, x in inputs.items()}
        own_drawn = None if drawn is None else drawn[first : first + samples]
        for tokens, beams, done in _steps(model, own_inputs, alone, answers, own_drawn):
            yield {first + number: token for number, token in tokens.items()}, beams, done


def _renumbered(ended: Ended | None, first: int) -> Ended | None:
    """`ended` for a search whose answer 0 is answer `first` of the whole search."""
    if ended is None:
        return None
    return lambda number, ids: ended(first + number, ids)


def _candidates(
    runner: ModelRunner, beams: Beams, plan: Plan, drawn: Float[Tensor, "n t"] | None, written: int
) -> Candidates:
    """Take a step, and return the continuations of each row."""
    choice = plan.choice
    graph = runner.graph_step(beams, drawn, written)
    if graph is not None:
        token, gained = graph
        total = beams.logprobs + gained
        return Candidates(torch.zeros_like(token), token, total, total)
    logits = runner.step(beams.last)
    logp = runner.log_softmax(logits)
    ranked = logp
    if choice.repetition != 1.0:
        ranked = penalise(
            logits, runner.seen(beams, logits.shape[-1]), choice.repetition
        ).log_softmax(-1)
    if plan.banned:
        banned = plan.banned
        ranked[
            :, slice(banned.start, banned.stop) if isinstance(banned, range) else list(banned)
        ] = -math.inf
    if drawn is not None:
        token = draw(choice.narrowed(ranked), drawn[beams.answers, written - 1])
        total = beams.logprobs + logp.gather(1, token)
        return Candidates(torch.zeros_like(token), token, total, total)
    origin, token, rank = _best(ranked, beams.ranks, 2 * beams.beams if beams.beams > 1 else 1)
    if ranked is logp:
        return Candidates(origin, token, rank, rank)
    # (b, n) rows of logp
    rows = torch.arange(len(origin), device=origin.device)[:, None] * beams.beams + origin
    return Candidates(origin, token, rank, beams.logprobs.gather(1, origin) + logp[rows, token])


def _best(
    logp: Float[Tensor, "r v"], ranks: Float[Tensor, "b n"], most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest continuations of all beams of each row: which beam, which token, and their summed rank."""
    # no more of a beam can be among the best of its row
    high, token = largest(logp, min(most, logp.shape[-1]))
    total = (ranks.view(-1, 1) + high).view(ranks.shape[0], -1)  # (b, n k)
    rank, at = total.topk(min(most, total.shape[1]), dim=1)
    return at // high.shape[1], token.view(total.shape).gather(1, at), rank

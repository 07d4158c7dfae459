"""One search loop: greedy search is a beam of one, and sampling draws where a beam search takes the best.

A model has `start(inputs, rows, limit) -> state` and `step(ids, state) -> (logits, state)`, and, if it continues
prompts, `read(ids, state, counts)`; a state has `expand(n)` and `reorder(index)`. Rows whose search is over leave the
batch, so that long sentences do not make short ones wait.
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
from .beams import Beams, Finished
from .plan import Hypothesis, Plan
from .reader import Reader
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
    """Yield the tokens of each step, by the number of the answer: row i, or sample j of row i, i n + j.

    One beam, or sampling. An end token is yielded too.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> len(list(stream(model, {}, Plan(start=[[1, 2]], end=None, limit=3))))
        3
    """
    if plan.beams > 1 and not plan.choice.sample:
        raise InputError(f"beams={plan.beams} cannot be streamed: which beam is best is known at the end")
    for here, _, _ in _steps(model, inputs, plan, []):
        yield here


@torch.no_grad()
def follow(model: Any, inputs: Mapping[str, Tensor], plan: Plan) -> Iterator[list[list[Hypothesis]]]:
    """Yield each row's hypotheses after every step, the best first, and at last the result of `search`.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> steps = list(follow(model, {}, Plan(start=[[1]], end=None, limit=3, beams=2)))
        >>> [len(step[0][0].ids) for step in steps]
        [1, 2, 3, 3]
    """
    answers: list[list[Hypothesis]] = []
    for _, beam, done in _steps(model, inputs, plan, answers):
        alive: dict[int, list[Hypothesis]] = {}
        for (row, texts), ranks, sums in zip(beam.rows(), beam.ranks.tolist(), beam.logprobs.tolist(), strict=True):
            unfinished = Finished(len(texts), plan.penalty, plan.stop)
            for text, rank, logprob in zip(texts, ranks, sums, strict=True):
                if rank > -math.inf:
                    unfinished.add(text, rank, logprob, False)
            alive[row] = unfinished.found
        yield [sorted([*d.found, *alive.get(i, [])], key=lambda h: -h.score) for i, d in enumerate(done)]
    yield answers


def _steps(
    model: Any,
    inputs: Mapping[str, Tensor],
    plan: Plan,
    answers: list[list[Hypothesis]],
    drawn: Float[Tensor, "n t"] | None = None,
) -> Iterator[tuple[dict[int, int], Beams, list[Finished]]]:
    """The loop; yields the tokens of each step, the unfinished and the finished, and at the end fills `answers`.

    `drawn` are the random numbers of sampling, if not those of the plan's seed.
    """
    choice, best = plan.choice, plan.best
    prompts = None if isinstance(plan.start, int) else [list(map(int, row)) for row in plan.start]
    rows = next(iter(inputs.values())).shape[0] if inputs else len(prompts or ())
    room = _room(plan, rows)
    if prompts is not None and (len(prompts) != rows or not all(prompts)):
        raise InputError(f"{len(prompts)} prompts for {rows} rows: expected one per row, of a token or more")
    if not rows:
        return
    samples = best if choice.sample else 1
    if choice.sample and drawn is None:
        drawn = uniforms(plan.seed, rows, samples, max(room))
    if prompts is not None and len(set(map(len, prompts))) > 1 and hooked(model):
        yield from _one_by_one(model, inputs, plan, answers, drawn)
        return
    if samples > 1:  # each sample is a row of its own
        inputs = {name: x.repeat_interleave(samples, dim=0) for name, x in inputs.items()}
        room = [n for n in room for _ in range(samples)]
    width = 1 if choice.sample else plan.beams
    starts = prompts if prompts is not None else [[int(plan.start)]] * rows  # type: ignore[arg-type]
    reader = Reader(model, inputs, starts, samples, width, plan, max(room))
    beam = Beams(rows * samples, width, reader.last, reader.device)
    done = [Finished(width, plan.penalty, plan.stop) for _ in range(rows * samples)]
    ends = set() if plan.end is None else {plan.end} if isinstance(plan.end, int) else set(map(int, plan.end))
    drawn = None if drawn is None else drawn.to(reader.device)
    try:
        for written in range(1, max(room) + 1):
            reader.make_room(beam)
            found = _candidates(reader, beam, plan, drawn, written)
            here = dict(zip(beam.which, found[1][:, 0].tolist(), strict=True)) if width == 1 else {}
            keep = beam.take(*found, ends=ends, done=done, written=written, room=room, ended=plan.ended)
            yield here, beam, done
            if keep is None:
                break
            reader.keep(keep, always=width > 1)
    finally:
        reader.close()
    found_all = [finished.found[:best] for finished in done]
    answers += [
        [one for answer in found_all[i : i + samples] for one in answer] for i in range(0, rows * samples, samples)
    ]


def _room(plan: Plan, rows: int) -> list[int]:
    """The number of tokens that each row may write."""
    room = [plan.limit] * rows if isinstance(plan.limit, int) else list(plan.limit)
    if len(room) != rows or min(room, default=1) < 1:
        raise InputError(f"limit={plan.limit}: expected 1 token or more, one number for all rows or one per row")
    return room


def _one_by_one(
    model: Any, inputs: Mapping[str, Tensor], plan: Plan, answers: list[list[Hypothesis]], drawn: Tensor | None
) -> Iterator[tuple[dict[int, int], Beams, list[Finished]]]:
    """Search row by row: in one batch a watcher would see the padding of shorter prompts as queries."""
    samples = plan.best if plan.choice.sample else 1
    assert not isinstance(plan.start, int)
    for i, prompt in enumerate(plan.start):
        first, limit = i * samples, plan.limit if isinstance(plan.limit, int) else plan.limit[i]
        alone = replace(plan, start=[prompt], limit=limit, ended=_numbered(plan.ended, first))
        mine = {name: x[i : i + 1] for name, x in inputs.items()}
        own = None if drawn is None else drawn[first : first + samples]
        for here, beam, done in _steps(model, mine, alone, answers, own):
            yield {first + number: token for number, token in here.items()}, beam, done


def _numbered(ended: Any, first: int) -> Any:
    return None if ended is None else lambda number, ids: ended(first + number, ids)


def _candidates(
    reader: Reader, beam: Beams, plan: Plan, drawn: Tensor | None, written: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Continuations of each row: the beam that each continues, its token, and its summed rank and log-probability."""
    choice = plan.choice
    ahead = reader.ahead(beam, drawn, written)
    if ahead is not None:
        token, gained = ahead
        total = beam.logprobs + gained
        return torch.zeros_like(token), token, total, total
    logits = reader.step(beam.last)
    logp = reader.logp(logits)
    ranked = logp
    if choice.repetition != 1.0:
        ranked = penalise(logits, reader.seen(beam, logits.shape[-1]), choice.repetition).log_softmax(-1)
    if plan.banned:
        ranked[:, list(plan.banned)] = -math.inf
    if drawn is not None:
        token = draw(choice.narrowed(ranked), drawn[beam.which, written - 1])
        total = beam.logprobs + logp.gather(1, token)
        return torch.zeros_like(token), token, total, total
    origin, token, rank = _best(ranked, beam.ranks, 2 * beam.beams if beam.beams > 1 else 1)
    if ranked is logp:
        return origin, token, rank, rank
    rows = torch.arange(len(origin), device=origin.device)[:, None] * beam.beams + origin  # (b, n) rows of logp
    return origin, token, rank, beam.logprobs.gather(1, origin) + logp[rows, token]


def _best(logp: Float[Tensor, "r v"], ranks: Float[Tensor, "b n"], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the likeliest continuations of all its beams: which beam, which token, and their summed rank."""
    high, token = largest(logp, min(most, logp.shape[-1]))  # of each beam: no more can be among its row's best
    total = (ranks.view(-1, 1) + high).view(ranks.shape[0], -1)  # (b, n k)
    rank, at = total.topk(min(most, total.shape[1]), dim=1)
    return at // high.shape[1], token.view(total.shape).gather(1, at), rank

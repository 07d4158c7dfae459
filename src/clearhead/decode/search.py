"""One search loop: greedy is a beam of one, and sampling draws where a beam takes the best.

A model is what can `start(inputs, rows, limit) -> state` and `step(ids, state) -> (logits, state)`; a state is what can
`expand(n)` and `reorder(index)`. Rows whose search is over leave the batch, so that long sentences do not make
short ones wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One answer: its ids (the end token, if it came to it, left out), and what the model thinks of it."""

    ids: tuple[int, ...]
    logprob: float  # sum of the log-probabilities of its tokens, the end included
    score: float  # what the search ranked it by: logprob over its length's penalty
    finished: bool  # it came to its end token; otherwise it was cut off at the limit

    @property
    def tokens(self) -> int:
        """How many tokens its log-probability counts."""
        return len(self.ids) + self.finished


BLOCK = 64  # neighbouring tokens whose maximum is taken first
STOPS = {
    "full": "as soon as `beams` answers are finished",
    "likely": "when no unfinished answer, as it stands, scores better than the worst finished one",
    "sure": "when no unfinished answer can ever score better, however it goes on",
}


@torch.no_grad()
def search(
    model: Any,
    inputs: Mapping[str, Tensor],
    *,
    start: int,  # the token that the model goes on from
    end: int,  # the token that ends an answer
    beams: int = 1,
    limit: int | Sequence[int] = 200,  # tokens to write at most; one for all, or one a row
    penalty: float = 1.0,  # score = logprob / length^penalty: 0 likes short answers, 1 takes the mean
    best: int = 1,  # hypotheses to return a row, at most `beams`
    stop: str = "likely",  # full likely sure: when a row's search is over
    sample: bool = False,  # draw each token instead of taking the likeliest; `best` answers a row
    temperature: float = 1.0,  # below 1 draws likelier tokens, above 1 stranger ones
    banned: Sequence[int] = (),  # tokens that are never written: padding, the start
    seed: int = 0,  # of sampling
) -> list[list[Hypothesis]]:
    """The best hypotheses of every row of the inputs, the best first. Lengths count the end token."""
    beams = best if sample else beams
    if not 1 <= best <= beams:
        raise ValueError(f"best={best} of beams={beams}: expected 1 or more, and no more than beams")
    if stop not in STOPS:
        raise ValueError(f"stop={stop!r}: expected one of {', '.join(STOPS)}")
    if temperature <= 0.0:
        raise ValueError(f"temperature={temperature}: expected a number above 0")
    if sample:  # each draw is a row of its own
        inputs = {name: x.repeat_interleave(best, dim=0) for name, x in inputs.items()}
    first = next(iter(inputs.values()))
    rows, width = first.shape[0], 1 if sample else beams
    room = [limit] * rows if isinstance(limit, int) else [n for n in limit for _ in range(best if sample else 1)]
    if len(room) != rows or min(room, default=1) < 1:
        raise ValueError(f"limit={limit}: expected 1 token or more, one number for all rows or one a row")
    if not rows:
        return []
    state = model.start(inputs, rows, max(room))
    if width > 1:
        state.expand(width)
    beam = _Beams(rows, width, start, first.device)
    done = [_Finished(width, penalty, stop) for _ in range(rows)]
    generator = torch.Generator(first.device).manual_seed(seed) if sample else None
    for written in range(1, max(room) + 1):
        logits, state = model.step(beam.last, state)
        logp = (logits[:, -1].float() / temperature).log_softmax(-1)
        if banned:
            logp[:, list(banned)] = -math.inf
        found = (
            _best(logp, beam.scores, 2 * width if width > 1 else 1)
            if generator is None
            else _draw(logp, beam.scores, generator)
        )
        keep = beam.take(*found, end=end, done=done, written=written, room=room)
        if keep is None:
            break
        if width > 1 or len(keep) < state.rows:
            state.reorder(keep)
    answers = [finished.found[:best] for finished in done]
    if sample:
        answers = [[one for answer in answers[i : i + best] for one in answer] for i in range(0, rows, best)]
    return answers


def _best(logp: Float[Tensor, "r v"], scores: Float[Tensor, "b n"], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the likeliest continuations of all its beams: which beam, which token, and their score."""
    high, token = largest(logp, min(most, logp.shape[-1]))  # of each beam: no more can be among its row's best
    total = (scores.view(-1, 1) + high).view(scores.shape[0], -1)  # (b, n k)
    score, at = total.topk(min(most, total.shape[1]), dim=1)
    return at // high.shape[1], token.view(total.shape).gather(1, at), score


def largest(x: Float[Tensor, "r v"], k: int) -> tuple[Float[Tensor, "r k"], Int[Tensor, "r k"]]:
    """topk of long rows, on a CPU: the k largest numbers lie in the k blocks with the largest maxima, or after them."""
    if k == 1:
        return x.max(-1, keepdim=True)
    whole = x.shape[1] // BLOCK * BLOCK
    if whole < 16 * k * BLOCK or x.device.type != "cpu":
        return x.topk(k, dim=-1)
    blocks = x[:, :whole].unflatten(1, (-1, BLOCK))
    which = blocks.amax(-1).topk(k, dim=-1).indices  # (r, k)
    inside = (which[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    after = torch.arange(whole, x.shape[1]).expand(x.shape[0], -1)
    places = torch.cat([inside, after], dim=1)
    high, at = x.gather(1, places).topk(k, dim=-1)
    return high, places.gather(1, at)


def _draw(
    logp: Float[Tensor, "r v"], scores: Float[Tensor, "b n"], generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """For each row one token, drawn."""
    token = torch.multinomial(logp.exp(), 1, generator=generator)
    return torch.zeros_like(token), token, scores + logp.gather(1, token)


class _Finished:
    """The best finished hypotheses of one row."""

    def __init__(self, most: int, penalty: float, stop: str) -> None:
        self.most, self.penalty, self.stop = most, penalty, stop
        self.found: list[Hypothesis] = []

    def add(self, ids: list[int], logprob: float, finished: bool) -> None:
        score = self._score(logprob, len(ids) + finished)
        self.found.append(Hypothesis(ids=tuple(ids), logprob=logprob, score=score, finished=finished))
        self.found.sort(key=lambda h: -h.score)
        del self.found[self.most :]

    def over(self, logprob: float, length: int, longest: int) -> bool:
        """Whether to give up unfinished hypotheses, of which the best has this log-probability and length."""
        if len(self.found) < self.most:
            return False
        # Log-probabilities are negative and only fall: dividing by the longest length gives the best there can be.
        reach = self._score(logprob, longest if self.stop == "sure" and self.penalty > 0 else length)
        return self.stop == "full" or reach <= self.found[-1].score

    def _score(self, logprob: float, length: int) -> float:
        return logprob / max(length, 1) ** self.penalty


@dataclass
class _Beams:
    """The unfinished hypotheses of the rows that are still searched."""

    rows: int
    beams: int
    start: int
    device: torch.device
    which: list[int] = field(init=False)  # the row of the inputs that each row here is
    scores: Tensor = field(init=False)  # (b, n) log-probabilities
    last: Tensor = field(init=False)  # (b n, 1) the tokens to go on from
    texts: list[list[list[int]]] = field(init=False)  # what each beam has written

    def __post_init__(self) -> None:
        self.which = list(range(self.rows))
        self.scores = torch.full((self.rows, self.beams), -math.inf, device=self.device)
        self.scores[:, 0] = 0.0  # the beams of a row begin alike: one of them is enough
        self.last = torch.full((self.rows * self.beams, 1), self.start, device=self.device)
        self.texts = [[[] for _ in range(self.beams)] for _ in range(self.rows)]

    def take(
        self, origin: Tensor, token: Tensor, score: Tensor, *, end: int, done: list[_Finished], written: int,
        room: list[int],
    ) -> Tensor | None:  # fmt: skip
        """Finish what ended and go on with the best of the rest; gives the rows of the state to keep, None if none."""
        origins, tokens, scores = origin.tolist(), token.tolist(), score.tolist()
        which, texts, keep, following, totals = [], [], [], [], []
        for i, row in enumerate(self.which):
            new: list[tuple[list[int], int, int, float]] = []  # text, row of the state, token, score
            for j, (o, t, s) in enumerate(zip(origins[i], tokens[i], scores[i], strict=True)):
                if s == -math.inf or len(new) == self.beams:
                    break
                text = self.texts[i][o]
                if t == end:
                    if j < self.beams:  # a worse one would not have been a beam either
                        done[row].add(text, s, True)
                elif written == room[row]:
                    if j < self.beams:
                        done[row].add([*text, t], s, False)
                else:
                    new.append(([*text, t], i * self.beams + o, t, s))
            if not new or done[row].over(new[0][3], written, room[row]):
                continue
            new += [(new[0][0], new[0][1], new[0][2], -math.inf)] * (self.beams - len(new))
            which.append(row)
            texts.append([text for text, _, _, _ in new])
            keep += [at for _, at, _, _ in new]
            following += [t for _, _, t, _ in new]
            totals.append([s for _, _, _, s in new])
        if not which:
            return None
        self.which, self.texts = which, texts
        self.scores = torch.tensor(totals, device=self.device)
        self.last = torch.tensor(following, device=self.device)[:, None]
        return torch.tensor(keep, device=self.device)

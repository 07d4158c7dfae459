"""One search loop: greedy is a beam of one, and sampling draws where a beam takes the best.

A model is what can `start(inputs, rows, limit) -> state` and `step(ids, state) -> (logits, state)`, and, if it goes on
from a prompt, `read(ids, state, counts)`; a state is what can `expand(n)` and `reorder(index)`. Rows whose search is
over leave the batch, so that long sentences do not make short ones wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from ..fast import cuda_graph
from .sampling import Choice, chances, draw, largest, repeat_less


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One answer: its ids (the end token, if it came to it, left out), and what the model thinks of it."""

    ids: tuple[int, ...]
    logprob: float  # sum of the log-probabilities of its tokens, the end included
    score: float  # what the search ranked it by: logprob over its length's penalty
    finished: bool  # it came to its end token; otherwise it was cut off: at the limit, or by `ended`

    @property
    def tokens(self) -> int:
        """How many tokens its log-probability counts."""
        return len(self.ids) + self.finished


STOPS = {
    "full": "as soon as `beams` answers are finished",
    "likely": "when no unfinished answer, as it stands, scores better than the worst finished one",
    "sure": "when no unfinished answer can ever score better, however it goes on",
}
GREEDY = Choice()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The options of a search."""

    start: int | Sequence[Sequence[int]]  # the token that all rows go on from, or for each row its prompt
    end: int | Sequence[int] | None  # the token, or tokens, that end an answer
    beams: int = 1  # answers that are followed at a time
    limit: int | Sequence[int] = 200  # tokens to write at most; one for all, or one a row
    penalty: float = 1.0  # score = logprob / length^penalty: 0 likes short answers, 1 takes the mean
    best: int = 1  # hypotheses to return a row, at most `beams`; of sampling, how many to draw
    stop: str = "likely"  # full likely sure: when a row's search is over
    choice: Choice = GREEDY  # how a token is chosen
    banned: Sequence[int] = ()  # tokens that are never written: padding, the start
    seed: int | Sequence[int] = 0  # of sampling; with one a row, its draws do not depend on its neighbours or its place
    slide: bool = False  # beyond the model's context, forget the older half of what it has read
    ended: Callable[[int, Sequence[int]], bool] | None = None  # whether answer i, with these ids so far, is to end

    def __post_init__(self) -> None:
        beams = self.best if self.choice.sample else self.beams
        if not 1 <= self.best <= beams:
            raise InputError(f"best={self.best} of beams={beams}: expected 1 or more, and no more than beams")
        if not -10.0 <= self.penalty <= 10.0:
            raise InputError(f"penalty={self.penalty}: expected -10 to 10, the power of a length")
        if self.stop not in STOPS:
            raise InputError(f"stop={self.stop!r}: expected one of {', '.join(STOPS)}")
        if self.ended is not None and self.beams > 1 and not self.choice.sample:
            raise InputError(f"ended with beams={self.beams}: expected one beam, or sampling")


@torch.no_grad()
def search(
    model: Any,
    inputs: Mapping[str, Tensor],
    *,
    sample: bool = False,
    temperature: float = 1.0,
    **options: Any,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every row of the inputs, or of every prompt, the best first. Lengths count the end token.

    The options are those of Plan; `sample` and `temperature` are those of its choice.
    """
    plan = _plan(sample, temperature, options)
    found: list[list[Hypothesis]] = []
    for _ in _steps(model, inputs, plan, found):
        pass
    return found


@torch.no_grad()
def stream(model: Any, inputs: Mapping[str, Tensor], **options: Any) -> Iterator[dict[int, int]]:
    """The tokens of each step as they are written, by the number of the answer: row i, or sample j of row i, i n + j.

    One beam, or sampling. An end is a token here too.
    """
    plan = Plan(**options)
    if plan.beams > 1 and not plan.choice.sample:
        raise InputError(f"beams={plan.beams} cannot be streamed: what is best is known at the end")
    for here, _, _ in _steps(model, inputs, plan, []):
        yield here


@torch.no_grad()
def follow(model: Any, inputs: Mapping[str, Tensor], **options: Any) -> Iterator[list[list[Hypothesis]]]:
    """What `search` finds, and before it, after every step, each row's hypotheses so far, the best first."""
    plan = Plan(**options)
    found: list[list[Hypothesis]] = []
    for _, beam, done in _steps(model, inputs, plan, found):
        alive: dict[int, list[Hypothesis]] = {}
        for (row, texts), scores in zip(beam.rows(), beam.scores.tolist(), strict=True):
            open_ = _Finished(len(texts), plan.penalty, plan.stop)
            for text, score in zip(texts, scores, strict=True):
                if score > -math.inf:
                    open_.add(text, score, False)
            alive[row] = open_.found
        yield [sorted([*d.found, *alive.get(i, [])], key=lambda h: -h.score) for i, d in enumerate(done)]
    yield found


def _plan(sample: bool, temperature: float, options: Mapping[str, Any]) -> Plan:
    plan = Plan(**options) if not sample else Plan(**{"choice": replace(GREEDY, sample=True), **options})
    return plan if temperature == 1.0 else replace(plan, choice=replace(plan.choice, temperature=temperature))


def _steps(
    model: Any, inputs: Mapping[str, Tensor], plan: Plan, answers: list[list[Hypothesis]]
) -> Iterator[tuple[dict[int, int], _Beams, list[_Finished]]]:
    """The loop; gives what was written at each step, what goes on and what is done, and in the end the answers."""
    choice, best = plan.choice, plan.best
    prompts = None if isinstance(plan.start, int) else [list(map(int, row)) for row in plan.start]
    rows = next(iter(inputs.values())).shape[0] if inputs else len(prompts or ())
    samples = best if choice.sample else 1
    room = [plan.limit] * rows if isinstance(plan.limit, int) else list(plan.limit)
    if len(room) != rows or min(room, default=1) < 1:
        raise InputError(f"limit={plan.limit}: expected 1 token or more, one number for all rows or one a row")
    if prompts is not None and (len(prompts) != rows or not all(prompts)):
        raise InputError(f"{len(prompts)} prompts for {rows} rows: expected one a row, of a token or more")
    if not rows:
        return
    if samples > 1:  # each draw is a row of its own
        inputs = {name: x.repeat_interleave(samples, dim=0) for name, x in inputs.items()}
        room = [n for n in room for _ in range(samples)]
    width = 1 if choice.sample else plan.beams
    device = next(model.parameters()).device
    reader = _Reader(model, inputs, prompts or [[plan.start]] * rows, samples, width, plan, max(room))  # type: ignore[list-item]
    beam = _Beams(rows * samples, width, reader.last, device)
    done = [_Finished(width, plan.penalty, plan.stop) for _ in range(rows * samples)]
    ends = set() if plan.end is None else {plan.end} if isinstance(plan.end, int) else set(map(int, plan.end))
    uniforms = chances(plan.seed, rows, samples, max(room)).to(device) if choice.sample else None
    try:
        for written in range(1, max(room) + 1):
            reader.make_room(beam)
            quick = reader.ahead(beam, uniforms, written)
            if quick is not None:
                found = torch.zeros_like(quick[0]), quick[0], beam.scores + quick[1]
            else:
                logits = reader.step(beam.last)
                if choice.repetition != 1.0:
                    logits = repeat_less(logits, reader.seen(beam, logits.shape[-1]), choice.repetition)
                logp = reader.logp(logits)
                if plan.banned:
                    logp[:, list(plan.banned)] = -math.inf
                if uniforms is None:
                    found = _best(logp, beam.scores, 2 * width if width > 1 else 1)
                else:
                    token = draw(choice.narrowed(logp), uniforms[beam.which, written - 1])
                    found = torch.zeros_like(token), token, beam.scores + logp.gather(1, token)
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


def _best(logp: Float[Tensor, "r v"], scores: Float[Tensor, "b n"], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the likeliest continuations of all its beams: which beam, which token, and their score."""
    high, token = largest(logp, min(most, logp.shape[-1]))  # of each beam: no more can be among its row's best
    total = (scores.view(-1, 1) + high).view(scores.shape[0], -1)  # (b, n k)
    score, at = total.topk(min(most, total.shape[1]), dim=1)
    return at // high.shape[1], token.view(total.shape).gather(1, at), score


class _Reader:
    """The model and its state: what the rows have read, and what has to be forgotten of it."""

    def __init__(
        self, model: Any, inputs: Mapping[str, Tensor], prompts: list[list[int]], samples: int, width: int, plan: Plan,
        room: int,
    ) -> None:  # fmt: skip
        self.model, self.inputs, self.width, self.plan = model, inputs, width, plan
        self.state: Any
        self._ahead: cuda_graph.Ahead | None = None
        self._fresh = True  # nothing was written yet from what was read
        self.device = next(model.parameters()).device
        longest = max(map(len, prompts))
        self.most: int | None = getattr(model, "reach", None)  # tokens a row that the model reads at once
        total = longest + room - 1  # the last token is written, and not read
        if self.most is not None and total > self.most and not plan.slide:
            raise InputError(
                f"a prompt of {longest} tokens and {room} more: this model reads {self.most} at once; expected fewer, "
                "or slide=true to forget the older half whenever they are full"
            )
        self.limit = total if self.most is None else min(total, self.most)
        copies = samples if not inputs else 1  # inputs come repeated
        self.prompts = [prompt for prompt in prompts for _ in range(samples)]  # by the number of the answer
        self.begins = self._read(prompts if copies > 1 else self.prompts)
        if copies > 1:
            self.state.expand(copies)
            self.begins = [n for n in self.begins for _ in range(copies)]
        if width > 1:
            self.state.expand(width)
            self.begins = [n for n in self.begins for _ in range(width)]
        self.last = torch.tensor([[prompt[-1]] for prompt in self.prompts for _ in range(width)], device=self.device)
        self._seen: Tensor | None = None
        self._logp: Tensor | None = None

    def step(self, last: Tensor) -> Float[Tensor, "r v"]:
        logits, self.state = self.model.step(last, self.state)
        return logits[:, -1].float()

    def logp(self, logits: Float[Tensor, "r v"]) -> Float[Tensor, "r v"]:
        """Their log-probabilities, until the next step: of many rows, a new place takes longer to get than to fill."""
        if logits.requires_grad:
            return logits.log_softmax(-1)
        if self._logp is None or self._logp.shape[0] < len(logits):
            self._logp = torch.empty_like(logits)
        return torch.log_softmax(logits, -1, out=self._logp[: len(logits)])

    def ahead(self, beam: _Beams, uniforms: Tensor | None, written: int) -> tuple[Tensor, Tensor] | None:
        """The next token of each row and its log-probability, where a GPU has written them already."""
        if self._fresh and self.width == 1:
            beam.move(self.device)  # read anew, it may stand where what was ahead was read
            chance = None if uniforms is None else uniforms[beam.which, written - 1 :]
            self._ahead = cuda_graph.Ahead.of(
                self.model, self.state, beam.last, self.plan.choice, self.plan.banned, chance,
                lambda vocab: self.seen(beam, vocab),
            )  # fmt: skip
            self._seen = None
        self._fresh = False
        if self._ahead is not None and not self._ahead.unheard:  # somebody has begun to listen
            self._ahead.settle()
            self._ahead = None
        beam.move(self.device if self._ahead is None else torch.device("cpu"))
        return None if self._ahead is None else self._ahead()

    def close(self) -> None:
        """What was ahead is not read."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None

    def keep(self, index: Tensor, always: bool) -> None:
        """Go on with these rows of the state."""
        if not always and len(index) == len(self.begins):
            return
        if self._ahead is None:
            self.state.reorder(index)
        else:
            self._ahead.keep(index.tolist())
        self.begins = [self.begins[i] for i in index.tolist()]
        self._seen = None if self._seen is None else self._seen[index]

    def make_room(self, beam: _Beams) -> None:
        """Where a row has filled the model's context, read the younger part of every row anew.

        Of a text of n tokens the model then reads those from the least multiple of half its context on that leaves no
        more than its context: it makes no difference which of them were the prompt.
        """
        if self.most is None or self.most > self.limit:
            return
        lengths = [len(self.prompts[row]) + len(text) for row, texts in beam.rows() for text in texts]
        if max(n - begin for n, begin in zip(lengths, self.begins, strict=True)) <= self.most:
            return
        self.begins = self._read([self.prompts[row] + text for row, texts in beam.rows() for text in texts])

    def seen(self, beam: _Beams, vocab: int) -> Tensor:
        """The tokens that stand in each row, those of its prompt among them."""
        if self._seen is None:
            self._seen = torch.zeros(len(beam.last), vocab, dtype=torch.bool, device=self.device)
            texts = [self.prompts[row] + text for row, texts in beam.rows() for text in texts]
            for row, text in enumerate(texts):
                self._seen[row, text] = True
        return self._seen.scatter_(1, beam.last, True)

    def _read(self, texts: list[list[int]]) -> list[int]:
        """Begin anew with texts, of which the last token is yet to be stepped; gives where each is read from."""
        self.close()
        self._fresh = True
        begins = [self._begin(len(text)) for text in texts]
        read = [text[begin:-1] for text, begin in zip(texts, begins, strict=True)]
        self.state = self.model.start(self.inputs, len(texts), self.limit)
        longest = max(map(len, read))
        if longest:
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in read], device=self.device)
            ragged = any(len(row) < longest for row in read)
            counts = torch.tensor([len(row) for row in read], device=self.device) if ragged else None
            self.state = self.model.read(ids, self.state, counts)
        return begins

    def _begin(self, tokens: int) -> int:
        if self.most is None or tokens <= self.most:
            return 0
        half = max(self.most // 2, 1)
        return -(-(tokens - self.most) // half) * half


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


class _Beams:
    """The unfinished hypotheses of the rows that are still searched."""

    def __init__(self, rows: int, beams: int, last: Tensor, device: torch.device) -> None:
        self.beams, self.device = beams, device
        self.which = list(range(rows))  # the number of the answer that each row here is
        self.scores = torch.full((rows, beams), -math.inf, device=device)  # log-probabilities
        self.scores[:, 0] = 0.0  # the beams of a row begin alike: one of them is enough
        self.last = last  # (b n, 1) the tokens to go on from
        self.texts: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(rows)]  # what each has written

    def rows(self) -> Iterator[tuple[int, list[list[int]]]]:
        """The number of each row's answer, and what its beams have written."""
        return zip(self.which, self.texts, strict=True)

    def move(self, device: torch.device) -> None:
        """Go on there."""
        if device != self.device:
            self.device, self.scores, self.last = device, self.scores.to(device), self.last.to(device)

    def take(
        self, origin: Tensor, token: Tensor, score: Tensor, *, ends: set[int], done: list[_Finished], written: int,
        room: list[int], ended: Callable[[int, Sequence[int]], bool] | None,
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
                if t in ends:
                    if j < self.beams:  # a worse one would not have been a beam either
                        done[row].add(text, s, True)
                elif written == room[row] or (ended is not None and ended(row, [*text, t])):
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
        self.which, self.texts = which, texts
        self.scores = torch.tensor(totals, device=self.device)
        if not which:
            return None
        self.last = torch.tensor(following, device=self.device)[:, None]
        return torch.tensor(keep, device=self.device)

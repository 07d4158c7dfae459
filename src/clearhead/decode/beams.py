"""The unfinished hypotheses of a search, and the finished ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from .plan import Hypothesis

Ended = Callable[[int, Sequence[int]], bool]  # whether answer i, with these ids so far, is to end


class Candidates(NamedTuple):
    """The likeliest continuations of each row, the best first."""

    origin: Int[Tensor, "b k"]  # the beam that each continues
    token: Int[Tensor, "b k"]
    rank: Float[Tensor, "b k"]  # summed log-probability after penalties, this token included
    logprob: Float[Tensor, "b k"]  # the same before penalties


class Continuation(NamedTuple):
    """An unfinished hypothesis with one more token."""

    ids: list[int]
    state_row: int  # the row of the decoder's state that it continues
    rank: float
    logprob: float


class Finished:
    """The best finished hypotheses of one row."""

    def __init__(self, most: int, penalty: float, stop: str) -> None:
        self.most, self.penalty, self.stop = most, penalty, stop
        self.hypotheses: list[Hypothesis] = []

    def add(self, ids: list[int], rank: float, logprob: float, finished: bool) -> None:
        """Add a hypothesis; `rank` is its summed log-probability after penalties."""
        score = self._score(rank, len(ids) + finished)
        self.hypotheses.append(
            Hypothesis(ids=tuple(ids), logprob=logprob, score=score, finished=finished)
        )
        self.hypotheses.sort(key=lambda h: -h.score)
        del self.hypotheses[self.most :]

    def over(self, rank: float, length: int, longest: int) -> bool:
        """True if no unfinished hypothesis needs to be continued; the best of them has this rank and length."""
        if len(self.hypotheses) < self.most:
            return False
        # Log-probabilities are negative and only fall: dividing by the longest length gives an upper bound.
        bound = self._score(rank, longest if self.stop == "sure" and self.penalty > 0 else length)
        return self.stop == "full" or bound <= self.hypotheses[-1].score

    def _score(self, rank: float, length: int) -> float:
        return rank / max(length, 1) ** self.penalty


class Beams:
    """The unfinished hypotheses of the rows whose search is not over."""

    def __init__(
        self, rows: int, beams: int, last: Int[Tensor, "r 1"], device: torch.device
    ) -> None:
        self.beams, self.device = beams, device
        self.answers = list(range(rows))  # the number of the answer that each row belongs to
        # summed log-probabilities after penalties
        self.ranks = torch.full((rows, beams), -math.inf, device=device)
        # all beams of a row start with the same text: only one of them is continued
        self.ranks[:, 0] = 0.0
        self.logprobs = self.ranks  # before penalties
        self.last = last  # the last token of each hypothesis
        # ids written so far
        self.texts: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(rows)]

    def rows(self) -> Iterator[tuple[int, list[list[int]]]]:
        """The number of each row's answer, and the ids that its beams have written."""
        return zip(self.answers, self.texts, strict=True)

    def move(self, device: torch.device) -> None:
        """Continue on another device."""
        if device != self.device:
            self.device, self.last = device, self.last.to(device)
            self.ranks, self.logprobs = self.ranks.to(device), self.logprobs.to(device)

    def advance(
        self,
        candidates: Candidates,
        *,
        ends: set[int],
        done: list[Finished],
        written: int,
        room: list[int],
        ended: Ended | None,
    ) -> Int[Tensor, "r"] | None:
        """Finish the candidates that end, and continue with the best others.

        Args:
            candidates: The continuations of each row.
            ends: Tokens that end an answer.
            done: The finished hypotheses of each answer; new ones are added.
            written: Tokens that each hypothesis has now.
            room: Tokens that each answer may have.
            ended: Whether an answer is to end, if it is not an end token that ends it.

        Returns:
            The rows of the decoder's state to continue from; None if all searches are over.
        """
        lists = [x.tolist() for x in candidates]
        answers: list[int] = []
        rows: list[list[Continuation]] = []
        for i, answer in enumerate(self.answers):
            choices = zip(*(x[i] for x in lists), strict=True)
            stops = room[answer] == written
            new = self._continue_row(i, choices, ends, done[answer], stops, ended)
            if not new or done[answer].over(new[0].rank, written, room[answer]):
                continue
            new += [new[0]._replace(rank=-math.inf, logprob=-math.inf)] * (self.beams - len(new))
            answers.append(answer)
            rows.append(new)
        self.answers, self.texts = answers, [[one.ids for one in new] for new in rows]
        self.ranks = torch.tensor([[one.rank for one in new] for new in rows], device=self.device)
        self.logprobs = torch.tensor(
            [[one.logprob for one in new] for new in rows], device=self.device
        )
        if not answers:
            return None
        self.last = torch.tensor([[one.ids[-1]] for new in rows for one in new], device=self.device)
        return torch.tensor([one.state_row for new in rows for one in new], device=self.device)

    def _continue_row(
        self,
        i: int,
        choices: Iterable[tuple[int, int, float, float]],
        ends: set[int],
        done: Finished,
        stops: bool,
        ended: Ended | None,
    ) -> list[Continuation]:
        """The unfinished ones of a row's candidates, at most as many as there are beams; the others go to `done`."""
        new: list[Continuation] = []
        for j, (origin, token, rank, logprob) in enumerate(choices):
            if math.isnan(rank) or math.isnan(logprob):
                raise InputError(
                    "the model's logits are not numbers (NaN): expected finite weights; perhaps its training "
                    "diverged, or its checkpoint is damaged"
                )
            if rank == -math.inf or len(new) == self.beams:
                break
            text = self.texts[i][origin]
            if token in ends:
                if j < self.beams:  # a worse one would not have been a beam either
                    done.add(text, rank, logprob, True)
            elif stops or (ended is not None and ended(self.answers[i], [*text, token])):
                if j < self.beams:
                    done.add([*text, token], rank, logprob, False)
            else:
                new.append(Continuation([*text, token], i * self.beams + origin, rank, logprob))
        return new

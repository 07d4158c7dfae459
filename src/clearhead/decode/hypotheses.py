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

# whether answer i, with these ids so far and their log-probability, is to end
Ended = Callable[[int, Sequence[int], float], bool]


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
        self.most = most  # hypotheses that are kept
        self.penalty = penalty  # power of the length that a score is divided by
        self.stop = stop  # when the row is over, a word of STOPS
        self.hypotheses: list[Hypothesis] = []

    def add(self, ids: list[int], rank: float, logprob: float, finished: bool) -> None:
        """Add a hypothesis; `rank` is its summed log-probability after penalties."""
        score = self._score(rank, len(ids) + finished)  # the end token counts too
        self.hypotheses.append(
            Hypothesis(ids=tuple(ids), logprob=logprob, score=score, finished=finished)
        )
        self.hypotheses.sort(key=lambda h: -h.score)
        del self.hypotheses[self.most :]

    def over(self, rank: float, length: int, longest: int) -> bool:
        """True if the row's search can stop, given the rank and length of its best unfinished hypothesis."""
        if len(self.hypotheses) < self.most:
            return False
        if self.stop == "full":
            return True
        if self.stop == "sure" and self.penalty > 0:
            # log-probabilities are negative and only fall: dividing by the longest length gives an upper bound
            length = longest
        return self._score(rank, length) <= self.hypotheses[-1].score

    def _score(self, rank: float, length: int) -> float:
        """rank / length^penalty; an empty text has length 1."""
        return rank / max(length, 1) ** self.penalty


class Beams:
    """The unfinished hypotheses of the rows whose search is not over."""

    def __init__(
        self, rows: int, beams: int, last: Int[Tensor, "r 1"], device: torch.device
    ) -> None:
        self.beams = beams  # hypotheses per row
        self.device = device
        self.answers = list(range(rows))  # the number of the answer that each row belongs to
        # summed log-probabilities after penalties, (rows, beams)
        self.ranks = torch.full((rows, beams), -math.inf, device=device)
        # all beams of a row start with the same text: only one of them is continued
        self.ranks[:, 0] = 0.0
        self.logprobs = self.ranks  # before penalties
        self.last = last  # the last token of each hypothesis
        # ids written so far, by row and beam
        self.texts: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(rows)]

    def rows(self) -> Iterator[tuple[int, list[list[int]]]]:
        """The number of each row's answer, and the ids that its beams have written."""
        return zip(self.answers, self.texts, strict=True)

    def move(self, device: torch.device) -> None:
        """Continue on another device."""
        if device != self.device:
            self.device = device
            self.last = self.last.to(device)
            self.ranks = self.ranks.to(device)
            self.logprobs = self.logprobs.to(device)

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
        # one copy to the host per tensor: reading single numbers would wait for the device each time
        lists = [x.tolist() for x in candidates]
        answers: list[int] = []
        rows: list[list[Continuation]] = []
        for i, answer in enumerate(self.answers):
            choices = zip(*(x[i] for x in lists), strict=True)
            at_limit = room[answer] == written
            beams = self._continue_row(i, choices, ends, done[answer], at_limit, ended)
            # beams[0] has the best rank: if it cannot win, no other beam can
            if not beams or done[answer].over(beams[0].rank, written, room[answer]):
                continue
            if len(beams) < self.beams:
                # all rows have the same number of beams: the others are copies that are never chosen
                copy = beams[0]._replace(rank=-math.inf, logprob=-math.inf)
                beams += [copy] * (self.beams - len(beams))
            answers.append(answer)
            rows.append(beams)
        self.answers = answers
        self.texts = [[beam.ids for beam in beams] for beams in rows]
        ranks = [[beam.rank for beam in beams] for beams in rows]
        logprobs = [[beam.logprob for beam in beams] for beams in rows]
        self.ranks = torch.tensor(ranks, device=self.device)
        self.logprobs = torch.tensor(logprobs, device=self.device)
        if not answers:
            return None
        # (rows, beams) -> (rows x beams), as in the decoder's state
        last = [[beam.ids[-1]] for beams in rows for beam in beams]
        state_rows = [beam.state_row for beams in rows for beam in beams]
        self.last = torch.tensor(last, device=self.device)
        return torch.tensor(state_rows, device=self.device)

    def _continue_row(
        self,
        i: int,
        choices: Iterable[tuple[int, int, float, float]],
        ends: set[int],
        done: Finished,
        at_limit: bool,
        ended: Ended | None,
    ) -> list[Continuation]:
        """Return the best candidates of a row that continue, at most one per beam; add those that end to `done`."""
        beams: list[Continuation] = []
        for j, (origin, token, rank, logprob) in enumerate(choices):
            if math.isnan(rank) or math.isnan(logprob):
                raise InputError(
                    "the model's logits are not numbers (NaN): expected finite weights; perhaps its training "
                    "diverged, or its checkpoint is damaged"
                )
            if rank == -math.inf or len(beams) == self.beams:
                break
            text = self.texts[i][origin]
            # an end that ranks below the beams is dropped, as a continuation that ranks below them is
            would_be_beam = j < self.beams
            if token in ends:
                if would_be_beam:
                    done.add(text, rank, logprob, True)
            elif at_limit or (
                ended is not None and ended(self.answers[i], [*text, token], logprob)
            ):
                if would_be_beam:
                    done.add([*text, token], rank, logprob, False)
            else:
                state_row = i * self.beams + origin
                beams.append(Continuation([*text, token], state_row, rank, logprob))
        return beams

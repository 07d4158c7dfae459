"""The unfinished hypotheses of a search, and the finished ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..errors import InputError
from .plan import Hypothesis


class Finished:
    """The best finished hypotheses of one row."""

    def __init__(self, most: int, penalty: float, stop: str) -> None:
        self.most, self.penalty, self.stop = most, penalty, stop
        self.found: list[Hypothesis] = []

    def add(self, ids: list[int], rank: float, logprob: float, finished: bool) -> None:
        """Add a hypothesis; `rank` is its summed log-probability after penalties."""
        score = self._score(rank, len(ids) + finished)
        self.found.append(Hypothesis(ids=tuple(ids), logprob=logprob, score=score, finished=finished))
        self.found.sort(key=lambda h: -h.score)
        del self.found[self.most :]

    def over(self, rank: float, length: int, longest: int) -> bool:
        """True if the unfinished hypotheses can be given up, of which the best has this rank and length."""
        if len(self.found) < self.most:
            return False
        # Log-probabilities are negative and only fall: dividing by the longest length gives an upper bound.
        bound = self._score(rank, longest if self.stop == "sure" and self.penalty > 0 else length)
        return self.stop == "full" or bound <= self.found[-1].score

    def _score(self, rank: float, length: int) -> float:
        return rank / max(length, 1) ** self.penalty


class Beams:
    """The unfinished hypotheses of the rows whose search is not over."""

    def __init__(self, rows: int, beams: int, last: Tensor, device: torch.device) -> None:
        self.beams, self.device = beams, device
        self.which = list(range(rows))  # the number of the answer that each row here is
        self.ranks = torch.full((rows, beams), -math.inf, device=device)  # summed log-probabilities, after penalties
        self.ranks[:, 0] = 0.0  # the beams of a row begin equal: one of them is enough
        self.logprobs = self.ranks  # before penalties
        self.last = last  # (b n, 1) the last token of each hypothesis
        self.texts: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(rows)]  # what each has written

    def rows(self) -> Iterator[tuple[int, list[list[int]]]]:
        """The number of each row's answer, and what its beams have written."""
        return zip(self.which, self.texts, strict=True)

    def move(self, device: torch.device) -> None:
        """Continue on another device."""
        if device != self.device:
            self.device, self.last = device, self.last.to(device)
            self.ranks, self.logprobs = self.ranks.to(device), self.logprobs.to(device)

    def take(
        self, origin: Tensor, token: Tensor, rank: Tensor, logprob: Tensor, *, ends: set[int], done: list[Finished],
        written: int, room: list[int], ended: Callable[[int, Sequence[int]], bool] | None,
    ) -> Tensor | None:  # fmt: skip
        """Finish what ended and continue with the best of the rest; returns the rows of the state to keep, if any.

        `origin` is the beam that each candidate continues, `rank` and `logprob` its sums with this token.
        """
        origins, tokens, ranks, sums = origin.tolist(), token.tolist(), rank.tolist(), logprob.tolist()
        which, texts, keep, following, totals, plain = [], [], [], [], [], []
        for i, row in enumerate(self.which):
            new: list[tuple[list[int], int, int, float, float]] = []  # text, row of the state, token, rank, logprob
            for j, (o, t, r, p) in enumerate(zip(origins[i], tokens[i], ranks[i], sums[i], strict=True)):
                if math.isnan(r) or math.isnan(p):
                    raise InputError(
                        "the model's logits are not numbers (NaN): expected finite weights; perhaps its training "
                        "diverged, or its checkpoint is damaged"
                    )
                if r == -math.inf or len(new) == self.beams:
                    break
                text = self.texts[i][o]
                if t in ends:
                    if j < self.beams:  # a worse one would not have been a beam either
                        done[row].add(text, r, p, True)
                elif written == room[row] or (ended is not None and ended(row, [*text, t])):
                    if j < self.beams:
                        done[row].add([*text, t], r, p, False)
                else:
                    new.append(([*text, t], i * self.beams + o, t, r, p))
            if not new or done[row].over(new[0][3], written, room[row]):
                continue
            new += [(*new[0][:3], -math.inf, -math.inf)] * (self.beams - len(new))
            which.append(row)
            texts.append([one[0] for one in new])
            keep += [one[1] for one in new]
            following += [one[2] for one in new]
            totals.append([one[3] for one in new])
            plain.append([one[4] for one in new])
        self.which, self.texts = which, texts
        self.ranks, self.logprobs = (torch.tensor(x, device=self.device) for x in (totals, plain))
        if not which:
            return None
        self.last = torch.tensor(following, device=self.device)[:, None]
        return torch.tensor(keep, device=self.device)

"""The options of a search, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..checks import one_of
from ..errors import InputError
from .sampling import Choice

# When a beam search stops: the values of Plan.stop, each with its meaning.
STOPS = {
    "full": "as soon as `beams` answers are finished",
    "likely": "when no unfinished answer, as it is, scores better than the worst finished one",
    "sure": "when no unfinished answer can ever score better, however it continues",
}
GREEDY = Choice()


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """An answer of a search: its ids and its log-probability.

    Examples:
        >>> Hypothesis(ids=(3, 5), logprob=-1.2, score=-0.4, finished=True).tokens
        3
    """

    ids: tuple[int, ...]  # without the prompt and the end token
    logprob: float  # sum of the log-probabilities of its tokens, the end token included, in nats
    score: float  # what the search ranks by: summed log-probability / length^penalty
    # True if it reached an end token; False if it was cut off: at the limit, or by `ended`
    finished: bool

    @property
    def tokens(self) -> int:
        """The number of tokens that its log-probability is summed over."""
        return len(self.ids) + self.finished


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The options of a search: prompts, beams, limits and sampling.

    Examples:
        >>> Plan(start=1, end=2, beams=5).penalty
        1.0
    """

    start: int | Sequence[Sequence[int]]  # the first token of all rows, or a prompt for each row
    end: int | Sequence[int] | None  # the token, or tokens, that end an answer
    beams: int = 1  # number of hypotheses that are kept at each step; 1 is greedy
    # tokens to write at most: one number for all rows, or one per row
    limit: int | Sequence[int] = 200
    # score = logprob / length^penalty: 0 prefers short answers, 1 ranks by the mean
    penalty: float = 1.0
    best: int = 1  # hypotheses to return per row, at most `beams`; samples per row when sampling
    stop: str = "likely"  # when the search of a row is over: full, likely or sure (see STOPS)
    choice: Choice = GREEDY  # how a token is chosen
    banned: Sequence[int] = ()  # tokens that are never written: padding, the start
    # seed of sampling; with one per row, a row's samples do not depend on the other rows
    seed: int | Sequence[int] = 0
    # tokens of the prompts that were sampled with this seed: their random numbers are skipped
    drawn: int = 0
    slide: bool = False  # past the model's context, forget the older half of what it has read
    # whether answer i, with these ids so far, is to end
    ended: Callable[[int, Sequence[int], float], bool] | None = None

    def __post_init__(self) -> None:
        # samples are drawn independently of each other, as many as are asked for
        if self.best < 1 or (self.best > self.beams and not self.choice.sample):
            raise InputError(
                f"best={self.best} of beams={self.beams}: expected 1 or more, and no more than beams"
            )
        check_penalty(self.penalty)
        if self.drawn < 0:
            raise InputError(f"drawn={self.drawn}: expected 0 or more")
        one_of("stop", self.stop, STOPS)
        if self.ended is not None and self.beams > 1 and not self.choice.sample:
            raise InputError(f"ended with beams={self.beams}: expected one beam, or sampling")


def check_penalty(penalty: float) -> None:
    """Raise unless a length penalty, the power of a length, is from -10 to 10."""
    if not -10.0 <= penalty <= 10.0:
        raise InputError(f"penalty={penalty}: expected -10 to 10, the power of a length")

"""Generation and its parts: the options of generating, the pieces of an answer as they come, and the whole answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..checks import at_least
from ..decode import Choice, Hypothesis, Plan, follow
from ..errors import InputError
from ..tokens import Tokenizer
from ..weights import Bundle
from .seeds import seeds_of
from .stop_strings import cut_at_stop, pending, stopper, text_after


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A continuation of a text.

    Examples:
        >>> answer = generate(clearhead.load("everyday"), "The man", max_new=2)
        >>> answer.text == "".join(answer.pieces), answer.ended, answer.seed
        (True, 'limit', None)
    """

    text: str  # the new text, without the stop string if it reached one
    prompt: str  # the text that was continued
    logprob: float  # sum of the log-probabilities of the new tokens under the model, in nats
    pieces: list[str]  # the text of each new token
    ended: str  # why it ended: "end" (an end token), "stop" (a stop string) or "limit" (max_new)
    seed: int | None = None  # the seed of sampling, which gives the same text again; None: not sampled
    others: list[Generation] = field(default_factory=list)  # the other samples of the same prompt

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "others"}
        return values | {"others": [other.to_dict() for other in self.others]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The options of generate, stream and chat; `generate` documents them."""

    max_new: int = 100
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition: float = 1.0
    stop: str | Sequence[str] = ()
    samples: int = 1
    seed: int | Sequence[int] | None = None
    slide: bool = False
    beams: int = 1

    def __post_init__(self) -> None:
        at_least(self, 1, "max_new", "samples", "beams")
        if "" in self.stops:
            raise InputError("stop has an empty text: expected texts that end an answer")
        if self.samples > 1 and self.temperature == 0.0:
            raise InputError(f"samples={self.samples} with temperature=0: all would be the same")
        if self.beams > 1 and (self.choice.sample or self.stops):
            raise InputError(f"beams={self.beams}: a beam search does not sample, and has no stop strings; expected 1")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choice(self) -> Choice:
        """How the next token is chosen: sampled if an option of sampling is given."""
        options = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        sample = any(value is not None for value in (*options.values(), self.seed)) or self.samples > 1
        if self.temperature == 0.0 or not sample:
            return Choice(repetition=self.repetition)
        return Choice(sample=True, repetition=self.repetition, **(options | {"temperature": self.temperature or 1.0}))

    def seeds(self, rows: int) -> list[int]:
        """A seed for each prompt; fresh ones if none is given."""
        if isinstance(self.seed, Sequence):
            if len(self.seed) != rows:
                raise InputError(f"{len(self.seed)} seeds for {rows} texts: expected one for all, or one per text")
            return list(self.seed)
        return seeds_of(self.seed if self.choice.sample else 0, rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A new token of an answer, with the text that it made final.

    The texts of all pieces together are the text of the answer. A text is final when its characters are whole, and
    when it cannot be the start of a stop string; until then the text of a piece is empty. Text that only the end of the
    answer made final is a piece of its own, without token.
    """

    text: str
    id: int | None  # of the token
    logprob: float | None  # log-probability of the token under the model, in nats

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"piece": self.text, "id": self.id, "logprob": self.logprob}


def follow_answer(bundle: Bundle, text: str, prompt: list[int], options: Sampling) -> Iterator[Piece | Generation]:
    """Yield the pieces of an answer as soon as each is known, and at last the Generation.

    Args:
        bundle: A language model.
        text: The prompt, which the Generation repeats.
        prompt: The ids of the prompt.
        options: How to generate: one answer, without a beam search.
    """
    tokens, seeds = bundle.tokenizer(), options.seeds(1)
    before, shown = tokens.decode(np.array(prompt, np.int64)), ""
    plan = Plan(
        start=[prompt], end=end_tokens(bundle), limit=options.max_new, choice=options.choice, slide=options.slide,
        seed=seeds, ended=stopper(tokens, options.stops), banned=bundle.spare_ids,
    )  # fmt: skip
    last = h = Hypothesis(ids=(), logprob=0.0, score=0.0, finished=False)
    for ((h,),) in follow(bundle.model, {}, plan):
        if len(h.ids) > len(last.ids):
            whole = text_after(tokens, [*prompt, *h.ids], len(prompt), before)
            cut, stopped = cut_at_stop(whole, options.stops)
            final = cut if stopped else whole[: len(whole) - pending(whole, options.stops)]
            new = final[len(shown) :] if final.startswith(shown) else ""
            yield Piece(text=new, id=h.ids[-1], logprob=h.logprob - last.logprob)
            shown, last = shown + new, h
    result = generation(tokens, text, prompt, h, options, seeds[0] if options.choice.sample else None)
    if rest := result.text[len(shown) :]:
        yield Piece(text=rest, id=None, logprob=None)
    yield result


def generation(
    tokens: Tokenizer, text: str, prompt: list[int], h: Hypothesis, options: Sampling, seed: int | None
) -> Generation:  # fmt: skip
    """The answer of a search as a Generation."""
    whole = text_after(tokens, [*prompt, *h.ids], len(prompt), tokens.decode(np.array(prompt, np.int64)))
    cut, stopped = cut_at_stop(whole, options.stops)
    return Generation(
        text=cut, prompt=text, logprob=h.logprob, pieces=tokens.pieces(np.array(h.ids, np.int64)), seed=seed,
        ended="stop" if stopped else "end" if h.finished else "limit",
    )  # fmt: skip


def end_tokens(bundle: Bundle) -> list[int]:
    """The end tokens of a model."""
    return [] if bundle.special is None else [int(i) for i in bundle.special.ends]

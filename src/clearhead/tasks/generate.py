"""generate, stream and chat: continue a text at once or piece by piece, or a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .. import decode
from ..checks import at_least
from ..decode import Choice, Hypothesis, Plan, search
from ..errors import InputError
from ..tokens import Tokenizer
from ..tokens.chat_template import render, token_names
from ..weights import Bundle
from .batching import batches
from .seeds import seeds_of
from .stop_strings import cut_at_stop, pending, stopper, text_after

Message = Mapping[str, str]  # {"role": "user", "content": "..."}


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


def generate(
    bundle: Bundle,
    text: str | Sequence[str],
    *,
    max_new: int = 100,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition: float = 1.0,
    stop: str | Sequence[str] = (),
    samples: int = 1,
    seed: int | Sequence[int] | None = None,
    slide: bool = False,
    beams: int = 1,
) -> Generation | list[Generation]:
    """Continue a text, or many at once.

    Each token is the likeliest (greedy decoding), unless an option of sampling is given: a temperature, top_k, top_p,
    min_p, a seed, or several samples.

    Args:
        bundle: A language model.
        text: A prompt, or several.
        max_new: Largest number of new tokens.
        temperature: Below 1 prefers likelier tokens, above 1 flattens the distribution; 0 is greedy.
        top_k: Number of likeliest tokens to sample from.
        top_p: Sample from the fewest tokens with this total probability.
        min_p: Sample from tokens with at least this share of the likeliest token's probability.
        repetition: Penalty of tokens that the text already has; 1 is none, more makes them less likely.
        stop: Strings that end an answer; they are not part of it.
        samples: Answers to sample for each prompt.
        seed: Seed of sampling: one number, or one per prompt. A prompt's samples depend on nothing else. If not given,
            each call uses a fresh seed; the result reports it.
        slide: When the model's context is full, forget the older half of the text and continue.
        beams: Number of hypotheses of a beam search, of which the best is returned; 1 is greedy.

    Returns:
        A Generation, or a list of them for several prompts.

    Examples:
        >>> generate(clearhead.load("everyday"), "The man", max_new=5, temperature=0.7, seed=1).ended
        'limit'
    """
    options = Sampling(
        max_new=max_new, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition=repetition,
        stop=stop, samples=samples, seed=seed, slide=slide, beams=beams,
    )  # fmt: skip
    tokens, choice = _tokenizer(bundle), options.choice
    texts = [text] if isinstance(text, str) else list(text)
    prompts = [bundle.prompt(one) for one in texts]
    seeds = options.seeds(len(texts))
    results: dict[int, Generation] = {}
    for rows in batches([(len(prompt) + max_new) * samples for prompt in prompts], bundle.model):
        plan = Plan(
            start=[prompts[i] for i in rows], end=_ends(bundle), limit=max_new, beams=beams, best=samples,
            choice=choice, slide=slide, seed=[seeds[i] for i in rows], ended=stopper(tokens, options.stops),
        )  # fmt: skip
        for i, hypotheses in zip(rows, search(bundle.model, {}, plan), strict=True):
            used = seeds[i] if choice.sample else None
            first, *others = [_generation(tokens, texts[i], prompts[i], h, options, used) for h in hypotheses]
            first.others.extend(others)
            results[i] = first
    return results[0] if isinstance(text, str) else [results[i] for i in range(len(texts))]


def stream(
    bundle: Bundle,
    text: str,
    *,
    max_new: int = 100,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    slide: bool = False,
) -> Iterator[str]:
    """Yield the continuation of a text piece by piece, as soon as each is final; the options are those of `generate`.

    Args:
        bundle: A language model.
        text: A prompt.
        max_new: Largest number of new tokens.
        temperature: Below 1 prefers likelier tokens, above 1 flattens the distribution; 0 is greedy.
        top_k: Number of likeliest tokens to sample from.
        top_p: Sample from the fewest tokens with this total probability.
        min_p: Sample from tokens with at least this share of the likeliest token's probability.
        repetition: Penalty of tokens that the text already has; 1 is none, more makes them less likely.
        stop: Strings that end the answer; they are not part of it.
        seed: Seed of sampling; a fresh one if not given.
        slide: When the model's context is full, forget the older half of the text and continue.

    Examples:
        >>> "".join(stream(clearhead.load("everyday"), "The man", max_new=3))
        ' is standing in'
    """
    options = Sampling(
        max_new=max_new, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition=repetition,
        stop=stop, seed=seed, slide=slide,
    )  # fmt: skip
    tokens = _tokenizer(bundle)
    yield from _pieces(bundle, tokens, bundle.prompt(text), options)


def chat(
    bundle: Bundle,
    messages: Sequence[Message],
    *,
    max_new: int = 100,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition: float = 1.0,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
    slide: bool = False,
) -> Iterator[str]:
    """Yield a chat model's next answer piece by piece; the options are those of `generate`.

    Args:
        bundle: A language model with a chat template.
        messages: The conversation so far: [{"role": "user", "content": "Hello!"}].
        max_new: Largest number of new tokens.
        temperature: Below 1 prefers likelier tokens, above 1 flattens the distribution; 0 is greedy.
        top_k: Number of likeliest tokens to sample from.
        top_p: Sample from the fewest tokens with this total probability.
        min_p: Sample from tokens with at least this share of the likeliest token's probability.
        repetition: Penalty of tokens that the text already has; 1 is none, more makes them less likely.
        stop: Strings that end the answer; they are not part of it.
        seed: Seed of sampling; a fresh one if not given.
        slide: When the model's context is full, forget the older half of the text and continue.

    Examples:
        >>> bundle = clearhead.load("everyday")
        >>> bundle = dataclasses.replace(bundle, chat="{{ messages[-1].content }} -")
        >>> len(list(chat(bundle, [{"role": "user", "content": "The man"}], max_new=3)))
        3
    """
    options = Sampling(
        max_new=max_new, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition=repetition,
        stop=stop, seed=seed, slide=slide,
    )  # fmt: skip
    yield from _pieces(bundle, _tokenizer(bundle), conversation(bundle, messages), options)


def conversation(bundle: Bundle, messages: Sequence[Message]) -> list[int]:
    """Return the prompt ids of a conversation, up to where the model answers, by the model's chat template.

    Args:
        bundle: A language model with a chat template.
        messages: The conversation so far: [{"role": "user", "content": "Hello!"}].

    Examples:
        >>> bundle = dataclasses.replace(clearhead.load("everyday"), chat="{{ messages[-1].content }} -")
        >>> bundle.tokens.pieces(conversation(bundle, [{"role": "user", "content": "The man"}]))
        ['The', ' man', ' ', '-']
    """
    tokens = _tokenizer(bundle)
    if bundle.chat is None:
        raise InputError("this model has no chat template: expected a chat model; `generate` continues texts")
    return [int(i) for i in tokens.marked(render(bundle.chat, messages, token_names(bundle.special, tokens)))]


def _pieces(bundle: Bundle, tokens: Tokenizer, prompt: list[int], options: Sampling) -> Iterator[str]:
    """Yield text as soon as it is final: whole characters, and nothing that may be the start of a stop string."""
    ends, ids, shown = _ends(bundle), [int(i) for i in prompt], ""
    before, first = tokens.decode(np.array(ids, np.int64)), len(ids)
    plan = Plan(
        start=[prompt], end=ends, limit=options.max_new, choice=options.choice, slide=options.slide,
        seed=options.seeds(1), ended=stopper(tokens, options.stops),
    )  # fmt: skip
    for new in decode.stream(bundle.model, {}, plan):
        if new[0] in ends:
            break
        ids.append(new[0])
        text = text_after(tokens, ids, first, before)
        cut, stopped = cut_at_stop(text, options.stops)
        final = cut if stopped else text[: len(text) - pending(text, options.stops)]
        if len(final) > len(shown) and final.startswith(shown):
            yield final[len(shown) :]
            shown = final
        if stopped:
            return
    rest = text_after(tokens, ids, first, before)
    if rest[len(shown) :]:
        yield rest[len(shown) :]


def _generation(
    tokens: Tokenizer, text: str, prompt: list[int], h: Hypothesis, options: Sampling, seed: int | None
) -> Generation:  # fmt: skip
    whole = text_after(tokens, [*prompt, *h.ids], len(prompt), tokens.decode(np.array(prompt, np.int64)))
    cut, stopped = cut_at_stop(whole, options.stops)
    return Generation(
        text=cut, prompt=text, logprob=h.logprob, pieces=tokens.pieces(np.array(h.ids, np.int64)), seed=seed,
        ended="stop" if stopped else "end" if h.finished else "limit",
    )  # fmt: skip


def _tokenizer(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a model that generates; raises for other models."""
    bundle.require("generate", "a GPT")
    return bundle.tokenizer()


def _ends(bundle: Bundle) -> list[int]:
    """The end tokens of a model."""
    return [] if bundle.special is None else [int(i) for i in bundle.special.ends]

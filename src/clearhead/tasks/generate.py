"""generate, stream and chat: continue a text, whole or piece by piece, or a conversation."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .. import decode
from ..checks import at_least
from ..decode import Choice, Hypothesis, Plan, search
from ..errors import InputError
from ..tokens import Tokenizer
from ..weights import Bundle
from .batching import batches
from .chat_template import render

HALF = "\ufffd"  # how a character is shown of which not all bytes are there
Message = Mapping[str, str]  # {"role": "user", "content": "..."}


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A continuation of a text."""

    text: str  # the new text, without the stop string if it reached one
    prompt: str  # the text that it continues
    logprob: float  # sum of the log-probabilities of the new tokens under the model, in nats
    pieces: list[str]  # the text of each new token
    ended: str  # why it ended: "end" (an end token), "stop" (a stop string) or "limit" (max_new)
    seed: int | None = None  # of sampling: with it, the same text can be sampled again
    others: list[Generation] = field(default_factory=list)  # the other samples, if there are some

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "others"}
        return found | {"others": [other.to_dict() for other in self.others]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The options of generate, stream and chat; see `generate`."""

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
            raise InputError(f"beams={self.beams}: a beam search does not sample, and knows no stop strings")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choice(self) -> Choice:
        """How the next token is chosen: sampled if any option of sampling is given."""
        given = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        samples = any(value is not None for value in (*given.values(), self.seed)) or self.samples > 1
        if self.temperature == 0.0 or not samples:
            return Choice(repetition=self.repetition)
        return Choice(sample=True, repetition=self.repetition, **(given | {"temperature": self.temperature or 1.0}))

    def seeds(self, rows: int) -> list[int]:
        """A seed for each prompt: fresh ones if none is given."""
        if isinstance(self.seed, Sequence):
            if len(self.seed) != rows:
                raise InputError(f"{len(self.seed)} seeds for {rows} texts: expected one for all, or one per text")
            return list(self.seed)
        first = secrets.randbelow(1 << 31) if self.seed is None and self.choice.sample else self.seed or 0
        return [first + row for row in range(rows)]


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

    The likeliest token is taken each time, unless an option of sampling is given: a temperature, top_k, top_p, min_p, a
    seed, or several samples.

    Args:
        bundle: A language model.
        text: A prompt, or several.
        max_new: Tokens to write at most.
        temperature: Below 1 prefers likelier tokens, above 1 flattens the distribution; 0 takes the likeliest.
        top_k: Number of likeliest tokens to sample from.
        top_p: Sample from the fewest tokens with this total probability.
        min_p: Sample from tokens with at least this share of the likeliest token's probability.
        repetition: Above 1 makes tokens less likely that the text already has.
        stop: Texts that end an answer, and are no part of it.
        samples: Answers to sample for each prompt.
        seed: Of sampling: one, or one per prompt, whose samples then depend on nothing else. If not given, each call
            samples anew; the result says which seed it used.
        slide: Past the model's context, forget the older half of what was read.
        beams: Hypotheses of a beam search; the best is returned.

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
    found: list[Generation | None] = [None] * len(texts)
    for rows in batches([(len(prompt) + max_new) * samples for prompt in prompts], bundle.model):
        plan = Plan(
            start=[prompts[i] for i in rows], end=_ends(bundle), limit=max_new, beams=beams, best=samples,
            choice=choice, slide=slide, seed=[seeds[i] for i in rows], ended=_stopper(tokens, options.stops),
        )  # fmt: skip
        for i, hypotheses in zip(rows, search(bundle.model, {}, plan), strict=True):
            used = seeds[i] if choice.sample else None
            first, *others = [_generation(tokens, texts[i], prompts[i], h, options, used) for h in hypotheses]
            first.others.extend(others)
            found[i] = first
    results = [one for one in found if one is not None]
    return results[0] if isinstance(text, str) else results


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
    """Yield the continuation of a text piece by piece, as it is written; the options are those of `generate`.

    Args:
        bundle: A language model.
        text: A prompt.
        max_new: Tokens to write at most.
        temperature: Below 1 prefers likelier tokens, above 1 flattens the distribution; 0 takes the likeliest.
        top_k: Number of likeliest tokens to sample from.
        top_p: Sample from the fewest tokens with this total probability.
        min_p: Sample from tokens with at least this share of the likeliest token's probability.
        repetition: Above 1 makes tokens less likely that the text already has.
        stop: Texts that end the answer, and are no part of it.
        seed: Of sampling; a fresh one if not given.
        slide: Past the model's context, forget the older half of what was read.

    Examples:
        >>> "".join(stream(clearhead.load("everyday"), "The man", max_new=3))
        ' is a'
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
        max_new: Tokens to write at most.
        temperature: Below 1 prefers likelier tokens, above 1 flattens the distribution; 0 takes the likeliest.
        top_k: Number of likeliest tokens to sample from.
        top_p: Sample from the fewest tokens with this total probability.
        min_p: Sample from tokens with at least this share of the likeliest token's probability.
        repetition: Above 1 makes tokens less likely that the text already has.
        stop: Texts that end the answer, and are no part of it.
        seed: Of sampling; a fresh one if not given.
        slide: Past the model's context, forget the older half of what was read.

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
    """The prompt ids of a conversation, up to where the model answers, by the checkpoint's chat template."""
    tokens = _tokenizer(bundle)
    if bundle.chat is None:
        raise InputError("this model has no chat template: expected a chat model; `generate` continues texts")
    special = {"bos_token": tokens.start, "eos_token": tokens.end, "pad_token": tokens.pad}
    names = {name: "" if i is None else tokens.pieces([i])[0] for name, i in special.items()}
    return [int(i) for i in tokens.marked(render(bundle.chat, messages, names))]


def _pieces(bundle: Bundle, tokens: Tokenizer, prompt: list[int], options: Sampling) -> Iterator[str]:
    """Text as soon as it is sure: whole characters, and nothing that may be the beginning of a stop string."""
    ends, ids, shown = _ends(bundle), [int(i) for i in prompt], ""
    before, first = tokens.decode(np.array(ids, np.int64)), len(ids)
    plan = Plan(
        start=[prompt], end=ends, limit=options.max_new, choice=options.choice, slide=options.slide,
        seed=options.seeds(1), ended=_stopper(tokens, options.stops),
    )  # fmt: skip
    for new in decode.stream(bundle.model, {}, plan):
        if new[0] in ends:
            break
        ids.append(new[0])
        text = _after(tokens, ids, first, before)
        cut, stopped = _cut(text, options.stops)
        sure = cut if stopped else text[: len(text) - _pending(text, options.stops)]
        if len(sure) > len(shown) and sure.startswith(shown):
            yield sure[len(shown) :]
            shown = sure
        if stopped:
            return
    rest = _after(tokens, ids, first, before)
    if rest[len(shown) :]:
        yield rest[len(shown) :]


def _generation(
    tokens: Tokenizer, text: str, prompt: list[int], h: Hypothesis, options: Sampling, seed: int | None
) -> Generation:  # fmt: skip
    whole = _after(tokens, [*prompt, *h.ids], len(prompt), tokens.decode(np.array(prompt, np.int64)))
    cut, stopped = _cut(whole, options.stops)
    return Generation(
        text=cut, prompt=text, logprob=h.logprob, pieces=tokens.pieces(np.array(h.ids, np.int64)), seed=seed,
        ended="stop" if stopped else "end" if h.finished else "limit",
    )  # fmt: skip


def _after(tokens: Tokenizer, ids: list[int], first: int, before: str) -> str:
    """The text of ids from `first` on, as it stands after the text before it, where a space may matter."""
    whole = tokens.decode(np.array(ids, np.int64))
    if before and not before.endswith(HALF) and whole.startswith(before):
        return whole[len(before) :]
    return tokens.decode(np.array(ids[first:], np.int64))


def _cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """A text up to its first stop string, and whether there is one."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _pending(text: str, stops: tuple[str, ...]) -> int:
    """How many characters at the end are not sure yet: half a character, or the beginning of a stop string."""
    half = len(text) - len(text.rstrip(HALF))
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max([half, *begun])


class _Stopper:
    """Whether an answer has reached a stop string: it is in the last tokens, since a character has at most 4 bytes."""

    def __init__(self, tokens: Tokenizer, stops: tuple[str, ...]) -> None:
        self.tokens, self.stops = tokens, stops
        self.tail = 4 * max(map(len, stops)) + 4

    def __call__(self, row: int, ids: Sequence[int]) -> bool:
        tail = self.tokens.decode(np.array(ids[-self.tail :], np.int64))
        return any(stop in tail for stop in self.stops)


def _stopper(tokens: Tokenizer, stops: tuple[str, ...]) -> _Stopper | None:
    return _Stopper(tokens, stops) if stops else None


def _tokenizer(bundle: Bundle) -> Tokenizer:
    bundle.require("generate", "a GPT")
    return bundle.tokenizer()


def _ends(bundle: Bundle) -> list[int]:
    return [] if bundle.special is None else [int(i) for i in bundle.special.ends]

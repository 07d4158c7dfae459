"""generate, stream and chat: continue a text at once or piece by piece, or a conversation."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from ..checks import at_least
from ..decode import Choice, Hypothesis, Plan, follow, search
from ..errors import InputError
from ..fast import hooked
from ..inputs.batching import by_length
from ..inputs.texts import check_text, texts_of
from ..tokens import Tokenizer
from ..tokens.chat_template import render, token_names
from ..weights import Bundle, ModelLike, opened

# Stop strings and streamed text: where an answer is cut, and which of its characters are final.


HALF = "\ufffd"  # how a tokenizer shows a character whose bytes are not all there


class Stopper:
    """Whether an answer has reached a stop string.

    Call it with the number of the answer, its ids so far and their log-probability, which it keeps: an answer that is
    cut at a stop string has that of the tokens before. Only the last tokens are decoded: a character has at most 4
    bytes, and a token at least one.
    """

    def __init__(self, tokens: Tokenizer, stops: tuple[str, ...]) -> None:
        self.tokens, self.stops = tokens, stops
        self.tail = 4 * max(map(len, stops)) + 4
        # of each answer after 0, 1, 2, ... tokens
        self.logprobs: dict[int, list[float]] = {}

    def __call__(self, answer: int, ids: Sequence[int], logprob: float) -> bool:
        self.logprobs.setdefault(answer, [0.0]).append(logprob)
        # its first character may be cut in half, which no stop string needs
        tail = self.tokens.decode(np.array(ids[-self.tail :], np.int64))
        return any(stop in tail for stop in self.stops)


def stopper(tokens: Tokenizer, stops: tuple[str, ...]) -> Stopper | None:
    """A Stopper for these stop strings; None if there are none."""
    return Stopper(tokens, stops) if stops else None


def text_after(tokens: Tokenizer, ids: list[int], first: int, before: str) -> str:
    """The text of the ids from `first` on, as it continues the text `before`: a leading space is kept."""
    # SentencePiece drops the space before the first token of a text: the difference of two
    # decoded texts keeps it
    whole = tokens.decode(np.array(ids, np.int64))
    # a prompt that ends inside a character changes once the rest of its bytes is there
    if before and not before.endswith(HALF) and whole.startswith(before):
        # the prompt's own text is a prefix: the rest is the answer, with its space
        return whole[len(before) :]
    return tokens.decode(np.array(ids[first:], np.int64))


def cut_at_stop(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """A text up to its first stop string, and whether there is one."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    if places:
        # the earliest of all stop strings
        return (text[: min(places)], True)
    return (text, False)


def pending(text: str, stops: tuple[str, ...]) -> int:
    """The number of characters at the end that may still change: half a character, or the start of a stop string."""
    half = len(text) - len(text.rstrip(HALF))
    # prefixes of a stop string, shorter than all of it
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max([half, *begun])


# The seeds of sampling: one per text, so that a text's samples do not depend on the others in its batch.


def seeds_of(seed: int | None, texts: int) -> list[int]:
    """A seed for each text: seed, seed + 1, ...; a fresh random seed if none is given."""
    first = secrets.randbelow(1 << 31) if seed is None else seed
    return [first + i for i in range(texts)]


# Generation and its parts: the options of generating, the pieces of an answer as they come, and the whole answer.


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
    # sum of the log-probabilities under the model, in nats: of `pieces`, and of the end token if it ended so
    logprob: float
    # the part that each new token has in `text`: a token of which a stop string leaves nothing is not among them
    pieces: list[str]
    ended: str  # why it ended: "end" (an end token), "stop" (a stop string) or "limit" (max_new)
    # the seed of sampling, which gives the same text again; None: not sampled
    seed: int | None = None
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
        # every text contains "": each answer would end at its first token
        if "" in self.stops:
            raise InputError("stop has an empty text: expected texts that end an answer")
        if self.samples > 1 and self.temperature == 0.0:
            raise InputError(f"samples={self.samples} with temperature=0: all would be the same")
        if self.beams > 1 and (self.choice.sample or self.stops):
            raise InputError(
                f"beams={self.beams}: a beam search does not sample, and has no stop strings; expected 1"
            )

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop)

    @property
    def choice(self) -> Choice:
        """How the next token is chosen: sampled if an option of sampling is given."""
        options = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        sample = (
            any(value is not None for value in (*options.values(), self.seed)) or self.samples > 1
        )
        # greedy; the penalty of repeated tokens also applies to the argmax
        if self.temperature == 0.0 or not sample:
            return Choice(repetition=self.repetition)
        return Choice(
            sample=True,
            repetition=self.repetition,
            **(options | {"temperature": self.temperature or 1.0}),
        )

    def seeds(self, rows: int) -> list[int]:
        """A seed for each prompt; fresh ones if none is given."""
        # a seed per prompt
        if isinstance(self.seed, Sequence):
            if len(self.seed) != rows:
                raise InputError(
                    f"{len(self.seed)} seeds for {rows} texts: expected one for all, or one per text"
                )
            return list(self.seed)
        # a greedy search draws nothing: any seed will do
        return seeds_of(self.seed if self.choice.sample else 0, rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A new token of an answer, with the text that it made final.

    The texts of all pieces together are the text of the answer. A text is final when its characters are whole, and
    when it cannot be the start of a stop string; until then the text of a piece is empty. Text that only the end of the
    answer made final is a piece of its own, without token. The tokens of a stop string are pieces without text, which
    the Generation leaves out of `pieces` and `logprob`.
    """

    text: str
    id: int | None  # of the token
    logprob: float | None  # log-probability of the token under the model, in nats

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"piece": self.text, "id": self.id, "logprob": self.logprob}


def follow_answer(
    bundle: Bundle, text: str, prompt: list[int], options: Sampling
) -> Iterator[Piece | Generation]:
    """Yield the pieces of an answer as soon as each is known, and at last the Generation.

    Args:
        bundle: A language model.
        text: The prompt, which the Generation repeats.
        prompt: The ids of the prompt.
        options: How to generate: one answer, without a beam search.
    """
    tokens, seeds = bundle.tokenizer(), options.seeds(1)
    ended = stopper(tokens, options.stops)
    before, shown = tokens.decode(np.array(prompt, np.int64)), ""
    plan = Plan(
        start=[prompt],
        end=end_tokens(bundle),
        limit=options.max_new,
        choice=options.choice,
        slide=options.slide,
        seed=seeds,
        ended=ended,
        banned=bundle.spare_ids,
    )
    # what is known of the answer so far; `shown` is the text that was yielded
    last = h = Hypothesis(ids=(), logprob=0.0, score=0.0, finished=False)
    for ((h,),) in follow(bundle.model, {}, plan):
        # the search also yields when it ends, without a new token
        if len(h.ids) > len(last.ids):
            # decoded as a whole, because a token may be a part of a character
            whole = text_after(tokens, [*prompt, *h.ids], len(prompt), before)
            cut, stopped = cut_at_stop(whole, options.stops)
            if stopped:
                # the stop string itself is not part of the answer
                final = cut
            else:
                # hold back what may still change, or begin a stop string
                final = whole[: len(whole) - pending(whole, options.stops)]
            # yielded text cannot be taken back: if decoding changes it, nothing new is final yet
            new = final[len(shown) :] if final.startswith(shown) else ""
            # h.logprob is the sum so far, and its increase is the newest token's
            yield Piece(text=new, id=h.ids[-1], logprob=h.logprob - last.logprob)
            shown, last = shown + new, h
    seed = seeds[0] if options.choice.sample else None
    logprobs = [] if ended is None else ended.logprobs.get(0, [])
    result = generation(tokens, text, prompt, h, options, seed, logprobs)
    # the end may show that what looked like the start of a stop string is text
    if rest := result.text[len(shown) :]:
        yield Piece(text=rest, id=None, logprob=None)
    yield result


def generation(
    tokens: Tokenizer,
    text: str,
    prompt: list[int],
    h: Hypothesis,
    options: Sampling,
    seed: int | None,
    logprobs: Sequence[float] = (),
) -> Generation:
    """The answer of a search as a Generation; `logprobs` are its sums after 0, 1, 2, ... tokens, for a stop string."""
    before = tokens.decode(np.array(prompt, np.int64))

    def text_of(count: int) -> str:
        return text_after(tokens, [*prompt, *h.ids[:count]], len(prompt), before)

    whole, count = text_of(len(h.ids)), len(h.ids)
    cut, stopped = cut_at_stop(whole, options.stops)
    pieces = tokens.pieces(np.array(h.ids, np.int64))
    ended = "end" if h.finished else "limit"
    logprob = h.logprob
    if stopped:
        # the text was cut there, whether or not an end token or the limit came later
        ended = "stop"
        # tokens of which nothing is left do not count
        while count and text_of(count - 1).startswith(cut):
            count -= 1
        # the stop string may begin inside the last token
        rest = text_of(count)[len(cut) :]
        pieces = pieces[:count]
        if count and rest:
            pieces[-1] = pieces[-1].removesuffix(rest)
        # the last sum is missing if the limit came with the stop string
        if count < len(logprobs):
            logprob = logprobs[count]
    return Generation(text=cut, prompt=text, logprob=logprob, pieces=pieces, seed=seed, ended=ended)


def end_tokens(bundle: Bundle) -> list[int]:
    """The end tokens of a model."""
    if bundle.special is None:
        return []
    return [int(i) for i in bundle.special.ends]


class GenerateOptions(TypedDict, total=False):
    """The options of `generate`, for type checkers; the function documents them."""

    max_new: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition: float
    stop: str | Sequence[str]
    samples: int
    seed: int | Sequence[int] | None
    slide: bool
    beams: int


Message = Mapping[str, str]  # {"role": "user", "content": "..."}


@overload
def generate(bundle: ModelLike, text: str, **options: Unpack[GenerateOptions]) -> Generation: ...  # type: ignore[overload-overlap]


@overload
def generate(
    bundle: ModelLike, text: Sequence[str], **options: Unpack[GenerateOptions]
) -> list[Generation]: ...


def generate(
    bundle: ModelLike,
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
        bundle: A language model, or the name or folder of one, which is then loaded at each call.
        text: A prompt, or several.
        max_new: Largest number of new tokens.
        temperature: Below 1 prefers likelier tokens, above 1 flattens the distribution; 0 is greedy.
        top_k: Number of likeliest tokens to sample from.
        top_p: Sample from the fewest tokens with this total probability.
        min_p: Sample from tokens with at least this share of the likeliest token's probability.
        repetition: Penalty of tokens that the text already has; 1 is none, more makes them less likely.
        stop: Strings that end an answer; they are not part of it, and their tokens count in neither `pieces` nor
            `logprob`. A token that ends inside one counts, and its piece is cut.
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
        max_new=max_new,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition=repetition,
        stop=stop,
        samples=samples,
        seed=seed,
        slide=slide,
        beams=beams,
    )
    bundle = opened(bundle)
    tokens, choice = _tokenizer(bundle), options.choice
    texts = texts_of(bundle, text)
    prompts = [bundle.prompt(one) for one in texts]
    seeds = options.seeds(len(texts))
    results: dict[int, Generation] = {}
    # room for the prompt, the answer and all samples of it
    for rows in by_length([(len(prompt) + max_new) * samples for prompt in prompts], bundle.model):
        ended = stopper(tokens, options.stops)
        plan = Plan(
            start=[prompts[i] for i in rows],
            end=end_tokens(bundle),
            limit=max_new,
            beams=beams,
            best=samples,
            choice=choice,
            slide=slide,
            seed=[seeds[i] for i in rows],
            ended=ended,
            banned=bundle.spare_ids,
        )
        for row, hypotheses in enumerate(search(bundle.model, {}, plan)):
            i = rows[row]
            # greedy answers need no seed to be reproduced
            used = seeds[i] if choice.sample else None
            answers = []
            for sample, h in enumerate(hypotheses):
                # sample j of row i is the answer i n + j of the search
                number = row * samples + sample
                logprobs = [] if ended is None else ended.logprobs.get(number, [])
                answers.append(generation(tokens, texts[i], prompts[i], h, options, used, logprobs))
            # the best hypothesis, or the first sample, is the result
            first, *others = answers
            # Generation is frozen, but its list of others can grow
            first.others.extend(others)
            # batches come by length: put back by number
            results[i] = first
    if isinstance(text, str):
        return results[0]
    return [results[i] for i in range(len(texts))]


def stream(
    bundle: ModelLike,
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

    The result is an iterator: `for piece in stream(...): print(piece, end="")` shows the text as it comes, and
    `"".join(stream(...))` is all of it.

    Inside `watch` or `edit` the whole answer is computed at once, so that they see it.

    Args:
        bundle: A language model, or its name or folder.
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
        max_new=max_new,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition=repetition,
        stop=stop,
        seed=seed,
        slide=slide,
    )
    bundle = opened(bundle)
    # checked now, since the generator below runs only when it is read
    _tokenizer(bundle)
    check_text(bundle, text)
    return _texts(bundle, follow_answer(bundle, text, bundle.prompt(text), options))


def chat(
    bundle: ModelLike,
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

    The result is an iterator: `for piece in chat(...): print(piece, end="")` shows the answer as it comes, and
    `"".join(chat(...))` is all of it.

    Inside `watch` or `edit` the whole answer is computed at once, so that they see it.

    Args:
        bundle: A language model with a chat template, or its name or folder.
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
        max_new=max_new,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition=repetition,
        stop=stop,
        seed=seed,
        slide=slide,
    )
    bundle = opened(bundle)
    return _texts(bundle, follow_answer(bundle, "", conversation(bundle, messages), options))


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
        raise InputError(
            "this model has no chat template: expected a chat model; `generate` continues texts"
        )
    text = render(bundle.chat, messages, token_names(bundle.special, tokens))
    return [int(i) for i in tokens.marked(text)]


def generating(bundle: Bundle, text: str, **options: Any) -> Iterator[Piece | Generation]:
    """Yield the new tokens of a text as they come, each with its log-probability, and at last what `generate` returns.

    The options are those of `stream`.
    """
    _tokenizer(bundle)
    yield from follow_answer(bundle, text, bundle.prompt(text), Sampling(**options))


def answering(
    bundle: Bundle, messages: Sequence[Message], **options: Any
) -> Iterator[Piece | Generation]:
    """Yield the tokens of a chat model's next answer as they come, and at last the whole answer as a Generation.

    The options are those of `chat`.
    """
    prompt = conversation(bundle, messages)
    text = bundle.tokenizer().decode(np.array(prompt, np.int64))
    yield from follow_answer(bundle, text, prompt, Sampling(**options))


def _texts(bundle: Bundle, pieces: Iterator[Piece | Generation]) -> Iterator[str]:
    """The texts of the pieces that have one; under `watch` or `edit` they are all computed at once."""
    texts = (piece.text for piece in pieces if isinstance(piece, Piece) and piece.text)
    # A watch or an edit may end before somebody reads the pieces, and would miss them.
    if hooked(bundle.model):
        return iter(list(texts))
    return texts


def _tokenizer(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a model that generates; raises for other models."""
    bundle.require("generate", "a GPT")
    return bundle.tokenizer()

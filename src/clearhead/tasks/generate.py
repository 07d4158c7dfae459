"""generate, stream and chat: continue a text at once or piece by piece, or a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..decode import Plan, search
from ..errors import InputError
from ..tokens import Tokenizer
from ..tokens.chat_template import render, token_names
from ..weights import Bundle
from .batching import batches
from .generation import Generation, Piece, Sampling, end_tokens, follow_answer, generation
from .stop_strings import stopper

Message = Mapping[str, str]  # {"role": "user", "content": "..."}


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
            start=[prompts[i] for i in rows], end=end_tokens(bundle), limit=max_new, beams=beams, best=samples,
            choice=choice, slide=slide, seed=[seeds[i] for i in rows], ended=stopper(tokens, options.stops),
            banned=bundle.spare_ids,
        )  # fmt: skip
        for i, hypotheses in zip(rows, search(bundle.model, {}, plan), strict=True):
            used = seeds[i] if choice.sample else None
            first, *others = [generation(tokens, texts[i], prompts[i], h, options, used) for h in hypotheses]
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
    _tokenizer(bundle)
    yield from _texts(follow_answer(bundle, text, bundle.prompt(text), options))


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
    yield from _texts(follow_answer(bundle, "", conversation(bundle, messages), options))


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


def generating(bundle: Bundle, text: str, **options: Any) -> Iterator[Piece | Generation]:
    """Yield the new tokens of a text as they come, each with its log-probability, and at last what `generate` returns.

    The options are those of `stream`.
    """
    _tokenizer(bundle)
    yield from follow_answer(bundle, text, bundle.prompt(text), Sampling(**options))


def answering(bundle: Bundle, messages: Sequence[Message], **options: Any) -> Iterator[Piece | Generation]:
    """Yield the tokens of a chat model's next answer as they come, and at last the whole answer as a Generation.

    The options are those of `chat`.
    """
    prompt = conversation(bundle, messages)
    text = bundle.tokenizer().decode(np.array(prompt, np.int64))
    yield from follow_answer(bundle, text, prompt, Sampling(**options))


def _texts(pieces: Iterator[Piece | Generation]) -> Iterator[str]:
    """The texts of the pieces that have one."""
    return (piece.text for piece in pieces if isinstance(piece, Piece) and piece.text)


def _tokenizer(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a model that generates; raises for other models."""
    bundle.require("generate", "a GPT")
    return bundle.tokenizer()

"""caption: say what an image shows, and where each word looked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..data.flickr8k import plain_caption
from ..data.image_files import ImageLike
from ..decode import Choice, Hypothesis, Plan, follow, forced, search
from ..decode.plan import check_penalty
from ..errors import InputError, Notice
from ..tokens import Tokenizer
from ..tokens.ids import as_row
from ..weights import Bundle
from .captioned import Caption, ImagePass, special_ids
from .image_batches import image_batches, image_inputs
from .seeds import seeds_of

LIMIT = 40  # tokens of a caption, at most
PENALTY = 0.6  # default of the length penalty: highest BLEU-4 on Flickr8k's development part


def caption(
    bundle: Bundle,
    image: ImageLike | Sequence[ImageLike],
    *,
    text: str | None = None,
    beams: int = 5,
    best: int = 1,
    penalty: float = PENALTY,
    limit: int | None = None,
    sample: bool = False,
    temperature: float = 1.0,
    seed: int | None = None,
    done: Callable[[int], None] | None = None,
) -> Caption | list[Caption]:
    """Write a caption for an image, or for each of several, with a map over the image for each word.

    Args:
        bundle: A captioner.
        image: A path, a PIL image or a uint8 array (height, width, 3); or several; or a folder, for all images in it.
        text: A caption, or a word, of your own: it is scored and mapped, and nothing is written (forced decoding). If
            the vocabulary does not have it as it is typed, it is read as captions are written, in lower case and
            without punctuation; a Notice names words that the model does not know.
        beams: Number of hypotheses of the beam search; 1 is greedy.
        best: Captions to return for each image; all but the first are in `.alternatives`.
        penalty: The search ranks by log-probability / length^penalty. The default is that with the highest BLEU-4 on
            Flickr8k's development part.
        limit: Largest number of tokens of a caption; 40 if not given, and never more than the model's context.
        sample: Sample instead of searching.
        temperature: Of sampling: below 1 prefers likelier tokens, above 1 flattens the distribution.
        seed: Seed of sampling: image i of several uses seed + i. If not given, each call uses a fresh one.
        done: Called with the number of images just finished.

    Returns:
        A Caption, or a list of them for several images.

    Examples:
        >>> data = clearhead.data.make_data("scenes", {}, seed=0)
        >>> encoder = {"name": "resnet", "width": 4, "depths": [1, 1]}
        >>> model = clearhead.build("captioner", vocab=len(data.tokens), width=8, encoder=encoder)
        >>> bundle = clearhead.Bundle(model, data.tokens, preprocessing=data.preprocessing)
        >>> image = data.scenes(1)[0].image.transpose(1, 2, 0)
        >>> result = caption(bundle, image, beams=3, best=2, limit=5)
        >>> len(result.maps) == len(result.words), len(result.alternatives)
        (True, 1)
    """
    tokens = caption_tokens(bundle)
    if beams < 1:
        raise InputError(f"beams={beams}: expected 1 or more")
    given = [] if text is None else _given_ids(bundle, text)
    items, single = image_inputs(image)
    choice, seeds = Choice(sample=sample, temperature=temperature), seeds_of(seed if sample else 0, len(items))
    results: dict[int, Caption] = {}
    for batch, pixels in image_batches(bundle, items):
        if text is not None:
            answers = [[h] for h in _given(bundle, pixels, given, penalty)]
        else:
            own_seeds = [seeds[i] for i in batch]
            plan = _plan(bundle, limit, beams=beams, best=best, penalty=penalty, choice=choice, seed=own_seeds)
            answers = search(bundle.model, {"images": pixels}, plan)
        for i, own, hypotheses in zip(batch, pixels, answers, strict=True):
            used = seeds[i] if sample and text is None else None
            first, *others = [_caption(bundle, tokens, own, h, used) for h in hypotheses]
            results[i] = replace(first, alternatives=others)
        if done is not None:
            done(len(batch))
    return results[0] if single else [results[i] for i in range(len(items))]


def captioning(
    bundle: Bundle, image: ImageLike, *, beams: int = 5, penalty: float = PENALTY, limit: int | None = None
) -> Iterator[list[Caption]]:
    """Yield the hypotheses of a caption after every step of the search, the best first, and at last the result.

    The first of the last list is what `caption` returns. The options are those of `caption`.
    """
    tokens, pixels = caption_tokens(bundle), bundle.pixels(image)
    plan = _plan(bundle, limit, beams=beams, best=beams, penalty=penalty)
    for hypotheses in follow(bundle.model, {"images": pixels[None].to(bundle.device, bundle.dtype)}, plan):
        yield [_caption(bundle, tokens, pixels, h, None) for h in hypotheses[0]]


def given_caption(
    bundle: Bundle, image: ImageLike, ids: Sequence[int], *, penalty: float = PENALTY, finished: bool = True
) -> Caption:
    """A caption given by the ids of its tokens, with its log-probability and maps (forced decoding).

    A finished caption is followed by the end token, which is not one of the ids.
    """
    tokens, pixels = caption_tokens(bundle), bundle.pixels(image)
    own = [int(i) for i in as_row(ids, len(tokens))]
    (h,) = _given(bundle, pixels[None].to(bundle.device, bundle.dtype), own, penalty, finished)
    return _caption(bundle, tokens, pixels, h, None)


def read_caption(bundle: Bundle, text: str) -> tuple[list[int], list[str]]:
    """The ids of a caption that was typed, and those of its words that the model does not know.

    If a vocabulary does not have the text as it was typed, it is read as captions are written: in lower case, without
    punctuation.
    """
    tokens = caption_tokens(bundle)
    readings = [one for one in (text, plain_caption(text)) if one] or [text]
    unknown = [
        [word for word in one.split() if tokens.unknown is not None and tokens.unknown in tokens.encode(word)]
        for one in readings
    ]
    best = min(range(len(readings)), key=lambda i: len(unknown[i]))
    return tokens.encode(readings[best]).tolist(), unknown[best]


def _given_ids(bundle: Bundle, text: object) -> list[int]:
    if not isinstance(text, str):
        raise InputError(f"text is a {type(text).__name__}: expected one caption for all images")
    ids, unknown = read_caption(bundle, text)
    if unknown:
        words = ", ".join(map(repr, unknown))
        warnings.warn(f"not in the captioner's vocabulary: {words}", Notice, stacklevel=3)
    return ids


def caption_tokens(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a captioner; raises for other models."""
    if not isinstance(bundle, Bundle):
        raise InputError(f"a {type(bundle).__name__} is not a model: expected what clearhead.load returns")
    bundle.require("caption", "a captioner")
    tokens = bundle.tokenizer()
    special_ids(bundle)
    return tokens


def _given(
    bundle: Bundle, pixels: torch.Tensor, ids: list[int], penalty: float, finished: bool = True
) -> list[Hypothesis]:
    """A given caption as the answer for each image, with its log-probability."""
    if not ids:
        raise InputError("the caption is empty: expected a word or more")
    check_penalty(penalty)
    special = special_ids(bundle)
    written = [*ids, special.ends[0]] if finished else ids
    if bundle.max_tokens is not None and len(written) > bundle.max_tokens:
        raise InputError(f"the caption has {len(ids)} tokens: this model writes {bundle.max_tokens - 1} at most")
    row = torch.tensor([written], device=bundle.device)
    before = torch.tensor([[special.start, *written[:-1]]], device=bundle.device)
    model: Any = bundle.model
    sums = forced(model, {"images": pixels}, before.repeat(len(pixels), 1), row.repeat(len(pixels), 1)).sum(1)
    length = row.shape[1] ** penalty
    return [Hypothesis(ids=tuple(ids), logprob=one, score=one / length, finished=finished) for one in sums.tolist()]


def _caption(bundle: Bundle, tokens: Tokenizer, pixels: torch.Tensor, h: Hypothesis, seed: int | None) -> Caption:
    ids = [*h.ids, special_ids(bundle).ends[0]] if h.finished else list(h.ids)
    return Caption(
        text=tokens.decode(np.array(h.ids, np.int64)).strip(), score=h.score, logprob=h.logprob,
        pieces=tokens.pieces(ids), cut=not h.finished, seed=seed, forced=ImagePass(bundle, pixels.cpu(), ids),
        word_numbers=tokens.words(np.array(ids, np.int64)),
    )  # fmt: skip


def _plan(bundle: Bundle, limit: int | None, **options: Any) -> Plan:
    """The search for a caption of at most `limit` tokens."""
    tokens, special = caption_tokens(bundle), special_ids(bundle)
    most = min(LIMIT if limit is None else limit, bundle.max_tokens or LIMIT)
    # Tokens that no caption has; <unk> would win where the words of a caption are rare. GPT-2 has one token for all.
    never = {special.pad, special.start, tokens.unknown}
    banned = [int(i) for i in never if i is not None and i not in special.ends]
    banned += bundle.spare_ids
    return Plan(start=int(special.start or 0), end=special.ends, limit=most, banned=banned, **options)

"""caption: say what an image shows, and where each word looked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..data.image_files import ImageLike
from ..decode import Choice, Hypothesis, Plan, forced, search
from ..errors import InputError
from ..tokens import Tokenizer
from ..weights import Bundle
from .captioned import Caption, ImagePass
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
        text: A caption, or a word, of your own: it is scored and mapped, and nothing is written (forced decoding).
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
    items, single = image_inputs(image)
    choice, seeds = Choice(sample=sample, temperature=temperature), seeds_of(seed if sample else 0, len(items))
    most = min(LIMIT if limit is None else limit, bundle.max_tokens or LIMIT)
    results: dict[int, Caption] = {}
    for batch, pixels in image_batches(bundle, items):
        if text is not None:
            answers = [[h] for h in _given(bundle, tokens, pixels, text, penalty)]
        else:
            plan = Plan(
                start=int(tokens.start or 0), end=tokens.end, beams=beams, best=best, penalty=penalty, choice=choice,
                limit=most, seed=[seeds[i] for i in batch], banned=_banned(tokens),
            )  # fmt: skip
            answers = search(bundle.model, {"images": pixels}, plan)
        for i, own, hypotheses in zip(batch, pixels, answers, strict=True):
            used = seeds[i] if sample and text is None else None
            first, *others = [_caption(bundle, tokens, own, h, used) for h in hypotheses]
            results[i] = replace(first, alternatives=others)
        if done is not None:
            done(len(batch))
    return results[0] if single else [results[i] for i in range(len(items))]


def caption_tokens(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a captioner; raises for other models."""
    bundle.require("caption", "a captioner")
    tokens = bundle.tokenizer()
    if tokens.start is None or tokens.end is None:
        raise InputError(f"the tokens of this {bundle.name} have no <start> and <end>: captions need them")
    return tokens


def _given(bundle: Bundle, tokens: Tokenizer, pixels: torch.Tensor, text: str, penalty: float) -> list[Hypothesis]:
    """A given caption as the answer for each image, with its log-probability."""
    ids = [int(i) for i in tokens.encode(text)]
    if not ids:
        raise InputError("the caption is empty: expected a word or more")
    if bundle.max_tokens is not None and len(ids) >= bundle.max_tokens:
        raise InputError(f"the caption has {len(ids)} tokens: this model writes {bundle.max_tokens - 1} at most")
    assert tokens.end is not None
    row = torch.tensor([[*ids, tokens.end]], device=bundle.device)
    before = torch.tensor([[tokens.start, *ids]], device=bundle.device)
    model: Any = bundle.model
    sums = forced(model, {"images": pixels}, before.repeat(len(pixels), 1), row.repeat(len(pixels), 1)).sum(1)
    length = row.shape[1] ** penalty
    return [Hypothesis(ids=tuple(ids), logprob=one, score=one / length, finished=True) for one in sums.tolist()]


def _caption(bundle: Bundle, tokens: Tokenizer, pixels: torch.Tensor, h: Hypothesis, seed: int | None) -> Caption:
    ids = [*h.ids, int(tokens.end or 0)] if h.finished else list(h.ids)
    return Caption(
        text=tokens.decode(np.array(h.ids, np.int64)).strip(), score=h.score, logprob=h.logprob,
        pieces=tokens.pieces(ids), cut=not h.finished, seed=seed, forced=ImagePass(bundle, pixels.cpu(), ids),
        word_numbers=tokens.words(np.array(ids, np.int64)),
    )  # fmt: skip


def _banned(tokens: Tokenizer) -> list[int]:
    """Tokens that no caption has; <unk> would win where the words of a caption are rare."""
    return [int(i) for i in {tokens.pad, tokens.start, tokens.unknown} if i is not None]

"""caption: say what an image shows, and where each word looked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.images.captions import plain_caption
from ..data.images.files import ImageLike
from ..decode import Choice, Hypothesis, Plan, follow, forced, search
from ..decode.plan import check_penalty
from ..errors import InputError, Notice
from ..inputs.captions import caption_reads, caption_special
from ..inputs.images import OneImage, grouped_images, image_items
from ..look import Tape, watch
from ..models.hooks import Session, call_before
from ..tokens import Tokenizer
from ..tokens.ids import as_row
from ..weights import Bundle, ModelLike, opened
from .generate import seeds_of
from .translate import CROSS, NoAttentionError, cross_attention, word_pieces

# Caption: the text that a captioner writes for an image, with the map of where it looked for each word.


@contextmanager
def _grid_sizes(model: Any) -> Iterator[list[tuple[int, int]]]:
    """A list that receives the rows and columns of the grid in each forward pass of a captioner."""
    sizes: list[tuple[int, int]] = []

    # the grid's size depends on the image, and is lost once its places are a sequence (b, k, d)
    def before(_: nn.Module, args: Any, __: Any) -> None:
        sizes.append(tuple(args[0].shape[2:]))

    with Session(model) as session, session:
        call_before(session, [model.memory], before)
        # one entry per forward pass
        yield sizes


@dataclass(frozen=True, eq=False)
class ImagePass:
    """A forward pass over an image and its caption (forced decoding), run only when it is watched."""

    bundle: Bundle
    pixels: Float[Tensor, "c height width"]  # the model's input, on the CPU
    ids: list[int]  # of the caption, the end token included if it was reached

    @torch.no_grad()
    def watch(self, *names: str) -> tuple[Tape, tuple[int, int]]:
        """Run the pass and record these addresses; also returns the rows and columns of the grid.

        Up to rounding, this is the attention of the search itself, because a decoder's states depend only on the
        tokens before them.
        """
        model: Any = self.bundle.model
        before, images = self._inputs()
        try:
            with _grid_sizes(model) as sizes, watch(model, *names) as tape:
                model(before, images=images)
        except KeyError as cause:
            # any other unknown address is the caller's mistake, and keeps its own message
            if list(names) != [CROSS]:
                raise
            raise NoAttentionError(
                "this captioner has no attention to the image, which it reads as one vector: expected one that has"
            ) from cause
        return tape, sizes[0]

    @torch.no_grad()
    def evidence(self) -> Float[Tensor, "t y x"]:
        """The probability of each token given one place of the image alone, divided by the sum over all places."""
        model: Any = self.bundle.model
        before, images = self._inputs()
        with _grid_sizes(model) as sizes:
            # (special + y x, d): one image
            memory = model.look(images)[0]
        alone = memory[-math.prod(sizes[0]) :, None]  # (k, 1, d): each place is a memory of its own
        # as many rows as places, each with the same caption
        logits = model.head(model.decoder.read(before.expand(len(alone), -1), alone, None, None))
        ids = torch.tensor(self.ids, device=before.device).expand(len(alone), -1)
        # log p(token | caption so far, place k alone); at each token, the softmax over places is
        # that probability divided by its sum
        logp = logits.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]  # (k, t)
        return logp.T.softmax(-1).unflatten(-1, sizes[0])

    @torch.no_grad()
    def logprobs(self) -> Float[Tensor, "t"]:
        """The log-probability of each token, given the image and the tokens before it."""
        model: Any = self.bundle.model
        before, images = self._inputs()
        ids = torch.tensor(self.ids, device=before.device)
        return (
            model(before, images=images)[0].float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
        )

    def _inputs(self) -> tuple[Tensor, Tensor]:
        """The ids that the decoder reads, and the image."""
        before = torch.tensor([caption_reads(self.bundle, self.ids)], device=self.bundle.device)
        return before, self.pixels[None].to(self.bundle.device, self.bundle.dtype)


@dataclass(frozen=True, eq=False)
class Caption:
    """A caption with its score and, computed when first used, a map over the image for each word.

    Examples:
        >>> data = clearhead.data.make_data("scenes", {}, seed=0)
        >>> encoder = {"name": "resnet", "width": 4, "depths": [1, 1]}
        >>> model = clearhead.build("captioner", vocab=len(data.tokens), width=8, encoder=encoder)
        >>> bundle = clearhead.Bundle(model, data.tokens, preprocessing=data.preprocessing)
        >>> caption = clearhead.caption(bundle, data.scenes(1)[0].image.transpose(1, 2, 0), text="a red circle")
        >>> caption.words, caption.maps.shape
        (['a', 'red', 'circle'], (3, 6, 6))
    """

    text: str  # the caption
    score: float  # what the search ranks by: log-probability / length^penalty
    logprob: float  # sum of the log-probabilities of its tokens, the end token included, in nats
    pieces: list[str]  # its tokens as text, the end token included if it was reached
    cut: bool = False  # True if it reached the limit of tokens
    # the next best captions, or the other samples
    alternatives: list[Caption] = field(default_factory=list)
    # the seed of sampling, which gives the same caption again; None: not sampled
    seed: int | None = None
    forced: ImagePass | None = field(default=None, repr=False)  # computes its maps
    # word of each piece; -1 for the end token
    word_numbers: list[int] = field(default_factory=list, repr=False)

    @property
    def words(self) -> list[str]:
        """The words of the caption, each with a map."""
        return ["".join(self.pieces[i] for i in word).strip() for word in self.word_groups]

    @cached_property
    def logprobs(self) -> list[float]:
        """The log-probability of each word, given the image and the words before it; without the end token."""
        if self.forced is None:
            raise InputError(
                "this caption has no image to look at: expected one that `caption` returned"
            )
        each = self.forced.logprobs().tolist()
        return [sum(each[i] for i in word) for word in self.word_groups]

    @cached_property
    def maps(self) -> Float[np.ndarray, "words y x"]:
        """Where the captioner looked for each word: weights over the grid, mean of layers and heads, that sum to 1.

        The weight of tokens without a place, such as the class token of a vision transformer, is left out.
        They are computed by one more forward pass, when they are first used.
        """
        return self.attention()

    def attention(
        self, layer: int | None = None, head: int | None = None
    ) -> Float[np.ndarray, "words y x"]:
        """The map of each word for one layer and head, or the mean over those that are not given.

        The map of a word of several pieces is the mean of theirs.
        """
        # (t, y, x) -> (words, y, x)
        each = self.piece_maps(layer, head)
        if self.word_groups:
            return np.stack([each[word].mean(0) for word in self.word_groups])
        return each[:0]

    def piece_maps(
        self, layer: int | None = None, head: int | None = None
    ) -> Float[np.ndarray, "t y x"]:
        """The map of each piece, the end token included."""
        if self.forced is None:
            raise InputError(
                "this caption has no image to look at: expected one that `caption` returned"
            )
        tape, size = self.forced.watch(CROSS)
        rows = cross_attention(tape, layer, head)
        # rows: (t, k), with k the places, or more if special tokens are attended to
        places = math.prod(size)
        if rows.shape[1] > places:
            # the first tokens have no place: their weight is left out, and rows sum to 1 again
            # special tokens come first in the memory
            rows = rows[:, -places:]
            rows = rows / np.maximum(rows.sum(1, keepdims=True), np.finfo(rows.dtype).tiny)
        return rows.reshape(len(rows), *size)

    def evidence(self) -> Float[np.ndarray, "words y x"]:
        """The evidence for each word at each place: its probability given that place alone, scaled to sum to 1.

        A map of attention depends on the words before it only: a word of your own has the map of the word that the
        model would have written. The evidence depends on the word itself, and also a captioner without attention has
        it.
        """
        if self.forced is None:
            raise InputError(
                "this caption has no image to look at: expected one that `caption` returned"
            )
        each = self.forced.evidence().cpu().numpy()
        if self.word_groups:
            return np.stack([each[word].mean(0) for word in self.word_groups])
        return each[:0]

    def tape(self, *names: str) -> Tape:
        """The model's activations at these addresses, by one forward pass over the whole caption."""
        if self.forced is None:
            raise InputError(
                "this caption has no image to look at: expected one that `caption` returned"
            )
        return self.forced.watch(*names)[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        try:
            if self.forced is not None:
                # float64 first, because rounded float32 numbers are long in JSON
                maps = self.maps.astype(np.float64).round(6).tolist()
            else:
                # no image, or (below) a captioner without attention
                maps = []
        except NoAttentionError:
            maps = []
        return {
            "text": self.text,
            "score": self.score,
            "logprob": self.logprob,
            "cut": self.cut,
            "words": self.words,
            "logprobs": self.logprobs if self.forced is not None else [],
            "maps": maps,
            "seed": self.seed,
            "alternatives": [
                {"text": other.text, "score": other.score, "logprob": other.logprob}
                for other in self.alternatives
            ],
        }

    @property
    def word_groups(self) -> list[list[int]]:
        """The numbers of each word's pieces, without the end token."""
        # tokens after the last word, such as the end token, belong to no word
        real = [number for number in self.word_numbers if number >= 0]
        last = max((i for i, number in enumerate(self.word_numbers) if number >= 0), default=-1)
        if real:
            return word_pieces(self.pieces[: last + 1], self.word_numbers[: last + 1])
        return []


LIMIT = 40  # tokens of a caption, at most
PENALTY = 0.6  # default of the length penalty: highest BLEU-4 on Flickr8k's development part


class CaptionOptions(TypedDict, total=False):
    """The options of `caption`, for type checkers; the function documents them."""

    text: str | None
    beams: int
    best: int
    penalty: float
    limit: int | None
    sample: bool
    temperature: float
    seed: int | None
    done: Callable[[int], None] | None


@overload
def caption(bundle: ModelLike, image: OneImage, **options: Unpack[CaptionOptions]) -> Caption: ...


@overload
def caption(
    bundle: ModelLike, image: Sequence[ImageLike], **options: Unpack[CaptionOptions]
) -> list[Caption]: ...


def caption(
    bundle: ModelLike,
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
        bundle: A captioner, or its name or folder.
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
    bundle = opened(bundle)
    tokens = caption_tokens(bundle)
    if beams < 1:
        raise InputError(f"beams={beams}: expected 1 or more")
    # read once for all images, so that unknown words give one Notice
    given = [] if text is None else _given_ids(bundle, text)
    # images stay unopened until their batch is due
    items, single = image_items(bundle, image)
    choice = Choice(sample=sample, temperature=temperature)
    seeds = seeds_of(seed if sample else 0, len(items))
    results: dict[int, Caption] = {}
    for batch, images in grouped_images(bundle, items):
        (pixels,) = images.args
        if text is not None:
            # forced decoding: one hypothesis per image, and no search
            answers = [[h] for h in _given(bundle, pixels, given, penalty)]
        else:
            # each image keeps its seed, whatever batch it is in
            own_seeds = [seeds[i] for i in batch]
            plan = _plan(
                bundle,
                limit,
                beams=beams,
                best=best,
                penalty=penalty,
                choice=choice,
                seed=own_seeds,
            )
            answers = search(bundle.model, {"images": pixels}, plan)
        for i, own, hypotheses in zip(batch, pixels, answers, strict=True):
            # only a sampled caption has a seed to report
            used = seeds[i] if sample and text is None else None
            first, *others = [_caption(bundle, tokens, own, h, used) for h in hypotheses]
            # the best hypothesis, or the first sample, is the caption
            results[i] = replace(first, alternatives=others)
        if done is not None:
            done(len(batch))
    if single:
        return results[0]
    return [results[i] for i in range(len(items))]


def captioning(
    bundle: Bundle,
    image: ImageLike,
    *,
    beams: int = 5,
    penalty: float = PENALTY,
    limit: int | None = None,
) -> Iterator[list[Caption]]:
    """Yield the hypotheses of a caption after every step of the search, the best first, and at last the result.

    The first of the last list is what `caption` returns. The options are those of `caption`.
    """
    tokens, pixels = caption_tokens(bundle), bundle.pixels(image)
    # best=beams: all hypotheses are shown while the search runs
    plan = _plan(bundle, limit, beams=beams, best=beams, penalty=penalty)
    for hypotheses in follow(
        bundle.model, {"images": pixels[None].to(bundle.device, bundle.dtype)}, plan
    ):
        # of the only image, the best first
        yield [_caption(bundle, tokens, pixels, h, None) for h in hypotheses[0]]


def given_caption(
    bundle: Bundle,
    image: ImageLike,
    ids: Sequence[int],
    *,
    penalty: float = PENALTY,
    finished: bool = True,
) -> Caption:
    """A caption given by the ids of its tokens, with its log-probability and maps (forced decoding).

    A finished caption is followed by the end token, which is not one of the ids.
    """
    tokens, pixels = caption_tokens(bundle), bundle.pixels(image)
    own = [int(i) for i in as_row(ids, len(tokens))]
    (h,) = _given(bundle, pixels[None].to(bundle.device, bundle.dtype), own, penalty, finished)
    return _caption(bundle, tokens, pixels, h, None)


def read_caption(bundle: Bundle, text: str) -> tuple[list[int], list[str]]:
    """The ids of a typed caption, and its words that are not in the vocabulary.

    If a vocabulary does not have the text as it was typed, it is read as captions are written: in lower case, without
    punctuation.
    """
    tokens = caption_tokens(bundle)
    # the typed text wins ties, so that a vocabulary with capitals keeps them
    reading, unknown = text, _unknown_words(tokens, text)
    plain = plain_caption(text)
    if plain and (not text or len(_unknown_words(tokens, plain)) < len(unknown)):
        # the plain form has fewer unknown words
        reading, unknown = plain, _unknown_words(tokens, plain)
    return tokens.encode(reading).tolist(), unknown


def _unknown_words(tokens: Tokenizer, text: str) -> list[str]:
    """The words that a vocabulary does not have."""
    # subword and byte-level tokens spell any word
    if tokens.unknown is None:
        return []
    return [word for word in text.split() if tokens.unknown in tokens.encode(word)]


def _given_ids(bundle: Bundle, text: object) -> list[int]:
    if not isinstance(text, str):
        raise InputError(f"text is a {type(text).__name__}: expected one caption for all images")
    ids, unknown = read_caption(bundle, text)
    if unknown:
        # these words are read as <unk>, whose map says little
        words = ", ".join(map(repr, unknown))
        warnings.warn(f"not in the captioner's vocabulary: {words}", Notice, stacklevel=3)
    return ids


def caption_tokens(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a captioner; raises for other models."""
    bundle.require("caption", "a captioner")
    tokens = bundle.tokenizer()
    # raises for a folder without start and end tokens
    caption_special(bundle)
    return tokens


def _given(
    bundle: Bundle, pixels: torch.Tensor, ids: list[int], penalty: float, finished: bool = True
) -> list[Hypothesis]:
    """A given caption as the answer for each image, with its log-probability."""
    if not ids:
        raise InputError("the caption is empty: expected a word or more")
    check_penalty(penalty)
    special = caption_special(bundle)
    # the end token counts in log-probability and length, as it does in a search
    written = [*ids, special.ends[0]] if finished else ids
    if bundle.max_tokens is not None and len(written) > bundle.max_tokens:
        raise InputError(
            f"the caption has {len(ids)} tokens: this model writes {bundle.max_tokens - 1} at most"
        )
    model: Any = bundle.model
    # the same caption for every image
    writes = torch.tensor([written] * len(pixels), device=bundle.device)
    reads = [caption_reads(bundle, written)] * len(pixels)
    logprobs = forced(
        model, {"images": pixels}, torch.tensor(reads, device=bundle.device), writes
    ).sum(1)
    # score = log p / length^penalty, as the search ranks
    length = len(written) ** penalty
    hypotheses = []
    for logprob in logprobs.tolist():
        # every image has the same caption, and so the same length
        score = logprob / length
        hypotheses.append(
            Hypothesis(ids=tuple(ids), logprob=logprob, score=score, finished=finished)
        )
    return hypotheses


def _caption(
    bundle: Bundle, tokens: Tokenizer, pixels: torch.Tensor, h: Hypothesis, seed: int | None
) -> Caption:
    # h.ids is without the end token; the maps have a row for it
    ids = [*h.ids, caption_special(bundle).ends[0]] if h.finished else list(h.ids)
    return Caption(
        # without the end token
        text=tokens.decode(np.array(h.ids, np.int64)).strip(),
        score=h.score,
        logprob=h.logprob,
        pieces=tokens.pieces(ids),
        cut=not h.finished,
        seed=seed,
        forced=ImagePass(bundle, pixels.cpu(), ids),
        word_numbers=tokens.words(np.array(ids, np.int64)),
    )


def _plan(bundle: Bundle, limit: int | None, **options: Any) -> Plan:
    """The Plan of a search for a caption of at most `limit` tokens."""
    tokens, special = caption_tokens(bundle), caption_special(bundle)
    if limit is None:
        limit = LIMIT
    most = min(limit, bundle.max_tokens or LIMIT)
    # Tokens that no caption has; <unk> would win where the words of a caption are rare. GPT-2 has one token for all.
    never = {special.pad, special.start, tokens.unknown}
    banned = [int(i) for i in never if i is not None and i not in special.ends]
    banned += bundle.spare_ids
    return Plan(
        start=int(special.start or 0), end=special.ends, limit=most, banned=banned, **options
    )

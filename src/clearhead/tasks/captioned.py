"""Caption: the text that a captioner writes for an image, with the map of where it looked for each word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from ..look import Tape, watch
from ..weights import Bundle, Special
from .translation import CROSS, NoAttentionError, word_pieces


def special_ids(bundle: Bundle) -> Special:
    """The start and end tokens of a captioner, as its folder gives them; raises if it has none."""
    special = bundle.special or Special()
    if special.start is None or not special.ends:
        raise InputError(f"the tokens of this {bundle.name} have no <start> and <end>: captions need them")
    return special


@contextmanager
def _grid_sizes(model: Any) -> Iterator[list[tuple[int, int]]]:
    """A list that receives the rows and columns of the grid in each forward pass of a captioner."""
    sizes: list[tuple[int, int]] = []
    hook = model.memory.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape[2:])))
    try:
        yield sizes
    finally:
        hook.remove()


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
            if list(names) != [CROSS]:
                raise
            raise NoAttentionError(
                "this captioner has no attention to the image, which it reads as one vector: expected one that has"
            ) from cause
        return tape, sizes[0]

    @torch.no_grad()
    def evidence(self) -> Float[Tensor, "t y x"]:
        """The probability of each token where the decoder sees one place alone, divided by the sum over all places."""
        model: Any = self.bundle.model
        before, images = self._inputs()
        with _grid_sizes(model) as sizes:
            memory = model.look(images)[0]
        alone = memory[-math.prod(sizes[0]) :, None]  # (k, 1, d): each place is a memory of its own
        logits = model.head(model.decoder.read(before.expand(len(alone), -1), alone, None, None))
        ids = torch.tensor(self.ids, device=before.device).expand(len(alone), -1)
        logp = logits.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]  # (k, t)
        return logp.T.softmax(-1).unflatten(-1, sizes[0])

    @torch.no_grad()
    def logprobs(self) -> Float[Tensor, "t"]:
        """The log-probability of each token, given the image and the tokens before it."""
        model: Any = self.bundle.model
        before, images = self._inputs()
        ids = torch.tensor(self.ids, device=before.device)
        return model(before, images=images)[0].float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]

    def _inputs(self) -> tuple[Tensor, Tensor]:
        """The ids that the decoder reads, and the image."""
        start = special_ids(self.bundle).start
        before = torch.tensor([[start, *self.ids[:-1]]], device=self.bundle.device)
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
    alternatives: list[Caption] = field(default_factory=list)  # the next best captions, or the other samples
    seed: int | None = None  # the seed of sampling, which gives the same caption again; None: not sampled
    forced: ImagePass | None = field(default=None, repr=False)  # computes its maps
    word_numbers: list[int] = field(default_factory=list, repr=False)  # word of each piece; -1 for the end token

    @property
    def words(self) -> list[str]:
        """The words of the caption, each with a map."""
        return ["".join(self.pieces[i] for i in word).strip() for word in self.word_groups]

    @cached_property
    def logprobs(self) -> list[float]:
        """The log-probability of each word, given the image and the words before it; that of the end is not in it."""
        if self.forced is None:
            raise InputError("this caption has no image to look at: expected one that `caption` returned")
        each = self.forced.logprobs().tolist()
        return [sum(each[i] for i in word) for word in self.word_groups]

    @cached_property
    def maps(self) -> Float[np.ndarray, "words y x"]:
        """Where the captioner looked for each word: weights over the grid, mean of layers and heads, that sum to 1.

        The weight of tokens without a place, such as the class token of a vision transformer, is left out.
        They are computed by one more forward pass, when they are first used.
        """
        return self.attention()

    def attention(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "words y x"]:
        """The map of each word for one layer and head, or the mean over those that are not given.

        The map of a word of several pieces is the mean of theirs.
        """
        each = self.piece_maps(layer, head)
        return np.stack([each[word].mean(0) for word in self.word_groups]) if self.word_groups else each[:0]

    def piece_maps(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "t y x"]:
        """The map of each piece, the end token included."""
        if self.forced is None:
            raise InputError("this caption has no image to look at: expected one that `caption` returned")
        tape, size = self.forced.watch(CROSS)
        layers = [tape[name].dense()[0].float().cpu().numpy() for name in tape.names]  # (h, t, k) each
        for name, number, most in (("layer", layer, len(layers)), ("head", head, layers[0].shape[0])):
            if number is not None and not (isinstance(number, int) and -most <= number < most):
                raise InputError(f"{name}={number}: there are {most}, counted from 0")
        chosen = layers if layer is None else [layers[layer]]
        rows = np.mean([x.mean(0) if head is None else x[head] for x in chosen], axis=0)
        places = math.prod(size)
        if rows.shape[1] > places:  # the first tokens have no place
            rows = rows[:, -places:]
            rows = rows / np.maximum(rows.sum(1, keepdims=True), np.finfo(rows.dtype).tiny)
        return rows.reshape(len(rows), *size)

    def evidence(self) -> Float[np.ndarray, "words y x"]:
        """Which places speak for each word: its probability where the decoder sees one place alone, summing to 1.

        A map of attention depends on the words before it only: a word of your own has the map of the word that the
        model would have written. The evidence depends on the word itself, and also a captioner without attention has
        it.
        """
        if self.forced is None:
            raise InputError("this caption has no image to look at: expected one that `caption` returned")
        each = self.forced.evidence().cpu().numpy()
        return np.stack([each[word].mean(0) for word in self.word_groups]) if self.word_groups else each[:0]

    def tape(self, *names: str) -> Tape:
        """The model's activations at these addresses, by one forward pass over the whole caption."""
        if self.forced is None:
            raise InputError("this caption has no image to look at: expected one that `caption` returned")
        return self.forced.watch(*names)[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        try:
            maps = self.maps.astype(np.float64).round(6).tolist() if self.forced is not None else []
        except NoAttentionError:
            maps = []
        return {
            "text": self.text, "score": self.score, "logprob": self.logprob, "cut": self.cut, "words": self.words,
            "logprobs": self.logprobs if self.forced is not None else [], "maps": maps, "seed": self.seed,
            "alternatives": [
                {"text": one.text, "score": one.score, "logprob": one.logprob} for one in self.alternatives
            ],
        }  # fmt: skip

    @property
    def word_groups(self) -> list[list[int]]:
        """The numbers of each word's pieces, without the end token."""
        real = [number for number in self.word_numbers if number >= 0]
        last = max((i for i, number in enumerate(self.word_numbers) if number >= 0), default=-1)
        return word_pieces(self.pieces[: last + 1], self.word_numbers[: last + 1]) if real else []

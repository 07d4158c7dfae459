"""Translation: a translated sentence with its score and its attention to the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from ..errors import InputError
from ..look import Tape, watch
from ..tokens import Pair
from ..weights import Bundle
from .batching import padded

CROSS = "decoder.blocks.*.cross.weights"  # the addresses of the attention to the source


class NoAttentionError(InputError):
    """The model has no attention to its source."""


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass over a source and its translation (forced decoding), run only when it is watched."""

    bundle: Bundle
    source: np.ndarray  # ids, the end token included
    target: list[int]  # ids, the end token included if it was reached

    @torch.no_grad()
    def watch(self, *names: str) -> Tape:
        """Run the pass and record these addresses.

        Up to rounding, this is the attention of the search itself, because a decoder's states depend only on the
        tokens before them.
        """
        before = torch.tensor([[*self.bundle.decoder_prompt(), *self.target[:-1]]], device=self.bundle.device)
        try:
            with watch(self.bundle.model, *names) as tape:
                self.bundle.model(before, **source_inputs(self.bundle, [self.source]))
        except KeyError as cause:
            if list(names) != [CROSS]:
                raise
            raise NoAttentionError(
                "this model has no attention to its source, which it reads as one vector: expected one with attention"
            ) from cause  # fmt: skip
        return tape


@dataclass(frozen=True, eq=False)
class Translation:
    """A translation with its score and, computed when first used, its attention to the source.

    Examples:
        >>> translation = clearhead.translate(clearhead.load("en-de"), "A dog runs.")
        >>> translation.target
        ['Ein', ' Hund', ' rennt', '.', '<end>']
        >>> source, target, weights = translation.by_word()
        >>> source[weights[1].argmax()]
        'dog'
    """

    text: str  # the translation
    score: float  # what the search ranks by: log-probability / length^penalty
    logprob: float  # sum of the log-probabilities of its tokens, in nats
    source: list[str]  # the source's pieces (tokens as text), the end token included
    target: list[str]  # the translation's pieces, the end token included if it was reached
    cut: bool = False  # True if the source was longer than the model reads, or the translation than the limit
    others: list[Translation] = field(default_factory=list)  # the next best translations, or the other samples
    seed: int | None = None  # the seed of sampling, which gives the same translation again; None: not sampled
    forced: Pass | None = field(default=None, repr=False)  # computes its attention; None for an empty text
    word_numbers: tuple[list[int], list[int]] = field(default=([], []), repr=False)  # word of each source, target piece

    @cached_property
    def alignment(self) -> Float[np.ndarray, "t s"]:
        """The attention from each target piece to each source piece, mean of layers and heads; rows sum to 1.

        It is computed by one more forward pass, when it is first used.
        """
        return self.attention()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        try:
            rows = self.alignment.round(6).tolist() if self.forced is not None else []
        except NoAttentionError:
            rows = []
        return {
            "text": self.text, "score": self.score, "logprob": self.logprob, "cut": self.cut, "source": self.source,
            "target": self.target, "alignment": rows, "seed": self.seed,
            "others": [{"text": other.text, "score": other.score} for other in self.others],
        }  # fmt: skip

    def attention(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "t s"]:
        """The attention (target, source) of one layer and head, or the mean over those that are not given."""
        if self.forced is None:
            return np.zeros((len(self.target), len(self.source)), np.float32)
        tape = self.forced.watch(CROSS)
        layers = [tape[name].dense()[0].float().cpu().numpy() for name in tape.names]  # (h, n + t, s) each
        layers = [x[:, -len(self.target) :] for x in layers]  # without a forced first token
        for name, number, most in (("layer", layer, len(layers)), ("head", head, layers[0].shape[0])):
            if number is not None and not -most <= number < most:
                raise InputError(f"{name}={number}: there are {most}, counted from 0")
        chosen = layers if layer is None else [layers[layer]]
        return np.mean([x.mean(0) if head is None else x[head] for x in chosen], axis=0)

    def tape(self, *names: str) -> Tape:
        """The model's activations at these addresses, by one forward pass over the whole answer."""
        if self.forced is None:
            raise InputError("nothing was translated, so there is nothing to watch: expected a text")
        return self.forced.watch(*names)

    @property
    def words(self) -> tuple[list[list[int]], list[list[int]]]:
        """The pieces of each word, by number: of the source, and of the target."""
        return word_pieces(self.source, self.word_numbers[0]), word_pieces(self.target, self.word_numbers[1])

    def by_word(
        self, layer: int | None = None, head: int | None = None
    ) -> tuple[list[str], list[str], Float[np.ndarray, "t s"]]:
        """The words of the source, those of the target, and the attention (target, source) between them.

        A source word's weight is the sum over its pieces, a target word's row the mean over its pieces; rows sum to 1.
        """
        source_words, target_words = self.words
        source, target = (
            ["".join(pieces[i] for i in word).strip() for word in words]
            for pieces, words in ((self.source, source_words), (self.target, target_words))
        )
        weights = self.attention(layer, head)
        rows = [[weights[row][:, column].sum(1).mean() for column in source_words] for row in target_words]
        return source, target, np.array(rows, np.float32).reshape(len(target), len(source))


def word_pieces(pieces: Sequence[str], words: Sequence[int]) -> list[list[int]]:
    """The numbers of each word's pieces; white space belongs to the word after it."""
    groups: list[list[int]] = []
    last, spaces = -1, list[int]()
    for i, (piece, word) in enumerate(zip(pieces, words, strict=True)):
        if word < 0 and not piece.strip():
            spaces.append(i)
            continue
        if word >= 0 and word == last and not spaces:
            groups[-1].append(i)
        else:
            groups.append([*spaces, i])
        last, spaces = word, []
    return groups + ([spaces] if spaces else [])


def translator_tokens(bundle: Bundle) -> Pair:
    """The tokenizers of a translator; raises for other models."""
    bundle.require("translate", "a translator")
    return bundle.pair()


def source_inputs(bundle: Bundle, rows: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
    """Padded sources and their lengths: the inputs of a translator's forward and start."""
    pad = translator_tokens(bundle).source.pad
    assert pad is not None
    source, lengths = padded(rows, pad, bundle.device)
    return {"source": source, "lengths": lengths}

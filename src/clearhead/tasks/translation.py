"""Translation: a translated sentence, and which source tokens each of its tokens attended to."""

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

CROSS = "decoder.blocks.*.cross.weights"


class NoAttentionError(InputError):
    """A model without attention to its source was asked for it."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One forced forward pass over a source and its translation, to be watched when asked."""

    bundle: Bundle
    source: np.ndarray  # ids, the end included
    target: list[int]  # ids, the end included if it was reached

    @torch.no_grad()
    def watch(self, *names: str) -> Tape:
        """Run the pass and record these addresses.

        It gives the attention of the search itself, to rounding: a decoder's states depend only on what was written.
        """
        tokens = translator_tokens(self.bundle)
        before = torch.tensor([[start_id(tokens), *self.target[:-1]]], device=self.bundle.device)
        try:
            with watch(self.bundle.model, *names) as tape:
                self.bundle.model(before, **source_inputs(self.bundle, [self.source]))
        except KeyError as cause:
            if list(names) != [CROSS]:
                raise
            raise NoAttentionError(
                "this model has no attention to its source: it passes it on as one vector"
            ) from cause  # fmt: skip
        return tape


@dataclass(frozen=True, eq=False)
class Translation:
    """A translation with its score and, computed when asked, its attention to the source.

    Attributes:
        text: The translation.
        score: What the search ranked it by: log-probability / length^penalty.
        logprob: Sum of the log-probabilities of its tokens, in nats.
        source: The pieces that were read, the end included.
        target: The pieces that were written, the end included if it was reached.
        cut: True if the source was longer than the model reads, or the answer than it may write.
        others: The next best translations, where they were asked for.
    """

    text: str
    score: float
    logprob: float
    source: list[str]
    target: list[str]
    cut: bool = False
    others: list[Translation] = field(default_factory=list)
    forced: Pass | None = field(default=None, repr=False)  # None for an empty text
    word_numbers: tuple[list[int], list[int]] = field(default=([], []), repr=False)  # the word of each piece

    @cached_property
    def alignment(self) -> Float[np.ndarray, "t s"]:
        """Attention from each target piece to each source piece, the mean over layers and heads; rows sum to 1.

        It is computed by one more forward pass, when it is first asked for.
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
            "target": self.target, "alignment": rows,
            "others": [{"text": other.text, "score": other.score} for other in self.others],
        }  # fmt: skip

    def attention(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "t s"]:
        """Attention of one layer and head, or the mean over those that are not given."""
        if self.forced is None:
            return np.zeros((len(self.target), len(self.source)), np.float32)
        tape = self.forced.watch(CROSS)
        layers = [tape[name].dense()[0].float().cpu().numpy() for name in tape.names]  # (h, t, s) each
        for name, number, most in (("layer", layer, len(layers)), ("head", head, layers[0].shape[0])):
            if number is not None and not -most <= number < most:
                raise InputError(f"{name}={number}: there are {most}, counted from 0")
        chosen = layers if layer is None else [layers[layer]]
        return np.mean([x.mean(0) if head is None else x[head] for x in chosen], axis=0)

    def tape(self, *names: str) -> Tape:
        """The model's activations at these addresses, by one forward pass over the whole answer."""
        if self.forced is None:
            raise InputError("nothing was translated: there is nothing to watch")
        return self.forced.watch(*names)

    @property
    def words(self) -> tuple[list[list[int]], list[list[int]]]:
        """The numbers of each word's pieces: of the source, and of the target."""
        return word_pieces(self.source, self.word_numbers[0]), word_pieces(self.target, self.word_numbers[1])

    def by_word(
        self, layer: int | None = None, head: int | None = None
    ) -> tuple[list[str], list[str], Float[np.ndarray, "t s"]]:
        """The source's words, the target's, and the attention between them; rows sum to 1.

        A source word's weight is the sum over its pieces, a target word's row the mean over its pieces.
        """
        read, written = self.words
        source, target = (
            ["".join(pieces[i] for i in word).strip() for word in words]
            for pieces, words in ((self.source, read), (self.target, written))
        )
        weights = self.attention(layer, head)
        rows = [[weights[row][:, column].sum(1).mean() for column in read] for row in written]
        return source, target, np.array(rows, np.float32).reshape(len(target), len(source))


def word_pieces(pieces: Sequence[str], words: Sequence[int]) -> list[list[int]]:
    """The pieces of each word; white space belongs to the word after it."""
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
    if not isinstance(bundle.tokens, Pair):
        raise InputError(f"this {bundle.name} has no tokenizers of a source and a target: expected a Pair")
    return bundle.tokens


def source_inputs(bundle: Bundle, rows: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
    """Padded sources and their lengths, as a translator's forward and start take them."""
    pad = translator_tokens(bundle).source.pad
    assert pad is not None
    source, lengths = padded(rows, pad, bundle.device)
    return {"source": source, "lengths": lengths}


def start_id(tokens: Pair) -> int:
    """The first token of a target: <start>, or <pad> where there is none (Marian)."""
    start = tokens.target.start
    found = tokens.target.pad if start is None else start
    assert found is not None
    return int(found)

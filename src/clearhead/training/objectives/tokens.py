"""Base class of objectives over tokens: the cross-entropy of targets, without all logits in memory at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import fraction
from ...data import IGNORE
from ...data.files import as_line
from ...decode import Choice, Plan, search
from ...layers import Readout
from ...metrics import bleu, chrf
from ...tasks.translate import translate
from ...tokens import Pair
from ...weights import Bundle
from .cross_entropy import linear_cross_entropy, measured
from .objective import Losses, Measurement, Objective, Role, Sample, Tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class SmoothingConfig:
    """Options of objectives with a cross-entropy."""

    # label smoothing: share of each target that is spread evenly over all classes
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        fraction(self, "smoothing")


class TokenObjective(Objective):
    """The cross-entropy of the targets of a batch; targets of -100 are ignored."""

    Config: ClassVar[type[Any]] = SmoothingConfig
    measurements: ClassVar[Mapping[str, Measurement]] = {
        "loss": Measurement("nats/token"),
        "accuracy": Measurement("share", "higher"),
        "perplexity": Measurement("tokens"),
    }

    def count(self, batch: Mapping[str, np.ndarray]) -> int:
        return int((batch["targets"] != IGNORE).sum())

    def loss(self, batch: Tensors) -> Losses:
        """The summed cross-entropy, in nats."""
        return linear_cross_entropy(
            *self.readout(batch), smoothing=self.config.smoothing, cap=self.cap
        )

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        loss, right = measured(*self.readout(batch), cap=self.cap)
        return {"loss": loss, "accuracy": right.to(loss.dtype)}

    @property
    def cap(self) -> float | None:
        """The bound of the model's logits, if it has one."""
        head = self.player("model").head
        return head.cap if isinstance(head, Readout) else None

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        """The loss and accuracy per token, and the perplexity: exp of the loss."""
        return means | {"perplexity": perplexity(means["loss"])}

    def readout(self, batch: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """The input of the output layer, its weights, and the targets."""
        model = self.player("model")
        inputs = {name: x for name, x in batch.items() if name not in ("targets", "weight")}
        x, targets = self.select(model.states(**inputs), batch["targets"])
        # the output layer itself is part of the fused loss, so that not all logits are in memory at once
        if isinstance(model.head, Readout):
            # the scale of the logits, applied to x because W x is linear
            x = x * model.head.scale
        if model.head.bias is None:
            return x, model.head.weight, targets
        # The fused loss has no bias: one more input, which is always 1, adds it.
        weight = torch.cat([model.head.weight, model.head.bias[:, None]], dim=1)
        return F.pad(x, (0, 1), value=1.0), weight, targets

    def select(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The positions whose loss is computed: all of them."""
        return x, targets


def perplexity(loss: float) -> float:
    """The exponential of a loss in nats per token; infinity if it is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


# Next token: the cross-entropy of each token given those before it.
#
# ids (b, t), targets (b, t) with -100 for positions without loss; for packed documents also documents and at (b, t).


ROWS = 3  # number of samples, always of the same rows and with the same seed
GIVEN, WRITTEN = 12, 40  # tokens of a prompt, and of its continuation
CHOICE = Choice(sample=True, temperature=0.7)


class NextToken(TokenObjective):
    """The cross-entropy of each token given those before it: language modelling (Radford et al. 2018)."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="predict")}
    reads: ClassVar[tuple[str, ...]] = ("ids", "targets")
    may_read: ClassVar[tuple[str, ...]] = ("documents", "at")

    @property
    def writes_text(self) -> bool:  # type: ignore[override]
        """True if the model can generate and every id of its vocabulary can be decoded to text."""
        tokens = self.data.tokens
        if tokens is None or isinstance(tokens, Pair):
            return False
        return "generate" in self.player("model").can and self.data.sizes["vocab"] == len(tokens)

    def samples(self, bundle: Bundle) -> list[Sample]:
        tokens, data = bundle.tokenizer(), self.data
        # held-out text, if there is any
        batch = data.valid(0) if data.valid_batches else data.batch(0)
        given, wanted, limits = [], [], []
        for ids, targets in zip(batch["ids"][:ROWS], batch["targets"][:ROWS], strict=True):
            prompt, continuation, limit = _cut(ids, targets)
            if bundle.max_tokens is not None:
                # room that the context leaves after the prompt
                limit = min(limit, bundle.max_tokens - len(prompt))
            if limit > 0:
                given.append(prompt)
                wanted.append(continuation)
                limits.append(limit)
        if not given:
            return []
        ends = [] if bundle.special is None else [int(i) for i in bundle.special.ends]
        plan = Plan(
            start=[ids.tolist() for ids in given],
            end=ends,
            limit=limits,
            choice=CHOICE,
            seed=list(range(len(given))),  # the same samples of the same weights, at every step
            banned=bundle.spare_ids,
        )
        answers = search(bundle.model, {}, plan)
        samples = []
        for prompt, hypotheses, continuation in zip(given, answers, wanted, strict=True):
            written = np.array([i for i in hypotheses[0].ids if i not in ends], np.int64)
            sample = {"given": prompt, "written": written, "wanted": continuation}
            samples.append({name: tokens.decode(ids) for name, ids in sample.items()})
        return samples


def _cut(ids: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The prompt of a row, the ids that should follow, and how many to write at most.

    A row whose first targets do not count has a question: it is the prompt, and the answer should follow.
    """
    counted = np.flatnonzero(targets >= 0)
    # a chat: only answers have a loss
    if len(counted) and counted[0] > 0:
        # target i follows id i: the question is everything up to the first counted target
        return ids[: counted[0] + 1], targets[counted], len(counted)
    n = min(GIVEN, (len(ids) + 1) // 2)  # a short text is cut in the middle
    return ids[:n], ids[n : n + WRITTEN], WRITTEN


# Masked tokens: the cross-entropy of masked tokens given all others (Devlin et al. 2019, 3.1).
#
# ids (b, t) with masked tokens, targets (b, t) with -100 at all other positions, lengths (b,).


class MaskedTokens(TokenObjective):
    """The cross-entropy of masked tokens given all others, BERT's pretraining."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="fill")}
    reads: ClassVar[tuple[str, ...]] = ("ids", "targets", "lengths")

    def select(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The masked positions, which are few; all positions when compiling, where shapes must not change."""
        if torch.compiler.is_compiling():
            return x, targets
        masked = targets != IGNORE
        return x[masked], targets[masked]  # (n, d), (n): the output layer of 15 % of the tokens


# Translation: the cross-entropy of each target token given the source and the target tokens before it.
#
# source (b, s), lengths (b,), ids (b, t) and targets (b, t) with -100 for positions without loss.


class TranslationObjective(TokenObjective):
    """The cross-entropy of each target token given the source (Sutskever et al. 2014)."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="translate")}
    reads: ClassVar[tuple[str, ...]] = ("ids", "targets", "source", "lengths")
    text_measurements: ClassVar[Mapping[str, Measurement]] = {
        "bleu": Measurement("score from 0 to 100", "higher"),
        "chrf": Measurement("score from 0 to 100", "higher"),
    }
    writes_text = True

    def decode(self, bundle: Bundle, rows: Sequence[tuple[str, str]]) -> list[Sample]:
        """Greedy translations."""
        results: Any = translate(bundle, [source for source, _ in rows], beams=1)
        samples = []
        for (given, wanted), result in zip(rows, results, strict=True):
            samples.append({"given": given, "written": as_line(result.text), "wanted": wanted})
        return samples

    def score(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Corpus BLEU and chrF of sacreBLEU, as `evaluate` computes them."""
        texts = [sample["written"] for sample in samples], [sample["wanted"] for sample in samples]
        return {"bleu": bleu(*texts).value, "chrf": chrf(*texts).value}

    def samples(self, bundle: Bundle) -> list[Sample]:
        tokens: Any = bundle.tokens
        data = self.data
        # batches are sorted by length: neither the shortest nor the longest
        middle = data.valid_batches // 2
        batch = data.valid(middle) if data.valid_batches else data.batch(0)
        columns = (batch[name][:ROWS] for name in ("source", "lengths", "targets"))
        given, wanted = [], []
        for source, length, targets in zip(*columns, strict=True):
            given.append(tokens.source.decode(source[: length - 1]))  # without EOS
            # without EOS, which is the last target
            wanted.append(tokens.target.decode(targets[targets != IGNORE][:-1]))
        results: Any = translate(bundle, given, beams=1)
        texts = zip(given, results, wanted, strict=True)
        return [{"given": g, "written": result.text, "wanted": w} for g, result, w in texts]

"""Translation: the cross-entropy of each target token given the source and the target tokens before it.

source (b, s), lengths (b,), ids (b, t) and targets (b, t) with -100 for positions without loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...data import IGNORE
from ...data.files import as_line
from ...metrics import bleu, chrf
from ...tasks.translate import translate
from ...weights import Bundle
from .objective import Measurement, Role, Sample
from .token_loss import TokenObjective

ROWS = 3  # number of samples, always of the same rows


class Translation(TokenObjective):
    """The cross-entropy of each target token given the source (Sutskever et al. 2014)."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="translate")}
    reads: ClassVar[tuple[str, ...]] = ("ids", "targets", "source", "lengths")
    text_measurements: ClassVar[Mapping[str, Measurement]] = {
        "bleu": Measurement("score from 0 to 100", "higher"), "chrf": Measurement("score from 0 to 100", "higher"),
    }  # fmt: skip
    writes_text = True

    def decode(self, bundle: Bundle, rows: Sequence[tuple[str, str]]) -> list[Sample]:
        """Greedy translations."""
        results: Any = translate(bundle, [source for source, _ in rows], beams=1)
        return [
            {"given": given, "written": as_line(one.text), "wanted": wanted}
            for (given, wanted), one in zip(rows, results, strict=True)
        ]

    def score(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Corpus BLEU and chrF of sacreBLEU, as `evaluate` computes them."""
        texts = [one["written"] for one in samples], [one["wanted"] for one in samples]
        return {"bleu": bleu(*texts).value, "chrf": chrf(*texts).value}

    def samples(self, bundle: Bundle) -> list[Sample]:
        tokens: Any = bundle.tokens
        data = self.data
        middle = data.valid_batches // 2  # batches are sorted by length: neither the shortest nor the longest
        batch = data.valid(middle) if data.valid_batches else data.batch(0)
        batch = {name: x[:ROWS] for name, x in batch.items()}
        given = [tokens.source.decode(row[: n - 1]) for row, n in zip(batch["source"], batch["lengths"], strict=True)]
        wanted = [tokens.target.decode(row[row != IGNORE][:-1]) for row in batch["targets"]]
        results: Any = translate(bundle, given, beams=1)
        return [
            {"given": g, "written": one.text, "wanted": w} for g, one, w in zip(given, results, wanted, strict=True)
        ]  # fmt: skip

"""Translation: the cross-entropy of each target token given the source and the target tokens before it.

source (b, s), lengths (b,), ids (b, t) and targets (b, t) with -100 for positions without loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...data import IGNORE
from ...tasks.translate import translate
from ...weights import Bundle
from .objective import Role, Sample
from .token_loss import TokenObjective

ROWS = 3  # number of samples, always of the same rows


class Translation(TokenObjective):
    """The cross-entropy of each target token given the source (Sutskever et al. 2014)."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="translate")}
    reads: ClassVar[tuple[str, ...]] = ("ids", "targets", "source", "lengths")
    writes_text = True

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

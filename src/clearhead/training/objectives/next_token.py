"""Next token: the cross-entropy of each token given those before it.

ids (b, t), targets (b, t) with -100 for positions without loss; for packed documents also documents and at (b, t).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ...decode import Choice, Plan, search
from ...tokens import Pair
from ...weights import Bundle
from .objective import Role, Sample
from .token_loss import TokenObjective

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
        batch = data.valid(0) if data.valid_batches else data.batch(0)
        rows = [_cut(ids, targets) for ids, targets in zip(batch["ids"][:ROWS], batch["targets"][:ROWS], strict=True)]
        if bundle.max_tokens is not None:
            rows = [(given, wanted, min(limit, bundle.max_tokens - len(given))) for given, wanted, limit in rows]
        rows = [row for row in rows if row[2] > 0]
        if not rows:
            return []
        given, wanted, limits = (list(column) for column in zip(*rows, strict=True))
        ends = [] if bundle.special is None else [int(i) for i in bundle.special.ends]
        plan = Plan(
            start=[ids.tolist() for ids in given], end=ends, limit=limits, choice=CHOICE, seed=list(range(len(given))),
            banned=bundle.spare_ids,
        )  # fmt: skip
        answers = search(bundle.model, {}, plan)
        written = [[i for i in hypotheses[0].ids if i not in ends] for hypotheses in answers]
        texts: Any = [[tokens.decode(np.array(row, np.int64)) for row in rows] for rows in (given, written, wanted)]
        return [{"given": g, "written": w, "wanted": v} for g, w, v in zip(*texts, strict=True)]


def _cut(ids: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The prompt of a row, the ids that should follow, and how many to write at most.

    A row whose first targets do not count has a question: it is the prompt, and the answer should follow.
    """
    counted = np.flatnonzero(targets >= 0)
    if len(counted) and counted[0] > 0:
        return ids[: counted[0] + 1], targets[counted], len(counted)
    n = min(GIVEN, (len(ids) + 1) // 2)  # a short text is cut in the middle
    return ids[:n], ids[n : n + WRITTEN], WRITTEN

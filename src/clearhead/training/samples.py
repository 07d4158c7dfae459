"""Samples: what a model writes while it learns, after the beginnings of validation texts or of sentences to translate.

They are always of the same rows and the same seed, so that one can watch a text become better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from ..data import IGNORE, Batch, Data
from ..decode import Choice, Plan, search
from ..tasks import translate
from ..tokens import Pair
from ..weights import Bundle

ROWS = 3  # samples at a time
GIVEN, WRITTEN = 12, 40  # tokens of a text's beginning, and of what is written after it
CHOICE = Choice(sample=True, temperature=0.7)

Sample = dict[str, str]  # given: what was read; written: what the model wrote; wanted: what stands in the data


def writes(model: nn.Module, data: Data) -> bool:
    """Whether there are texts to write: all that the model can say is text."""
    if data.tokens is None or isinstance(data.tokens, Pair):
        return data.kind == "translations"
    return hasattr(model, "read") and data.sizes["vocab"] == len(data.tokens)


def samples(model: nn.Module, data: Data) -> list[Sample]:
    """A few texts by a model that nobody trains meanwhile."""
    pairs = isinstance(data.tokens, Pair)
    middle = data.valid_batches // 2 if pairs else 0  # pairs are in the order of their lengths
    batch = data.valid(middle) if data.valid_batches else data.batch(0)
    batch = {name: x[:ROWS] for name, x in batch.items()}
    bundle = Bundle(model.eval(), data.tokens, model.config)
    return _translations(bundle, batch) if pairs else _texts(bundle, batch)


def _texts(bundle: Bundle, batch: Batch) -> list[Sample]:
    tokens: Any = bundle.tokens
    ids = batch["ids"]
    n = min(GIVEN, (ids.shape[1] + 1) // 2)  # a short text is cut in the middle
    given, wanted = ids[:, :n], ids[:, n : n + WRITTEN]
    reach = getattr(bundle.model, "reach", None)
    limit = WRITTEN if reach is None else min(WRITTEN, reach - n)
    if limit < 1:
        return []
    ends = [] if bundle.special is None else [int(i) for i in bundle.special.ends]
    found = search(
        bundle.model, {}, Plan(start=given.tolist(), end=ends, limit=limit, choice=CHOICE, seed=list(range(len(given))))
    )
    written = [[i for i in hypotheses[0].ids if i not in ends] for hypotheses in found]
    texts = [[tokens.decode(np.array(row, np.int64)) for row in rows] for rows in (given, written, wanted)]
    return [_sample(*three) for three in zip(*texts, strict=True)]


def _translations(bundle: Bundle, batch: Batch) -> list[Sample]:
    tokens: Any = bundle.tokens
    given = [tokens.source.decode(row[: n - 1]) for row, n in zip(batch["source"], batch["lengths"], strict=True)]
    wanted = [tokens.target.decode(row[row != IGNORE][:-1]) for row in batch["targets"]]
    found: Any = translate(bundle, given, beams=1)
    return [_sample(*texts) for texts in zip(given, (one.text for one in found), wanted, strict=True)]


def _sample(given: str, written: str, wanted: str) -> Sample:
    return {"given": given, "written": written, "wanted": wanted}

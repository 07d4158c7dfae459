"""What a model is trained for: a batch in, one number out. Compile and distribution wrap this, not the model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import IGNORE
from ..errors import InputError
from ..models.bert import BERT
from .loss import linear_cross_entropy, measured


class Objective(nn.Module):
    """The summed loss of a batch; the loop divides by how much all workers counted together.

    sequences      cross-entropy of the next token, in nats, a counted token       targets (b, t)
    translations   the same, of what is written                                    targets (b, t)
    masked         cross-entropy of what stood in a gap, a gap                     targets (b, t)
    labelled       cross-entropy of the class, a text                              labels (b,)
    images         cross-entropy of the class, an image                            labels (b,)
    vectors        mean square over the width, a vector                            y (b, d)
    """

    def __init__(self, model: nn.Module, kind: str, smoothing: float = 0.0) -> None:
        super().__init__()
        states = getattr(model, "states", None)
        fits: tuple[str, ...]
        does, fits = "does not read tokens", ("vectors", "images")
        if isinstance(model, BERT):
            does, fits = f"answers {model.config.answer!r}", model.fits
        elif states is not None:
            source = "source" in inspect.signature(states).parameters
            does, fits = ("translates", ("translations",)) if source else ("reads tokens", ("sequences",))
        if kind not in fits:
            raise InputError(
                f"{type(model).__name__} {does}, and the data are {kind}: expected a model and data that go together"
            )
        self.model, self.kind, self.smoothing = model, kind, smoothing
        self.reads = states is not None and kind != "labelled"

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if self.reads:
            return linear_cross_entropy(*self._states(batch), smoothing=self.smoothing)
        return self._rows(batch, self.smoothing)[0]

    @torch.no_grad()
    def measure(self, batch: dict[str, Tensor]) -> Tensor:
        """The summed loss without smoothing, and how many answers were right (0 where there is no such thing)."""
        if self.reads:
            loss, right = measured(*self._states(batch))
        else:
            loss, right = self._rows(batch, 0.0)
        return torch.stack([loss, right.to(loss.dtype)])

    def _states(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """What the readout reads, its weights, and what it should say."""
        model: Any = self.model
        beside = {name: batch[name] for name in ("documents", "at", "source", "lengths") if name in batch}
        x, head, targets = model.states(batch["ids"], **beside), model.head, batch["targets"]
        if self.kind == "masked" and not torch.compiler.is_compiling():  # most tokens are not asked for
            asked = targets != IGNORE
            x, targets = x[asked], targets[asked]
        if head.bias is None:
            return x, head.weight, targets
        # What the loss multiplies has no bias: one more width, which is always 1, brings it in.
        return F.pad(x, (0, 1), value=1.0), torch.cat([head.weight, head.bias[:, None]], dim=1), targets

    def _rows(self, batch: dict[str, Tensor], smoothing: float) -> tuple[Tensor, Tensor]:
        kind = next(p.dtype for p in self.model.parameters() if p.ndim > 1)  # batch norms stay wide
        if self.kind == "vectors":
            x, y = batch["x"].to(kind), batch["y"]
            each = (self.model(x).float() - y).square().mean(-1)
            right = torch.zeros((), device=each.device)
        else:
            if self.kind == "labelled":
                logits = self.model(batch["ids"], lengths=batch["lengths"]).float()
            else:
                logits = self.model(batch["images"].to(kind)).float()
            each = F.cross_entropy(logits, batch["labels"], reduction="none", label_smoothing=smoothing)
            hit = (logits.argmax(-1) == batch["labels"]).float()
            right = (hit if "weight" not in batch else hit * batch["weight"]).sum()
        return (each if "weight" not in batch else each * batch["weight"]).sum(), right


def count(batch: Mapping[str, np.ndarray]) -> int:
    """How much a batch counts: tokens, or rows."""
    if "targets" in batch:
        return int((batch["targets"] != IGNORE).sum())
    rows = next(iter(batch.values()))
    return int(batch["weight"].sum()) if "weight" in batch else len(rows)

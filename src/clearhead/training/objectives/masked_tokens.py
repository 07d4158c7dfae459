"""Masked tokens: the cross-entropy of the tokens that were masked, given all others (Devlin et al. 2019, 3.1).

ids (b, t) with gaps, targets (b, t) with -100 except in the gaps, lengths (b,).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ...data import IGNORE
from .objective import Role
from .token_loss import TokenObjective


class MaskedTokens(TokenObjective):
    """BERT's pretraining."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="fill")}
    reads: ClassVar[tuple[str, ...]] = ("ids", "targets", "lengths")

    def select(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Only the gaps, which are few; a compiled graph, whose shapes must not change, takes all positions."""
        if torch.compiler.is_compiling():
            return x, targets
        gaps = targets != IGNORE
        return x[gaps], targets[gaps]

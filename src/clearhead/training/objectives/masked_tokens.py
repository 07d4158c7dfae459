"""Masked tokens: the cross-entropy of masked tokens given all others (Devlin et al. 2019, 3.1).

ids (b, t) with masked tokens, targets (b, t) with -100 at all other positions, lengths (b,).
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
    """The cross-entropy of masked tokens given all others, BERT's pretraining."""

    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="fill")}
    reads: ClassVar[tuple[str, ...]] = ("ids", "targets", "lengths")

    def select(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The masked positions, which are few; all positions when compiling, where shapes must not change."""
        if torch.compiler.is_compiling():
            return x, targets
        masked = targets != IGNORE
        return x[masked], targets[masked]

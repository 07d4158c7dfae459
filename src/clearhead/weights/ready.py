"""Ready: a model with all that it needs to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..layers import Learned
from ..tokens import Pair, Tokens


@dataclass(frozen=True, eq=False)
class Ready:
    """A model in evaluation mode, the tokens it was trained on (None where there is no text), and its config."""

    model: nn.Module
    tokens: Tokens | Pair | None
    config: Any

    def __post_init__(self) -> None:
        self.model.eval()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @torch.no_grad()
    def __call__(self, text: str) -> Float[Tensor, "t v"]:
        """The logits of what comes after each token of a text."""
        if self.tokens is None:
            raise ValueError(f"this {type(self.model).__name__} has no tokens and reads no text: call its .model")
        if isinstance(self.tokens, Pair):
            raise ValueError(
                f"this {type(self.model).__name__} translates: it answers a source and what is written of it"
            )
        ids = torch.from_numpy(self.tokens.encode(text)).to(self.device)
        if not len(ids):
            raise ValueError("the text is empty: expected a token or more")
        positions = getattr(self.model, "positions", None)
        if isinstance(positions, Learned) and len(ids) > positions.context:
            raise ValueError(f"the text has {len(ids)} tokens: this model has learned positions of {positions.context}")
        logits: Tensor = self.model(ids[None])[0]
        return logits

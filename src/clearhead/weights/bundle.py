"""Bundle: a model with all that it needs to answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Learned
from ..tokens import Pair, Pieces, Subwords, Tokens
from .fill import WeightsError


@dataclass(frozen=True, kw_only=True, slots=True)
class Special:
    """The ids that a search needs to know, as a folder says them."""

    pad: int | None = None  # fills short rows
    start: int | None = None  # what is gone on from where nothing is written
    ends: tuple[int, ...] = ()  # each ends an answer

    @staticmethod
    def of(tokens: Tokens | Pair | None) -> Special:
        """Those of tokens."""
        written = tokens.target if isinstance(tokens, Pair) else tokens
        if written is None:
            return Special()
        return Special(pad=written.pad, start=written.start, ends=() if written.end is None else (written.end,))


@dataclass(frozen=True, eq=False)
class Bundle:
    """A model in evaluation mode, the tokens it was trained on (None where there is no text), and its config."""

    model: nn.Module
    tokens: Tokens | Pair | None
    config: Any
    folder: Path | None = None  # where it was loaded from
    special: Special | None = None  # what its folder says beyond its tokens; those of the tokens if not given
    chat: str | None = None  # how a conversation becomes one text: a Jinja template
    labels: tuple[str, ...] | None = None  # what the classes are called, of a model that sorts

    def __post_init__(self) -> None:
        self.model.eval()
        if self.special is None:
            object.__setattr__(self, "special", Special.of(self.tokens))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @torch.no_grad()
    def __call__(self, text: str) -> Float[Tensor, "*o"]:
        """What the model says of a text: of a language model the logits of what comes after each token."""
        if self.tokens is None:
            raise InputError(f"this {type(self.model).__name__} has no tokens and reads no text: call its .model")
        if isinstance(self.tokens, Pair):
            raise InputError(
                f"this {type(self.model).__name__} translates: it answers a source and what is written of it"
            )
        encode = self.tokens.wrapped if isinstance(self.tokens, Subwords | Pieces) else self.tokens.encode
        ids = torch.from_numpy(encode(text)).to(self.device)
        if not len(ids):
            raise InputError("the text is empty: expected a token or more")
        positions = getattr(self.model, "positions", None)
        if isinstance(positions, Learned) and len(ids) > positions.context:
            raise InputError(f"the text has {len(ids)} tokens: this model has learned positions of {positions.context}")
        logits: Tensor = self.model(ids[None])[0]
        return logits


def check_tokens(tokens: Tokens | Pair | None, options: Any, where: str) -> None:
    """Raise if there are more tokens than the model knows: a pair has them for what is read and what is written."""
    vocab = getattr(options, "vocab", None)
    if isinstance(tokens, Pair):
        written = getattr(options, "target_vocab", None) or vocab
        both = {"source tokens": (tokens.source, vocab), "target tokens": (tokens.target, written)}
    else:
        both = {} if tokens is None else {"tokens": (tokens, vocab)}
    for name, (found, size) in both.items():
        if len(found) > (size or 0):
            what = "reads no tokens" if size is None else f"was built for {size}"
            raise WeightsError(f"{where}: there are {len(found)} {name}, and the model {what}")

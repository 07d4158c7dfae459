"""Bundle: a model with everything it needs to answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.image_files import ImageLike, open_image
from ..data.preprocessing import Preprocessing
from ..errors import InputError
from ..fast import accelerate
from ..models import Model
from ..tokens import Pair, Tokenizer
from .fill import WeightsError


@dataclass(frozen=True, kw_only=True, slots=True)
class Special:
    """The special ids that a search needs, as a folder gives them."""

    pad: int | None = None  # fills short rows
    start: int | None = None  # begins a text where nothing is written yet
    ends: tuple[int, ...] = ()  # each ends an answer

    @staticmethod
    def of(tokens: Tokenizer | Pair | None) -> Special:
        """The special ids of a tokenizer; of a pair, those of the target."""
        target = tokens.target if isinstance(tokens, Pair) else tokens
        if target is None:
            return Special()
        return Special(pad=target.pad, start=target.start, ends=() if target.end is None else (target.end,))


@dataclass(frozen=True, eq=False)
class Bundle:
    """A model in evaluation mode with its tokens or image preprocessing, as `load` returns it.

    Attributes:
        model: The network.
        tokens: The tokenizer it was trained with, a Pair for a translator; None if it reads no text.
        config: The model's config; `model.config` if not given.
        folder: The folder it was loaded from.
        special: Special ids where the folder says more than its tokenizer.
        chat: The Jinja template that turns a conversation into one text.
        labels: The names of the classes of a classifier.
        preprocessing: How an image becomes its input; None if it reads no images.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2)
        >>> Bundle(model, clearhead.tokens.Characters("abc"))("abba").shape
        torch.Size([4, 3])
    """

    model: nn.Module
    tokens: Tokenizer | Pair | None = None
    config: Any = None
    folder: Path | None = None
    special: Special | None = None
    chat: str | None = None
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        accelerate(self.model.eval())
        if self.config is None and isinstance(self.model, Model):
            object.__setattr__(self, "config", self.model.config)
        if self.special is None:
            object.__setattr__(self, "special", Special.of(self.tokens))

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def name(self) -> str:
        """The class of the model, for messages."""
        return type(self.model).__name__

    @property
    def can(self) -> frozenset[str]:
        """What the model can do: see models.CAPABILITIES."""
        return self.model.can if isinstance(self.model, Model) else frozenset()

    @property
    def max_tokens(self) -> int | None:
        """Tokens that the model reads at once; None: any number."""
        return self.model.max_tokens if isinstance(self.model, Model) else None

    def require(self, capability: str, expected: str) -> None:
        """Raise unless the model has a capability; the message says which kind of model was expected."""
        if capability not in self.can:
            raise InputError(f"this {self.name} cannot {capability}: expected {expected}")

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a model that reads single texts; raises for others."""
        if self.tokens is None or isinstance(self.tokens, Pair):
            raise InputError(f"this {self.name} reads no single texts: expected a model with a tokenizer of its own")
        return self.tokens

    def prompt(self, text: str) -> list[int]:
        """Prompt ids of a text; an empty text becomes BOS (or EOS)."""
        ids = [int(i) for i in self.tokenizer().wrapped(text)]
        special = self.special or Special()
        first = [i for i in (special.start, *special.ends) if i is not None]
        if not ids and not first:
            raise InputError("the prompt is empty, and the model has no BOS token: expected some text")
        return ids or [int(first[0])]

    def pixels(self, image: ImageLike) -> Float[Tensor, "c height width"]:
        """An image (a path, a PIL image or an array) as the model's input."""
        if self.preprocessing is None:
            raise InputError(f"this {self.name} reads no images: expected a model with image preprocessing")
        return torch.from_numpy(self.preprocessing(open_image(image)))

    @torch.no_grad()
    def __call__(self, given: str | ImageLike) -> Float[Tensor, "*o"]:
        """The model's output for one text or image: of a language model the logits after each token."""
        if self.preprocessing is not None:
            logits: Tensor = self.model(self.pixels(given)[None].to(self.device))[0]
            return logits
        if not isinstance(given, str):
            raise InputError(f"this {self.name} reads text: expected a string, got {type(given).__name__}")
        ids = torch.from_numpy(self.tokenizer().wrapped(given)).to(self.device)
        if not len(ids):
            raise InputError("the text is empty: expected a token or more")
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            raise InputError(f"the text has {len(ids)} tokens: this model reads {self.max_tokens} at once")
        logits = self.model(ids[None])[0]
        return logits


def check_tokens(tokens: Tokenizer | Pair | None, options: Any, where: str) -> None:
    """Raise if a tokenizer has more ids than the model was built for."""
    vocab = getattr(options, "vocab", None)
    if isinstance(tokens, Pair):
        target = getattr(options, "target_vocab", None) or vocab
        both = {"source tokens": (tokens.source, vocab), "target tokens": (tokens.target, target)}
    else:
        both = {} if tokens is None else {"tokens": (tokens, vocab)}
    for name, (found, size) in both.items():
        if len(found) > (size or 0):
            what = "reads no tokens" if size is None else f"was built for {size}"
            raise WeightsError(f"{where}: there are {len(found)} {name}, and the model {what}")

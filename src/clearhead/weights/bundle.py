"""Bundle: a model with its tokenizer or image preprocessing, and everything else that it needs to run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.images.files import ImageLike, image_path, open_image, shipped_names
from ..data.images.preprocessing import Preprocessing
from ..errors import InputError, MissingFileError, nearest
from ..fast import accelerate, quantised
from ..layers.lora import adapters, merge_adapters
from ..models import Model
from ..tokens import Pair, Tokenizer
from ..tokens.decoder_prompt import decoder_prompt
from ..tokens.special import Special
from .fill import WeightsError

if TYPE_CHECKING:
    from PIL import Image

Scores = Literal["softmax", "sigmoid", "value"]


@dataclass(frozen=True, eq=False, repr=False)
class Bundle:
    """A model in evaluation mode with its tokenizer or image preprocessing, as `load` returns it.

    Calling a bundle with a text or an image runs the model on it.

    Args:
        model: The network; it is put into evaluation mode.
        tokens: The tokenizer it was trained with, a Pair for a translator; None if it reads no text.
        config: The model's Config; None: `model.config`.
        folder: The folder it was loaded from.
        special: Special token ids; None: those of the tokenizer.
        chat: The Jinja template that turns a conversation into one text.
        labels: The names of the classes of a classifier.
        preprocessing: How an image becomes its input; None if it reads no images.
        model_type: Of the Hugging Face folder it was loaded from; the layout "huggingface" saves it as such again.
        columns: The columns of the table that it was trained on, such as {"text": "review", "label": "stars"}.
        base: The model that its adapters belong to, if it has any: what `load` takes.
        longest: The number of tokens at which `embed` cuts a text, as it did in training; None: the model's context.
        scores: How the logits of a classifier become scores: "softmax", one class per input; "sigmoid", a probability
            of each class by itself; "value", the logits themselves (regression).

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
    model_type: str | None = field(default=None, kw_only=True)
    columns: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    base: str | None = field(default=None, kw_only=True)
    longest: int | None = field(default=None, kw_only=True)
    scores: Scores = field(default="softmax", kw_only=True)

    def __post_init__(self) -> None:
        # in place: a bundle and the model that it was made of are the same network
        accelerate(self.model.eval())
        if self.config is None and isinstance(self.model, Model):
            # the dataclass is frozen, so that a field cannot be assigned
            object.__setattr__(self, "config", self.model.config)
        if self.special is None:
            object.__setattr__(self, "special", Special.of(self.tokens))

    def __repr__(self) -> str:
        """One line: the family, its size, what it can do, and where it is."""
        # parameters() yields a tied weight once
        size = sum(p.numel() for p in self.model.parameters())
        can = ", ".join(sorted(self.can)) or "nothing"
        place = "" if self.folder is None else f", from {str(self.folder)!r}"
        return f"Bundle({self.name}, {size:,} parameters, can {can}{place})"

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model computes in: that of its matrices, since norms may be kept in float32."""
        return next((p.dtype for p in self.model.parameters() if p.ndim > 1), torch.float32)

    @property
    def name(self) -> str:
        """The class of the model, for messages."""
        return self.model.name if isinstance(self.model, Model) else type(self.model).__name__

    @property
    def note(self) -> str | None:
        """A sentence about how the model was opened, if not as a family of this library."""
        return self.model.note if isinstance(self.model, Model) else None

    @property
    def can(self) -> frozenset[str]:
        """The capabilities of the model, keys of models.CAPABILITIES."""
        return self.model.can if isinstance(self.model, Model) else frozenset()

    @property
    def reads(self) -> str:
        """The input of the model: "tokens", "pairs", "images", "captions" or "vectors"; see models.Model."""
        if isinstance(self.model, Model):
            return self.model.reads
        # any other torch module does not say what it reads: image preprocessing tells it
        return "tokens" if self.preprocessing is None else "images"

    @property
    def max_tokens(self) -> int | None:
        """The number of tokens per row that the model can read at once; None: any number."""
        return self.model.max_tokens if isinstance(self.model, Model) else None

    @property
    def spare_ids(self) -> Sequence[int]:
        """Output ids without a token, as padded vocabularies have; generation must not choose them. EOS is left out."""
        # padded vocabularies: the model has more outputs than the tokenizer has tokens
        target = self.tokens.target if isinstance(self.tokens, Pair) else self.tokens
        # a translator may have another vocabulary for its targets
        outputs = getattr(self.config, "target_vocab", None) or getattr(self.config, "vocab", None)
        spare = range(0) if target is None or outputs is None else range(len(target), outputs)
        # some models end with an id that their tokenizer does not have
        ends = {i for i in (self.special or Special()).ends if i in spare}
        if not ends:
            return spare
        return [i for i in spare if i not in ends]

    def require(self, capability: str, expected: str) -> None:
        """Raise unless the model has a capability; `expected` is the kind of model that the message asks for."""
        if capability not in self.can:
            raise InputError(f"this {self.name} cannot {capability}: expected {expected}")

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a model that reads single texts; raises for other models."""
        if isinstance(self.tokens, Pair):
            raise InputError(
                f"this {self.name} reads pairs of texts: expected a model with one tokenizer"
            )
        if self.tokens is None:
            problem = "has no tokenizer"
            if self.reads in ("images", "vectors"):
                # a better hint than the missing tokenizer: the kind of its input
                problem = f"reads {self.reads}"
            raise InputError(f"this {self.name} {problem}: expected a model that reads text")
        return self.tokens

    def pair(self) -> Pair:
        """The tokenizers of a translator; raises for other models."""
        if not isinstance(self.tokens, Pair):
            raise InputError(
                f"this {self.name} has no tokenizers of a source and a target: expected a Pair"
            )
        return self.tokens

    def decoder_prompt(self) -> list[int]:
        """What a translator's decoder reads before a target: BOS, and the target's language if the model has many."""
        return decoder_prompt(self.pair(), self.special)

    def with_languages(self, source: str | None = None, target: str | None = None) -> Bundle:
        """This translator between many languages, such as NLLB, with other languages of source and target.

        Args:
            source: The token of the source's language: "fra_Latn" of NLLB, "fr" or "__fr__" of M2M-100. None leaves it
                as it is.
            target: The token of the target's language.

        Examples:
            >>> words = clearhead.tokens.Words(["__de__", "a", "ein"])
            >>> sizes = {"vocab": len(words), "width": 8, "depth": 1, "heads": 2}
            >>> bundle = Bundle(clearhead.build("transformer", **sizes), clearhead.tokens.Pair(words, words))
            >>> bundle.with_languages(target="fr")
            Traceback (most recent call last):
            clearhead.errors.InputError: language 'fr': expected a special token of this model
        """
        tokens, special = self.pair(), self.special or Special()
        if source is not None:
            # the encoder reads the language of the source as a token of the text
            tokens = replace(tokens, before=_language(tokens.source, source))
        if target is not None:
            # the decoder begins every answer with the language of the target
            special = replace(special, first=_language(tokens.target, target))
        return replace(self, tokens=tokens, special=special)

    def prompt(self, text: str) -> list[int]:
        """Prompt ids of a text; an empty text becomes BOS (or EOS)."""
        # an empty text still gets BOS from some tokenizers
        ids = [int(i) for i in self.tokenizer().wrapped(text)]
        special = self.special or Special()
        # what an empty prompt may begin with: BOS, or else the first EOS
        first = [i for i in (special.start, *special.ends) if i is not None]
        if not ids and not first:
            raise InputError(
                "the prompt is empty, and the model has no BOS or EOS token: expected some text"
            )
        return ids or [int(first[0])]

    def pixels(self, image: ImageLike) -> Float[Tensor, "c height width"]:
        """An image as the model's input, in float32 on the CPU.

        Args:
            image: A path, the name of an image that ships, a PIL image or an array.
        """
        opened = self.open_image(image)
        assert self.preprocessing is not None
        return torch.from_numpy(self.preprocessing(opened))

    def open_image(self, image: ImageLike) -> Image.Image:
        """An image that the model can read, opened; raises if the model reads none, or if there is no such file."""
        if self.preprocessing is None:
            reads_images = self.reads in ("images", "captions")
            problem = "has no image preprocessing" if reads_images else "reads no images"
            raise InputError(
                f"this {self.name} {problem}: expected a model with image preprocessing"
            )
        # the message names models' pictures as well as files
        if isinstance(image, str | Path) and not os.path.exists(image_path(image)):
            raise MissingFileError(
                f"{str(image)[-200:]!r}: there is no such file, and this {self.name} reads images: expected a path, a "
                f"PIL image, an array, or {shipped_names(image)}"
            )
        return open_image(image)

    @torch.no_grad()
    def __call__(self, given: str | ImageLike) -> Float[Tensor, "*o"]:
        """The model's output for one text or image; for a language model the logits after each token."""
        if self.reads == "captions":
            raise InputError(
                f"this {self.name} writes texts: expected clearhead.caption(model, image)"
            )
        if self.reads == "images":
            # a batch of one image, (c, y, x) -> (1, c, y, x), in the dtype of the matrices
            out: Tensor = self.model(self.pixels(given)[None].to(self.device, self.dtype))[0]
            return out
        if not isinstance(given, str):
            raise InputError(
                f"this {self.name} reads text: expected a string, got {type(given).__name__}"
            )
        ids = torch.from_numpy(self.tokenizer().wrapped(given)).to(self.device)
        if not len(ids):
            raise InputError("the text is empty: expected a token or more")
        # learned positions end here; rotary ones would go on, untrained
        if self.max_tokens is not None and len(ids) > self.max_tokens:
            raise InputError(
                f"the text has {len(ids)} tokens: this model reads {self.max_tokens} at once"
            )
        out = self.model(ids[None])[0]
        return out


def _language(tokens: Tokenizer, name: str) -> int:
    # M2M-100 writes fr as __fr__
    known = tokens.special_names
    for token in (name, f"__{name}__"):
        if token in known:
            return int(known[token])
    raise InputError(
        f"language {name!r}: expected a special token of this model{nearest(name, known)}"
    )


def check_tokens(tokens: Tokenizer | Pair | None, options: Any, where: str) -> None:
    """Raise if a tokenizer has more ids than the model has embeddings; `where` begins the message."""
    vocab = getattr(options, "vocab", None)
    sizes: dict[str, tuple[Tokenizer, int | None]] = {}
    if isinstance(tokens, Pair):
        # one vocabulary for both sides unless the Config has a second one
        target = getattr(options, "target_vocab", None) or vocab
        sizes = {"source tokens": (tokens.source, vocab), "target tokens": (tokens.target, target)}
    elif tokens is not None:
        sizes = {"tokens": (tokens, vocab)}
    for name, (tokenizer, size) in sizes.items():
        # a model that reads no tokens counts as a vocabulary of 0, which any tokenizer exceeds
        if len(tokenizer) > (size or 0):
            what = "reads no tokens" if size is None else f"was built for {size}"
            raise WeightsError(f"{where}: there are {len(tokenizer)} {name}, and the model {what}")


# quantise: a model with 8-bit weights, for a CPU.


def quantise(bundle: Bundle | str | Path) -> Bundle:
    """Return the same model with the weights of its linear maps rounded to 8 bits, for faster inference on a CPU.

    It shares its embeddings with the original, cannot be saved, and gives no gradients for the rounded weights.

    Args:
        bundle: A model on the CPU, or what `load` takes.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=32, depth=1, heads=2)
        >>> bundle = Bundle(model, clearhead.tokens.Characters("abc"))
        >>> bool((quantise(bundle)("abba") - bundle("abba")).abs().max() < 0.1)
        True
    """
    from .folder import opened  # which imports this file

    bundle = opened(bundle)
    if bundle.device.type != "cpu":
        raise InputError(
            f"8-bit weights are for a CPU, and this model is on {bundle.device}: load it with device='cpu'"
        )
    # before rounding, as B A is added in floating point; to a copy, as merging is in place
    model = merge_adapters(deepcopy(bundle.model)) if adapters(bundle.model) else bundle.model
    return replace(bundle, model=quantised(model), base=None)

"""The names of a model's outputs, classes or tokens, and the output that a target chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError, InputIndexError, nearest
from ..tokens import Pair
from ..weights import Bundle

# a name, a number, a function of logits (n, v), the likeliest
Chosen = str | int | Callable[[Tensor], Tensor] | None


@dataclass(frozen=True)
class ClassNames:
    """The names of classes; None: there may be any number of them; (): the outputs are no classes."""

    labels: tuple[str, ...] | None = None

    @property
    def known(self) -> bool:
        """Whether the outputs are logits of classes or tokens, of which one is the likeliest."""
        return self.labels != ()

    def name(self, index: int) -> str:
        """The name of an output."""
        if self.labels and index < len(self.labels):
            return self.labels[index]
        return str(index)

    def index(self, word: str) -> int:
        """The output that a word means; raises if there is none, or if it is several tokens."""
        labels = self.labels or ()
        exact = [i for i, label in enumerate(labels) if label == word]
        found = exact or [i for i, label in enumerate(labels) if label.lower() == word.lower()]
        if not found:
            some = ", ".join(labels[:12]) + (" ..." if len(labels) > 12 else "")
            raise InputError(
                f"target={word!r}: expected one of {some}{nearest(word, labels)}"
                if labels
                else f"target={word!r}: this model's classes have no names, expected a number"
            )
        return found[0]


@dataclass(frozen=True)
class TokenNames:
    """The text of tokens, by functions of a tokenizer."""

    encode: Callable[[str], Iterable[int]] | None  # the ids of a text; None: there is no tokenizer
    pieces: Callable[[list[int]], list[str]]  # the text of each id

    @property
    def known(self) -> bool:
        """Whether the outputs are logits of classes or tokens, of which one is the likeliest."""
        return True

    def name(self, index: int) -> str:
        """The name of an output."""
        try:
            return self.pieces([index])[0]
        except (IndexError, ValueError):  # models may have more outputs than there are tokens
            return str(index)

    def index(self, word: str) -> int:
        """The output that a word means; raises if there is none, or if it is several tokens."""
        if self.encode is None:
            raise InputError(
                f"target={word!r}: this model has no tokenizer, expected a token's number"
            )
        # in most texts a word follows a space, which belongs to its token
        spaced = f" {word.lstrip()}"
        with suppress(InputError):  # an alphabet may have no space
            ids = [int(i) for i in self.encode(spaced)]
            if len(ids) == 1:
                return ids[0]
        ids = [int(i) for i in self.encode(word)]
        if len(ids) != 1:
            raise InputError(
                f"target={word!r} is {len(ids)} tokens, {self.pieces(ids)}: expected one token, or the number of one"
            )
        return ids[0]


OutputNames = ClassNames | TokenNames


def tokenizer_names(tokenizer: Any) -> TokenNames:
    """The names of tokens by a tokenizer of transformers."""
    return TokenNames(
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        lambda ids: tokenizer_pieces(tokenizer, ids),
    )


def tokenizer_pieces(tokenizer: Any, ids: Iterable[int]) -> list[str]:
    """The text of each token by a tokenizer of transformers."""
    return [tokenizer.decode([int(i)]) or str(tokenizer.convert_ids_to_tokens(int(i))) for i in ids]


def names_of(bundle: Bundle) -> OutputNames:
    """The names of the outputs of a model: its classes, the tokens that it writes, or none if they are vectors."""
    if "classify" in bundle.can:
        return ClassNames(tuple(bundle.labels or map(str, range(bundle.config.classes))))
    if not bundle.can & {"predict", "fill", "translate"}:
        return ClassNames(())
    if isinstance(bundle.tokens, Pair):
        tokens = bundle.tokens.target
    else:
        tokens = bundle.tokenizer()
    return TokenNames(tokens.encode, tokens.pieces)


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """The output that is explained."""

    name: str  # of the class or token
    index: int | None  # its number; None: a function of the logits
    score: Callable[[Float[Tensor, "n v"]], Float[Tensor, "n"]]  # its logit in every row
    value: float  # the score of the input
    probability: float | None  # the softmax of its logit; None for a function
    outputs: int  # number of logits


def choose_target(
    target: Chosen, logits: Float[Tensor, "1 v"], names: OutputNames, model: str
) -> Target:
    """The output that a target means: its name, its number, a function of the logits, or the likeliest if None.

    Args:
        target: What was asked for.
        logits: The logits of the input.
        names: The names of the outputs.
        model: The name of the model, for messages.
    """
    outputs = logits.shape[-1]
    if callable(target):
        value = target(logits)
        if not isinstance(value, Tensor) or value.shape != (1,):
            got: Any = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"the target's function returned {got} for logits (1, {outputs}): expected shape (1,)"
            )
        title = getattr(target, "__name__", "function")
        return Target(
            name=title,
            index=None,
            score=target,
            value=float(value),
            probability=None,
            outputs=outputs,
        )
    if not names.known:
        raise InputError(
            f"this {model} has vectors as its output and neither classes nor tokens: expected target=a function of "
            "the output (rows, width) that returns a number for each row"
        )
    if target is None:
        index = int(logits[0].argmax())
    elif isinstance(target, str):
        index = names.index(target)
    else:
        index = target
    if not -outputs <= index < outputs:
        raise InputIndexError(f"target={index}: there are {outputs} outputs, counted from 0")
    index %= outputs
    share = torch.softmax(logits[0].double(), -1)[index]
    return Target(
        name=names.name(index),
        index=index,
        score=lambda x: x[:, index],
        value=float(logits[0, index]),
        probability=float(share),
        outputs=outputs,
    )

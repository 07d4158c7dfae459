"""The names of a model's outputs, the output that a target chooses, and the answer that a measure of cause follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.text.labelled import MASKS
from ..errors import InputError, InputIndexError, nearest
from ..inputs import ModelInput
from ..inputs.tensors import tokenizer_pieces
from ..tokens import Pair
from ..weights import Bundle
from .capture.edits import Edit
from .structure import first_tensor
from .watch import edit

ROW_TOKENS = 1 << 12  # tokens per forward pass on a CPU, all rows together
ROW_TOKENS_CUDA = 1 << 16  # the same on a GPU
LOGITS = 1 << 24  # logits that are in memory at a time

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
        # An exact match wins over one that ignores case.
        exact = [i for i, label in enumerate(labels) if label == word]
        matches = exact or [i for i, label in enumerate(labels) if label.lower() == word.lower()]
        if not matches:
            # Without names there is no nearest one to suggest.
            if not labels:
                raise InputError(
                    f"target={word!r}: this model's classes have no names, expected a number"
                )
            some = ", ".join(labels[:12])
            if len(labels) > 12:
                some += " ..."
            raise InputError(f"target={word!r}: expected one of {some}{nearest(word, labels)}")
        return matches[0]


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


def names_of(bundle: Bundle) -> OutputNames:
    """The names of the outputs of a model: its classes, the tokens that it writes, or none if they are vectors."""
    if "classify" in bundle.can:
        return ClassNames(tuple(bundle.labels or map(str, range(bundle.config.classes))))
    # An encoder of vectors: neither classes nor tokens to choose from.
    if not bundle.can & {"predict", "fill", "translate"}:
        return ClassNames(())
    # A translator writes tokens of its target.
    if isinstance(bundle.tokens, Pair):
        tokens = bundle.tokens.target
    else:
        tokens = bundle.tokenizer()
    return TokenNames(tokens.encode, tokens.pieces)


def output_names(given: ModelInput) -> OutputNames:
    """The names of a model's outputs; of a bare torch module its classes, its tokenizer's tokens, or else numbers."""
    if given.bundle is not None:
        return names_of(given.bundle)
    labels = config_labels(given.model)
    # A config may have labels that the model does not use, so its outputs must be classes as well.
    if labels and given.classifies:
        return ClassNames(labels)
    if given.tokenizer is None:
        return ClassNames()
    return tokenizer_names(given.tokenizer)


def config_labels(model: Any) -> tuple[str, ...]:
    """The names of the classes of a model of transformers; () if it has none."""
    labels = getattr(getattr(model, "config", None), "id2label", None) or {}
    return tuple(str(labels[i]) for i in sorted(labels))


# Saliency: one output, as a score that gradients are taken of.


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
    # A function of the logits has no index, and no probability either.
    if callable(target):
        value = target(logits)
        # A wrong function would fail later, deep inside of a method.
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
    # The likeliest output, one by name, or one by number.
    if target is None:
        index = int(logits[0].argmax())
    elif isinstance(target, str):
        index = names.index(target)
    else:
        index = target
    if not -outputs <= index < outputs:
        raise InputIndexError(f"target={index}: there are {outputs} outputs, counted from 0")
    # -1 is the last output, as in Python.
    index %= outputs
    # In float64, because a share of 1e-8 is 0 in half precision.
    share = torch.softmax(logits[0].double(), -1)[index]
    return Target(
        name=names.name(index),
        index=index,
        score=lambda x: x[:, index],
        value=float(logits[0, index]),
        probability=float(share),
        outputs=outputs,
    )


# Measures of cause: the log-probability of an answer, while activations are edited.


# a class or token; a pair: the difference of both is measured
Wanted = str | int | tuple[str | int, str | int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """The quantity measured at a model's output: the log-probability of an answer, or the difference of two logits."""

    ids: tuple[int, ...]  # one class or token, or two
    names: tuple[str, ...]
    at: int | None  # the position whose logits these are; None: the model has one answer per row

    @property
    def name(self) -> str:
        """The answer, or both, in words."""
        if len(self.names) == 1:
            return self.names[0]
        return " against ".join(name.strip() or name for name in self.names)

    def measure(self, logits: Float[Tensor, "r v"]) -> Float[Tensor, "r"]:
        """The log-probability of the answer in each row, or the difference of the two."""
        logp = logits.log_softmax(-1)
        if max(self.ids) >= logp.shape[1]:
            raise InputError(
                f"target={max(self.ids)}: there are {logp.shape[1]} outputs, counted from 0"
            )
        if len(self.ids) == 1:
            return logp[:, self.ids[0]]
        # The normaliser cancels: a difference of log-probabilities is that of the logits.
        return logp[:, self.ids[0]] - logp[:, self.ids[1]]


def answer_position(given: ModelInput, at: int | None) -> int | None:
    """The position whose logits are the answer: the last token of a language model, the masked one of an encoder."""
    can = given.can
    if "classify" in can:
        if at is not None:
            raise InputError("a classifier has one answer: expected no position `at`")
        return None
    if "embed" in can or (can and not can & {"predict", "fill", "translate"}):
        raise InputError(
            f"this {type(given.model).__name__} returns vectors and no logits: expected a classifier, a language "
            "model, a translator or an encoder with its masked-token head"
        )
    # A module that was given no ids, such as an image model, has one answer.
    if given.read_ids is None:
        return at
    # A bare module with a mask in its text: its capabilities are not declared.
    if at is None and given.bundle is None and given.masks:
        return given.masks[0]
    # A text with one mask names the position by itself.
    if at is None and "fill" in can:
        if len(given.masks) != 1:
            raise InputError(
                f"which token is measured? Expected a text with one {MASKS[0]}, as in 'A dog is {MASKS[0]} in the "
                "park.', or the position of a token, as in at=3"
            )
        return given.masks[0]
    # A language model answers after its last token.
    length = given.read_ids.shape[1]
    if at is None:
        at = length - 1
    if not -length <= at < length:
        raise InputError(f"at={at}: the text has {length} tokens, counted from 0")
    return at % length


def answer_of(
    given: ModelInput, target: Wanted | None, at: int | None, logits: Float[Tensor, "v"]
) -> Answer:
    """The answer that a target names.

    Args:
        given: An input of the model.
        target: The name or number of a class or token, or a pair of them; None: the likeliest.
        at: The position whose logits are the answer's.
        logits: The logits there.
    """
    if target is None:
        target = int(logits.argmax())
    # One answer, or a pair, in the order in which the difference is taken.
    both = target if isinstance(target, tuple) else (target,)
    if len(both) not in (1, 2):
        raise InputError(f"{len(both)} targets: expected one, or two, whose difference is measured")
    names = output_names(given)
    ids = tuple(_answer_id(names, word) for word in both)
    return Answer(ids=ids, names=tuple(names.name(i) for i in ids), at=at)


def _answer_id(names: OutputNames, target: str | int) -> int:
    if isinstance(target, str):
        return names.index(target)
    # True and False are ints in Python, and 1.5 would be cut to 1.
    if isinstance(target, bool) or int(target) != target or target < 0:
        raise InputError(
            f"target={target!r}: expected the number of a class or token, counted from 0"
        )
    return int(target)


def answer_logits(
    given: ModelInput,
    rows: int = 1,
    changes: Mapping[str, Edit] | None = None,
    at: int | None = None,
) -> Float[Tensor, "r v"]:
    """The logits of the answer in `rows` copies of an input, under edits.

    Args:
        given: The input.
        rows: The number of copies.
        changes: Edits, as `edit` takes them.
        at: The position whose logits are the answer's; None: a classifier, or the model has but one answer.
    """
    model: Any = given.model
    # Copies of the input: edits may differ from row to row.
    batch = given.repeated(rows)
    with edit(model, changes or {}):
        # Only models with `states` can compute the head at one position.
        if at is not None and _has_logits_per_token(given):
            # the logits of one position only, to save memory
            out = model.head(model.states(*batch.args, **batch.named)[:, at])
        else:
            out = batch.run(model)
    # Outputs of transformers keep their logits under that name.
    out = getattr(out, "logits", out)
    if not isinstance(out, Tensor):
        raise InputError(
            f"this {type(model).__name__} returns no logits: expected a classifier or a language model"
        )
    # (rows, t, v) -> (rows, v)
    if out.ndim == 3 and at is not None:
        out = out[:, at]
    if out.ndim != 2:
        raise InputError(
            f"the output has shape {tuple(out.shape)}: expected logits of classes or of tokens, at=..."
        )
    return at_least_float32(out)


def _has_logits_per_token(given: ModelInput) -> bool:
    return bool(given.can & {"predict", "fill", "translate"}) and hasattr(given.model, "states")


def whole_output(
    given: ModelInput, rows: int = 1, changes: Mapping[str, Edit] | None = None
) -> Tensor:
    """The logits or vectors of every token, or of the whole input, in `rows` copies of it, under edits."""
    with edit(given.model, changes or {}):
        out = output_of(given.repeated(rows).run(given.model))
    return at_least_float32(out)


def output_of(out: Any) -> Tensor:
    """The logits of a model's output, or its first tensor if it has none."""
    logits = getattr(out, "logits", None)
    x = logits if isinstance(logits, Tensor) else first_tensor(out, None)
    if x is None:
        raise InputError(
            f"the model returned a {type(out).__name__} without a tensor: expected logits"
        )
    return x


def at_least_float32(x: Tensor) -> Tensor:
    """A tensor in float32, or in float64 if it is."""
    if x.dtype == torch.float64:
        return x
    return x.float()


def rows_at_once(given: ModelInput, vocab: int) -> int:
    """The number of rows of one forward pass that fit into memory, for this many logits per answer."""
    # a bare module returns the logits of every token, and not of one alone
    logits = vocab * given.tokens if given.bundle is None else vocab
    # The smaller of two limits: activations of all tokens, and logits.
    return max(1, min(tokens_at_once(given.model) // given.tokens, LOGITS // logits))


def tokens_at_once(model: nn.Module) -> int:
    """The number of tokens of one forward pass that fit into memory, all rows together."""
    return ROW_TOKENS_CUDA if next(model.parameters()).is_cuda else ROW_TOKENS

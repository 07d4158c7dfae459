"""What a measure of cause runs: one input of a model as a batch of one row, and the answer that is measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.images.files import ImageLike
from ..data.text.labelled import MASKS
from ..errors import InputError
from ..weights import Bundle
from .capture.addresses import module_of
from .capture.edits import Edit
from .capture.watch import edit
from .foreign.foreign_text import check_tokenizer, read_foreign_text
from .maps.text_attention import pieces_of, read_ids
from .saliency_methods.embedded import output_of
from .targets import ClassNames, OutputNames, names_of, tokenizer_names, tokenizer_pieces

ROW_TOKENS = 1 << 12  # tokens per forward pass on a CPU, all rows together
ROW_TOKENS_CUDA = 1 << 16  # the same on a GPU
LOGITS = 1 << 24  # logits that are in memory at a time

# a text, an image, or the arguments of a torch module
Given = str | ImageLike | Tensor | Mapping[str, Tensor]
# a class or token; a pair: the difference of both is measured
Target = str | int | tuple[str | int, str | int]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInput:
    """One input of a model: the arguments of its forward pass, one row each, and the names of its tokens."""

    model: nn.Module
    bundle: Bundle | None  # None: a bare torch module
    args: tuple[Tensor, ...]  # positional arguments, one row each
    row: dict[str, Any]  # keyword arguments, one row each where they are tensors
    pieces: list[str] | None  # the text of each token of a text; for a translator, of the source
    grid: tuple[int, int] | None = None  # rows and columns of patches of an image
    special: int = 0  # tokens before the patches
    written: list[str] | None = None  # the text of each token that a translator's decoder reads
    mask: int | None = None  # position of the masked token
    tokenizer: Any = None  # of a bare module, which names its tokens

    @cached_property
    def outputs(self) -> OutputNames:
        """The names of the outputs; of a bare torch module its classes, its tokenizer's tokens, or else numbers."""
        if self.bundle is not None:
            return names_of(self.bundle)
        labels = getattr(getattr(self.model, "config", None), "id2label", None)
        if labels and self.classifies():
            return ClassNames(tuple(str(labels[i]) for i in sorted(labels)))
        if self.tokenizer is None:
            return ClassNames()
        return tokenizer_names(self.tokenizer)

    @property
    def read_ids(self) -> Tensor | None:
        """The ids (1, t) whose tokens the answers follow: those of the decoder, if there are two kinds."""
        if "decoder_input_ids" in self.row:
            ids: Tensor = self.row["decoder_input_ids"]
            return ids
        every = (*self.args, *self.row.values())
        return next((x for x in every if isinstance(x, Tensor) and x.ndim == 2), None)

    @property
    def tokens(self) -> int:
        """The number of tokens of one row, source and target together, as far as it is known from the input."""
        if self.grid is not None:
            return self.grid[0] * self.grid[1] + self.special
        sizes = [
            x.shape[1]
            for x in (*self.args, *self.row.values())
            if isinstance(x, Tensor) and x.ndim in (2, 3)
        ]
        return max(1, sum(sizes))

    def names(self, length: int, *, decoder: bool = False) -> list[str]:
        """The names of the tokens of an activation with this many tokens, of the encoder or of the decoder."""
        for pieces in (self.written, self.pieces) if decoder else (self.pieces, self.written):
            if pieces is not None and len(pieces) == length:
                return pieces
        if self.grid is not None and length == self.tokens:
            cells = [f"{y},{x}" for y in range(self.grid[0]) for x in range(self.grid[1])]
            before = ["<class>", *(f"<register {i}>" for i in range(1, self.special))][
                : self.special
            ]
            return [*before, *cells]
        return [str(i) for i in range(length)]

    def logits(
        self, rows: int = 1, changes: Mapping[str, Edit] | None = None, at: int | None = None
    ) -> Float[Tensor, "r v"]:
        """The logits of the answer in `rows` copies of the input, under edits.

        Args:
            rows: The number of copies.
            changes: Edits, as `edit` takes them.
            at: The position whose logits are the answer's; None: a classifier, or the model has but one answer.
        """
        args = [_expanded(x, rows) for x in self.args]
        row = {name: _expanded(x, rows) for name, x in self.row.items()}
        with edit(self.model, changes or {}):
            out = self._run(args, row, at)
        if out.dtype == torch.float64:
            return out
        return out.float()

    def whole_output(self, rows: int = 1, changes: Mapping[str, Edit] | None = None) -> Tensor:
        """The logits or vectors of every token, or of the whole input, in `rows` copies of it, under edits."""
        args = [_expanded(x, rows) for x in self.args]
        row = {name: _expanded(x, rows) for name, x in self.row.items()}
        with edit(self.model, changes or {}):
            out = output_of(self.model(*args, **row))
        if out.dtype == torch.float64:
            return out
        return out.float()

    def _run(self, args: list[Any], row: dict[str, Any], at: int | None) -> Tensor:
        model: Any = self.model
        whole = self.bundle is None or not self.bundle.can & {"predict", "fill", "translate"}
        if not whole and at is not None and hasattr(model, "states"):
            # of one position only, to save memory
            logits: Tensor = model.head(model.states(*args, **row)[:, at])
            return logits
        out = model(*args, **row)
        out = getattr(out, "logits", out)
        if not isinstance(out, Tensor):
            raise InputError(
                f"this {type(model).__name__} returns no logits: expected a classifier or a language model"
            )
        if out.ndim == 3 and at is not None:
            return out[:, at]
        if out.ndim != 2:
            raise InputError(
                f"the output has shape {tuple(out.shape)}: expected logits of classes or of tokens, at=..."
            )
        return out

    @torch.no_grad()
    def classifies(self) -> bool:
        """Whether the model has one answer for the whole input, and not one per token."""
        if self.bundle is not None:
            return "classify" in self.bundle.can
        out = self.model(*self.args, **self.row)
        out = getattr(out, "logits", out)
        return isinstance(out, Tensor) and out.ndim == 2

    def room(self, vocab: int) -> int:
        """The number of rows of one forward pass that fit into memory."""
        cuda = next(self.model.parameters()).is_cuda
        rows = (ROW_TOKENS_CUDA if cuda else ROW_TOKENS) // self.tokens
        return max(1, min(rows, LOGITS // (vocab * (self.tokens if self.bundle is None else 1))))


def model_input(
    model: Bundle | nn.Module, given: Given, *, written: str | None = None, tokenizer: Any = None
) -> ModelInput:
    """The input of a model for a text, an image or tensors.

    Args:
        model: A Bundle, or a torch module.
        given: A text or an image for a Bundle; for a module its first argument with one row, or a dict of arguments, or
            a text with `tokenizer`.
        written: What a translator's decoder has written so far; for a translator only.
        tokenizer: The tokenizer of a model of transformers, which reads the text and names the tokens.
    """
    if tokenizer is not None:
        if isinstance(model, Bundle):
            raise InputError("a Bundle has tokens of its own: expected no tokenizer")
        check_tokenizer(tokenizer)
        if isinstance(given, str):
            given = read_foreign_text(model, tokenizer, given, written)
    module = module_of(model)
    if module.training:
        raise InputError(
            f"this {type(module).__name__} is in training mode: call .eval() first, so that it is fixed"
        )
    if isinstance(given, Tensor | Mapping) and not (
        isinstance(model, Bundle) and isinstance(given, Tensor)
    ):
        args = (given,) if isinstance(given, Tensor) else ()
        row: dict[str, Any] = {} if isinstance(given, Tensor) else dict(given)
        wrong = [
            tuple(x.shape)
            for x in (*args, *row.values())
            if isinstance(x, Tensor) and x.shape[:1] != (1,)
        ]
        if wrong:
            raise InputError(
                f"tensors of shapes {wrong}: expected one row, the first axis of size 1"
            )
        return _named_tokens(
            ModelInput(model=module, bundle=None, args=args, row=row, pieces=None), tokenizer
        )
    if not isinstance(model, Bundle):
        raise InputError(
            f"a bare {type(module).__name__} was given a {type(given).__name__}: expected a tensor with one row or a "
            "dict of them; a text needs its tokenizer, tokenizer=..., or a Bundle, and an image a Bundle"
        )
    bundle: Bundle = model
    if written is not None and bundle.reads != "pairs":
        raise InputError(f"this {bundle.name} is no translator: expected no `written`")
    kind = bundle.reads if bundle.reads in _READ else "tokens"
    return _READ[kind](bundle, given, written)


def _named_tokens(one: ModelInput, tokenizer: Any) -> ModelInput:
    """An input of a bare module with the names of its tokens, and the place of its mask, by a tokenizer."""
    ids = one.row.get("input_ids", next(iter(one.args), None))
    if tokenizer is None or not isinstance(ids, Tensor) or ids.is_floating_point():
        return one
    written = one.row.get("decoder_input_ids")
    mask_id = getattr(tokenizer, "mask_token_id", None)
    masks = [place for place, i in enumerate(ids[0].tolist()) if i == mask_id]
    return replace(
        one,
        tokenizer=tokenizer,
        pieces=tokenizer_pieces(tokenizer, ids[0].tolist()),
        written=None if written is None else tokenizer_pieces(tokenizer, written[0].tolist()),
        mask=masks[0] if masks else None,
    )


def _read_text(bundle: Bundle, given: Any, _: str | None) -> ModelInput:
    _check_text(bundle, given)
    ids, masks = read_ids(bundle, given)
    return ModelInput(
        model=bundle.model,
        bundle=bundle,
        args=(row_of(bundle, ids),),
        row={},
        pieces=pieces_of(bundle, ids),
        mask=masks[0] if len(masks) == 1 else None,
    )


def _read_pair(bundle: Bundle, given: Any, written: str | None) -> ModelInput:
    pair = bundle.pair()
    _check_text(bundle, given)
    source = pair.read(given)
    begun = pair.written(written)[:-1].tolist() if written else []
    ids = np.array([*bundle.decoder_prompt(), *begun], np.int64)
    return ModelInput(
        model=bundle.model,
        bundle=bundle,
        args=(row_of(bundle, ids),),
        row={"source": row_of(bundle, source)},
        pieces=pair.source.pieces(source),
        written=pair.target.pieces(ids),
    )


def _read_image(bundle: Bundle, given: Any, _: str | None) -> ModelInput:
    pixels = bundle.pixels(given)[None].to(bundle.device, bundle.dtype)
    embed: Any = getattr(bundle.model, "embed", None)
    grid = embed.size(*pixels.shape[-2:]) if hasattr(embed, "size") else None
    return ModelInput(
        model=bundle.model,
        bundle=bundle,
        args=(pixels,),
        row={},
        pieces=None,
        grid=grid,
        special=getattr(embed, "special", 0),
    )


_READ = {"tokens": _read_text, "pairs": _read_pair, "images": _read_image}


def row_of(bundle: Bundle, ids: np.ndarray) -> Tensor:
    """A batch of one row on the model's device; raises if it is empty or too long."""
    if not len(ids):
        raise InputError("the text is empty: expected a token or more")
    if bundle.max_tokens is not None and len(ids) > bundle.max_tokens:
        raise InputError(
            f"the text has {len(ids)} tokens: this model reads {bundle.max_tokens} at once"
        )
    return torch.from_numpy(ids)[None].to(bundle.device)


def _check_text(bundle: Bundle, given: Any) -> None:
    if not isinstance(given, str):
        raise InputError(
            f"this {bundle.name} reads text: expected a string, got {type(given).__name__}"
        )


def _expanded(x: Any, rows: int) -> Any:
    if isinstance(x, Tensor):
        return x.expand(rows, *x.shape[1:])
    return x


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What is measured of a model's output: the log-probability of an answer, or the difference of two logits."""

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
        return logp[:, self.ids[0]] - logp[:, self.ids[1]]


def answer_position(given: ModelInput, at: int | None) -> int | None:
    """The position whose logits are the answer: the last token of a language model, the masked one of an encoder."""
    can = given.bundle.can if given.bundle is not None else frozenset()
    if can & {"classify"}:
        if at is not None:
            raise InputError("a classifier has one answer: expected no position `at`")
        return None
    if can & {"embed"} or (can and not can & {"predict", "fill", "translate"}):
        raise InputError(
            f"this {type(given.model).__name__} returns vectors and no logits: expected a classifier, a language "
            "model, a translator or an encoder with its masked-token head"
        )
    ids = given.read_ids
    if ids is None:
        return at
    if given.bundle is None and at is None and given.mask is not None:
        return given.mask
    if "fill" in can and at is None:
        if given.mask is None:
            raise InputError(
                f"which token is measured? Expected a text with one {MASKS[0]}, as in 'A dog is {MASKS[0]} in the "
                "park.', or the position of a token, as in at=3"
            )
        return given.mask
    length = ids.shape[1]
    if at is None:
        at = length - 1
    if not -length <= at < length:
        raise InputError(f"at={at}: the text has {length} tokens, counted from 0")
    return at % length


def answer_of(given: ModelInput, target: Target, at: int | None) -> Answer:
    """The answer that a target names.

    Args:
        given: An input of the model.
        target: The name or number of a class or token, or a pair of them.
        at: The position whose logits are the answer's.
    """
    both = target if isinstance(target, tuple) else (target,)
    if len(both) not in (1, 2):
        raise InputError(f"{len(both)} targets: expected one, or two, whose difference is measured")
    ids = tuple(_answer_id(given.outputs, one) for one in both)
    return Answer(ids=ids, names=tuple(given.outputs.name(i) for i in ids), at=at)


def _answer_id(names: OutputNames, target: str | int) -> int:
    if isinstance(target, str):
        return names.index(target)
    if isinstance(target, bool) or int(target) != target or target < 0:
        raise InputError(
            f"target={target!r}: expected the number of a class or token, counted from 0"
        )
    return int(target)

"""Batch: the arguments of one call of a model; ModelInput: one row of them, with the names of its tokens or patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..models.model import network
from ..weights import Bundle

B = TypeVar("B", bound="Batch")


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The arguments of one call of a model, with a row for each input.

    Examples:
        >>> batch = Batch(args=(torch.zeros(1, 3),))
        >>> batch.rows, batch.repeated(4).rows
        (1, 4)
    """

    args: tuple[Any, ...] = ()  # positional arguments
    named: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments
    # tokens of each row that are not padding; of a translator, of its source
    lengths: Int[Tensor, "b"] | None = None
    target_lengths: Int[Tensor, "b"] | None = None  # the same of the target
    size: tuple[int, int] | None = None  # height and width of images

    @property
    def tensors(self) -> list[Tensor]:
        """All arguments that are tensors."""
        return [x for x in (*self.args, *self.named.values()) if isinstance(x, Tensor)]

    @property
    def rows(self) -> int:
        """The number of inputs."""
        return len(self.tensors[0])

    def run(self, model: nn.Module) -> Any:
        """Call a model with these arguments."""
        return model(*self.args, **self.named)

    def repeated(self: B, rows: int) -> B:
        """A batch of one row as a batch of equal rows, without copies in memory."""
        args = tuple(_repeated(x, rows) for x in self.args)
        named = {name: _repeated(x, rows) for name, x in self.named.items()}
        return replace(self, args=args, named=named)

    def exchanged(self: B, old: Tensor, new: Tensor) -> B:
        """The same arguments with another tensor in the place of one of them."""
        args = tuple(new if x is old else x for x in self.args)
        named = {name: new if x is old else x for name, x in self.named.items()}
        return replace(self, args=args, named=named)


def _repeated(x: Any, rows: int) -> Any:
    if isinstance(x, Tensor):
        # a view with stride 0 over rows: nobody may write into it in place
        return x.expand(rows, *x.shape[1:])
    return x


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInput(Batch):
    """One input of a model: the arguments of its forward pass, one row each, and the names of its tokens or patches.

    Examples:
        >>> given = clearhead.inputs.read_input(clearhead.load("en-de"), "A dog runs.", target="Ein Hund")
        >>> given.pieces, given.decoder_input
        (['A', ' dog', ' runs', '.', '<end>'], ['<start>', 'Ein', ' Hund'])
    """

    model: nn.Module  # the network
    bundle: Bundle | None = None  # None: a bare torch module
    tokenizer: Any = None  # of transformers, if it read the text of a bare module
    # the text of each token, special ones included; for a translator, of the source
    pieces: list[str] | None = None
    # the text of each token that a translator's decoder reads: its start, then the target
    decoder_input: list[str] | None = None
    # the text of each token that the decoder writes, the end token included
    target: list[str] | None = None
    target_ids: Int[Tensor, "t"] | None = None  # the ids of `target`
    masks: tuple[int, ...] = ()  # positions of masked tokens
    grid: tuple[int, int] | None = None  # rows and columns of the patches of an image
    special: int = 0  # number of tokens before the patches
    picture: np.ndarray | None = None  # (height, width, 3) uint8: the image as the model sees it

    @property
    def can(self) -> frozenset[str]:
        """The capabilities of a Bundle's model; empty for a bare torch module, whose capabilities are unknown."""
        return frozenset() if self.bundle is None else self.bundle.can

    @property
    def read_ids(self) -> Tensor | None:
        """The ids (1, t) whose tokens the answers follow: those of the decoder, if there are two kinds."""
        if "decoder_input_ids" in self.named:
            # the name that encoder-decoders of transformers use
            ids: Tensor = self.named["decoder_input_ids"]
            return ids
        return next((x for x in self.tensors if x.ndim == 2), None)

    @property
    def tokens(self) -> int:
        """The number of tokens of the row, source and target together, as far as it is known from the input."""
        if self.grid is not None:
            # a vision transformer: its patches, after the class and register tokens
            return self.grid[0] * self.grid[1] + self.special
        # ids (1, t) and vectors (1, t, d) have tokens on axis 1; lengths (1,) and images do not
        return max(1, sum(x.shape[1] for x in self.tensors if x.ndim in (2, 3)))

    def names(self, length: int, *, decoder: bool = False) -> list[str]:
        """The names of the tokens of an activation with this many tokens, of the encoder or of the decoder."""
        # a source and a target may have as many tokens: the side that was asked for comes first
        sides = [self.pieces, self.decoder_input]
        # the caller says which side the activation belongs to
        if decoder:
            sides.reverse()
        for pieces in sides:
            if pieces is not None and len(pieces) == length:
                return pieces
        if self.grid is not None and length == self.tokens:
            # special tokens come first: the class token, then the registers
            before = ["<class>", *(f"<register {i}>" for i in range(1, self.special))]
            # row by row, as patches are flattened
            cells = [f"{y},{x}" for y in range(self.grid[0]) for x in range(self.grid[1])]
            return [*before[: self.special], *cells]
        # an unknown number of tokens, such as after pooling: positions only
        return [str(i) for i in range(length)]

    @cached_property
    def classifies(self) -> bool:
        """Whether the model gives one answer per input, not one per token; a bare module is run once to find out."""
        if self.bundle is not None:
            return "classify" in self.can
        # logits (1, classes) are one answer, logits (1, t, v) one per token
        with torch.no_grad():
            # models of transformers return an object with logits
            out = self.run(self.model)
        logits = getattr(out, "logits", out)
        return isinstance(logits, Tensor) and logits.ndim == 2


def device_of(model: Bundle | nn.Module) -> torch.device:
    """Return the device of a model's parameters; the CPU if it has none.

    Args:
        model: A Bundle, or a torch module.

    Examples:
        >>> device_of(torch.nn.ReLU())
        device(type='cpu')
    """
    return next((p.device for p in network(model).parameters()), torch.device("cpu"))


def floats_of(model: Bundle | nn.Module) -> torch.dtype:
    """The dtype that a model computes in: the dtype of its matrices."""
    for p in network(model).parameters():
        # biases and scales of norms may stay in float32, and quantised weights are integers
        if p.ndim > 1 and p.is_floating_point():
            return p.dtype
    return torch.float32

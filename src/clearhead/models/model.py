"""Model: the base class of all families. It states what a model reads and what it can do, so that nothing guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Positions, Tokens

# What a model may be able to do, and the methods that this promises.
CAPABILITIES = {
    "predict": "states(ids) and head: the logits of each next token",
    "generate": "start, read and step: continues a prompt token by token",
    "translate": "forward(ids, source=...), start and step: writes a target for a source",
    "fill": "states(ids, lengths=...) and head: the logits of masked tokens",
    "classify": "forward: the logits of classes",
    "encode": "encode(ids, lengths=...): a vector per token",
    "embed": "forward: one vector per input",
    "map": "forward(x): vectors to vectors",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderStack:
    """The parts of a decoder, by what they do: what a faster implementation of its steps needs to know."""

    embed: Tokens
    positions: Positions
    blocks: nn.ModuleList
    norm: nn.Module
    head: nn.Module  # a linear map
    window: int | None = None  # keys that a query may attend to, itself included; None: all before it
    cross: bool = False  # blocks also attend to a source
    owner: nn.Module | None = None  # the module whose output is that of `norm`, if it is not the model itself


class Model(nn.Module):
    """A network with its config. Subclasses set what they read and what they can do (a key of CAPABILITIES each)."""

    config: Any
    reads: ClassVar[str] = "tokens"  # tokens, pairs (a source and a target), images or vectors
    can: frozenset[str] = frozenset()  # what this model can do
    head_parts: ClassVar[tuple[str, ...]] = ("head",)  # submodules that make its output, new for another task
    may_differ: ClassVar[frozenset[str]] = frozenset({"dropout", "inner_dropout"})  # options that weights do not need
    methods: ClassVar[tuple[str, ...]] = ()  # methods besides forward that use parameters: sharding must know them

    @property
    def max_tokens(self) -> int | None:
        """Tokens per row that it can read at once, prompt and answer together; None: any number."""
        return getattr(self.config, "context", None)

    @property
    def decoder_stack(self) -> DecoderStack | None:
        """The parts of its decoder, if it is a stack of Transformer blocks."""
        return None

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Random inputs of forward: `rows` of them, of `size` tokens or pixels where the model leaves that open."""
        raise NotImplementedError

    def require(self, capability: str, expected: str) -> None:
        """Raise unless the model can do this; the message names what was expected."""
        if capability not in self.can:
            does = ", ".join(sorted(self.can)) or "nothing that has a verb"
            raise InputError(f"this {type(self).__name__} can {does}, not {capability}: expected {expected}")


def random_ids(vocab: int, rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Random token ids (rows, size)."""
    return torch.randint(0, vocab, (rows, size), generator=generator)

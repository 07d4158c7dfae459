"""Reader: the lecture's party as a model, in which only the memory is exchanged.

It reads a stream of tokens and answers at every one of them from what it holds of the stream so far:

    ids -> embed -> hold -> norm -> x + mlp(x) -> head -> logits

sum         all that came, added up: nothing fades, and nobody can be told apart
forget      the same, fading by gamma a step: the old are lost, however important
attention   everything is kept, and looked up by what it is: softmax(q k') v, causal

A token is read with the one before it, so that "the important guest is ..." says something about the next. Both are
rows of a table and are only added: what stands together in the stream is bound together by the memory, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import at_least
from ..errors import InputError
from ..layers import MLP, Attention, Linear, Mask, Memory, Positions, Tokens, make_norm, make_positions
from ..layers.words import MLPKind, Norm, Position
from .heads import check_heads
from .model import Model, random_ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a reader."""

    vocab: int  # different tokens
    context: int = 256  # tokens it is trained to read at once
    width: int = 64  # of a token's vector, and of the memory
    mix: Literal["sum", "forget", "attention"] = "attention"  # how the stream is held
    heads: int = 1  # parts of the memory, each with its own gamma, or heads of attention
    gamma: float | tuple[float, ...] = 0.9  # forget: what is left after a step, in (0, 1]; one for all, or one a head
    learned: bool = False  # forget: gamma is learned, from there
    positions: Position = "none"  # how token order is encoded
    hidden: int | None = None  # width inside the MLP; None: 4 x width
    norm: Norm = "layer"  # normalisation of the memory's output: a sum grows with the sequence
    mlp: MLPKind = "gelu"  # activation of the MLP; swiglu has a gate

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab", "context", "width", "heads", "hidden")
        check_heads(self.width, self.heads, positions=self.positions)
        gammas = self.gamma if isinstance(self.gamma, Sequence) else (self.gamma,)
        if not all(0 < gamma <= 1 for gamma in gammas) or len(gammas) not in (1, self.heads):
            raise InputError(f"gamma={self.gamma}: expected one number in (0, 1], or {self.heads}, one a head")
        if self.learned and self.mix != "forget":
            raise InputError(f"learned=true with mix={self.mix!r}: only mix='forget' has a gamma to learn")
        if self.learned and 1 in gammas:
            raise InputError(f"learned=true with gamma={self.gamma}: 1 is the end of its range, start below it")
        if self.mix != "attention" and self.positions in ("rotary", "alibi", "relative"):
            raise InputError(
                f"positions={self.positions!r} act inside attention: with mix={self.mix!r} expected none, sinusoid or "
                "learned"
            )


class Holding(nn.Module):
    """Hold the stream in one of the three ways, and think about what is held."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attn = Attention(c.width, c.heads) if c.mix == "attention" else None
        gamma = 1.0 if c.mix == "sum" else c.gamma
        self.memory = None if self.attn else Memory(c.width, c.heads, gamma=_each(gamma, c.heads), learned=c.learned)
        self.norm = make_norm(c.norm, c.width)
        self.mlp = MLP(c.width, c.hidden, kind=c.mlp)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        *,
        positions: Positions,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        if self.attn is not None:
            x = self.attn(x, mask=Mask(causal=True, documents=documents), positions=positions, at=at)
        elif self.memory is not None:
            x = self.memory(x, documents=documents)
        x = self.norm(x)
        return x + self.mlp(x)


class Reader(Model):
    """Token ids (b, t) -> logits of an answer at each of them (b, t, v)."""

    can = frozenset({"predict"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        waves = c.positions == "sinusoid"  # as large as 1: a small table would drown in them (Vaswani et al. 2017, 3.4)
        self.embed = Tokens(c.vocab, c.width, scale=waves)
        self.before = Tokens(c.vocab, c.width, scale=waves)
        self.positions = make_positions(
            c.positions, width=c.width, heads=c.heads, head=c.width // c.heads, context=c.context, causal=True
        )
        self.blocks = nn.ModuleList([Holding(c)])
        self.head = Linear(c.width, c.vocab, bias=False)

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"ids": random_ids(self.config.vocab, rows, min(size, self.config.context), generator)}

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """What the model has made of the stream up to each token, ready for the readout.

        `documents` numbers the texts that were packed into one row, none of which knows of another; `at` says where
        each token stands in its own.
        """
        before = F.pad(self.before(ids)[:, :-1], (0, 0, 1, 0))  # the first token has none
        if documents is not None:
            new = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
            before = before.masked_fill(new[..., None], 0.0)
        x = self.positions.add(self.embed(ids) + before, at)
        for block in self.blocks:
            x = block(x, positions=self.positions, documents=documents, at=at)
        return x

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, documents=documents, at=at))


def _each(gamma: float | Sequence[float], heads: int) -> list[float]:
    """A gamma for each head."""
    gammas = list(gamma) if isinstance(gamma, Sequence) else [gamma]
    return gammas * heads if len(gammas) == 1 else gammas

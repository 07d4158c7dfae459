"""Reader: one layer that remembers a sequence, with one of three memories; everything else stays the same.

At every token it predicts an answer from its memory of the tokens so far:

    ids -> embed + previous token -> memory -> norm -> x + mlp(x) -> head -> logits

mix="sum"        the sum of all tokens: nothing fades, and the order is lost
mix="forget"     a sum that fades by gamma per step: old tokens are lost, however important they are
mix="attention"  all tokens are kept and looked up by content: softmax(q k') v, causal

This is the lecture's example of a party, at which an important guest must be remembered among many others. Each token
is read together with the one before it, so that a marker ("the important guest is ...") can say something about the
next token. Both are rows of a table that are only added, so only the memory can bind them to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import at_least
from ..errors import InputError
from ..layers import (
    MLP,
    Attention,
    Linear,
    Mask,
    Memory,
    Positions,
    Tokens,
    make_norm,
    make_positions,
)
from ..layers.choices import MLPKind, Norm, Position
from .model import Model, check_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a reader."""

    vocab: int  # number of tokens in the vocabulary
    # tokens per row that it is trained on; learned positions have a table of this size
    context: int = 256
    width: int = 64  # width of the embeddings and of the memory
    mix: Literal["sum", "forget", "attention"] = "attention"  # memory: sum, fading sum or attention
    heads: int = 1  # heads of attention, or parts of the memory with a gamma each
    # forget: share left after a step, in (0, 1]; one number, or one per head
    gamma: float | tuple[float, ...] = 0.9
    learned: bool = False  # forget: gamma is learned, starting from this value
    positions: Position = "none"  # how token order is encoded
    hidden: int | None = None  # width inside the MLP; None: 4 x width
    norm: Norm = "layer"  # normalisation of the memory's output: a sum grows with the sequence
    mlp: MLPKind = "gelu"  # activation of the MLP; swiglu and geglu have a gate

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab", "context", "width", "heads", "hidden")
        check_heads(self.width, self.heads, positions=self.positions)
        gammas = self.gamma if isinstance(self.gamma, Sequence) else (self.gamma,)
        if not all(0 < gamma <= 1 for gamma in gammas) or len(gammas) not in (1, self.heads):
            raise InputError(
                f"gamma={self.gamma}: expected one number in (0, 1], or {self.heads}, one per head"
            )
        if self.learned and self.mix != "forget":
            raise InputError(
                f"learned=true with mix={self.mix!r}: only mix='forget' has a gamma to learn"
            )
        if self.learned and 1 in gammas:
            raise InputError(
                f"learned=true with gamma={self.gamma}: 1 is the end of its range; expected a start below it"
            )
        if self.mix != "attention" and self.positions in ("rotary", "alibi", "relative"):
            # vectors are added to the tokens; these positions need the scores of attention
            raise InputError(
                f"positions={self.positions!r} act inside attention: with mix={self.mix!r} expected none, sinusoid or "
                "learned"
            )


class MemoryBlock(nn.Module):
    """The memory (a sum, a fading sum or attention), a norm, and an MLP with a residual connection."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attn: Attention | None = None
        self.memory: Memory | None = None
        if c.mix == "attention":
            self.attn = Attention(c.width, c.heads)
        elif c.mix == "forget":
            gammas = _per_head(c.gamma, c.heads)
            self.memory = Memory(c.width, c.heads, gamma=gammas, learned=c.learned)
        else:  # a sum is a memory that forgets nothing
            self.memory = Memory(c.width, c.heads, gamma=1.0)
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
            mask = Mask(causal=True, documents=documents)
            # keeps every token, and looks it up by its content
            x = self.attn(x, mask=mask, positions=positions, at=at)
        elif self.memory is not None:
            # all tokens so far in one vector of fixed size
            x = self.memory(x, documents=documents)
        x = self.norm(x)
        return x + self.mlp(x)


class Reader(Model):
    """Token ids (b, t) -> logits of an answer at each token (b, t, v)."""

    can = frozenset({"predict"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        # Sinusoids have amplitude 1: embeddings are scaled, so as not to drown (Vaswani et al. 2017, section 3.4).
        self.embed = Tokens(c.vocab, c.width, scale=c.positions == "sinusoid")
        self.before = Tokens(c.vocab, c.width, scale=c.positions == "sinusoid")  # of the previous
        self.positions = make_positions(
            c.positions,
            width=c.width,
            heads=c.heads,
            head=c.width // c.heads,
            context=c.context,
            causal=True,
        )
        self.blocks = nn.ModuleList([MemoryBlock(c)])
        self.head = Linear(c.width, c.vocab, bias=False)

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The input of `head` at each token.

        Args:
            ids: Token ids.
            documents: Document number of each token of packed rows; the memory starts empty with each document.
            at: Position of each token in its own document; 0, 1, ... if not given.
        """
        # the embedding of the previous token, shifted by one; the first has none before it
        before = F.pad(self.before(ids)[:, :-1], (0, 0, 1, 0))
        if documents is not None:  # nor has the first of a document
            first = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
            # (b, t) -> (b, t, 1): true where the document changes
            before = before.masked_fill(first[..., None], 0.0)
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


def _per_head(gamma: float | Sequence[float], heads: int) -> list[float]:
    """One gamma for each head."""
    gammas = list(gamma) if isinstance(gamma, Sequence) else [gamma]
    if len(gammas) == 1:
        # one number is for all heads
        gammas = gammas * heads
    return gammas

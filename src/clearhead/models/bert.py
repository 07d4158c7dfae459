"""BERT: an encoder that reads a text both ways, and fills its gaps, sorts it, or stands for it.

Devlin et al. 2019. It learns a language by masked words; what it has learned is then taken over by a model that sorts
texts, or by one whose single vector a text is compared by (Reimers and Gurevych 2019).

    ids -> embed + types + positions -> norm -> blocks, norms after -> states
    answer="words"      transform -> head -> the logits of each token          (b, t, v)
    answer="class"      pool -> pooler -> head -> the logits of each class     (b, classes)
    answer="sentence"   pool -> pooler -> one vector                           (b, d)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Block, Linear, Mask, Tokens, make_norm, make_positions
from ..layers.mlp import ACTIVATIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a BERT; the defaults are its base model's."""

    vocab: int  # different tokens
    context: int = 512  # tokens a learned table of positions has room for
    width: int = 768  # of the stream of vectors, one a token
    depth: int = 12  # blocks
    heads: int = 12  # of attention, in each block
    hidden: int | None = None  # width inside the MLP; None for 4 x width
    types: int = 2  # kinds of tokens that are told apart: those of a first and of a second text; 0: none
    positions: Literal["none", "sinusoid", "learned", "rotary", "alibi", "relative"] = "learned"  # how order is told
    order: Literal["pre", "post"] = "post"  # norms before what a block adds, or after it
    norm: Literal["layer", "rms", "none"] = "layer"  # keeps the stream's size
    eps: float = 1e-12  # added to a variance before its root
    mlp: Literal["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu"] = "gelu"  # its activation
    bias: bool = True  # linear maps have one
    answer: Literal["words", "class", "sentence"] = "words"  # what it is asked for
    classes: int | None = None  # answer="class": how many there are
    pool: Literal["first", "mean"] = "first"  # class, sentence: the first token's vector, or the mean of all
    pooler: bool = True  # class, sentence: a linear map and a tanh come after
    dropout: float = 0.1  # share of what is dropped, in training

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "width", "heads", "hidden", "classes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        for name in ("depth", "types"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)}: expected 0 or more")
        if self.width % self.heads:
            raise InputError(f"width={self.width} does not divide into heads={self.heads}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise InputError(
                f"positions='rotary' turn pairs of columns: width={self.width} / heads={self.heads} is not even"
            )
        if self.classes is not None and self.answer != "class":
            raise InputError(f"classes={self.classes} are for answer='class', and this is {self.answer!r}")
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"dropout={self.dropout}: expected a share from 0 to below 1")


class BERT(nn.Module):
    """Token ids (b, t) -> what its config's `answer` says."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        if c.answer == "class" and c.classes is None:
            raise InputError("answer='class' of how many? Give classes, or data that have them")
        self.embed = Tokens(c.vocab, c.width)
        self.types = Tokens(c.types, c.width) if c.types else None
        self.positions = make_positions(
            c.positions, width=c.width, heads=c.heads, head=c.width // c.heads, context=c.context
        )
        self.embed_norm = make_norm(c.norm if c.order == "post" else "none", c.width, eps=c.eps)
        self.blocks = nn.ModuleList(
            Block(
                c.width, c.heads, hidden=c.hidden, order=c.order, norm=c.norm, eps=c.eps, mlp=c.mlp, bias=c.bias,
                dropout=c.dropout,
            )
            for _ in range(c.depth)
        )  # fmt: skip
        self.norm = make_norm(c.norm if c.order == "pre" else "none", c.width, eps=c.eps)
        self.head: Linear | nn.Identity
        if c.answer == "words":
            self.transform = Linear(c.width, c.width, bias=c.bias)
            self.transform_norm = make_norm(c.norm, c.width, eps=c.eps)
            self.head = Linear(c.width, c.vocab)
            self.head.weight = self.embed.table
        else:
            self.pooler = Linear(c.width, c.width, bias=c.bias) if c.pooler else None
            self.head = Linear(c.width, c.classes) if c.classes is not None else nn.Identity()

    @property
    def fits(self) -> tuple[str, ...]:
        """The kinds of data it can learn from."""
        return {"words": ("masked",), "class": ("labelled",), "sentence": ()}[self.config.answer]

    def encode(
        self,
        ids: Int[Tensor, "b t"],
        *,
        lengths: Int[Tensor, "b"] | None = None,
        types: Int[Tensor, "b t"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """What it has made of each token.

        `lengths` says how many of a row's ids are its text, `types` of which kind each is (0 if not given),
        `documents` numbers texts that were packed into one row, and `at` says where each token stands in its own.
        """
        at = torch.arange(ids.shape[1], device=ids.device) if at is None else at
        x = self.embed(ids)
        if self.types is not None:
            x = x + (self.types(torch.zeros_like(ids) if types is None else types))
        elif types is not None:
            raise InputError("types of tokens were given to a model that tells none apart (types=0)")
        x = self.embed_norm(self.positions.add(x, at))
        x = F.dropout(x, self.config.dropout, self.training)
        mask = Mask(lengths=lengths, documents=documents)
        for block in self.blocks:
            x = block(x, mask=mask, positions=self.positions, at=at)
        return self.norm(x)

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        lengths: Int[Tensor, "b"] | None = None,
        types: Int[Tensor, "b t"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b *t d"]:
        """What its head reads: a vector a token (words), or one a text."""
        x = self.encode(ids, lengths=lengths, types=types, documents=documents, at=at)
        if self.config.answer == "words":
            # A gate belongs to an MLP: the transform of a gated model has its activation alone.
            activation = ACTIVATIONS["silu" if self.config.mlp == "swiglu" else self.config.mlp]
            return cast(Tensor, self.transform_norm(activation(self.transform(x))))
        x = _mean(x, lengths) if self.config.pool == "mean" else x[:, 0]
        x = x if self.pooler is None else torch.tanh(self.pooler(x))
        return F.dropout(x, self.config.dropout, self.training) if self.config.answer == "class" else x

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        lengths: Int[Tensor, "b"] | None = None,
        types: Int[Tensor, "b t"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b *o"]:
        return self.head(self.states(ids, lengths=lengths, types=types, documents=documents, at=at))


def _mean(x: Float[Tensor, "b t d"], lengths: Int[Tensor, "b"] | None) -> Float[Tensor, "b d"]:
    """The mean vector of each row's own tokens."""
    if lengths is None:
        return x.mean(1)
    inside = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]
    total = (x * inside[..., None]).sum(1)
    return total / lengths.to(x.device).clamp(min=1)[:, None]

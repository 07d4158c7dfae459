"""BERT: a bidirectional encoder that predicts masked tokens, classifies, or embeds a text.

Devlin et al. 2019: pretrained on masked tokens (section 3.1); fine-tuned, it classifies texts, or gives each text one
vector to compare it by (Reimers and Gurevych 2019, section 3).

    ids -> embed + types + positions -> norm -> blocks with norms after each sublayer -> states
    answer="words"      transform -> head -> logits of each token          (b, t, v)
    answer="class"      pool -> pooler -> head -> logits of each class     (b, classes)
    answer="sentence"   pool -> pooler -> one vector                       (b, d)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..checks import at_least, fraction
from ..errors import InputError
from ..layers import Block, Linear, Mask, Tokens, make_norm, make_positions, mean_of_tokens
from ..layers.choices import MLPKind, Norm, Order, Position
from ..layers.mlp import ACTIVATIONS, GATES
from .model import Model, check_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a BERT; the defaults are its base model's."""

    vocab: int  # number of tokens in the vocabulary
    # tokens per row that it is trained on; learned positions have a table of this size
    context: int = 512
    width: int = 768  # width of the residual stream (d_model)
    depth: int = 12  # number of blocks
    heads: int = 12  # attention heads per block
    hidden: int | None = None  # width inside the MLP; None: 4 x width
    types: int = 2  # number of token types (segments), one for each of a pair of texts; 0: none
    positions: Position = "learned"  # how token order is encoded
    # learned: rows of the table before that of the first token, which are not used (RoBERTa)
    offset: int = 0
    # norms before each sublayer, after each addition, of each output, or before and of output
    order: Order = "post"
    norm: Norm = "layer"  # kind of normalisation
    eps: float = 1e-12  # added to the variance in a norm
    mlp: MLPKind = "gelu"  # activation of the MLP; swiglu and geglu have a gate
    bias: bool = True  # linear maps have a bias
    # forward returns logits of tokens, logits of classes, or a vector
    answer: Literal["words", "class", "sentence"] = "words"
    classes: int | None = None  # answer=class: number of classes
    # class, sentence: take the first token's vector, or the mean of all
    pool: Literal["first", "mean"] = "first"
    pooler: bool = True  # class, sentence: a linear map and an activation after pooling
    pooler_activation: Literal["tanh", "relu"] = "tanh"  # of the pooler; DistilBERT's is relu
    # share dropped in training: of embeddings, attention weights, and what each sublayer adds
    dropout: float = 0.1

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab", "context", "width", "heads", "hidden", "classes")
        at_least(self, 0, "depth", "types", "offset")
        fraction(self, "dropout")
        check_heads(self.width, self.heads, positions=self.positions)
        if self.offset and self.positions != "learned":
            raise InputError(
                f"offset={self.offset} is for positions='learned', not {self.positions!r}"
            )
        if self.classes is not None and self.answer != "class":
            raise InputError(
                f"classes={self.classes} are for answer='class', and this is {self.answer!r}"
            )


# What a model can do, by its answer.
CAN = {"words": "fill", "class": "classify", "sentence": "embed"}


class BERT(Model):
    """Token ids (b, t) -> logits of each token, logits of classes, or one vector, as `answer` says."""

    methods: ClassVar[tuple[str, ...]] = ("states", "encode")
    head_parts: ClassVar[tuple[str, ...]] = ("head", "pooler", "transform", "transform_norm")
    may_differ: ClassVar[frozenset[str]] = frozenset(
        {"dropout", "answer", "classes", "pool", "pooler", "pooler_activation"}
    )
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.can = frozenset({"encode", CAN[c.answer]})
        if c.answer == "class" and c.classes is None:
            raise InputError(
                "answer='class' needs the number of classes: give classes, or train on data that has them"
            )
        self.embed = Tokens(c.vocab, c.width)
        self.types = Tokens(c.types, c.width) if c.types else None
        options: dict[str, Any] = {}
        if c.offset:
            # only learned positions take it; RoBERTa's begin at row 2
            options["offset"] = c.offset
        self.positions = make_positions(
            c.positions,
            width=c.width,
            heads=c.heads,
            head=c.width // c.heads,
            context=c.context,
            **options,
        )
        # with "post" each sublayer ends with a norm, so that the embeddings need one and the last block none
        post = c.order == "post"
        self.embed_norm = make_norm(c.norm if post else "none", c.width, eps=c.eps)
        self.blocks = nn.ModuleList(
            Block(
                c.width,
                c.heads,
                hidden=c.hidden,
                order=c.order,
                norm=c.norm,
                eps=c.eps,
                mlp=c.mlp,
                bias=c.bias,
                dropout=c.dropout,
            )
            for _ in range(c.depth)
        )
        self.norm = make_norm("none" if post else c.norm, c.width, eps=c.eps)
        self.head: Linear | nn.Identity
        # the masked language model of section 3.1; its output matrix is tied
        if c.answer == "words":
            # a dense layer, an activation and a norm before the output matrix, as in BERT's own
            # code
            self.transform = Linear(c.width, c.width, bias=c.bias)
            self.transform_norm = make_norm(c.norm, c.width, eps=c.eps)
            self.head = Linear(c.width, c.vocab)
            # the matrix is tied to the embedding; the bias of the output layer is its own
            self.head.weight = self.embed.table
        else:
            self.pooler = Linear(c.width, c.width, bias=c.bias) if c.pooler else None
            # answer="sentence" has no classes: the pooled vector is the answer
            self.head = nn.Identity() if c.classes is None else Linear(c.width, c.classes)

    def encode(
        self,
        ids: Int[Tensor, "b t"],
        *,
        lengths: Int[Tensor, "b"] | None = None,
        types: Int[Tensor, "b t"] | None = None,
        documents: Int[Tensor, "b t"] | None = None,
        at: Int[Tensor, "*b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Return a vector per token: the output of the last block, after the final norm if there is one.

        Args:
            ids: Token ids.
            lengths: Tokens of each row that are not padding; all if not given.
            types: Type of each token; 0 if not given.
            documents: Document number of each token of packed rows; no token attends to another document.
            at: Position of each token in its own document; 0, 1, ... if not given.
        """
        if at is None:
            at = torch.arange(ids.shape[1], device=ids.device)
        if types is not None and self.types is None:
            raise InputError(
                "types were given to a model without token types (types=0): expected none"
            )
        # the sum of the embeddings of token, type and position (Fig. 2 of Devlin et al. 2019)
        x = self.embed(ids)
        if self.types is not None:
            if types is None:
                # a single text has the type of the first of a pair
                types = torch.zeros_like(ids)
            x = x + self.types(types)
        x = self.embed_norm(self.positions.add(x, at))
        x = F.dropout(x, self.config.dropout, self.training)
        # no causal mask: every token sees those before and after it
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
        """The input of `head`: a vector per token (answer="words") or one per text; arguments as in `encode`."""
        x = self.encode(ids, lengths=lengths, types=types, documents=documents, at=at)
        if self.config.answer == "words":
            # The transform has no gate: with a gated MLP it uses the activation alone.
            activation = (ACTIVATIONS | GATES)[self.config.mlp]
            return cast(Tensor, self.transform_norm(activation(self.transform(x))))
        # (b, t, d) -> (b, d): the mean of the tokens, or the first, which pretraining makes a summary
        if self.config.pool == "mean":
            x = mean_of_tokens(x, lengths)
        else:
            # the class token, with which every text begins
            x = x[:, 0]
        if self.pooler is not None:
            # BERT has trained this map by next-sentence prediction (section 3.1, task 2)
            x = ACTIVATIONS[self.config.pooler_activation](self.pooler(x))
        if self.config.answer == "class":
            return F.dropout(x, self.config.dropout, self.training)
        return x

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

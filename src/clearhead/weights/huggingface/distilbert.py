"""DistilBERT (Sanh et al. 2019) in Hugging Face's format, to and from our BERT.

    ours (models/bert.py)                  theirs
    blocks.0.attn.query                    distilbert.transformer.layer.0.attention.q_lin
    blocks.0.mlp.up                        distilbert.transformer.layer.0.ffn.lin1
    transform, head.bias                   vocab_transform, vocab_projector.bias: masked tokens
    pooler, head                           pre_classifier, classifier: classes

A BERT without token types, whose map before the classes has a ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...models.bert import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import Layout, Row, check_options, pairs
from .bert import ACTIVATIONS, class_keys, pooled
from .sentence_transformers import read_pooling, write_sentences
from .tokenizers import read_tokenizer, write_subwords

# Layers of a block. Ours: theirs.
PARTS = {
    "attn.query": "attention.q_lin", "attn.key": "attention.k_lin", "attn.value": "attention.v_lin",
    "attn.out": "attention.out_lin", "attn_norm": "sa_layer_norm", "mlp.up": "ffn.lin1", "mlp.down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}  # fmt: skip
WORDS, CLASSES = "vocab_transform.weight", "classifier.weight"
KINDS = {
    "words": "DistilBertForMaskedLM",
    "class": "DistilBertForSequenceClassification",
    "sentence": "DistilBertModel",
}
FREE = {
    "vocab", "context", "width", "depth", "heads", "hidden", "mlp", "answer", "classes", "pool", "pooler",
    "pooler_activation", "dropout",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 30522
    dim: int = 768
    n_layers: int = 6
    n_heads: int = 12
    hidden_dim: int = 3072
    activation: Literal[
        "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"
    ] = "gelu"
    dropout: float = 0.1
    max_position_embeddings: int = 512
    tie_word_embeddings: bool = True
    pooling: Literal["first", "mean"] | None = None  # from 1_Pooling/config.json, if there is one

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab_size", "dim", "n_heads", "hidden_dim", "max_position_embeddings")
        at_least(self, 0, "n_layers")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config. Of their dropout rates only that of the residual stream is kept."""
        answer: dict[str, Any] = {
            "answer": "sentence",
            "pooler": False,
            "pool": self.pooling or "first",
        }
        # first, because adapters of a classifier may belong to a model with another head
        if CLASSES in shapes:
            answer = {"answer": "class", "classes": shapes[CLASSES][0]}
        elif self.pooling is None and WORDS in shapes:
            if not self.tie_word_embeddings:
                raise InputError(
                    "tie_word_embeddings=False: expected a head that shares the embedding table"
                )
            answer = {"answer": "words"}
        return Config(
            vocab=self.vocab_size,
            context=self.max_position_embeddings,
            width=self.dim,
            depth=self.n_layers,
            heads=self.n_heads,
            hidden=self.hidden_dim,
            types=0,
            mlp=ACTIVATIONS[self.activation],  # type: ignore[arg-type]
            # also where there is none: of a classifier that is made of this model
            pooler_activation="relu",
            dropout=self.dropout,
            **answer,
        )


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a DistilBERT folder does not have."""
    check_options(c, "a DistilBERT folder", FREE, {"types": 0})
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    if c.mlp not in words:
        raise WeightsError(f"mlp={c.mlp!r}: a DistilBERT folder has one of {', '.join(words)}")
    classifies = c.pooler and c.pooler_activation == "relu" and c.pool == "first"
    if (c.answer == "class" and not classifies) or (c.answer == "sentence" and c.pooler):
        raise WeightsError(
            f"answer={c.answer!r}, pool={c.pool!r}, pooler={c.pooler}, pooler_activation={c.pooler_activation!r}: a "
            "DistilBERT folder pools the first token, with a map and a relu for classes, and no map for sentences"
        )
    return {
        "architectures": [KINDS[c.answer]],
        "model_type": "distilbert",
        "vocab_size": c.vocab,
        "dim": c.width,
        "n_layers": c.depth,
        "n_heads": c.heads,
        "hidden_dim": c.hidden or 4 * c.width,
        "activation": words[c.mlp],
        "dropout": c.dropout,
        "attention_dropout": c.dropout,
        "seq_classif_dropout": c.dropout,
        "max_position_embeddings": c.context,
        "pad_token_id": special.pad,
        "tie_word_embeddings": True,
        **class_keys(c),
    }


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    embeddings, tied = (
        "distilbert.embeddings",
        ["vocab_projector.weight"] if c.answer == "words" else [],
    )
    yield Row(("embed.table",), (f"{embeddings}.word_embeddings.weight", *tied))
    yield Row(("positions.table",), (f"{embeddings}.position_embeddings.weight",))
    yield from pairs({"embed_norm": f"{embeddings}.LayerNorm"})
    for i in range(c.depth):
        yield from pairs(
            {f"blocks.{i}.{a}": f"distilbert.transformer.layer.{i}.{b}" for a, b in PARTS.items()}
        )
    if c.answer == "words":
        yield from pairs({"transform": "vocab_transform", "transform_norm": "vocab_layer_norm"})
        yield Row(("head.bias",), ("vocab_projector.bias",))
    elif c.answer == "class":
        yield from pairs({"pooler": "pre_classifier", "head": "classifier"})


def ignored(c: Config) -> dict[str, None]:
    """The position ids, and the heads of tasks that this model does not do."""
    names = ["distilbert.embeddings.position_ids"]
    return dict.fromkeys(names if c.answer == "words" else [*names, "vocab_*"])


def reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The output of transformers: the logits of its head, or the vector of each text."""
    return pooled(pretrained(KINDS[c.answer])(inputs["ids"]), c)


LAYOUT = Layout(
    model="bert",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=lambda folder, theirs: read_tokenizer(folder),
    write_tokens=write_subwords,
    prefix="distilbert.",
    ignored=ignored,
    read_extra=read_pooling,
    write_extra=write_sentences,
    reference=reference,
)

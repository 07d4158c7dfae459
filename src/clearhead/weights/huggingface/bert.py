"""BERT (Devlin et al. 2019) and models of its architecture, such as MiniLM, in Hugging Face's format, to and from ours.

    ours (models/bert.py)                  theirs
    embed.table                            bert.embeddings.word_embeddings.weight
    blocks.0.attn.query                    bert.encoder.layer.0.attention.self.query
    blocks.0.mlp.up                        bert.encoder.layer.0.intermediate.dense
    transform, head.bias                   cls.predictions.transform.dense, cls.predictions.bias: masked tokens
    pooler, head                           bert.pooler.dense, classifier: classes

The tensors of a folder tell its task: a head for masked tokens, a head for classes, or no head. Without a head the
model embeds a text as one vector: that of the first token, or the mean of all tokens if the files of
sentence-transformers say so (sentence_folder.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...models.bert import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import Layout, Row, check_options, pairs
from .sentence_transformers import read_pooling, write_sentences
from .tokenizers import read_tokenizer, write_subwords

# Layers of a block. Ours: theirs.
PARTS = {
    "attn.query": "attention.self.query", "attn.key": "attention.self.key", "attn.value": "attention.self.value",
    "attn.out": "attention.output.dense", "attn_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense", "mlp.down": "output.dense", "mlp_norm": "output.LayerNorm",
}  # fmt: skip
# Theirs: ours.
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu", "tanh": "tanh",
}  # fmt: skip
# Variants that our BERT does not have are refused.
FIXED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
WORDS, CLASSES, POOLER = (
    "cls.predictions.transform.dense.weight",
    "classifier.weight",
    "bert.pooler.dense.weight",
)
FREE = {
    "vocab", "context", "width", "depth", "heads", "hidden", "types", "eps", "mlp", "answer", "classes", "pool",
    "pooler", "dropout",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Literal[
        "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"
    ] = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    tie_word_embeddings: bool = True
    pooling: Literal["first", "mean"] | None = None  # from 1_Pooling/config.json, if there is one

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab_size",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        )
        at_least(self, 0, "num_hidden_layers", "type_vocab_size")

    def to_ours(self, shapes: Shapes) -> Config:
        """Our Config. Of their dropout rates only that of the residual stream is kept."""
        answer: dict[str, Any] = {"answer": "sentence", "pooler": POOLER in shapes}
        # first, because adapters of a classifier may belong to a model with another head
        if CLASSES in shapes:
            answer = {"answer": "class", "classes": shapes[CLASSES][0]}
        elif self.pooling is not None:
            answer |= {"pool": self.pooling, "pooler": False}
        elif WORDS in shapes:
            if not self.tie_word_embeddings:
                raise InputError(
                    "tie_word_embeddings=False: expected a head that shares the embedding table"
                )
            answer = {"answer": "words"}
        return Config(
            vocab=self.vocab_size,
            context=self.max_position_embeddings,
            width=self.hidden_size,
            depth=self.num_hidden_layers,
            heads=self.num_attention_heads,
            hidden=self.intermediate_size,
            types=self.type_vocab_size,
            eps=self.layer_norm_eps,
            mlp=ACTIVATIONS[self.hidden_act],  # type: ignore[arg-type]
            dropout=self.hidden_dropout_prob,
            **answer,
        )


def to_theirs(c: Config, special: Special) -> dict[str, Any]:
    """Their config.json; raises for options that a BERT folder does not have."""
    check_options(c, "a BERT folder", FREE, {})
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    if c.mlp not in words:
        raise WeightsError(f"mlp={c.mlp!r}: a BERT folder has one of {', '.join(words)}")
    if not c.types:
        raise WeightsError("types=0: a BERT folder has 1 token type or more")
    if (c.answer == "class" and not c.pooler) or (
        c.answer != "words" and c.pooler and c.pool == "mean"
    ):
        raise WeightsError(
            f"answer={c.answer!r}, pool={c.pool!r}, pooler={c.pooler}: a BERT folder pools the first token, and has "
            "a pooler for classes"
        )
    kinds = {
        "words": "BertForMaskedLM",
        "class": "BertForSequenceClassification",
        "sentence": "BertModel",
    }
    theirs: dict[str, Any] = {
        "architectures": [kinds[c.answer]], "model_type": "bert", "vocab_size": c.vocab, "hidden_size": c.width,
        "num_hidden_layers": c.depth, "num_attention_heads": c.heads, "intermediate_size": c.hidden or 4 * c.width,
        "hidden_act": words[c.mlp], "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": c.dropout,
        "max_position_embeddings": c.context, "type_vocab_size": c.types, "layer_norm_eps": c.eps,
        "pad_token_id": special.pad, "tie_word_embeddings": True, **FIXED,
    }  # fmt: skip
    return theirs | class_keys(c)


def class_keys(c: Config) -> dict[str, Any]:
    """The keys of config.json for the classes of a classifier."""
    if c.classes is None:
        return {}
    names = {str(i): f"LABEL_{i}" for i in range(c.classes)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    embeddings, tied = (
        "bert.embeddings",
        ["cls.predictions.decoder.weight"] if c.answer == "words" else [],
    )
    yield Row(("embed.table",), (f"{embeddings}.word_embeddings.weight", *tied))
    if c.types:
        yield Row(("types.table",), (f"{embeddings}.token_type_embeddings.weight",))
    yield Row(("positions.table",), (f"{embeddings}.position_embeddings.weight",))
    yield from pairs({"embed_norm": f"{embeddings}.LayerNorm"})
    for i in range(c.depth):
        yield from pairs(
            {
                f"blocks.{i}.{ours}": f"bert.encoder.layer.{i}.{theirs}"
                for ours, theirs in PARTS.items()
            }
        )
    if c.answer == "words":
        yield from pairs({"transform": "cls.predictions.transform.dense"})
        yield from pairs({"transform_norm": "cls.predictions.transform.LayerNorm"})
        yield Row(("head.bias",), ("cls.predictions.bias", "cls.predictions.decoder.bias"))
        return
    if c.pooler:
        yield from pairs({"pooler": "bert.pooler.dense"})
    if c.classes is not None:
        yield from pairs({"head": "classifier"})


def ignored(c: Config) -> dict[str, None]:
    """The position ids 0, 1, 2 ..., and the heads of tasks that this model does not do."""
    names = ["bert.embeddings.position_ids", "cls.seq_relationship.*"]
    if c.answer == "words" or not c.pooler:
        names.append("bert.pooler.dense.*")
    if c.answer != "words":
        names.append("cls.predictions.*")
    return dict.fromkeys(names)


def reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The output of transformers: the logits of its head, or the vector of each text."""
    kinds = {
        "words": "BertForMaskedLM",
        "class": "BertForSequenceClassification",
        "sentence": "BertModel",
    }
    return pooled(pretrained(kinds[c.answer])(inputs["ids"]), c)


def pooled(out: Any, c: Config) -> Tensor:
    """The logits in an output of transformers, or the vector of each text."""
    if c.answer != "sentence":
        return cast(Tensor, out.logits)
    if c.pooler:
        return cast(Tensor, out.pooler_output)
    states: Tensor = out.last_hidden_state
    return states.mean(1) if c.pool == "mean" else states[:, 0]


def rename(name: str) -> str:
    """Today's name of a tensor: the first files call the weight of a norm gamma and its bias beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


LAYOUT = Layout(
    model="bert",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=lambda folder, theirs: read_tokenizer(folder),
    write_tokens=write_subwords,
    fixed=FIXED,
    prefix="bert.",
    ignored=ignored,
    rename=rename,
    read_extra=read_pooling,
    write_extra=write_sentences,
    reference=reference,
)

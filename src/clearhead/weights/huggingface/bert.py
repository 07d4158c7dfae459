"""BERT (Devlin et al. 2019) and its relatives in Hugging Face's format, to and from our BERT.

    ours (models/bert.py)                  theirs
    embed.table                            bert.embeddings.word_embeddings.weight
    blocks.0.attn.query                    bert.encoder.layer.0.attention.self.query
    transform, head.bias                   cls.predictions.transform.dense, cls.predictions.bias: masked tokens
    pooler, head                           bert.pooler.dense, classifier: classes

bert         also models of its architecture, such as MiniLM
roberta      and xlm-roberta: positions count from the id of the padding token + 1, the rows of the table before that
             are not used (Liu et al. 2019; Conneau et al. 2020)
distilbert   no token types, and a ReLU behind the map before the classes (Sanh et al. 2019)

The tensors of a folder tell its task: a head for masked tokens, a head for classes, or no head. Without a head the
model embeds a text as one vector: that of the first token, or the mean of all tokens if the files of
sentence-transformers say so (sentence_transformers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...models.bert import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import (
    ACTIVATIONS,
    Activation,
    Layout,
    Row,
    blocks,
    check_options,
    class_keys,
    pairs,
    read_options,
    their_activation,
    write_options,
)
from .sentence_transformers import read_pooling, write_sentences
from .tokenizer_classes import read_tokenizer
from .tokenizers import write_subwords

# The layers of a block, one per line. Ours: theirs.
ENCODER_LAYER = {
    "attn.query": "attention.self.query",
    "attn.key": "attention.self.key",
    "attn.value": "attention.self.value",
    "attn.out": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
DISTILBERT_LAYER = {
    "attn.query": "attention.q_lin",
    "attn.key": "attention.k_lin",
    "attn.value": "attention.v_lin",
    "attn.out": "attention.out_lin",
    "attn_norm": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "mlp_norm": "output_layer_norm",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """The names of tensors in which these families differ."""

    owner: str  # a folder of the family, for messages
    class_name: str  # how its classes in transformers begin
    prefix: str  # of the tensors of all but the heads
    block: str  # prefix of a block, with {} for its number
    layers: Mapping[str, str]  # of a block
    words: Mapping[str, str]  # head for masked tokens
    words_bias: tuple[str, ...]
    tied: str  # the output layer for masked tokens, which shares the embeddings
    classes: Mapping[str, str]  # head for classes
    pooler: str | None = None  # the map after pooling of a model without a head
    unused: tuple[str, ...]  # tensors that no model needs
    words_only: str  # pattern of the tensors of the head for masked tokens


BERT = Names(
    owner="a BERT folder",
    class_name="Bert",
    prefix="bert",
    block="bert.encoder.layer.{}",
    layers=ENCODER_LAYER,
    words={
        "transform": "cls.predictions.transform.dense",
        "transform_norm": "cls.predictions.transform.LayerNorm",
    },
    words_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    tied="cls.predictions.decoder.weight",
    classes={"pooler": "bert.pooler.dense", "head": "classifier"},
    pooler="bert.pooler.dense",
    unused=("bert.embeddings.position_ids", "cls.seq_relationship.*"),
    words_only="cls.predictions.*",
)
ROBERTA = Names(
    owner="a RoBERTa folder",
    class_name="Roberta",
    prefix="roberta",
    block="roberta.encoder.layer.{}",
    layers=ENCODER_LAYER,
    words={"transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm"},
    words_bias=("lm_head.bias", "lm_head.decoder.bias"),
    tied="lm_head.decoder.weight",
    classes={"pooler": "classifier.dense", "head": "classifier.out_proj"},
    pooler="roberta.pooler.dense",
    unused=("roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids"),
    words_only="lm_head.*",
)
DISTILBERT = Names(
    owner="a DistilBERT folder",
    class_name="DistilBert",
    prefix="distilbert",
    block="distilbert.transformer.layer.{}",
    layers=DISTILBERT_LAYER,
    words={"transform": "vocab_transform", "transform_norm": "vocab_layer_norm"},
    words_bias=("vocab_projector.bias",),
    tied="vocab_projector.weight",
    classes={"pooler": "pre_classifier", "head": "classifier"},
    unused=("distilbert.embeddings.position_ids",),
    words_only="vocab_*",
)
# Keys of config.json, and the options of our Config that they are.
SIZES = {
    "vocab_size": "vocab",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "type_vocab_size": "types",
    "layer_norm_eps": "eps",
    "hidden_dropout_prob": "dropout",
}
DISTILBERT_SIZES = {
    "vocab_size": "vocab",
    "max_position_embeddings": "context",
    "dim": "width",
    "n_layers": "depth",
    "n_heads": "heads",
    "dropout": "dropout",
}
# Our answer: how the name of the class in transformers ends.
ENDINGS = {"words": "ForMaskedLM", "class": "ForSequenceClassification", "sentence": "Model"}
# Variants that our BERT does not have are refused.
FIXED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
# Options of our Config that all of them have.
FREE = {
    "vocab", "context", "width", "depth", "heads", "hidden", "mlp", "answer", "classes", "pool", "pooler", "dropout",
}  # fmt: skip


def rows(names: Names, c: Config) -> Iterator[Row]:
    """Yield the rows that map our parameters to their tensors."""
    table = f"{names.prefix}.embeddings"
    # the output layer for masked tokens is the embedding table
    tied = (names.tied,) if c.answer == "words" else ()
    yield Row(("embed.table",), (f"{table}.word_embeddings.weight", *tied))
    if c.types:
        # a DistilBERT has no token types
        yield Row(("types.table",), (f"{table}.token_type_embeddings.weight",))
    yield Row(("positions.table",), (f"{table}.position_embeddings.weight",))
    yield from pairs({"embed_norm": f"{table}.LayerNorm"})
    # {} stays in both names until `blocks` puts the number of a block there
    layers = {f"blocks.{{}}.{a}": f"{names.block}.{b}" for a, b in names.layers.items()}
    yield from blocks(layers, c.depth)
    if c.answer == "words":
        # a map and a norm before the output layer, which is the embedding table itself
        yield from pairs(names.words)
        yield Row(("head.bias",), names.words_bias)
    elif c.answer == "class":
        # RoBERTa and DistilBERT have another name for the map that precedes a head for classes
        yield from pairs(names.classes)
    elif c.pooler and names.pooler is not None:
        yield from pairs({"pooler": names.pooler})


def ignored(names: Names, c: Config) -> dict[str, None]:
    """The position ids 0, 1, 2 ..., and the heads of tasks that this model does not do."""
    patterns = [*names.unused]
    if c.answer != "words":
        # from pretraining: a classifier or an encoder of sentences does not need this head
        patterns.append(names.words_only)
    if names.pooler is not None:
        pooler = f"{names.pooler}.weight"
        is_used = any(pooler in row.theirs for row in rows(names, c))
        if not is_used:
            # left over from pretraining: the model has no pooler, or one under another name
            patterns.append(f"{names.pooler}.*")
    return dict.fromkeys(patterns)


def answer_options(
    names: Names, shapes: Shapes, pooling: str | None, *, tied: bool
) -> dict[str, Any]:
    """The options of our Config for the task that the tensors of a folder are for.

    Args:
        names: The names of its family.
        shapes: The shapes of the tensors.
        pooling: From 1_Pooling/config.json, if there is one.
        tied: Whether the head for masked tokens shares the embeddings.
    """
    # classes first, because adapters of a classifier may belong to a model with another head
    head = f"{names.classes['head']}.weight"
    if head in shapes:
        # the output layer is (classes, width)
        return {"answer": "class", "classes": shapes[head][0]}
    if pooling is not None:
        # the library's own pooling takes the place of the model's pooler
        return {"answer": "sentence", "pool": pooling, "pooler": False}
    if f"{names.words['transform']}.weight" in shapes:
        # our head for masked tokens has no table of its own
        if not tied:
            raise InputError(
                "tie_word_embeddings=False: expected a head that shares the embedding table"
            )
        return {"answer": "words"}
    has_pooler = names.pooler is not None and f"{names.pooler}.weight" in shapes
    return {"answer": "sentence", "pooler": has_pooler}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bert:
    """The keys of a BERT's config.json that we read, with their defaults."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    tie_word_embeddings: bool = True
    pooling: Literal["first", "mean"] | None = None  # from 1_Pooling/config.json, if there is one

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
        at_least(self, 1, *sizes, "max_position_embeddings")
        at_least(self, 0, "num_hidden_layers", "type_vocab_size")

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert to our Config; of their dropout rates only that of the residual stream is kept."""
        answer = answer_options(BERT, shapes, self.pooling, tied=self.tie_word_embeddings)
        return Config(**self.sizes(), **answer)

    def sizes(self) -> dict[str, Any]:
        """The options of our Config that do not depend on the task."""
        return read_options(self, SIZES) | {
            "context": self.max_position_embeddings,
            "hidden": self.intermediate_size,
            "mlp": ACTIVATIONS[self.hidden_act],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Roberta(Bert):
    """The keys of a RoBERTa's config.json that we read, with their defaults."""

    vocab_size: int = 50265
    pad_token_id: int = 1

    def __post_init__(self) -> None:
        Bert.__post_init__(self)
        at_least(self, 0, "pad_token_id")
        at_least(self, 1, "type_vocab_size")
        at_least(self, self.pad_token_id + 2, "max_position_embeddings")

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert to our Config; of their dropout rates only that of the residual stream is kept."""
        answer = answer_options(ROBERTA, shapes, self.pooling, tied=self.tie_word_embeddings)
        if answer["answer"] == "words" and self.hidden_act != "gelu":
            # their head has gelu whatever hidden_act says, and ours the activation of the blocks
            raise InputError(
                f"hidden_act={self.hidden_act!r}: a head for masked tokens has gelu, expected the same"
            )
        # the first token has the position behind that of padding
        offset = self.pad_token_id + 1
        sizes = self.sizes() | {"context": self.max_position_embeddings - offset}
        return Config(offset=offset, **sizes, **answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilBert:
    """The keys of a DistilBERT's config.json that we read, with their defaults."""

    vocab_size: int = 30522
    dim: int = 768
    n_layers: int = 6
    n_heads: int = 12
    hidden_dim: int = 3072
    activation: Activation = "gelu"
    dropout: float = 0.1
    max_position_embeddings: int = 512
    tie_word_embeddings: bool = True
    pooling: Literal["first", "mean"] | None = None  # from 1_Pooling/config.json, if there is one

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab_size", "dim", "n_heads", "hidden_dim", "max_position_embeddings")
        at_least(self, 0, "n_layers")

    def to_ours(self, shapes: Shapes) -> Config:
        """Convert to our Config; of their dropout rates only that of the residual stream is kept."""
        answer = answer_options(DISTILBERT, shapes, self.pooling, tied=self.tie_word_embeddings)
        return Config(
            hidden=self.hidden_dim,
            types=0,
            mlp=ACTIVATIONS[self.activation],
            # also without a pooler: that of a classifier which is made of this model
            pooler_activation="relu",
            **read_options(self, DISTILBERT_SIZES),
            **answer,
        )


def bert_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json of a BERT; raises for options that it does not have."""
    check_options(c, BERT.owner, FREE | {"types", "eps"}, {})
    theirs = _encoder_keys(c, BERT)
    if not c.types:
        # transformers always adds the embedding of a token type
        raise WeightsError("types=0: a BERT folder has 1 token type or more")
    _check_pooling(c, "a BERT folder pools the first token, and has a pooler for classes")
    return theirs | {
        "model_type": "bert",
        "max_position_embeddings": c.context,
        "pad_token_id": special.pad,
    }


def roberta_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json of a RoBERTa; raises for options that it does not have."""
    check_options(c, ROBERTA.owner, FREE | {"types", "eps", "offset"}, {})
    theirs = _encoder_keys(c, ROBERTA)
    if c.answer == "words" and c.mlp != "gelu":
        raise WeightsError(f"mlp={c.mlp!r}: a RoBERTa folder has gelu for masked tokens")
    if not c.types or not c.offset:
        raise WeightsError(
            f"types={c.types}, offset={c.offset}: a RoBERTa folder has 1 or more of each"
        )
    if special.pad not in (None, c.offset - 1):
        # positions are counted from the padding id, so that the offset gives it
        raise WeightsError(
            f"pad={special.pad}, offset={c.offset}: a RoBERTa folder has the padding id offset - 1"
        )
    _check_pooling(c, "a RoBERTa folder pools the first token, and has a map before the classes")
    return theirs | {
        "model_type": "roberta",
        # their table has the unused rows before the offset, too
        "max_position_embeddings": c.context + c.offset,
        "pad_token_id": c.offset - 1,
        "bos_token_id": special.start,
        "eos_token_id": special.end,
    }


def distilbert_keys(c: Config, special: Special) -> dict[str, Any]:
    """The config.json of a DistilBERT; raises for options that it does not have."""
    check_options(c, DISTILBERT.owner, FREE | {"pooler_activation"}, {"types": 0})
    activation = their_activation(c.mlp, DISTILBERT.owner)
    has_classifier = c.pooler and c.pooler_activation == "relu" and c.pool == "first"
    if (c.answer == "class" and not has_classifier) or (c.answer == "sentence" and c.pooler):
        raise WeightsError(
            f"answer={c.answer!r}, pool={c.pool!r}, pooler={c.pooler}, pooler_activation={c.pooler_activation!r}: a "
            "DistilBERT folder pools the first token, with a map and a relu for classes, and no map for sentences"
        )
    return {
        "architectures": [f"{DISTILBERT.class_name}{ENDINGS[c.answer]}"],
        "model_type": "distilbert",
        **write_options(c, DISTILBERT_SIZES),
        "hidden_dim": c.hidden or 4 * c.width,
        "activation": activation,
        # one rate of ours, that of the residual stream, for all of theirs
        "attention_dropout": c.dropout,
        "seq_classif_dropout": c.dropout,
        "pad_token_id": special.pad,
        "tie_word_embeddings": True,
        **class_keys(c.classes),
    }


def _encoder_keys(c: Config, names: Names) -> dict[str, Any]:
    """The keys that a BERT and a RoBERTa have."""
    return {
        "architectures": [f"{names.class_name}{ENDINGS[c.answer]}"],
        **write_options(c, SIZES),
        "intermediate_size": c.hidden or 4 * c.width,
        "hidden_act": their_activation(c.mlp, names.owner),
        # one rate of ours, that of the residual stream, for both of theirs
        "attention_probs_dropout_prob": c.dropout,
        # for masked tokens; the other heads have no table
        "tie_word_embeddings": True,
        **FIXED,
        **class_keys(c.classes),
    }


def _check_pooling(c: Config, expected: str) -> None:
    """Raise unless a classifier has a pooler, and a pooler follows the first token."""
    no_pooler = c.answer == "class" and not c.pooler
    mean_pooler = c.answer != "words" and c.pooler and c.pool == "mean"
    if no_pooler or mean_pooler:
        raise WeightsError(f"answer={c.answer!r}, pool={c.pool!r}, pooler={c.pooler}: {expected}")


def reference(
    names: Names, pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config
) -> Tensor:
    """The output of transformers: the logits of its head, or the vector of each text."""
    options = {}
    if c.offset:  # with the positions given, ids that look like padding have one too
        options["position_ids"] = torch.arange(inputs["ids"].shape[1])[None] + c.offset
    out = pretrained(f"{names.class_name}{ENDINGS[c.answer]}")(inputs["ids"], **options)
    if c.answer != "sentence":
        return cast(Tensor, out.logits)
    if c.pooler:
        # the first token's vector after their pooler, a map and a tanh
        return cast(Tensor, out.pooler_output)
    states: Tensor = out.last_hidden_state
    return states.mean(1) if c.pool == "mean" else states[:, 0]


def rename(name: str) -> str:
    """Today's name of a tensor: the first files call the weight of a norm gamma and its bias beta."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def _layout(names: Names, theirs: type[Any], tokenizers: tuple[str, ...], **given: Any) -> Layout:
    return Layout(
        model="bert",
        theirs=theirs,
        to_ours=theirs.to_ours,
        rows=partial(rows, names),
        read_tokens=lambda folder, _: read_tokenizer(folder, *tokenizers),
        write_tokens=write_subwords,
        prefix=f"{names.prefix}.",
        ignored=partial(ignored, names),
        rename=rename,
        read_extra=read_pooling,
        write_extra=write_sentences,
        reference=partial(reference, names),
        **given,
    )


ROBERTA_LAYOUT = _layout(
    ROBERTA,
    Roberta,
    ("RobertaTokenizer", "XLMRobertaTokenizer"),
    to_theirs=roberta_keys,
    fixed=FIXED,
    defaults={"xlm-roberta": {"vocab_size": 30522}},
)
LAYOUTS = {
    "bert": _layout(BERT, Bert, (), to_theirs=bert_keys, fixed=FIXED),
    "roberta": ROBERTA_LAYOUT,
    "xlm-roberta": ROBERTA_LAYOUT,
    "distilbert": _layout(DISTILBERT, DistilBert, (), to_theirs=distilbert_keys),
}

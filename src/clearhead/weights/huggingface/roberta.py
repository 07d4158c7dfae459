"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020) in Hugging Face's format, to and from our BERT.

    ours (models/bert.py)                  theirs
    positions.table                        roberta.embeddings.position_embeddings.weight
    transform, head.bias                   lm_head.dense, lm_head.bias: masked tokens
    pooler, head                           classifier.dense, classifier.out_proj: classes

A BERT otherwise. Positions count from the id of the padding token + 1: the rows of the table before that are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ...models.bert import Config
from ...tokens.special import Special
from ..fill import Shapes, WeightsError
from ..table import Layout, Row, check_options, pairs
from .bert import ACTIVATIONS, FIXED, PARTS, class_keys, pooled, rename
from .sentence_transformers import read_pooling, write_sentences
from .tokenizers import read_tokenizer, write_subwords

WORDS, CLASSES, POOLER = (
    "lm_head.dense.weight",
    "classifier.out_proj.weight",
    "roberta.pooler.dense.weight",
)
KINDS = {
    "words": "RobertaForMaskedLM",
    "class": "RobertaForSequenceClassification",
    "sentence": "RobertaModel",
}
DEFAULTS = {"xlm-roberta": {"vocab_size": 30522}}  # that differ from a RoBERTa's
FREE = {
    "vocab", "context", "width", "depth", "heads", "hidden", "types", "offset", "eps", "mlp", "answer", "classes",
    "pool", "pooler", "dropout",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of their config.json that we read, with their defaults."""

    vocab_size: int = 50265
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
    pad_token_id: int = 1
    pooling: Literal["first", "mean"] | None = None  # from 1_Pooling/config.json, if there is one

    def __post_init__(self) -> None:
        at_least(
            self,
            1,
            "vocab_size",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            "type_vocab_size",
        )
        at_least(self, 0, "num_hidden_layers", "pad_token_id")
        at_least(self, self.pad_token_id + 2, "max_position_embeddings")

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
            if self.hidden_act != "gelu":
                raise InputError(
                    f"hidden_act={self.hidden_act!r}: a head for masked tokens has gelu, expected the same"
                )
            answer = {"answer": "words"}
        offset = self.pad_token_id + 1
        return Config(
            vocab=self.vocab_size,
            context=self.max_position_embeddings - offset,
            offset=offset,
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
    """Their config.json; raises for options that a RoBERTa folder does not have."""
    check_options(c, "a RoBERTa folder", FREE, {})
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    if c.mlp not in words or (c.answer == "words" and c.mlp != "gelu"):
        raise WeightsError(
            f"mlp={c.mlp!r}: a RoBERTa folder has gelu for masked tokens, else one of {', '.join(words)}"
        )
    if not c.types or not c.offset:
        raise WeightsError(
            f"types={c.types}, offset={c.offset}: a RoBERTa folder has 1 or more of each"
        )
    if special.pad not in (None, c.offset - 1):
        raise WeightsError(
            f"pad={special.pad}, offset={c.offset}: a RoBERTa folder has the padding id offset - 1"
        )
    if (c.answer == "class" and not c.pooler) or (
        c.answer != "words" and c.pooler and c.pool == "mean"
    ):
        raise WeightsError(
            f"answer={c.answer!r}, pool={c.pool!r}, pooler={c.pooler}: a RoBERTa folder pools the first token, and has "
            "a map before that to the classes"
        )
    ends = special.ends[0] if special.ends else None
    return {
        "architectures": [KINDS[c.answer]],
        "model_type": "roberta",
        "vocab_size": c.vocab,
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.hidden or 4 * c.width,
        "hidden_act": words[c.mlp],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "max_position_embeddings": c.context + c.offset,
        "type_vocab_size": c.types,
        "layer_norm_eps": c.eps,
        "pad_token_id": c.offset - 1,
        "bos_token_id": special.start,
        "eos_token_id": ends,
        "tie_word_embeddings": True,
        **FIXED,
        **class_keys(c),
    }


def rows(c: Config) -> Iterator[Row]:
    """Our parameters and their names."""
    embeddings, tied = (
        "roberta.embeddings",
        ["lm_head.decoder.weight"] if c.answer == "words" else [],
    )
    yield Row(("embed.table",), (f"{embeddings}.word_embeddings.weight", *tied))
    yield Row(("types.table",), (f"{embeddings}.token_type_embeddings.weight",))
    yield Row(("positions.table",), (f"{embeddings}.position_embeddings.weight",))
    yield from pairs({"embed_norm": f"{embeddings}.LayerNorm"})
    for i in range(c.depth):
        yield from pairs(
            {f"blocks.{i}.{a}": f"roberta.encoder.layer.{i}.{b}" for a, b in PARTS.items()}
        )
    if c.answer == "words":
        yield from pairs({"transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm"})
        yield Row(("head.bias",), ("lm_head.bias", "lm_head.decoder.bias"))
    elif c.answer == "class":
        yield from pairs({"pooler": "classifier.dense", "head": "classifier.out_proj"})
    elif c.pooler:
        yield from pairs({"pooler": "roberta.pooler.dense"})


def ignored(c: Config) -> dict[str, None]:
    """The position ids, and the heads of tasks that this model does not do."""
    names = ["roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids"]
    if c.answer != "sentence" or not c.pooler:
        names.append("roberta.pooler.dense.*")
    if c.answer != "words":
        names.append("lm_head.*")
    return dict.fromkeys(names)


def reference(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Config) -> Tensor:
    """The output of transformers; with the positions given, ids that look like padding have one too."""
    at = torch.arange(inputs["ids"].shape[1])[None] + c.offset
    return pooled(pretrained(KINDS[c.answer])(inputs["ids"], position_ids=at), c)


LAYOUT = Layout(
    model="bert",
    theirs=Theirs,
    to_ours=Theirs.to_ours,
    to_theirs=to_theirs,
    rows=rows,
    read_tokens=lambda folder, theirs: read_tokenizer(
        folder, "RobertaTokenizer", "XLMRobertaTokenizer"
    ),
    write_tokens=write_subwords,
    fixed=FIXED,
    defaults=DEFAULTS,
    prefix="roberta.",
    ignored=ignored,
    rename=rename,
    read_extra=read_pooling,
    write_extra=write_sentences,
    reference=reference,
)

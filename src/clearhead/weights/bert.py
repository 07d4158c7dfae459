"""BERT (Devlin et al. 2019) and its kin, MiniLM among them, as Hugging Face keeps them, to and from our BERT.

    ours (models/bert.py)                  theirs
    embed.table                            bert.embeddings.word_embeddings.weight
    blocks.0.attn.query                    bert.encoder.layer.0.attention.self.query
    blocks.0.mlp.up                        bert.encoder.layer.0.intermediate.dense
    transform, head.bias                   cls.predictions.transform.dense, cls.predictions.bias: masked words
    pooler, head                           bert.pooler.dense, classifier: classes

What a folder is asked for shows in its tensors: a head for masked words, one for classes, or none: then one vector a
text, the first token's, or the mean of all where 1_Pooling says so (Reimers and Gurevych 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from torch import Tensor

from .. import config
from ..errors import InputError
from ..models.bert import Config
from .bundle import Special
from .fill import WeightsError
from .table import Family, Row, pairs
from .vocabulary import folder_tokens, write_subwords

# Of a block: ours, theirs.
PARTS = {
    "attn.query": "attention.self.query", "attn.key": "attention.self.key", "attn.value": "attention.self.value",
    "attn.out": "attention.output.dense", "attn_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense", "mlp.down": "output.dense", "mlp_norm": "output.LayerNorm",
}  # fmt: skip
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu", "tanh": "tanh",
}  # fmt: skip
WIRING = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
WORDS, CLASSES, POOLER = "cls.predictions.transform.dense.weight", "classifier.weight", "bert.pooler.dense.weight"
POOLING = Path("1_Pooling") / "config.json"  # of the sentence-transformers library


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """What their config.json says of a model, in their words; what it leaves out is as here."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"] = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    tie_word_embeddings: bool = True
    pooling: Literal["first", "mean"] | None = None  # what 1_Pooling says, where there is one

    def ours(self, shapes: Mapping[str, tuple[int, ...]]) -> Config:
        """The same in our words. Only one share of dropout is kept, that of what is added to the stream."""
        answer: dict[str, Any] = {"answer": "sentence", "pooler": POOLER in shapes}
        if self.pooling is not None:
            answer |= {"pool": self.pooling, "pooler": False}
        elif WORDS in shapes:
            if not self.tie_word_embeddings:
                raise InputError("tie_word_embeddings=False: expected a head for words that is the embedding's table")
            answer = {"answer": "words"}
        elif CLASSES in shapes:
            answer = {"answer": "class", "classes": shapes[CLASSES][0]}
        return Config(
            vocab=self.vocab_size, context=self.max_position_embeddings, width=self.hidden_size,
            depth=self.num_hidden_layers, heads=self.num_attention_heads, hidden=self.intermediate_size,
            types=self.type_vocab_size, eps=self.layer_norm_eps,
            mlp=ACTIVATIONS[self.hidden_act],  # type: ignore[arg-type]
            dropout=self.hidden_dropout_prob, **answer,
        )  # fmt: skip


def beside(folder: Path) -> dict[str, Any]:
    """What files beside config.json say."""
    if not (folder / POOLING).is_file():
        return {}
    table = config.load(folder / POOLING)
    said = {
        name.removeprefix("pooling_mode_")
        for name, on in table.items()
        if name.startswith("pooling_mode_") and on is True
    }
    kinds = {"cls_token": "first", "mean_tokens": "mean"}
    if len(said) != 1 or not said <= kinds.keys():
        raise WeightsError(
            f"{folder / POOLING}: pooling by {', '.join(sorted(said)) or 'nothing'}: expected one of {', '.join(kinds)}"
        )
    return {"pooling": kinds[said.pop()]}


def write_beside(c: Config, folder: Path) -> None:
    """Write what sentence-transformers reads of how a text becomes one vector."""
    if c.answer != "sentence" or c.pooler:
        (folder / POOLING).unlink(missing_ok=True)
        (folder / "modules.json").unlink(missing_ok=True)
        return
    (folder / POOLING).parent.mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": c.pool == "first", "pooling_mode_mean_tokens": c.pool == "mean"}
    config.write({"word_embedding_dimension": c.width, **modes}, folder / POOLING)


def written(c: Config, special: Special) -> dict[str, Any]:
    """Ours as their config.json; raises for what they have no word for."""
    for name, value in {"positions": "learned", "order": "post", "norm": "layer", "bias": True}.items():
        if getattr(c, name) != value:
            raise WeightsError(f"{name}={getattr(c, name)!r}: a BERT folder has {name}={value!r}")
    words = {mlp: word for word, mlp in reversed(ACTIVATIONS.items())}
    if c.mlp not in words:
        raise WeightsError(f"mlp={c.mlp!r}: a BERT folder has one of {', '.join(words)}")
    if not c.types:
        raise WeightsError("types=0: a BERT folder has 1 type of tokens or more")
    if (c.answer == "class" and not c.pooler) or (c.answer != "words" and c.pooler and c.pool == "mean"):
        raise WeightsError(
            f"answer={c.answer!r}, pool={c.pool!r}, pooler={c.pooler}: a BERT folder pools the first token, and for "
            "classes has a pooler"
        )
    kinds = {"words": "BertForMaskedLM", "class": "BertForSequenceClassification", "sentence": "BertModel"}
    said: dict[str, Any] = {
        "architectures": [kinds[c.answer]], "model_type": "bert", "vocab_size": c.vocab, "hidden_size": c.width,
        "num_hidden_layers": c.depth, "num_attention_heads": c.heads, "intermediate_size": c.hidden or 4 * c.width,
        "hidden_act": words[c.mlp], "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": c.dropout,
        "max_position_embeddings": c.context, "type_vocab_size": c.types, "layer_norm_eps": c.eps,
        "pad_token_id": special.pad, "tie_word_embeddings": True, **WIRING,
    }  # fmt: skip
    if c.classes is not None:
        said["id2label"] = {str(i): f"LABEL_{i}" for i in range(c.classes)}
        said["label2id"] = {f"LABEL_{i}": i for i in range(c.classes)}
    return said


def rows(c: Config) -> Iterator[Row]:
    """Each parameter of ours with its names there."""
    embeddings, tied = "bert.embeddings", ["cls.predictions.decoder.weight"] if c.answer == "words" else []
    yield Row(("embed.table",), (f"{embeddings}.word_embeddings.weight", *tied))
    if c.types:
        yield Row(("types.table",), (f"{embeddings}.token_type_embeddings.weight",))
    yield Row(("positions.table",), (f"{embeddings}.position_embeddings.weight",))
    yield from pairs({"embed_norm": f"{embeddings}.LayerNorm"})
    for i in range(c.depth):
        yield from pairs({f"blocks.{i}.{ours}": f"bert.encoder.layer.{i}.{theirs}" for ours, theirs in PARTS.items()})
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
    """The numbers 0, 1, 2 ..., and what answers other questions than this model is asked."""
    asked = {"words": c.answer == "words", "pooler": c.answer != "words" and c.pooler}
    names = ["bert.embeddings.position_ids", "cls.seq_relationship.*"]
    names += [] if asked["pooler"] else ["bert.pooler.dense.*"]
    names += [] if asked["words"] else ["cls.predictions.*"]
    return dict.fromkeys(names)


def reference(pretrained: Callable[[str], Any], asked: dict[str, Tensor], c: Config) -> Tensor:
    """The answer of transformers: of its head, or the vector of each text."""
    kinds = {"words": "BertForMaskedLM", "class": "BertForSequenceClassification", "sentence": "BertModel"}
    out = pretrained(kinds[c.answer])(asked["ids"])
    if c.answer != "sentence":
        return cast(Tensor, out.logits)
    if c.pooler:
        return cast(Tensor, out.pooler_output)
    states: Tensor = out.last_hidden_state
    return states.mean(1) if c.pool == "mean" else states[:, 0]


def rename(name: str) -> str:
    """The names of the first files, which call a norm's scale gamma and its shift beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


FAMILY = Family(
    model="bert", theirs=Theirs, ours=Theirs.ours, written=written, rows=rows, tokens=folder_tokens,
    write_tokens=write_subwords, wiring=WIRING, prefix="bert.", ignored=ignored, rename=rename, beside=beside,
    write_beside=write_beside, reference=reference,
)  # fmt: skip

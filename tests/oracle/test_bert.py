"""Our BERT against transformers': masked tokens, classes and sentence embeddings; outputs and all gradients."""

from typing import Any

import pytest
import torch
from compare import HIDDEN, B, D, H, T, Table, adopt, both, layers, match, whole
from torch import Tensor, nn

import clearhead as ch

V, CONTEXT, DEPTH, EPS = 11, 9, 2, 1e-3
LENGTHS = torch.tensor([T, 3])
SIZES = {"vocab": V, "context": CONTEXT, "width": D, "depth": DEPTH, "heads": H, "hidden": HIDDEN, "eps": EPS}


def theirs(kind: str, **more: Any) -> nn.Module:
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = bert.BertConfig(
        vocab_size=V, hidden_size=D, num_hidden_layers=DEPTH, num_attention_heads=H, intermediate_size=HIDDEN,
        max_position_embeddings=CONTEXT, layer_norm_eps=EPS, attn_implementation="eager", pad_token_id=None, **more,
    )  # fmt: skip
    return getattr(bert, kind)(config)


def table(prefix: str = "bert.") -> Table:
    result: Table = {
        "embed.table": (f"{prefix}embeddings.word_embeddings.weight", whole),
        "positions.table": (f"{prefix}embeddings.position_embeddings.weight", whole),
        "types.table": (f"{prefix}embeddings.token_type_embeddings.weight", whole),
        **layers({"embed_norm": f"{prefix}embeddings.LayerNorm"}),
    }
    names = {
        "attn.query": "attention.self.query", "attn.key": "attention.self.key", "attn.value": "attention.self.value",
        "attn.out": "attention.output.dense", "attn_norm": "attention.output.LayerNorm", "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense", "mlp_norm": "output.LayerNorm",
    }  # fmt: skip
    for i in range(DEPTH):
        result |= layers({f"blocks.{i}.{a}": f"{prefix}encoder.layer.{i}.{b}" for a, b in names.items()})
    return result


def inputs() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same rows as inputs of our forward and of theirs."""
    dice = torch.Generator().manual_seed(3)
    ids, types = torch.randint(0, V, (B, T), generator=dice), torch.randint(0, 2, (B, T), generator=dice)
    mask = (torch.arange(T) < LENGTHS[:, None]).long()
    return (
        {"ids": ids, "lengths": LENGTHS, "types": types},
        {"input_ids": ids, "attention_mask": mask, "token_type_ids": types},
    )


@both
def test_masked_tokens(dtype: torch.dtype) -> None:
    mine, oracle = ch.build("bert", **SIZES), theirs("BertForMaskedLM")
    words = table() | layers({
        "transform": "cls.predictions.transform.dense", "transform_norm": "cls.predictions.transform.LayerNorm",
    }) | {"head.bias": ("cls.predictions.bias", whole)}  # fmt: skip
    pairs = adopt(mine, oracle, words, dtype)
    ours, others = inputs()
    real = torch.arange(T) < LENGTHS[:, None]
    match(lambda: mine(**ours)[real], lambda: oracle(**others).logits[real], [], pairs)


@both
def test_class_logits(dtype: torch.dtype) -> None:
    mine, oracle = (
        ch.build("bert", **SIZES, answer="class", classes=3),
        theirs("BertForSequenceClassification", num_labels=3),
    )
    pairs = adopt(mine, oracle, table() | layers({"pooler": "bert.pooler.dense", "head": "classifier"}), dtype)
    ours, others = inputs()
    match(lambda: mine(**ours), lambda: oracle(**others).logits, [], pairs)


@both
def test_sentence_embeddings_by_first_token_and_by_mean(dtype: torch.dtype) -> None:
    mine, oracle = ch.build("bert", **SIZES, answer="sentence"), theirs("BertModel")
    pairs = adopt(mine, oracle, table("") | layers({"pooler": "pooler.dense"}), dtype)
    ours, others = inputs()
    match(lambda: mine(**ours), lambda: oracle(**others).pooler_output, [], pairs)
    mine = ch.build("bert", **SIZES, answer="sentence", pool="mean", pooler=False)
    oracle = theirs("BertModel")
    oracle.pooler = None
    pairs = adopt(mine, oracle, table(""), dtype)

    def mean() -> Tensor:  # as sentence-transformers computes it
        x, mask = oracle(**others).last_hidden_state, others["attention_mask"][..., None].to(dtype)
        return (x * mask).sum(1) / mask.sum(1)

    match(lambda: mine(**ours), mean, [], pairs)

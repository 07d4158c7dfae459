"""Folders of tiny models that no family here reads, written by transformers, with a small tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

WORDS = ("the", "cat", "sat", "on", "mat", "a", "dog", "runs", ".")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
SIZES = {"vocab_size": len(SPECIAL) + len(WORDS), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 30, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
# The class of a model, the prefix of its Config, and its options.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "neox": ("GPTNeoXForCausalLM", "GPTNeoX", {}),
    "opt": ("OPTForCausalLM", "OPT", {"ffn_dim": 30, "word_embed_proj_dim": 24}),
    "bloom": ("BloomForCausalLM", "Bloom", {"n_layer": 2, "n_head": 3}),
    "vaultgemma": (
        "VaultGemmaForCausalLM",
        "VaultGemma",
        {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6},
    ),
    "mamba": ("MambaForCausalLM", "Mamba", {"state_size": 4}),
    "electra": ("ElectraForPreTraining", "Electra", {"embedding_size": 12}),
    "albert": ("AlbertModel", "Albert", {"embedding_size": 12}),
    "mpnet": ("MPNetForMaskedLM", "MPNet", {}),
    "classes": ("ElectraForSequenceClassification", "Electra", {"embedding_size": 12, "num_labels": 3}),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5", {"d_model": 24, "d_kv": 8, "num_layers": 2, "num_heads": 3}),
    "swin": (
        "SwinModel",
        "Swin",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 12,
            "depths": [2],
            "num_attention_heads": [3],
            "window_size": 4,
            "hidden_size": 12,
            "num_hidden_layers": 1,
        },
    ),
    "deberta": ("DebertaV2Model", "DebertaV2", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
}


def foreign(kind: str) -> Any:
    """A model of transformers with random weights, large enough that attention is neither uniform nor on one key."""
    import transformers

    name, prefix, options = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **options})
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0.0, 0.2)
    return model


def foreign_folder(kind: str, folder: Path) -> Path:
    """Write such a model and its tokenizer into a folder."""
    foreign(kind).save_pretrained(folder)
    vocab = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(list(SPECIAL))
    if "CausalLM" not in KINDS[kind][0]:
        backend.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    backend.save(str(folder / "tokenizer.json"))
    return folder

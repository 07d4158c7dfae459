"""Tiny models of transformers with random weights, one per architecture, and their inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

VOCAB, T, B = 40, 7, 2
SMALL = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 30, "max_position_embeddings": 64}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {**SMALL, **SPECIAL, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
BART = {"vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 30, "decoder_ffn_dim": 30, "max_position_embeddings": 64,
        **SPECIAL, "decoder_start_token_id": 1, "forced_eos_token_id": None}  # fmt: skip
IMAGE = {"image_size": 12, "patch_size": 4, "num_channels": 3}

# Models that read ids and can be asked to continue them.
WRITERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (tf.GPT2LMHeadModel, {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64}),
    "llama": (tf.LlamaForCausalLM, LLAMA),
    "mistral": (tf.MistralForCausalLM, {**LLAMA, "sliding_window": 4}),
    "qwen2": (tf.Qwen2ForCausalLM, LLAMA),
    "qwen3": (tf.Qwen3ForCausalLM, LLAMA),
    "gemma3": (
        tf.Gemma3ForCausalLM,
        {**LLAMA, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi": (tf.PhiForCausalLM, {**SMALL, **SPECIAL}),
    "olmo2": (tf.Olmo2ForCausalLM, LLAMA),
    "opt": (tf.OPTForCausalLM, {**SMALL, **SPECIAL, "ffn_dim": 30, "word_embed_proj_dim": 24}),
    "gpt-neox": (tf.GPTNeoXForCausalLM, {**SMALL, **SPECIAL}),
    "falcon": (tf.FalconForCausalLM, {**SMALL, **SPECIAL, "num_attention_heads": 4, "multi_query": True}),
}
READERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (tf.BertModel, SMALL),
    "roberta": (tf.RobertaModel, {**SMALL, **SPECIAL}),
    "distilbert": (tf.DistilBertModel, {"vocab_size": VOCAB, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 30}),
    "albert": (tf.AlbertModel, {**SMALL, "embedding_size": 12}),
    "electra": (tf.ElectraModel, {**SMALL, "embedding_size": 12}),
    "modernbert": (
        tf.ModernBertModel,
        {**SMALL, **SPECIAL, "cls_token_id": 3, "sep_token_id": 4, "local_attention": 4},
    ),
}
PAIRS: dict[str, tuple[Any, dict[str, Any]]] = {
    "t5": (tf.T5ForConditionalGeneration, {"vocab_size": VOCAB, "d_model": 24, "d_kv": 8, "d_ff": 30, "num_layers": 2,
                                           "num_heads": 3, "decoder_start_token_id": 0}),
    "bart": (tf.BartForConditionalGeneration, BART),
    "marian": (tf.MarianMTModel, {**BART, "pad_token_id": 0, "decoder_start_token_id": 0}),
}  # fmt: skip
IMAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "vit": (tf.ViTModel, {**SMALL, **IMAGE}),
    "deit": (tf.DeiTModel, {**SMALL, **IMAGE}),
    "dinov2": (tf.Dinov2Model, {**SMALL, **IMAGE}),
    "clip": (tf.CLIPVisionModel, {**SMALL, **IMAGE}),
    "swin": (tf.SwinModel, {"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3],
                            "window_size": 4}),
}  # fmt: skip
SOUNDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "whisper": (tf.WhisperForConditionalGeneration, {**BART, "num_mel_bins": 8, "max_source_positions": 9,
                                                     "max_target_positions": 64}),
}  # fmt: skip
# Models that refuse SDPA.
EAGER: dict[str, tuple[Any, dict[str, Any]]] = {
    "gemma2": (tf.Gemma2ForCausalLM, {**LLAMA, "sliding_window": 4}),
    "bloom": (tf.BloomForCausalLM, {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 2, "n_head": 3, **SPECIAL}),
}
# More models with grouped heads: one key head for all queries, three query heads per key head, sinks.
GROUPED: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama, 1 key head": (tf.LlamaForCausalLM, {**LLAMA, "num_key_value_heads": 1}),
    "llama, 6 heads": (tf.LlamaForCausalLM, {**LLAMA, "num_attention_heads": 6}),
    "gpt-oss": (
        tf.GptOssForCausalLM,
        {**LLAMA, "intermediate_size": 32, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
}  # fmt: skip
SDPA = {**WRITERS, **READERS, **PAIRS, **IMAGES, **SOUNDS}
EVERY = {**SDPA, **EAGER, **GROUPED}


def build(name: str, how: str = "sdpa") -> nn.Module:
    """A model with random weights large enough that attention is neither uniform nor on one key."""
    kind, options = EVERY[name]
    if how == "sdpa" and not kind._supports_sdpa:
        pytest.skip(f"this version of transformers has no SDPA for {name}")
    torch.manual_seed(0)
    model = kind._from_config(kind.config_class(**options), attn_implementation=how).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.randn(p.shape) * 0.2)
    return model


def inputs(name: str, *, padded: bool = False, left: bool = True) -> dict[str, Any]:
    """The arguments of one forward pass; `padded`: the second row has two tokens less, padded on the left or right."""
    torch.manual_seed(1)
    if name in IMAGES:
        size = 16 if name == "swin" else 12
        return {"pixel_values": torch.randn(B, 3, size, size)}
    if name in SOUNDS:
        return {"input_features": torch.randn(B, 8, 18), "decoder_input_ids": torch.randint(5, VOCAB, (B, T))}
    found: dict[str, Any] = {"input_ids": torch.randint(5, VOCAB, (B, T))}
    if name in PAIRS:
        found["decoder_input_ids"] = torch.randint(5, VOCAB, (B, T - 2))
    if padded:
        found["attention_mask"] = torch.ones(B, T, dtype=torch.long)
        found["attention_mask"][1, slice(0, 2) if left else slice(T - 2, T)] = 0
    return found


def outputs(model: nn.Module, given: dict[str, Any]) -> torch.Tensor:
    """The first output of a model."""
    out = model(**given)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def eager_maps(model: nn.Module, given: dict[str, Any]) -> list[torch.Tensor]:
    """The attention weights that an eager model returns, in the order encoder, decoder, cross, or layer by layer."""
    out = model(**given, output_attentions=True)
    names = [
        name for name in ("encoder_attentions", "attentions", "decoder_attentions", "cross_attentions") if name in out
    ]
    return [weights for name in names for weights in out[name]]

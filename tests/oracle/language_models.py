"""Tiny random models of transformers, one or more for each layout of Hugging Face folders that language models have."""

from typing import Any

import pytest
import torch
from compare import HIDDEN, B, D, H, T
from torch import Tensor, nn

V, CONTEXT, DEPTH = 23, 11, 3


def config_of(kind: str, **words: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoConfig.for_model(kind, attn_implementation="eager", **words)


GPT2 = {"n_positions": CONTEXT, "n_embd": D, "n_layer": DEPTH, "n_head": H, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "hidden_size": 24, "intermediate_size": HIDDEN, "num_hidden_layers": DEPTH, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-3, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
GEMMA = LLAMA | {"head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 4}
GEMMA3_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
BERT = {
    "hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": H, "intermediate_size": HIDDEN,
    "max_position_embeddings": CONTEXT, "type_vocab_size": 3, "layer_norm_eps": 1e-3, "pad_token_id": 0,
    "architectures": ["BertForMaskedLM"],
}  # fmt: skip
ROBERTA = BERT | {"max_position_embeddings": CONTEXT + 1, "bos_token_id": None, "eos_token_id": None}
DISTILBERT = {
    "dim": D, "n_layers": DEPTH, "n_heads": H, "hidden_dim": HIDDEN, "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
}  # fmt: skip
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert")  # how the names of cases begin that write no text
LLAMA3_SCALING = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
LABELS = ("bad", "poor", "fair", "good", "great")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2 | {"n_inner": HIDDEN, "layer_norm_epsilon": 1e-3}),
    "gpt2 untied": ("gpt2", GPT2 | {"tie_word_embeddings": False, "activation_function": "relu"}),
    "llama": ("llama", LLAMA | {
        "eos_token_id": [2, 3], "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}),
    "llama tied, biases, llama3 scaling": ("llama", LLAMA | {
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_SCALING}),
    "llama, wide heads": ("llama", LLAMA | {
        "head_dim": 10, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "mistral": ("mistral", LLAMA | {"sliding_window": 4, "head_dim": 6}),
    "mistral without a window": ("mistral", LLAMA | {"sliding_window": None}),
    "qwen2": ("qwen2", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 6}),
    "qwen3 tied": ("qwen3", LLAMA | {"head_dim": 4, "tie_word_embeddings": True}),
    "phi3, a third of the columns rotated": ("phi3", LLAMA | {
        "hidden_size": 36, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1 / 3}}),
    "phi3, a window": ("phi3", LLAMA | {"sliding_window": 4, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", LLAMA | {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
    "olmo2 tied": ("olmo2", LLAMA | {"tie_word_embeddings": True}),
    "gemma2": ("gemma2", GEMMA | {"final_logit_softcapping": 4.0, "attn_logit_softcapping": 2.0}),
    "gemma2 untied, without caps": ("gemma2", GEMMA | {
        "final_logit_softcapping": None, "attn_logit_softcapping": None, "tie_word_embeddings": False}),
    "gemma3": ("gemma3_text", GEMMA | {"layer_types": GEMMA3_LAYERS}),
    "gemma3, stretched": ("gemma3_text", GEMMA | {"num_hidden_layers": 4, "layer_types": None, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e3},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e2}}, "sliding_window_pattern": 2}),
    "bert, masked tokens": ("bert", BERT),
    "bert, classes": ("bert", BERT | {
        "architectures": ["BertForSequenceClassification"], "id2label": dict(enumerate(LABELS))}),
    "bert, sentences": ("bert", BERT | {"architectures": ["BertModel"], "hidden_act": "relu"}),
    "roberta, masked tokens": ("roberta", ROBERTA | {"architectures": ["RobertaForMaskedLM"]}),
    "roberta, classes": ("roberta", ROBERTA | {
        "architectures": ["RobertaForSequenceClassification"], "id2label": dict(enumerate(LABELS))}),
    "roberta, sentences": ("roberta", ROBERTA | {"architectures": ["RobertaModel"], "hidden_act": "relu"}),
    "xlm-roberta, masked tokens": ("xlm-roberta", ROBERTA | {"architectures": ["XLMRobertaForMaskedLM"]}),
    "distilbert, masked tokens": ("distilbert", DISTILBERT | {"architectures": ["DistilBertForMaskedLM"]}),
    "distilbert, classes": ("distilbert", DISTILBERT | {
        "architectures": ["DistilBertForSequenceClassification"], "id2label": dict(enumerate(LABELS))}),
    "distilbert, sentences": ("distilbert", DISTILBERT | {"architectures": ["DistilBertModel"], "activation": "relu"}),
}  # fmt: skip


def oracle(case: str) -> nn.Module:
    """A random model of odd sizes; norms and biases are random too, so that a lost one changes the output."""
    kind, words = CASES[case]
    torch.manual_seed(0)
    transformers = pytest.importorskip("transformers")
    config = config_of(kind, vocab_size=V, **words)
    model = getattr(transformers, config.architectures[0])(config) if config.architectures else None
    model = model or transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    return model.eval()


def output(model: nn.Module, x: Tensor, **inputs: Tensor) -> Tensor:
    out = model(x, **inputs)
    if hasattr(out, "logits"):
        return out.logits
    return out.pooler_output if hasattr(out, "pooler_output") else out.last_hidden_state[:, 0]


def ids(tokens: int = T) -> Tensor:
    """Random ids without 0, the padding token of some, whose row gets no gradient from them."""
    return torch.randint(1, V, (B, tokens), generator=torch.Generator().manual_seed(3))

"""The attention maps of one text in a model of transformers, with its own tokenizer."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError, InputTypeError
from ..capture.watch import watch
from ..maps.attention_map import AttentionMap
from ..targets import tokenizer_pieces


def read_foreign_text(
    model: nn.Module, tokenizer: Any, text: Any, written: str | None
) -> dict[str, Tensor]:
    """The arguments of a model of transformers for a text, one row each; an encoder-decoder also gets decoder ids.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        text: The text; for an encoder-decoder the source.
        written: What the decoder of an encoder-decoder has written so far.
    """
    check_tokenizer(tokenizer)
    name = type(model).__name__
    pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if written is not None and not pair:
        raise InputError(f"this {name} is no encoder-decoder: expected a text without a target")
    given = dict(_read(tokenizer, text))
    if not given["input_ids"].numel():
        raise InputError("the text is empty: expected a token or more")
    if pair:
        foreign: Any = model
        labels = tokenizer(text_target=written or "", return_tensors="pt")["input_ids"]
        # Shifted right, so that the start comes first and the end is left out.
        given["decoder_input_ids"] = foreign.prepare_decoder_input_ids_from_labels(
            labels=labels.long()
        )
    device = next(model.parameters()).device
    return {key: x.to(device) for key, x in given.items()}


def check_tokenizer(tokenizer: Any) -> None:
    """Raise unless this can be called as a tokenizer of transformers."""
    if not callable(tokenizer):
        raise InputTypeError(
            f"tokenizer={tokenizer!r}: expected a tokenizer of transformers, as from AutoTokenizer.from_pretrained"
        )


def foreign_attention(
    model: nn.Module, tokenizer: Any, text: str | tuple[str, str], target: str | None
) -> tuple[dict[str, Any], dict[str, dict[str, AttentionMap]]]:
    """The pieces of a TextAttention, with target and decoder_input of an encoder-decoder, and its maps by kind.

    Args:
        model: A model of transformers.
        tokenizer: Its tokenizer.
        text: The text, or two of them; for an encoder-decoder the source.
        target: What its decoder writes, for an encoder-decoder only.
    """
    check_tokenizer(tokenizer)
    pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if pair and target is None:
        raise InputError(
            f"this {type(model).__name__} reads a text and writes another: expected target='...'"
        )
    if not pair and target is not None:
        raise InputError(
            f"this {type(model).__name__} is no encoder-decoder: expected a text without a target"
        )
    device = next(model.parameters()).device
    given = {key: x.to(device) for key, x in _read(tokenizer, text).items()}
    if not given["input_ids"].numel():
        raise InputError("the text is empty: expected a token or more")
    pieces = tokenizer_pieces(tokenizer, given["input_ids"][0].tolist())
    fields: dict[str, Any] = {"pieces": pieces}
    if pair:
        labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"].to(device)
        given["labels"] = labels
        fields["target"] = tokenizer_pieces(tokenizer, labels[0].tolist())
        fields["decoder_input"] = ["<start>", *fields["target"][:-1]]
    with torch.no_grad(), watch(model, "**.weights") as tape:
        _run(model, given)
    maps = tape.match("**.weights")
    if not maps:
        raise InputError(f"no attention was seen in this {type(model).__name__}: {tape.unseen}")
    return fields, _by_kind(maps) if pair else {"self": maps}


def _read(tokenizer: Any, text: str | tuple[str, str]) -> Any:
    """The inputs of a text, or of two texts in one row."""
    texts = (text,) if isinstance(text, str) else text
    try:
        return tokenizer(*texts, return_tensors="pt")
    except (TypeError, ValueError) as cause:
        raise InputError(f"this tokenizer does not read {text!r}: {cause}") from cause


def _run(model: nn.Module, given: dict[str, Any]) -> None:
    """Run a model; a text that is longer than its table of positions is the user's mistake."""
    try:
        model(**given)
    except IndexError as cause:
        tokens, most = (
            given["input_ids"].shape[1],
            getattr(model.config, "max_position_embeddings", None),
        )
        if not isinstance(most, int) or tokens <= most:
            raise
        raise InputError(
            f"the text has {tokens} tokens: this model reads {most} at once"
        ) from cause


def _by_kind(maps: dict[str, AttentionMap]) -> dict[str, dict[str, AttentionMap]]:
    """The maps of an encoder-decoder: in each layer of a decoder self-attention comes before cross-attention."""
    found: dict[str, dict[str, AttentionMap]] = {"encoder": {}, "decoder": {}, "cross": {}}
    order: dict[str, str] = {}  # a name without its numbers, and the kind of attention that it has
    for name, map in maps.items():
        if "decoder" not in name.split("."):
            found["encoder"][name] = map
            continue
        family = re.sub(r"\d+", "", name)
        kind = order.setdefault(family, "cross" if "decoder" in order.values() else "decoder")
        found[kind][name] = map
    return {kind: layers for kind, layers in found.items() if layers}

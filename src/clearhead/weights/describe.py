"""What a model folder holds, without reading its weights where that is possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import config
from .folder import load


def describe(folder: str | Path) -> dict[str, Any]:
    """The family, size, capabilities and inputs of a model, as plain values."""
    bundle = load(folder, device="cpu")
    model = bundle.model
    found: dict[str, Any] = {
        "family": bundle.name, "parameters": sum(p.numel() for p in model.parameters()), "can": sorted(bundle.can),
        "options": config.dump(bundle.config),
    }  # fmt: skip
    if bundle.tokens is not None:
        found["tokens"] = repr(bundle.tokens)
    if bundle.preprocessing is not None:
        found["preprocessing"] = config.dump(bundle.preprocessing)
    if bundle.labels is not None:
        found["labels"] = list(bundle.labels)
    if bundle.chat is not None:
        found["chat"] = "it has a chat template"
    return found

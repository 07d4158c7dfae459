"""describe: what a model is and can do, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import config
from .folder import load


def describe(folder: str | Path) -> dict[str, Any]:
    """Return the family, size, capabilities and inputs of a model as plain values, for printing and for JSON.

    Args:
        folder: What `load` takes: a folder, a GGUF file, or the name of a model.

    Returns:
        family, parameters, can (its capabilities) and options (of its Config), and those of note, tokens,
        preprocessing, labels and chat that it has.

    Examples:
        >>> folder = clearhead.save(clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2), tmp)
        >>> describe(folder)["parameters"]
        976
    """
    bundle = load(folder, device="cpu")
    about: dict[str, Any] = {
        "family": bundle.name, "parameters": sum(p.numel() for p in bundle.model.parameters()),
        "can": sorted(bundle.can), "options": config.dump(bundle.config),
    }  # fmt: skip
    if bundle.note is not None:
        about["note"] = bundle.note
    if bundle.tokens is not None:
        about["tokens"] = repr(bundle.tokens)
    if bundle.preprocessing is not None:
        about["preprocessing"] = config.dump(bundle.preprocessing)
    if bundle.labels is not None:
        about["labels"] = list(bundle.labels)
    if bundle.chat is not None:
        about["chat"] = "it has a chat template"
    return about

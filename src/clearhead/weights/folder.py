"""load and save: a folder, ours or Hugging Face's, and the model that is in it."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from .. import config
from ..tokens import Pair, Tokens
from . import huggingface, native
from .fill import WeightsError, find_device, find_dtype, nearest
from .ready import Ready

LAYOUTS = ("clearhead", "huggingface")
_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+")


def load(folder: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype | None = None) -> Ready:
    """The model of a folder that `save` wrote, of a finished run's folder, or of one of Hugging Face's.

    `device` "auto" is the first there is of cuda, mps and cpu. Numbers keep their type unless `dtype` gives another.
    """
    found, device, dtype = find(folder), find_device(device), find_dtype(dtype)
    if is_native(found):
        return native.load(found, device, dtype)
    return huggingface.load(found, device, dtype)[0]


def save(
    model: Ready | nn.Module,
    folder: str | Path,
    *,
    tokens: Tokens | Pair | None = None,
    layout: str = "clearhead",
) -> Path:
    """Write a model, and the tokens it reads, into a folder; returns the folder.

    `layout` "huggingface" is what the from_pretrained of their libraries reads.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: expected one of {', '.join(LAYOUTS)}{nearest(layout, LAYOUTS)}")
    bare = model.model if isinstance(model, Ready) else model
    bare = getattr(bare, "_orig_mod", bare)  # what torch.compile wraps
    training = bare.training
    if isinstance(model, Ready):
        same = tokens is None or tokens == model.tokens
        ready = Ready(
            bare, model.tokens if tokens is None else tokens, model.config, model.folder,
            model.special if same else None, model.chat,
        )  # fmt: skip
    else:
        ready = Ready(bare, tokens, getattr(bare, "config", None))
    try:
        return (native if layout == "clearhead" else huggingface).save(ready, Path(folder))
    finally:
        bare.train(training)


def find(folder: str | Path) -> Path:
    """The folder itself, or the model of a run's folder; raises if it cannot be one."""
    path = Path(folder)
    if not path.is_dir():
        others = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        what = "is a file, not a folder" if path.exists() else f"there is no such folder{nearest(path.name, others)}"
        raise WeightsError(f"{path}: {what}")
    if (path / "recipe.toml").exists() and not (path / "config.json").exists():
        if not (path / "model").is_dir():
            raise WeightsError(f"{path}: this run has no model/ yet, which is written when its training ends")
        path = path / "model"
    if not (path / "config.json").is_file():
        raise WeightsError(f"{path}: there is no config.json in this folder")
    return path


def is_native(folder: Path) -> bool:
    """Whether a folder is ours: its config.json has none of the words that others' have."""
    table = config.load(folder / "config.json")
    others = [("model_type",), *huggingface.MARKS.values()]
    return "clearhead" in table or not any(all(key in table for key in keys) for keys in others)

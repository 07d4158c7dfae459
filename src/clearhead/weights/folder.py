"""load and save: a folder, ours or Hugging Face's, or a GGUF file, and the model that is in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import config
from ..devices import find_device, find_dtype
from ..errors import InputError, nearest
from ..models import family_of
from ..tokens import Pair, Tokenizer
from . import gguf, huggingface, native
from .bundle import Bundle
from .fill import WeightsError
from .hub import fetch, is_name
from .quantised import quantise
from .table import Used
from .zoo import ZOO, in_zoo, shipped

LAYOUTS = ("clearhead", "huggingface")


def load(folder: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype | None = None) -> Bundle:
    """The model of a folder that `save` wrote, of a finished run's folder, or of one of Hugging Face's; or a GGUF file.

    A name like "en-de" that is no folder here is one of the models that ship with the package; one like "org/name" is
    fetched from Hugging Face's hub. `device` "auto" is the first there is of cuda, mps and cpu. Numbers keep their type
    unless `dtype` gives another; shipped ones, stored in half precision, become float32. "int8" rounds the weights of
    linear maps, for a CPU: see `quantise`.
    """
    if dtype == "int8":
        return quantise(load(folder, "cpu" if device == "auto" else device, "float32"))
    device, dtype = find_device(device), find_dtype(dtype)
    path, kind = find(folder)
    return read(path, kind, device, torch.float32 if dtype is None and path.parent == ZOO else dtype)[0]


def read(path: Path, kind: str, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """The model at a path that `find` gave, and what became of its tensors."""
    reader = native if kind == "clearhead" else gguf if kind.startswith("gguf") else huggingface
    return reader.load(path, device, dtype)


def read_config(folder: str | Path) -> tuple[str, dict[str, Any]]:
    """The family of a folder's model and the options of its Config, which `build` takes."""
    path, kind = find(folder)
    if kind == "clearhead":
        return native.read_config(path)
    bundle = read(path, kind, torch.device("cpu"), None)[0]
    return family_of(bundle.model), config.dump(bundle.config)


def save(
    model: Bundle | nn.Module,
    folder: str | Path,
    *,
    tokens: Tokenizer | Pair | None = None,
    layout: str = "clearhead",
) -> Path:
    """Write a model, and the tokens it reads, into a folder; returns the folder.

    `layout` "huggingface" is what the from_pretrained of their libraries reads.
    """
    if layout not in LAYOUTS:
        raise InputError(f"layout={layout!r}: expected one of {', '.join(LAYOUTS)}{nearest(layout, LAYOUTS)}")
    bare = model.model if isinstance(model, Bundle) else model
    bare = getattr(bare, "_orig_mod", bare)  # what torch.compile wraps
    training = bare.training
    if isinstance(model, Bundle):
        same = tokens is None or tokens == model.tokens
        bundle = replace(
            model, model=bare, tokens=model.tokens if tokens is None else tokens,
            special=model.special if same else None,
        )  # fmt: skip
    else:
        bundle = Bundle(bare, tokens)
    try:
        return (native if layout == "clearhead" else huggingface).save(bundle, Path(folder))
    finally:
        bare.train(training)


def find(folder: str | Path) -> tuple[Path, str]:
    """Where a model is, and whose layout it has: "clearhead", "gguf", or "huggingface" and its model_type."""
    path = Path(folder)
    if is_name(str(folder)):
        path = fetch(str(folder))
    if path.is_file() and path.suffix == ".gguf":
        return path, "gguf"
    if not path.exists():
        path = in_zoo(str(folder)) or path
    if not path.is_dir():
        others = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        others += shipped()
        what = "is a file, not a folder" if path.exists() else f"there is no such folder{nearest(path.name, others)}"
        raise WeightsError(f"{path}: {what}")
    if (path / "config.json").is_file():
        return path, _kind(path)
    if (path / "recipe.toml").exists():
        if not (path / "model").is_dir():
            raise WeightsError(f"{path}: this run has no model/ yet, which is written when its training ends")
        return find(path / "model")
    alone = list(path.glob("*.gguf"))
    if len(alone) == 1:
        return alone[0], "gguf"
    raise WeightsError(f"{path}: there is no config.json in this folder")


def _kind(folder: Path) -> str:
    """Whose a config.json is: ours has none of the words that others' have."""
    table = config.load(folder / "config.json")
    others = [("model_type",), *huggingface.MARKS.values()]
    if "clearhead" in table or not any(all(key in table for key in keys) for keys in others):
        return "clearhead"
    return f"huggingface {huggingface.kind_of(table)}"

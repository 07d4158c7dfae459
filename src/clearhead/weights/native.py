"""Our own folder of a model: what it is, its numbers, and how it reads text.

config.json         {"clearhead": version, "model": family, "options": {...}}: build(family, **options)
model.safetensors   every parameter and every buffer of its state; a shared one once, under its first name
tokens.json         how text becomes ids, where the model reads text; or what else clearhead.tokens saves
chat_template.jinja how a conversation becomes a text, of a chat model
preprocessor_config.json   how an image becomes the model's input, of a model that reads images

What is saved and loaded again is the same to the bit, whatever its type.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import __version__, config
from .. import tokens as text
from ..atomic_files import replacing
from ..models import family, family_of
from .bundle import Bundle, Special, check_tokens
from .files import open_safetensors
from .fill import WeightsError, check_type, compare, put, slots, state
from .preprocessor import read_preprocessing, write_preprocessing
from .table import Used, stored
from .tensors import write_tensors
from .vocabulary import chat_template, write_chat


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What config.json says."""

    clearhead: str  # the version that wrote it
    model: str  # its family
    options: dict[str, Any]  # of its Config
    special: Special | None = None  # what its tokens do not tell
    labels: tuple[str, ...] | None = None  # what its classes are called


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a model, and the tokens it reads, into a folder, each file whole or not at all; returns the folder."""
    model = bundle.model
    written = {"clearhead": __version__, "model": family_of(model), "options": config.dump(bundle.config)}
    if bundle.special != Special.of(bundle.tokens):
        written["special"] = config.dump(bundle.special)
    if bundle.labels is not None:
        written["labels"] = list(bundle.labels)
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as temporary:  # first: a full disk leaves the rest alone
        write_tensors(temporary, {name: tensor.detach().cpu() for name, tensor in state(model).items()})
    if bundle.tokens is None:
        text.remove(folder)  # of another model
    else:
        text.save(bundle.tokens, folder)
    write_chat(bundle.chat, folder)
    write_preprocessing(bundle.preprocessing, folder)
    config.write(written, folder / "config.json")  # last: a new folder without it is not whole
    return folder


def read_config(folder: Path) -> tuple[str, dict[str, Any]]:
    """The family of a folder's model, and the options of its Config."""
    saved = config.read(Saved, config.load(folder / "config.json"))
    return saved.model, dict(saved.options)


def load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """The model of a folder that `save` wrote, and what became of the folder's tensors."""
    table = config.load(folder / "config.json")
    saved = config.read(Saved, table)
    if not (folder / "model.safetensors").is_file():
        raise WeightsError(f"{folder}: there is no model.safetensors in this folder")
    try:
        kind, options = family(saved.model)
    except ValueError as cause:
        raise WeightsError(f"{table.origin.place(('model',))}{cause}") from cause
    chosen = config.read(options, table["options"])
    beside = text.saved(folder)
    tokens = None if beside is None else text.load(folder)
    check_tokens(tokens, chosen, str(beside))
    with torch.device("meta"):  # numbers that are about to be replaced are neither drawn nor stored
        model = kind(chosen)
    used = _fill(model, folder / "model.safetensors", device, dtype)
    bundle = Bundle(
        model, tokens, chosen, folder, saved.special, chat_template(folder), saved.labels,
        preprocessing=read_preprocessing(folder),
    )  # fmt: skip
    return bundle, used


@torch.no_grad()
def _fill(model: nn.Module, path: Path, device: torch.device, dtype: torch.dtype | None) -> Used:
    """Give a model without numbers those of a file: every tensor is used, every parameter filled, every shape equal."""
    with open_safetensors(path) as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(part.get_shape()) for name, part in found.items()}
        compare(shapes, {name: tuple(x.shape) for name, x in state(model).items()}, path)
        types: Counter[str] = Counter()
        for name, slot in slots(model).items():
            tensor = file.get_tensor(name)
            check_type(name, tensor, slot[0], path)
            types[stored(tensor)] += tensor.numel()
            put(slot, tensor, device, dtype)
    model.to(device)  # constants, which are no part of the state
    return Used(shapes, {}, dict(types), (path.name,))

"""Our own model folder.

config.json                {"clearhead": version, "model": family, "options": {...}}: build(family, **options)
model.safetensors          every parameter and every persistent buffer; a shared one once, under its first name
tokens.json                the tokenizer, if the model reads text; or the other files that clearhead.tokens writes
chat_template.jinja        the Jinja template that turns a conversation into one text, for a chat model
preprocessor_config.json   how an image becomes the model's input, if it reads images

Saving and loading returns the same bits, whatever the dtype. The layout "compact" rounds matrices to 8 bits instead,
and may take a part of the model from a folder beside it: see compact.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__, config
from .. import tokens as text
from ..models import family, family_of
from ..tokens import Pair, Tokenizer
from ..tokens.chat_template import read_template
from ..tokens.special import Special
from .bundle import Bundle, Scores, check_tokens
from .compact import compress, open_compact, without_shared
from .fill import WeightsError, build_empty, check_dtype, check_shapes, set_tensor, slots, state
from .preprocessor import read_preprocessing, write_preprocessing
from .table import Used, dtype_name
from .tensor_files import Tensors
from .tensors import replace_tensors
from .tokenizer_files import write_chat


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The contents of config.json."""

    clearhead: str  # version that wrote it
    model: str  # family
    options: dict[str, Any]  # fields of the family's Config
    special: Special | None = None  # special ids, where they differ from the tokenizer's
    labels: tuple[str, ...] | None = None  # names of the classes
    columns: dict[str, str] = field(default_factory=dict)  # columns it was trained on, by what they are for
    shared: dict[str, str] = field(default_factory=dict)  # part of the model: folder beside this one that holds it
    chat: str | None = None  # the chat template, which is in a file of its own
    scores: Scores | None = None  # how the logits of a classifier become scores, where not by a softmax
    longest: int | None = None  # tokens at which a text is cut, where these are fewer than the model can read


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a bundle into a folder, each file whole or not at all; returns the folder."""
    return _write(bundle, folder, state(bundle.model), {})


def save_compact(bundle: Bundle, folder: Path, shared: Mapping[str, str] | None = None) -> Path:
    """Write a bundle with matrices in 8 bits; `shared` names parts of the model, and the folders that hold them."""
    names = frozenset(name for name, _ in bundle.model.named_buffers())
    tensors = without_shared(compress(state(bundle.model), names), folder, shared or {})
    return _write(bundle, folder, tensors, shared or {})


def _write(bundle: Bundle, folder: Path, tensors: Mapping[str, Tensor], shared: Mapping[str, str]) -> Path:
    settings = _checked_settings(bundle, shared)
    folder.mkdir(parents=True, exist_ok=True)
    # The largest file first: if the disk is full, the other files are still those of the old model.
    replace_tensors(folder / "model.safetensors", tensors)
    return _write_settings(bundle, folder, settings)


def write_without_weights(bundle: Bundle, folder: Path) -> Path:
    """Write everything of a bundle but its weights into a folder; returns the folder."""
    settings = _checked_settings(bundle, {})
    folder.mkdir(parents=True, exist_ok=True)
    return _write_settings(bundle, folder, settings)


def _checked_settings(bundle: Bundle, shared: Mapping[str, str]) -> dict[str, Any]:
    """The content of config.json; raises for a model that could not be loaded again."""
    settings = config.dump(replace(settings_of(bundle), shared=dict(shared), chat=None))
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    return {name: value for name, value in settings.items() if value is not None and value != {}}


def _write_settings(bundle: Bundle, folder: Path, settings: Mapping[str, Any]) -> Path:
    if bundle.tokens is None:
        text.remove(folder)  # of the model that was here before
    else:
        text.save(bundle.tokens, folder)
    write_chat(bundle.chat, folder)
    write_preprocessing(bundle.preprocessing, folder)
    config.write(settings, folder / "config.json")  # last: without it a new folder is not a model
    return folder


def read_settings(folder: Path) -> Saved:
    """The contents of config.json, with the chat template beside it."""
    return replace(config.read(Saved, config.load(folder / "config.json")), chat=read_template(folder))


def settings_of(bundle: Bundle) -> Saved:
    """The settings of a bundle, as its folder would have them."""
    return Saved(
        clearhead=__version__, model=family_of(bundle.model), options=config.dump(bundle.config),
        special=None if bundle.special == Special.of(bundle.tokens) else bundle.special, labels=bundle.labels,
        chat=bundle.chat, columns=dict(bundle.columns), longest=bundle.longest,
        scores=None if bundle.scores == "softmax" else bundle.scores,
    )  # fmt: skip


def load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """Load a folder that `save` wrote; returns the bundle, and which tensors it was loaded from."""
    table = config.load(folder / "config.json")
    saved = config.read(Saved, table)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise WeightsError(f"{folder}: there is no model.safetensors in this folder")
    try:
        kind, options = family(saved.model)
    except ValueError as cause:
        raise WeightsError(f"{table.origin.place(('model',))}{cause}") from cause
    chosen = config.read(options, table["options"])
    tokens_file = text.saved(folder)
    tokens = None if tokens_file is None else text.load(folder)
    check_tokens(tokens, chosen, str(tokens_file))
    with open_compact(path, saved.shared) as tensors:
        model = build_empty(kind, chosen, tensors.shapes, folder / "config.json", path)
        used = fill_model(model, tensors, device, dtype)
    return make_bundle(folder, saved, model, tokens), used


def make_bundle(
    folder: Path, saved: Saved, model: nn.Module, tokens: Tokenizer | Pair | None, *, base: str | None = None
) -> Bundle:
    """The bundle of a model, with everything that its folder says beside the weights."""
    return Bundle(
        model, tokens, None, folder, saved.special, read_template(folder), saved.labels,
        preprocessing=read_preprocessing(folder), columns=saved.columns, longest=saved.longest,
        scores=saved.scores or "softmax", base=base,
    )  # fmt: skip


@torch.no_grad()
def fill_model(model: nn.Module, tensors: Tensors, device: torch.device, dtype: torch.dtype | None) -> Used:
    """Give a model from `build_empty` the tensors of its folder."""
    check_shapes(tensors.shapes, {name: tuple(x.shape) for name, x in state(model).items()}, tensors.path)
    types: Counter[str] = Counter()
    for name, slot in slots(model).items():
        tensor = tensors[name]
        check_dtype(name, tensor, slot[0], tensors.files[name])
        types[tensors.types.get(name) or dtype_name(tensor)] += tensor.numel()
        set_tensor(slot, tensor, device, dtype)
    model.to(device)  # constants, which are not in the state
    files = dict.fromkeys(file.name for file in tensors.files.values())
    return Used(dict(tensors.shapes), {}, dict(types), tuple(files))

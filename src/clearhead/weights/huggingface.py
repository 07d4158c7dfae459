"""Model folders of Hugging Face's libraries, to and from our models.

`model_type` in config.json names the family; each family has its own file with a two-way table (see gpt2.py).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_type_hints

import torch

from .. import config
from ..atomic_files import atomic_write
from ..errors import nearest
from ..models import Model, family, family_of
from .bundle import Bundle, Special, check_tokens
from .fill import WeightsError, build_empty
from .preprocessor import read_preprocessing, write_preprocessing
from .table import Family, Used, dtype_name, export, fill
from .tensor_files import Tensors, open_tensors
from .tensors import replace_tensors
from .tokenizer_files import read_chat, remove_tokens, write_chat

# model_type: the file of this folder with its Family.
FAMILIES = {"marian": "marian", "gpt2": "gpt2", "llama": "llama", "mistral": "llama", "qwen2": "llama", "bert": "bert"}
# Our family: the model types to save it as, in order of preference.
LAYOUTS = {"transformer": ("marian",), "gpt": ("gpt2", "llama"), "bert": ("bert",)}
# Keys that tell the model type of a config.json that is older than the key model_type.
MARKS = {"gpt2": ("n_embd", "n_head"), "bert": ("type_vocab_size", "hidden_size")}
# Special ids in generation_config.json.
ID_KEYS = ("pad_token_id", "bos_token_id", "decoder_start_token_id", "eos_token_id")


def get_family(model_type: str) -> Family:
    """The Family of a model type."""
    family: Family = import_module(f".{FAMILIES[model_type]}", __package__).FAMILY
    return family


def model_type(table: config.Table) -> str:
    """The model type of a config.json; raises if it is not one of FAMILIES."""
    kind = table.get("model_type")
    if kind is None:
        kind = next((known for known, keys in MARKS.items() if all(key in table for key in keys)), None)
    if not isinstance(kind, str) or kind not in FAMILIES:
        place, hint = table.origin.place(("model_type",)), nearest(str(kind), FAMILIES)
        raise WeightsError(f"{place}model_type is {kind!r}: expected one of {', '.join(FAMILIES)}{hint}")
    return kind


def load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """Load a folder of theirs; returns the bundle, and which tensors it was loaded from."""
    table = config.load(folder / "config.json")
    entry = get_family(model_type(table))
    theirs = read_theirs(entry, config.Table({**table, **entry.read_extra(folder)}, origin=table.origin))
    with open_tensors(folder) as tensors:
        model, used = build(entry, theirs, tensors, device, dtype, folder / "config.json")
    tokens = entry.read_tokens(folder, theirs)
    check_tokens(tokens, model.config, str(folder))
    special, labels = special_ids(folder, table), class_names(table, getattr(model.config, "classes", None))
    bundle = Bundle(
        model, tokens, model.config, folder, special, read_chat(folder), labels,
        preprocessing=read_preprocessing(folder) if model.reads == "images" else None,
    )  # fmt: skip
    return bundle, used


def build(
    entry: Family, theirs: Any, tensors: Tensors, device: torch.device, dtype: torch.dtype | None, where: Path
) -> tuple[Model, Used]:
    """Build our model and fill it with their tensors; `where` is the file with its sizes, for error messages."""
    if entry.rename is not None:
        tensors = tensors.renamed(entry.rename)
    if entry.prefix and not any(name.startswith(entry.prefix) for name in tensors.shapes):
        tensors = tensors.renamed(lambda name: entry.prefix + name)  # of a model without its head
    try:
        options = entry.to_ours(theirs, tensors.shapes)
    except ValueError as cause:
        raise WeightsError(f"{where}: {cause}") from cause
    model = build_empty(family(entry.model)[0], options, tensors.shapes, where, tensors.path)
    used = fill(model, tensors, entry.rows(model.config), entry.ignored(model.config), device, dtype)
    return model.eval(), used


def read_theirs(entry: Family, table: config.Table) -> Any:
    """The keys of config.json that we read, as the family's dataclass; raises for what we do not support."""
    if table.get("quantization_config") is not None:
        place = table.origin.place(("quantization_config",))
        raise WeightsError(f"{place}quantization_config: quantised weights are not supported, expected plain ones")
    for name, value in entry.fixed.items():
        if table.get(name, value) != value:
            raise WeightsError(f"{table.origin.place((name,))}{name} is {table[name]}: expected {value}")
    hints = get_type_hints(entry.theirs)
    # A null means the default, unless the field itself may be None.
    nulls = {name for name, hint in hints.items() if table.get(name) is None and type(None) not in get_args(hint)}
    return config.read(entry.theirs, table.without(*(name for name in table if name not in hints or name in nulls)))


def special_ids(folder: Path, table: config.Table) -> Special:
    """The special ids of generation_config.json, or else of config.json."""
    path = folder / "generation_config.json"
    generation = config.load(path) if path.is_file() else config.Table()
    ids: dict[str, tuple[int, ...]] = {}
    for keys in (table, generation):
        ids |= {name: _ids(keys, name) for name in ID_KEYS if keys.get(name) is not None}
    start = ids.get("decoder_start_token_id", ids.get("bos_token_id", ()))
    pad = ids.get("pad_token_id", ())
    return Special(pad=next(iter(pad), None), start=next(iter(start), None), ends=ids.get("eos_token_id", ()))


def class_names(table: config.Table, classes: int | None) -> tuple[str, ...] | None:
    """The names of a classifier's classes, if config.json has one for each."""
    names = table.get("id2label")
    if classes is None or not isinstance(names, dict) or names.keys() != {str(i) for i in range(classes)}:
        return None
    return tuple(str(names[str(i)]) for i in range(classes))


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a bundle as a folder that from_pretrained reads; returns the folder."""
    special = bundle.special or Special()
    entry, theirs = _their_config(bundle, special)
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    if bundle.preprocessing is not None and bundle.preprocessing.channels != "rgb":
        raise WeightsError(f"channels={bundle.preprocessing.channels!r}: a Hugging Face folder has channels='rgb'")
    with TemporaryDirectory() as scratch:  # so that tokens that they have no format for change nothing in the folder
        if bundle.tokens is not None:
            entry.write_tokens(bundle.tokens, Path(scratch), special)
        token_files = {path.name: path.read_bytes() for path in Path(scratch).iterdir()}
    tensors = export(bundle.model, entry.rows(bundle.config)) | entry.extra_tensors(bundle.model)
    folder.mkdir(parents=True, exist_ok=True)
    replace_tensors(folder / "model.safetensors", tensors)
    remove_tokens(folder)  # of the model that was here before
    for name, content in token_files.items():
        atomic_write(folder / name, content)
    write_chat(bundle.chat, folder)
    write_preprocessing(bundle.preprocessing, folder)
    entry.write_extra(bundle.config, folder)
    ids = {key: theirs[key] for key in ID_KEYS if theirs.get(key) is not None}
    banned = {"bad_words_ids": [[special.pad]]} if "decoder_start_token_id" in theirs else {}
    config.write(ids | banned, folder / "generation_config.json")
    if bundle.labels is not None:
        theirs["id2label"] = {str(i): label for i, label in enumerate(bundle.labels)}
        theirs["label2id"] = {label: i for i, label in enumerate(bundle.labels)}
    config.write({**theirs, "dtype": dtype_name(next(bundle.model.parameters()))}, folder / "config.json")
    return folder


def _their_config(bundle: Bundle, special: Special) -> tuple[Family, dict[str, Any]]:
    """The first model type that can express a model, and its config.json."""
    name = family_of(bundle.model)
    if name not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise WeightsError(f"{name}: there is no Hugging Face layout for such a model here: expected one of {known}")
    reasons = []
    for kind in LAYOUTS[name]:
        entry = get_family(kind)
        try:
            return entry, entry.to_theirs(bundle.config, special)
        except WeightsError as problem:
            reasons.append(str(problem))
    raise WeightsError("; or ".join(reasons))


def _ids(table: config.Table, name: str) -> tuple[int, ...]:
    """The token ids of a key: one number, or a list of them."""
    ids = table[name] if isinstance(table[name], list) else [table[name]]
    if not all(type(i) is int for i in ids):
        place = table.origin.place((name,))
        raise WeightsError(f"{place}{name} is {table[name]!r}: expected a token id, or a list of them")
    return tuple(ids)

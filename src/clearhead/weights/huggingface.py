"""Folders as Hugging Face's libraries write and read them, to and from our models.

config.json tells the family by its `model_type`; each has a two-way table in a file of its own.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_type_hints

import torch

from .. import config
from ..atomic_files import atomic_write, replacing
from ..errors import nearest
from ..models import family as family_of_ours
from ..models import family_of
from .bundle import Bundle, Special, check_tokens
from .files import Tensors, opened
from .fill import WeightsError
from .preprocessor import read_preprocessing, write_preprocessing
from .table import Family, Used, fill, given_away, stored
from .tensors import write_tensors
from .vocabulary import chat_template, remove, write_chat

# What model_type says: the file here that knows such models.
FAMILIES = {"marian": "marian", "gpt2": "gpt2", "llama": "llama", "mistral": "llama", "qwen2": "llama", "bert": "bert"}
# Of our families those that a folder of theirs can hold, by the first model_type that fits.
LAYOUTS = {"transformer": ("marian",), "gpt": ("gpt2", "llama"), "bert": ("bert",)}
# Keys by which a config.json older than model_type is told.
MARKS = {"gpt2": ("n_embd", "n_head"), "bert": ("type_vocab_size", "hidden_size")}


def find(kind: str) -> Family:
    """What there is to know of a model_type."""
    found: Family = import_module(f".{FAMILIES[kind]}", __package__).FAMILY
    return found


def kind_of(table: config.Table) -> str:
    """The model_type of a config.json; in files older than that word, the kind that has such keys."""
    kind = table.get("model_type")
    if kind is None:
        kind = next((known for known, keys in MARKS.items() if all(key in table for key in keys)), None)
    if kind not in FAMILIES:
        place, hint = table.origin.place(("model_type",)), nearest(str(kind), FAMILIES)
        raise WeightsError(f"{place}model_type is {kind!r}: expected one of {', '.join(FAMILIES)}{hint}")
    return str(kind)


def load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """The model of a folder with its tokens, and what became of the folder's tensors."""
    table = config.load(folder / "config.json")
    family = find(kind_of(table))
    theirs = said(family, config.Table({**table, **family.beside(folder)}, origin=table.origin))
    with opened(folder) as tensors:
        model, used = build(family, theirs, tensors, device, dtype, folder / "config.json")
    tokens = family.tokens(folder, theirs)
    check_tokens(tokens, model.config, str(folder))
    special, labels = special_ids(folder, table), class_names(table, getattr(model.config, "classes", None))
    bundle = Bundle(
        model, tokens, model.config, folder, special, chat_template(folder), labels,
        preprocessing=read_preprocessing(folder) if model.reads == "images" else None,
    )  # fmt: skip
    return bundle, used


def build(
    family: Family, theirs: Any, tensors: Tensors, device: torch.device, dtype: torch.dtype | None, where: Path
) -> tuple[Any, Used]:
    """Our model with their numbers; `where` is the file that told its sizes."""
    if family.rename is not None:
        tensors = tensors.renamed(family.rename)
    if family.prefix and not any(name.startswith(family.prefix) for name in tensors.shapes):
        tensors = tensors.renamed(lambda name: family.prefix + name)  # of a model without its head
    try:
        chosen = family.ours(theirs, tensors.shapes)
    except ValueError as cause:
        raise WeightsError(f"{where}: {cause}") from cause
    kind, _ = family_of_ours(family.model)
    with torch.device("meta"):  # numbers that are about to be replaced are neither drawn nor stored
        model = kind(chosen)
    used = fill(model, tensors, family.rows(model.config), family.ignored(model.config), device, dtype)
    return model.eval(), used


def said(family: Family, table: config.Table) -> Any:
    """What config.json says of a model, in their words."""
    if table.get("quantization_config") is not None:
        place = table.origin.place(("quantization_config",))
        raise WeightsError(
            f"{place}quantization_config: the numbers are packed in a way of their own, expected plain ones"
        )
    for name, value in family.wiring.items():
        if table.get(name, value) != value:
            raise WeightsError(f"{table.origin.place((name,))}{name} is {table[name]}: expected {value}")
    known = get_type_hints(family.theirs)
    unsaid = {name for name, hint in known.items() if table.get(name) is None and type(None) not in get_args(hint)}
    return config.read(family.theirs, table.without(*(name for name in table if name not in known or name in unsaid)))


def special_ids(folder: Path, table: config.Table) -> Special:
    """The ids that a search needs, as generation_config.json says them, or else config.json."""
    path = folder / "generation_config.json"
    said = config.load(path) if path.is_file() else {}
    found = {**table, **{name: i for name, i in said.items() if i is not None}}
    ends = found.get("eos_token_id")
    start = found.get("decoder_start_token_id", found.get("bos_token_id"))
    return Special(
        pad=found.get("pad_token_id"), start=start, ends=tuple(ends) if isinstance(ends, list) else _some(ends)
    )


def class_names(table: config.Table, classes: int | None) -> tuple[str, ...] | None:
    """What config.json calls the classes of a model that sorts, if it names each."""
    found = table.get("id2label")
    if classes is None or not isinstance(found, dict) or found.keys() != {str(i) for i in range(classes)}:
        return None
    return tuple(str(found[str(i)]) for i in range(classes))


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a model as their folder, which from_pretrained reads; returns the folder."""
    name, special = family_of(bundle.model), bundle.special or Special()
    if name not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise WeightsError(f"{name}: there is no Hugging Face layout for such a model here: expected one of {known}")
    refused = []
    for kind in LAYOUTS[name]:
        family = find(kind)
        try:
            said = family.written(bundle.config, special)
            break
        except WeightsError as problem:
            refused.append(str(problem))
    else:
        raise WeightsError("; or ".join(refused))
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    with TemporaryDirectory() as scratch:  # tokens that they have no file for are told before anything is changed
        if bundle.tokens is not None:
            family.write_tokens(bundle.tokens, Path(scratch), special)
        files = {path.name: path.read_bytes() for path in Path(scratch).iterdir()}
    tensors = given_away(bundle.model, family.rows(bundle.config)) | family.also(bundle.model)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as temporary:
        write_tensors(temporary, {name: x.detach().cpu() for name, x in tensors.items()})
    remove(folder)  # of another model
    for file, content in files.items():
        atomic_write(folder / file, content)
    write_chat(bundle.chat, folder)
    write_preprocessing(bundle.preprocessing, folder)
    family.write_beside(bundle.config, folder)
    ids = {key: said.get(key) for key in ("pad_token_id", "bos_token_id", "decoder_start_token_id", "eos_token_id")}
    banned = {"bad_words_ids": [[special.pad]]} if "decoder_start_token_id" in said else {}
    config.write({key: i for key, i in ids.items() if i is not None} | banned, folder / "generation_config.json")
    if bundle.labels is not None:
        said["id2label"] = {str(i): label for i, label in enumerate(bundle.labels)}
        said["label2id"] = {label: i for i, label in enumerate(bundle.labels)}
    config.write({**said, "dtype": stored(next(bundle.model.parameters()))}, folder / "config.json")
    return folder


def _some(i: Any) -> tuple[int, ...]:
    return () if i is None else (int(i),)

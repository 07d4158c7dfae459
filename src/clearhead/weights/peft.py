"""Adapters in the layout of the PEFT library, to and from models with LoRA (layers/lora.py).

adapter_config.json         the model that they belong to (base_model_name_or_path), ranks, scales
adapter_model.safetensors   base_model.model.MODULE.lora_A.weight and .lora_B.weight, by their names of the modules, and
                            whole tensors of modules that differ from the base model's, like a new head
clearhead.json              our Config, special ids and class names, if we wrote the folder

MODULE is translated by the table of the base model's family; a base model in our own layout has our names. Where one
matrix of theirs holds several of ours (c_attn of GPT-2: queries, keys and values), these share A, and B is split by its
rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import config
from .. import tokens as text
from ..layers import Linear
from ..layers.lora import LoraLinear
from ..models import family
from ..tokens.chat_template import read_template
from . import huggingface, native
from .bundle import Bundle
from .fill import WeightsError, build_empty, on_meta_device, state
from .table import Layout, Row, Used
from .tensor_files import Tensors, open_file, open_tensors
from .tokenizer_files import FILES as TOKEN_FILES

CONFIG, OURS = "adapter_config.json", "clearhead.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# Settings of PEFT that change what an adapter computes and that we do not support. Name: the value that does not.
REFUSED: dict[str, Any] = {
    "use_dora": False, "use_qalora": False, "lora_bias": False, "alora_invocation_tokens": None,
    "trainable_token_indices": None, "layer_replication": None, "target_parameters": None, "use_bdlora": None,
    "megatron_config": None, "arrow_config": None, "monteclora_config": None, "velora_config": None,
    "kasa_config": None,
}  # fmt: skip
# Initialisations after which the base model's weights differ from those of its folder.
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The keys of adapter_config.json that we read, with PEFT's defaults."""

    peft_type: str = "LORA"
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    r: int = 8
    lora_alpha: int | float = 8
    lora_dropout: float = 0.0
    use_rslora: bool = False  # updates are scaled by alpha / sqrt(rank) instead of alpha / rank
    fan_in_fan_out: bool = False  # their matrices are transposed; A and B are not
    bias: str = "none"
    inference_mode: bool = True
    target_modules: list[str] | str | None = None
    modules_to_save: list[str] | None = None
    rank_pattern: dict[str, int] = field(default_factory=dict)  # rank of modules whose names match
    alpha_pattern: dict[str, int | float] = field(default_factory=dict)

    def rank(self, module: str) -> int:
        """The rank of a module's update."""
        return _matching(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """The factor of a module's update."""
        rank = self.rank(module)
        return _matching(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def _matching(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that matches the end of a module's name, as in PEFT."""
    return next((x for key, x in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def is_peft(folder: Path) -> bool:
    """True if a folder holds adapters in PEFT's layout."""
    return (folder / CONFIG).is_file() and any((folder / name).is_file() for name in FILES)


def load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """Load the base model of a folder with its adapters, which are kept apart; returns also the tensors used."""
    settings = _read_settings(folder)
    path, name = _find_base(folder, settings)
    updates, changed = _read_tensors(folder)
    layout = foreign_layout(name)
    if layout is None:
        bundle, used = _on_ours(folder, path, name, changed, device, dtype)
    else:
        bundle, used = _on_huggingface(folder, path, layout, changed, device, dtype)
    rows = table_rows(layout, bundle)
    for module, (a, b) in updates.items():
        _attach(bundle.model, _row_of(module, rows, layout, folder), module, a, b, settings, folder)
    bundle = replace(bundle, folder=folder, base=str(path), chat=read_template(folder) or bundle.chat)
    if (folder / OURS).is_file():
        ours = config.read(native.Saved, config.load(folder / OURS))
        special = ours.special or bundle.special
        bundle = replace(bundle, labels=ours.labels or bundle.labels, special=special, columns=ours.columns)
    if dtype is not None:
        bundle.model.to(dtype)
    return bundle, used


def foreign_layout(name: str) -> Layout | None:
    """The layout of a base model of Hugging Face; None for any other, whose adapters have our names."""
    return huggingface.get_layout(name.split()[1]) if name.startswith("huggingface") else None


def table_rows(layout: Layout | None, bundle: Bundle) -> list[Row]:
    """The table between our names and those of the base model's layout."""
    if layout is not None:
        return list(layout.rows(bundle.config))
    names = (n for n in state(bundle.model) if n.rpartition(".")[2] not in ("lora_a", "lora_b"))
    return [Row((name,), (name,)) for name in names]


def _read_settings(folder: Path) -> Settings:
    table = config.load(folder / CONFIG)
    kind = table.get("peft_type")
    if kind != "LORA":
        raise WeightsError(
            f"{table.place('peft_type')}peft_type is {kind!r}: expected LORA, the only kind that we read"
        )
    for name, harmless in REFUSED.items():
        if table.get(name, harmless) not in (harmless, None, [], {}):
            raise WeightsError(f"{table.place(name)}{name} is {table[name]!r}: such adapters are not supported")
    start = str(table.get("init_lora_weights"))
    if start.startswith(CHANGED_BASE):
        raise WeightsError(
            f"{table.place('init_lora_weights')}init_lora_weights is {start!r}, which changes the weights of the base "
            "model: expected adapters that PEFT has converted to plain LoRA (path_initial_model_for_weight_conversion)"
        )
    known = {f.name for f in fields(Settings)}
    return config.read(Settings, table.without(*(name for name in table if name not in known or table[name] is None)))


def _find_base(folder: Path, settings: Settings) -> tuple[Path, str]:
    """The path and the layout of the base model."""
    from .folder import find  # which imports this file

    name = settings.base_model_name_or_path
    if not name:
        raise WeightsError(f"{folder / CONFIG}: there is no base_model_name_or_path: expected the adapters' base model")
    try:
        path, layout = find(folder / name if (folder / name).is_dir() and not Path(name).is_dir() else name)
    except WeightsError as cause:
        raise WeightsError(f"{folder / CONFIG}: the base model cannot be opened: {cause}") from cause
    if layout == "peft":
        raise WeightsError(f"{folder / CONFIG}: the base model {path} has adapters itself: expected a whole model")
    return path, layout


def _read_tensors(folder: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """A and B of each module, and the whole tensors of modules that differ from the base model's."""
    path = next(folder / name for name in FILES if (folder / name).is_file())
    with open_file(path) as file:
        tensors = {name: file[name] for name in file.shapes}
    named = {}
    for name, x in tensors.items():
        if not name.startswith(PREFIX):
            raise WeightsError(f"{path}: the tensor {name}: expected names that begin with {PREFIX}")
        named[name.removeprefix(PREFIX).replace(".base_layer.", ".")] = x
    first = {name.removesuffix(A) for name in named if name.endswith(A)}
    second = {name.removesuffix(B) for name in named if name.endswith(B)}
    for module in first ^ second:
        raise WeightsError(f"{path}: the module {module} has only one of lora_A and lora_B: expected both")
    for name in named:
        if ".lora_" in name and not name.endswith((A, B)):
            raise WeightsError(f"{path}: the tensor {name}: adapters of this kind are not supported")
    updates = {module: (named[module + A], named[module + B]) for module in sorted(first)}
    return updates, {name: x for name, x in named.items() if not name.endswith((A, B))}


def _on_huggingface(
    folder: Path, path: Path, layout: Layout, changed: Mapping[str, Tensor], device: torch.device,
    dtype: torch.dtype | None,
) -> tuple[Bundle, Used]:  # fmt: skip
    """A base model of Hugging Face, some of whose tensors are replaced."""
    with open_tensors(path) as tensors:
        known = set(tensors.shapes)
    if any(name.startswith(layout.prefix) for name in known):  # a class without a head has no prefix in its names
        changed = {layout.prefix + n if layout.prefix + n in known else n: x for n, x in changed.items()}
    bundle, used = huggingface.load(path, device, dtype, changed)
    if layout.read_tokens is not None and any((folder / name).is_file() for name in TOKEN_FILES):
        theirs = huggingface.read_theirs(layout, config.load(path / "config.json"))
        bundle = replace(bundle, tokens=layout.read_tokens(folder, theirs) or bundle.tokens)
    return bundle, used


def _on_ours(
    folder: Path, path: Path, layout: str, changed: Mapping[str, Tensor], device: torch.device,
    dtype: torch.dtype | None,
) -> tuple[Bundle, Used]:  # fmt: skip
    """A base model in any other layout: the folder has our names and our Config."""
    from .folder import read

    base, used = read(path, layout, device, dtype)
    if not (folder / OURS).is_file():
        if changed:
            raise WeightsError(f"{folder}: {next(iter(changed))} cannot be placed in a {base.name} without {OURS}")
        return base, used
    table = config.load(folder / OURS)
    saved = config.read(native.Saved, table)
    kind, options = family(saved.model)
    chosen = config.read(options, table["options"])
    known = {**state(base.model), **changed}
    with on_meta_device():
        wanted = state(kind(chosen))
    named = {name: known[name] for name in wanted if name in known}
    shapes = {name: tuple(x.shape) for name, x in named.items()}
    tensors = Tensors(folder / FILES[0], shapes, dict.fromkeys(named, folder / FILES[0]), named.__getitem__)
    model = build_empty(kind, chosen, shapes, folder / OURS, folder / FILES[0])
    native.fill_model(model, tensors, device, dtype)
    tokens = text.load(folder) if text.saved(folder) is not None else base.tokens
    return replace(base, model=model.eval(), config=chosen, tokens=tokens), used


def _row_of(module: str, rows: Iterable[Row], layout: Layout | None, folder: Path) -> Row:
    """The row of a module's weight."""
    prefix = "" if layout is None else layout.prefix
    for row in rows:
        if f"{module}.weight" in row.theirs or f"{prefix}{module}.weight" in row.theirs:
            return row
    raise WeightsError(f"{folder}: the base model has no linear map {module}, to which adapters belong")


def _attach(
    model: nn.Module, row: Row, module: str, a: Tensor, b: Tensor, settings: Settings, folder: Path
) -> None:  # fmt: skip
    """Add the adapters of one module of theirs to the maps of ours that it holds."""
    names = [name.removesuffix(".weight") for name in row.ours]
    maps = [model.get_submodule(name) for name in names]
    for name, one in zip(names, maps, strict=True):
        if type(one) is not Linear:
            raise WeightsError(
                f"{folder}: {module} is {name}, a {type(one).__name__}: expected adapters of linear maps"
            )
    width, out = maps[0].in_features, sum(one.out_features for one in maps)  # type: ignore[misc]
    rank = settings.rank(module)
    if a.shape != (rank, width) or b.shape != (out, rank):
        raise WeightsError(
            f"{folder}: {module} has lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)}: expected {(rank, width)} and "
            f"{(out, rank)}"
        )
    parts = b.split([one.out_features for one in maps])
    for one, part in zip(maps, parts, strict=True):
        # The columns of a block of B: where several maps share a matrix, the others are 0.
        used = part.ne(0).any(0) if len(maps) > 1 and b.ne(0).any() else torch.ones(rank, dtype=torch.bool)
        if not used.any():
            continue
        assert isinstance(one, Linear)
        lora = LoraLinear.convert(
            one, rank=int(used.sum()), scale=settings.scale(module), dropout=settings.lora_dropout
        )  # fmt: skip
        for slot, x in (("lora_a", a[used]), ("lora_b", part[:, used])):
            setattr(lora, slot, nn.Parameter(x.to(one.weight.device, copy=True).contiguous()))

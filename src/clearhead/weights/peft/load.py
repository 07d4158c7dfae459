"""Adapters in the layout of the PEFT library, to and from models with LoRA (layers/lora.py).

adapter_config.json         the model that they belong to (base_model_name_or_path), ranks, scales
adapter_model.safetensors   base_model.model.MODULE.lora_A.weight and .lora_B.weight, by their names of the modules, and
                            whole tensors of modules that differ from the base model's, like a new head
clearhead.json              our Config, special ids, class names, and the fingerprint of the base model's weights, if we
                            wrote the folder

MODULE is translated by the table of the base model's family; GGUF files have the names of Hugging Face's Llama, and a
base model in our own layout has our names. Where one matrix of theirs holds several of ours (c_attn of GPT-2: queries,
keys and values), these share A, and B is split by its rows.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import config
from ... import tokens as text
from ...errors import Notice
from ...layers import Linear
from ...layers.lora import LoraLinear
from ...models import family, family_of
from ...tokens.chat_template import read_template
from .. import native
from ..bundle import Bundle
from ..fill import WeightsError, build_empty, on_meta_device, state
from ..huggingface import folder as huggingface
from ..huggingface.folder import check_class
from ..huggingface.tokenizers import FILES as TOKEN_FILES
from ..native import fingerprint
from ..table import Layout, Row, UsedTensors
from ..tensor_files import Tensors, open_file, open_tensors

# adapter_config.json of the PEFT library: which adapters are read, their ranks and scales.


CONFIG = "adapter_config.json"
# Settings of PEFT that change what an adapter computes and that we do not support. Name: the value that does not.
REFUSED: dict[str, Any] = {
    "use_dora": False, "use_qalora": False, "lora_bias": False, "alora_invocation_tokens": None,
    "trainable_token_indices": None, "layer_replication": None, "target_parameters": None, "use_bdlora": None,
    "megatron_config": None, "arrow_config": None, "monteclora_config": None, "velora_config": None,
    "kasa_config": None,
}  # fmt: skip
# Initialisations after which the base model's weights differ from those of its folder.
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# PEFT's words for tasks that no family here has: how the name of such a class of transformers ends.
TASKS = {"TOKEN_CLS": "ForTokenClassification", "QUESTION_ANS": "ForQuestionAnswering"}


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
    # an embedding in modules_to_save stays that of the output layer, too
    ensure_weight_tying: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)  # rank of modules whose names match
    alpha_pattern: dict[str, int | float] = field(default_factory=dict)

    def rank(self, module: str) -> int:
        """The rank of a module's update."""
        return _matching(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """The factor of a module's update."""
        alpha, rank = _matching(self.alpha_pattern, module, self.lora_alpha), self.rank(module)
        if self.use_rslora:
            return alpha / math.sqrt(rank)
        return alpha / rank


def _matching(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first pattern that matches the end of a module's name, as in PEFT."""
    for ending, value in pattern.items():
        # the whole name of a module, or its end behind a dot
        if re.match(rf"(.*\.)?({ending})$", module):
            return value
    return default


def read_settings(folder: Path) -> Settings:
    """The settings of a folder's adapters; raises for what we do not support."""
    table = config.load(folder / CONFIG)
    adapter_type, task = table.get("peft_type"), table.get("task_type")
    if adapter_type != "LORA":
        raise WeightsError(
            f"{table.place('peft_type')}peft_type is {adapter_type!r}: expected LORA, the only kind that we read"
        )
    # a setting that we do not read must not change what the adapter computes
    for name, harmless in REFUSED.items():
        if table.get(name, harmless) not in (harmless, None, [], {}):
            raise WeightsError(
                f"{table.place(name)}{name} is {table[name]!r}: such adapters are not supported"
            )
    # true, gaussian and so on only say how A and B began
    start = str(table.get("init_lora_weights"))
    if start.startswith(CHANGED_BASE):
        raise WeightsError(
            f"{table.place('init_lora_weights')}init_lora_weights is {start!r}, which changes the weights of the base "
            "model: expected adapters that PEFT has converted to plain LoRA (path_initial_model_for_weight_conversion)"
        )
    if isinstance(task, str):
        check_class(TASKS.get(task), f"{table.place('task_type')}task_type {task!r}")
    # written for models without a task of PEFT's own
    mapping = table.get("auto_mapping")
    named = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    check_class(named, f"{table.place('auto_mapping')}base_model_class {named!r}")
    known = {f.name for f in fields(Settings)}
    # null means PEFT's default
    given = table.without(*(name for name in table if name not in known or table[name] is None))
    settings = config.read(Settings, given)
    _check_patterns(settings, table)
    return settings


def _check_patterns(settings: Settings, table: config.Table) -> None:
    for name in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(settings, name):
            try:
                re.compile(pattern)
            except re.error as cause:
                raise WeightsError(
                    f"{table.place(name)}{name}: {pattern!r} is no regular expression ({cause})"
                ) from cause
    if min([settings.r, *settings.rank_pattern.values()]) < 1:
        raise WeightsError(
            f"{table.place('r')}r={settings.r}, rank_pattern={settings.rank_pattern}: expected 1 or more"
        )


OURS = "clearhead.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX, A, B, BASE = "base_model.model.", ".lora_A.weight", ".lora_B.weight", ".base_layer."
LORA = ("lora_a", "lora_b")  # our parameters of adapters
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSettings(native.FolderSettings):
    """The contents of clearhead.json."""

    # fingerprint of the base model's weights that the folder does not replace
    base: str | None = None


def is_peft(folder: Path) -> bool:
    """True if a folder holds adapters in PEFT's layout."""
    return (folder / CONFIG).is_file() and any((folder / name).is_file() for name in FILES)


def load(
    folder: Path, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
    """Load the base model of a folder with its adapters, which are kept apart; returns also the tensors used."""
    settings = read_settings(folder)
    path, name = _find_base(folder, settings)
    updates, changed = _read_tensors(folder)
    saved = None
    if (folder / OURS).is_file():
        saved = config.read(AdapterSettings, config.load(folder / OURS))
    # the names in the file are those of the library that has the base model
    layout = foreign_layout(name)
    # GGUF files have the names of Hugging Face, but cannot be filled with other tensors
    if layout is None or not is_huggingface(name):
        bundle, used = _on_ours(folder, path, name, layout, changed, device, saved)
    else:
        changed = _with_prefix(path, layout, changed)
        bundle, used = _on_huggingface(
            folder, path, layout, changed, set(updates), settings, device
        )
    # from the model as it is now, whose head may be new
    rows = table_rows(layout, bundle)
    if saved is not None:
        _check_base(folder, path, bundle, saved, replaced(rows, changed))
        bundle = replace(
            bundle,
            # what the model was trained with, where the folder says it
            labels=saved.labels or bundle.labels,
            special=saved.special or bundle.special,
            columns=saved.columns,
        )
    # an update belongs to one matrix of theirs, which may hold several maps of ours
    for module, (a, b) in updates.items():
        row = _row_of(module, rows, layout, folder)
        _attach(bundle.model, row, module, a, b, settings, folder)
    # last, because the fingerprint is one of weights in the dtype of their folder
    if dtype is not None:
        bundle.model.to(dtype)
    chat = read_template(folder) or bundle.chat
    return replace(bundle, folder=folder, base=str(path), chat=chat), used


def is_huggingface(name: str) -> bool:
    """True if a base model is a folder of Hugging Face, given the name of its layout."""
    return name.startswith("huggingface")


def foreign_layout(name: str) -> Layout | None:
    """The layout of Hugging Face that gives adapters their names; None for a base model whose adapters have ours."""
    if is_huggingface(name):
        return huggingface.get_layout(name.split()[1])
    return huggingface.get_layout("llama") if name == "gguf" else None


def table_rows(layout: Layout | None, bundle: Bundle) -> list[Row]:
    """The table between our names and those of the base model's layout."""
    if layout is not None:
        return list(layout.rows(bundle.config))
    return [Row((name,), (name,)) for name in own_tensors(bundle.model)]


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name, without its adapters."""
    return {name: x for name, x in state(model).items() if name.rpartition(".")[2] not in LORA}


def replaced(rows: Iterable[Row], names: Collection[str]) -> set[str]:
    """Our names of tensors, given theirs."""
    ours: set[str] = set()
    for row in rows:
        if set(row.theirs) & set(names):
            ours |= set(row.ours)
    return ours


def _find_base(folder: Path, settings: Settings) -> tuple[Path, str]:
    """The path and the layout of the base model."""
    from ..folder import find

    name = settings.base_model_name_or_path
    if not name:
        raise WeightsError(
            f"{folder / CONFIG}: there is no base_model_name_or_path: expected the adapters' base model"
        )
    # a path is relative to where we are, or else to the folder of the adapters
    is_beside = (folder / name).is_dir() and not Path(name).is_dir()
    try:
        path, layout = find(folder / name if is_beside else name)
    except WeightsError as cause:
        raise WeightsError(
            f"{folder / CONFIG}: the base model cannot be opened: {cause}"
        ) from cause
    check_whole(path, layout, f"{folder / CONFIG}: ")
    if layout == "transformers":  # its maps are transformers' own, to which ours cannot be added
        model_type = config.load(path / "config.json")["model_type"]
        raise WeightsError(
            f"{folder / CONFIG}: the base model {path} is a {model_type}, which transformers runs: adapters are read "
            f"only for the model types of this library, {', '.join(huggingface.LAYOUT_FILES)}; merge them with PEFT, "
            "and load the merged folder"
        )
    return path, layout


def check_whole(path: Path, layout: str, where: str = "") -> None:
    """Raise if a base model has adapters itself; `where` begins the message."""
    if layout == "peft":
        raise WeightsError(
            f"{where}the base model {path} has adapters itself: expected a whole model, such as "
            f"clearhead.save(clearhead.load({str(path)!r}), folder) writes"
        )


def _check_base(
    folder: Path, path: Path, bundle: Bundle, saved: AdapterSettings, without: set[str]
) -> None:
    """Raise if the base model has other options than the one that the adapters belong to; a Notice for other weights.

    `without` are our names of the tensors that the folder itself holds.
    """
    family_class, options_class = family(saved.model)
    other = "it is another model than the one that these adapters were trained on"
    if family_of(bundle.model) != saved.model:
        raise WeightsError(
            f"{folder}: the base model {path} is a {family_of(bundle.model)}, not a {saved.model}: {other}"
        )
    options = config.read(options_class, config.load(folder / OURS)["options"])
    for option in fields(options):
        ours, theirs = getattr(options, option.name), getattr(bundle.config, option.name)
        if ours != theirs and option.name not in family_class.may_differ:
            raise WeightsError(
                f"{folder}: the base model {path} has {option.name}={theirs!r}, not {ours!r}: {other}"
            )
    # what the folder replaces may differ
    kept = {name: x for name, x in own_tensors(bundle.model).items() if name not in without}
    if saved.base is None or any(x.is_meta for x in kept.values()):
        # another library wrote the folder, or no weights were read
        return
    if saved.base != fingerprint(kept):
        warnings.warn(
            f"{folder}: the weights of the base model {path} are not those that these adapters were trained on, or "
            "have another dtype",
            Notice,
            stacklevel=2,
        )


def _read_tensors(folder: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """A and B of each module, and the whole tensors of modules that differ from the base model's."""
    # safetensors before the pickled file
    path = next(folder / name for name in FILES if (folder / name).is_file())
    with open_file(path) as file:
        tensors = {name: file[name] for name in file.shapes}
    named = {}
    for name, x in tensors.items():
        if not name.startswith(PREFIX):
            raise WeightsError(
                f"{path}: the tensor {name}: expected names that begin with {PREFIX}"
            )
        if x.dtype not in FLOATS:
            raise WeightsError(
                f"{path}: the tensor {name} is {x.dtype}: expected float32, float16 or bfloat16"
            )
        # with bias="all" the file also has those of modules that it replaces
        if ".original_module." not in name:
            # without the wrappers that PEFT puts around a module
            plain = name.removeprefix(PREFIX).replace(BASE, ".").replace(".modules_to_save.", ".")
            named[plain] = x
    with_a = {name.removesuffix(A) for name in named if name.endswith(A)}
    with_b = {name.removesuffix(B) for name in named if name.endswith(B)}
    for module in with_a ^ with_b:
        raise WeightsError(
            f"{path}: the module {module} has only one of lora_A and lora_B: expected both"
        )
    for name in named:
        # such as lora_embedding_A and lora_magnitude_vector
        if ".lora_" in name and not name.endswith((A, B)):
            raise WeightsError(
                f"{path}: the tensor {name}: adapters of this kind are not supported"
            )
    if not with_a:
        raise WeightsError(
            f"{path}: there are no adapters in this file: expected lora_A and lora_B of some modules"
        )
    updates = {module: (named[module + A], named[module + B]) for module in sorted(with_a)}
    return updates, {name: x for name, x in named.items() if not name.endswith((A, B))}


def _with_prefix(path: Path, layout: Layout, changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors by their names in a model with a head: a class without one leaves the prefix out."""
    with open_tensors(path) as tensors:
        # under today's names, with the prefix that a file without a head lacks
        known = set(huggingface.today(layout, tensors).shapes)
    renamed = {}
    for name, x in changed.items():
        if layout.prefix + name in known:
            name = layout.prefix + name
        renamed[name] = x
    return renamed


def _on_huggingface(
    folder: Path,
    path: Path,
    layout: Layout,
    changed: Mapping[str, Tensor],
    adapted: set[str],
    settings: Settings,
    device: torch.device,
) -> tuple[Bundle, UsedTensors]:
    """A base model of Hugging Face, some of whose tensors are replaced."""
    shared: list[str] = []
    if not settings.ensure_weight_tying:
        # by default PEFT lets the copies of a shared table diverge
        shared = _shared(path, layout, changed, adapted, settings)
    words: Mapping[str, Any] = {}
    if shared:
        if layout.untied is None:
            # no model of this type has separate tables
            raise WeightsError(
                f"{folder}: its adapters change one of {', '.join(shared)}, which are one table in the base model: "
                "expected adapters of all of them, or none"
            )
        with open_tensors(path) as file:
            tensors = huggingface.today(layout, file)
            table = tensors[next(name for name in shared if name in tensors.shapes)]
        # the table is read as often as there are modules with it, and then some are replaced
        words, changed = layout.untied, {**dict.fromkeys(shared, table), **changed}
    bundle, used = huggingface.load(path, device, None, changed, words)
    # the training may have added tokens
    if layout.read_tokens is not None and any((folder / name).is_file() for name in TOKEN_FILES):
        theirs = huggingface.read_theirs(layout, config.load(path / "config.json"))
        bundle = replace(bundle, tokens=layout.read_tokens(folder, theirs) or bundle.tokens)
    return bundle, used


def _shared(
    path: Path, layout: Layout, changed: Mapping[str, Tensor], adapted: set[str], settings: Settings
) -> list[str]:
    """Their names of a table that several modules of the base model share, if adapters change some of them only.

    PEFT trains copies of the modules in modules_to_save, so that a table is not shared any more.
    """
    # endings of modules
    saved = tuple(settings.modules_to_save or ())
    if layout.merge is not None:
        return []  # a convolutional network, which shares nothing
    theirs = huggingface.read_theirs(layout, config.load(path / "config.json"))
    with open_tensors(path) as tensors, huggingface.naming(path / "config.json"):
        options = layout.to_ours(theirs, huggingface.today(layout, tensors).shapes)
    for row in layout.rows(options):
        # a row with several names is one table in the base model, such as embedding and output
        names = [name for name in row.theirs if name.endswith(".weight")]
        modules = {name: name.removesuffix(".weight") for name in names}
        if len(names) < 2:
            continue
        # PEFT trains a copy of each module in modules_to_save
        copies = [name for name in names if name in changed and saved]
        copies = [name for name in copies if modules[name].endswith(saved)]
        are_apart = copies or any(module in adapted for module in modules.values())
        # if every copy is there and all are equal, the model still has one table
        are_equal = len(copies) == len(names) and all(
            torch.equal(changed[names[0]], changed[name]) for name in names
        )
        if are_apart and not are_equal:
            return names
    return []


def _on_ours(
    folder: Path,
    path: Path,
    name: str,
    layout: Layout | None,
    changed: Mapping[str, Tensor],
    device: torch.device,
    saved: AdapterSettings | None,
) -> tuple[Bundle, UsedTensors]:
    """A base model that is no folder of Hugging Face, some of whose tensors are replaced: the folder has our Config."""
    from ..folder import read

    base, used = read(path, name, device, None)
    if saved is None:
        if changed:
            raise WeightsError(
                f"{folder}: {next(iter(changed))} cannot be placed in a {base.name} without {OURS}"
            )
        return base, used
    # the options only; weights are compared later, without those that the folder replaces
    _check_base(folder, path, base, replace(saved, base=None), set())
    family_class, options_class = family(saved.model)
    options = config.read(options_class, config.load(folder / OURS)["options"])
    if layout is not None:
        our_names = {}
        for row in layout.rows(options):
            # no tensor of a GGUF file joins several of ours
            our_names.update(dict.fromkeys(row.theirs, row.ours[-1]))
        changed = {our_names[theirs]: x for theirs, x in changed.items()}
    # the base model's tensors, some replaced by those of the folder
    known = state(base.model) | {name: x.to(base.dtype) for name, x in changed.items()}
    # the names and shapes that the model has with its own head
    with on_meta_device():
        wanted = state(family_class(options))
    # what the base model has and this one does not, such as a head, is left out
    kept = {name: known[name] for name in wanted if name in known}
    shapes = {name: tuple(x.shape) for name, x in kept.items()}
    file = folder / FILES[0]
    tensors = Tensors(file, shapes, dict.fromkeys(kept, file), kept.__getitem__)
    model = build_empty(family_class, options, shapes, folder / OURS, file)
    native.fill_model(model, tensors, device, None)
    tokens = text.load(folder) if text.saved(folder) is not None else base.tokens
    return replace(base, model=model.eval(), config=options, tokens=tokens), used


def _row_of(module: str, rows: Iterable[Row], layout: Layout | None, folder: Path) -> Row:
    """The row of a module's weight."""
    # a class without a head leaves it out
    prefix = "" if layout is None else layout.prefix
    for row in rows:
        if f"{module}.weight" in row.theirs or f"{prefix}{module}.weight" in row.theirs:
            return row
    raise WeightsError(
        f"{folder}: the base model has no linear map {module}, to which adapters belong"
    )


def _attach(
    model: nn.Module, row: Row, module: str, a: Tensor, b: Tensor, settings: Settings, folder: Path
) -> None:
    """Add the adapters of one module of theirs to the maps of ours that it holds."""
    homes = [name.rpartition(".")[0] for name in row.ours]
    maps = [model.get_submodule(home) for home in homes]
    for home, linear in zip(homes, maps, strict=True):
        if type(linear) is not Linear:
            raise WeightsError(
                f"{folder}: {module} is {home}, a {type(linear).__name__}: expected adapters of linear maps"
            )
    # A is (rank, width) for all maps together; B is (outputs of all maps, rank), split by its rows
    sizes = [linear.out_features for linear in maps if isinstance(linear, Linear)]
    width, out, rank = maps[0].in_features, sum(sizes), settings.rank(module)
    if a.shape != (rank, width) or b.shape != (out, rank):
        raise WeightsError(
            f"{folder}: {module} has lora_A {tuple(a.shape)} and lora_B {tuple(b.shape)}: expected {(rank, width)} and "
            f"{(out, rank)}"
        )
    for linear, block in zip(maps, b.split(sizes), strict=True):
        columns = torch.ones(rank, dtype=torch.bool)
        if len(maps) > 1 and b.ne(0).any():
            # B is made of blocks where several maps share a matrix: the columns of the other maps are 0
            columns = block.ne(0).any(0)
        # the update does not change this map
        if not columns.any():
            continue
        assert isinstance(linear, Linear)
        lora = LoraLinear.convert(
            linear,
            # the part of the shared rank that this map uses
            rank=int(columns.sum()),
            scale=settings.scale(module),
            dropout=settings.lora_dropout,
        )
        for slot, x in (("lora_a", a[columns]), ("lora_b", block[:, columns])):
            # each column of B belongs to a row of A
            setattr(lora, slot, nn.Parameter(x.to(linear.weight.device, copy=True).contiguous()))

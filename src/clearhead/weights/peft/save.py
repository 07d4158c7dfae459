"""Writing adapters as a folder of the PEFT library (see load.py).

Where one matrix of theirs holds several maps of ours, its A is the concatenation of theirs, and its B has theirs as
blocks on its diagonal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import __version__, config
from ... import tokens as text
from ...atomic_files import atomic_write
from ...layers.lora import LoraLinear, adapters
from ...models import family_of
from ...tokens.special import Special
from ..bundle import Bundle, check_tokens
from ..fill import WeightsError, state
from ..huggingface import folder as huggingface
from ..huggingface.tokenizers import remove_tokens, write_chat
from ..native import fingerprint
from ..table import JOINED_TRANSPOSED, TRANSPOSED, Layout, Row, export
from ..tensor_files import replace_tensors
from .load import (
    BASE,
    CONFIG,
    FILES,
    OURS,
    PREFIX,
    A,
    B,
    Settings,
    check_whole,
    foreign_layout,
    is_huggingface,
    own_tensors,
    table_rows,
)

# What a model with adapters has beside them that its base model does not have, in the names of PEFT's file.
#
# MODULE.bias                 a bias that differs
# MODULE.base_layer.bias      the same of a module with adapters
# MODULE.weight, .bias        all tensors of a module whose weight differs, which modules_to_save then names; and of
#                             every module that shares the weight, because PEFT makes a copy of each such module


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The tensors of an adapter file beside A and B: those in which the model differs from its base model."""

    tensors: dict[str, Tensor]  # by their names
    modules: list[str]  # modules_to_save: those whose tensors are all there
    base: str  # fingerprint of the tensors of the base model that are not replaced

    @property
    def bias(self) -> str:
        """PEFT's word for which biases are in the file."""
        if any(n.endswith(".bias") and not _inside(n, self.modules) for n in self.tensors):
            # biases by themselves, and not as part of a whole module
            return "all"
        return "none"


def find_changes(
    model: nn.Module,
    base: nn.Module,
    rows: Sequence[Row],
    adapted: set[str],
    prefix: str,
    expected: tuple[str, ...],
) -> Changes:
    """Compare a model with its base model.

    Args:
        model: The model with adapters.
        base: Its base model.
        rows: The table of its names and theirs.
        adapted: Their modules with adapters.
        prefix: What their names of tensors begin with in a class with a head, and not in this one.
        expected: Endings of modules that the file has in any case.
    """
    ours = own_tensors(model)
    # with every name of a tied parameter, because the trained model may have untied it
    theirs = state(base) | dict(base.named_parameters(remove_duplicate=False))
    changed = {name for name, x in ours.items() if not _is_equal(x, theirs.get(name))}
    names = [[name.removeprefix(prefix) for name in row.theirs] for row in rows]
    # By row: the name under which a changed tensor is in the file by itself; None: its whole module is there.
    alone = {}
    for i, row in enumerate(rows):
        if changed & set(row.ours):
            alone[i] = _alone(names[i][0], adapted)
    modules = _outermost(_whole_modules(names, alone, expected))
    # what goes into the file; and what stays the base model's, for the fingerprint
    tensors, kept = dict[str, Tensor](), dict[str, Tensor]()
    for i, row in enumerate(rows):
        (x,) = export(model, [row]).values()
        stored = [name for name in names[i] if _inside(name, modules)]
        own_name = alone.get(i)
        # changed, and in no module that is stored whole
        if not stored and own_name:
            stored = [own_name]
        # under each of its names, because PEFT makes a copy of every module with a shared weight
        tensors |= dict.fromkeys(stored, x)
        if not stored:
            # read from the base model again
            kept |= {name: theirs[name] for name in row.ours}
    return Changes(tensors=tensors, modules=modules, base=fingerprint(kept))


def _is_equal(x: Tensor, other: Tensor | None) -> bool:
    """Whether a tensor is that of the base model."""
    if other is None or other.shape != x.shape:
        return False
    # in the dtype of the trained model, which may differ from the folder's
    return torch.equal(other.to(x.dtype), x.detach().cpu())


def _whole_modules(
    names: Sequence[Sequence[str]], alone: Mapping[int, str | None], expected: tuple[str, ...]
) -> set[str]:
    """The modules all of whose tensors are in the file: those with a changed weight, and those that PEFT expects."""
    modules = set()
    for i, name_in_file in alone.items():
        if name_in_file is None:
            modules |= {name.rpartition(".")[0] for name in names[i]}
    # PEFT looks for these modules in the file even if they have not changed
    if expected:
        for name in (name for row_names in names for name in row_names):
            modules |= {module for module in _modules_of(name) if module.endswith(expected)}
    return modules


def _outermost(modules: set[str]) -> list[str]:
    """The modules that lie inside no other module of the set, sorted."""
    kept = []
    for module in sorted(modules):
        if not any(module.startswith(f"{other}.") for other in modules):
            kept.append(module)
    return kept


def _alone(name: str, adapted: set[str]) -> str | None:
    """The name under which a changed tensor is stored by itself; None if its whole module is stored."""
    module, _, leaf = name.rpartition(".")
    # PEFT wraps a module with adapters, and its own tensors are then below base_layer
    if module in adapted:
        return f"{module}{BASE}{leaf}"
    # with bias="all" biases are in the file by themselves
    if leaf == "bias":
        return name
    return None


def _modules_of(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _inside(name: str, modules: Collection[str]) -> bool:
    """Whether a tensor is in one of the modules."""
    return any(module in modules for module in _modules_of(name))


# PEFT's task by the end of the name of a class of transformers.
TASKS = {
    "ForSequenceClassification": "SEQ_CLS", "ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM",
    "MTModel": "SEQ_2_SEQ_LM", "ForConditionalGeneration": "SEQ_2_SEQ_LM", "ForMaskedLM": None,
    "ForImageClassification": None, "Model": "FEATURE_EXTRACTION",
}  # fmt: skip
# Endings of the names of modules that PEFT expects in the file of a task, whether they differ or not.
EXPECTED = {"SEQ_CLS": ("classifier", "score")}


@dataclass(frozen=True, slots=True)
class AdapterUpdate:
    """The adapters of one matrix of theirs."""

    a: Tensor
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def alpha(self) -> int | float:
        # PEFT computes scale = alpha / rank
        alpha = self.scale * self.rank
        is_whole = abs(alpha - round(alpha)) < 1e-9
        return round(alpha) if is_whole else alpha


def save(bundle: Bundle, folder: Path) -> Path:
    """Write the adapters of a model, and what else differs from its base model; returns the folder."""
    from ..folder import find, read

    if bundle.base is None or not adapters(bundle.model):
        raise WeightsError(
            "layout='peft' is for a model with adapters, and the base model that they belong to"
        )
    path, name = find(bundle.base)
    check_whole(path, name)
    # in the dtype of its folder, with which the trained model is compared
    base = read(path, name, torch.device("cpu"), None)[0]
    layout, task, prefix = _place(bundle, name, base.config)
    # checked before the base model is read, which takes time
    token_layout = _token_layout(name, layout)
    files = _token_files(bundle, token_layout)
    rows = table_rows(layout, bundle)
    updates = {}
    for row in rows:
        if any(isinstance(linear, LoraLinear) for linear in _maps(row, bundle.model)):
            updates[_module(row, prefix)] = _update(row, bundle.model)
    expected = EXPECTED.get(task or "", ())
    changes = find_changes(bundle.model, base.model, rows, set(updates), prefix, expected)
    settings = _settings(
        updates,
        {_module(row, prefix) for row in rows},
        base_model_name_or_path=bundle.base,
        task_type=task,
        lora_dropout=next(iter(adapters(bundle.model).values())).lora_dropout,
        bias=changes.bias,
        modules_to_save=changes.modules or None,
        # a GPT-2 stores its matrices as (inputs, outputs)
        fan_in_fan_out=any(row.conversion in (TRANSPOSED, JOINED_TRANSPOSED) for row in rows),
    )
    tensors = dict(changes.tensors)
    for module, update in updates.items():
        tensors |= {f"{module}{A}": update.a, f"{module}{B}": update.b}
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"{PREFIX}{name}": x.contiguous() for name, x in tensors.items()}
    replace_tensors(folder / FILES[0], named)
    _write_tokens(bundle, token_layout, files, folder)
    saved: dict[str, Any] = {
        "clearhead": __version__,
        "model": family_of(bundle.model),
        "options": config.dump(bundle.config),
        "special": config.dump(bundle.special),
        # tells a changed base model when the adapters are loaded
        "base": changes.base,
    }
    if bundle.labels:
        saved["labels"] = list(bundle.labels)
    if bundle.columns:
        saved["columns"] = dict(bundle.columns)
    config.write(saved, folder / OURS)
    config.write(asdict(settings), folder / CONFIG)  # last: without it the folder has no adapters
    return folder


def check(bundle: Bundle, base_config: Any) -> None:
    """Raise if a model could not be saved as adapters of its base model; its weights are not looked at.

    Args:
        bundle: The model before its training, perhaps on the meta device, with its tokenizer and its base model.
        base_config: The Config of the base model.
    """
    from ..folder import find

    assert bundle.base is not None
    path, name = find(bundle.base)
    check_whole(path, name)
    layout, _, _ = _place(bundle, name, base_config)
    _token_files(bundle, _token_layout(name, layout))


def _place(
    bundle: Bundle, layout_name: str, base_config: Any
) -> tuple[Layout | None, str | None, str]:
    """The layout of a base model, PEFT's word for the task, and the prefix that names of modules lack in its class.

    Raises if adapters cannot express how the model differs from its base model, or their library has no such model.
    """
    layout = foreign_layout(layout_name)
    # options that a head of another task has
    free = set(type(bundle.model).may_differ)  # type: ignore[attr-defined]
    if layout is not None and layout.untied is not None and getattr(base_config, "tied", False):
        free.add("tied")  # a table of its own is one of modules_to_save
    for option in fields(bundle.config):
        ours, theirs = getattr(bundle.config, option.name), getattr(base_config, option.name, None)
        if ours != theirs and option.name not in free:
            raise WeightsError(
                f"{option.name}={ours!r}, and the base model has {theirs!r}: adapters alone cannot hold this; expected "
                "adapters that are merged into the weights"
            )
    if layout is None:
        return None, None, ""
    try:
        theirs = layout.to_theirs(bundle.config, bundle.special or Special())
    except WeightsError as cause:
        raise WeightsError(
            f"{cause}. Adapters apart belong to a model that transformers has: expected other options of the model, or "
            "adapters that are merged into the weights"
        ) from cause
    (class_name,) = theirs["architectures"]
    # in the order of the dictionary: the ending Model also fits LMHeadModel and MTModel
    end = next(end for end in (*TASKS, "") if class_name.endswith(end))
    return layout, TASKS.get(end), layout.prefix if end == "Model" else ""


def _module(row: Row, prefix: str) -> str:
    """The module of theirs that a row belongs to."""
    return row.theirs[0].rpartition(".")[0].removeprefix(prefix)


def _maps(row: Row, model: nn.Module) -> list[nn.Module]:
    """The modules of ours whose weights a row has; none for rows of other tensors."""
    # a row of biases or of a norm has no maps
    homes = [name.rpartition(".") for name in row.ours]
    return [model.get_submodule(home) for home, _, leaf in homes if leaf == "weight"]


def _update(row: Row, model: nn.Module) -> AdapterUpdate:
    maps: list[Any] = _maps(row, model)
    adapted = [linear for linear in maps if isinstance(linear, LoraLinear)]
    scales = {linear.lora_scale for linear in adapted}
    # PEFT has one scale per matrix
    if len(scales) > 1:
        raise WeightsError(
            f"{', '.join(row.ours)}: one matrix holds them, and their scales differ: {sorted(scales)}"
        )
    # a map without adapters has no columns, and rows of zeros
    ups = []
    for linear in maps:
        if isinstance(linear, LoraLinear):
            ups.append(linear.lora_b.detach())
        else:
            ups.append(linear.weight.new_zeros(linear.out_features, 0))
    # A (sum of ranks, width) is stacked, so that B is (sum of outputs, sum of ranks) in blocks
    b = ups[0] if len(ups) == 1 else torch.block_diag(*ups)
    return AdapterUpdate(torch.cat([linear.lora_a.detach() for linear in adapted]), b, scales.pop())


def _settings(
    updates: Mapping[str, AdapterUpdate], known: Collection[str], **options: Any
) -> Settings:
    """The settings of these adapters: the most frequent rank and alpha, and patterns for the others."""
    sizes = Counter((update.rank, update.alpha) for update in updates.values())
    # the file has one of each, and patterns for the modules with another
    (rank, alpha), _ = sizes.most_common(1)[0]
    ranks = {module: update.rank for module, update in updates.items()}
    alphas = {module: update.alpha for module, update in updates.items()}
    return Settings(
        r=rank,
        lora_alpha=alpha,
        # PEFT chooses modules by the ends of their names
        target_modules=_endings(updates, known),
        **options,
        # only the modules that differ from r and lora_alpha
        rank_pattern=_patterns(ranks, rank, known),
        alpha_pattern=_patterns(alphas, alpha, known),
    )


def _patterns(values: Mapping[str, Any], usual: Any, known: Collection[str]) -> dict[str, Any]:
    """The endings of the modules whose value is not the usual one, each with its value."""
    patterns: dict[str, Any] = {}
    for value in sorted(set(values.values()) - {usual}):
        modules = [module for module in values if values[module] == value]
        patterns |= dict.fromkeys(_endings(modules, known), value)
    return patterns


def _endings(chosen: Collection[str], known: Collection[str]) -> list[str]:
    """For each chosen name, its shortest ending (from a dot on) that no other known name has."""
    # PEFT matches the ends of module names
    others, endings = set(known) - set(chosen), set[str]()
    for name in chosen:
        parts = name.split(".")
        # from the last part of the name to all of it, until no other module ends so
        for i in reversed(range(len(parts))):
            ending = ".".join(parts[i:])
            if not any(f".{other}".endswith(f".{ending}") for other in others):
                endings.add(ending)
                break
    return sorted(endings)


def _token_layout(name: str, layout: Layout | None) -> Layout | None:
    """The layout of the tokenizer's files; None: our own."""
    return layout if is_huggingface(name) else None


def _token_files(bundle: Bundle, layout: Layout | None) -> dict[str, bytes]:
    """The files of the tokenizer in the format of the base model; raises if that cannot express it."""
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    if layout is None:
        # our own files can hold every tokenizer
        return {}
    return huggingface.token_files(bundle, layout, bundle.special or Special())


def _write_tokens(
    bundle: Bundle, layout: Layout | None, files: Mapping[str, bytes], folder: Path
) -> None:
    """Write the tokenizer and the chat template, in place of those of another model."""
    # those of the model that was in this folder before
    text.remove(folder)
    remove_tokens(folder)
    if layout is None and bundle.tokens is not None:
        # the base model's folder is in our own layout, and so are these files
        text.save(bundle.tokens, folder)
    for name, content in files.items():
        atomic_write(folder / name, content)
    write_chat(bundle.chat, folder)

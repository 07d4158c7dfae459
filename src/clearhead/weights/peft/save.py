"""Writing adapters as a folder of the PEFT library (see peft.py).

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
    """The tensors of a file of adapters that are no adapters."""

    tensors: dict[str, Tensor]  # by their names
    modules: list[str]  # modules_to_save: those whose tensors are all there
    base: str  # fingerprint of the tensors of the base model that are not replaced

    @property
    def bias(self) -> str:
        """PEFT's word for which biases are in the file."""
        if any(n.endswith(".bias") and not _inside(n, self.modules) for n in self.tensors):
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
    ours, theirs = (
        own_tensors(model),
        state(base) | dict(base.named_parameters(remove_duplicate=False)),
    )
    changed = {
        name
        for name, x in ours.items()
        if name not in theirs
        or theirs[name].shape != x.shape
        or not torch.equal(theirs[name].to(x.dtype), x.detach().cpu())
    }
    names = [[name.removeprefix(prefix) for name in row.theirs] for row in rows]
    alone = {
        i: _alone(names[i][0], adapted) for i, row in enumerate(rows) if changed & set(row.ours)
    }
    tops = {name.rpartition(".")[0] for i, own in alone.items() if own is None for name in names[i]}
    tops |= {
        top
        for each in names
        for name in each
        for top in _tops(name)
        if expected and top.endswith(expected)
    }
    modules = sorted(top for top in tops if not any(top.startswith(f"{other}.") for other in tops))
    tensors, kept = dict[str, Tensor](), dict[str, Tensor]()
    for i, row in enumerate(rows):
        (x,) = export(model, [row]).values()
        found = [name for name in names[i] if _inside(name, modules)] or [
            name for name in [alone.get(i)] if name
        ]
        tensors |= dict.fromkeys(found, x)
        kept |= {} if found else {name: theirs[name] for name in row.ours}
    return Changes(tensors=tensors, modules=modules, base=fingerprint(kept))


def _alone(name: str, adapted: set[str]) -> str | None:
    """The name of a changed tensor that is in the file by itself; None: its module is there."""
    module, _, leaf = name.rpartition(".")
    if module in adapted:
        return f"{module}{BASE}{leaf}"
    if leaf == "bias":
        return name
    return None


def _tops(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _inside(name: str, modules: Collection[str]) -> bool:
    """Whether a tensor is in one of the modules."""
    return any(top in modules for top in _tops(name))


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
        alpha = self.scale * self.rank
        if abs(alpha - round(alpha)) < 1e-9:
            return round(alpha)
        return alpha


def save(bundle: Bundle, folder: Path) -> Path:
    """Write the adapters of a model, and what else differs from its base model; returns the folder."""
    from ..folder import find, read

    if bundle.base is None or not adapters(bundle.model):
        raise WeightsError(
            "layout='peft' is for a model with adapters, and the base model that they belong to"
        )
    path, name = find(bundle.base)
    check_whole(path, name)
    base = read(path, name, torch.device("cpu"), None)[0]
    layout, task, prefix = _place(bundle, name, base.config)
    token_layout = _token_layout(name, layout)
    files, rows = _token_files(bundle, token_layout), table_rows(layout, bundle)
    updates = {
        _module(row, prefix): _update(row, bundle.model)
        for row in rows
        if any(isinstance(one, LoraLinear) for one in _maps(row, bundle.model))
    }
    beside = find_changes(
        bundle.model, base.model, rows, set(updates), prefix, EXPECTED.get(task or "", ())
    )
    settings = _settings(
        updates,
        {_module(row, prefix) for row in rows},
        base_model_name_or_path=bundle.base,
        task_type=task,
        lora_dropout=next(iter(adapters(bundle.model).values())).lora_dropout,
        bias=beside.bias,
        modules_to_save=beside.modules or None,
        fan_in_fan_out=any(row.conversion in (TRANSPOSED, JOINED_TRANSPOSED) for row in rows),
    )
    tensors = {f"{module}{A}": update.a for module, update in updates.items()}
    tensors |= {f"{module}{B}": update.b for module, update in updates.items()} | beside.tensors
    folder.mkdir(parents=True, exist_ok=True)
    replace_tensors(
        folder / FILES[0], {f"{PREFIX}{name}": x.contiguous() for name, x in tensors.items()}
    )
    _write_tokens(bundle, token_layout, files, folder)
    saved = {
        "clearhead": __version__,
        "model": family_of(bundle.model),
        "options": config.dump(bundle.config),
    }
    saved |= {"special": config.dump(bundle.special)} | (
        {"labels": list(bundle.labels)} if bundle.labels else {}
    )
    saved |= {"columns": dict(bundle.columns)} if bundle.columns else {}
    config.write({**saved, "base": beside.base}, folder / OURS)
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
    layout, free = foreign_layout(layout_name), set(type(bundle.model).may_differ)  # type: ignore[attr-defined]
    if layout is not None and layout.untied is not None and getattr(base_config, "tied", False):
        free.add("tied")  # a table of its own is one of modules_to_save
    for f in fields(bundle.config):
        mine, theirs = getattr(bundle.config, f.name), getattr(base_config, f.name, None)
        if mine != theirs and f.name not in free:
            raise WeightsError(
                f"{f.name}={mine!r}, and the base model has {theirs!r}: adapters alone cannot hold this; expected "
                "adapters that are merged into the weights"
            )
    if layout is None:
        return None, None, ""
    try:
        (kind,) = layout.to_theirs(bundle.config, bundle.special or Special())["architectures"]
    except WeightsError as cause:
        raise WeightsError(
            f"{cause}. Adapters apart belong to a model that transformers has: expected other options of the model, or "
            "adapters that are merged into the weights"
        ) from cause
    end = next(end for end in (*TASKS, "") if kind.endswith(end))
    return layout, TASKS.get(end), layout.prefix if end == "Model" else ""


def _module(row: Row, prefix: str) -> str:
    """The module of theirs that a row belongs to."""
    return row.theirs[0].rpartition(".")[0].removeprefix(prefix)


def _maps(row: Row, model: nn.Module) -> list[nn.Module]:
    """The modules of ours whose weights a row has; none for rows of other tensors."""
    homes = [name.rpartition(".") for name in row.ours]
    return [model.get_submodule(home) for home, _, leaf in homes if leaf == "weight"]


def _update(row: Row, model: nn.Module) -> AdapterUpdate:
    maps: list[Any] = _maps(row, model)
    adapted = [one for one in maps if isinstance(one, LoraLinear)]
    scales = {one.lora_scale for one in adapted}
    if len(scales) > 1:
        raise WeightsError(
            f"{', '.join(row.ours)}: one matrix holds them, and their scales differ: {sorted(scales)}"
        )
    ups = [
        one.lora_b.detach() if one in adapted else one.weight.new_zeros(one.out_features, 0)
        for one in maps
    ]
    b = ups[0] if len(ups) == 1 else torch.block_diag(*ups)
    return AdapterUpdate(torch.cat([one.lora_a.detach() for one in adapted]), b, scales.pop())


def _settings(
    updates: Mapping[str, AdapterUpdate], known: Collection[str], **options: Any
) -> Settings:
    """The settings of these adapters: the most frequent rank and alpha, and patterns for the others."""
    (rank, alpha), _ = Counter((one.rank, one.alpha) for one in updates.values()).most_common(1)[0]
    ranks = {one.rank for one in updates.values()} - {rank}
    alphas = {one.alpha for one in updates.values()} - {alpha}
    return Settings(
        r=rank,
        lora_alpha=alpha,
        target_modules=_endings(updates, known),
        **options,
        rank_pattern={
            end: r
            for r in sorted(ranks)
            for end in _endings([m for m, one in updates.items() if one.rank == r], known)
        },
        alpha_pattern={
            end: a
            for a in sorted(alphas)
            for end in _endings([m for m, one in updates.items() if one.alpha == a], known)
        },
    )


def _endings(chosen: Collection[str], known: Collection[str]) -> list[str]:
    """The shortest endings of names, at dots, that all chosen names have and no other known one."""
    others, found = set(known) - set(chosen), set[str]()
    for name in chosen:
        parts = name.split(".")
        endings = (".".join(parts[i:]) for i in reversed(range(len(parts))))
        found.add(
            next(
                end
                for end in endings
                if not any(f".{other}".endswith(f".{end}") for other in others)
            )
        )
    return sorted(found)


def _token_layout(name: str, layout: Layout | None) -> Layout | None:
    """The layout of the tokenizer's files; None: our own."""
    return layout if is_huggingface(name) else None


def _token_files(bundle: Bundle, layout: Layout | None) -> dict[str, bytes]:
    """The files of the tokenizer in the format of the base model; raises if that cannot express it."""
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    if layout is None:
        return {}
    return huggingface.token_files(bundle, layout, bundle.special or Special())


def _write_tokens(
    bundle: Bundle, layout: Layout | None, files: Mapping[str, bytes], folder: Path
) -> None:
    """Write the tokenizer and the chat template, in place of those of another model."""
    text.remove(folder)
    remove_tokens(folder)
    if layout is None and bundle.tokens is not None:
        text.save(bundle.tokens, folder)
    for name, content in files.items():
        atomic_write(folder / name, content)
    write_chat(bundle.chat, folder)

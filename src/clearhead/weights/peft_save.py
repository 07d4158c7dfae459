"""Writing adapters as a folder of the PEFT library (see peft.py).

Where one matrix of theirs holds several maps of ours, its A is the concatenation of theirs, and its B has theirs as
blocks on its diagonal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__, config
from .. import tokens as text
from ..atomic_files import atomic_write
from ..layers.lora import LoraLinear, adapters
from ..models import family_of
from ..tokens.special import Special
from . import huggingface
from .bundle import Bundle
from .fill import WeightsError, state
from .peft import CONFIG, FILES, OURS, PREFIX, A, B, Settings, foreign_layout, table_rows
from .table import JOINED_TRANSPOSED, TRANSPOSED, Layout, Row, export
from .tensors import replace_tensors
from .tokenizer_files import remove_tokens, write_chat

# PEFT's task by the end of the name of a class of transformers.
TASKS = {
    "ForSequenceClassification": "SEQ_CLS", "ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM",
    "MTModel": "SEQ_2_SEQ_LM", "ForMaskedLM": None, "ForImageClassification": None, "Model": "FEATURE_EXTRACTION",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Update:
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
        return round(alpha) if abs(alpha - round(alpha)) < 1e-9 else alpha


def save(bundle: Bundle, folder: Path) -> Path:
    """Write the adapters of a model, and what else differs from its base model; returns the folder."""
    from .folder import find, read  # which imports this file

    if bundle.base is None or not adapters(bundle.model):
        raise WeightsError("layout='peft' is for a model with adapters, and the base model that they belong to")
    path, name = find(bundle.base)
    base, layout = read(path, name, torch.device("cpu"), None)[0], foreign_layout(name)
    _check_options(bundle, base)
    special, rows = bundle.special or Special(), table_rows(layout, bundle)
    task, prefix = _task(layout, bundle, special)
    updates = {
        _module(row, prefix): _update(row, bundle.model)
        for row in rows if any(isinstance(one, LoraLinear) for one in _maps(row, bundle.model))
    }  # fmt: skip
    changed = _changed(bundle.model, base.model)
    whole = export(bundle.model, [row for row in rows if changed & set(row.ours)])
    whole = {name.removeprefix(prefix): x for name, x in whole.items()}
    settings = _settings(
        updates, {_module(row, prefix) for row in rows}, base_model_name_or_path=bundle.base, task_type=task,
        lora_dropout=next(iter(adapters(bundle.model).values())).lora_dropout,
        modules_to_save=sorted({name.rpartition(".")[0] for name in whole}) or None,
        fan_in_fan_out=any(row.conversion in (TRANSPOSED, JOINED_TRANSPOSED) for row in rows),
    )  # fmt: skip
    tensors = {f"{PREFIX}{module}{A}": update.a for module, update in updates.items()}
    tensors |= {f"{PREFIX}{module}{B}": update.b for module, update in updates.items()}
    tensors |= {f"{PREFIX}{name}": x for name, x in whole.items()}
    folder.mkdir(parents=True, exist_ok=True)
    replace_tensors(folder / FILES[0], {name: x.contiguous() for name, x in tensors.items()})
    _write_tokens(bundle, layout, special, folder)
    saved = {"clearhead": __version__, "model": family_of(bundle.model), "options": config.dump(bundle.config)}
    saved |= {"special": config.dump(special)} | ({"labels": list(bundle.labels)} if bundle.labels else {})
    saved |= {"columns": dict(bundle.columns)} if bundle.columns else {}
    config.write(saved, folder / OURS)
    config.write(asdict(settings), folder / CONFIG)  # last: without it the folder has no adapters
    return folder


def _check_options(bundle: Bundle, base: Bundle) -> None:
    """Raise if an option of the model differs from its base model's, and adapters cannot express that."""
    free = type(bundle.model).may_differ  # type: ignore[attr-defined]
    for f in fields(bundle.config):
        mine, theirs = getattr(bundle.config, f.name), getattr(base.config, f.name, None)
        if mine != theirs and f.name not in free:
            raise WeightsError(
                f"{f.name}={mine!r}, and the base model has {theirs!r}: adapters alone cannot hold this; expected "
                "adapters that are merged into the weights"
            )


def _task(layout: Layout | None, bundle: Bundle, special: Special) -> tuple[str | None, str]:
    """PEFT's word for the task of a model, and the prefix that its class leaves out of the names of modules."""
    if layout is None:
        return None, ""
    (kind,) = layout.to_theirs(bundle.config, special)["architectures"]
    end = next(end for end in (*TASKS, "") if kind.endswith(end))
    return TASKS.get(end), layout.prefix if end == "Model" else ""


def _module(row: Row, prefix: str) -> str:
    """The module of theirs that a row belongs to."""
    return row.theirs[0].rpartition(".")[0].removeprefix(prefix)


def _maps(row: Row, model: nn.Module) -> list[nn.Module]:
    """The modules of ours whose weights a row has; none for rows of other tensors."""
    homes = [name.rpartition(".") for name in row.ours]
    return [model.get_submodule(home) for home, _, leaf in homes if leaf == "weight"]


def _update(row: Row, model: nn.Module) -> Update:
    maps: list[Any] = _maps(row, model)
    adapted = [one for one in maps if isinstance(one, LoraLinear)]
    scales = {one.lora_scale for one in adapted}
    if len(scales) > 1:
        raise WeightsError(f"{', '.join(row.ours)}: one matrix holds them, and their scales differ: {sorted(scales)}")
    ups = [one.lora_b.detach() if one in adapted else one.weight.new_zeros(one.out_features, 0) for one in maps]
    b = ups[0] if len(ups) == 1 else torch.block_diag(*ups)
    return Update(torch.cat([one.lora_a.detach() for one in adapted]), b, scales.pop())


def _changed(model: nn.Module, base: nn.Module) -> set[str]:
    """The names of the tensors, adapters left out, that differ from the base model's."""
    theirs = state(base)
    ours = {n: x for n, x in state(model).items() if n.rpartition(".")[2] not in ("lora_a", "lora_b")}
    return {
        n for n, x in ours.items()
        if n not in theirs or theirs[n].shape != x.shape or not torch.equal(theirs[n].to(x.dtype), x.cpu())
    }  # fmt: skip


def _settings(updates: Mapping[str, Update], known: Collection[str], **options: Any) -> Settings:
    """The settings of these adapters: the most frequent rank and alpha, and patterns for the others."""
    (rank, alpha), _ = Counter((one.rank, one.alpha) for one in updates.values()).most_common(1)[0]
    ranks = {one.rank for one in updates.values()} - {rank}
    alphas = {one.alpha for one in updates.values()} - {alpha}
    return Settings(
        r=rank, lora_alpha=alpha, target_modules=_endings(updates, known), **options,
        rank_pattern={
            end: r for r in sorted(ranks) for end in _endings([m for m, one in updates.items() if one.rank == r], known)
        },
        alpha_pattern={
            end: a for a in sorted(alphas)
            for end in _endings([m for m, one in updates.items() if one.alpha == a], known)
        },
    )  # fmt: skip


def _endings(chosen: Collection[str], known: Collection[str]) -> list[str]:
    """The shortest endings of names, at dots, that all chosen names have and no other known one."""
    others, found = set(known) - set(chosen), set[str]()
    for name in chosen:
        parts = name.split(".")
        endings = (".".join(parts[i:]) for i in reversed(range(len(parts))))
        found.add(next(end for end in endings if not any(f".{other}".endswith(f".{end}") for other in others)))
    return sorted(found)


def _write_tokens(bundle: Bundle, layout: Layout | None, special: Special, folder: Path) -> None:
    """Write the tokenizer and the chat template, in the format of the base model."""
    files = {} if layout is None else huggingface.token_files(bundle, layout, special)
    text.remove(folder)
    remove_tokens(folder)  # of the model that was here before
    if layout is None and bundle.tokens is not None:
        text.save(bundle.tokens, folder)
    for name, content in files.items():
        atomic_write(folder / name, content)
    write_chat(bundle.chat, folder)

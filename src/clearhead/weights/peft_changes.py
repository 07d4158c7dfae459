"""What a model with adapters has beside them that its base model does not have, in the names of PEFT's file.

MODULE.bias                 a bias that differs
MODULE.base_layer.bias      the same of a module with adapters
MODULE.weight, .bias        all tensors of a module whose weight differs, which modules_to_save then names; and of every
                            module that shares the weight, because PEFT makes a copy of each such module
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .fill import state
from .fingerprint import fingerprint
from .peft import BASE, own_tensors
from .table import Row, export


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """The tensors of a file of adapters that are no adapters."""

    tensors: dict[str, Tensor]  # by their names
    modules: list[str]  # modules_to_save: those whose tensors are all there
    base: str  # fingerprint of the tensors of the base model that are not replaced

    @property
    def bias(self) -> str:
        """PEFT's word for which biases are in the file."""
        return "all" if any(n.endswith(".bias") and not _inside(n, self.modules) for n in self.tensors) else "none"


def find_changes(
    model: nn.Module, base: nn.Module, rows: Sequence[Row], adapted: set[str], prefix: str, expected: tuple[str, ...]
) -> Changes:  # fmt: skip
    """Compare a model with its base model.

    Args:
        model: The model with adapters.
        base: Its base model.
        rows: The table of its names and theirs.
        adapted: Their modules with adapters.
        prefix: What their names of tensors begin with in a class with a head, and not in this one.
        expected: Endings of modules that the file has in any case.
    """
    ours, theirs = own_tensors(model), state(base) | dict(base.named_parameters(remove_duplicate=False))
    changed = {
        name for name, x in ours.items()
        if name not in theirs or theirs[name].shape != x.shape
        or not torch.equal(theirs[name].to(x.dtype), x.detach().cpu())
    }  # fmt: skip
    names = [[name.removeprefix(prefix) for name in row.theirs] for row in rows]
    alone = {i: _alone(names[i][0], adapted) for i, row in enumerate(rows) if changed & set(row.ours)}
    tops = {name.rpartition(".")[0] for i, own in alone.items() if own is None for name in names[i]}
    tops |= {top for each in names for name in each for top in _tops(name) if expected and top.endswith(expected)}
    modules = sorted(top for top in tops if not any(top.startswith(f"{other}.") for other in tops))
    tensors, kept = dict[str, Tensor](), dict[str, Tensor]()
    for i, row in enumerate(rows):
        (x,) = export(model, [row]).values()
        found = [name for name in names[i] if _inside(name, modules)] or [name for name in [alone.get(i)] if name]
        tensors |= dict.fromkeys(found, x)
        kept |= {} if found else {name: theirs[name] for name in row.ours}
    return Changes(tensors=tensors, modules=modules, base=fingerprint(kept))


def _alone(name: str, adapted: set[str]) -> str | None:
    """The name of a changed tensor that is in the file by itself; None: its module is there."""
    module, _, leaf = name.rpartition(".")
    return f"{module}{BASE}{leaf}" if module in adapted else name if leaf == "bias" else None


def _tops(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _inside(name: str, modules: Collection[str]) -> bool:
    """Whether a tensor is in one of the modules."""
    return any(top in modules for top in _tops(name))

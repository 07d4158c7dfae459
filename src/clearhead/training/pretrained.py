"""Initialisation from pretrained weights, of a whole model or of a part of one; the head may be new."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import nearest
from ..layers import Patches, resize
from ..models import Model
from ..weights import WeightsError, load
from .recipe import Pretrained


def in_head(model: nn.Module, name: str) -> bool:
    """True if a parameter belongs to the model's head."""
    parts = model.head_parts if isinstance(model, Model) else ("head",)
    return name.split(".")[0] in parts


@torch.no_grad()
def fill_pretrained(model: nn.Module, start: Pretrained) -> list[str]:
    """Copy the weights of a folder into a model, or a part of it; returns the names of weights that were not used.

    A head that the folder lacks, or has in another shape, keeps its random weights. Position embeddings of patches are
    interpolated to another image size. All other weights must fit.
    """
    source, target = load(start.folder, device="cpu", dtype="float32").model, _part(model, start)
    theirs = {**dict(source.named_parameters()), **_buffers(source)}
    ours = {**dict(target.named_parameters()), **_buffers(target)}
    for name, tensor in ours.items():
        fitted = _fitted(name, theirs.get(name), tensor, source, target)
        if fitted is not None:
            tensor.copy_(fitted)
        elif not in_head(target, name):
            problem = f"has the shape {tuple(theirs[name].shape)}" if name in theirs else "is missing"
            raise WeightsError(f"pretrained={start.folder!r}: {name} {problem}, expected {tuple(tensor.shape)}")
    unused = [name for name in theirs if name not in ours]
    for name in unused:
        if start.into is None and not in_head(source, name):
            raise WeightsError(f"pretrained={start.folder!r}: {name} has no place in the model of this recipe")
    changed = [name for name in theirs if name in ours and theirs[name].shape != ours[name].shape]
    return [f"{start.folder}: {name}" for name in (*unused, *(n for n in changed if in_head(target, n)))]


def _part(model: nn.Module, start: Pretrained) -> nn.Module:
    if start.into is None:
        return model
    parts = dict(model.named_modules())
    if start.into not in parts:
        raise WeightsError(
            f"pretrained: into = {start.into!r}: this model has no such part{nearest(start.into, parts)}"
        )  # fmt: skip
    return parts[start.into]


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    kept = model.state_dict(keep_vars=True).keys()
    return {name: x for name, x in model.named_buffers() if name in kept}


def _fitted(name: str, weight: Tensor | None, slot: Tensor, source: nn.Module, target: nn.Module) -> Tensor | None:
    """A weight in the shape of its slot in the model; None if it does not fit."""
    if weight is None or weight.shape == slot.shape:
        return weight
    home, _, leaf = name.rpartition(".")
    old, new = (dict(m.named_modules()).get(home) for m in (source, target))
    if leaf == "places" and isinstance(old, Patches) and isinstance(new, Patches):
        return resize(weight, old.grid, new.grid)
    return None


def describe(left_out: list[str]) -> str:
    """A sentence about pretrained weights that were not used; empty if all were."""
    if not left_out:
        return ""
    few = ", ".join(left_out[:5]) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")
    return f"pretrained weights that are not used: {few}"

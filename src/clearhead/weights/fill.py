"""Numbers into a model, strictly: every tensor of a file is used, every parameter filled, every shape equal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InputError, nearest

Slot = tuple[Tensor, list[tuple[nn.Module, str]]]  # a tensor of a model and all the places that hold it


class WeightsError(InputError):
    """A folder of weights is not what it should be; the sentence names the file."""


def state(model: nn.Module) -> dict[str, Tensor]:
    """What a model is made of: parameters, each once, and the buffers that belong to its state."""
    kept = model.state_dict(keep_vars=True).keys()
    return dict(model.named_parameters()) | {name: x for name, x in model.named_buffers() if name in kept}


def slots(model: nn.Module) -> dict[str, Slot]:
    """Every tensor of a model's state with all the places that hold it: a tied one has several."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for leaf, x in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            places.setdefault(id(x), []).append((module, leaf))
    return {name: (x, places[id(x)]) for name, x in state(model).items()}


def put(slot: Slot, tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> None:
    """Put a tensor where a model without numbers wants one: a copy, for a file may change or go."""
    old, holders = slot
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    new = tensor.detach().to(device, kind, copy=True).contiguous()
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    for module, leaf in holders:
        setattr(module, leaf, new)


def check_type(name: str, tensor: Tensor, slot: Tensor, path: Path) -> None:
    """Raise if there are whole numbers for fractions, or the other way round."""
    if tensor.is_floating_point() != slot.is_floating_point():
        raise WeightsError(f"{path}: the tensor {name} is {tensor.dtype}, expected one like {slot.dtype}")


def compare(given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise unless a file has just the tensors of a model."""
    extra = [name for name in given if name not in expected]
    for name, shape in expected.items():
        if name not in given:
            raise WeightsError(f"{path}: the tensor {name} {shape} is missing{nearest(name, extra)}")
        if given[name] != shape:
            raise WeightsError(f"{path}: the tensor {name} has the shape {given[name]}, expected {shape}")
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise WeightsError(f"{path}: the tensor {extra[0]} {given[extra[0]]}{more} has no place in this model")

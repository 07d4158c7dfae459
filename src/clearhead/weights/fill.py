"""Strict loading: every tensor of a file is used, every parameter is filled, every shape is equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import InputError, nearest

M = TypeVar("M", bound=nn.Module)
# a tensor of a model, and every (module, attribute) that holds it
Slot = tuple[Tensor, list[tuple[nn.Module, str]]]
Shapes = Mapping[str, tuple[int, ...]]  # tensor name: shape

# Options that count blocks or layers, each with a tensor of its own, and options that each need as many weights.
DEPTHS, SIZES = ("depth", "decoder_depth"), ("vocab", "width", "hidden", "heads", "head")


class WeightsError(InputError):
    """The files of a model are missing, damaged, or do not fit the model; the message names the file."""


def build_empty(family_class: type[M], options: Any, shapes: Shapes, where: Path, file: Path) -> M:
    """Build a model without allocating its weights, on the meta device: `fill` or `set_tensor` gives them.

    Sizes that the file cannot hold are refused first, because building a billion blocks takes minutes even on the meta
    device, and constants such as rotary angles are always allocated.

    Args:
        family_class: The class of the model.
        options: Its Config.
        shapes: The shapes of the tensors in `file`.
        where: The file with the config, for error messages.
        file: The file with the weights, for error messages.
    """
    # before anything is built
    _check_sizes(options, shapes, where, file)
    try:
        with on_meta_device():
            return family_class(options)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as cause:  # sizes beyond 64 bits
        lines = str(cause).splitlines() or [type(cause).__name__]
        raise WeightsError(
            f"{where}: a model of these sizes cannot be built ({lines[0]})"
        ) from cause


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Context in which modules are built without allocating their weights or drawing random numbers."""
    with torch.device("meta"), _SkipRandom():
        yield


class _SkipRandom(TorchFunctionMode):
    """Skip random initialisation: on the meta device `normal_` has no effect, but would import torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.normal_:
            # nothing is drawn: the values come from a file
            return args[0]
        return func(*args, **kwargs or {})


def _check_sizes(options: Any, shapes: Shapes, where: Path, file: Path) -> None:
    if hasattr(options, "encoder_config"):  # a captioner has the options of its encoder, too
        _check_sizes(options.encoder_config(), shapes, where, file)
    weights = sum(math.prod(shape) for shape in shapes.values())
    # every block has a tensor of its own
    for name in DEPTHS:
        if sum(_numbers(options, name)) > len(shapes):
            raise WeightsError(
                f"{where}: {name}={getattr(options, name)}, but {file.name} has only {len(shapes)} tensors"
            )
    if hasattr(options, "depth") and not any(_numbers(options, "depth")):
        return  # without blocks, sizes of their parts need no weights
    # a vocabulary of n needs n weights or more, and so does a width
    for name in SIZES:
        if max(_numbers(options, name), default=0) > weights:
            raise WeightsError(
                f"{where}: {name}={getattr(options, name)}, but {file.name} has only {weights} weights"
            )


def _numbers(options: Any, name: str) -> tuple[int, ...]:
    """The numbers of an option: one, or one per stage; none if its value is no number, or there is no such option."""
    value = getattr(options, name, None)
    if isinstance(value, tuple | list):
        # one for each stage
        return tuple(value)
    if isinstance(value, int):
        return (value,)
    return ()


def state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a model is saved as: its parameters, each once, and its persistent buffers."""
    # state_dict leaves out buffers that are not persistent, such as rotary angles
    kept = model.state_dict(keep_vars=True).keys()
    buffers = {name: x for name, x in model.named_buffers() if name in kept}
    return dict(model.named_parameters()) | buffers


def slots(model: nn.Module) -> dict[str, Slot]:
    """The tensors of `state`, each with every place that holds it: a tied one has several."""
    # tied weights are one tensor in several modules, so they are found by identity
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        # of this module alone: its parts have their own turn
        parameters, buffers = (
            module.named_parameters(recurse=False),
            module.named_buffers(recurse=False),
        )
        for leaf, x in (*parameters, *buffers):
            places.setdefault(id(x), []).append((module, leaf))
    return {name: (x, places[id(x)]) for name, x in state(model).items()}


def set_tensor(slot: Slot, tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> None:
    """Replace a tensor of a model by a copy of another: a copy, because the file may change or be deleted."""
    old, holders = slot
    # integers, such as the counter of a batch norm, keep their dtype
    if dtype is None or not tensor.is_floating_point():
        dtype = tensor.dtype
    # contiguous, because a row of a table may be a transposed view
    new = tensor.detach().to(device, dtype, copy=True).contiguous()
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    # every holder gets the same object, so that tied weights stay tied
    for module, leaf in holders:
        setattr(module, leaf, new)


def check_dtype(name: str, tensor: Tensor, slot: Tensor, path: Path) -> None:
    """Raise if a file has integers where the model has floating-point numbers, or the other way round."""
    if tensor.is_floating_point() != slot.is_floating_point():
        raise WeightsError(
            f"{path}: the tensor {name} is {tensor.dtype}, expected one like {slot.dtype}"
        )


def check_shapes(shapes: Shapes, expected: Shapes, path: Path) -> None:
    """Raise unless a file has exactly the tensors of a model."""
    # a misspelt name is missing on one side and extra on the other: the hint puts both together
    extra = [name for name in shapes if name not in expected]
    for name, shape in expected.items():
        if name not in shapes:
            raise WeightsError(
                f"{path}: the tensor {name} {shape} is missing{nearest(name, extra)}"
            )
        if shapes[name] != shape:
            raise WeightsError(
                f"{path}: the tensor {name} has the shape {shapes[name]}, expected {shape}"
            )
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise WeightsError(
            f"{path}: the tensor {extra[0]} {shapes[extra[0]]}{more} has no place in this model"
        )

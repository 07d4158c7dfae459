"""The layers of a model, ours or foreign, and where inside each the attention, its heads and the MLP are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import InputError, nearest
from ..fast.int8 import Int8
from ..layers import Attention
from .capture.addresses import Tree
from .capture.watch import watch
from .measured_input import ModelInput


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """The addresses of one layer."""

    output: str  # its output: the residual stream after it
    attention: str | None  # the submodule that holds its self-attention
    attends: str | None  # the module that attends, which has the address `.heads`
    heads: int  # number of heads
    cross: str | None  # the submodule that holds its cross-attention
    cross_attends: str | None
    mlp: str | None  # the submodule whose output is that of its MLP


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStack:
    """A list of layers of one class, one after the other."""

    name: str  # the address of the list
    layers: list[Layer]


def layer_stack(given: ModelInput, stack: str | None = None) -> LayerStack:
    """The layers of a model that have attention, from one forward pass.

    Args:
        given: An input of the model.
        stack: A part of the list's address, "encoder" or "decoder", where there are several; None: the longest.
    """
    lists = layer_lists(given.model)
    name = type(given.model).__name__
    if not lists:
        raise InputError(
            f"this {name} has no list of layers with attention: expected a transformer of any kind"
        )
    chosen = {
        path: names for path, names in lists.items() if stack is None or stack in path.split(".")
    }
    if not chosen:
        parts = {part for path in lists for part in path.split(".")}
        known = sorted(parts & {"encoder", "decoder"}) or sorted(
            {path.split(".")[0] for path in lists}
        )
        raise InputError(
            f"stack={stack!r}: expected one of {', '.join(known)}{nearest(stack or '', known)}"
        )
    path = max(chosen, key=lambda path: len(chosen[path]))
    with (
        torch.no_grad(),
        watch(given.model, f"{path}.**.weights", keep=lambda record: record.shape[1]) as tape,
    ):
        given.model(*given.args, **given.row)
    seen = {address.removesuffix(".weights"): tape.calls(address)[0] for address in tape.names}
    if not seen:
        raise InputError(f"no attention was seen in this {name}: {tape.unseen}")
    modules = dict(Tree(given.model).parts)
    return LayerStack(name=path, layers=[_layer(modules, at, seen) for at in chosen[path]])


def layer_lists(model: nn.Module) -> dict[str, list[str]]:
    """The outermost lists of layers of one class that may attend: their addresses, and those of the layers."""
    tree, found = Tree(model), dict[str, list[str]]()
    attending = set(tree.attending)
    for path, module in tree.parts:
        if isinstance(module, nn.ModuleList | nn.Sequential):
            layers = list(module.children())
        else:
            layers = []
        if (
            not path
            or len({*map(type, layers)}) != 1
            or any(path.startswith(f"{other}.") for other in found)
        ):
            continue
        if all(
            any(isinstance(part, Attention) or part in attending for part in one.modules())
            for one in layers
        ):
            found[path] = [f"{path}.{name}" for name, _ in module.named_children()]
    return found


def _layer(modules: dict[str, nn.Module], at: str, seen: dict[str, int]) -> Layer:
    inside = [name for name in seen if f"{name}.".startswith(f"{at}.")]
    if any("@" in name for name in inside) or len(inside) > 2:
        raise InputError(
            f"the layer {at} attends {len(inside)} times: expected self-attention and cross-attention"
        )
    children = [".".join(name.split(".")[: at.count(".") + 2]) for name in inside]
    both: list[str | None] = [*children, None, None]
    attends: list[str | None] = [*inside, None, None]
    return Layer(
        output=at,
        attention=both[0],
        attends=attends[0],
        heads=seen[inside[0]] if inside else 0,
        cross=both[1],
        cross_attends=attends[1],
        mlp=_mlp(modules, at, children),
    )


def _mlp(modules: dict[str, nn.Module], at: str, attention: list[str]) -> str | None:
    """The MLP of a layer: its last child with two matrices or more that does not attend.

    Where the two are not in one module (torch.nn, OPT, BERT of transformers) it is the last matrix, whose output is
    the MLP's.
    """
    others = {
        name: child
        for name, child in modules[at].named_children()
        if f"{at}.{name}" not in attention
    }
    whole = [name for name, child in others.items() if sum(map(has_matrix, child.modules())) >= 2]
    if whole:
        return f"{at}.{whole[-1]}"
    parts = [
        path
        for path, part in modules.items()
        if any(f"{path}.".startswith(f"{at}.{name}.") for name in others) and has_matrix(part)
    ]
    return parts[-1] if len(parts) > 1 else None


def has_matrix(part: nn.Module) -> bool:
    """Whether a module multiplies by a matrix of its own; one rounded to 8 bits is no parameter."""
    return isinstance(part, Int8) or any(p.ndim == 2 for p in part.parameters(recurse=False))


# What can be exchanged in a layer, and its address.
VIEWS: dict[str, Callable[[Layer], str | None]] = {
    "residual": lambda layer: layer.output,
    "attention": lambda layer: layer.attention,
    "mlp": lambda layer: layer.mlp,
    "cross": lambda layer: layer.cross,
    "heads": lambda layer: None if layer.attends is None else f"{layer.attends}.heads",
}


def view_addresses(stack: LayerStack, what: str) -> list[str]:
    """The address of one view of every layer; raises if the layers do not have it, and says which views they have."""
    fit = [
        name
        for name, view in VIEWS.items()
        if all(view(layer) is not None for layer in stack.layers)
    ]
    if what not in fit:
        raise InputError(
            f"what={what!r}: the layers {stack.name}.* have {', '.join(fit)}{nearest(what, fit)}"
        )
    return [address for layer in stack.layers if (address := VIEWS[what](layer)) is not None]

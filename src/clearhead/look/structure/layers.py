"""The layers of a model, ours or foreign, and where inside each the attention, its heads and the MLP are.

A model is asked for nothing but its modules: its layers are the members of a list of modules of one class. Which of
them attend is known of ours; a foreign model shows it while it runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ...errors import InputError, InputKeyError, Notice, caller_level, nearest
from ...fast.int8 import Int8
from ...layers import Attention
from ...models import Model
from ..capture.addresses import INPUT, Tree, matching, nearest_addresses
from ..watch import watch

if TYPE_CHECKING:
    from ...inputs import ModelInput

# Activations inside an attention that have a vector per token.
VECTORS = ("q", "k", "v", "heads")
# The layers of our families, in the order in which a model runs them.
BLOCKS = ("stem", "encoder.blocks.*", "decoder.blocks.*", "blocks.*", "stages.*.*")
# The kinds of attention, and the addresses of their weights in the models of this library.
KINDS = {
    # `**`, because a foreign model in a Bundle has attention of any name inside its blocks
    "self": "blocks.**.weights",
    "encoder": "encoder.blocks.*.attn.weights",
    "decoder": "decoder.blocks.*.attn.weights",
    "cross": "decoder.blocks.*.cross.weights",
}


def uniform_lists(
    tree: Tree, fits: Callable[[str], bool], *, least: int = 1
) -> dict[str, list[str]]:
    """Return the outermost lists of modules of one class whose members all fit, with the addresses of the members.

    These are the layers of most models: an nn.ModuleList or nn.Sequential of equal blocks.

    Args:
        tree: The model's modules.
        fits: Whether the module at an address may be a member.
        least: The least number of members; a shorter list is passed over, and lists inside of it count.
    """
    lists: dict[str, list[str]] = {}
    for path, module in tree.parts:
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        # A list of one class only: an nn.Sequential of different modules is no stack.
        if len(module) < least or len({*map(type, module)}) != 1:
            continue
        # Modules come outermost first, so that a list inside of a known one is recognised.
        if any(is_inside(path, outer) for outer in lists):  # the outer list has the layers
            continue
        members = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
        if all(map(fits, members)):
            lists[path] = members
    return lists


def is_inside(address: str, path: str) -> bool:
    """Whether an address belongs to a module or to something inside of it; the empty path is the model itself."""
    return not path or f"{address}.".startswith(f"{path}.")


# Layers that attend.


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """The addresses of one layer."""

    output: str  # its output: the residual stream after it
    attention: str | None  # the submodule that holds its self-attention
    attends: str | None  # the module that attends, which has the address `.heads`
    heads: int  # number of heads
    cross: str | None  # the submodule that holds its cross-attention
    cross_attends: str | None  # the module in it that attends
    mlp: str | None  # the submodule whose output is that of its MLP


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStack:
    """A list of layers of one class, one after the other."""

    name: str  # the address of the list
    layers: list[Layer]


def layer_lists(model: nn.Module) -> dict[str, list[str]]:
    """Return the outermost lists of layers of one class that may attend: their addresses, and those of the layers."""
    tree = Tree(model)
    foreign = set(tree.attending)

    def may_attend(path: str) -> bool:
        if "." not in path:  # the model itself is the list, which then has no address
            return False
        # Ours attend by class, foreign ones by a function or module that the tree knows.
        parts = tree.modules[path].modules()
        return any(isinstance(part, Attention) or part in foreign for part in parts)

    return uniform_lists(tree, may_attend)


def layer_stack(given: ModelInput, stack: str | None = None) -> LayerStack:
    """Return the layers of a model that have attention, from one forward pass.

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
    path = _chosen_list(lists, stack)

    # The weights themselves are not needed: their shape (b, h, q, k) tells what there is to know.
    with (
        torch.no_grad(),
        watch(given.model, f"{path}.**.weights", keep=lambda record: tuple(record.shape)) as tape,
    ):
        given.run(given.model)
    shapes = {address.removesuffix(".weights"): tape.calls(address)[0] for address in tape.names}
    if not shapes:
        raise InputError(f"no attention was seen in this {name}: {tape.unseen}")
    modules = Tree(given.model).modules
    layers, doubtful = list[Layer](), list[Layer]()
    for member in lists[path]:
        attending, decided = _self_and_cross(member, shapes)
        layers.append(_layer(modules, member, attending, shapes))
        if not decided:
            doubtful.append(layers[-1])
    if doubtful:
        first = doubtful[0]
        warnings.warn(
            Notice(
                f"{first.attends} is taken for self-attention and {first.cross_attends} for cross-attention, in the "
                "order of the modules: neither their names nor the numbers of their queries and keys tell"
            ),
            stacklevel=caller_level(),
        )
    return LayerStack(name=path, layers=layers)


def _chosen_list(lists: dict[str, list[str]], stack: str | None) -> str:
    """The address of the longest list whose address has the part `stack`."""
    # "encoder" and "decoder" are parts of addresses, such as "model.decoder.layers".
    fitting = [path for path in lists if stack is None or stack in path.split(".")]
    if fitting:
        return max(fitting, key=lambda path: len(lists[path]))
    parts = {part for path in lists for part in path.split(".")}
    # Offer "encoder" and "decoder" if there are any, else the first parts of addresses.
    known = sorted(parts & {"encoder", "decoder"})
    known = known or sorted({path.split(".")[0] for path in lists})
    raise InputError(
        f"stack={stack!r}: expected one of {', '.join(known)}{nearest(stack or '', known)}"
    )


# Parts of the names of cross-attention (encoder_attn of BART, EncDecAttention of T5), and of self-attention.
CROSS_NAMES = ("cross", "encoder", "encdec", "src", "memory", "context")
SELF_NAMES = ("self",)


def _self_and_cross(path: str, shapes: Mapping[str, Sequence[int]]) -> tuple[list[str], bool]:
    """The modules of a layer that attend, self-attention first, and whether more than their order decided which it is.

    Args:
        path: The address of the layer.
        shapes: The shape (b, h, q, k) of the weights of each module of the model that attends.
    """
    attending = [name for name in shapes if is_inside(name, path)]
    # "@" numbers several calls of one module, which no view could tell apart.
    if any("@" in name for name in attending) or len(attending) > 2:
        raise InputError(
            f"the layer {path} attends {len(attending)} times: expected self-attention and cross-attention"
        )
    if len(attending) < 2:
        return attending, True
    # what they attend to: the queries of self-attention are the keys, too
    square = [shapes[name][2] == shapes[name][3] for name in attending]
    if square[0] != square[1]:
        return sorted(attending, key=lambda name: shapes[name][2] != shapes[name][3]), True
    # else their names, below the layer: "decoder.layers.0.encoder_attn" has "encoder_attn"
    for words, is_cross in ((CROSS_NAMES, True), (SELF_NAMES, False)):
        named = [any(word in name[len(path) :].lower() for word in words) for name in attending]
        if named[0] != named[1]:
            first_is_cross = named[0] == is_cross
            return attending[::-1] if first_is_cross else attending, True
    return attending, False


def _layer(
    modules: dict[str, nn.Module],
    path: str,
    attending: list[str],
    shapes: Mapping[str, Sequence[int]],
) -> Layer:
    """The addresses of a layer.

    Args:
        modules: All modules of the model.
        path: The address of the layer.
        attending: The modules in it that attend, self-attention first.
        shapes: The shape (b, h, q, k) of the weights of each module of the model that attends.
    """
    # of "blocks.0.attention.self" in the layer "blocks.0": "blocks.0.attention"
    depth = path.count(".") + 2
    submodules = [".".join(name.split(".")[:depth]) for name in attending]
    submodule, cross_submodule = _padded(submodules)
    attends, cross_attends = _padded(attending)
    return Layer(
        output=path,
        attention=submodule,
        attends=attends,
        heads=0 if attends is None else shapes[attends][1],
        cross=cross_submodule,
        cross_attends=cross_attends,
        mlp=_mlp(modules, path, submodules),
    )


def _padded(names: Sequence[str]) -> tuple[str | None, str | None]:
    """Two names, None for those that are not there."""
    first, second, *_ = (*names, None, None)
    return first, second


def _mlp(modules: dict[str, nn.Module], path: str, attention: list[str]) -> str | None:
    """The MLP of a layer: its last child with two matrices or more that does not attend.

    Where the two are not in one module (torch.nn, OPT, BERT of transformers) it is the last matrix, whose output is
    the MLP's.
    """
    # the children that do not attend
    others = {f"{path}.{name}": child for name, child in modules[path].named_children()}
    for name in attention:
        others.pop(name, None)
    # Two matrices or more in one child are an MLP, one matrix is a projection.
    whole = [name for name, child in others.items() if sum(map(has_matrix, child.modules())) >= 2]
    if whole:
        return whole[-1]
    matrices = [
        name
        for name, part in modules.items()
        if has_matrix(part) and any(is_inside(name, other) for other in others)
    ]
    # The last of two or more: the one that returns to the residual stream.
    if len(matrices) > 1:
        return matrices[-1]
    return None


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
    """Return the address of one view of every layer; raises if the layers do not have it, and says which they have.

    Args:
        stack: The layers.
        what: A key of VIEWS.
    """
    addresses = {name: [view(layer) for layer in stack.layers] for name, view in VIEWS.items()}
    # A view exists only if every layer has it, as the matrix has a row for each.
    fit = [name for name, of_layers in addresses.items() if None not in of_layers]
    if what not in fit:
        raise InputError(
            f"what={what!r}: the layers {stack.name}.* have {', '.join(fit)}{nearest(what, fit)}"
        )
    return [address for address in addresses[what] if address is not None]


# Every attention of a model, by its kind.


_HEADS_SEEN: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()


def attention_layers(model: nn.Module, kind: str = "self") -> dict[str, int]:
    """Return the attention of each layer, in order: its address without an activation's name, and its number of heads.

    Which modules of a foreign model attend is known only when they run: such a model runs once, on two tokens.

    Args:
        model: A model, the `.model` of a Bundle.
        kind: A key of KINDS.
    """
    tree, pattern = Tree(model), KINDS[kind]
    # Our attention is known by its class.
    ours = matching(pattern, tree.known)
    if ours:
        heads = {}
        for address in ours:
            module, _ = tree.known[address]
            if isinstance(module, Attention):
                heads[address.removesuffix(".weights")] = module.heads
        return heads

    # That of a foreign model shows itself when the model runs; the answer is kept as long as the model is.
    if model not in _HEADS_SEEN and isinstance(model, Model) and matching(pattern, tree.possible):
        _HEADS_SEEN[model] = _heads_of_one_pass(model, pattern)
    return _HEADS_SEEN.get(model, {})


def _heads_of_one_pass(model: Model, pattern: str) -> dict[str, int]:
    """The number of heads of each attention that a pattern matches, from a pass over two tokens."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    # Random ids or pixels of the model's own form; their values do not matter.
    given = {name: x.to(device) for name, x in model.example_inputs(1, 2, generator).items()}
    with torch.no_grad(), watch(model, pattern) as tape:
        model(**given)
    maps = tape.match(pattern)
    return {address.removesuffix(".weights"): map.shape[1] for address, map in maps.items()}


# The addresses of layers that a user names by patterns, or of the blocks if none are given.


def layer_names(model: nn.Module, layers: str | Sequence[str] | None) -> list[str]:
    """Return the addresses of the layers that patterns name, in the model's order.

    Args:
        model: The model.
        layers: Addresses or patterns; None: the model's blocks.
    """
    tree = Tree(model)
    if layers is None:
        return _blocks(tree)
    patterns = [layers] if isinstance(layers, str) else list(layers)
    # outputs of modules, and what has a vector per token inside of attention: no weights, no statistics
    known = {
        name: (module, leaf)
        for name, (module, leaf) in tree.known.items()
        if leaf is None or leaf in VECTORS
    }
    # "x.input" names what a module reads, which is listed only on request.
    if any(name.endswith(f".{INPUT}") for name in patterns):
        known |= tree.inputs
    # Several patterns may match the same layer.
    chosen = set[str]()
    for pattern in patterns:
        names = matching(pattern, known)
        if not names:
            blocks = list(dict.fromkeys(map(_starred, _blocks(tree))))
            raise InputKeyError(
                f"no layer {pattern!r} in this {type(model).__name__}{nearest_addresses(pattern, known)}; its blocks "
                f"are {', '.join(blocks[:4])}"
            )
        chosen.update(names)
    # The model's own order, and each layer once, whatever the order of the patterns.
    return [name for name in known if name in chosen]


def _blocks(tree: Tree) -> list[str]:
    """The blocks of one of our families, or else the members of all lists of two or more modules of one class."""
    names = [name for pattern in BLOCKS for name in matching(pattern, tree.known)]
    if names:
        return names
    # Foreign models have no family: their lists of equal modules are their blocks.
    lists = uniform_lists(tree, lambda _: True, least=2)
    names = [member for members in lists.values() for member in members]
    if not names:
        raise InputError(
            f"this {type(tree.root).__name__} has no list of blocks: name its layers, for example "
            f"{', '.join(list(tree.known)[:3])}"
        )
    return names


def _starred(address: str) -> str:
    """An address with * for the numbers in it."""
    return ".".join("*" if part.isdigit() else part for part in address.split("."))


def first_convolution(model: nn.Module) -> tuple[str, nn.Conv2d] | None:
    """Return the first convolution of a model in the order of its modules, with its address; None if there is none."""
    for name, part in model.named_modules():
        if isinstance(part, nn.Conv2d):
            return name, part
    return None

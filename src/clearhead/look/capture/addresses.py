"""The addresses of a model: what `watch` and `edit` can name, and how patterns match them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache, cached_property
from typing import Any

from torch import nn

from ...errors import InputKeyError, nearest
from ...layers import Attention
from ..maps.statistics import MEANING

EDITABLE = ("q", "k", "v", "scores", "weights", "heads")  # tensors inside an attention
INSIDE = (*EDITABLE, *MEANING)  # the addresses that an attention has besides those of its modules
INPUT = "input"  # the address of a module's input, its first tensor
# what compiling and checkpointing add to a module's name
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
SHOWN = 3  # addresses named in a message

LENS = {  # the names of TransformerLens, and what they are called here
    "hook_pattern": "...weights",
    "hook_attn_scores": "...scores",
    "hook_q": "...q",
    "hook_k": "...k",
    "hook_v": "...v",
    "hook_z": "...heads",
    "hook_attn_out": "the address of the attention module",
    "hook_mlp_out": "the address of the MLP",
    "hook_resid_pre": "the address of a block with .input",
    "hook_resid_mid": "the address of a block's second norm with .input",
    "hook_resid_post": "the address of a block",
}

# Classes of these packages and files never call attention themselves; torch's own exceptions are named in `can_attend`.
PLAIN = {
    "torch", "clearhead", "builtins", "typing", "abc", "collections",
    "transformers.activations", "transformers.pytorch_utils",
}  # fmt: skip

# Each address with its module and, inside an attention, the name of the activation; None for the module's output.
Addresses = dict[str, tuple[nn.Module, str | None]]


class Tree:
    """The modules of a model and their addresses, from one walk over it.

    Args:
        root: The model.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.parts = list(root.named_modules())
        self.compiled = any(  # by torch.compile(module) or module.compile()
            "_orig_mod" in module._modules or module._compiled_call_impl is not None
            for _, module in self.parts
        )
        # A module has the same address whether it is compiled or checkpointed or not.
        if any(wrapper in path for path, _ in self.parts for wrapper in WRAPPERS):
            self.parts = [(_unwrapped(path), module) for path, module in self.parts]

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """The modules by their paths; that of the root is empty."""
        return dict(self.parts)

    @cached_property
    def known(self) -> Addresses:
        """The addresses that are known before the model runs, in the order of its modules."""
        known: Addresses = {}
        for path, module in self.parts:
            if path:
                known[path] = (module, None)
            if isinstance(module, Attention):
                for leaf in INSIDE:
                    known[joined(path, leaf)] = (module, leaf)
        return known

    @cached_property
    def inputs(self) -> Addresses:
        """The addresses of the inputs of modules."""
        return {f"{path}.{INPUT}": (module, INPUT) for path, module in self.parts if path}

    @cached_property
    def attending(self) -> dict[nn.Module, str]:
        """The modules that may call torch's attention themselves, with their names; none that holds our Attention."""
        attending: dict[nn.Module, str] = {}
        ours = any(isinstance(module, Attention) for _, module in self.parts)
        for path, module in self.parts:
            if not can_attend(type(module)):  # type: ignore[arg-type]
                continue
            # A module that holds our Attention: the tap inside of it records already.
            if ours and any(isinstance(part, Attention) for part in module.modules()):
                continue
            attending[module] = path
        return attending

    @cached_property
    def possible(self) -> Addresses:
        """The addresses that modules have if they call torch's attention themselves, which only running them shows."""
        possible: Addresses = {}
        for module, path in self.attending.items():
            for leaf in INSIDE:
                name = joined(path, leaf)
                if name not in self.known:
                    possible[name] = (module, leaf)
        return possible


def joined(path: str, leaf: str) -> str:
    """The address of an activation in a module, whose path is empty if it is the model itself."""
    if path:
        return f"{path}.{leaf}"
    return leaf


def _unwrapped(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


@cache
def can_attend(kind: type[nn.Module]) -> bool:
    """Whether modules of a class may call torch's attention: it is neither torch's nor ours, or one of the exceptions.

    A class that is made later has no effect on it, so that the answer is kept.
    """
    if issubclass(kind, nn.MultiheadAttention):
        return True
    # A class of torch with a base elsewhere, such as a user's subclass, may attend.
    homes = [base.__module__ for base in kind.__mro__]
    if "torch.fx.graph_module" in homes:  # it runs what it was traced from
        return True
    return any(PLAIN.isdisjoint((home, home.partition(".")[0])) for home in homes)


def resolve(pattern: str, names: Mapping[str, Any]) -> list[str]:
    """The addresses that a pattern matches; raises if there are none, and names the nearest."""
    # "...attn@1.weights", the second call of a module in one pass, is checked when it happens
    matches = matching(re.sub(r"@(\d+|\*)(?=\.)", "", pattern), names)
    if not matches:
        raise InputKeyError(
            f"no address {pattern!r} in this model{nearest_addresses(pattern, names)}"
        )
    return matches


def matching(pattern: str, names: Mapping[str, Any]) -> list[str]:
    """The names that a pattern matches: `*` is one part between dots, `**` any number of parts."""
    *before, last = pattern.split(".")
    # All other parts are literal.
    parts = [{"*": r"[^.]+", "**": r".+"}.get(part, re.escape(part)) for part in (*before, last)]
    # "**." may also stand for nothing at all
    expression = re.compile(r"\.".join(parts).replace(r".+\.", r"(?:.+\.)?"))
    # most names end in another word, and are left out before the expression is tried
    end = "" if "*" in last else last
    return [name for name in names if name.endswith(end) and expression.fullmatch(name)]


def nearest_addresses(name: str, names: Mapping[str, Any]) -> str:
    """errors.nearest() over addresses, which may also be written with * for a number."""
    path, dot, leaf = str(name).rpartition(".")
    # TransformerLens users find their names here; with or without "hook_".
    for hook, ours in LENS.items():
        if leaf in (hook, hook.removeprefix("hook_")):
            return f"; {hook} of TransformerLens is {ours} here"
    # A number that is out of range: the same address with * exists.
    starred = _starred(str(name))
    if "*" in path and matching(starred, names):
        return f"; the nearest is {starred}"
    # A pattern whose last word is misspelt keeps its path.
    leaves = {other.rpartition(".")[2] for other in names} | set(INSIDE)
    if "*" in path and leaf not in leaves:
        words = nearest(leaf, leaves, most=1)
        return words and f"; the nearest is {path}{dot}{words.rpartition(' ')[2]}"
    # If the path is wrong, an address of another activation does not help.
    known = list(names)
    if leaf in INSIDE:
        known = [other for other in names if other.rpartition(".")[2] == leaf] or known
    # Last resort: the nearest address, its numbers as given or as *.
    return nearest(name, [*known, *dict.fromkeys(map(_starred, known))])


def _starred(name: str) -> str:
    """An address with * for the numbers in it."""
    return re.sub(r"\b\d+\b", "*", name)


def listed(names: Collection[str]) -> str:
    """The first names, and how many more there are, for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, list(names)[:SHOWN])) + more

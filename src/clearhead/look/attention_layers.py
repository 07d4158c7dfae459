"""The attention of each layer of a model: where it is, and how many heads it has."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..layers import Attention
from ..models import Model
from .capture.addresses import Tree, matching
from .capture.watch import watch

# the kinds of attention, and the addresses of their weights in the models of this library
KINDS = {
    # in a model that transformers has opened, whatever its attention is called
    "self": "blocks.**.weights",
    "encoder": "encoder.blocks.*.attn.weights",
    "decoder": "decoder.blocks.*.attn.weights",
    "cross": "decoder.blocks.*.cross.weights",
}
_FOUND: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()


def attention_layers(model: nn.Module, kind: str = "self") -> dict[str, int]:
    """The attention of each layer, in order: its address without an activation's name, and its number of heads.

    Which modules of a foreign model attend is known only when they run: such a model runs once, on two tokens.

    Args:
        model: A model, the `.model` of a Bundle.
        kind: A key of KINDS.
    """
    tree, pattern = Tree(model), KINDS[kind]
    known = tree.known
    ours = {name: known[name][0] for name in matching(pattern, known)}
    if ours:
        return {
            _place(name): module.heads
            for name, module in ours.items()
            if isinstance(module, Attention)
        }
    if model not in _FOUND and isinstance(model, Model) and matching(pattern, tree.possible):
        device = next(model.parameters()).device
        given = {
            name: x.to(device)
            for name, x in model.example_inputs(1, 2, torch.Generator().manual_seed(0)).items()
        }
        with torch.no_grad(), watch(model, pattern) as tape:
            model(**given)
        _FOUND[model] = {_place(name): map.shape[1] for name, map in tape.match(pattern).items()}
    return _FOUND.get(model, {})


def _place(address: str) -> str:
    return address.removesuffix(".weights")

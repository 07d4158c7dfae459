"""Adapters (LoRA) of a player's model: which weights are trained, and the folder that they belong to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from torch import nn

from ..errors import InputError
from ..layers.lora import add_adapters
from .lora import LoraConfig
from .pretrained import in_head
from .recipe import Pretrained


def adapt(model: nn.Module, lora: LoraConfig, filled: Collection[str], *, seed: int, freeze: Sequence[str]) -> None:
    """Freeze a model and add adapters to it; a head that the pretrained weights did not fill is trained as well.

    Args:
        model: The model, with its pretrained weights.
        lora: The options.
        filled: Names of the weights that were pretrained.
        seed: Seed of the adapters' initial weights.
        freeze: Submodules without adapters.
    """
    new = [name for name, _ in model.named_parameters() if name not in filled]
    random = [name for name in new if not in_head(model, name)]
    if random:
        raise InputError(
            f"lora adapts pretrained weights, and {random[0]} is not one of them: it would stay random; expected "
            "pretrained weights for the whole model but its head"
        )
    add_adapters(
        model, lora.maps, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, seed=seed, skip=freeze
    )  # fmt: skip
    for name in new:
        model.get_parameter(name).requires_grad_(True)


def base_folder(start: Pretrained) -> str:
    """The model that adapters which are kept apart belong to: an absolute path, or a name that `load` accepts."""
    return str(Path(start.folder).resolve()) if Path(start.folder).exists() else start.folder

"""Adapters (LoRA) of a player's model: which weights are trained, and the folder that they belong to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from ...data import Data
from ...errors import InputError
from ...layers.lora import add_adapters
from ...weights import Bundle, WeightsError
from ...weights.checkpoints.pretrained import Pretrained, in_head
from ...weights.peft.save import check as check_saved_apart
from ..recipe import LoraConfig

if TYPE_CHECKING:
    from ..setup import PlayerSetup


def adapt(
    model: nn.Module, lora: LoraConfig, filled: Collection[str], *, seed: int, freeze: Sequence[str]
) -> None:
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
        model,
        lora.maps,
        rank=lora.rank,
        alpha=lora.alpha,
        dropout=lora.dropout,
        seed=seed,
        skip=freeze,
    )
    for name in new:
        model.get_parameter(name).requires_grad_(True)


def check_apart(setup: PlayerSetup, saved: PlayerSetup, start: Pretrained, data: Data) -> None:
    """Raise, before a training, if its adapters could not be saved apart from their base model in the end.

    Args:
        setup: The model that is trained.
        saved: The checkpoint that it starts from.
        start: Where that is.
        data: The data, which has the tokenizer of the result.
    """
    model = setup.empty()
    if model.reads in ("tokens", "pairs", "captions"):
        tokens = data.tokens
    else:
        tokens = None
    bundle = Bundle(model, tokens, special=setup.special or data.special, base=base_folder(start))
    try:
        check_saved_apart(bundle, saved.config)
    except WeightsError as problem:
        raise WeightsError(f"lora.merge = false: {problem}") from problem


def base_folder(start: Pretrained) -> str:
    """The model that adapters which are kept apart belong to: an absolute path, or a name that `load` accepts."""
    if Path(start.folder).exists():
        return str(Path(start.folder).resolve())
    return start.folder

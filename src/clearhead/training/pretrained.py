"""Going on from a trained model: its weights in a new one, whose head may be another."""

from __future__ import annotations

import torch
from torch import nn

from ..weights import WeightsError, load

# What reads a model's states, and is made anew where the answer is another; a tied readout is the embedding's.
HEADS = ("head", "pooler", "transform", "transform_norm")


def in_head(name: str) -> bool:
    """Whether a parameter belongs to the head."""
    return name.split(".")[0] in HEADS


@torch.no_grad()
def go_on(model: nn.Module, folder: str) -> list[str]:
    """Give a model the weights of a folder's; gives the names that the folder had none for, all of its head."""
    theirs = dict(load(folder, device="cpu", dtype="float32").model.named_parameters())
    ours = dict(model.named_parameters())
    for name, weight in ours.items():
        if name in theirs and theirs[name].shape == weight.shape:
            weight.copy_(theirs[name])
        elif not in_head(name):
            there = f"has the shape {tuple(theirs[name].shape)}" if name in theirs else "is missing"
            raise WeightsError(f"pretrained={folder!r}: {name} {there}, expected {tuple(weight.shape)}")
    for name in theirs:
        if name not in ours and not in_head(name):
            raise WeightsError(f"pretrained={folder!r}: {name} has no place in the model of this recipe")
    return [name for name in ours if name not in theirs or theirs[name].shape != ours[name].shape]

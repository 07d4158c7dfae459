"""A small image classifier, registered as a family for tests, and random pictures."""

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import nn

from clearhead.models import FAMILIES, Model


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Sizes of the classifier."""

    classes: int = 2


class Pictured(Model):
    """Images -> class logits, by one convolution."""

    reads, can = "images", frozenset({"classify"})

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.first, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5, config.classes)

    def forward(self, images):
        return self.head(self.first(images).relu().mean((2, 3)))


Pictured.__module__ = "clearhead.models.pictured"


def pixels_model():
    torch.manual_seed(0)
    return Pictured(Config())


@contextmanager
def registered():
    """Register the classifier as the family "pictured" inside the block."""
    module = ModuleType(Pictured.__module__)
    vars(module).update(Pictured=Pictured, Config=Config)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(sys.modules, {module.__name__: module}))
        stack.enter_context(patch.dict(FAMILIES, {"pictured": ("pictured", "Pictured", "")}))
        yield


def picture(height=37, width=53, seed=0):
    """Random noise, smoothed a little so that interpolation methods differ but do not saturate."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8))
    fine = rng.integers(-20, 20, (height, width, 3))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(np.clip(smooth + fine, 0, 255).astype(np.uint8))

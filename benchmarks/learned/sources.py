"""The models and images that the facts are measured on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clearhead as ch
from clearhead.data import make_data
from clearhead.data.images.files import LabelledImages
from clearhead.weights.folder import in_zoo

EXAMPLES = Path(ch.__file__).parent / "explore" / "example_images"
FILES = {"mobilenet-v2": "mobilenet_v2-b0353104.pth"}  # checkpoints that are a file of their folder


def checkpoint(name: str) -> ch.Bundle:
    """A model that ships, or one of the folder CLEARHEAD_CHECKPOINTS."""
    if in_zoo(name):
        return ch.load(name, device="cpu")
    return ch.load(folder(name) / FILES.get(name, ""), device="cpu")


def folder(name: str) -> Path:
    """The folder of a checkpoint that does not ship."""
    path = Path(os.environ.get("CLEARHEAD_CHECKPOINTS", "checkpoints")) / name
    if not path.exists():
        raise SystemExit(
            f"{path}: there is no such checkpoint; docs/15-what-models-learn.md says where each is from"
        )
    return path


def untrained(name: str) -> ch.Bundle:
    """A model of the same shape with new random weights."""
    bundle = checkpoint(name)
    torch.manual_seed(0)
    fresh = type(bundle.model)(bundle.model.config).eval()
    return ch.Bundle(fresh, preprocessing=bundle.preprocessing, labels=bundle.labels)


def images(data: str, part: str, count: int) -> LabelledImages:
    """Some images of a data set, evenly spaced over all of them, so that all classes are there."""
    every = make_data(data, {}, seed=0).originals(part)
    chosen = np.linspace(0, len(every.labels) - 1, count).astype(int)
    return LabelledImages(
        labels=[every.labels[i] for i in chosen], opened=lambda i: every.opened(int(chosen[i]))
    )


def pixels(bundle: ch.Bundle, data: LabelledImages) -> torch.Tensor:
    """All images as one batch of the model's inputs."""
    return torch.stack([bundle.pixels(image) for some in data.batches(64) for image in some])


def grid_of(model: Any, height: int, width: int) -> tuple[int, int]:
    """The rows and columns of patches of a vision transformer."""
    rows, columns = model.embed.size(height, width)
    return rows, columns

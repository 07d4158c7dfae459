"""Small trainings for the tests of the loop: recipes that take seconds, readers of run folders, and small models."""

import copy
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import patch

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from clearhead.layers import Block, Patches
from clearhead.models import FAMILIES, Model
from clearhead.training import logs as progress
from clearhead.training import train
from clearhead.training.checkpoints import latest
from clearhead.training.loop import TIMES
from clearhead.training.run_folder import Folder


def recipe(**changes):
    """A recipe that trains in a second; in changes two underscores mean a dot: recipe(optim__name="sgd")."""
    table = {
        "steps": 8, "seed": 3,
        "data": {"name": "reverse", "symbols": 5, "length": [1, 4], "rows": 6, "valid_rows": 5, "valid_batches": 2},
        "model": {"name": "gpt", "context": 8, "width": 12, "depth": 2, "heads": 3},
        "optim": {"lr": 1e-2},
        "schedule": {"warmup": 3},
        "run": {"log_every": 1},
    }  # fmt: skip
    for name, value in copy.deepcopy(changes).items():
        *sections, key = name.split("__")
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return table


VECTORS = {
    "data": {"name": "identity", "width": 4, "rows": 6, "valid_rows": 5, "valid_batches": 2},
    "model": {"name": "deep", "depth": 3},
}

# Trainings of two players
SMALL = {"name": "mlp", "hidden": 8, "depth": 1}
GAN = {
    "steps": 9, "seed": 3,
    "data": {"name": "gaussians", "modes": 3, "rows": 10, "valid_rows": 12, "valid_batches": 2},
    "objective": {"name": "gan", "latent": 3},
    "players": {
        "generator": {"model": SMALL, "optim": {"lr": 3e-3, "ema": 0.8}},
        "discriminator": {"model": SMALL, "optim": {"name": "sgd", "lr": 1e-2}, "schedule": {"shape": "constant"}},
    },
    "run": {"log_every": 1, "valid_every": 3, "save_every": 2, "inside_every": 4},
}  # fmt: skip
STUDENT = {
    "steps": 9, "seed": 3,
    "data": {"name": "gaussians", "modes": 3, "rows": 10, "valid_rows": 12, "valid_batches": 2},
    "objective": {"name": "self-distillation", "momentum": {"start": 0.5, "final": 1.0}},
    "players": {"student": {"model": SMALL | {"outputs": 5}}},
    "optim": {"lr": 1e-2, "decay": {"start": 0.0, "final": 0.5}},
    "run": {"log_every": 1, "valid_every": 3, "save_every": 2},
}  # fmt: skip


def go(table, out, *overrides, device="cpu", quiet=True, **options):
    """Train a recipe in a folder."""
    return train(table, *overrides, out=out, device=device, quiet=quiet, **options)


def pictures(folder):
    """Create red and green images, in a folder each; returns the data section of a recipe."""
    for name, colour in (("green", (30, 200, 30)), ("red", (200, 30, 30))):
        (folder / name).mkdir(parents=True)
        for i in range(9):
            Image.new("RGB", (12, 10), tuple(c + 5 * i for c in colour)).save(folder / name / f"{i}.png")
    return {"name": "images", "path": str(folder), "size": 8, "rows": 5, "share": 0.25, "valid_rows": 3}


def state(folder):
    """Every tensor of the newest checkpoint."""
    checkpoint = latest(folder / "checkpoints", say=lambda words: (_ for _ in ()).throw(AssertionError(words)))
    return {name: checkpoint.read(name) for name in checkpoint.names} | {"step": torch.tensor(checkpoint.step)}


def weights(bundle):
    return {name: x.detach() for name, x in bundle.model.state_dict().items()}


def metrics(folder):
    """The metrics without timings."""
    records = Folder(folder, create=False, lock=False).metrics()
    return [{name: x for name, x in record.items() if name not in TIMES} for record in records]


def same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert torch.equal(a[name], b[name]), f"{name} differs by {(a[name].double() - b[name].double()).abs().max()}"


def near(a, b, **tolerance):
    torch.testing.assert_close(a, b, **tolerance)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The options of Normed and Pixels."""

    width: int = 4  # of vectors
    classes: int = 2  # of images


class Normed(Model):
    """Vectors -> vectors, through a batch norm."""

    reads, can = "vectors", frozenset({"map"})

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.first, self.norm = nn.Linear(config.width, 7, bias=False), nn.BatchNorm1d(7)
        self.last = nn.Linear(7, config.width)

    def forward(self, x):
        return self.last(F.relu(self.norm(self.first(x))))


class Pixels(Model):
    """Images -> the logits of classes, through a batch norm."""

    reads, can = "images", frozenset({"classify"})

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.first, self.norm = nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5)
        self.head = nn.Linear(5, config.classes)

    def forward(self, images):
        return self.head(F.relu(self.norm(self.first(images))).mean((2, 3)))


@dataclass(frozen=True, kw_only=True, slots=True)
class GridConfig:
    """The options of Grid and Tower."""

    classes: int = 2
    grid: int = 2  # rows and columns of patches
    attention: bool = True


class Grid(Model):
    """Images -> the logits of classes: patches, one stage of a convolution and one of attention."""

    reads, can = "images", frozenset({"classify"})

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.patches = Patches(12, patch=4, grid=config.grid)
        conv = nn.Sequential(nn.Conv1d(12, 12, 3, padding=1), nn.ReLU())
        self.stages = nn.ModuleList([nn.ModuleList([conv])])
        self.blocks = nn.ModuleList([Block(12, 3)] if config.attention else [])
        self.head = nn.Linear(12, config.classes)

    def forward(self, images):
        x = self.patches(images)
        x = self.stages[0][0](x.mT).mT
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Tower(Model):
    """A grid inside another model."""

    reads, can = "images", frozenset({"classify"})

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder = Grid(config)
        self.head = nn.Linear(config.classes, config.classes)

    def forward(self, images):
        return self.head(self.encoder(images))


OWN = {"normed": (Normed, Config), "pixels": (Pixels, Config), "grid": (Grid, GridConfig), "tower": (Tower, GridConfig)}
for _name, (_kind, _) in OWN.items():
    _kind.__module__ = f"clearhead.models.{_name}"


@contextmanager
def own_models():
    """Context in which the models of this file are registered families, and the peak speed is not measured."""
    with ExitStack() as stack:
        modules = {kind.__module__: ModuleType(kind.__module__) for kind, _ in OWN.values()}
        for kind, config in OWN.values():
            vars(modules[kind.__module__]).update({kind.__name__: kind, "Config": config})
        names = {name: (name, kind.__name__, "") for name, (kind, _) in OWN.items()}
        sys.modules.update(modules)  # not patch.dict, which would also remove modules that are imported meanwhile
        for name in modules:
            stack.callback(sys.modules.pop, name)
        stack.enter_context(patch.dict(FAMILIES, names))
        # The measurement would take longer than these runs.
        stack.enter_context(patch.object(progress, "peak", lambda *_: 1e12))
        yield

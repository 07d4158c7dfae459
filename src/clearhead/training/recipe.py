"""A recipe: everything that decides a training, in one file. Two runs of one recipe differ in nothing but time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import config
from ..data import data_config, names
from ..errors import InputError, nearest
from ..models import FAMILIES, family
from .initialisation import WORDS
from .optim import OptimConfig
from .schedule import ScheduleConfig

PRECISIONS = ("float32", "tf32", "bfloat16")
SPREADS = ("ddp", "fsdp")
LEARNS = ("all", "head")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """What is written while training, and how often. Nothing here changes what is learned, but `patience`."""

    log_every: int = 10  # steps between two lines of metrics
    valid_every: int = 0  # steps between two validations; 0: only after the last step
    save_every: int = 0  # steps between two checkpoints; 0: only after the last step
    inside_every: int = 0  # steps between two looks inside; 0: never
    sample_every: int = 0  # steps between two times that a few samples are written, and after the last; 0: never
    keep: int = 2  # checkpoints that are kept
    patience: int = 0  # validations without a better loss after which training stops; 0: never

    def __post_init__(self) -> None:
        for name in ("log_every", "keep"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        for name in ("valid_every", "save_every", "inside_every", "sample_every", "patience"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)}: expected 0 or more")
        if self.patience and not self.valid_every:
            raise InputError("patience counts validations: expected valid_every of 1 step or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Model, data and the way from one to the other."""

    steps: int  # updates of the weights
    data: dict[str, Any]  # name = which data, and that data's own options
    model: dict[str, Any]  # name = which family, and that family's own options; sizes that data decides may be left out
    seed: int = 0  # of weights, batches and dropout
    initial: str = "default"  # first weights: default xavier kaiming normal
    pretrained: str | None = None  # a folder whose weights are gone on from, its own head left out where it has another
    learn: str = "all"  # all weights, or only those of the head
    smoothing: float = 0.0  # share of each target that is spread over the vocabulary
    accumulate: int = 1  # parts in which each batch goes through the model, to need less memory
    precision: str = "float32"  # float32; tf32: its products in 19 bits (GPU); bfloat16: computed in, float32 masters
    recompute: bool = False  # forget activations inside blocks, and compute them again in the backward pass
    compile: bool = False  # torch.compile
    deterministic: bool = False  # the same bits on a GPU too, at some cost
    spread: str = "ddp"  # under torchrun: ddp, a copy of the model a worker; fsdp, a share of it
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps={self.steps}: expected 1 or more")
        if self.accumulate < 1:
            raise InputError(f"accumulate={self.accumulate}: expected 1 or more parts")
        if not 0.0 <= self.smoothing < 1.0:
            raise InputError(f"smoothing={self.smoothing}: expected a share from 0 to below 1")
        for name, known in (("initial", WORDS), ("precision", PRECISIONS), ("spread", SPREADS), ("learn", LEARNS)):
            if getattr(self, name) not in known:
                raise InputError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(known)}")
        if self.learn == "head" and self.pretrained is None:
            raise InputError("learn='head' leaves all other weights as they began: expected pretrained, a folder")


# What a resumed run may set anew: how far it goes, what it writes, and what changes no more than rounding.
MAY_CHANGE = ("steps", "run", "spread", "compile", "recompute", "accumulate")


def read_recipe(source: str | Path | Mapping[str, Any] | Recipe, *overrides: str) -> Recipe:
    """A recipe from a file, a table or a recipe, with dotted overrides; checked to the last key before anything is
    built."""
    if isinstance(source, Recipe):
        source = config.dump(source)
    table = config.load(source) if isinstance(source, str | Path) else source
    recipe = config.read(Recipe, config.override(table, *overrides))
    section(recipe, "data")
    section(recipe, "model")
    return recipe


def section(recipe: Recipe, name: str, **sizes: int) -> tuple[str, Any]:
    """The name of a recipe's data or model and its config, with sizes that only the data knows filled in.

    Without them a model's required sizes may still be missing, and everything else is checked.
    """
    known = list(names()) if name == "data" else list(FAMILIES)
    table: config.Table = getattr(recipe, name)
    kind = table.get("name")
    if kind not in known:
        given = " has no name" if kind is None else f".name = {kind!r}"
        raise config.ConfigError(
            f"{table.origin.place((*table.key, 'name'))}{name}{given}: expected one of {', '.join(known)}"
            + nearest(kind, known)
        )
    options = table.without("name")
    kinds = data_config(kind) if name == "data" else family(kind)[1]
    for size, value in sizes.items():
        if size not in {f.name for f in fields(kinds)}:
            continue
        if options.setdefault(size, value) != value:
            raise config.ConfigError(
                f"{table.origin.place((*table.key, size))}{name}.{size} = {options[size]}: the data says {value}"
            )
    if name == "model" and not sizes:  # stand-ins, to check the rest before there is any data
        for size in ("vocab", "classes"):
            if any(f.name == size and f.default is MISSING for f in fields(kinds)):
                options.setdefault(size, 2)
    return kind, config.read(kinds, options, where=name)

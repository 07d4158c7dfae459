"""A recipe: everything that decides a training, in one file. Two runs of one recipe differ in nothing but time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from .. import config
from ..checks import at_least, one_of
from ..data import data_config, names
from ..errors import InputError, nearest
from ..models import FAMILIES, family
from .augmentation import AUGMENTATIONS
from .initialisation import WORDS
from .objectives import OBJECTIVES, objective_class
from .optim import OptimConfig
from .schedule import ScheduleConfig

PRECISIONS = ("float32", "tf32", "bfloat16")
SPREADS = ("ddp", "fsdp")
LEARNS = ("all", "head")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """What is written while training, and how often. Nothing here changes what is learned, except `patience`."""

    log_every: int = 10  # steps between two lines of metrics
    valid_every: int = 0  # steps between two validations; 0: only after the last step
    save_every: int = 0  # steps between two checkpoints; 0: only after the last step
    inside_every: int = 0  # steps between two looks at activations and gradients; 0: never
    sample_every: int = 0  # steps between two times that samples are written, and after the last step; 0: never
    keep: int = 2  # newest checkpoints that are kept
    best: str | None = None  # measurement whose best checkpoint becomes the model, like valid_accuracy; None: the last
    patience: int = 0  # validations without a better `best` (valid_loss if not given) that end a training; 0: never

    def __post_init__(self) -> None:
        at_least(self, 1, "log_every", "keep")
        at_least(self, 0, "valid_every", "save_every", "inside_every", "sample_every", "patience")
        if (self.patience or self.best) and not self.valid_every:
            word = "patience" if self.patience else "best"
            raise InputError(f"{word} counts validations: expected valid_every of 1 step or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """Weights to start from."""

    folder: str  # a folder, run or name that `load` knows
    into: str | None = None  # a part of the model that they fill, like encoder; None: the whole model
    differ: tuple[str, ...] = ()  # options of the model that may differ from the checkpoint's


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayerConfig:
    """One network of an objective with several; what is not given is as in the recipe's own sections."""

    model: dict[str, Any] = field(default_factory=dict)  # name = which family, and its options
    pretrained: str | Pretrained | tuple[Pretrained, ...] | None = None  # weights to start from
    optim: dict[str, Any] = field(default_factory=dict)  # options that differ from [optim]
    schedule: dict[str, Any] = field(default_factory=dict)  # options that differ from [schedule]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Data, models, and how they are trained."""

    steps: int  # updates of the weights
    data: dict[str, Any]  # name = which data, and its options
    model: dict[str, Any] = field(default_factory=dict)  # name = which family, and its options; the data gives sizes
    objective: dict[str, Any] = field(default_factory=dict)  # name = what is minimised, and its options
    feeds: dict[str, dict[str, Any]] = field(default_factory=dict)  # more data, by name, for objectives that read it
    players: dict[str, PlayerConfig] = field(default_factory=dict)  # the networks of objectives with several
    augment: tuple[dict[str, Any], ...] = ()  # random changes of training images, in order: {name = "flip"}
    seed: int = 0  # of weights, batches and dropout
    initial: str = "default"  # first weights: default, xavier, kaiming or normal
    pretrained: str | Pretrained | tuple[Pretrained, ...] | None = None  # weights to start from; a new head is kept
    learn: str = "all"  # train all weights, or only the head
    accumulate: int = 1  # micro-batches per step, which need less memory
    precision: str = "float32"  # float32; tf32: 19-bit products on a GPU; bfloat16: with float32 master weights
    recompute: bool = False  # gradient checkpointing: recompute the activations of blocks in the backward pass
    compile: bool = False  # torch.compile
    deterministic: bool = False  # the same bits on a GPU too, at some cost
    spread: str = "ddp"  # under torchrun: ddp, every worker has the model; fsdp, each has a shard
    optim: OptimConfig = field(default_factory=OptimConfig)  # the optimiser; players may have their own
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)  # of the learning rate
    run: RunConfig = field(default_factory=RunConfig)  # what is logged, validated and saved, and how often

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "accumulate")
        for name, known in (("initial", WORDS), ("precision", PRECISIONS), ("spread", SPREADS), ("learn", LEARNS)):
            one_of(name, getattr(self, name), known)
        if self.learn == "head" and self.pretrained is None:
            raise InputError("learn='head' leaves all other weights random: expected pretrained, a folder")


# What a resumed run may set anew: how far it goes, what it writes, and what changes no more than rounding.
MAY_CHANGE = ("steps", "run", "spread", "compile", "recompute", "accumulate")


def read_recipe(source: str | Path | Mapping[str, Any] | Recipe, *overrides: str) -> Recipe:
    """Read a recipe from a file, a table or a recipe, with dotted overrides.

    Everything is checked before anything is built, except what only the data or a checkpoint knows.
    """
    if isinstance(source, Recipe):
        source = config.dump(source)
    table = config.load(source) if isinstance(source, str | Path) else source
    table = config.override(table, *overrides)
    _check_moved(table)
    recipe = config.read(Recipe, table)
    for feed in (recipe.data, *recipe.feeds.values()):
        named_options(feed, "data")
    options = named_options(recipe.objective, "objective") if recipe.objective.get("name") else None
    roles = {"model": None} if options is None else objective_class(options[0]).roles
    for player in recipe.players:
        if player not in roles:
            raise config.ConfigError(
                f"{table.place('players', player)}players.{player}: objective "
                f"{recipe.objective.get('name', 'of one model')} has {', '.join(roles)}{nearest(player, roles)}"
            )
        player_optim(recipe, player)
    for player, role in roles.items():
        section = model_section(recipe, player)
        trained = role is None or role.average_of is None
        whole = any(start.into is None for start in pretrained_of(recipe, player))
        if trained and (section.get("name") or not whole):  # else the checkpoint gives the family
            check_model(section, table)
    for one in recipe.augment:
        named_options(one, "augment")
    return recipe


def _check_moved(table: config.Table) -> None:
    """An option of an objective at the top of a recipe is told where it belongs."""
    for name in OBJECTIVES:
        for option in (f.name for f in fields(objective_class(name).Config)):
            if option in table and option not in {f.name for f in fields(Recipe)}:
                raise config.ConfigError(
                    f"{table.place(option)}unknown key {option}: it is an option of the objective; write it below "
                    "[objective]"
                )


def model_section(recipe: Recipe, player: str) -> config.Table:
    """The table that describes a player's model."""
    own = recipe.players[player].model if player in recipe.players else {}
    table = own or recipe.model
    return table if isinstance(table, config.Table) else config.Table(table)


def pretrained_of(recipe: Recipe, player: str) -> tuple[Pretrained, ...]:
    """The weights that a player starts from."""
    own = recipe.players[player].pretrained if player in recipe.players else None
    given = own if own is not None else recipe.pretrained
    if given is None:
        return ()
    if isinstance(given, str):
        return (Pretrained(folder=given),)
    return (given,) if isinstance(given, Pretrained) else tuple(given)


def player_optim(recipe: Recipe, player: str) -> tuple[OptimConfig, ScheduleConfig]:
    """The optimiser and the schedule of a player."""
    if player not in recipe.players:
        return recipe.optim, recipe.schedule
    own = recipe.players[player]
    where = f"players.{player}"
    optim = config.read(OptimConfig, {**config.dump(recipe.optim), **own.optim}, where=f"{where}.optim")
    schedule = config.read(ScheduleConfig, {**config.dump(recipe.schedule), **own.schedule}, where=f"{where}.schedule")
    return optim, schedule


SECTIONS: dict[str, tuple[Any, Any]] = {  # the names that a section may have, and the options of each
    "data": (names, data_config),
    "objective": (lambda: OBJECTIVES, lambda name: objective_class(name).Config),
    "augment": (lambda: AUGMENTATIONS, lambda name: AUGMENTATIONS[name].Config),
    "model": (lambda: FAMILIES, lambda name: family(name)[1]),
}


def named_options(table: Mapping[str, Any], section: str) -> tuple[str, Any]:
    """The name of a section, and its checked options."""
    table = table if isinstance(table, config.Table) else config.Table(table)
    name, kind = section_name(table, section)
    return name, config.read(kind, table.without("name"), where=".".join(table.key) or section)


def section_name(table: config.Table, section: str) -> tuple[str, type[Any]]:
    """The name of a section and the dataclass of its options; raises for a name that is not known."""
    known, options = SECTIONS[section][0](), SECTIONS[section][1]
    name = table.get("name")
    if name not in known:
        given = " has no name" if name is None else f".name = {name!r}"
        where = ".".join(table.key) or section
        raise config.ConfigError(
            f"{table.place('name')}{where}{given}: expected one of {', '.join(known)}{nearest(name, known)}"
        )
    return str(name), options(name)


def check_model(table: config.Table, recipe: config.Table) -> None:
    """Check the options of a model before its sizes are known: those that the data gives may be missing."""
    if not table and not table.key:
        raise config.ConfigError(f"{recipe.place('model')}model has no name: expected one of {', '.join(FAMILIES)}")
    _, kind = section_name(table, "model")
    hints = get_type_hints(kind)
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    stand_in = {name: 2 for name in needed if hints[name] is int and name not in table}
    config.read(kind, table.without("name").with_defaults(stand_in), where=".".join(table.key) or "model")

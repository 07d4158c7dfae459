"""A recipe: all settings of a training, in one file. Two runs of the same recipe differ only in their timings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from .. import config
from ..checks import at_least, fraction, one_of
from ..data import data_config, names
from ..errors import InputError, nearest
from ..layers.lora import as_words
from ..models import FAMILIES, family
from ..weights.checkpoints.pretrained import Pretrained
from .augmentation import AUGMENTATIONS
from .objectives import OBJECTIVES, Role, objective_class
from .optim.optimisers import OptimConfig
from .optim.schedule import ScheduleConfig
from .start.initialisation import WORDS

# The options of LoRA in a recipe (see layers/lora.py).


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """Low-rank updates of pretrained weights, which are trained instead of them (Hu et al. 2021)."""

    rank: int = 16  # rank of each update
    alpha: float | None = None  # updates are scaled by alpha / rank; None: 2 x rank
    # maps of blocks: q, k, v, o, gate, up, down; or attention, mlp, all
    maps: str | tuple[str, ...] = "all"
    dropout: float = 0.0  # share of the updates' input that is dropped in training
    # add the updates to the weights of the result; false: a small folder in PEFT's layout
    merge: bool = True

    def __post_init__(self) -> None:
        at_least(self, 1, "rank")
        fraction(self, "dropout")
        as_words(self.maps)
        if self.alpha is not None and not 0.0 < self.alpha < float("inf"):
            raise InputError(f"alpha={self.alpha}: expected a number above 0")


PRECISIONS = ("float32", "tf32", "bfloat16")
SPREADS = ("ddp", "fsdp")
LEARNS = ("all", "head")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """What a training logs, validates and saves, and how often; only the last three keys choose the trained weights."""

    log_every: int = 10  # steps between two lines of metrics
    valid_every: int = 0  # steps between two validations; 0: only after the last step
    save_every: int = 0  # steps between two checkpoints; 0: only after the last step
    # minutes after the last checkpoint when another one is written; 0: only save_every
    save_minutes: float = 10.0
    inside_every: int = 0  # steps between two records of activations and gradients; 0: never
    # steps between two sets of text samples, which also follow the last step; 0: never
    sample_every: int = 0
    # validation rows decoded for valid_bleu and valid_chrf; not given: 1000 if `best` is one of them, else 0
    decode: int | None = None
    keep: int = 2  # number of newest checkpoints to keep
    # measurement whose best checkpoint is the result, like valid_accuracy; not given: the last one
    best: str | None = None
    # validations without a better `best` (default valid_loss) after which training stops; 0: never
    patience: int = 0
    # the result is the mean of the weights of this many last checkpoints; 0: the weights of the last step
    average: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "log_every", "keep")
        at_least(self, 0, "valid_every", "save_every", "inside_every", "sample_every")
        at_least(self, 0, "decode", "patience", "average", "save_minutes")
        # one validation, after the last step, leaves nothing to choose from
        if (self.patience or self.best) and not self.valid_every:
            word = "patience" if self.patience else "best"
            raise InputError(f"{word} counts validations: expected valid_every of 1 step or more")
        # only multiples of save_every count, since other checkpoints depend on interruptions
        if self.average > 1 and not self.save_every:
            raise InputError(
                f"average={self.average} is of checkpoints: expected save_every of 1 step or more"
            )
        if self.average and (self.best or self.patience):
            word = "best" if self.best else "patience"
            raise InputError(
                f"average={self.average} and {word} choose different weights, the mean of the last checkpoints and the "
                "best one: expected one of them"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayerConfig:
    """One network of an objective that trains several."""

    model: dict[str, Any] = field(default_factory=dict)  # name = which family, and its options
    pretrained: str | Pretrained | tuple[Pretrained, ...] | None = None  # weights to start from
    optim: dict[str, Any] = field(default_factory=dict)  # options that differ from [optim]
    schedule: dict[str, Any] = field(default_factory=dict)  # options that differ from [schedule]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All settings of a training: the data, the model, the objective, and how to optimise.

    Examples:
        >>> recipe = read_recipe({"steps": 9, "data": {"name": "reverse"}, "model": {"name": "gpt"}})
        >>> recipe.steps, recipe.precision, recipe.optim.name
        (9, 'float32', 'adamw')
    """

    steps: int  # number of optimiser steps
    data: dict[str, Any]  # name of the dataset, and its options
    # name of the family, and its options; the data gives sizes
    model: dict[str, Any] = field(default_factory=dict)
    # name of what is minimised, and its options
    objective: dict[str, Any] = field(default_factory=dict)
    # further datasets by name, for objectives that need them
    feeds: dict[str, dict[str, Any]] = field(default_factory=dict)
    # the networks of objectives with several
    players: dict[str, PlayerConfig] = field(default_factory=dict)
    # augmentations of training images, in order: {name = "flip"}
    augment: tuple[dict[str, Any], ...] = ()
    seed: int = 0  # seed of initial weights, batches and dropout
    initial: str = "default"  # initialisation of the weights: default, xavier, kaiming or normal
    # weights to start from; a new head is kept
    pretrained: str | Pretrained | tuple[Pretrained, ...] | None = None
    learn: str = "all"  # train all weights, or only the head
    freeze: tuple[str, ...] = ()  # submodules whose weights are not trained, like encoder
    # train low-rank updates of the pretrained weights, and a new head; None: weights
    lora: LoraConfig | None = None
    accumulate: int = 1  # micro-batches per step (gradient accumulation); more need less memory
    # Float32; tf32: TF32 matrix products on a GPU; bfloat16: with float32 master weights
    precision: str = "float32"
    # gradient checkpointing: recompute the activations of blocks in the backward pass
    recompute: bool = False
    compile: bool = False  # torch.compile
    deterministic: bool = False  # use deterministic GPU kernels, which are slower
    # under torchrun: ddp, each worker holds the whole model; fsdp, each holds a shard
    spread: str = "ddp"
    # the optimiser; a player may have its own
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)  # the learning-rate schedule
    # what is logged, validated and saved, and how often
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "accumulate")
        one_of("initial", self.initial, WORDS)
        one_of("precision", self.precision, PRECISIONS)
        one_of("spread", self.spread, SPREADS)
        one_of("learn", self.learn, LEARNS)
        if len(self.averaged_steps) < self.run.average:
            raise InputError(
                f"run.average={self.run.average}: {self.steps} steps with save_every={self.run.save_every} give "
                f"{len(self.averaged_steps)} checkpoints: expected no more than these"
            )
        # of the whole recipe, or of its players
        starts = [self.pretrained, *(player.pretrained for player in self.players.values())]
        if self.learn == "head" and not any(start is not None for start in starts):
            raise InputError(
                "learn='head' leaves all other weights random: expected pretrained, a folder"
            )
        # adapters are inside the blocks, which learn = "head" freezes
        if self.lora is not None and self.learn == "head":
            raise InputError(
                "learn='head' trains no adapters: expected learn='all' with lora, or no lora"
            )

    @property
    def averaged_steps(self) -> list[int]:
        """The steps of the last run.average checkpoints, oldest first: the last step, and multiples of run.save_every.

        Checkpoints that an interruption or run.save_minutes wrote do not count, so that a resumed run has the same
        average.
        """
        if not self.run.average:
            return []
        every = self.run.save_every
        regular = range(every, self.steps, every) if every else ()
        return [*regular, self.steps][-self.run.average :]


# Keys that may change when a run is resumed: its length, what it logs and saves, and what changes only rounding.
MAY_CHANGE = (
    "steps", "run", "spread", "compile", "recompute", "accumulate", "schedule.warmup", "optim.ema",
)  # fmt: skip


def read_recipe(source: str | Path | Mapping[str, Any] | Recipe, *overrides: str) -> Recipe:
    """Read and check a recipe, with overrides.

    Sizes that the data or a checkpoint gives are checked later, when these are opened.

    Args:
        source: A .toml or .json file, the name of a recipe that ships, a table, or a Recipe.
        overrides: Values to change: "optim.lr=1e-3".

    Raises:
        ConfigError: A key or a value is wrong; the message names its place.

    Examples:
        >>> table = {"steps": 9, "data": {"name": "reverse"}, "model": {"name": "gpt"}}
        >>> read_recipe(table, "optim.lr=3e-4", "model.positions=rotary").optim.lr
        0.0003
        >>> read_recipe(table, "optim.rate=3e-4")
        Traceback (most recent call last):
        ...
        clearhead.config.ConfigError: on the command line: unknown key optim.rate; ...
    """
    # a Recipe takes overrides, too, and is checked again
    if isinstance(source, Recipe):
        source = config.dump(source)
    if not isinstance(source, str | Path | Mapping):
        raise config.ConfigError(
            f"{source!r}: expected a recipe: a .toml or .json file, or a table"
        )
    if isinstance(source, str | Path):
        source = config.load(config.find_recipe(source))
    table = config.override(source, *overrides)
    _check_finite(table, ())
    _check_moved(table)
    recipe = config.read(Recipe, table)
    # The sections with names have options of their own, which are read here to check them.
    for dataset in (recipe.data, *recipe.feeds.values()):
        named_options(dataset, "data")
    if recipe.objective.get("name"):
        named_options(recipe.objective, "objective")
    _check_players(recipe, table)
    _check_lora(recipe)
    for player in _trained_players(recipe):
        section = model_section(recipe, player)
        whole = any(start.is_whole for start in pretrained_of(recipe, player))
        if section.get("name") or not whole:  # otherwise the checkpoint gives the family
            check_model(section)
    for augmentation in recipe.augment:
        named_options(augmentation, "augment")
    return recipe


def _check_moved(table: config.Table) -> None:
    """Raise if an option of an objective is at the top level of a recipe; the message names its section."""
    known = {f.name for f in fields(Recipe)}
    for name in OBJECTIVES:
        for option in (f.name for f in fields(objective_class(name).Config)):
            # such as smoothing, which belongs below [objective]
            if option in table and option not in known:
                raise config.ConfigError(
                    f"{table.place(option)}unknown key {option}: it is an option of the objective; write it below "
                    "[objective]"
                )


def _roles(recipe: Recipe) -> Mapping[str, Role]:
    name = recipe.objective.get("name")
    return objective_class(name).roles if name else {"model": Role()}


def _trained_players(recipe: Recipe) -> list[str]:
    return [player for player, role in _roles(recipe).items() if role.average_of is None]


def _check_players(recipe: Recipe, table: config.Table) -> None:
    """Raise if a section of a player, or one for all players, would be ignored."""
    roles = _roles(recipe)
    for player in recipe.players:
        # file and line, for the messages below
        place = f"{table.place('players', player)}players.{player}"
        if player not in roles:
            name = recipe.objective.get("name")
            what = f"objective {name}" if name else "a recipe without objective.name"
            raise config.ConfigError(
                f"{place}: {what} has {', '.join(roles)}{nearest(player, roles)}"
            )
        source = roles[player].average_of
        if source is not None:
            raise config.ConfigError(
                f"{place}: the {player} is a moving average of the {source}, and has its model: expected no section "
                f"of its own; write players.{source}"
            )
        # reads the player's optimiser and schedule, so that a mistake is found now
        player_optim(recipe, player)
    for key in ("model", "pretrained"):
        # [model] is for the only player, unless it has a section of its own
        own = [player for player in recipe.players if getattr(recipe.players[player], key)]
        if getattr(recipe, key) and (len(roles) > 1 or own):
            names = ", ".join(f"players.{player}.{key}" for player in _trained_players(recipe))
            problem = "it is given twice"
            if len(roles) > 1:
                problem = f"the players of this objective are {', '.join(roles)}"
            raise config.ConfigError(f"{table.place(key)}{key}: {problem}: expected only {names}")


def _check_lora(recipe: Recipe) -> None:
    """Raise unless every player of a recipe with LoRA starts from pretrained weights."""
    if recipe.lora is None:
        return
    place = place_of(recipe, ("lora",))
    if recipe.run.average > 1:
        raise config.ConfigError(
            f"{place}lora with run.average = {recipe.run.average}: the mean of adapters is not the adapter of the mean "
            "weights: expected one of the two"
        )
    for player, role in _roles(recipe).items():
        # a teacher averages whole weights, of which LoRA trains none
        if role.average_of is not None:
            raise config.ConfigError(
                f"{place}lora: the {player} is a moving average of all weights of the {role.average_of}, and LoRA "
                "trains only adapters: expected an objective without such a player"
            )
        # adapters of random weights would leave the model random
        if not pretrained_of(recipe, player):
            key = ".".join(section_key(recipe, player, "pretrained"))
            raise config.ConfigError(
                f"{place}lora adapts pretrained weights, which stay as they are, and the {player} starts from random "
                f"ones: expected {key}, a folder"
            )
        starts = pretrained_of(recipe, player)
        is_one_checkpoint = len(starts) == 1 and starts[0].is_whole
        # PEFT's folder names one base model
        if not recipe.lora.merge and not is_one_checkpoint:
            raise config.ConfigError(
                f"{place}lora.merge = false keeps the adapters of one whole checkpoint apart, and the {player} has "
                "parts: expected lora.merge = true"
            )


def section_key(recipe: Recipe, player: str, name: str) -> config.Key:
    """The key of a player's section, such as model: ("players", "generator", "model"), or ("model",) if it is alone."""
    own = player in recipe.players and getattr(recipe.players[player], name)
    return ("players", player, name) if own or len(_roles(recipe)) > 1 else (name,)


def place_of(recipe: Recipe, key: config.Key) -> str:
    """The beginning of a message about a key of a recipe: "file:line: ", or "on the command line: "."""
    return _as_table(recipe.data).origin.place(key)


def model_section(recipe: Recipe, player: str) -> config.Table:
    """The section that describes a player's model: [model], or players.NAME.model if the objective has several."""
    own = recipe.players[player].model if player in recipe.players else {}
    table, key = own or recipe.model, section_key(recipe, player, "model")
    return config.Table(table, origin=_as_table(recipe.data).origin, key=key)


def pretrained_of(recipe: Recipe, player: str) -> tuple[Pretrained, ...]:
    """The pretrained weights that a player is initialised from, in order."""
    starts = recipe.pretrained
    if player in recipe.players and recipe.players[player].pretrained is not None:
        # a player's own weights replace those of the whole recipe
        starts = recipe.players[player].pretrained
    if starts is None:
        return ()
    if isinstance(starts, str):
        return (Pretrained(folder=starts),)
    if isinstance(starts, Pretrained):
        return (starts,)
    return tuple(starts)


def player_optim(recipe: Recipe, player: str) -> tuple[OptimConfig, ScheduleConfig]:
    """The optimiser and the schedule of a player."""
    if player not in recipe.players:
        return recipe.optim, recipe.schedule
    own = recipe.players[player]
    # a player's own options replace those of [optim] one by one
    optim = _as_table(own.optim).with_defaults(config.dump(recipe.optim))
    schedule = _as_table(own.schedule).with_defaults(config.dump(recipe.schedule))
    where = f"players.{player}"
    return (
        config.read(OptimConfig, optim, where=f"{where}.optim"),
        config.read(ScheduleConfig, schedule, where=f"{where}.schedule"),
    )


# for each section: its possible names, and the options of a name
SECTIONS: dict[str, tuple[Any, Any]] = {
    "data": (names, data_config),
    "objective": (lambda: OBJECTIVES, lambda name: objective_class(name).Config),
    "augment": (lambda: AUGMENTATIONS, lambda name: AUGMENTATIONS[name].Config),
    "model": (lambda: FAMILIES, lambda name: family(name)[1]),
}


def named_options(table: Mapping[str, Any], section: str) -> tuple[str, Any]:
    """The name of a section, and its checked options."""
    table = _as_table(table)
    name, kind = section_name(table, section)
    return name, config.read(kind, table.without("name"), where=".".join(table.key) or section)


def _check_finite(table: Mapping[str, Any], key: tuple[str, ...]) -> None:
    """Raise if a number is infinite or NaN, which no option can be."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            _check_finite(value, (*key, name))
        elif isinstance(value, float) and not math.isfinite(value):
            place = table.place(name) if isinstance(table, config.Table) else ""
            raise config.ConfigError(
                f"{place}{'.'.join((*key, name))} = {value}: expected a finite number"
            )


def section_name(table: config.Table, section: str) -> tuple[str, type[Any]]:
    """The name of a section and the dataclass of its options; raises for an unknown name."""
    known, options = SECTIONS[section][0](), SECTIONS[section][1]
    name = table.get("name")
    if not isinstance(name, str) or name not in known:
        problem = " has no name" if name is None else f".name = {name!r}"
        # the key as the file has it: players.generator.model
        where = ".".join(table.key) or section
        own = ""
        if section == "objective":
            own = ". An objective of your own must be registered in the process that trains it"
        raise config.ConfigError(
            f"{table.place('name')}{where}{problem}: expected one of {', '.join(known)}{nearest(str(name), known)}{own}"
        )
    return str(name), options(name)


def check_model(table: config.Table) -> None:
    """Check the options of a model without the data: the sizes that the data gives may be missing."""
    if not table:
        where = ".".join(table.key)
        problem = f"{where} is missing: expected a name,"
        if where == "model":
            problem = "model has no name: expected"
        raise config.ConfigError(f"{table.place()}{problem} one of {', '.join(FAMILIES)}")
    _, kind = section_name(table, "model")
    # 2 for each size that is missing: any number will do to check the other options
    hints = get_type_hints(kind)
    stand_in = {}
    for option in fields(kind):
        is_required = option.default is MISSING and option.default_factory is MISSING
        if is_required and hints[option.name] is int and option.name not in table:
            stand_in[option.name] = 2
    config.read(kind, table.without("name").with_defaults(stand_in), where=".".join(table.key))


def _as_table(values: Mapping[str, Any]) -> config.Table:
    return values if isinstance(values, config.Table) else config.Table(values)

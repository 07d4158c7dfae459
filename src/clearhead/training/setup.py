"""The setup of a training: the objective and each player's model, with the sizes that the data or a checkpoint gives.

It is saved in the run folder as setup.json, so that a resumed run does not need the checkpoint that it started from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .. import config
from ..data import Data
from ..errors import InputError
from ..models import INPUT_KEYS, Model, family
from ..weights import read_config
from ..weights.fill import on_meta_device
from .objectives import Objective, check_data, check_players, choose, objective_class
from .recipe import Recipe, model_section, named_options, pretrained_of, section_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayerSetup:
    """The model of a player: its family and all its options."""

    model: str  # name of the family
    options: dict[str, Any]  # all fields of its Config

    @property
    def config(self) -> Any:
        return config.read(family(self.model)[1], self.options)

    def build(self) -> Model:
        """Build the model, with random weights."""
        return family(self.model)[0](self.config)

    def empty(self) -> Model:
        """Build the model without allocating memory or drawing random numbers, to see what it reads and can do."""
        with on_meta_device():
            return self.build()


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The objective of a training with its options, and the model of each player."""

    objective: str  # name
    options: dict[str, Any]  # of the objective
    players: dict[str, PlayerSetup]

    @property
    def objective_class(self) -> type[Objective]:
        return objective_class(self.objective)


def resolve(recipe: Recipe, data: Data, feeds: Mapping[str, Data], before: Setup | None = None) -> Setup:
    """Choose the objective and complete each player's options; raises if the recipe and its data do not fit.

    `before` is the setup of a run that is resumed. It replaces the checkpoints that its players started from, which may
    have been deleted.
    """
    name = recipe.objective.get("name")
    if recipe.augment and data.preprocessing is None:
        raise InputError(f"augment needs images, and this data gives {', '.join(data.keys)}: leave it out")
    if name is None:
        player = _resolved(recipe, "model", data.sizes, data, before)
        name = choose(player.model, player.empty().can, data)
        options = _options(recipe, name)
        players = {"model": player}
    else:
        options = _options(recipe, str(name))
        kind = objective_class(str(name))
        check_data(str(name), data, feeds)
        sizes = kind.sizes(config.read(kind.Config, options), data)
        players = {}
        for player_name, role in kind.roles.items():
            if role.average_of is None:
                players[player_name] = _resolved(recipe, player_name, sizes.get(player_name, {}), data, before)
        players |= {n: players[role.average_of] for n, role in kind.roles.items() if role.average_of is not None}
    check_players(str(name), {player: setup.empty().can for player, setup in players.items()})
    check_data(str(name), data, feeds)
    _check_inputs(str(name), players, data, feeds)
    return Setup(objective=str(name), options=options, players=players)


def _options(recipe: Recipe, name: str) -> dict[str, Any]:
    table = recipe.objective if isinstance(recipe.objective, config.Table) else config.Table(recipe.objective)
    _, options = named_options(table.with_defaults({"name": name}), "objective")
    return config.dump(options)


def _check_inputs(name: str, players: Mapping[str, PlayerSetup], data: Data, feeds: Mapping[str, Data]) -> None:
    """Raise unless the data has the kind of input that each model reads."""
    keys = [*data.keys, *(key for feed in feeds.values() for key in feed.keys)]
    for player, role in objective_class(name).roles.items():
        reads = players[player].empty().reads
        if role.reads_batch and INPUT_KEYS[reads] not in keys:
            raise InputError(
                f"the {player} is a {players[player].model}, which reads {reads}, and the data gives "
                f"{', '.join(keys)}: expected data with {INPUT_KEYS[reads]}"
            )


def _resolved(
    recipe: Recipe, player: str, sizes: Mapping[str, int], data: Data, before: Setup | None
) -> PlayerSetup:  # fmt: skip
    """A player's model; each option comes from the recipe, else the checkpoint, else the data, else its default."""
    table = model_section(recipe, player)
    start = next((one for one in pretrained_of(recipe, player) if one.into is None), None)
    saved: dict[str, Any] = {}
    name = table.get("name")
    if start is not None:
        if before is not None and player in before.players:
            theirs, saved = before.players[player].model, before.players[player].options
        else:
            theirs, saved = read_config(start.folder)
        if name is not None and name != theirs:
            raise InputError(f"pretrained={start.folder!r} is a {theirs}: [model] expects a {name}")
        name = theirs
    name, kind = section_name(table.with_defaults({"name": name}) if name else table, "model")
    given = table.without("name")
    if start is not None:
        _check_differences(given, saved, {*family(name)[0].may_differ, *start.differ}, start.folder)
    options = given.with_defaults(saved)
    for size, value in sizes.items():
        if size not in {f.name for f in fields(kind)}:
            continue
        if size in saved and size not in given and size in family(name)[0].may_differ:
            options[size] = value
        elif options.setdefault(size, value) != value:
            raise config.ConfigError(f"{table.place(size)}model.{size} = {options[size]}: the data has {value}")
    _fit_context(options, kind, data, table, trained=start is not None)
    complete = config.read(kind, options, where=".".join(table.key) or "model")
    return PlayerSetup(model=name, options=config.dump(complete))


def _check_differences(given: config.Table, saved: Mapping[str, Any], free: set[str], folder: str) -> None:
    """Raise if an option of the recipe contradicts the checkpoint, whose weights depend on it."""
    for option, value in given.items():
        if option not in free and option in saved and saved[option] != value:
            raise config.ConfigError(
                f"{given.place(option)}model.{option} = {value!r}: the checkpoint {folder} has {saved[option]!r}; "
                f"leave it out or, if the weights can be used with another, write "
                f'pretrained = {{folder = "{folder}", differ = ["{option}"]}}'
            )


def _fit_context(options: config.Table, kind: type[Any], data: Data, table: config.Table, *, trained: bool) -> None:
    """Take the context from the data; raise if it is too short, or leaves learned positions untrained."""
    known = {f.name: f for f in fields(kind)}
    if "context" not in known or data.longest is None:
        return
    learned = "positions" in known and options.get("positions", known["positions"].default) == "learned"
    if "context" not in options:
        if learned or data.sets_context:
            options["context"] = data.longest
        return
    context = options["context"]
    if not isinstance(context, int):
        return  # reported when the options are read
    if context < data.longest:
        raise config.ConfigError(
            f"{table.place('context')}model.context = {context}: the data has rows of up to {data.longest} tokens"
        )
    if learned and context > data.longest and not trained:
        raise config.ConfigError(
            f"{table.place('context')}model.context = {context}: the data has rows of up to {data.longest} tokens, and "
            f"learned positions past them would never be trained; expected {data.longest}, or leave it out"
        )

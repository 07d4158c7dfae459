"""The setup of a training: the objective and each player's model, with every size that the data or a checkpoint gives.

It is kept in the run folder as setup.json, so that a resumed run does not need the checkpoint that it started from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from .. import config
from ..data import Data
from ..errors import InputError
from ..models import Model, family
from ..weights import read_config
from .objectives import Objective, check_data, check_players, choose, objective_class
from .recipe import Recipe, model_section, named_options, pretrained_of, section_name


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayerSetup:
    """A player's model."""

    model: str  # its family
    options: dict[str, Any]  # all fields of its Config

    @property
    def config(self) -> Any:
        return config.read(family(self.model)[1], self.options)

    def build(self) -> Model:
        """The model, with random weights."""
        return family(self.model)[0](self.config)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What is trained."""

    objective: str
    options: dict[str, Any]  # of the objective
    players: dict[str, PlayerSetup]

    @property
    def kind(self) -> type[Objective]:
        return objective_class(self.objective)


def resolve(recipe: Recipe, data: Data, feeds: Mapping[str, Data], before: Setup | None = None) -> Setup:
    """Find the objective, and complete each player's options; raises where a recipe and its data do not fit.

    `before` is the setup of a run that is resumed: it stands for the checkpoints that its players started from, which
    may be gone.
    """
    name = recipe.objective.get("name")
    if recipe.augment and data.preprocessing is None:
        raise InputError(f"augment changes images, and this data gives {', '.join(data.keys)}: expected it left out")
    if name is None:
        player = _resolved(recipe, "model", data.sizes, data, before)
        name = choose(player.model, _can(player), data)
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
    check_players(str(name), {player: _can(setup) for player, setup in players.items()})
    check_data(str(name), data, feeds)
    return Setup(objective=str(name), options=options, players=players)


def _options(recipe: Recipe, name: str) -> dict[str, Any]:
    table = recipe.objective if isinstance(recipe.objective, config.Table) else config.Table(recipe.objective)
    _, options = named_options(table.with_defaults({"name": name}), "objective")
    return config.dump(options)


def _can(player: PlayerSetup) -> frozenset[str]:
    with torch.device("meta"):  # no numbers are drawn
        return player.build().can


def _resolved(
    recipe: Recipe, player: str, sizes: Mapping[str, int], data: Data, before: Setup | None
) -> PlayerSetup:  # fmt: skip
    """A player's model: each option as the recipe says, else as the checkpoint, the data, or the default has it."""
    table = model_section(recipe, player)
    start = next((one for one in pretrained_of(recipe, player) if one.into is None), None)
    known: dict[str, Any] = {}
    name = table.get("name")
    if start is not None:
        if before is not None and player in before.players:
            theirs, known = before.players[player].model, before.players[player].options
        else:
            theirs, known = read_config(start.folder)
        if name is not None and name != theirs:
            raise InputError(f"pretrained={start.folder!r} is a {theirs}: expected a {name}, as [model] says")
        name = theirs
    name, kind = section_name(table.with_defaults({"name": name}) if name else table, "model")
    given = table.without("name")
    if start is not None:
        _check_differences(given, known, {*family(name)[0].may_differ, *start.differ}, start.folder)
    options = given.with_defaults(known)
    for size, value in sizes.items():
        if size not in {f.name for f in fields(kind)}:
            continue
        if size in known and size not in given and size in family(name)[0].may_differ:
            options[size] = value
        elif options.setdefault(size, value) != value:
            raise config.ConfigError(f"{table.place(size)}model.{size} = {options[size]}: the data has {value}")
    _fit_context(options, kind, data, table, trained=start is not None)
    made = config.read(kind, options, where=".".join(table.key) or "model")
    return PlayerSetup(model=name, options=config.dump(made))


def _check_differences(given: config.Table, known: Mapping[str, Any], free: set[str], folder: str) -> None:
    """Raise if the recipe gives an option that the checkpoint has otherwise: its weights would mean something else."""
    for option, value in given.items():
        if option not in free and option in known and known[option] != value:
            raise config.ConfigError(
                f"{given.place(option)}model.{option} = {value!r}: the checkpoint {folder} has {known[option]!r}; "
                f"leave it out or, if the weights can be used with another, write "
                f'pretrained = {{folder = "{folder}", differ = ["{option}"]}}'
            )


def _fit_context(options: config.Table, kind: type[Any], data: Data, table: config.Table, *, trained: bool) -> None:
    """Take the context from the data, and refuse one that leaves learned positions untrained."""
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
        return  # another message tells it
    if context < data.longest:
        raise config.ConfigError(
            f"{table.place('context')}model.context = {context}: the data has rows of up to {data.longest} tokens"
        )
    if learned and context > data.longest and not trained:
        raise config.ConfigError(
            f"{table.place('context')}model.context = {context}: the data has rows of up to {data.longest} tokens, and "
            f"learned positions past them would never be trained; expected {data.longest}, or leave it out"
        )

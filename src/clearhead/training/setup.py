"""The setup of a training: the objective and each player's model, with the sizes that the data or a checkpoint gives.

It is saved in the run folder as setup.json, so that a resumed run does not need the checkpoint that it started from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from .. import config, tokens
from ..data import Data, data_config
from ..data.images.preprocessing import Preprocessing
from ..errors import InputError, UserError
from ..models import INPUT_KEYS, Model, family
from ..weights import Special
from ..weights.checkpoints.pretrained import Pretrained
from ..weights.fill import on_meta_device
from ..weights.folder import find as find_folder
from ..weights.folder import read_settings
from ..weights.huggingface.preprocessor import read_preprocessing
from .objectives import Objective, check_data, check_players, checked_sizes, choose, objective_class
from .recipe import (
    Recipe,
    model_section,
    named_options,
    place_of,
    pretrained_of,
    section_key,
    section_name,
)
from .start.pretrained import check_apart, check_start, check_whole, pretrained_key, written


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayerSetup:
    """The model of a player: its family and all its options."""

    model: str  # name of the family
    options: dict[str, Any]  # all fields of its Config
    # special ids of the checkpoint that it starts from, where its tokenizer has others
    special: Special | None = None
    chat: str | None = None  # chat template of that checkpoint
    # of that checkpoint, if the data has the same: its outputs keep their order
    labels: tuple[str, ...] | None = None

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

    def with_option(self, option: str, value: Any) -> Model | None:
        """The model with another value of one option, built like `empty`; None if there is no such model."""
        changed = {name: x for name, x in {**self.options, option: value}.items() if x is not None}
        try:
            return PlayerSetup(model=self.model, options=changed).empty()
        except UserError:
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The objective of a training with its options, and the model of each player."""

    objective: str  # name
    options: dict[str, Any]  # of the objective
    players: dict[str, PlayerSetup]

    @property
    def objective_class(self) -> type[Objective]:
        return objective_class(self.objective)


def resolve(
    recipe: Recipe, data: Data, feeds: Mapping[str, Data], before: Setup | None = None
) -> Setup:
    """Choose the objective and complete each player's options; raises if the recipe and its data do not fit.

    `before` is the setup of a run that is resumed. It replaces the checkpoints that its players started from, which may
    have been deleted.
    """
    name = recipe.objective.get("name")
    if recipe.augment and all(one.preprocessing is None for one in (data, *feeds.values())):
        raise InputError(
            f"augment needs images, and this data gives {', '.join(data.keys)}: leave it out"
        )
    if name is None:
        player = _resolved(recipe, "model", data.sizes, data, before)
        name = choose(player.model, player.empty().can, data)
        options = _options(recipe, name)
        players = {"model": player}
    else:
        options = _options(recipe, str(name))
        kind = objective_class(str(name))
        check_data(str(name), data, feeds)
        sizes = checked_sizes(kind, config.read(kind.Config, options), data)
        players = {}
        for player_name, role in kind.roles.items():
            if role.average_of is None:
                players[player_name] = _resolved(
                    recipe, player_name, sizes.get(player_name, {}), data, before
                )
        players |= {
            n: players[role.average_of]
            for n, role in kind.roles.items()
            if role.average_of is not None
        }
    check_players(str(name), {player: setup.empty().can for player, setup in players.items()})
    check_data(str(name), data, feeds)
    _check_inputs(str(name), players, data, feeds)
    if before is None:
        _check_preprocessing(recipe, players, data)
    return Setup(objective=str(name), options=options, players=players)


def _options(recipe: Recipe, name: str) -> dict[str, Any]:
    if isinstance(recipe.objective, config.Table):
        table = recipe.objective
    else:
        table = config.Table(recipe.objective)
    _, options = named_options(table.with_defaults({"name": name}), "objective")
    return config.dump(options)


def _check_inputs(
    name: str, players: Mapping[str, PlayerSetup], data: Data, feeds: Mapping[str, Data]
) -> None:
    """Raise unless the data has the kind of input that each model reads."""
    keys = [*data.keys, *(key for feed in feeds.values() for key in feed.keys)]
    for player, role in objective_class(name).roles.items():
        reads = players[player].empty().reads
        if role.reads_batch and INPUT_KEYS[reads] not in keys:
            raise InputError(
                f"the {player} is a {players[player].model}, which reads {reads}, and the data gives "
                f"{', '.join(keys)}: expected data with {INPUT_KEYS[reads]}"
            )


def _check_preprocessing(recipe: Recipe, players: Mapping[str, PlayerSetup], data: Data) -> None:
    """Raise if images would be prepared otherwise than for the checkpoint, and the recipe does not say so."""
    known = {f.name for f in fields(data_config(recipe.data["name"]))}
    for player in players:
        start = next((one for one in pretrained_of(recipe, player) if one.is_whole), None)
        theirs = None
        if start is not None and data.preprocessing is not None:
            with suppress(UserError):  # a folder without preprocessing that we can read
                theirs = read_preprocessing(find_folder(start.folder)[0])
        if start is None or theirs is None or data.preprocessing is None:
            continue
        ours, wanted = _written(data.preprocessing), _written(theirs)
        missing = [
            key
            for key in wanted
            if key in known and key not in recipe.data and ours[key] != wanted[key]
        ]
        if missing:
            lines = ", ".join(f"data.{key} = {wanted[key]}" for key in missing)
            raise config.ConfigError(
                f"{place_of(recipe, section_key(recipe, player, 'pretrained'))}{pretrained_key(recipe, player)}: the "
                f"checkpoint {start.folder} was trained on images with another {' and '.join(missing)}: write {lines} "
                "to prepare them alike, or the values that you want"
            )


def _written(preprocessing: Preprocessing) -> dict[str, Any]:
    """The options of image data that give a preprocessing."""
    if preprocessing.crop is None:
        size = preprocessing.resize
    else:
        size = preprocessing.crop
    if isinstance(size, tuple):
        size = size[0]
    return {
        "mean": list(preprocessing.mean),
        "deviation": list(preprocessing.deviation),
        "size": size,
    }


def _resolved(
    recipe: Recipe, player: str, sizes: Mapping[str, int], data: Data, before: Setup | None
) -> PlayerSetup:
    """A player's model; each option comes from the recipe, else the checkpoint, else the data, else its default."""
    table, starts = model_section(recipe, player), pretrained_of(recipe, player)
    past = None if before is None else before.players.get(player)
    name, start, saved = (
        table.get("name"),
        next((one for one in starts if one.is_whole), None),
        None,
    )
    if start is not None:
        saved = past or _checkpoint(recipe, player, start)
        if name is not None and name != saved.model:
            if table.key == ("model",):
                section = "[model]"
            else:
                section = ".".join(table.key)
            raise InputError(
                f"{pretrained_key(recipe, player)}={start.folder!r} is a {saved.model}: {section} expects a {name}"
            )
        name = saved.model
    name, kind = section_name(table.with_defaults({"name": name}) if name else table, "model")
    given = table.without("name")
    if start is not None and saved is not None:
        check_whole(recipe, player, given, start, saved)
    sources = _Sources(
        recipe=recipe, player=player, kind=kind, given=given, start=start, saved=saved, data=data
    )
    options = sources.options(sizes, family(name)[0].may_differ)
    complete = config.read(kind, options, where=".".join(table.key))
    setup = PlayerSetup(model=name, options=config.dump(complete))
    if start is not None and saved is not None and "tokens" not in start.differ:
        setup = replace(setup, special=saved.special, chat=saved.chat)
    if (
        start is not None
        and saved is not None
        and sorted(saved.labels or ()) == sorted(data.classes or ())
    ):
        setup = replace(setup, labels=saved.labels)
    if past is None:
        for one in starts:
            if saved is not None and one is start:
                source = saved
            else:
                source = _checkpoint(recipe, player, one)
            check_start(recipe, player, setup, one, given, source)
        if (
            recipe.lora is not None
            and not recipe.lora.merge
            and start is not None
            and saved is not None
        ):
            check_apart(setup, saved, start, data)
    return setup


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sources:
    """Where the options of a player's model come from: its section in the recipe, a checkpoint, and the data."""

    recipe: Recipe
    player: str
    kind: type[Any]  # the Config of its family
    given: config.Table  # the options in the recipe
    start: Pretrained | None  # the checkpoint of the whole model
    saved: PlayerSetup | None  # its options
    data: Data

    def options(self, sizes: Mapping[str, int], may_differ: Collection[str]) -> config.Table:
        """The options of the recipe, completed by those of the checkpoint and the sizes of the data."""
        saved = {} if self.saved is None else self.saved.options
        options = self.given.with_defaults(saved)
        known = {f.name: f for f in fields(self.kind)}
        for size, value in sizes.items():
            if size not in known:
                continue
            if size == "classes" and "answer" in known and size not in self.given:
                self._check_answer(options.get("answer", known["answer"].default), value)
            if size in saved and size not in self.given and size in may_differ:
                options[size] = value
            elif options.setdefault(size, value) != value and not self._has_spare_rows(
                size, options[size], value
            ):
                hint = self._tokens_hint() if size == "vocab" else ""
                raise config.ConfigError(
                    f"{self._value(size, options[size])} the data has {value}{hint}"
                )
        for option, value in self.data.defaults.items():
            if option in known:
                options.setdefault(option, value)
        self._fit_context(options, known)
        return options

    def _has_spare_rows(self, size: str, theirs: Any, value: int) -> bool:
        """True if a checkpoint has more embeddings than its tokenizer, which the data uses, has ids."""
        padded = (
            size.endswith("vocab")
            and self._from_checkpoint(size)
            and bool(self.recipe.data.get("tokens"))
        )
        return padded and isinstance(theirs, int) and theirs > value

    def _value(self, option: str, value: Any) -> str:
        """How a message begins about an option that does not fit the data: its place, its value and its source."""
        name = f"{'.'.join(self.given.key)}.{option} = {value!r}"
        if self._from_checkpoint(option):
            place = place_of(self.recipe, section_key(self.recipe, self.player, "pretrained"))
            return f"{place}{name} comes from the checkpoint {self.start.folder if self.start else ''}, and"
        return f"{self.given.place(option)}{name}:"

    def _from_checkpoint(self, option: str) -> bool:
        return self.saved is not None and option not in self.given and option in self.saved.options

    def _check_answer(self, answer: str, classes: int) -> None:
        """Raise if a model that has other outputs too would not classify data that has classes."""
        if answer != "class":
            name = f"{'.'.join(self.given.key)}.answer"
            if self.start:
                source = f" in the checkpoint {self.start.folder}"
            else:
                source = ""
            source = "" if "answer" in self.given else source or " by default"
            raise config.ConfigError(
                f"{self.given.place('answer')}{name} is {answer!r}{source}, and the data has {classes} classes: write "
                f'{name} = "class"'
            )

    def _tokens_hint(self) -> str:
        """Advice to read the data with the tokenizer of the checkpoint, if it has one and the data can take it."""
        section = self.recipe.data
        known = {f.name for f in fields(data_config(section["name"]))}
        if (
            self.start is None
            or "tokens" not in known
            or section.get("tokens")
            or not self._from_checkpoint("vocab")
        ):
            return ""
        with suppress(UserError):  # the folder of a resumed run may have been deleted
            folder = find_folder(self.start.folder)[0]
            if tokens.saved(folder) is not None and not isinstance(
                tokens.load(folder), tokens.Pair
            ):
                return f'; to read the text with the tokenizer of the checkpoint, write data.tokens = "{folder}"'
        return ""

    def _fit_context(self, options: config.Table, known: Mapping[str, Any]) -> None:
        """Take the context from the data; raise if it is too short, or leaves learned positions untrained."""
        longest = self.data.longest
        if "context" not in known or longest is None:
            return
        learned = (
            "positions" in known
            and options.get("positions", known["positions"].default) == "learned"
        )
        if "context" not in options:
            if learned or self.data.sets_context:
                options["context"] = longest
            return
        context = options["context"]
        if not isinstance(context, int):
            return  # reported when the options are read
        problem = f"{self._value('context', context)} the data has rows of up to {longest} tokens"
        if context < longest:
            if self.start is not None and self._from_checkpoint("context"):
                name, line = (
                    ".".join(self.given.key),
                    written(self.recipe, self.player, self.start, ["context"]),
                )
                problem += (
                    ": its learned positions cannot be extended; expected data with shorter rows"
                    if learned
                    else f"; write {name}.context = {longest} and {line}"
                )
            raise config.ConfigError(problem)
        if learned and context > longest and self.start is None:
            raise config.ConfigError(
                f"{problem}, and learned positions past them would never be trained; expected {longest}, or leave it "
                "out"
            )


def _checkpoint(recipe: Recipe, player: str, start: Pretrained) -> PlayerSetup:
    """The family and the options of a checkpoint; an error names the player that starts from it."""
    try:
        saved = read_settings(start.folder)
    except UserError as problem:
        place = place_of(recipe, section_key(recipe, player, "pretrained"))
        raise type(problem)(f"{place}{pretrained_key(recipe, player)}: {problem}") from problem
    options = config.dump(config.read(family(saved.model)[1], saved.options))
    return PlayerSetup(
        model=saved.model,
        options=options,
        special=saved.special,
        chat=saved.chat,
        labels=saved.labels,
    )

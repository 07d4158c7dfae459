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
        options = {**self.options, option: value}
        given = {name: x for name, x in options.items() if x is not None}
        try:
            return PlayerSetup(model=self.model, options=given).empty()
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
    if recipe.augment and all(dataset.preprocessing is None for dataset in (data, *feeds.values())):
        raise InputError(
            f"augment needs images, and this data gives {', '.join(data.keys)}: leave it out"
        )
    name = recipe.objective.get("name")
    if name is None:
        # The objective follows from what the model can do and what the data gives.
        player = _resolved(recipe, "model", data.sizes, data, before)
        objective = choose(player.model, player.empty().can, data)
        options = _objective_options(recipe, objective)
        players = {"model": player}
    else:
        # The objective may give sizes of its own, such as the inputs of a generator.
        objective = str(name)
        options = _objective_options(recipe, objective)
        check_data(objective, data, feeds)
        players = _resolved_players(recipe, objective, options, data, before)
    # models, data and objective must fit before anything is written
    check_players(objective, {player: setup.empty().can for player, setup in players.items()})
    check_data(objective, data, feeds)
    _check_inputs(objective, players, data, feeds)
    if before is None:
        _check_preprocessing(recipe, players, data)
    return Setup(objective=objective, options=options, players=players)


def _objective_options(recipe: Recipe, name: str) -> dict[str, Any]:
    table = recipe.objective
    if not isinstance(table, config.Table):
        table = config.Table(table)
    _, options = named_options(table.with_defaults({"name": name}), "objective")
    return config.dump(options)


def _resolved_players(
    recipe: Recipe, objective: str, options: Mapping[str, Any], data: Data, before: Setup | None
) -> dict[str, PlayerSetup]:
    """The model of each player of an objective; a moving average has the model of its source."""
    kind = objective_class(objective)
    sizes = checked_sizes(kind, config.read(kind.Config, options), data)
    players = {}
    for name, role in kind.roles.items():
        if role.average_of is None:
            players[name] = _resolved(recipe, name, sizes.get(name, {}), data, before)
    for name, role in kind.roles.items():
        if role.average_of is not None:
            # the second pass: the source is there, wherever it is declared
            players[name] = players[role.average_of]
    return players


def _check_inputs(
    name: str, players: Mapping[str, PlayerSetup], data: Data, feeds: Mapping[str, Data]
) -> None:
    """Raise unless the data has the kind of input that each model reads."""
    keys = [*data.keys, *(key for feed in feeds.values() for key in feed.keys)]
    for player, role in objective_class(name).roles.items():
        reads = players[player].empty().reads
        # a generator reads noise, which the objective makes
        if role.reads_batch and INPUT_KEYS[reads] not in keys:
            raise InputError(
                f"the {player} is a {players[player].model}, which reads {reads}, and the data gives "
                f"{', '.join(keys)}: expected data with {INPUT_KEYS[reads]}"
            )


def _check_preprocessing(recipe: Recipe, players: Mapping[str, PlayerSetup], data: Data) -> None:
    """Raise if images would be preprocessed differently from the checkpoint's, unless the recipe says so."""
    known = {f.name for f in fields(data_config(recipe.data["name"]))}
    for player in players:
        start = _whole_start(recipe, player)
        if start is None or data.preprocessing is None:
            continue
        theirs = None
        with suppress(UserError):  # a folder without preprocessing that we can read
            theirs = read_preprocessing(find_folder(start.folder)[0])
        if theirs is None:
            continue
        ours, wanted = _image_options(data.preprocessing), _image_options(theirs)
        missing = []
        for key in wanted:
            # an option that the data has, and that the recipe leaves to its default
            is_free = key in known and key not in recipe.data
            if is_free and ours[key] != wanted[key]:
                missing.append(key)
        if missing:
            lines = ", ".join(f"data.{key} = {wanted[key]}" for key in missing)
            raise config.ConfigError(
                f"{place_of(recipe, section_key(recipe, player, 'pretrained'))}{pretrained_key(recipe, player)}: the "
                f"checkpoint {start.folder} was trained on images with another {' and '.join(missing)}: write {lines} "
                "to prepare them alike, or the values that you want"
            )


def _image_options(preprocessing: Preprocessing) -> dict[str, Any]:
    """The options of image data that give a preprocessing."""
    size = preprocessing.resize if preprocessing.crop is None else preprocessing.crop
    if isinstance(size, tuple):
        size = size[0]
    return {
        "mean": list(preprocessing.mean),
        "deviation": list(preprocessing.deviation),
        "size": size,
    }


def _whole_start(recipe: Recipe, player: str) -> Pretrained | None:
    """The checkpoint of a player's whole model, if it starts from one."""
    return next((start for start in pretrained_of(recipe, player) if start.is_whole), None)


def _resolved(
    recipe: Recipe, player: str, sizes: Mapping[str, int], data: Data, before: Setup | None
) -> PlayerSetup:
    """A player's model; each option comes from the recipe, else the checkpoint, else the data, else its default."""
    table = model_section(recipe, player)
    start = _whole_start(recipe, player)
    past = None if before is None else before.players.get(player)

    # The family: the checkpoint's, which a name in the recipe may repeat.
    name = table.get("name")
    saved: PlayerSetup | None = None
    if start is not None:
        saved = past or _checkpoint(recipe, player, start)
        if name is not None and name != saved.model:
            section = "[model]" if table.key == ("model",) else ".".join(table.key)
            raise InputError(
                f"{pretrained_key(recipe, player)}={start.folder!r} is a {saved.model}: {section} expects a {name}"
            )
        name = saved.model
    named = table.with_defaults({"name": name}) if name else table
    name, kind = section_name(named, "model")

    # Its options
    given = table.without("name")
    if start is not None and saved is not None:
        check_whole(recipe, player, given, start, saved)
    sources = _Sources(
        recipe=recipe, player=player, kind=kind, given=given, start=start, saved=saved, data=data
    )
    options = sources.options(sizes, family(name)[0].may_differ)
    complete = config.read(kind, options, where=".".join(table.key))
    setup = PlayerSetup(model=name, options=config.dump(complete))

    # What else the checkpoint gives: its tokenizer's special ids, and the order of its classes
    if start is not None and saved is not None:
        if "tokens" not in start.differ:
            setup = replace(setup, special=saved.special, chat=saved.chat)
        if sorted(saved.labels or ()) == sorted(data.classes or ()):
            # the same classes: the data will number them in the order of the checkpoint's head
            setup = replace(setup, labels=saved.labels)
    if past is None:  # a resumed run does not need its checkpoints, which may have been deleted
        _check_starts(recipe, player, setup, given, saved, data)
    return setup


def _check_starts(
    recipe: Recipe,
    player: str,
    setup: PlayerSetup,
    given: config.Table,
    saved: PlayerSetup | None,
    data: Data,
) -> None:
    """Raise unless all checkpoints that a player starts from fit its model."""
    whole = _whole_start(recipe, player)
    for start in pretrained_of(recipe, player):
        # the whole checkpoint has been read already
        source = saved if start == whole else None
        source = source or _checkpoint(recipe, player, start)
        check_start(recipe, player, setup, start, given, source)
    keeps_adapters = recipe.lora is not None and not recipe.lora.merge
    if keeps_adapters and whole is not None and saved is not None:
        check_apart(setup, saved, whole, data)


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
        """The options of the recipe, completed by the checkpoint's and by the sizes of the data."""
        # the recipe comes first, then the checkpoint, then the data
        saved = {} if self.saved is None else self.saved.options
        options = self.given.with_defaults(saved)
        known = {f.name: f for f in fields(self.kind)}
        for size, value in sizes.items():
            # the data may give sizes that this family does not have
            if size not in known:
                continue
            if size == "classes" and "answer" in known and size not in self.given:
                # data with classes, for a model that may also predict masked tokens or embed
                self._check_answer(options.get("answer", known["answer"].default), value)
            if size in saved and size not in self.given and size in may_differ:
                options[size] = value  # such as the classes of a new head
                continue
            # a size that recipe or checkpoint gives must equal the data's
            has = options.setdefault(size, value)
            if has != value and not self._has_spare_rows(size, has, value):
                hint = self._tokens_hint() if size == "vocab" else ""
                raise config.ConfigError(f"{self._value(size, has)} the data has {value}{hint}")
        # what the data would choose, such as positions for a task
        for option, value in self.data.defaults.items():
            if option in known:
                options.setdefault(option, value)
        self._fit_context(options, known)
        return options

    def _has_spare_rows(self, size: str, theirs: Any, value: int) -> bool:
        """True if a checkpoint has more embeddings than its tokenizer, which the data uses, has tokens."""
        is_vocabulary = size.endswith("vocab") and self._from_checkpoint(size)
        if not is_vocabulary or not self.recipe.data.get("tokens"):
            return False
        return isinstance(theirs, int) and theirs > value

    def _value(self, option: str, value: Any) -> str:
        """The beginning of a message about an option that does not fit the data: its place, value and source."""
        name = f"{'.'.join(self.given.key)}.{option} = {value!r}"
        if self._from_checkpoint(option):
            place = place_of(self.recipe, section_key(self.recipe, self.player, "pretrained"))
            folder = self.start.folder if self.start else ""
            return f"{place}{name} comes from the checkpoint {folder}, and"
        return f"{self.given.place(option)}{name}:"

    def _from_checkpoint(self, option: str) -> bool:
        return self.saved is not None and option not in self.given and option in self.saved.options

    def _check_answer(self, answer: str, classes: int) -> None:
        """Raise if the data has classes and the model's option `answer` is not "class"."""
        if answer == "class":
            return
        if "answer" in self.given:
            source = ""
        elif self.start:
            source = f" in the checkpoint {self.start.folder}"
        else:
            source = " by default"
        name = f"{'.'.join(self.given.key)}.answer"
        raise config.ConfigError(
            f"{self.given.place('answer')}{name} is {answer!r}{source}, and the data has {classes} classes: write "
            f'{name} = "class"'
        )

    def _tokens_hint(self) -> str:
        """Advice to read the data with the tokenizer of the checkpoint, if it has one and the data can take it."""
        section = self.recipe.data
        known = {f.name for f in fields(data_config(section["name"]))}
        can_take_one = "tokens" in known and not section.get("tokens")
        if self.start is None or not can_take_one or not self._from_checkpoint("vocab"):
            return ""
        with suppress(UserError):  # the folder of a resumed run may have been deleted
            folder = find_folder(self.start.folder)[0]
            has_one = tokens.saved(folder) is not None
            if has_one and not isinstance(tokens.load(folder), tokens.Pair):
                return f'; to read the text with the tokenizer of the checkpoint, write data.tokens = "{folder}"'
        return ""

    def _fit_context(self, options: config.Table, known: Mapping[str, Any]) -> None:
        """Fit the context to the data; raise if it is too short, or leaves learned positions untrained."""
        longest = self.data.longest
        if "context" not in known or longest is None:
            return
        learned = False
        if "positions" in known:
            # a learned position needs a row of its table; rotary and others are computed
            learned = options.get("positions", known["positions"].default) == "learned"
        if "context" not in options:
            # other positions reach any length, so that the default of the family will do
            if learned or self.data.sets_context:
                options["context"] = longest
            return
        context = options["context"]
        if not isinstance(context, int):
            return  # reported when the options are read
        problem = f"{self._value('context', context)} the data has rows of up to {longest} tokens"
        if context < longest:
            is_theirs = self.start is not None and self._from_checkpoint("context")
            if is_theirs and learned:
                problem += (
                    ": its learned positions cannot be extended; expected data with shorter rows"
                )
            elif self.start is not None and is_theirs:
                # other positions can be extended, if the recipe says that the context differs
                line = written(self.recipe, self.player, self.start, ["context"])
                problem += f"; write {'.'.join(self.given.key)}.context = {longest} and {line}"
            raise config.ConfigError(problem)
        # a checkpoint has trained its positions, whatever the data
        if learned and context > longest and self.start is None:
            raise config.ConfigError(
                f"{problem}, and learned positions past them would never be trained; expected {longest}, or leave it "
                "out"
            )


def _checkpoint(recipe: Recipe, player: str, start: Pretrained) -> PlayerSetup:
    """The family and the options of a checkpoint; an error names the player that starts from it."""
    try:
        # the settings alone: no weight is read yet
        saved = read_settings(start.folder)
    except UserError as problem:
        place = place_of(recipe, section_key(recipe, player, "pretrained"))
        # the same kind of error, with the place in the recipe before it
        raise type(problem)(f"{place}{pretrained_key(recipe, player)}: {problem}") from problem
    options = config.dump(config.read(family(saved.model)[1], saved.options))
    return PlayerSetup(
        model=saved.model,
        options=options,
        special=saved.special,
        chat=saved.chat,
        labels=saved.labels,
    )

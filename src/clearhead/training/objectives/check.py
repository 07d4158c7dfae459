"""Checks of an objective class and of what its methods return, so that a mistake is a sentence that names the class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ...errors import InputError, nearest
from ...models import CAPABILITIES, FAMILIES, family
from .objective import Measurement, Objective, Role, Update, scalar_options

if TYPE_CHECKING:
    from ...data import Data

# the other names in a record of the logs
RESERVED = ("step", "seconds", "rate", "share", "inside", "samples")
PREFIXES = ("norm", "lr", "valid_")  # of gradient norms, learning rates and measurements

# Attribute of a class: (type of the container, type of its elements, an example).
DECLARED: dict[str, tuple[Any, type, str]] = {
    "roles": (Mapping, Role, 'a dict of Role by player, like {"model": Role(can="map")}'),
    "updates": ((tuple, list), Update, 'a tuple of Update, like (Update("model", "loss"),)'),
    "reads": ((tuple, list), str, 'a tuple of batch keys, like ("x",)'),
    "may_read": ((tuple, list), str, 'a tuple of batch keys, like ("labels",)'),
    "measurements": (
        Mapping,
        Measurement,
        'a dict of Measurement by name, like {"loss": Measurement("nats/row")}',
    ),
    "text_measurements": (
        Mapping,
        Measurement,
        'a dict of Measurement by name, like {"bleu": Measurement("score")}',
    ),
}


# The class


def check_objective(kind: Any) -> None:
    """Raise unless a class is an objective whose attributes are complete and agree with each other.

    `register` calls it, and a training does before it builds any network.

    Args:
        kind: The class.

    Raises:
        InputError: The message names the class, the attribute, what was given and what is expected.

    Examples:
        >>> class Absolute(Objective):
        ...     updates = (Update("model", "los"),)
        ...     def loss(self, batch):
        ...         return (self.outputs("model", batch["x"]) - batch["y"]).abs().sum()
        >>> check_objective(Absolute)
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: Absolute.updates: loss='los': expected a method of the class: loss; ...
    """
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise InputError(
            f"{kind!r} is not an objective: expected a subclass of clearhead.training.objectives.Objective"
        )
    if not (isinstance(kind.Config, type) and is_dataclass(kind.Config)):
        raise InputError(
            f"{kind.__name__}.Config = {kind.Config!r}: expected a dataclass of the options"
        )
    for attribute, (container, element, example) in DECLARED.items():
        value: Any = getattr(kind, attribute)
        if isinstance(value, property):  # its value depends on the data
            continue
        entries = value.values() if isinstance(value, Mapping) else value
        if not isinstance(value, container) or not all(
            isinstance(entry, element) for entry in entries
        ):
            raise InputError(f"{kind.__name__}.{attribute} = {value!r}: expected {example}")
    # names first: the checks of updates and logs look players up
    _check_players(kind)
    _check_updates(kind)
    log_names(kind)
    if kind.measurements and kind.measure is Objective.measure:
        raise InputError(
            f"{kind.__name__} declares measurements: expected a method measure(batch) that returns them"
        )
    if kind.text_measurements and Objective.decode is kind.decode:
        raise InputError(
            f"{kind.__name__} declares text_measurements: expected a method decode(bundle, rows), and score(samples) "
            "that returns them"
        )


def _check_players(kind: type[Objective]) -> None:
    for name, role in kind.roles.items():
        if (
            # the name is an attribute of nn.ModuleDict and the first part of names in checkpoints
            not name
            or hasattr(nn.ModuleDict, name)
            or name == "objective"
            or not name.replace("-", "_").isidentifier()
        ):
            raise InputError(
                f"{kind.__name__}.roles: {name!r} cannot name a player: expected another word, of letters, digits and _"
            )
        if role.can is not None:
            _expect(kind, f"roles: {name}: can", role.can, CAPABILITIES)
        if role.average_of is not None:
            _expect(kind, f"roles: {name}: average_of", role.average_of, trained_players(kind))
    _expect(kind, "result", kind.result, kind.roles)


def _check_updates(kind: type[Objective]) -> None:
    if not kind.updates:
        raise InputError(f"{kind.__name__}.updates is empty: expected {DECLARED['updates'][2]}")
    # what the class adds to Objective may be a loss
    methods = [name for name in dir(kind) if name[0] != "_" and not hasattr(Objective, name)]
    methods = [name for name in methods if callable(getattr(kind, name))]
    for update in kind.updates:
        _expect(kind, "updates: player", update.player, kind.roles)
        if (source := kind.roles[update.player].average_of) is not None:
            raise InputError(
                f"{kind.__name__}.updates: player={update.player!r}: it is a moving average of the {source}, which has "
                f"no gradients: expected one of {', '.join(trained_players(kind))}"
            )
        # a method of the base class, such as measure, is no loss
        if hasattr(Objective, update.loss) or not callable(getattr(kind, update.loss, None)):
            raise InputError(
                f"{kind.__name__}.updates: loss={update.loss!r}: expected a method of the class: "
                f"{', '.join(methods) or 'it has none'}{nearest(update.loss, methods)}"
            )
        if not isinstance(update.every, int) or update.every < 1:
            raise InputError(
                f"{kind.__name__}.updates: every={update.every!r}: expected 1 step or more"
            )


def trained_players(kind: type[Objective]) -> list[str]:
    """The players that are trained, and not moving averages of others."""
    return [name for name, role in kind.roles.items() if role.average_of is None]


def _expect(kind: type[Objective], what: str, given: str, known: Iterable[str]) -> None:
    """Raise unless a name is one of the known ones."""
    words = list(known)
    if given not in words:
        if words:
            listed = f"expected one of {', '.join(words)}"
        else:
            listed = "there is none"
        raise InputError(f"{kind.__name__}.{what}={given!r}: {listed}{nearest(given, words)}")


def checked_sizes(kind: type[Objective], options: Any, data: Data) -> dict[str, dict[str, int]]:
    """The model sizes of each player (Objective.sizes); raises for a player or an option that does not exist.

    Args:
        kind: The objective.
        options: Its options, an instance of its Config.
        data: The dataset.

    Examples:
        >>> data = clearhead.data.make_data("identity", {"width": 3}, seed=0)
        >>> class Doubled(Objective):
        ...     @classmethod
        ...     def sizes(cls, config, data):
        ...         return {"model": {"imputs": 2 * data.sizes["width"]}}
        >>> checked_sizes(Doubled, Doubled.Config(), data)
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: Doubled.sizes: model: no model has an option 'imputs'; the nearest is inputs
    """
    sizes = kind.sizes(options, data)
    known: set[str] = set()
    for player, table in sizes.items():
        _expect(kind, "sizes: player", player, kind.roles)
        for option in table:
            # these are the same for every objective, and a model takes those that it has
            if option in data.sizes:
                continue
            # all options of all families, imported only where one is unknown
            known = known or {field.name for name in FAMILIES for field in fields(family(name)[1])}
            if option not in known:
                raise InputError(
                    f"{kind.__name__}.sizes: {player}: no model has an option {option!r}{nearest(option, known)}"
                )
    return sizes


# The names of numbers in the logs


def log_names(kind: type[Objective]) -> dict[str, str]:
    """What each name in the logs stands for, a loss or an option that may be scheduled; raises if two are equal."""
    names: dict[str, str] = {}
    for update in kind.updates:
        add_log_name(kind, names, update.loss, f"the loss of the {update.player}")
    for option in scalar_options(kind.Config):
        add_log_name(kind, names, option, "an option of the type Scalar")
    return names


def add_log_name(kind: type[Objective], names: dict[str, str], name: str, what: str) -> None:
    """Add the name of a number in the logs; raise if it is reserved, or if another number has it."""
    # such as "norm_generator" or "valid_loss"
    if name in RESERVED or name.startswith(PREFIXES):
        raise InputError(
            f"{kind.__name__}: {what} is named {name!r}: expected another name, because the logs use "
            f"{', '.join(RESERVED)} and names that begin with {', '.join(PREFIXES)} for other numbers"
        )
    if name in names:
        raise InputError(
            f"{kind.__name__}: {what} is named {name!r}, and so is {names[name]}: expected different names, because "
            "one would replace the other in the logs"
        )
    names[name] = what


# What methods return


class ReturnChecks:
    """Checks of what the methods of an objective return; the message names the method, and what was expected."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.kind = type(objective)
        self._log_names = log_names(self.kind)  # terms of losses are added when they are returned

    def losses(self, update: Update, returned: Any) -> None:
        """Raise unless a loss method returned a tensor without dimensions, or several by names other than its own."""
        where = f"{self.kind.__name__}.{update.loss}"
        has_terms = isinstance(returned, Mapping)
        terms = returned if has_terms else {update.loss: returned}
        if not terms:
            raise InputError(
                f"{where} returned an empty dict: expected the terms of the loss by name"
            )
        for name, x in terms.items():
            if not isinstance(x, Tensor) or x.ndim:
                of = f" as the term {name!r}" if has_terms else ""
                raise InputError(
                    f"{where} returned {_shown(x)}{of}: expected a tensor without dimensions, the sum over rows, like "
                    "weighted_sum(each, batch)"
                )
            if has_terms and name == update.loss:
                raise InputError(
                    f"{where} returned a term named {name!r}: expected another name, because that is the name of the "
                    "sum of all terms in the logs"
                )
        if has_terms:
            what = f"a term of {update.loss}"
            for name in terms:
                # a new term; the same one of an earlier step is fine
                if self._log_names.get(name) != what:
                    add_log_name(self.kind, self._log_names, name, what)
        # a loss under no_grad or from .detach(), for which backward()'s own message says little
        if not any(x.requires_grad for x in terms.values()):
            raise InputError(
                f"{where} does not depend on the weights of the {update.player}: expected a loss that is computed from "
                f"self.outputs({update.player!r}, ...) with gradients"
            )

    def sums(self, sums: Any) -> None:
        """Raise unless `measure` returned tensors without dimensions, by name."""
        where = f"{self.kind.__name__}.measure"
        if not isinstance(sums, Mapping):
            raise InputError(
                f"{where} returned {_shown(sums)}: expected a dict of sums over rows by name"
            )
        for name, x in sums.items():
            if not isinstance(x, Tensor) or x.ndim:
                raise InputError(
                    f"{where} returned {_shown(x)} as {name!r}: expected a tensor without dimensions, the sum over "
                    "rows, like weighted_sum(each, batch)"
                )

    def reported(self, reported: Any, *, text: bool = False) -> None:
        """Raise unless validation reports a number for every declared measurement (`text`: of text), and no others."""
        if text:
            # the method whose values are checked, which the message names
            method, attribute = "score", "text_measurements"
        elif self.kind.summarise is Objective.summarise:
            method, attribute = "measure", "measurements"
        else:
            method, attribute = "summarise", "measurements"
        where = f"{self.kind.__name__}.{method}"
        # of the object, since it may be a property that depends on the data, as in a GAN
        declared: Mapping[str, Measurement] = getattr(self.objective, attribute)
        if not isinstance(reported, Mapping):
            raise InputError(
                f"{where} returned {_shown(reported)}: expected a dict of numbers by name"
            )
        for name, x in reported.items():
            if name not in declared:
                known = ", ".join(declared) or "nothing"
                raise InputError(
                    f"{where} returned {name!r}, which {attribute} does not declare: expected "
                    f"{known}{nearest(name, declared)}"
                )
            if not isinstance(x, Real):
                raise InputError(f"{where} returned {_shown(x)} as {name!r}: expected a number")
        # run.best and the logs rely on every declared name
        if missing := [name for name in declared if name not in reported]:
            raise InputError(
                f"{where} did not return {', '.join(missing)}: expected all that {attribute} declares"
            )


def _shown(x: Any) -> str:
    """A returned value in a message: the shape of a tensor, the type of anything else."""
    if isinstance(x, Tensor):
        return f"a tensor of shape {tuple(x.shape)}"
    return f"a {type(x).__name__}"

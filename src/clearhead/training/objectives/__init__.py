"""The objectives, one per file: what a training minimises, the networks it needs, and what it reads of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from ...errors import InputError, nearest
from .objective import Measurement, Moment, Objective, Role, Sample, Update

if TYPE_CHECKING:
    from ...data import Data

__all__ = [
    "OBJECTIVES", "Measurement", "Moment", "Objective", "Role", "Sample", "Update", "check_data",
    "check_players", "choose", "objective_class", "objectives", "register",
]  # fmt: skip

# Name: (module, class, what it is). Where several fit a model and data, the first is taken.
OBJECTIVES = {
    "next-token": ("next_token", "NextToken", "the cross-entropy of each token given those before it"),
    "translation": ("translation", "Translation", "the cross-entropy of each target token given the source"),
    "masked-tokens": ("masked_tokens", "MaskedTokens", "the cross-entropy of masked tokens given all others"),
    "classification": ("classification", "Classification", "the cross-entropy of each row's class"),
    "regression": ("regression", "Regression", "the mean square error of vectors"),
    "gan": ("gan", "GAN", "a generator against a discriminator"),
    "self-distillation": ("self_distillation", "SelfDistillation", "a student that predicts its own moving average"),
}


_SHIPPED = frozenset(OBJECTIVES)
_REGISTERED: dict[str, type[Objective]] = {}


def objectives() -> dict[str, str]:
    """The names of all objectives, each with a line about it."""
    return {name: about for name, (_, _, about) in OBJECTIVES.items()}


def register(name: str, kind: type[Objective], about: str = "") -> None:
    """Let recipes use an objective of your own in this process, under a name that clearhead does not use.

    Args:
        name: What a recipe writes as objective.name.
        kind: A subclass of Objective.
        about: One line about it.

    Examples:
        >>> class Absolute(Objective):
        ...     '''The mean absolute error of vectors.'''
        ...     reads = ("x", "y")
        >>> register("absolute", Absolute, "the mean absolute error of vectors")
        >>> objective_class("absolute")
        <class '...Absolute'>
    """
    if name in _SHIPPED:
        raise InputError(f"there is an objective {name!r} in clearhead: expected another name")
    _REGISTERED[name], OBJECTIVES[name] = kind, ("", kind.__name__, about)


def objective_class(name: str) -> type[Objective]:
    """The class of an objective."""
    if name not in OBJECTIVES:
        raise InputError(
            f"no objective {name!r}: expected one of {', '.join(OBJECTIVES)}{nearest(name, OBJECTIVES)}"
        )  # fmt: skip
    if name in _REGISTERED:
        return _REGISTERED[name]
    module, kind, _ = OBJECTIVES[name]
    found: type[Objective] = getattr(import_module(f".{module}", __name__), kind)
    return found


def choose(model: str, can: Collection[str], data: Data) -> str:
    """The name of the objective that fits one model and data; `model` is the model's name, for the message."""
    fits = []
    for name in OBJECTIVES:
        kind = objective_class(name)
        if list(kind.roles) == ["model"] and kind.roles["model"].can in can:
            fits.append(name)
            if _reads_all(kind, data.keys):
                return name
    does = "; ".join(f"{name} reads {_said(objective_class(name))}" for name in fits) or "it fits no objective"
    hint = f". {data.hint}" if data.hint else ""
    raise InputError(
        f"a {model} cannot learn from data that gives {', '.join(data.keys)}: {does}. Expected a model and data that "
        f"fit together{hint}"
    )


def check_players(name: str, can: Mapping[str, Collection[str]]) -> None:
    """Raise unless each player can do what an objective needs; `can` is what each player's model can do."""
    kind = objective_class(name)
    for player, role in kind.roles.items():
        if role.can is not None and role.can not in can[player]:
            does = ", ".join(sorted(can[player])) or "nothing that is known"
            raise InputError(f"objective {name}: the {player} must be able to {role.can}, and can {does}")


def check_data(name: str, data: Data, feeds: Mapping[str, Data]) -> None:
    """Raise unless the data gives what an objective reads."""
    kind = objective_class(name)
    keys = [*data.keys, *(f"{feed}.{key}" for feed, extra in feeds.items() for key in extra.keys)]
    if not _reads_all(kind, keys):
        raise InputError(
            f"objective {name} reads {_said(kind)}, and the data gives {', '.join(keys)}: expected data that fits"
        )


def _reads_all(kind: type[Objective], keys: Collection[str]) -> bool:
    """True if data has all that an objective needs, and nothing that it would not read."""
    return set(kind.reads) <= set(keys) <= {*kind.reads, *kind.may_read}


def _said(kind: type[Objective]) -> str:
    return ", ".join(kind.reads) + (f" (and {', '.join(kind.may_read)})" if kind.may_read else "")

"""The objectives: the losses that a training minimises, their networks, and the batch keys they read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from ...errors import InputError, nearest
from ..ema import EMA
from ..moment import DeviceRng, Moment
from ..optim.optimisers import Optimiser
from ..optim.schedule import Scalar, Scheduled
from .check import check_objective, checked_sizes
from .objective import Measurement, Objective, Role, Sample, Update, weighted_sum

if TYPE_CHECKING:
    from ...data import Data

__all__ = [
    "EMA", "OBJECTIVES", "DeviceRng", "Measurement", "Moment", "Objective", "Optimiser", "Role", "Sample", "Scalar",
    "Scheduled", "Update", "check_data", "check_objective", "check_players", "checked_sizes", "choose",
    "objective_class", "objectives", "register", "weighted_sum",
]  # fmt: skip

# The objectives by name: (module, class, summary). `choose` takes the first that fits a model and its data.
OBJECTIVES: dict[str, tuple[str, str, str]] = {
    "next-token": ("tokens", "NextToken", "the cross-entropy of each token given those before it"),
    "translation": ("tokens", "TranslationObjective", "the cross-entropy of each target token given the source"),
    "captions": ("captions", "Captions", "the cross-entropy of each word of a caption given the image"),
    "masked-tokens": ("tokens", "MaskedTokens", "the cross-entropy of masked tokens given all others"),
    "classification": ("classification", "Classification", "the cross-entropy of each row's class"),
    "regression": ("regression", "Regression", "the mean square error of vectors"),
    "gan": ("gan", "GAN", "a generator against a discriminator"),
    "self-distillation": ("self_distillation", "SelfDistillation", "a student that predicts its own moving average"),
}  # fmt: skip

_SHIPPED = frozenset(OBJECTIVES)
_REGISTERED: dict[str, type[Objective]] = {}


def objectives() -> dict[str, str]:
    """The names of all objectives, each with a one-line summary.

    Examples:
        >>> objectives()["regression"]
        'the mean square error of vectors'
    """
    return {name: about for name, (_, _, about) in OBJECTIVES.items()}


def register(name: str, kind: type[Objective], about: str = "") -> None:
    """Register your own objective under a new name, so that recipes in this process can use it.

    The name of an objective of your own can be registered again, which replaces it.

    Args:
        name: The value of objective.name in recipes.
        kind: A subclass of Objective.
        about: A one-line summary.

    Raises:
        InputError: clearhead has an objective of this name, or `check_objective` finds a mistake in the class.

    Examples:
        >>> class Absolute(Objective):
        ...     '''The mean absolute error of vectors.'''
        ...     reads = ("x", "y")
        ...     def loss(self, batch):
        ...         return (self.outputs("model", batch["x"]) - batch["y"]).abs().sum()
        >>> register("absolute", Absolute, "the mean absolute error of vectors")
        >>> objective_class("absolute")
        <class '...Absolute'>
    """
    if name in _SHIPPED:
        raise InputError(f"clearhead already has an objective {name!r}: expected another name")
    check_objective(kind)
    _REGISTERED[name], OBJECTIVES[name] = kind, ("", kind.__name__, about)


def is_shipped(name: str) -> bool:
    """Whether an objective is clearhead's own, not one that was registered."""
    return name in _SHIPPED


def objective_class(name: str) -> type[Objective]:
    """The class of an objective.

    Args:
        name: A name from `objectives`.

    Examples:
        >>> objective_class("gan").updates[0]
        Update(player='discriminator', loss='discriminator_loss', every=1)
    """
    if name not in OBJECTIVES:
        raise InputError(
            f"no objective {name!r}: expected one of {', '.join(OBJECTIVES)}{nearest(name, OBJECTIVES)}. An objective "
            "of your own must be registered in this process, with clearhead.training.objectives.register"
        )
    # a user's class may replace one of the same name that was registered before
    if name in _REGISTERED:
        return _REGISTERED[name]
    module, kind, _ = OBJECTIVES[name]
    loaded: type[Objective] = getattr(import_module(f".{module}", __name__), kind)
    return loaded


def choose(model: str, can: Collection[str], data: Data) -> str:
    """The name of the first objective that fits one model and its data.

    Args:
        model: The family of the model, for the message if nothing fits.
        can: The model's capabilities (models.CAPABILITIES).
        data: The dataset.

    Raises:
        InputError: No objective fits.

    Examples:
        >>> choose("mlp", {"map"}, clearhead.data.make_data("identity", {"width": 3}, seed=0))
        'regression'
    """
    fits = []
    for name in OBJECTIVES:
        kind = objective_class(name)
        # an objective with several players cannot be meant by a recipe with one model
        if list(kind.roles) == ["model"] and kind.roles["model"].can in can:
            # for the message: what the model could learn from
            fits.append(name)
            if _reads_all(kind, data.keys):
                check_objective(kind)
                return name
    does = (
        "; ".join(f"{name} reads {_keys(objective_class(name))}" for name in fits)
        or "it fits no objective"
    )
    hint = f". {data.hint}" if data.hint else ""
    raise InputError(
        f"a {model} cannot learn from data that gives {', '.join(data.keys)}: {does}. Expected a model and data that "
        f"fit together{hint}"
    )


def check_players(name: str, can: Mapping[str, Collection[str]]) -> None:
    """Raise unless each player has the capability that an objective needs.

    Args:
        name: The objective.
        can: The capabilities of each player's model (models.CAPABILITIES), by the player's name.

    Examples:
        >>> check_players("regression", {"model": {"map"}})
        >>> check_players("regression", {"model": {"classify"}})
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: objective regression: the model must be able to map, and can classify
    """
    kind = objective_class(name)
    for player, role in kind.roles.items():
        if role.can is not None and role.can not in can[player]:
            does = ", ".join(sorted(can[player])) or "do none of the known tasks"
            raise InputError(
                f"objective {name}: the {player} must be able to {role.can}, and can {does}"
            )


def check_data(name: str, data: Data, feeds: Mapping[str, Data]) -> None:
    """Raise unless the data has the batch keys that an objective reads, and no others.

    Args:
        name: The objective.
        data: The dataset.
        feeds: The further datasets by name; their keys are read as feed.key.

    Examples:
        >>> check_data("regression", clearhead.data.make_data("identity", {"width": 3}, seed=0), {})
        >>> check_data("gan", clearhead.data.make_data("identity", {"width": 3}, seed=0), {})
        Traceback (most recent call last):
        ...
        clearhead.errors.InputError: objective gan reads x (and labels), and the data gives x, y: ...
    """
    kind = objective_class(name)
    check_objective(kind)
    keys = [*data.keys, *(f"{name}.{key}" for name, feed in feeds.items() for key in feed.keys)]
    if not _reads_all(kind, keys):
        raise InputError(
            f"objective {name} reads {_keys(kind)}, and the data gives {', '.join(keys)}: "
            + "; ".join(_advice(name, kind, keys, feeds))
        )


def _reads_all(kind: type[Objective], keys: Collection[str]) -> bool:
    """True if `keys` has all keys that an objective needs, and none that it would ignore."""
    return set(kind.reads) <= set(keys) <= {*kind.reads, *kind.may_read}


def _advice(
    name: str, kind: type[Objective], keys: Collection[str], feeds: Collection[str]
) -> Iterator[str]:
    """What must change, so that the data has all keys that an objective needs, and none that it would ignore."""
    missing = [key for key in kind.reads if key not in keys]
    read = {*kind.reads, *kind.may_read}
    # a whole feed that is missing, or not read, is one piece of advice, not one per key
    absent = dict.fromkeys(key.split(".")[0] for key in missing if "." in key)
    absent = {feed: None for feed in absent if feed not in feeds}
    unread = [feed for feed in feeds if not any(key.startswith(f"{feed}.") for key in read)]
    for feed in absent:
        yield f"expected [feeds.{feed}] in the recipe"
    if missing := [key for key in missing if key.split(".")[0] not in absent]:
        yield f"expected data that gives {', '.join(missing)}"
    for feed in unread:
        yield f"it does not read [feeds.{feed}]: leave it out"
    unused = [key for key in keys if key not in read]
    if unused := [key for key in unused if key.split(".")[0] not in unread]:
        fix = f"add to {kind.__name__}.may_read what may be ignored of"
        if is_shipped(name):
            # a shipped class cannot be changed by the user
            fix = "expected data without"
        yield f"it does not use all of this data: {fix} {', '.join(unused)}"


def _keys(kind: type[Objective]) -> str:
    """The keys that an objective reads, as a list for messages."""
    optional = f" (and {', '.join(kind.may_read)})" if kind.may_read else ""
    return ", ".join(kind.reads) + optional

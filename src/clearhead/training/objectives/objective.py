"""The base class of objectives: the networks that an objective trains, the batch keys it reads, and its losses.

A new objective is one file in this folder, with a subclass of Objective, and a line in the registry (__init__.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from ...checks import one_of
from ...errors import InputError, nearest
from ..moment import Moment
from ..optim.schedule import Scalar, value_at

if TYPE_CHECKING:
    from ...data import Data
    from ...weights import Bundle
    from ..ema import EMA
    from ..optim.optimisers import Optimiser

Tensors = dict[str, Tensor]
# one summed loss, or several by name, whose sum is minimised
Losses = Tensor | Mapping[str, Tensor]
# given: the prompt or source; written: the model's text; wanted: the text in the data
Sample = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What an objective requires of one of its players (networks).

    Examples:
        >>> {"student": Role(can="map"), "teacher": Role(average_of="student")}["teacher"].average_of
        'student'
    """

    can: str | None = None  # capability that the model needs (models.CAPABILITIES); None: any model
    # player of whose weights this one is a moving average; None: it is trained
    average_of: str | None = None
    # its inputs are in the data, which is checked; False: the objective makes them, like noise
    reads_batch: bool = True


@dataclass(frozen=True, slots=True)
class Update:
    """One update within a step: a player, and the loss that its optimiser minimises.

    Examples:
        >>> Update("generator", "generator_loss", every=2)
        Update(player='generator', loss='generator_loss', every=2)
    """

    player: str  # the player whose weights change
    loss: str = "loss"  # the method that computes its loss; also the name of the loss in the logs
    every: int = 1  # interval in steps: 2 means steps 2, 4, 6 ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """The unit of a number that validation reports, and whether lower or higher is better.

    Examples:
        >>> Measurement("share", "higher").better
        'higher'
    """

    unit: str  # nats/token, share, ...
    # which values are better, for run.best and run.patience
    better: Literal["lower", "higher"] = "lower"

    def __post_init__(self) -> None:
        one_of("better", self.better, ("lower", "higher"))


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOptions:
    """The options of an objective without options."""


class Objective(nn.Module):
    """Base class of objectives: computes losses of batches from one or more networks, its players.

    A loss is a method `loss(batch)` that returns the sum over rows or tokens; `Trainer.step` divides it by `count`.

    Args:
        config: The options, an instance of Config.
        players: The networks by the names of `roles`.
        data: The dataset that the batches come from.

    Examples:
        >>> class Absolute(Objective):
        ...     roles = {"model": Role(can="map")}
        ...     reads = ("x", "y")
        ...     def loss(self, batch):
        ...         return (self.outputs("model", batch["x"]) - batch["y"]).abs().sum()
        >>> data = clearhead.data.make_data("identity", {"width": 3}, seed=0)
        >>> objective = Absolute(Absolute.Config(), {"model": torch.nn.Linear(3, 3)}, data)
        >>> objective.loss({"x": torch.zeros(2, 3), "y": objective.player("model").bias + 1})
        tensor(6., grad_fn=<SumBackward0>)
    """

    # dataclass of the options, which recipes set below [objective]
    Config: ClassVar[type[Any]] = NoOptions
    roles: ClassVar[Mapping[str, Role]] = {"model": Role()}  # the players by name
    updates: ClassVar[Sequence[Update]] = (Update("model"),)  # the updates of a step, in order
    # batch keys that are required; those of a feed are "feed.key"
    reads: ClassVar[tuple[str, ...]] = ()
    may_read: ClassVar[tuple[str, ...]] = ()  # batch keys that are used if the data has them
    # whether `prepare` gets images as uint8 pixels, and normalises them itself
    takes_pixels: ClassVar[bool] = False
    # validation metrics by name; the logs add the prefix valid_
    measurements: ClassVar[Mapping[str, Measurement]] = {}
    # the same of decoded text, measured with run.decode
    text_measurements: ClassVar[Mapping[str, Measurement]] = {}
    result: ClassVar[str] = "model"  # the player that is the trained model
    writes_text: ClassVar[bool] = False  # whether `samples` gives samples of text

    def __init__(self, config: Any, players: Mapping[str, nn.Module], data: Data) -> None:
        super().__init__()
        self.config, self.data = config, data
        self.players = nn.ModuleDict(players)
        # of the players with `average_of`; set by the Trainer
        self.averages: dict[str, EMA] = {}
        # validation rows to decode, as text: input and reference; as above
        self.decoded: list[tuple[str, str]] = []
        self._scalars = scalar_options(type(config))
        for name in self._scalars:  # as tensors, so that a new value does not recompile the loss
            first = torch.tensor(value_at(getattr(config, name), 0, 1))
            # not persistent: its value follows from the step
            self.register_buffer(f"scalar_{name}", first, persistent=False)

    @classmethod
    def sizes(cls, config: Any, data: Data) -> dict[str, dict[str, int]]:
        """The options of each player's model that follow from the data: {"model": {"vocab": 65}}.

        An option that the Config of the chosen model does not have is ignored; one that no model has is an error.
        """
        return dict.fromkeys(cls.roles, data.sizes)

    # Methods that subclasses override

    def count(self, batch: Mapping[str, np.ndarray]) -> int:
        """The number that the losses of a batch are divided by: its rows, unless overridden."""
        if "weight" in batch:  # rows that only fill up a batch have the weight 0
            return int(batch["weight"].sum())
        return len(next(iter(batch.values())))

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        """Change a batch before its losses are computed, without gradients; may use the players' weights."""
        return batch

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        """The measurements of a validation batch, each a tensor without dimensions: the sum over the units of `count`.

        The sums of all validation batches are divided by their count, and `summarise` gets these means.
        """
        raise NotImplementedError

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        """The reported numbers, as `measurements` declares them, given means of `measure` over all data."""
        return means

    def decode(self, bundle: Bundle, rows: Sequence[tuple[str, str]]) -> list[Sample]:
        """The text that the model writes for validation rows, each an input and its reference."""
        raise NotImplementedError

    def score(self, samples: Sequence[Sample]) -> dict[str, float]:
        """The reported numbers, as `text_measurements` declares them, given what `decode` returned on all workers."""
        return {}

    def step(self, update: Update, optimiser: Optimiser, moment: Moment, lr_scale: float) -> Tensor:
        """Update a player with its gradients and return their norm; override for a custom update."""
        return optimiser.step(lr_scale, value_at(optimiser.config.decay, moment.step, moment.steps))

    def after_step(self, moment: Moment) -> None:
        """Run after all updates of a step; does nothing unless overridden."""

    def samples(self, bundle: Bundle) -> list[Sample]:
        """A few texts written by the model, for the logs."""
        return []

    @property
    def reported(self) -> dict[str, Measurement]:
        """The measurements of this training, by name."""
        return {**self.measurements, **(self.text_measurements if self.decoded else {})}

    # Methods that subclasses call

    def player(self, name: str) -> Any:
        """A player's network."""
        if name not in self.players:
            known = ", ".join(self.players) + nearest(name, self.players)
            raise InputError(
                f"{type(self).__name__} has no player {name!r}: expected one of {known}"
            )
        return self.players[name]

    def outputs(self, name: str, *inputs: Tensor, **named: Tensor) -> Tensor:
        """A player's outputs in float32; floating-point inputs are cast to the dtype that it computes in."""
        model = self.player(name)
        dtype = compute_dtype(model)

        def cast(x: Tensor) -> Tensor:
            return x.to(dtype) if x.is_floating_point() else x

        out: Tensor = model(*map(cast, inputs), **{key: cast(x) for key, x in named.items()})
        return out.float()

    def scalar(self, name: str) -> Tensor:
        """The current value of an option of the type Scalar, which may be scheduled, as a tensor."""
        if name not in self._scalars:
            raise InputError(
                f"{type(self).__name__}.scalar({name!r}): expected an option of {type(self.config).__name__} with the "
                f"type Scalar: {', '.join(self._scalars) or 'it has none'}{nearest(name, self._scalars)}"
            )
        return self.get_buffer(f"scalar_{name}")

    def set_scalars(self, step: int, steps: int) -> dict[str, float]:
        """Set the schedulable options to their values in a step; returns the scheduled ones, for the logs."""
        scheduled = {}
        for name in self._scalars:
            option = getattr(self.config, name)
            number = value_at(option, step, steps)
            # in place: the compiled loss reads the same tensor
            self.scalar(name).fill_(number)
            if not isinstance(option, float | int):
                # constants are not worth a curve in the logs
                scheduled[name] = number
        return scheduled


def scalar_options(kind: type[Any]) -> list[str]:
    """The options of a Config that may be scheduled: those of the type Scalar."""
    # resolved, since annotations may be written as text
    hints = get_type_hints(kind)
    return [field.name for field in fields(kind) if hints[field.name] == Scalar]


def weighted_sum(each: Tensor, batch: Tensors) -> Tensor:
    """The sum of one number per row, without the rows that only fill up a batch: their weight is 0.

    Args:
        each: One number per row, (b,).
        batch: The batch; "weight" (b,) is there if some rows only fill it up.

    Examples:
        >>> weighted_sum(torch.tensor([1.0, 2.0, 4.0]), {"x": torch.zeros(3, 2)})
        tensor(7.)
        >>> weighted_sum(torch.tensor([1.0, 2.0, 4.0]), {"weight": torch.tensor([1.0, 1.0, 0.0])})
        tensor(3.)
    """
    if "weight" in batch:
        each = each * batch["weight"]
    return each.sum()


def compute_dtype(model: nn.Module) -> torch.dtype:
    """The dtype that a model computes in: its matrices', since norms may be kept in float32."""
    return next((p.dtype for p in model.parameters() if p.ndim > 1), torch.float32)

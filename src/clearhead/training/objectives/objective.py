"""Objective: what is learned. It names the networks it needs and the batches it reads, and computes losses in order.

A new objective is one file in this folder, with a subclass of Objective, and a line in the registry (__init__.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...weights import Bundle
from ..device_rng import DeviceRng
from ..schedule import Scalar, value

if TYPE_CHECKING:
    from ...data import Data
    from ..average import Average
    from ..optim import Optimiser

Tensors = dict[str, Tensor]
Losses = Tensor | Mapping[str, Tensor]  # one summed loss, or several by their names, whose sum is minimised
Sample = dict[str, str]  # given: the prompt or source; written: the model's text; wanted: the text in the data


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What an objective asks of one of its players."""

    can: str | None = None  # a capability of the model (models.CAPABILITIES); None: anything
    average_of: str | None = None  # it is not trained, but an exponential moving average of this player's weights


@dataclass(frozen=True, slots=True)
class Update:
    """One update: the player that it changes, and the method that computes its loss, which names it in the logs."""

    player: str
    loss: str = "loss"
    every: int = 1  # it is done in every so many steps: 2 means steps 2, 4, 6 ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number that validation reports."""

    unit: str  # nats/token, share, ...
    better: Literal["lower", "higher"] = "lower"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A step of a training and the rows of the batch at hand: all that randomness may depend on."""

    seed: int
    step: int  # from 0
    steps: int
    rows: Tensor  # (b,) the number of each row in the whole batch, whatever worker has it

    def rng(self, stream: int) -> DeviceRng:
        """Random numbers of (seed, step, row): the same for any number of workers. Each use needs its own stream."""
        return DeviceRng(self.seed, self.step, self.rows, stream)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOptions:
    """The options of an objective that has none."""


class Objective(nn.Module):
    """The base class. Losses are summed over rows or tokens; the loop divides them by what `count` counts.

    Class attributes:
        roles: The players by their names.
        updates: The losses, in the order in which each is minimised, every one after the update before it.
        reads, may_read: The batch keys that it needs, and those that it uses if they are there. A key of an extra feed
            is written feed.key.
        measurements: What `measure` reports, without the prefix valid_ that it has in the logs.
        result: The player that is the trained model.
    """

    Config: ClassVar[type[Any]] = NoOptions
    roles: ClassVar[Mapping[str, Role]] = {"model": Role()}
    updates: ClassVar[Sequence[Update]] = (Update("model"),)
    reads: ClassVar[tuple[str, ...]] = ()
    may_read: ClassVar[tuple[str, ...]] = ()
    measurements: ClassVar[Mapping[str, Measurement]] = {}
    result: ClassVar[str] = "model"
    writes_text: ClassVar[bool] = False  # it can show samples of text (`samples`)

    def __init__(self, config: Any, players: Mapping[str, nn.Module], data: Data) -> None:
        super().__init__()
        self.config, self.data = config, data
        self.players = nn.ModuleDict(players)
        self.averages: dict[str, Average] = {}  # of the players that are moving averages: the frame fills it
        self._scalars = [f.name for f in fields(config) if f.type in ("Scalar", Scalar)]
        for name in self._scalars:  # as tensors: a compiled loss does not depend on their values
            self.register_buffer(f"scalar_{name}", torch.tensor(value(getattr(config, name), 0, 1)), persistent=False)

    @classmethod
    def sizes(cls, config: Any, data: Data) -> dict[str, dict[str, int]]:
        """The sizes of each player's model that follow from the data: {"model": {"vocab": 65}}."""
        return {"model": data.sizes}

    # What a subclass computes

    def count(self, batch: Mapping[str, np.ndarray]) -> int:
        """What the losses of a batch are divided by: its rows, unless a subclass counts something else."""
        rows = next(iter(batch.values()))
        return int(batch["weight"].sum()) if "weight" in batch else len(rows)

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        """Change a batch before its losses are computed, without gradients; it may use the players' weights."""
        return batch

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        """The measurements of a validation batch, summed over what `count` counts."""
        raise NotImplementedError

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        """The measurements from their means over all validation data."""
        return means

    def step(self, update: Update, optimiser: Optimiser, moment: Moment, lr_scale: float) -> Tensor:
        """Update a player with its gradients; returns their norm. Override it to perform an update of your own."""
        return optimiser.step(lr_scale, value(optimiser.config.decay, moment.step, moment.steps))

    def after_step(self, moment: Moment) -> None:
        """Called after all updates of a step."""

    def samples(self, bundle: Bundle) -> list[Sample]:
        """A few texts that the model writes, to watch it learn."""
        return []

    # What the frame uses

    def player(self, name: str) -> Any:
        """A player's network."""
        return self.players[name]

    def outputs(self, name: str, x: Tensor) -> Tensor:
        """A player's outputs for numbers, which become the dtype that it computes in; the outputs are float32."""
        model = self.players[name]
        out: Tensor = model(x.to(compute_dtype(model))).float()
        return out

    def scalar(self, name: str) -> Tensor:
        """The present value of an option that may be scheduled."""
        return self.get_buffer(f"scalar_{name}")

    def set_scalars(self, step: int, steps: int) -> dict[str, float]:
        """Give every option that may be scheduled its value in a step; returns those that change, for the logs."""
        now = {name: value(getattr(self.config, name), step, steps) for name in self._scalars}
        for name, number in now.items():
            self.scalar(name).fill_(number)
        return {name: number for name, number in now.items() if not isinstance(getattr(self.config, name), float | int)}


def weighted_sum(each: Tensor, batch: Tensors) -> Tensor:
    """The sum over rows, without those that only fill up a batch (their weight is 0)."""
    return (each if "weight" not in batch else each * batch["weight"]).sum()


def compute_dtype(model: nn.Module) -> torch.dtype:
    """The dtype that a model computes in: that of its matrices, since norms may be kept in float32."""
    return next((p.dtype for p in model.parameters() if p.ndim > 1), torch.float32)

"""Losses and gradient norms that stay on the device until they are logged, so that a step does not wait for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .distributed import World
from .trainer import Updated


class Pending:
    """The reports of the steps since the last log."""

    def __init__(self, world: World, *, several: bool) -> None:
        """`several` players: names of norms and learning rates end with the player's name."""
        self.world, self.several = world, several
        self._steps: list[tuple[int, Sequence[Updated]]] = []

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, step: int, reports: Sequence[Updated]) -> None:
        """Add the reports of a step."""
        self._steps.append((step, reports))

    def read(self) -> tuple[dict[str, float], tuple[int, str] | None]:
        """Read all reports from the device, in one transfer.

        Returns the losses (means over all workers), norms and learning rates of the last step, and the first step and
        loss or norm that is not finite, if there is one.
        """
        numbers = [x for _, reports in self._steps for r in reports for x in (*r.losses.values(), r.norm)]
        values = iter(torch.stack([x.float() for x in numbers]).tolist() if numbers else [])
        rows: list[tuple[int, dict[str, float], dict[str, float], dict[str, float]]] = []
        for step, reports in self._steps:
            losses: dict[str, float] = {}
            norms: dict[str, float] = {}
            rates: dict[str, float] = {}
            for r in reports:
                suffix = f"_{r.update.player}" if self.several else ""
                losses |= {name: next(values) for name in r.losses}
                norms[f"norm{suffix}"], rates[f"lr{suffix}"] = next(values), r.lr
            rows.append((step, losses, norms, rates))
        sums = iter(self.world.sum(*(x / self.world.size for _, losses, _, _ in rows for x in losses.values())))
        self._steps, last = [], dict[str, float]()
        for step, losses, norms, rates in rows:
            losses = {name: next(sums) for name in losses}
            for name, number in (losses | norms).items():
                if not math.isfinite(number):
                    what = "gradient norm" if name in norms else name.replace("_", " ")
                    return last, (step, f"the {what} became {number}")
            last = losses | norms | rates
        return last, None

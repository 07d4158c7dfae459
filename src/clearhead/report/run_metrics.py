"""RunMetrics: the metrics of a run folder, with the names of its losses and the units of its measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..training.run_folder import Folder

Line = tuple[Any, Any]  # steps and values
# numbers of a record that are about its computation
NOT_DRAWN = ("step", "seconds", "rate", "share")


@dataclass(frozen=True, eq=False)
class RunMetrics:
    """The records of metrics.jsonl, and what setup.json says about them; an old run has no setup.json."""

    records: list[dict[str, Any]]
    losses: list[str]  # names of the losses, in the order of their updates
    # units of the measurements, by their names in the records: {"valid_loss": "nats/token"}
    units: dict[str, str]

    @staticmethod
    def read(path: Path) -> RunMetrics:
        """Read a run folder; the run may still go on."""
        folder = Folder(path, create=False, lock=False)
        about = folder.about()
        measurements: dict[str, dict[str, str]] = about.get("measurements", {})
        units = {name: measurement["unit"] for name, measurement in measurements.items()}
        return RunMetrics(folder.metrics(), list(about.get("losses", ["loss"])), units)

    @cached_property
    def names(self) -> list[str]:
        """The names of all numbers to draw, in the order in which they first appear."""
        # A dict keeps the order of first appearance and drops repetitions.
        found = dict.fromkeys(
            name for record in self.records for name, value in record.items() if _number(value)
        )
        return [name for name in found if name not in NOT_DRAWN]

    @property
    def measurements(self) -> list[str]:
        """The names of the validation measurements without the losses; the objective's own come first."""
        found = dict.fromkeys(
            # Old runs have no units, so names that begin with valid_ are added.
            [*self.units, *(name for name in self.names if name.startswith("valid_"))]
        )
        return [
            name
            for name in found
            if name.removeprefix("valid_") not in self.losses and name in self.names
        ]

    def by_player(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield the names of a number that each player has (norm, lr), with the player; "" in a run of one player."""
        for name in self.names:
            # "norm" alone, or "norm_generator" for the player generator.
            if name == kind or name.startswith(f"{kind}_"):
                yield name, name.removeprefix(kind).removeprefix("_")

    @property
    def others(self) -> list[str]:
        """The names of all other numbers: parts of losses, scheduled options."""
        # Norms and learning rates have panels of their own.
        players = [name for kind in ("norm", "lr") for name, _ in self.by_player(kind)]
        drawn = {*self.losses, *players}
        return [name for name in self.names if name not in drawn and not name.startswith("valid_")]

    def line(self, name: str) -> Line | None:
        """A number against steps; None if no record has it."""
        pairs = [
            (record["step"], record[name]) for record in self.records if _number(record.get(name))
        ]
        if pairs:
            # (n, 2) -> (2, n): steps and values.
            return tuple(np.array(pairs, dtype=float).T)
        return None

    def unit(self, name: str) -> str:
        """The unit of a loss or a measurement; "" if it is not known."""
        return self.units.get(name) or self.units.get(f"valid_{name}", "")


def words(name: str) -> str:
    """The name of a number in a figure: without underscores, and without the prefix of validation."""
    return name.removeprefix("valid_").replace("_", " ")


def _number(value: Any) -> bool:
    # bool is a subclass of int.
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Prefetching: a thread prepares the batches of a worker while the model computes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Data, share_rows
from .distributed import World
from .objectives import Objective

AHEAD = 3  # number of batches to prefetch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a worker."""

    batch: dict[str, Tensor]  # its tensors by name
    rows: Tensor  # (b,) the index of each row in the batch of all workers
    number: int  # its index among the micro-batches of all workers
    counted: int  # number of rows or tokens that the loss is divided by
    units: int  # its size in the data's unit
    # the same as `rows`, for each extra dataset
    feed_rows: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors, and the row numbers by dataset ("" is the main one), on the model's device."""
        moved = {name: x.to(device, non_blocking=True) for name, x in self.batch.items()}
        rows = {"": self.rows, **self.feed_rows}
        return moved, {name: x.to(device, non_blocking=True) for name, x in rows.items()}


class Feed:
    """The micro-batches of a worker, step by step; extra datasets add their keys as feed.key.

    Of the datasets named in `resident`, whose tables are on the device, only row numbers are sent.
    """

    def __init__(
        self,
        data: Data,
        extra: Mapping[str, Data],
        objective: Objective,
        world: World,
        accumulate: int,
        resident: Collection[str] = (),
    ) -> None:
        self.data, self.extra, self.objective, self.world, self.accumulate = (
            data,
            extra,
            objective,
            world,
            accumulate,
        )
        self.resident = resident
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")

    def close(self) -> None:
        """Stop prefetching."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def steps(self, start: int, stop: int) -> Iterator[list[MicroBatch]]:
        """The micro-batches of the steps from `start` to `stop` - 1."""
        pending: list[Future[list[MicroBatch]]] = []
        for step in range(start, stop + AHEAD):
            if step < stop:
                pending.append(self._thread.submit(self._make, step))
            if step >= start + AHEAD - 1 and pending:
                yield pending.pop(0).result()

    def valid(self) -> Iterator[MicroBatch]:
        """This worker's share of the validation batches."""
        for i in range(self.data.valid_batches):
            part, parts = self.world.rank, self.world.size
            batch = self.data.valid(i, part=part, parts=parts, lookup="" not in self.resident)
            for name, extra in self.extra.items():
                if extra.valid_batches:
                    lookup = name not in self.resident
                    batch |= _named(
                        name,
                        extra.valid(i % extra.valid_batches, part=part, parts=parts, lookup=lookup),
                    )
            yield self._part(batch, i, part, parts)

    def _make(self, step: int) -> list[MicroBatch]:
        parts = self.world.size * self.accumulate
        numbers = [i * self.world.size + self.world.rank for i in range(self.accumulate)]
        return [self._part(self._batch(step, n, parts), n, n, parts) for n in numbers]

    def _batch(self, step: int, part: int, parts: int) -> dict[str, Any]:
        batch = _real(self.data.batch(step, part=part, parts=parts, lookup="" not in self.resident))
        for name, extra in self.extra.items():
            lookup = name not in self.resident
            batch |= _named(name, _real(extra.batch(step, part=part, parts=parts, lookup=lookup)))
        return batch

    def _part(self, batch: dict[str, Any], number: int, part: int, parts: int) -> MicroBatch:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in batch.items()}
        sizes: dict[str, int] = {}
        for name, x in batch.items():
            sizes.setdefault(name.rpartition(".")[0], len(x))
        rows = {
            feed: torch.from_numpy(share_rows(parts * size, part, parts))
            for feed, size in sizes.items()
        }
        if self.world.device.type == "cuda":
            tensors, rows = (
                {name: x.pin_memory() for name, x in some.items()} for some in (tensors, rows)
            )
        own = rows.pop("")
        return MicroBatch(
            tensors, own, number, self.objective.count(batch), self.data.units(batch), rows
        )


def _named(feed: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{feed}.{key}": x for key, x in batch.items()}


def _real(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch without its padding rows, which are its last, because a batch norm would count them."""
    rows = int(batch["weight"].sum()) if "weight" in batch else 0
    if rows:
        return {name: x[:rows] for name, x in batch.items() if name != "weight"}
    return batch


# Tables of data that stay on the device, so that a step only sends row numbers.


SHARE = 0.25  # largest share of the free memory of a device that the tables of a dataset may take


class ResidentTables:
    """The tables of datasets on the device of the model, for the datasets whose tables fit there.

    Args:
        datasets: The datasets by name; "" is the main one.
        device: The device of the model.

    Examples:
        >>> data = clearhead.data.make_data("identity", {"width": 3}, seed=0)
        >>> ResidentTables({"": data}, torch.device("cpu")).names  # it has no tables
        frozenset()
    """

    def __init__(self, datasets: Mapping[str, Data], device: torch.device) -> None:
        fitting = {
            name: data for name, data in datasets.items() if data.tables and _fits(data, device)
        }
        self.names = frozenset(fitting)
        self.tables = {
            f"{name}.{key}" if name else key: torch.from_numpy(np.ascontiguousarray(table)).to(
                device
            )
            for name, data in fitting.items()
            for key, table in data.tables.items()
        }

    def looked_up(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch with the rows of the tables in place of their numbers."""
        return {key: self.tables[key][x] if key in self.tables else x for key, x in batch.items()}


def _fits(data: Data, device: torch.device) -> bool:
    size = sum(table.nbytes for table in data.tables.values())
    return device.type != "cuda" or size <= SHARE * torch.cuda.mem_get_info(device)[0]

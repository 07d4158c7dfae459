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
SHARE = 0.25  # largest share of the free memory of a device that the tables of a dataset may take


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a worker."""

    batch: dict[str, Tensor]  # its tensors by name
    rows: Tensor  # (b,) the index of each row in the batch of all workers
    number: int  # its index among the micro-batches of all workers
    counted: int  # number of rows or tokens that the loss is divided by
    units: int  # its size in the data's unit
    # the same as `rows`, for each feed
    feed_rows: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors, and the row numbers by dataset ("" is the main one), on the model's device."""
        tensors = {name: x.to(device, non_blocking=True) for name, x in self.batch.items()}
        rows = {"": self.rows, **self.feed_rows}
        return tensors, {name: x.to(device, non_blocking=True) for name, x in rows.items()}


class Prefetcher:
    """The micro-batches of a worker, step by step; further datasets, the feeds, add their keys as feed.key.

    For the datasets named in `resident`, whose tables are on the device, only row numbers are sent.
    """

    def __init__(
        self,
        data: Data,
        feeds: Mapping[str, Data],
        objective: Objective,
        world: World,
        accumulate: int,
        resident: Collection[str] = (),
    ) -> None:
        self.data, self.feeds, self.objective = data, feeds, objective
        self.world, self.accumulate, self.resident = world, accumulate, resident
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")

    def close(self) -> None:
        """Stop prefetching."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def steps(self, start: int, stop: int) -> Iterator[list[MicroBatch]]:
        """The micro-batches of the steps from `start` to `stop` - 1."""
        pending: list[Future[list[MicroBatch]]] = []
        # A step is submitted AHEAD steps before it is needed; its future raises what the thread raised.
        for step in range(start, stop + AHEAD):
            if step < stop:
                pending.append(self._thread.submit(self._step, step))
            if step >= start + AHEAD - 1 and pending:
                # at most AHEAD steps are prepared or being prepared at a time
                yield pending.pop(0).result()

    def _step(self, step: int) -> list[MicroBatch]:
        # Micro-batches are dealt to workers in turn, so that number n has the same rows for any number of workers.
        parts = self.world.size * self.accumulate
        micro_batches = []
        for i in range(self.accumulate):
            # micro-batch n of size x accumulate in all
            n = i * self.world.size + self.world.rank
            batch = _real(self.data.batch(step, part=n, parts=parts, lookup=self._looks_up("")))
            for name, feed in self.feeds.items():
                lookup = self._looks_up(name)
                more = _real(feed.batch(step, part=n, parts=parts, lookup=lookup))
                batch |= _named(name, more)
            micro_batches.append(self._micro_batch(batch, n, n, parts))
        return micro_batches

    def valid(self) -> Iterator[MicroBatch]:
        """This worker's share of the validation batches."""
        part, parts = self.world.rank, self.world.size
        for i in range(self.data.valid_batches):
            batch = self.data.valid(i, part=part, parts=parts, lookup=self._looks_up(""))
            for name, feed in self.feeds.items():
                if feed.valid_batches:
                    # a shorter feed begins again
                    feed_i, lookup = i % feed.valid_batches, self._looks_up(name)
                    more = feed.valid(feed_i, part=part, parts=parts, lookup=lookup)
                    batch |= _named(name, more)
            yield self._micro_batch(batch, i, part, parts)

    def _looks_up(self, dataset: str) -> bool:
        """Whether a dataset looks up its rows here, because its tables are not on the device."""
        return dataset not in self.resident

    def _micro_batch(self, batch: dict[str, Any], number: int, part: int, parts: int) -> MicroBatch:
        # shares memory where it can
        tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in batch.items()}
        sizes: dict[str, int] = {}  # rows by dataset
        for name, x in batch.items():
            # keys of a feed are "feed.key", those of the main dataset have no dot
            sizes.setdefault(name.rpartition(".")[0], len(x))
        rows = {}
        for dataset, size in sizes.items():
            # numbers in the whole batch, which key the random numbers of each row
            rows[dataset] = torch.from_numpy(share_rows(parts * size, part, parts))
        if self.world.device.type == "cuda":  # pinned memory is copied while the GPU computes
            tensors = {name: x.pin_memory() for name, x in tensors.items()}
            rows = {dataset: x.pin_memory() for dataset, x in rows.items()}
        own = rows.pop("")
        counted, units = self.objective.count(batch), self.data.units(batch)
        return MicroBatch(tensors, own, number, counted, units, rows)


def _named(feed: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{feed}.{key}": x for key, x in batch.items()}


def _real(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch without its padding rows, which are its last, because a batch norm would count them."""
    rows = int(batch["weight"].sum()) if "weight" in batch else 0
    if not rows:
        return batch
    return {name: x[:rows] for name, x in batch.items() if name != "weight"}


class ResidentTables:
    """The tables of datasets that fit on the device of the model, so that a step only sends row numbers.

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
        self.tables: dict[str, Tensor] = {}
        for name, data in fitting.items():
            tables = _named(name, data.tables) if name else data.tables
            for key, table in tables.items():
                # copied once; each step then indexes it on the device
                self.tables[key] = torch.from_numpy(np.ascontiguousarray(table)).to(device)

    def looked_up(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch with the rows of the tables in place of their numbers."""
        return {key: self.tables[key][x] if key in self.tables else x for key, x in batch.items()}


def _fits(data: Data, device: torch.device) -> bool:
    size = sum(table.nbytes for table in data.tables.values())
    return device.type != "cuda" or size <= SHARE * torch.cuda.mem_get_info(device)[0]

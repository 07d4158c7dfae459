"""The batches of a worker, made ahead of the model in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import Data
from .distributed import World
from .objective import count

AHEAD = 3  # batches that are made while the model works


@dataclass(frozen=True, slots=True)
class Part:
    """What goes through the model at once: a part of a worker's share of a batch."""

    batch: dict[str, Tensor]
    number: int  # among all parts of the batch, of all workers
    counted: int  # targets, or rows, that the loss counts
    size: int  # tokens, or rows, that the model reads

    def to(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors on the model's device."""
        return {name: x.to(device, non_blocking=True) for name, x in self.batch.items()}


class Feed:
    """The parts of each batch that a worker has to work on, step by step."""

    def __init__(self, data: Data, world: World, accumulate: int) -> None:
        self.data, self.world, self.accumulate = data, world, accumulate
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")

    def close(self) -> None:
        """Stop making batches."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def steps(self, start: int, stop: int) -> Iterator[list[Part]]:
        """The parts of steps start to stop - 1."""
        made: list[Future[list[Part]]] = []
        for step in range(start, stop + AHEAD):
            if step < stop:
                made.append(self._thread.submit(self._make, step))
            if step >= start + AHEAD - 1 and made:
                yield made.pop(0).result()

    def valid(self) -> Iterator[Part]:
        """This worker's share of the validation batches."""
        for i in range(self.data.valid_batches):
            yield self._part(self.data.valid(i, part=self.world.rank, parts=self.world.size), i)

    def _make(self, step: int) -> list[Part]:
        numbers = [i * self.world.size + self.world.rank for i in range(self.accumulate)]
        parts = self.world.size * self.accumulate
        return [self._part(_real(self.data.batch(step, part=n, parts=parts)), n) for n in numbers]

    def _part(self, batch: Mapping[str, Any], number: int) -> Part:
        first = next(iter(batch.values()))
        tensors = {name: torch.from_numpy(x) for name, x in batch.items()}
        if self.world.device.type == "cuda":
            tensors = {name: x.pin_memory() for name, x in tensors.items()}
        reads = batch["ids"].size if "ids" in batch else len(first)
        return Part(tensors, number, count(batch), reads)


def _real(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch without the rows that only fill it up, which are its last: a batch norm would count them."""
    rows = int(batch["weight"].sum()) if "weight" in batch else 0
    return {name: x[:rows] for name, x in batch.items() if name != "weight"} if rows else batch

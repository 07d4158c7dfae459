"""Images with a class each, decoded by worker processes ahead of time."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .. import counter_rng
from ..errors import InputError
from . import image_files
from .batches import Batch, Data, Rows, share_rows
from .files import DataError, locate
from .preprocessing import Preprocessing

ORDER, CROPS, SPLIT = 0, 1, 2  # streams of random numbers
Key = tuple[str, int, bytes]  # "train" or "valid", step or index, rows


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFolder:
    """Options of images."""

    path: str  # a folder or zip file: train/class/... and val/class/..., or class/...
    size: int = 128  # pixels an edge, after cropping
    rows: int = 64  # images a step
    crop: Literal["random", "middle"] = "random"  # in training; validation takes the middle square
    least: float = 0.25  # the smallest share of the area that a random crop keeps
    flip: bool = True  # mirror half of the training images, left for right
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # subtracted from red, green and blue, from 0 to 1
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)  # which are then divided by this
    share: float = 0.1  # part of the images kept for validation, where there is no folder of them
    valid_rows: int = 64  # images a validation batch
    valid_most: int | None = None  # validation batches at most; None: all
    workers: int = 0  # processes that decode; 0: this one
    ahead: int = 2  # batches that workers decode before they are asked for

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("rows", 1), ("valid_rows", 1), ("workers", 0), ("ahead", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)}: expected {least} or more")
        if not 0 < self.least <= 1:
            raise InputError(f"least={self.least}: expected more than 0 and at most 1")
        if not 0 <= self.share < 1:
            raise InputError(f"share={self.share}: expected 0 or more and less than 1")
        if min(self.deviation) <= 0:
            raise InputError(f"deviation={self.deviation}: expected three numbers above 0")
        if self.valid_most is not None and self.valid_most < 0:
            raise InputError(f"valid_most={self.valid_most}: expected 0 or more")


class Images(Data):
    """Every image once an epoch, in the order of (seed, epoch); crops and mirrors are keyed by (seed, step, row)."""

    keys = ("images", "labels")
    unit = "images"
    classes: tuple[str, ...]

    def __init__(self, config: ImageFolder, *, seed: int, root: Path | None = None) -> None:
        self.config, self.seed = config, seed
        self.path = locate(config.path, root)
        train, valid = image_files.find_pictures(self.path)
        if not valid:
            order = counter_rng.permutation(0, 0, len(train), SPLIT).tolist()
            kept = int(len(train) * config.share)
            train, valid = [train[i] for i in sorted(order[kept:])], [train[i] for i in sorted(order[:kept])]
        self.classes = tuple(sorted({picture.label for picture in train}))
        strange = [picture for picture in valid if picture.label not in self.classes]
        if strange:
            raise DataError(f"{self.path}: {strange[0].name} is of a class without a training image")
        self.sets = {"train": train, "valid": valid}
        number = {label: i for i, label in enumerate(self.classes)}
        self.labels = {name: np.array([number[p.label] for p in set_], np.int64) for name, set_ in self.sets.items()}
        self.sizes = {"classes": len(self.classes)}
        size = (config.size, config.size)
        self.preprocessing = Preprocessing(resize=config.size, crop=size, mean=config.mean, deviation=config.deviation)
        self.steps_an_epoch = -(-len(train) // config.rows)
        batches = -(-len(valid) // config.valid_rows)
        self.valid_batches = batches if config.valid_most is None else min(batches, config.valid_most)
        self._orders: dict[int, NDArray[np.int64]] = {}  # by epoch: this one, and the next when it comes near
        self._pool: ProcessPoolExecutor | None = None
        self._coming: dict[Key, list[Future[NDArray[np.uint8]]]] = {}

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """As Data.batch; workers go on with the next ones."""
        if self.config.workers and step >= 0:
            steps = range(step, step + self.config.ahead + 1)
            self._expect("train", {("train", s, share_rows(self._rows(s), part, parts).tobytes()) for s in steps})
        return super().batch(step, part, parts)

    def valid(self, index: int, part: int = 0, parts: int = 1) -> Batch:
        """As Data.valid; workers go on with the next ones."""
        if self.config.workers and index >= 0:
            indices = range(index, min(index + self.config.ahead + 1, self.valid_batches))
            self._expect(
                "valid", {("valid", i, share_rows(self._valid_rows(i), part, parts).tobytes()) for i in indices}
            )
        return super().valid(index, part, parts)

    def close(self) -> None:
        """Stop the workers; they start again when a batch is asked for."""
        for which in self.sets:
            self._expect(which, set())
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _rows(self, step: int) -> int:
        index = step % -(-len(self.sets["train"]) // self.config.rows)
        return min(self.config.rows, len(self.sets["train"]) - index * self.config.rows)

    def _train(self, step: int, rows: Rows) -> Batch:
        return self._decoded("train", step, rows)

    def _valid_rows(self, index: int) -> int:
        return min(self.config.valid_rows, len(self.sets["valid"]) - index * self.config.valid_rows)

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._decoded("valid", index, rows)

    def _decoded(self, which: str, step: int, rows: Rows) -> Batch:
        """The images of these rows, by the workers where there are any."""
        if self.config.workers:
            key = (which, step, rows.tobytes())
            self._expect(which, self._coming.keys() | {key})
            try:
                pixels = np.concatenate([future.result() for future in self._coming.pop(key)])
            except BrokenProcessPool as error:
                self._pool = None
                raise RuntimeError(
                    "a worker that decodes images has died, perhaps for want of memory; workers=0 decodes without"
                ) from error
        else:
            pixels = image_files.decode(*self._work(which, step, rows))
        return {"images": pixels, "labels": self.labels[which][self._which(which, step, rows)]}

    def _which(self, which: str, step: int, rows: Rows) -> NDArray[np.int64]:
        """The pictures of these rows, by number."""
        if which == "valid":
            return step * self.config.valid_rows + rows
        train = self.sets["train"]
        epoch, index = divmod(step, -(-len(train) // self.config.rows))
        if epoch not in self._orders:
            near = {e: order for e, order in self._orders.items() if abs(e - epoch) == 1}
            self._orders = {**near, epoch: counter_rng.permutation(self.seed, epoch, len(train), ORDER)}
        return self._orders[epoch][index * self.config.rows + rows]

    def _work(
        self, which: str, step: int, rows: Rows
    ) -> tuple[str, list[str], int, float | None, NDArray[np.float64] | None]:
        """What `decode` must know of these rows."""
        c = self.config
        names = [self.sets[which][i].name for i in self._which(which, step, rows).tolist()]
        if which == "valid":
            return str(self.path), names, c.size, None, None
        draws = counter_rng.uniform(self.seed, step, rows, image_files.DRAWS, CROPS)
        if not c.flip:
            draws[:, -1] = -1
        return str(self.path), names, c.size, c.least if c.crop == "random" else None, draws

    def _expect(self, which: str, keys: set[Key]) -> None:
        """Let workers decode these batches, and no others of their kind."""
        for key in [key for key in self._coming if key[0] == which and key not in keys]:
            for future in self._coming.pop(key):
                future.cancel()
        for key in sorted(keys - self._coming.keys()):
            if self._pool is None:  # started anew, not forked: a fork would copy locks and devices in use
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.config.workers, mp_context=context)
            shares = np.array_split(np.frombuffer(key[2], np.int64), self.config.workers)
            self._coming[key] = [
                self._pool.submit(image_files.decode, *self._work(key[0], key[1], share))
                for share in shares
                if len(share)
            ]

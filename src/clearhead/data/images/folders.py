"""Images with a class each, decoded by worker processes ahead of time."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ... import counter_rng
from ...checks import at_least, fraction
from ...errors import InputError, Notice
from ..data import Batch, Data, Rows, share_rows
from ..files import DataError, data_folders, locate
from ..splits import counted, unreadable_told
from . import files as image_files
from .files import ImageFile, LabelledImages, labelled_files
from .preprocessing import Preprocessing

ORDER, CROPS, SPLIT, VALID = 0, 1, 2, 3  # streams of random numbers
SKIPS = "leaves such files out, and counts them"  # what skip_bad does, for messages
SHOWN = 5  # classes that a notice names
# names in a data folder
IMAGENETTE = ("imagenette-128.zip", "imagenette2-160", "imagenette2-320", "imagenette2")
WORDNET = {  # the classes of Imagenette: folders are named by WordNet ids
    "n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player", "n03000684": "chain saw",
    "n03028079": "church", "n03394916": "French horn", "n03417042": "garbage truck", "n03425413": "gas pump",
    "n03445777": "golf ball", "n03888257": "parachute",
}  # fmt: skip
Key = tuple[str, int, bytes]  # "train" or "valid", step or index, rows


@dataclass(frozen=True, kw_only=True, slots=True)
class CropConfig:
    """Options of photographs of any size."""

    size: int = 128  # height and width in pixels, after cropping
    rows: int = 64  # images per step
    # of training images; validation images are cropped to the middle
    crop: Literal["random", "middle"] = "random"
    least: float = 0.25  # smallest share of the area that a random crop keeps
    flip: bool = True  # mirror half of the training images, left to right
    # of red, green and blue (0 to 1), for normalising
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    # standard deviations of them, for normalising
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)
    share: float = 0.1  # share of the images kept for validation, if there is no validation folder
    valid_rows: int = 64  # images per validation batch
    valid_most: int | None = None  # largest number of validation batches; None: all
    # leave out files that cannot be read, and count them; without it they are an error
    skip_bad: bool = False
    # decode each image once, cropped to the middle, and keep all in memory, on a GPU if they fit;
    memory: bool = False
    # `crop`, `least` and `flip` do not apply then (the augmentations "crop" and "flip" do the same on the device), and
    # all batches have the same size: the images left over at the end of an epoch are skipped
    workers: int = 0  # processes that decode; 0: this one
    ahead: int = 2  # batches that workers decode in advance

    def __post_init__(self) -> None:
        at_least(self, 1, "size", "rows", "valid_rows")
        at_least(self, 0, "workers", "ahead", "valid_most")
        fraction(self, "share")
        if not 0 < self.least <= 1:
            raise InputError(f"least={self.least}: expected more than 0 and at most 1")
        if min(self.deviation) <= 0:
            raise InputError(f"deviation={self.deviation}: expected three numbers above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageConfig(CropConfig):
    """Options of images."""

    # a folder or zip file: train/class/... and val/class/..., or class/...; or a CSV of
    # path,label[,split]
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagenetteConfig(CropConfig):
    """Options of imagenette."""

    # of red, green and blue (0 to 1), for normalising
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    # standard deviations of them, for normalising
    deviation: tuple[float, float, float] = (0.229, 0.224, 0.225)


def divided(images: list[ImageFile], share: float) -> tuple[list[ImageFile], list[ImageFile]]:
    """Return images for training, and a share of all for validation: always the same ones of the same files.

    A class that would be in validation alone stays in training with all its images.
    """
    # with a fixed seed: the same files are always divided in the same way
    order = counter_rng.permutation(0, 0, len(images), SPLIT).tolist()
    kept = int(len(images) * share)
    # classes that still have an image in training
    known = {images[i].label for i in order[kept:]}
    validating = {i for i in order[:kept] if images[i].label in known}
    train, valid = (
        [image for i, image in enumerate(images) if (i in validating) == validates]
        for validates in (False, True)
    )
    return train, valid


def readable(
    root: Path, *parts: list[ImageFile], skip_bad: bool, option: str = "data.skip_bad"
) -> tuple[tuple[str, ...], tuple[list[ImageFile], ...]]:
    """Return the names of the files that cannot be read, and the parts without them; a notice says how many.

    Args:
        root: The folder or zip file.
        parts: Files in it.
        skip_bad: Leave out the files that cannot be read; otherwise the first of them raises.
        option: What leaves them out, for the message.
    """
    names = [image.name for part in parts for image in part]
    problems = image_files.unreadable(str(root), names)
    if not problems:
        return (), parts
    bad = tuple(problems)
    # nothing is left, whatever skip_bad says
    if len(bad) == len(names):
        raise none_readable(root, bad)
    if not skip_bad:
        more = ""
        if len(bad) > 1:
            more = f", nor can {counted(len(bad) - 1, 'other file')}"
        raise DataError(f"{problems[bad[0]]}{more}; {option}=true {SKIPS}")
    warnings.warn(
        Notice(f"{root}: {unreadable_told(len(bad), len(names))}, the first {bad[0]}"), stacklevel=3
    )
    return bad, tuple([image for image in part if image.name not in problems] for part in parts)


def none_readable(root: Path, bad: Sequence[str]) -> DataError:
    """The error for a folder of which no image can be read."""
    return DataError(
        f"{root}: none of its {len(bad)} image files can be read, the first is {bad[0]}"
    )


class Images(Data):
    """Every image once per epoch, in the order of (seed, epoch); crops and mirrors depend on (seed, step, row).

    A last batch of an epoch that would have a single row is skipped.

    Args:
        config: The options, or those of a data set that adds its own.
        seed: The seed of training.
        root: A data folder in which `config.path` is searched, too.
        path: The folder or zip file, where the options have none.
        names: Names of classes by the name of the folder; classes are in the order of their folders.
    """

    keys = ("images", "labels")
    unit = "images"
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    steps_per_epoch: int

    def __init__(
        self,
        config: CropConfig,
        *,
        seed: int,
        root: Path | None = None,
        path: Path | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.config, self.seed = config, seed
        if isinstance(config, ImageConfig):
            path = locate(config.path, root)
            # recorded in the run, which notices when they change
            self.files = (config.path,)
        assert path is not None
        train, valid = image_files.find_images(path)
        self.path = image_files.image_root(path)
        self.bad: tuple[str, ...] = ()  # files that were left out because they cannot be read
        # files of users are checked before the first step; those of a named set are known to be whole
        if isinstance(config, ImageConfig) or config.skip_bad:
            files = len(train) + len(valid)
            self.bad, (train, valid) = readable(self.path, train, valid, skip_bad=config.skip_bad)
            if self.bad:
                self.description = unreadable_told(len(self.bad), files)
        drawn = not valid  # whether validation is a share of the training images
        if drawn:
            train, valid = divided(train, config.share)
            # the share would give images, but the classes are too small to lose one
            if not valid and int(len(train) * config.share):
                warnings.warn(
                    Notice(
                        f"{self.path}: no image is kept for validation, because a class would have none left to train "
                        "on: expected two images or more of some class, or folders train/ and val/"
                    ),
                    stacklevel=3,
                )
        # labels are names of folders; `names` may have better ones to show
        folders = sorted({image.label for image in train})
        self.classes = tuple((names or {}).get(folder, folder) for folder in folders)
        for image in valid:
            if image.label not in folders:
                raise DataError(
                    f"{self.path}: {image.name} is of a class without a training image: expected an image of "
                    f"{image.label} in training, or none in validation"
                )
        # validation that lacks a class is allowed, but measures nothing of it
        missing = sorted(set(folders) - {image.label for image in valid})
        if missing and not drawn:
            # only the first few: there may be a thousand classes
            listed = ", ".join(missing[:SHOWN])
            if len(missing) > SHOWN:
                listed += f" and {len(missing) - SHOWN} more"
            warnings.warn(Notice(f"{self.path} has no validation image of {listed}"), stacklevel=3)
        self.sets = {"train": train, "valid": valid}
        number = {label: i for i, label in enumerate(folders)}
        self.labels = {
            name: np.array([number[image.label] for image in images], np.int64)
            for name, images in self.sets.items()
        }
        self.sizes = {"classes": len(self.classes), "channels": 3}
        self.defaults = {"size": config.size}
        size = (config.size, config.size)
        self.preprocessing = Preprocessing(
            resize=config.size, crop=size, mean=config.mean, deviation=config.deviation
        )
        # a smaller last batch counts as a step
        whole, rest = divmod(len(train), config.rows)
        # images in memory are for compiled steps, whose batches all have one size; elsewhere only a
        # single image is skipped, because the batch norms of a small image need two values or more
        skips = whole > 0 and (config.memory or rest == 1)
        self.steps_per_epoch = whole + (rest > 0 and not skips)
        if rest == 1 and skips:
            told = f"an image of {len(train):,} is skipped in each epoch: its batch would be of one row"
            self.description = "; ".join(part for part in (self.description, told) if part)
        batches = -(-len(valid) // config.valid_rows)
        self.valid_batches = batches
        self._valid_order = np.arange(len(valid))
        if config.valid_most is not None and config.valid_most < batches:
            self.valid_batches = config.valid_most
            # Files are sorted by class: a part of them must not be of the first classes alone.
            self._valid_order = counter_rng.permutation(0, 0, len(valid), VALID)
        # by epoch: this one, and the next while workers prefetch it
        self._orders: dict[int, NDArray[np.int64]] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._coming: dict[Key, list[Future[NDArray[np.uint8]]]] = {}  # batches that workers decode
        if config.memory:
            self.tables = {"images": self._all_decoded()}
            # workers are not needed any more: batches only look up the table
            self.close()

    def batch(self, step: int, part: int = 0, parts: int = 1, *, lookup: bool = True) -> Batch:
        """As Data.batch; workers prefetch the following batches."""
        if self.config.workers and not self.tables and step >= 0:
            # this step and the next ones, which may lie in the next epoch
            steps = range(step, step + self.config.ahead + 1)
            # rows of this worker only: bytes, because arrays cannot be keys
            keys = {("train", s, share_rows(self._rows(s), part, parts).tobytes()) for s in steps}
            self._prefetch("train", keys)
        return super().batch(step, part, parts, lookup=lookup)

    def valid(self, index: int, part: int = 0, parts: int = 1, *, lookup: bool = True) -> Batch:
        """As Data.valid; workers prefetch the following batches."""
        if self.config.workers and not self.tables and index >= 0:
            keys = set()
            for i in range(index, min(index + self.config.ahead + 1, self.valid_batches)):
                rows = share_rows(self._valid_rows(i), part, parts)
                keys.add(("valid", i, rows.tobytes()))
            self._prefetch("valid", keys)
        return super().valid(index, part, parts, lookup=lookup)

    def originals(self, which: Literal["train", "valid"]) -> LabelledImages:
        """Return the images of a part, neither cropped nor resized."""
        labels = [self.classes[i] for i in self.labels[which].tolist()]
        return labelled_files(self.path, self.sets[which], labels)

    def labelled_table(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return all training images, uint8 (n, c, y, x), and their classes (n,), if they are in memory."""
        if not self.tables:
            return None
        labels = self.labels["train"]
        # validation images come after those of training
        return self.tables["images"][: len(labels)], labels

    def close(self) -> None:
        """Stop the workers; the next batch starts them again."""
        for which in self.sets:
            # futures that nobody will read
            self._prefetch(which, set())
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _class_numbers(self) -> Sequence[np.ndarray]:
        return tuple(self.labels.values())

    def _rows(self, step: int) -> int:
        index = step % self.steps_per_epoch
        # the last batch of an epoch may be smaller
        return min(self.config.rows, len(self.sets["train"]) - index * self.config.rows)

    def _train(self, step: int, rows: Rows) -> Batch:
        return self._decoded("train", step, rows)

    def _valid_rows(self, index: int) -> int:
        return min(self.config.valid_rows, len(self.sets["valid"]) - index * self.config.valid_rows)

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._decoded("valid", index, rows)

    def _decoded(self, which: str, step: int, rows: Rows) -> Batch:
        """Return the images of these rows, decoded by the workers if there are any; or their numbers in the table."""
        numbers = self._numbers(which, step, rows)
        labels = self.labels[which][numbers]
        if self.tables:
            if which == "valid":  # after the training images
                numbers = numbers + len(self.sets["train"])
            return {"images": numbers, "labels": labels}
        if self.config.workers:
            key = (which, step, rows.tobytes())
            # also a batch that nobody asked for in advance
            self._prefetch(which, self._coming.keys() | {key})
            try:
                with self._naming_skip_bad():
                    # the parts of all workers, in the order of the rows
                    pixels = np.concatenate([future.result() for future in self._coming.pop(key)])
            except BrokenProcessPool as error:
                # a broken pool cannot be used again
                self._pool = None
                raise RuntimeError(
                    "a worker process that decodes images has died, perhaps because memory ran out; workers=0 decodes "
                    "without worker processes"
                ) from error
        else:
            with self._naming_skip_bad():
                pixels = image_files.decode(*self._work(which, step, rows))
        return {"images": pixels, "labels": labels}

    @contextmanager
    def _naming_skip_bad(self) -> Iterator[None]:
        """Add to the error of a file that cannot be read how to leave it out."""
        try:
            yield
        except DataError as problem:
            raise DataError(f"{problem}; data.skip_bad=true {SKIPS}") from problem

    def _all_decoded(self) -> NDArray[np.uint8]:
        """Return the middle of every image, training images first."""
        names = [image.name for which in ("train", "valid") for image in self.sets[which]]
        if not self.config.workers:
            with self._naming_skip_bad():
                return image_files.decode(str(self.path), names, self.config.size, None, None)
        self._start_workers()
        assert self._pool is not None
        # shares of 64 images: small enough to spread evenly, large enough to be worth a message
        shares = [names[i : i + 64] for i in range(0, len(names), 64)]
        jobs = [
            self._pool.submit(image_files.decode, str(self.path), x, self.config.size, None, None)
            for x in shares
        ]
        with self._naming_skip_bad():
            return np.concatenate([job.result() for job in jobs])

    def _numbers(self, which: str, step: int, rows: Rows) -> NDArray[np.int64]:
        """Return the numbers of the images of these rows."""
        if which == "valid":
            return self._valid_order[step * self.config.valid_rows + rows]
        train = self.sets["train"]
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch not in self._orders:
            # workers prefetch the next epoch while this one is still in use
            near = {e: order for e, order in self._orders.items() if abs(e - epoch) == 1}
            # from (seed, epoch) alone, so that a resumed run continues in the same order
            order = counter_rng.permutation(self.seed, epoch, len(train), ORDER)
            self._orders = {**near, epoch: order}
        return self._orders[epoch][index * self.config.rows + rows]

    def _work(
        self, which: str, step: int, rows: Rows
    ) -> tuple[str, list[str], int, float | None, NDArray[np.float64] | None]:
        """Return the arguments of image_files.decode for these rows."""
        c = self.config
        names = [self.sets[which][i].name for i in self._numbers(which, step, rows).tolist()]
        # validation: the middle, never mirrored, hence no random numbers
        if which == "valid":
            return str(self.path), names, c.size, None, None
        # by the row of the batch, so that crops do not depend on the number of workers
        draws = counter_rng.uniform(self.seed, step, rows, image_files.DRAWS, CROPS)
        if not c.flip:
            draws[:, -1] = -1  # never mirrored
        least = c.least if c.crop == "random" else None
        return str(self.path), names, c.size, least, draws

    def _start_workers(self) -> None:
        if self._pool is None:  # spawned, not forked: a fork would copy locks and devices in use
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.config.workers, mp_context=context)

    def _prefetch(self, which: str, keys: set[Key]) -> None:
        """Let workers decode these batches, and cancel all others of "train" or "valid"."""
        # batches that are no longer wanted, after a jump to another step
        for key in [key for key in self._coming if key[0] == which and key not in keys]:
            for future in self._coming.pop(key):
                future.cancel()
        # in order of their steps, so that the next batch is decoded first
        for key in sorted(keys - self._coming.keys()):
            self._start_workers()
            assert self._pool is not None
            # each worker decodes an equal part of the rows
            shares = np.array_split(np.frombuffer(key[2], np.int64), self.config.workers)
            self._coming[key] = [
                self._pool.submit(image_files.decode, *self._work(key[0], key[1], share))
                for share in shares
                if len(share)
            ]


def open_imagenette(config: ImagenetteConfig, *, seed: int, root: Path | None = None) -> Images:
    """Open Imagenette (Howard 2019): a zip file or folder of it in a data folder, at whichever size is there."""
    folders = data_folders(root)
    for folder in folders:
        for name in IMAGENETTE:
            if (folder / name).exists():
                return Images(config, seed=seed, path=folder / name, names=WORDNET)
    raise DataError(
        f"no Imagenette in {', '.join(map(str, folders))}: expected {', '.join(IMAGENETTE)}; "
        "https://github.com/fastai/imagenette has the archives to unpack there"
    )

"""Small generated tasks: reverse, copy, most, recall, identity and gaussians. Fresh examples at every step, no files.

Sequences consist of symbols 0, 1, ..., and the ids of special tokens follow those of the symbols; as text they are
letters, or numbers if there are more than 26, so that a model can be asked to reverse "abcd|". Rows shorter than the
longest are padded at the end, where there are no targets and which a causal model cannot see.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ... import counter_rng
from ...checks import at_least
from ...errors import InputError
from ...tokens import Symbols
from ..data import IGNORE, Batch, Data, Rows

Length = int | tuple[int, int]  # one number for all rows, or (shortest, longest)
VALID = 1 << 16  # the first stream of validation, which has seed 0 whatever the seed of training


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceConfig:
    """Options of reverse, copy and most."""

    symbols: int = 10  # how many different symbols
    # symbols per row: a number, or (shortest, longest) of a uniform distribution
    length: Length = 10
    rows: int = 64  # sequences per step
    valid_length: Length | None = None  # symbols per row in validation; None: as in training
    valid_rows: int = 64  # sequences per validation batch
    valid_batches: int = 8  # number of validation batches

    def __post_init__(self) -> None:
        at_least(self, 1, "symbols", "rows", "valid_rows")
        at_least(self, 0, "valid_batches")
        for name, length in (("length", self.length), ("valid_length", self.valid_length)):
            if length is not None:
                shortest, longest = _range(length)
                if not 1 <= shortest <= longest:
                    raise InputError(
                        f"{name}={length}: expected a number of 1 or more, or (shortest, longest)"
                    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallConfig(SequenceConfig):
    """Options of recall; `length` is the number of guests."""

    age: int | None = None  # how many guests come after the marked one; None: uniformly random
    valid_age: int | None = None  # the same in validation; None: as in training

    def __post_init__(self) -> None:
        SequenceConfig.__post_init__(self)  # super() loses its class when slots make a new one
        for name, age, length in (
            ("age", self.age, self.length),
            ("valid_age", self.age_in_validation, self.valid_length or self.length),
        ):
            # the marked guest must exist even in the shortest row
            if age is not None and not 0 <= age < _range(length)[0]:
                raise InputError(
                    f"{name}={age}: expected 0 to {_range(length)[0] - 1}, less than the shortest length"
                )

    @property
    def age_in_validation(self) -> int | None:
        """The number of guests after the marked one in validation; None: uniformly random."""
        if self.valid_age is None:
            return self.age
        return self.valid_age


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorConfig:
    """Options of identity."""

    width: int = 16  # numbers per vector
    rows: int = 64  # vectors per step
    valid_rows: int = 64  # vectors per validation batch
    valid_batches: int = 8  # number of validation batches

    def __post_init__(self) -> None:
        at_least(self, 1, "width", "rows", "valid_rows")
        at_least(self, 0, "valid_batches")


class Task(Data):
    """Rows that are a function of (seed, step, row): training in one stream, validation in another."""

    def __init__(
        self,
        config: SequenceConfig | VectorConfig | GaussianConfig,
        *,
        seed: int,
        root: Path | None = None,
    ) -> None:
        self.config, self.seed = config, seed
        self.valid_batches = config.valid_batches

    def _rows(self, step: int) -> int:
        return self.config.rows

    def _valid_rows(self, index: int) -> int:
        return self.config.valid_rows

    def _train(self, step: int, rows: Rows) -> Batch:
        return self._draw(self.seed, step, rows, 0)

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._draw(0, index, rows, VALID)

    @abstractmethod
    def _draw(self, seed: int, step: int, rows: Rows, stream: int) -> Batch:
        """Return rows; random numbers are drawn from this stream and the following ones."""


class SequenceTask(Task):
    """A row of symbols, and a question about it."""

    keys = ("ids", "targets")
    config: SequenceConfig
    marks = "|"  # how the special tokens are written: SEP, which ends the row

    def __init__(self, config: SequenceConfig, *, seed: int, root: Path | None = None) -> None:
        super().__init__(config, seed=seed)
        self.tokens = Symbols(config.symbols, self.marks)
        self.sizes = {"vocab": len(self.tokens)}
        # one row of each stream, to know the widest: widths depend on the options alone
        one = np.zeros(1, np.int64)
        self.longest = max(self._draw(0, 0, one, stream)["ids"].shape[1] for stream in (0, VALID))

    def _draw(self, seed: int, step: int, rows: Rows, stream: int) -> Batch:
        c = self.config
        length = c.length
        if stream >= VALID and c.valid_length is not None:  # validation may have longer rows
            length = c.valid_length
        shortest, longest = _range(length)
        # each kind of number has a stream: the symbols do not depend on the lengths
        x = counter_rng.integers(seed, step, rows, longest, 0, c.symbols, stream)
        n = counter_rng.integers(seed, step, rows, 1, shortest, longest + 1, stream + 1)
        return self._ask(x, n, seed, step, rows, stream + 2)

    @abstractmethod
    def _ask(
        self,
        x: NDArray[np.int64],
        n: NDArray[np.int64],
        seed: int,
        step: int,
        rows: Rows,
        stream: int,
    ) -> Batch:
        """Return ids and targets for symbols x (b, longest), of which each row uses the first n (b, 1)."""


class Copy(SequenceTask):
    """x1 ... xn SEP x1 ... xn; the targets are the symbols after SEP."""

    def _answer(self, at: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of the symbol that belongs at this place of the answer."""
        return at

    def _ask(
        self,
        x: NDArray[np.int64],
        n: NDArray[np.int64],
        seed: int,
        step: int,
        rows: Rows,
        stream: int,
    ) -> Batch:
        # (b, 2 longest + 1) for all places below, since n is (b, 1)
        longest = x.shape[1]
        at = np.arange(2 * longest + 1)  # places in the row: x, SEP, the answer
        answer = at - n - 1  # place in the answer, negative up to SEP
        answered = (answer >= 0) & (answer < n)
        # x at places before SEP; in the answer, wherever the task takes its symbol from
        source = np.where(answered, self._answer(answer, n), at)
        inside = (at < n) | answered
        # places outside read index 0, and are overwritten below
        whole = np.take_along_axis(x, np.where(inside, source, 0), axis=1)
        # SEP, and the padding after a shorter row
        whole = np.where(inside, whole, self.config.symbols)
        return {
            "ids": whole[:, :-1].copy(),
            # shifted by one: the target of each place is the id after it
            "targets": np.where(answered, whole, IGNORE)[:, 1:].copy(),
        }


class Reverse(Copy):
    """x1 ... xn SEP xn ... x1; the targets are the symbols after SEP."""

    def _answer(self, at: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
        return n - 1 - at


class Most(SequenceTask):
    """x1 ... xn SEP, and the most frequent symbol as the target; order does not matter, and there is never a tie."""

    def _ask(
        self,
        x: NDArray[np.int64],
        n: NDArray[np.int64],
        seed: int,
        step: int,
        rows: Rows,
        stream: int,
    ) -> Batch:
        symbols = self.config.symbols
        b, longest = x.shape
        at, row = np.arange(longest), np.arange(b)[:, None]
        # (b, longest): the symbols of a row, without its padding
        inside = at < n
        # count the symbols of all rows at once: each row has slots of its own, and padding the last one
        slots = np.where(inside, row * symbols + x, b * symbols)
        counts = np.bincount(slots.ravel(), minlength=b * symbols + 1)[:-1]
        counts = counts.reshape(b, symbols)
        # one number per symbol breaks ties, one per place chooses the symbol that changes
        uniforms = counter_rng.uniform(seed, step, rows, symbols + longest, stream)
        # counts are whole, so that numbers below 1 break only ties
        winner = np.argmax(counts + uniforms[:, :symbols], axis=1)[:, None]
        # Where others are as frequent, one of their symbols becomes the winner's, which is then alone at the top.
        as_frequent = np.take_along_axis(counts, x, axis=1) == counts[row, winner]
        rival = inside & (x != winner) & as_frequent
        chosen = np.argmax(np.where(rival, uniforms[:, symbols:], -1.0), axis=1)[:, None]
        x = np.where(rival & (at == chosen), winner, x)
        # SEP after the symbols; the padding is SEP as well, which the target never sees
        ids = np.full((b, longest + 1), symbols, np.int64)
        ids[:, :-1][inside] = x[inside]
        return {"ids": ids, "targets": np.where(np.arange(longest + 1) == n, winner, IGNORE)}


class Recall(SequenceTask):
    """The party: MARK precedes one of the guests, and the target after ASK, at the end, is that guest."""

    config: RecallConfig
    marks = "*?"  # MARK, ASK

    def _ask(
        self,
        x: NDArray[np.int64],
        n: NDArray[np.int64],
        seed: int,
        step: int,
        rows: Rows,
        stream: int,
    ) -> Batch:
        c, longest = self.config, x.shape[1]
        # the age of a guest: the number of guests after it
        age: int | np.ndarray | None = c.age if stream < VALID else c.age_in_validation
        if age is None:
            bits = counter_rng.bits(seed, step, rows, 1, stream)
            age = (bits % n.astype(np.uint64)).astype(np.int64)
        marked = n - 1 - age  # place of the marked guest
        # n guests, MARK and ASK: the last two take one place each
        at = np.arange(longest + 2)
        # MARK moves the guests after it by one place
        guest = np.clip(at - (at > marked), 0, longest - 1)
        # symbols + 1 is ASK, which also fills up shorter rows
        ids = np.where(at <= n, np.take_along_axis(x, guest, axis=1), c.symbols + 1)
        ids = np.where(at == marked, c.symbols, ids)
        return {
            "ids": ids,
            "targets": np.where(at == n + 1, np.take_along_axis(x, marked, axis=1), IGNORE),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianConfig:
    """Options of gaussians."""

    modes: int = 8  # number of normal distributions, evenly spaced on a circle
    radius: float = 2.0  # of the circle
    deviation: float = 0.1  # standard deviation of each distribution
    rows: int = 128  # points per step
    valid_rows: int = 256  # points per validation batch
    valid_batches: int = 4  # number of validation batches

    def __post_init__(self) -> None:
        at_least(self, 1, "modes", "rows", "valid_rows")
        at_least(self, 0, "valid_batches")
        if self.radius <= 0 or self.deviation <= 0:
            raise InputError(
                f"radius={self.radius}, deviation={self.deviation}: expected numbers above 0"
            )


class Gaussians(Task):
    """Points x (b, 2) around centres on a circle, and the number of each point's centre, labels (b,)."""

    keys = ("x", "labels")
    unit = "vectors"
    config: GaussianConfig
    qualities: ClassVar = {"near": ("share", "higher"), "modes": ("modes", "higher")}
    NEAR = 3.0  # largest distance of a point that is near a centre, in standard deviations
    # a mode is covered if it has this share of the points that it should have, 1 / modes of all
    SHARE = 0.5

    def __init__(self, config: GaussianConfig, *, seed: int, root: Path | None = None) -> None:
        super().__init__(config, seed=seed)
        self.sizes = {"width": 2, "classes": config.modes}
        self.classes = tuple(f"mode {i}" for i in range(config.modes))
        # evenly spaced, counterclockwise from (radius, 0)
        angle = 2 * np.pi * np.arange(config.modes) / config.modes
        self.centres = (config.radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)).astype(
            np.float32
        )

    def _draw(self, seed: int, step: int, rows: Rows, stream: int) -> Batch:
        # uniform over the modes, so that each has 1 / modes of the points
        labels = counter_rng.integers(seed, step, rows, 1, 0, self.config.modes, stream)[:, 0]
        noise = self.config.deviation * counter_rng.normal(seed, step, rows, 2, stream + 1)
        return {"x": (self.centres[labels] + noise).astype(np.float32), "labels": labels}

    def judge(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return for each centre which points are near it, and nearer than to any other centre."""
        # exclusive: where circles overlap, a point belongs to one centre only
        distance = np.linalg.norm(rows[:, None] - self.centres, axis=2)  # (b, modes)
        nearest = distance.argmin(1)[:, None] == np.arange(len(self.centres))
        near = nearest & (distance < self.NEAR * self.config.deviation)
        return {f"mode {i}": near[:, i].astype(np.float32) for i in range(len(self.centres))}

    def judged(self, means: dict[str, float]) -> dict[str, float]:
        """Return `near`, the share of points near a centre, and `modes`, the number of centres with enough points."""
        enough = self.SHARE / self.config.modes
        # a point is near one centre at most: shares add up
        return {
            "near": sum(means.values()),
            "modes": float(sum(share >= enough for share in means.values())),
        }


class Identity(Task):
    """y = x, standard normal vectors: a model must learn to pass its input on."""

    keys = ("x", "y")
    unit = "vectors"
    config: VectorConfig

    def __init__(self, config: VectorConfig, *, seed: int, root: Path | None = None) -> None:
        super().__init__(config, seed=seed)
        self.sizes = {"width": config.width, "inputs": config.width, "outputs": config.width}

    def _draw(self, seed: int, step: int, rows: Rows, stream: int) -> Batch:
        x = counter_rng.normal(seed, step, rows, self.config.width, stream).astype(np.float32)
        return {"x": x, "y": x.copy()}


def _range(length: Length) -> tuple[int, int]:
    if isinstance(length, int):
        return (length, length)
    return length

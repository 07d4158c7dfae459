"""What a training shows and logs: its progress, losses, speed, the time that is left, and TensorBoard's files."""

from __future__ import annotations

import math
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..layers import Attention
from ..models.hooks import Session, call_before
from ..protobuf import write_field
from .distributed import World
from .recipe import RunConfig

if TYPE_CHECKING:
    from .objectives import Objective
    from .trainer import UpdateReport


class ProgressDisplay:
    """Prints progress on stderr: a live bar in a terminal, lines elsewhere; nothing if `quiet`."""

    def __init__(self, *, steps: int, start: int = 0, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.quiet, self.steps = quiet, steps
        self.live = self.console.is_terminal and not quiet
        self._printed = time.monotonic()
        self._bar: Progress | None = None
        # no bar in a log file, where each redraw would be a line
        if self.live:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.completed}/{task.total}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[shown]}"),
                TimeRemainingColumn(compact=True),
                console=self.console,
            )
            self._task = self._bar.add_task("", total=steps, completed=start, shown="")
            self._bar.start()

    def say(self, sentence: str) -> None:
        """Print a sentence, which stays above the progress bar."""
        if not self.quiet:
            self.console.print(sentence, markup=False, soft_wrap=True)

    def advance(self, step: int, shown: Mapping[str, str] | None = None) -> None:
        """Show that a step is done, and the values of `shown` if they are given."""
        text = "  ".join(f"{name} {value}" for name, value in (shown or {}).items())
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
            if shown:
                self._bar.update(self._task, shown=text)
            return
        # in a log file: a line every ten seconds, and the last
        is_due = time.monotonic() - self._printed > 10 or step == self.steps
        if shown and is_due:
            self._printed = time.monotonic()
            self.say(f"step {step}/{self.steps}  {text}")

    def close(self) -> None:
        """Stop the progress bar."""
        if self._bar is not None:
            self._bar.stop()
        sys.stderr.flush()


# Losses


class PendingReports:
    """The reports of the steps since the last log.

    Losses and gradient norms stay on the device until then, so that a step does not wait for them.
    """

    def __init__(self, world: World, *, several: bool) -> None:
        """`several` players: names of norms and learning rates end with the player's name."""
        self.world, self.several = world, several
        self._steps: list[tuple[int, Sequence[UpdateReport]]] = []

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, step: int, reports: Sequence[UpdateReport]) -> None:
        """Add the reports of a step."""
        self._steps.append((step, reports))

    def read(self) -> tuple[dict[str, float], tuple[int, str] | None]:
        """Read all reports from the device, in one transfer.

        Returns the losses (means over all workers), norms and learning rates of the last step, and the first step and
        loss or norm that is not finite, if there is one.
        """
        steps, self._steps = self._steps, []
        numbers = []
        for _, reports in steps:
            for report in reports:
                numbers += [*report.losses.values(), report.norm]
        # all numbers in one transfer; they are in the order of steps and reports
        values = iter(torch.stack([x.float() for x in numbers]).tolist() if numbers else [])
        # this worker's losses of all steps, which are summed over workers in one exchange
        losses: list[float] = []
        norms: list[list[float]] = []
        for _, reports in steps:
            norms.append([])
            for report in reports:
                # losses were multiplied by the number of workers, for DDP's mean of gradients
                losses += [next(values) / self.world.size for _ in report.losses]
                norms[-1].append(next(values))
        # a loss is divided by the rows of all workers, so that the workers' losses add up; norms are the same on all
        means = iter(self.world.sum(*losses))

        last: dict[str, float] = {}
        for (step, reports), step_norms in zip(steps, norms, strict=True):
            # in the order in which they were sent
            loss_means = {name: next(means) for report in reports for name in report.losses}
            last, rates = dict(loss_means), dict[str, float]()
            for report, norm in zip(reports, step_norms, strict=True):
                suffix = f"_{report.update.player}" if self.several else ""
                last[f"norm{suffix}"], rates[f"lr{suffix}"] = norm, report.lr
            for name, number in last.items():
                if not math.isfinite(number):
                    what = name.replace("_", " ") if name in loss_means else "gradient norm"
                    # the first one in time: later steps only inherit it
                    return {}, (step, f"the {what} became {number}")
            last |= rates
        return last, None


# Speed

ROWS = 2  # rows of a batch on which operations are counted
# Fused attention kernels count as 0 here, because attention is counted by its shapes.
_UNCOUNTED = {
    getattr(torch.ops.aten, name): lambda *args, **kwargs: 0
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
}

# Peak speed of dense matrix products in TFLOP/s (bf16, tf32), from the vendors' data sheets.
PEAKS = {
    "H200": (989, 495), "H100": (989, 495), "A100": (312, 156), "L40S": (362, 183), "4090": (165, 83), "A10G": (70, 35),
}  # fmt: skip


class Throughput:
    """Measures the units of data per second since the last log, and their share of the devices' peak speed."""

    def __init__(self, objective: Objective, world: World, precision: str) -> None:
        self.objective, self.world, self.precision = objective, world, precision
        self._per_unit: float | None = None  # floating-point operations
        self._peak = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin again, after something that is not part of a step."""
        self._began, self._units = time.perf_counter(), 0

    def add(self, units: int) -> None:
        """Count the units of a step, of all workers."""
        self._units += units

    def measure(self, batch: Mapping[str, Tensor], units: int) -> dict[str, float]:
        """The seconds, the rate and the share of the peak since the last measurement.

        Args:
            batch: A micro-batch, on which the operations are counted the first time.
            units: Its size in the data's unit.
        """
        seconds = time.perf_counter() - self._began
        rate = self._units / max(seconds, 1e-9)
        self.restart()
        # the first time: counting and measuring take a while, and come after the clock was read
        if self._per_unit is None:
            self._per_unit = training_flops(self.objective, batch) / max(units, 1)
            self._peak = peak(self.world.device, self.precision)
        share = rate / self.world.size * self._per_unit / self._peak
        return {"seconds": seconds, "rate": rate, "share": share}


@torch.no_grad()
def training_flops(objective: Objective, batch: Mapping[str, Tensor]) -> float:
    """Floating-point operations of a training step on a batch: three times as many as in the losses' forward passes.

    Matrix products and convolutions are counted as they run on a few rows; attention as two full products of queries
    and keys, whatever its mask, which is the usual convention (Chowdhery et al. 2022, appendix B). Recomputation does
    not count. The objective's buffers are left as they were.
    """
    rows = len(next(iter(batch.values())))
    few = {name: x[:ROWS] for name, x in batch.items()}
    attention = 0.0

    def attends(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal attention
        assert isinstance(module, Attention)
        x = args[0]
        context = args[1] if len(args) > 1 else kwargs.get("context")
        if context is None:
            # self-attention
            keys = x.shape[1]
        elif isinstance(context, tuple):  # keys and values that are computed already, (b, h, k, e)
            keys = context[0].shape[2]
        else:
            # cross-attention to (b, k, d)
            keys = context.shape[1]
        # b q h k (e of q k' + e of the weights times v), and a multiplication and an addition for each
        per_key = module.heads * (module.head_width + module.value_width)
        attention += 2.0 * x.shape[0] * x.shape[1] * keys * per_key

    # counting must leave no trace: neither in running statistics nor in an objective's buffers
    training = objective.training
    buffers = {name: x.clone() for name, x in objective.named_buffers()}
    objective.eval()
    attentions = [part for part in objective.modules() if isinstance(part, Attention)]
    counter = FlopCounterMode(display=False, custom_mapping=_UNCOUNTED)
    try:
        with Session(objective) as session, session, counter:
            call_before(session, attentions, attends)
            for update in objective.updates:
                # forward pass only; the backward pass costs twice as much
                getattr(objective, update.loss)(few)
    finally:
        objective.train(training)
        for name, x in buffers.items():  # which a loss may update
            objective.get_buffer(name).copy_(x)
    return 3.0 * (counter.get_total_flops() + attention) * rows / min(rows, ROWS)


def peak(device: torch.device, precision: str) -> float:
    """The peak floating-point operations per second of matrix products: from PEAKS, or else measured briefly."""
    is_bfloat16 = precision == "bfloat16"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for word, (bf16, tf32) in PEAKS.items():
            # PEAKS has none for float32 without tensor cores, which is measured
            if word in name and precision != "float32":
                return 1e12 * (bf16 if is_bfloat16 else tf32)
    n = 1024 if device.type == "cpu" else 4096
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16 if is_bfloat16 else torch.float32)
    best = math.inf
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2.0 * n**3 / best


# Time

MEASURED = 10.0  # seconds of steps after which the time of the others is estimated
FEWEST = 3  # of these steps
SHORT = 60.0  # seconds; nothing is said about a training that takes no longer
HOUR = 3600.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """How long the other steps of a training will take.

    Examples:
        >>> forecast = Forecast(left=1200, rate=0.1, validation=300.0, checkpoint=600.0)
        >>> print(forecast)
        about 3 h 20 min for 1,200 steps at 0.1 steps/s; the next validation in 5 min, the next checkpoint in 10 min
    """

    left: int  # steps
    rate: float  # steps per second
    validation: float | None  # seconds until the next validation; None: there is none
    checkpoint: float  # seconds until the next checkpoint

    @property
    def seconds(self) -> float:
        """The time of the other steps; validations come in addition."""
        return self.left / self.rate

    def __str__(self) -> str:
        coming = [f"the next checkpoint in {duration(self.checkpoint)}"]
        if self.validation is not None:
            coming.insert(0, f"the next validation in {duration(self.validation)}")
        return f"about {duration(self.seconds)} for {self.left:,} steps at {self.rate:.2g} steps/s; {', '.join(coming)}"


class Pace:
    """Measures the time of steps, and the time since the last checkpoint.

    Time only decides when a checkpoint is written and what is said: weights, validations and metrics depend on the step
    alone, so that a resumed run equals an uninterrupted one.

    Args:
        run: How often the run saves.
        validates: Whether there are validation data.
        steps: The number of steps of the training.
        clock: Returns seconds; tests have their own.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        validates: bool,
        steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._validates, self._steps, self._clock = run, validates, steps, clock
        self._save_seconds = 60 * run.save_minutes
        self._saved = clock()
        # the first step of this attempt, and when it was done
        self._first: tuple[int, float] | None = None
        self._has_forecast = False

    def saved(self) -> None:
        """A checkpoint was written: the time until the next one begins."""
        self._saved = self._clock()

    @property
    def is_save_due(self) -> bool:
        """Whether the last checkpoint is so old that another one is due."""
        return 0 < self._save_seconds <= self._clock() - self._saved

    def forecast(self, step: int) -> Forecast | None:
        """The forecast of a long training; once, when enough steps have been measured, and None before and after."""
        if self._has_forecast:
            return None
        now = self._clock()
        if self._first is None:  # the first step also compiles and allocates
            self._first = step, now
            return None
        first, began = self._first
        if now - began < MEASURED or step - first < FEWEST:
            return None
        self._has_forecast = True
        rate = (step - first) / (now - began)
        left = self._steps - step
        if left / rate <= SHORT:
            return None
        validation = None
        if self._validates:
            validation = self._until(self._run.valid_every, step) / rate
        checkpoint = self._until(self._run.save_every, step) / rate
        if self._save_seconds:
            # the time of run.save_minutes may come before the next multiple of save_every
            checkpoint = min(checkpoint, max(self._saved + self._save_seconds - now, 0.0))
        return Forecast(left=left, rate=rate, validation=validation, checkpoint=checkpoint)

    def _until(self, every: int, step: int) -> int:
        """The number of steps until the next one that is a multiple of `every`, or the last one."""
        following = (step // every + 1) * every if every else self._steps
        return min(following, self._steps) - step


def duration(seconds: float) -> str:
    """A duration in words, with the precision of an estimate.

    Examples:
        >>> duration(40), duration(700), duration(15_000), duration(382_000)
        ('1 min', '12 min', '4 h 10 min', '106 h')
    """
    minutes = max(round(seconds / 60), 1)
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    if hours >= 24 or not rest:
        # past a day the minutes are below the error of the estimate
        return f"{hours} h"
    return f"{hours} h {rest} min"


# Scalars as TensorBoard event files, without depending on tensorboard. A file is a sequence of TFRecords, each a
# protobuf `Event` (tensorflow/core/util/event.proto, summary.proto).

_CRC = []
for _byte in range(256):  # crc32c, Castagnoli's polynomial, reflected
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _CRC.append(_byte)
_START = 1  # SessionLog.START


class EventFile:
    """An event file of scalars. `after` is the step that a run resumes from; TensorBoard drops the later ones."""

    def __init__(self, folder: str | Path, *, after: int | None = None) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder by name: ours must come after those of earlier attempts.
        stamps = [0]
        for file in folder.iterdir():
            if match := re.match(r"events\.out\.tfevents\.(\d+)\.", file.name):
                stamps.append(int(match[1]))
        now = time.time()
        stamp = max(int(now), max(stamps) + 1)
        self.path = (
            folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"
        )
        self._file = open(self.path, "xb")  # noqa: SIM115  (closed by close)
        # Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log
        self._write(write_field(1, now, double=True) + write_field(3, b"brain.Event:2"))
        if after is not None:
            # a START record makes TensorBoard drop all points of this step and later
            restart = write_field(7, write_field(1, _START))
            self._write(write_field(1, now, double=True) + write_field(2, after + 1) + restart)
        self.flush()

    def scalars(self, step: int, record: Mapping[str, Any], wall_time: float | None = None) -> None:
        """Write one value per tag, at a step and a time in seconds since 1970 (by default now).

        Tags of nested numbers have slashes: inside/gradient/blocks.0.
        """
        now = time.time() if wall_time is None else wall_time
        # Summary: repeated Value {1 tag, 2 simple_value}
        summary = b""
        for tag, value in flat(record):
            summary += write_field(1, write_field(1, tag.encode()) + write_field(2, value))
        self._write(
            write_field(1, now, double=True) + write_field(2, step) + write_field(5, summary)
        )

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        # TFRecord: length, its checksum, the data, its checksum
        length = struct.pack("<Q", len(event))
        self._file.write(length + struct.pack("<I", masked_crc32c(length)))
        self._file.write(event + struct.pack("<I", masked_crc32c(event)))


def flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested record, with their tags."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            # one value per head
            yield from ((f"{prefix}{name}/{i}", float(x)) for i, x in enumerate(value))
        else:
            yield f"{prefix}{name}", float(value)


def masked_crc32c(data: bytes) -> int:
    """The checksum of a TFRecord: crc32c, rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        # one table lookup per byte (Sarwate 1988)
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

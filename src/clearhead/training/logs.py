"""Progress of a training: a live bar in a terminal or lines in a log file, and the share of the device's peak speed."""

from __future__ import annotations

import math
import os
import re
import socket
import struct
import sys
import time
import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..layers import Attention
from ..protobuf import write_field
from .recipe import RunConfig

if TYPE_CHECKING:
    from .objectives import Objective

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
    "H200": (989, 495),
    "H100": (989, 495),
    "A100": (312, 156),
    "L40S": (362, 183),
    "4090": (165, 83),
    "A10G": (70, 35),
}


@torch.no_grad()
def training_flops(objective: Objective, batch: Mapping[str, Tensor]) -> float:
    """Floating-point operations of a training step on a batch: three times those of the losses' forward passes.

    Matrix products and convolutions are counted as they run on a few rows; attention as two full products of queries
    and keys, whatever its mask, which is the usual convention (Chowdhery et al. 2022, appendix B). Recomputation does
    not count. The objective's buffers are left as they were.
    """
    rows = len(next(iter(batch.values())))
    few = {name: x[:ROWS] for name, x in batch.items()}
    attention = 0.0

    def attended(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor
    ) -> None:
        nonlocal attention
        assert isinstance(module, Attention)
        x, context = args[0], args[1] if len(args) > 1 else kwargs.get("context")
        if context is None:
            keys = x.shape[1]
        elif isinstance(context, tuple):
            keys = context[0].shape[2]
        else:
            keys = context.shape[1]
        attention += (
            2.0
            * x.shape[0]
            * module.heads
            * x.shape[1]
            * keys
            * (module.head_width + module.value_width)
        )

    training, buffers = (
        objective.training,
        {name: x.clone() for name, x in objective.named_buffers()},
    )
    objective.eval()
    handles = [
        module.register_forward_hook(attended, with_kwargs=True)
        for module in objective.modules()
        if isinstance(module, Attention)
    ]
    try:
        with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
            for update in objective.updates:
                getattr(objective, update.loss)(few)
    finally:
        for handle in handles:
            handle.remove()
        objective.train(training)
        for name, x in buffers.items():  # which a loss may update
            objective.get_buffer(name).copy_(x)
    return 3.0 * (counter.get_total_flops() + attention) * rows / min(rows, ROWS)


def peak(device: torch.device, precision: str) -> float:
    """The peak floating-point operations per second of matrix products: from PEAKS, or else measured briefly."""
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for word, (bf16, tf32) in PEAKS.items():
            if word in name and precision != "float32":
                return 1e12 * (bf16 if precision == "bfloat16" else tf32)
    n = 1024 if device.type == "cpu" else 4096
    a = torch.randn(n, n, device=device, dtype=kind)
    best = math.inf
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return 2.0 * n**3 / best


class Talk:
    """Prints progress on stderr; prints nothing if `quiet`, as on all workers but the first."""

    def __init__(self, *, steps: int, start: int = 0, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.quiet, self.steps = quiet, steps
        self.live = self.console.is_terminal and not quiet
        self._printed = time.monotonic()
        self._bar: Progress | None = None
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

    def advance(self, step: int, shown: dict[str, Any] | None = None) -> None:
        """Show that a step is done, and the values of `shown` if they are given."""
        text = "  ".join(f"{name} {value}" for name, value in (shown or {}).items())
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
            if shown:
                self._bar.update(self._task, shown=text)
        elif (
            shown
            and not self.quiet
            and (time.monotonic() - self._printed > 10 or step == self.steps)
        ):
            self._printed = time.monotonic()
            self.console.print(f"step {step}/{self.steps}  {text}", markup=False, soft_wrap=True)

    def close(self) -> None:
        """Stop the progress bar."""
        if self._bar is not None:
            self._bar.stop()
        sys.stderr.flush()


# Write scalars as TensorBoard event files, without depending on tensorboard.
#
# A file is a sequence of TFRecords, each a protobuf `Event` (tensorflow/core/util/event.proto, summary.proto).


_CRC = []
for _byte in range(256):  # crc32c, Castagnoli's polynomial, reflected
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _CRC.append(_byte)
_START = 1  # SessionLog.START


class Events:
    """An event file of scalars. `after` is the step that a run resumes from; TensorBoard drops the later ones."""

    def __init__(self, folder: str | Path, *, after: int | None = None) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder by name: ours must come after those of earlier attempts.
        stamps = [
            int(found[1])
            for f in folder.iterdir()
            if (found := re.match(r"events\.out\.tfevents\.(\d+)\.", f.name))
        ]
        stamp = max(int(clock.time()), max(stamps, default=0) + 1)
        self.path = (
            folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"
        )
        self._file = open(self.path, "xb")  # noqa: SIM115  (closed by close)
        now = clock.time()
        self._write(write_field(1, now, double=True) + write_field(3, b"brain.Event:2"))
        if after is not None:
            self._write(
                write_field(1, now, double=True)
                + write_field(2, after + 1)
                + write_field(7, write_field(1, _START))
            )
        self.flush()

    def scalars(
        self, step: int, values: Mapping[str, float | int], time: float | None = None
    ) -> None:
        """Write one value per tag, at a step and a time in seconds since 1970 (by default now)."""
        summary = b"".join(
            write_field(1, write_field(1, tag.encode()) + write_field(2, float(value)))
            for tag, value in values.items()
        )
        self._write(
            write_field(1, clock.time() if time is None else time, double=True)
            + write_field(2, step)
            + write_field(5, summary)
        )

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + struct.pack("<I", masked_crc32c(length)))
        self._file.write(event + struct.pack("<I", masked_crc32c(event)))


def masked_crc32c(data: bytes) -> int:
    """The checksum of a TFRecord: crc32c, rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


MEASURED = 10.0  # seconds of steps after which the time of the others is estimated
FEWEST = 3  # of these steps
SHORT = 60.0  # seconds; of a training that takes no longer nothing is said
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
        self._saved = clock()
        # the first step of this attempt, and when it was done
        self._first: tuple[int, float] | None = None
        self._has_told = False

    def saved(self) -> None:
        """A checkpoint was written: the time until the next one begins."""
        self._saved = self._clock()

    @property
    def is_save_due(self) -> bool:
        """Whether the last checkpoint is so old that another one is due."""
        return 0 < self._save_seconds <= self._clock() - self._saved

    @property
    def _save_seconds(self) -> float:
        return 60 * self._run.save_minutes

    def forecast(self, step: int) -> Forecast | None:
        """The forecast of a long training; once, when enough steps have been measured, and None before and after."""
        if self._has_told:
            return None
        now = self._clock()
        if self._first is None:  # the first step also compiles and allocates
            self._first = step, now
            return None
        first, began = self._first
        if now - began < MEASURED or step - first < FEWEST:
            return None
        self._has_told = True
        rate = (step - first) / (now - began)
        left = self._steps - step
        if left / rate <= SHORT:
            return None
        if self._validates:
            validation = self._until(self._run.valid_every, step) / rate
        else:
            validation = None
        checkpoint = self._until(self._run.save_every, step) / rate
        if self._save_seconds:
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
        return f"{hours} h"
    return f"{hours} h {rest} min"

"""The talk of a training: a live bar where somebody watches, a line now and then where a file does."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from torch import nn

from ..layers import Attention

# Dense matrix products, in TFLOP/s, by the makers' data sheets: bf16, and float32 through tf32.
PEAKS = {
    "H200": (989, 495),
    "H100": (989, 495),
    "A100": (312, 156),
    "L40S": (362, 183),
    "4090": (165, 83),
    "A10G": (70, 35),
}


def flops(model: nn.Module, tokens: int) -> float:
    """Floating-point operations of a training step a token: 6 a weight of a matrix, and 12 a width, key and attention
    (Chowdhery et al. 2022, appendix B); `tokens` is the length of a sequence."""
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    attention = sum(m.out.in_features for m in model.modules() if isinstance(m, Attention) and m.out is not None)
    return 6.0 * linear + 12.0 * attention * tokens


def peak(device: torch.device, precision: str) -> float:
    """The most floating-point operations a second that this device does in products: known for some GPUs, else
    measured in a moment."""
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
    """What worker 0 says on stderr; the other workers, and a quiet run, say nothing but warnings."""

    def __init__(self, *, steps: int, start: int = 0, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.quiet, self.steps = quiet, steps
        self.live = self.console.is_terminal and not quiet
        self._said = time.monotonic()
        self._bar: Progress | None = None
        if self.live:
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.completed}/{task.total}"), BarColumn(bar_width=24),
                TextColumn("{task.fields[words]}"), TimeRemainingColumn(compact=True), console=self.console,
            )  # fmt: skip
            self._task = self._bar.add_task("", total=steps, completed=start, words="")
            self._bar.start()

    def say(self, sentence: str) -> None:
        """A sentence that stays."""
        if not self.quiet:
            self.console.print(sentence, markup=False, soft_wrap=True)

    def moved(self, step: int, words: dict[str, Any] | None = None) -> None:
        """A step is done; `words` are what is known of it now and then."""
        text = "  ".join(f"{name} {value}" for name, value in (words or {}).items())
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
            if words:
                self._bar.update(self._task, words=text)
        elif words and not self.quiet and (time.monotonic() - self._said > 10 or step == self.steps):
            self._said = time.monotonic()
            self.console.print(f"step {step}/{self.steps}  {text}", markup=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
        sys.stderr.flush()

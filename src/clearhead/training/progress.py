"""Progress of a training: a live bar in a terminal or lines in a log file, and the share of the device's peak speed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..layers import Attention

if TYPE_CHECKING:
    from .objectives import Objective

ROWS = 2  # rows of a batch on which operations are counted
# Fused attention kernels count as 0 here, because attention is counted by its shapes.
_UNCOUNTED = {
    getattr(torch.ops.aten, name): lambda *args, **kwargs: 0
    for name in (
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
    )
}  # fmt: skip

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

    def attended(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        nonlocal attention
        assert isinstance(module, Attention)
        x, context = args[0], args[1] if len(args) > 1 else kwargs.get("context")
        keys = (
            x.shape[1] if context is None else context[0].shape[2] if isinstance(context, tuple) else context.shape[1]
        )
        attention += 2.0 * x.shape[0] * module.heads * x.shape[1] * keys * (module.head_width + module.value_width)

    training, buffers = objective.training, {name: x.clone() for name, x in objective.named_buffers()}
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
                SpinnerColumn(), TextColumn("{task.completed}/{task.total}"), BarColumn(bar_width=24),
                TextColumn("{task.fields[shown]}"), TimeRemainingColumn(compact=True), console=self.console,
            )  # fmt: skip
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
        elif shown and not self.quiet and (time.monotonic() - self._printed > 10 or step == self.steps):
            self._printed = time.monotonic()
            self.console.print(f"step {step}/{self.steps}  {text}", markup=False, soft_wrap=True)

    def close(self) -> None:
        """Stop the progress bar."""
        if self._bar is not None:
            self._bar.stop()
        sys.stderr.flush()

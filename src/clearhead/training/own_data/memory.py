"""The least memory that a fine-tuning needs, so that a run that cannot fit is refused before it starts."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from ...errors import InputError
from ...weights.checkpoints.pretrained import in_head
from ..recipe import Recipe

# Bytes per weight: the weight (with a float32 master of bfloat16 ones), its gradient, and AdamW's two moments.
TRAINED = 16
FROZEN = {"float32": 4, "tf32": 4, "bfloat16": 2}  # by precision
LORA_SHARE = 0.03  # of the weights that low-rank updates of usual ranks have


def check_memory(model: nn.Module, recipe: Recipe, method: str, device: torch.device) -> None:
    """Raise if the weights, gradients and moments of a training do not fit into free memory."""
    free = free_memory(device)
    needs = {
        alternative: needed(model, recipe.precision, alternative)
        for alternative in ("full", "lora", "head")
    }
    if free is None or needs[method] <= free:
        return
    weights = sum(p.numel() for p in model.parameters())
    # cheaper methods, with their sizes: they may still not fit
    fit = [
        f"method {alternative} needs {_gb(size)}"
        for alternative, size in needs.items()
        if size < needs[method]
    ]
    if fit:
        advice = f"; {', '.join(fit)}"
    else:
        advice = "; expected a smaller model, or more memory"
    raise InputError(
        f"training {weights:,} weights ({method}) needs at least {_gb(needs[method])} for weights, gradients and the "
        f"optimiser, and {_gb(free)} are free on {device}{advice}"
    )


def needed(model: nn.Module, precision: str, method: str) -> int:
    """The bytes of weights, gradients and moments; activations come on top, and depend on the batch."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    whole = sum(sizes.values())
    head = sum(size for name, size in sizes.items() if in_head(model, name))
    if method == "lora":  # beside the whole model, which is frozen
        return int(whole * LORA_SHARE) * TRAINED + whole * FROZEN[precision]
    trained = {"full": whole, "head": head}[method]
    return trained * TRAINED + (whole - trained) * FROZEN[precision]


def free_memory(device: torch.device) -> int | None:
    """The bytes that are free on a device; None if that cannot be known."""
    if device.type == "cuda":
        # the first of (free, total)
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    # Linux: MemAvailable counts the page cache that can be given back, unlike MemFree
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                # the file gives KiB
                return int(line.split()[1]) * 1024
    # elsewhere all of the physical memory is taken for free, an upper bound
    try:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return None


def is_exhausted(problem: Exception) -> bool:
    """Whether an error says that memory could not be allocated; torch has no class of its own for it on a CPU."""
    return isinstance(
        problem, MemoryError | torch.OutOfMemoryError
    ) or "can't allocate memory" in str(problem)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"

"""The device and the dtype that a word names."""

from __future__ import annotations

import os

import torch

from .errors import InputError, nearest

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def find_device(device: str | torch.device) -> torch.device:
    """The device that a word names: auto is the first there is of cuda, mps and cpu.

    Under torchrun, cuda without a number is the GPU of this process.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    word = next(kind for kind, is_there in there.items() if is_there) if device == "auto" else device
    try:
        found = torch.device(word)
    except RuntimeError as cause:
        raise InputError(f"device={device!r}: expected auto, cpu, cuda, cuda:1 or mps") from cause
    here = ", ".join(kind for kind in there if there[kind])
    if not there.get(found.type, True):
        raise InputError(f"device={str(device)!r}: there is no such device here; expected one of {here}")
    if found.type == "cuda":
        if found.index is None and "LOCAL_RANK" in os.environ:
            found = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if (found.index or 0) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise InputError(f"device={str(device)!r}: the CUDA devices here are cuda:0 to cuda:{last}")
    return found


def find_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The dtype that a word names; None stays None."""
    if isinstance(dtype, str) and dtype not in DTYPES:
        known = (*DTYPES, "int8")  # int8 is no dtype of a module: weights.load knows it
        raise InputError(f"dtype={dtype!r}: expected one of {', '.join(known)}{nearest(dtype, known)}")
    return DTYPES[dtype] if isinstance(dtype, str) else dtype

"""Devices and dtypes by name."""

from __future__ import annotations

import os

import torch

from .errors import InputError, nearest

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def find_device(device: str | torch.device) -> torch.device:
    """Return the device of a name such as "cuda:1"; raises if this machine does not have it.

    Under torchrun, "cuda" without a number is the GPU of this process (LOCAL_RANK).

    Args:
        device: "auto" (the first available of cuda, mps and cpu), the name of a device, or a torch.device.

    Examples:
        >>> find_device("cpu")
        device(type='cpu')
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    here = [name for name, there in available.items() if there]  # in order of preference
    try:
        result = torch.device(here[0] if device == "auto" else device)
    except RuntimeError as cause:
        raise InputError(f"device={device!r}: expected auto, cpu, cuda, cuda:1 or mps") from cause
    if not available.get(result.type, True):
        raise InputError(
            f"device={str(device)!r}: there is no such device here; expected one of {', '.join(here)}"
        )
    if result.type == "cuda":
        # each process of a distributed run has a GPU of its own
        if result.index is None and "LOCAL_RANK" in os.environ:
            result = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if (result.index or 0) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise InputError(
                f"device={str(device)!r}: the CUDA devices here are cuda:0 to cuda:{last}"
            )
    return result


def find_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of a name such as "bfloat16"; a torch.dtype or None is returned as it is.

    Args:
        dtype: The name of a floating-point dtype, a torch.dtype, or None.

    Examples:
        >>> find_dtype("bfloat16")
        torch.bfloat16
    """
    if isinstance(dtype, str) and dtype not in DTYPES:
        names = (*DTYPES, "int8")  # int8 is not a dtype of a whole model, but weights.load takes it
        raise InputError(
            f"dtype={dtype!r}: expected one of {', '.join(names)}{nearest(dtype, names)}"
        )
    if isinstance(dtype, str):
        return DTYPES[dtype]
    return dtype

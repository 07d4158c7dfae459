"""Writing safetensors files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..atomic_files import replacing

_CHUNK = 1 << 24  # bytes hashed and written at a time
TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Write CPU tensors to a safetensors file; returns its size in bytes and its SHA-256.

    Unlike the safetensors library's own writer it raises OSError if the disk is full.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps values aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), dtype=torch.uint8)
    sha256 = hashlib.sha256()
    with open(path, "wb") as file:
        for data in (head, *(tensor for _, tensor in ordered)):
            view = data.reshape(-1).view(torch.uint8).numpy()
            for at in range(0, len(view), _CHUNK):
                chunk = view[at : at + _CHUNK].data
                sha256.update(chunk)
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), sha256.hexdigest()


def replace_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of any device to a safetensors file, whole or not at all."""
    with replacing(path) as temporary:
        write_tensors(temporary, {name: tensor.detach().cpu() for name, tensor in tensors.items()})

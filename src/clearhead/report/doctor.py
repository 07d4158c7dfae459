"""doctor: what this machine has, and whether the models that ship answer here as they should."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..errors import InputError
from ..layers import Mask, attend
from ..tasks import generate, likelihood, score, translate
from ..weights import Bundle, load, shipped

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "msgspec", "fastapi", "uvicorn", "triton")
EXAMPLES = {"en-de": "A dog runs.", "en-de-rnn": "A dog runs.", "fr-en": "Je la mange.", "everyday": "The man"}


@dataclass(frozen=True, kw_only=True)
class Health:
    """What was found: facts in words, and the problems, if there are some."""

    facts: dict[str, str]
    zoo: dict[str, str]  # what each shipped model answered, or why it could not
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {"facts": self.facts, "zoo": self.zoo, "problems": self.problems}


def doctor(*, device: str = "auto") -> Health:
    """Versions, device, the kernels that answer, free memory, and a self-test of every model that ships."""
    problems: list[str] = []
    here = torch.device(load(next(iter(shipped())), device=device).device)
    facts = {
        "clearhead": __version__,
        "python": f"{platform.python_version()}, {platform.platform()}",
        "packages": ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name))),
        "device": _device(here),
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "memory": _memory(here),
        "attention": _kernel(here),
        "disk": f"{shutil.disk_usage(os.getcwd()).free >> 30} GB free here",
    }
    zoo = {}
    for name in shipped():
        try:
            zoo[name] = _self_test(name, device)
        except Exception as problem:  # whatever it is, it is reported
            problems.append(f"{name}: {type(problem).__name__}: {problem}")
            zoo[name] = "failed"
    missing = [name for name in ("fastapi", "uvicorn") if not _version(name)]
    if missing:
        problems.append(f"the explorer needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    return Health(facts=facts, zoo=zoo, problems=problems)


def _self_test(name: str, device: str) -> str:
    """Load a model and let it answer; raises if what it answers contradicts itself."""
    began = time.perf_counter()
    bundle = load(name, device=device)
    for capability, test in SELF_TESTS.items():
        if capability in bundle.can:
            return f"{test(bundle, EXAMPLES.get(name, ''))} ({time.perf_counter() - began:.2f} s)"
    return f"loaded ({time.perf_counter() - began:.2f} s)"


def _translates(bundle: Bundle, text: str) -> str:
    """The score of the search must be that of reading its answer."""
    found: Any = translate(bundle, text, beams=3)
    _agree(found.text, found.logprob, score(bundle, text, found.text).logprob)
    return f"{text} -> {found.text}"


def _continues(bundle: Bundle, text: str) -> str:
    """The score of the continuation must be that of reading it."""
    found: Any = generate(bundle, text, max_new=8)
    logprobs = likelihood(bundle, text + found.text).logprobs
    _agree(text + found.text, found.logprob, sum(one or 0.0 for one in logprobs[-len(found.pieces) :]))
    return f"{text} -> {text}{found.text}"


def _sees(bundle: Bundle, text: str) -> str:
    """An image of one colour goes through preprocessing and model."""
    height, width = (bundle.preprocessing.size if bundle.preprocessing is not None else None) or (64, 64)
    logits = bundle(np.full((height, width, 3), 128, np.uint8))
    if not bool(logits.isfinite().all()):
        raise InputError("a grey image gives logits that are not finite")
    return f"a grey image of {height} x {width} -> class {int(logits.argmax())}"


def _agree(answer: str, searched: float, read: float) -> None:
    if not abs(read - searched) <= 1e-2:
        raise InputError(f"searching gives {answer!r} {searched:.3f}, and reading it {read:.3f}")


SELF_TESTS = {"translate": _translates, "generate": _continues, "classify": _sees}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.processor() or platform.machine()}"


def _memory(device: torch.device) -> str:
    told = []
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        told.append(f"{free / 2**30:.1f} of {whole / 2**30:.1f} GB free on the device")
    if sys.platform == "linux":
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        left, all_ = (int(lines[name].split()[0]) / 2**20 for name in ("MemAvailable", "MemTotal"))
        told.append(f"{left:.1f} of {all_:.1f} GB free")
    return "; ".join(told) or "unknown on this system"


def _kernel(device: torch.device) -> str:
    """Which kernel answers a causal attention here, and whether statistics stream on the device."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__.split(".")[0])
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    q = torch.randn(1, 2, 64, 16, dtype=kind, device=device)
    with torch.no_grad(), Names():
        attend(q, q, q, mask=Mask(causal=True))
    names = [name for name in seen if "attention" in name]
    stream = "and a streaming kernel for statistics" if device.type == "cuda" else "statistics in bands on the CPU"
    return f"{names[0] if names else 'written out'}; {stream}"

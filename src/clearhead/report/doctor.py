"""doctor: the facts of this machine, and a self-test of the models that ship with the package."""

from __future__ import annotations

import math
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
from ..draw.result import PlainValues
from ..errors import InputError
from ..layers import Mask, attend
from ..tasks import caption, classify, generate, likelihood, score, translate
from ..weights import Bundle, load, shipped

PACKAGES = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "msgspec",
    "fastapi",
    "uvicorn",
    "triton",
)
EXAMPLES = {
    "en-de": "A dog runs.",
    "en-de-rnn": "A dog runs.",
    "fr-en": "Je la mange.",
    "everyday": "The man",
}
TEXT = "A dog runs."  # for a model without an example


@dataclass(frozen=True, kw_only=True)
class Health(PlainValues):
    """The report of `doctor`."""

    facts: dict[str, str]  # versions, device, memory and so on, by name
    zoo: dict[str, str]  # the result of each shipped model's self-test, by its name
    problems: list[str]  # what failed or is missing, in sentences


def doctor(*, device: str = "auto") -> Health:
    """Report versions, device, attention kernel and free memory, and run a self-test of every model that ships.

    Args:
        device: The device to test: auto, cpu, cuda, cuda:1 or mps.

    Examples:
        >>> doctor(device="cpu").problems  # doctest: +SKIP
        []
    """
    problems: list[str] = []
    # The device that "auto" resolves to is known only from a loaded model.
    here = torch.device(load(next(iter(shipped())), device=device).device)
    facts = {
        "clearhead": __version__,
        "python": f"{platform.python_version()}, {platform.platform()}",
        "packages": ", ".join(
            f"{name} {version}" for name in PACKAGES if (version := _version(name))
        ),
        "device": _device(here),
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "memory": _memory(here),
        "attention": _kernel(here),
        "disk": f"{shutil.disk_usage(os.getcwd()).free >> 30} GB free here",
    }
    zoo = {}
    # One broken model must not hide the state of the others.
    for name in shipped():
        try:
            zoo[name] = _self_test(name, device)
        except Exception as problem:  # any failure is reported
            problems.append(f"{name}: {type(problem).__name__}: {problem}")
            # The table says that it failed, and the problem says why.
            zoo[name] = "failed"
    # The explorer's packages are optional, so nothing else has noticed that they are missing.
    missing = [name for name in ("fastapi", "uvicorn") if not _version(name)]
    if missing:
        problems.append(
            f"the explorer needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    return Health(facts=facts, zoo=zoo, problems=problems)


def _self_test(name: str, device: str) -> str:
    """Load a model and run it; returns its answer, and raises if two ways to compute the same number disagree."""
    began = time.perf_counter()
    bundle = load(name, device=device)
    for capability, test in SELF_TESTS.items():
        # The first capability in the order of SELF_TESTS; a model may have several.
        if capability in bundle.can:
            # The time includes loading, as a user experiences it.
            return f"{test(bundle, EXAMPLES.get(name, ''))} ({time.perf_counter() - began:.2f} s)"
    return f"loaded ({time.perf_counter() - began:.2f} s)"


def _translates(bundle: Bundle, text: str) -> str:
    """Check that beam search and forced decoding give a translation the same log-probability."""
    translation: Any = translate(bundle, text, beams=3)
    _agree(translation.text, translation.logprob, score(bundle, text, translation.text).logprob)
    return f"{text} -> {translation.text}"


def _continues(bundle: Bundle, text: str) -> str:
    """Check that decoding with a cache and one forward pass give a text the same log-probability."""
    generation: Any = generate(bundle, text, max_new=8)
    whole = text + generation.text
    # The tokens of the continuation are the last ones of the whole text.
    logprobs = likelihood(bundle, whole).logprobs[-len(generation.pieces) :]
    # None is the log-probability of a first token, which has nothing before it.
    _agree(whole, generation.logprob, sum(one or 0.0 for one in logprobs))
    return f"{text} -> {whole}"


def _classifies(bundle: Bundle, text: str) -> str:
    """Check that the class probabilities of a text, or of a grey image, are finite."""
    given: Any = text or TEXT
    # No example text describes an image: a grey one of the right size tests the same code.
    if bundle.reads == "images":
        # The second value names the image in the report.
        given, text = _grey(bundle)
    classes: Any = classify(bundle, given)
    if not all(math.isfinite(share) for _, share in classes):
        # NaN or infinity comes from damaged weights or from a dtype that is too narrow.
        raise InputError(f"{text or TEXT}: the probabilities of its classes are not finite")
    return f"{text or TEXT} -> {classes[0][0]}"


def _captions(bundle: Bundle, text: str) -> str:
    """Check that beam search and forced decoding give a grey image's caption the same log-probability."""
    image, about = _grey(bundle)
    found: Any = caption(bundle, image, beams=3)
    given: Any = caption(bundle, image, text=found.text)
    # A caption that was cut has no end token, so forced decoding would add one and its
    # log-probability.
    if not found.cut:
        _agree(found.text, found.logprob, given.logprob)
    return f"{about} -> {found.text}"


def _grey(bundle: Bundle) -> tuple[np.ndarray, str]:
    """A grey image of the size that a model reads, and what it is."""
    # Some models read images of any size.
    height, width = (None if bundle.preprocessing is None else bundle.preprocessing.size) or (
        64,
        64,
    )
    return np.full((height, width, 3), 128, np.uint8), f"a grey image of {height} x {width}"


def _agree(answer: str, searched: float, read: float) -> None:
    # Written with "not", so that NaN fails too. The tolerance is in nats.
    if not abs(read - searched) <= 1e-2:
        raise InputError(
            f"the log-probability of {answer!r} is {searched:.3f} by the search, and {read:.3f} by a forward pass"
        )


SELF_TESTS = {  # by capability of a model; the first that it has is run
    "translate": _translates,
    "caption": _captions,
    "generate": _continues,
    "classify": _classifies,
}


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
    found = []
    # Free and whole memory of the device, in bytes.
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        found.append(f"{free / 2**30:.1f} of {whole / 2**30:.1f} GB free on the device")
    if sys.platform == "linux":
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        # /proc/meminfo is in kB: dividing by 2^20 gives GB.
        left, all_ = (int(lines[name].split()[0]) / 2**20 for name in ("MemAvailable", "MemTotal"))
        found.append(f"{left:.1f} of {all_:.1f} GB free")
    return "; ".join(found) or "unknown on this system"


def _kernel(device: torch.device) -> str:
    """The kernel that computes causal attention here, and how statistics of attention are computed."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            # "_scaled_dot_product_flash_attention.default" without its overload.
            called.append(func.__name__.split(".")[0])
            return func(*args, **(kwargs or {}))

    called: list[str] = []
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    q = torch.randn(1, 2, 64, 16, dtype=dtype, device=device)
    # Every operation that PyTorch dispatches is recorded, so the kernel it really chose is seen.
    with torch.no_grad(), Names():
        attend(q, q, q, mask=Mask(causal=True))
    names = [name for name in called if "attention" in name]
    if device.type == "cuda":
        stream = "and a streaming kernel for statistics"
    else:
        stream = "statistics in bands on the CPU"
    return f"{names[0] if names else 'no fused kernel'}; {stream}"

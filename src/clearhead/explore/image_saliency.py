"""Saliency of an image for the view Classify: which pixels the score of a class depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checks import one_of
from ..errors import InputError, nearest
from ..look import SALIENCY_METHODS, saliency
from ..tasks.classify import class_names
from ..weights import Bundle
from .candidates import significant
from .image_inspection import model_input, reads_images
from .request_queue import added_up

WINDOWS = 8  # of occlusion, per side
# Options by method, for an image of a width in pixels: they make it quick enough for the page.
OPTIONS: dict[str, Callable[[int], dict[str, int]]] = {
    "integrated": lambda _: {"steps": 64},
    "smoothgrad": lambda _: {"samples": 16},
    "occlusion": lambda width: dict.fromkeys(("patch", "stride"), max(1, width // WINDOWS)),
}


def explain_image(
    bundle: Bundle, file: bytes, method: str, target: str | None, done: Callable[[int, int], None]
) -> dict[str, Any]:
    """How much each pixel counts for the score of a class, as plain values for JSON.

    Args:
        bundle: A model with classes that reads images.
        file: The bytes of an image file.
        method: A key of SALIENCY_METHODS.
        target: The name of a class; None: the likeliest.
        done: Called with (steps done, all steps); may raise to stop.
    """
    if not reads_images(bundle) or "classify" not in bundle.can:
        raise InputError(f"this {bundle.name} has no classes of images: expected a model that classifies them")
    one_of("method", method, SALIENCY_METHODS)
    names = class_names(bundle)
    if target is not None and target not in names:
        raise InputError(f"no class {target!r}: expected one of {', '.join(names[:20])}{nearest(target, names)}")
    width = model_input(bundle, file)[1].shape[1]  # raises if the model would read too many pixels
    wanted = None if target is None else names.index(target)
    options: dict[str, Any] = OPTIONS[method](width) if method in OPTIONS else {}
    found = saliency(bundle, file, method=method, target=wanted, done=added_up(done), **options)
    change = None if found.completeness is None else float(found.values.double().sum()) - found.completeness
    return {
        "method": method, "target": names[found.index or 0], "score": found.score, "probability": found.probability,
        "signed": found.signed, "layer": found.layer, "completeness": found.completeness, "change": change,
        "options": options,
        "values": [[significant(x) for x in row] for row in found.values.tolist()],
    }  # fmt: skip

"""Weight files without a config: state dicts of torchvision, timm and DINOv2, whose tensors tell the model.

A file has no number of heads, no class names and no preprocessing. The first follows from the width for the published
models, and images are prepared as these libraries do for ImageNet, at the size of the model's grid of positions.
timm.py reads folders, which have more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.images.preprocessing import Preprocessing
from ...errors import InputError
from ...models import family, family_of
from ..bundle import Bundle
from ..fill import Shapes, WeightsError, build_empty
from ..table import Ignored, Row, UsedTensors, export, fill
from ..tensor_files import Tensors, open_file, replace_tensors

SUFFIXES: tuple[str, ...] = (".pth", ".pt", ".safetensors", ".bin")
# Width of a vision transformer: its heads, in all published models of these libraries.
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1536: 24}
# of the pixels of ImageNet, from 0 to 1
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = Preprocessing(resize=256, crop=(224, 224), mean=MEAN, deviation=DEVIATION)


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """How one library names the tensors of one of our families."""

    model: str  # our family
    marks: tuple[str, ...]  # tensors that every such file has
    # shapes, keyword arguments of their class -> our Config
    to_ours: Callable[[Shapes, Mapping[str, Any]], Any]
    rows: Callable[[Any], Iterable[Row]]  # our Config -> the table
    check: Callable[[Any], None]  # raises if our Config has what theirs cannot express
    ignored: Ignored  # tensors that our model does not need
    # where several of theirs become one row
    merge: Callable[[Tensors], Tensors] = lambda tensors: tensors
    # the inverse
    split: Callable[[dict[str, Tensor], Any], dict[str, Tensor]] = lambda tensors, c: tensors


def layouts() -> Iterator[tuple[str, StateLayout]]:
    """All layouts, each with the name of its library."""
    from . import timm, torchvision

    for library, known in (("torchvision", torchvision.LAYOUTS), ("timm", timm.LAYOUTS)):
        for layout in known.values():
            yield library, layout


def load(path: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, UsedTensors]:
    """Load a weight file by the names of its tensors; returns the bundle, and which tensors it was loaded from."""
    with open_file(path) as tensors:
        layout = _recognise(tensors)
        model, used = build(layout, tensors, {}, device, dtype, path)
    return Bundle(
        model, None, model.config, path.parent, preprocessing=_preprocessing(model.config)
    ), used


def _recognise(tensors: Tensors) -> StateLayout:
    """The layout all of whose marks a file has."""
    for _, layout in layouts():
        # ResNets have the same names in both libraries: the first layout serves for either
        if all(mark in tensors.shapes for mark in layout.marks):
            return layout
    known = ", ".join(f"{layout.model} of {library}" for library, layout in layouts())
    raise WeightsError(f"{tensors.path}: its tensors are those of no known model: expected {known}")


def _preprocessing(options: Any) -> Preprocessing:
    """The preprocessing of ImageNet; models of another size than 224 get the whole image at that size.

    Grids for more than 384 pixels are interpolated to 224, as DINOv2's is for all its published results.
    """
    size = getattr(options, "size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    if (height, width) == (224, 224) or max(height, width) > 384:
        return IMAGENET
    return replace(IMAGENET, resize=min(height, width), crop=(height, width))


def build(
    layout: StateLayout,
    tensors: Tensors,
    arguments: Mapping[str, Any],
    device: torch.device,
    dtype: torch.dtype | None,
    where: Path,
) -> tuple[Any, UsedTensors]:
    """Build our model and fill it with their tensors; `where` is the file with its sizes, for error messages."""
    tensors = layout.merge(tensors)
    try:
        options = layout.to_ours(tensors.shapes, arguments)
    except (InputError, KeyError, IndexError) as cause:
        # a KeyError is a tensor that the file lacks, an IndexError one with fewer axes
        is_missing = isinstance(cause, KeyError)
        reason = f"there is no tensor {cause}" if is_missing else str(cause)
        raise WeightsError(f"{where}: {reason}") from cause
    model = build_empty(family(layout.model)[0], options, tensors.shapes, where, tensors.path)
    used = fill(model, tensors, layout.rows(model.config), layout.ignored, device, dtype)
    return model.eval(), used


def their_tensors(
    bundle: Bundle, known: Mapping[str, StateLayout], library: str
) -> dict[str, Tensor]:
    """The tensors of a model under the names of a library; raises if it has no such model."""
    name = family_of(bundle.model)
    if name not in known:
        raise WeightsError(
            f"{name}: {library} has no such model: expected one of {', '.join(known)}"
        )
    layout = known[name]
    layout.check(bundle.config)
    return layout.split(export(bundle.model, layout.rows(bundle.config)), bundle.config)


def save_torchvision(bundle: Bundle, folder: Path) -> Path:
    """Write model.safetensors with the names of torchvision, for load_state_dict of its model; returns the folder."""
    from .torchvision import LAYOUTS

    tensors = their_tensors(bundle, LAYOUTS, "torchvision")
    folder.mkdir(parents=True, exist_ok=True)
    replace_tensors(folder / "model.safetensors", tensors)
    # of another model that was here before
    for other in ("config.json", "preprocessor_config.json"):
        (folder / other).unlink(missing_ok=True)
    return folder


def numbered(shapes: Shapes, name: str) -> int:
    """The number of tensors name.format(0), name.format(1) and so on."""
    count = 0
    while name.format(count) in shapes:
        count += 1
    return count


def heads_of(width: int, arguments: Mapping[str, Any]) -> int:
    """The number of heads of a vision transformer: as given, or that of the published models of this width."""
    # timm's folders give it, other files do not
    heads = arguments.get("num_heads", HEADS.get(width))
    if not isinstance(heads, int):
        raise InputError(
            f"the number of heads of a vision transformer of width {width} is not in the file"
        )
    return heads


def grid_of(places: int) -> int:
    """The rows, and columns, of a square grid of positions."""
    side = round(places**0.5)
    if side * side != places:
        raise InputError(f"{places} positions of patches are not a square grid")
    return side

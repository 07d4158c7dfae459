"""Data of any kind as batches of a model's inputs: images or texts for a Bundle, tensors for a bare torch module."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..data.images.files import LabelledImages, images_in
from ..errors import InputError, Notice
from ..weights import Bundle
from .maps.text_attention import read_ids

Done = Callable[[int, int], None]  # called with the number of inputs just finished, and of all
# images, texts, pairs of texts, a folder, LabelledImages, a tensor, or tensors by the names of
# arguments
Data = Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The arguments of one call of a model."""

    args: tuple[Tensor, ...] = ()
    named: Mapping[str, Tensor] | None = None
    # tokens of each row that are not padding; of a translator, of its source
    lengths: Int[Tensor, "b"] | None = None
    target_lengths: Int[Tensor, "b"] | None = None  # the same of the target
    size: tuple[int, int] | None = None  # height and width of images

    @property
    def rows(self) -> int:
        """The number of inputs."""
        return len(next(iter((*self.args, *(self.named or {}).values()))))

    def run(self, model: nn.Module) -> Any:
        """Call a model with these arguments."""
        return model(*self.args, **(self.named or {}))


class Inputs:
    """A model's inputs, in the order given, some at a time.

    Args:
        model: A Bundle, or a torch module.
        data: For a Bundle of images: images (paths, PIL images, arrays), LabelledImages or a folder. For one of texts:
            texts; for a translator pairs of texts, or sources alone. For a torch module: a tensor with a row per input,
            or tensors by the names of the arguments.
    """

    def __init__(self, model: Bundle | nn.Module, data: Data) -> None:
        self.model = model
        reads = model.reads if isinstance(model, Bundle) else "tensors"
        # A tensor is the input itself, unless it holds the pixels of images that still have to be preprocessed.
        pixels = reads == "images" and isinstance(data, Tensor) and not data.is_floating_point()
        if isinstance(data, Mapping) or (isinstance(data, Tensor) and not pixels):
            reads = "tensors"
        items, self._batches = READERS[reads]
        self.items: Any = items(model, data)
        if not len(self):
            raise InputError("there is no data: expected one input or more")

    def __len__(self) -> int:
        if isinstance(self.items, dict):
            return len(next(iter(self.items.values())))
        return len(self.items)

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """Yield the inputs from `first` up to `last` as one batch, or as several if their sizes differ."""
        yield from self._batches(self.model, self.items, first, min(last, len(self)))


def network(model: Bundle | nn.Module) -> nn.Module:
    """The torch module of a Bundle, or the module itself."""
    return model.model if isinstance(model, Bundle) else model


def device_of(model: Bundle | nn.Module) -> torch.device:
    """The device of a model's parameters; the CPU if it has none."""
    return next((p.device for p in network(model).parameters()), torch.device("cpu"))


def floats_of(model: Bundle | nn.Module) -> torch.dtype:
    """The dtype that a model computes in: that of its matrices."""
    matrices = (
        p.dtype for p in network(model).parameters() if p.ndim > 1 and p.is_floating_point()
    )
    return next(matrices, torch.float32)


# Tensors: as they are.


def _tensor_items(model: Any, data: Data) -> dict[str, Tensor]:
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    given = {"": data} if isinstance(data, Tensor) else data
    if not isinstance(given, Mapping) or not all(
        isinstance(x, Tensor) and x.ndim for x in given.values()
    ):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(
            f"a bare {name} reads tensors: expected a tensor with a row per input, or {{argument: tensor}}; images and "
            "texts need a Bundle, with preprocessing or tokens"
        )
    if len({len(x) for x in given.values()}) > 1:
        raise InputError(
            f"tensors of {sorted({len(x) for x in given.values()})} rows: expected as many in each"
        )
    return dict(given)


def _tensor_batches(model: Any, items: dict[str, Tensor], first: int, last: int) -> Iterator[Batch]:
    device, dtype = device_of(model), floats_of(model)
    some = {
        name: x[first:last].to(device, dtype if x.is_floating_point() else x.dtype)
        for name, x in items.items()
    }
    size = next((tuple(x.shape[-2:]) for x in some.values() if x.ndim == 4), None)
    if "" in some:
        yield Batch(args=(some[""],), size=size)  # type: ignore[arg-type]
    else:
        yield Batch(named=some, size=size)  # type: ignore[arg-type]


# Images, preprocessed as the Bundle says.


def _image_items(bundle: Bundle, data: Data) -> Sequence[Any]:
    if isinstance(data, LabelledImages):
        return _Opened(data)
    if isinstance(data, str | Path) and len(str(data)) < 4096 and Path(data).is_dir():
        return images_in(Path(data))
    if isinstance(data, Tensor):
        data = data.movedim(-3, -1).cpu().numpy()
    one = isinstance(data, str | bytes | Path) or not isinstance(data, Iterable)
    one |= isinstance(data, np.ndarray) and data.ndim != 4
    return [data] if one else list(data)


class _Opened(Sequence[Any]):
    """Labelled images, each opened when it is read."""

    def __init__(self, images: LabelledImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images.labels)

    def __getitem__(self, index: Any) -> Any:
        return [self.images.opened(i) for i in range(len(self))[index]]


def _image_batches(bundle: Bundle, items: Sequence[Any], first: int, last: int) -> Iterator[Batch]:
    waiting: list[Tensor] = []
    for image in items[first:last]:
        pixels = bundle.pixels(image)
        if waiting and pixels.shape != waiting[0].shape:
            yield _pixels(bundle, waiting)
            waiting = []
        waiting.append(pixels)
    if waiting:
        yield _pixels(bundle, waiting)


def _pixels(bundle: Bundle, images: list[Tensor]) -> Batch:
    x = torch.stack(images).to(bundle.device, bundle.dtype)
    return Batch(args=(x,), size=tuple(x.shape[-2:]))  # type: ignore[arg-type]


# Texts, padded at the end; a model that can be told lengths is told them.


def _text_items(bundle: Bundle, data: Data) -> list[np.ndarray]:
    texts = [data] if isinstance(data, str) else list(data)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(
                f"this {bundle.name} reads text: expected a string, got {type(text).__name__}"
            )
    return [_fitting(bundle, read_ids(bundle, text)[0], bundle.max_tokens) for text in texts]


def _fitting(bundle: Bundle, ids: np.ndarray, most: int | None) -> np.ndarray:
    """The ids of a text, cut at the model's context, with its end token."""
    if not len(ids):
        raise InputError("a text is empty: expected a token or more")
    if most is None or len(ids) <= most:
        return ids
    warnings.warn(
        f"a text of {len(ids)} tokens is longer than the {most} this model reads: it is cut there",
        Notice,
        5,
    )
    return np.append(ids[: most - 1], ids[-1])


def _text_batches(
    bundle: Bundle, items: Sequence[np.ndarray], first: int, last: int
) -> Iterator[Batch]:
    ids, lengths = _padded(items[first:last], bundle.tokenizer().pad, bundle.device)
    named = {"lengths": lengths} if _takes_lengths(bundle.model) else {}
    if not named and "predict" not in bundle.can and len(set(lengths.tolist())) > 1:
        # a model that cannot be told which tokens are padding gets none
        for i in range(first, last):
            yield from _text_batches(bundle, items, i, i + 1)
        return
    yield Batch(args=(ids,), named=named, lengths=lengths)


def _pair_items(bundle: Bundle, data: Data) -> list[tuple[np.ndarray, np.ndarray]]:
    pair, given = bundle.pair(), [data] if isinstance(data, str) else list(data)
    rows = []
    for one in given:
        source, target = (one, None) if isinstance(one, str) else one
        # Without a target the decoder reads its prompt alone: the encoder never sees the target.
        begun = [] if target is None else pair.written(target)[:-1].tolist()
        read = np.array([*bundle.decoder_prompt(), *begun], np.int64)
        rows.append(
            (
                _fitting(bundle, pair.read(source), bundle.max_tokens),
                _fitting(bundle, read, bundle.max_tokens),
            )
        )
    return rows


def _pair_batches(
    bundle: Bundle, items: Sequence[tuple[Any, Any]], first: int, last: int
) -> Iterator[Batch]:
    pair: Any = bundle.tokens
    source, lengths = _padded([one for one, _ in items[first:last]], pair.source.pad, bundle.device)
    ids, written = _padded([one for _, one in items[first:last]], pair.target.pad, bundle.device)
    yield Batch(
        named={"ids": ids, "source": source, "lengths": lengths},
        lengths=lengths,
        target_lengths=written,
    )


def _padded(
    rows: Sequence[np.ndarray], pad: int | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    ids = torch.full((len(rows), max(map(len, rows))), pad or 0, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.as_tensor(row)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def _takes_lengths(model: nn.Module) -> bool:
    return "lengths" in inspect.signature(model.forward).parameters


# How a model reads data: what makes its items, and what makes batches of them.
READERS: dict[str, tuple[Callable[..., Any], Callable[..., Iterator[Batch]]]] = {
    "images": (_image_items, _image_batches),
    "tokens": (_text_items, _text_batches),
    "pairs": (_pair_items, _pair_batches),
    "vectors": (_tensor_items, _tensor_batches),
    "tensors": (_tensor_items, _tensor_batches),
}

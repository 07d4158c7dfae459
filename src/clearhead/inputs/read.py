"""read_input and Inputs: one input of any model, or many, by what the model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..data.images.files import ImageLike
from ..errors import InputError
from ..models.model import network
from ..weights import Bundle
from .batch import Batch, ModelInput
from .images import grouped_images, image_batches, image_items, read_image
from .pairs import grouped_pairs, pair_batches, pair_items, read_pair
from .tensors import (
    grouped_tensors,
    read_tensors,
    read_vectors,
    read_with_tokenizer,
    tensor_batches,
    tensor_items,
)
from .texts import grouped_texts, read_text, text_batches, text_items

# one input: a text, (source, target), an image, or the arguments of a torch module
Given = str | tuple[str, str] | ImageLike | Tensor | Mapping[str, Tensor]
# many: images, texts, pairs of texts, a folder, LabelledImages, a tensor, or tensors by the names of arguments
Data = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class InputReader:
    """How one kind of input is read."""

    one: Callable[[Bundle, Any, str | None], ModelInput]  # (bundle, given, target)
    # (model, data) -> items, and whether the data was a single input
    items: Callable[[Any, Any], tuple[Any, bool]]
    batches: Callable[[Any, Any], Iterator[Batch]]  # (model, items) in their order
    # (model, items) in batches that need little padding, with the numbers of their items
    grouped: Callable[[Any, Any], Iterator[tuple[list[int], Batch]]]


TENSORS = InputReader(
    one=read_vectors,
    items=tensor_items,
    batches=tensor_batches,
    grouped=grouped_tensors,
)
# By Bundle.reads; bare modules read tensors.
READERS = {
    "tokens": InputReader(
        one=read_text, items=text_items, batches=text_batches, grouped=grouped_texts
    ),
    "pairs": InputReader(
        one=read_pair, items=pair_items, batches=pair_batches, grouped=grouped_pairs
    ),
    "images": InputReader(
        one=read_image, items=image_items, batches=image_batches, grouped=grouped_images
    ),
    "vectors": TENSORS,
}


def reader_of(bundle: Bundle) -> InputReader:
    """The InputReader for what a Bundle's model reads; raises if there is none, as for captioners."""
    if bundle.reads not in READERS:
        raise InputError(
            f"this {bundle.name} reads {bundle.reads}: expected a model that reads images or text"
        )
    return READERS[bundle.reads]


def read_input(
    model: Bundle | nn.Module, given: Given, *, target: str | None = None, tokenizer: Any = None
) -> ModelInput:
    """Return the input of a model for a text, an image or tensors, as the arguments of its forward pass.

    Args:
        model: A Bundle, or a torch module in evaluation mode.
        given: A text or an image for a Bundle, for a translator also (source, target); for a module its first argument
            with one row, or a dict of arguments, or a text with `tokenizer`.
        target: What a translator's decoder has written so far; for a translator only.
        tokenizer: The tokenizer of a model of transformers, which reads the text and names the tokens.

    Examples:
        >>> bundle = clearhead.load("everyday")
        >>> given = read_input(bundle, "A dog runs.")
        >>> given.pieces, given.run(bundle.model).shape[1]
        (['A', ' dog', ' runs', '.'], 4)
    """
    module = network(model)
    # dropout would make every inspection of the same input differ
    if module.training:
        raise InputError(
            f"this {type(module).__name__} is in training mode: call .eval() first, so that it is fixed"
        )
    # a bare model of transformers, whose text somebody has to tokenise
    if tokenizer is not None:
        if isinstance(model, Bundle):
            raise InputError("a Bundle has tokens of its own: expected no tokenizer")
        # texts, with the names of their tokens
        return read_with_tokenizer(model, tokenizer, given, target)
    if isinstance(given, Mapping):
        return read_tensors(model, given)
    if isinstance(model, Bundle):
        # by what the Bundle's model reads
        return reader_of(model).one(model, given, target)
    if isinstance(given, Tensor):
        return read_tensors(model, given)
    raise InputError(
        f"a bare {type(module).__name__} was given a {type(given).__name__}: expected a tensor with one row or a "
        "dict of them; a text needs its tokenizer, tokenizer=..., or a Bundle, and an image a Bundle"
    )


class Inputs:
    """A model's inputs, in the order given, some at a time.

    Args:
        model: A Bundle, or a torch module.
        data: For a Bundle of images: images (paths, PIL images, arrays), LabelledImages or a folder. For one of texts:
            texts; for a translator pairs of texts, or sources alone. For a torch module: a tensor with a row per input,
            or tensors by the names of the arguments.

    Examples:
        >>> inputs = Inputs(clearhead.load("everyday"), ["A dog runs.", "A man", "It"])
        >>> [batch.args[0].shape for batch in inputs.batches(0, 2)]
        [torch.Size([2, 4])]
    """

    def __init__(self, model: Bundle | nn.Module, data: Data) -> None:
        self.model = model
        self._reader = reader_of(model) if isinstance(model, Bundle) else TENSORS
        # tensors skip tokens and preprocessing, also for a Bundle
        if _are_arguments(model, data):
            self._reader = TENSORS
        self.items: Any = self._reader.items(model, data)[0]
        if not len(self):
            raise InputError("there is no data: expected one input or more")

    def __len__(self) -> int:
        if isinstance(self.items, dict):
            # every argument has a row per input
            return len(next(iter(self.items.values())))
        return len(self.items)

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """Yield the inputs from `first` up to `last` as one batch, or as several if their sizes differ."""
        if isinstance(self.items, dict):
            # tensors by argument are sliced along their common first axis
            some: Any = {name: x[first:last] for name, x in self.items.items()}
        else:
            # a list of ids, or images that are opened when they are read
            some = self.items[first:last]
        yield from self._reader.batches(self.model, some)


def _are_arguments(model: Bundle | nn.Module, data: Data) -> bool:
    """Whether data are a model's arguments: tensors, unless they hold the pixels of images to preprocess."""
    if isinstance(data, Mapping):
        return True
    if not isinstance(data, Tensor):
        return False
    reads_images = isinstance(model, Bundle) and model.reads == "images"
    return not reads_images or data.is_floating_point()

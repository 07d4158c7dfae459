"""features: one vector per input of any layer of any model, pooled from its tokens or places while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...errors import InputError, nearest
from ...inputs import Batch, Inputs, network
from ...inputs.read import Data
from ...layers import mean_of_tokens
from ...progress import Done
from ...weights import Bundle
from ..capture.addresses import Tree
from ..structure import Axes, OutputAxes, first_tensor, layer_names, record_layout
from ..structure.layers import VECTORS
from ..watch import watch

ROWS = 64  # inputs per batch


@dataclass(frozen=True, kw_only=True)
class RecordOrigin:
    """Where a record comes from: what a pool needs to know of it."""

    name: str  # the address
    layout: OutputAxes  # of the pass so far
    lengths: Tensor | None  # tokens of each row that are not padding


def _mean(x: Tensor, origin: RecordOrigin) -> Tensor:
    """The mean over the tokens that are not padding, over the patches of an image, or over all places of a grid."""
    # sums of many half-precision numbers would be rounded
    wide = torch.promote_types(x.dtype, torch.float32)
    if x.ndim == 3 and origin.lengths is not None:
        return mean_of_tokens(x.to(wide), origin.lengths)
    # Patches only: the class token and registers are not among `vectors`.
    if x.ndim > 2:
        return origin.layout.axes(origin.name, x).vectors(x).mean(1, dtype=wide)
    return x


def _first(x: Tensor, origin: RecordOrigin) -> Tensor:
    """The first token: the class token."""
    axes = origin.layout.axes(origin.name, x)
    # Patches on a grid without special tokens have no class token in front.
    if not axes.tokens or axes.channels == 1 or (axes.grid is not None and not axes.special):
        raise InputError(
            f"{origin.name!r} has no class token: expected features='mean' or 'flat' there"
        )
    return x[:, 0]


def _last(x: Tensor, origin: RecordOrigin) -> Tensor:
    """The last token that is not padding."""
    axes = origin.layout.axes(origin.name, x)
    # A feature map has places but no order of tokens, so no last one.
    if not axes.tokens or axes.channels == 1:
        raise InputError(f"{origin.name!r} has no tokens: expected features='mean' or 'flat' there")
    # of all rows, or of each
    end = x.shape[1] - 1 if origin.lengths is None else origin.lengths - 1
    # (b, t, c) with one end per row, or the same for all.
    return x[torch.arange(len(x), device=x.device), end]


def _flat(x: Tensor, origin: RecordOrigin) -> Tensor:
    """All tokens and channels of a row as one vector."""
    # Rows of different lengths would have different numbers of features.
    if origin.lengths is not None and len(set(origin.lengths.tolist())) > 1:
        raise InputError(
            "texts of different lengths have no flat features: expected features='mean', 'cls' or 'last'"
        )
    return x.flatten(1)


POOLS: dict[str, Callable[[Tensor, RecordOrigin], Tensor]] = {
    "mean": _mean,
    "cls": _first,
    "last": _last,
    "flat": _flat,
}


class LayerReader:
    """Reads one vector per input from each of some layers of a model.

    Args:
        model: A Bundle, or a torch module.
        data: Its inputs: see `clearhead.inputs.Inputs`.
        layers: Addresses or patterns of them; None: the blocks of the model.
        features: How the tokens or places of a layer become one vector, a key of POOLS; "all" keeps them.
        grad: Keep the graph, so that what is read has gradients.
    """

    def __init__(
        self,
        model: Bundle | nn.Module,
        data: Data,
        layers: str | Sequence[str] | None,
        features: str = "mean",
        *,
        grad: bool = False,
    ) -> None:
        if features not in POOLS and features != "all":
            raise InputError(
                f"features={features!r}: expected one of {', '.join(POOLS)}{nearest(features, POOLS)}"
            )
        self.model, self.grad = model, grad
        self.pool = POOLS.get(features, lambda x, _: x)  # "all" keeps what a layer returned
        self.names = layer_names(network(model), layers)
        self.inputs = Inputs(model, data)
        self.layout = OutputAxes(Tree(network(model)))  # of the last batch: the axes of the layers
        self._batch: Batch | None = None  # the batch that runs now
        self._features: dict[str, Tensor] = {}  # its features, by layer
        self._ordered: set[str] = set()  # layers whose tokens are known to be in the order of rows

    def __len__(self) -> int:
        return len(self.inputs)

    @contextmanager
    def reading(self) -> Iterator[LayerReader]:
        """Watch the layers while a `with` lasts."""
        with torch.set_grad_enabled(self.grad), ExitStack() as stack:
            # A watch per layer, because `keep` is not given the address of what it keeps.
            for name in self.names:
                stack.enter_context(
                    watch(self.model, name, grad=self.grad, keep=partial(self._keep, name))
                )
            yield self

    def read(self, first: int, last: int) -> list[Tensor]:
        """The features of the inputs from `first` up to `last`, one tensor (b, d) per layer."""
        # Inputs of different sizes come as several batches.
        parts = [self.read_batch(batch) for batch in self.inputs.batches(first, last)]
        if len(parts) == 1:
            return parts[0]
        try:
            return [torch.cat(some) for some in zip(*parts, strict=True)]
        except RuntimeError as cause:
            raise InputError(
                "inputs of different sizes have features of different widths: pool them"
            ) from cause

    def read_batch(self, batch: Batch) -> list[Tensor]:
        """The features of one batch."""
        self._batch, self._features = batch, {}
        try:
            # The layout is made anew for each batch: `_keep` asks it while the model runs.
            with record_layout(network(self.model), values=False) as self.layout:
                batch.run(network(self.model))
        finally:
            self._batch = None
        # The model may have branches that these inputs do not take.
        missing = [name for name in self.names if name not in self._features]
        if missing:
            raise InputError(
                f"{missing[0]!r} did not run: expected layers that every input passes through"
            )
        return [self._features[name] for name in self.names]

    def grid_axes(self, name: str, x: Tensor) -> Axes:
        """The axes of a layer's output in the last batch that has a grid: a feature map, or patches; raises for others.

        Args:
            name: The address of the layer.
            x: Its output.
        """
        axes = self.layout.axes(name, x)
        if axes.grid is None:
            # Only blocks that do have a grid are offered.
            gridded = self.layout.gridded()
            fit = [path for path in layer_names(network(self.model), None) if path in gridded]
            raise InputError(
                f"{name!r} gave a tensor {tuple(x.shape)}, which has no grid: expected a layer of a convolutional "
                "network, or one with a token per patch"
                + (f", such as {', '.join(fit[:3])}" if fit else "")
            )
        # The order of tokens costs a second run, so it is checked once per layer.
        if axes.tokens and name not in self._ordered:
            self.layout.check_order(name)
            self._ordered.add(name)
        return axes

    def _keep(self, name: str, value: Any) -> None:
        if self._batch is None:  # the model runs for another reader
            return
        x = first_tensor(value, None)
        # Layers on windows of an image return more rows than inputs, which belong to no input.
        if x is None or x.ndim < 2 or len(x) != self._batch.rows:
            if x is None:
                got = type(value).__name__
            else:
                got = f"a tensor {tuple(x.shape)}"
            raise InputError(
                f"{name!r} gave {got}: expected one with {self._batch.rows} rows, one per input"
            )
        if name.rpartition(".")[2] in VECTORS and x.ndim == 4:
            x = x.transpose(1, 2).flatten(2)  # (b, h, t, e) -> (b, t, h e)
        lengths = self._batch.lengths
        # A translator's decoder reads the target, with lengths of its own.
        if name.startswith("decoder.") and self._batch.target_lengths is not None:
            lengths = self._batch.target_lengths
        self._features[name] = self.pool(
            x, RecordOrigin(name=name, layout=self.layout, lengths=lengths)
        )


def features(
    model: Bundle | nn.Module,
    data: Data,
    layer: str,
    *,
    pool: str = "mean",
    rows: int = ROWS,
    done: Done | None = None,
) -> Float[np.ndarray, "n d"]:
    """Return a vector for each input: the activation of a layer, pooled over its tokens or places.

    Args:
        model: A Bundle, or any torch module.
        data: Images, texts or pairs of texts for a Bundle; a folder of images; LabelledImages; or a tensor with a row
            per input, or tensors by the names of the arguments, which go to the model as they are.
        layer: The address of the layer, as `watch` names it.
        pool: "mean" over tokens (of images: patches) or places, "cls" (the first token), "last" (the last token), or
            "flat" (all of them as one vector).
        rows: Inputs per batch.
        done: Called with the number of inputs just finished and the number of all.

    Returns:
        Vectors (n, d) in float32.

    Raises:
        InputError: If the layer has no such features; the message says which it has.

    Examples:
        >>> texts = ["A dog runs.", "A cat sleeps on a sofa.", "The man walks."]
        >>> features(clearhead.load("everyday"), texts, "blocks.2").shape
        (3, 160)
    """
    reader = LayerReader(model, data, layer, pool)
    # A pattern may match several layers, and there is one result.
    if len(reader.names) > 1:
        raise InputError(
            f"{layer!r} matches {len(reader.names)} layers: expected one, such as {reader.names[-1]!r}"
        )
    vectors = []
    with reader.reading():
        for first in range(0, len(reader), rows):
            # One layer, so that a batch has one tensor.
            (batch,) = reader.read(first, first + rows)
            vectors.append(batch.float().cpu().numpy())
            if done is not None:
                done(len(batch), len(reader))
    return np.concatenate(vectors)

"""Weights and activations as pictures: filters, feature maps, and the colours of patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...data.images.files import open_image
from ...errors import InputError
from ...inputs import network
from ...inputs.read import Data
from ...layers import Patches
from ...layers.positions.vectors import Vectors
from ...weights import Bundle
from ..structure import first_convolution, layer_names
from .features import LayerReader
from .projection import principal, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 64  # pictures that are shown if nothing is said


@dataclass(frozen=True, kw_only=True, eq=False)
class PictureGrid(draw.Result):
    """Several small pictures of one size, such as the filters of a convolution.

    Examples:
        >>> grid = filters(clearhead.load("resnet-cifar10"))
        >>> grid.pictures.shape, grid.title
        ((24, 3, 3, 3), 'stem.first.conv')
        >>> figure = grid.figure()
    """

    # colours from 0 to 1, or maps of numbers
    pictures: Float[np.ndarray, "n height width *colours"]
    title: str  # the layer
    channels: list[int]  # the channel of each

    def figure(self, *, across: int | None = None) -> Figure:
        """Draw all of them; maps are white at 0, blue above and orange below.

        Args:
            across: Pictures per row; None: as many as rows.
        """
        return draw.tiles(self.pictures, title=self.title, across=across, signed=True)

    def table(self) -> draw.Table:
        """The range of the values of each picture."""
        rows = []
        for channel, picture in zip(self.channels, self.pictures, strict=True):
            ends = float(picture.min()), float(picture.mean()), float(picture.max())
            rows.append((channel, *ends))
        return draw.Table(
            columns=("channel", "least", "mean", "most"),
            rows=rows[: draw.MOST_ROWS],
            title=self.title,
        )


def filters(
    model: Bundle | nn.Module, layer: str | None = None, *, most: int = MOST
) -> PictureGrid:
    """Return the filters of a convolution that reads an image: the first one, or the projection of patches.

    Args:
        model: A Bundle, or any torch module.
        layer: The address of the convolution; None: the first.
        most: Filters to return.

    Returns:
        A picture per filter: colours for three channels, each filter scaled by its largest weight so that grey is 0;
        a map of the weights for one channel.

    Examples:
        >>> filters(clearhead.load("vit-imagenette"), most=10).pictures.shape
        (10, 3, 3, 3)
    """
    net = network(model)
    convolutions = {name: x for name, x in net.named_modules() if isinstance(x, nn.Conv2d)}
    name = next(iter(convolutions), "") if layer is None else layer
    convolution = convolutions.get(name)
    # Filters of 1 or 3 channels are grey or colour pictures; others have no colours to show.
    if convolution is None or convolution.in_channels not in (1, 3):
        known = [name for name, x in convolutions.items() if x.in_channels in (1, 3)]
        fit = f"expected one of {', '.join(known[:4])}" if known else "this model has none"
        raise InputError(
            f"{layer or 'filters'}: pictures are made of convolutions that read 1 or 3 channels; {fit}"
        )
    weight = convolution.weight.detach().float().cpu()[:most]
    # Each filter by its own largest weight, so that faint ones are visible.
    scaled = weight / weight.abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12)  # -1 to 1
    # 0 becomes the middle grey of each colour.
    if weight.shape[1] == 3:
        pictures = (0.5 + 0.5 * scaled).permute(0, 2, 3, 1)  # (n, height, width, colours)
    else:
        pictures = scaled[:, 0]
    return PictureGrid(pictures=pictures.numpy(), title=name, channels=list(range(len(weight))))


def feature_maps(
    model: Bundle | nn.Module,
    image: Any,
    layer: str,
    *,
    channels: Sequence[int] | None = None,
    most: int = MOST,
) -> PictureGrid:
    """Return the activations of a layer for one image, a map per channel.

    Args:
        model: A Bundle, or any torch module, that reads images.
        image: An image for a Bundle, or a tensor (1, channels, height, width).
        layer: The address of a layer of a convolutional network, or of one with a token per patch.
        channels: The channels; None: those that vary most over the places, the most varied first.
        most: Maps to return.

    Examples:
        >>> model = clearhead.build("resnet", classes=3, stem="small", width=4, depths=(1,)).eval()
        >>> feature_maps(model, torch.randn(1, 3, 8, 8), "stages.0.0").pictures.shape
        (4, 8, 8)
    """
    maps, _ = _grids(model, image if isinstance(image, Tensor) else [image], layer)
    if len(maps) != 1:
        raise InputError(f"{len(maps)} images: expected one")
    (x,) = maps  # (c, y, x)
    chosen = list(channels or ())
    if channels is None:
        # Channels that vary most within the image come first.
        chosen = x.flatten(1).std(1).argsort(descending=True).tolist()
    if any(not 0 <= c < len(x) for c in chosen):
        raise InputError(f"channels={channels}: {layer!r} has {len(x)}, counted from 0")
    return PictureGrid(pictures=x[chosen[:most]].numpy(), title=layer, channels=chosen[:most])


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchColours(draw.Result):
    """The patches of several images in colours that stand for their features.

    Examples:
        >>> model = clearhead.build("vit", classes=3, size=16, patch=4, width=8, depth=2, heads=2).eval()
        >>> result = patch_colours(model, torch.randn(2, 3, 16, 16))
        >>> len(result.pictures), result.pictures[0].shape
        (2, (4, 4, 3))
    """

    in_json = "pictures foreground explained title"

    pictures: list[np.ndarray]  # (y, x, 3) colours from 0 to 1, one per image
    foreground: list[np.ndarray]  # (y, x) whether a patch belongs to the foreground
    explained: Float[np.ndarray, "3"]  # share of the variance of red, green and blue
    # (height, width, 3) the images themselves, if they are known
    images: list[np.ndarray] | None = None
    title: str = ""  # the layer

    def figure(self) -> Figure:
        """Draw the colours of each image, below the image itself where it is known; of a single one beside it."""
        # A single image stands beside its colours, several above them.
        if len(self.pictures) == 1:
            image = {} if self.images is None else {"image": self.images[0]}
            return draw.images({**image, "patches": self.pictures[0]}, title=self.title)
        across = min(len(self.pictures), 6)
        shown: dict[str, np.ndarray] = {}
        # A row of images, then the row of their patches.
        for first in range(0, len(self.pictures), across):
            row = range(first, min(first + across, len(self.pictures)))
            if self.images is not None:
                shown |= {f"image {i}": self.images[i] for i in row}
            shown |= {f"patches {i}": self.pictures[i] for i in row}
        return draw.images(shown, title=self.title, across=across)

    def table(self) -> draw.Table:
        """The share of the variance that each colour stands for."""
        shares = zip(("red", "green", "blue"), self.explained, strict=True)
        return draw.Table(
            columns=("colour", "share of the variance"),
            rows=[(name, f"{share:.1%}") for name, share in shares],
            title=f"{self.title}: principal components of patches",
        )


def patch_colours(
    model: Bundle | nn.Module,
    data: Data,
    layer: str | None = None,
    *,
    foreground: float | None = None,
) -> PatchColours:
    """Return pictures whose red, green and blue are the first three principal components of the features of patches.

    The components are those of all images together, so that equal colours mean equal features (Oquab et al. 2024,
    DINOv2, Fig. 1).

    Args:
        model: A Bundle, or any torch module, that reads images.
        data: Images: see `features`.
        layer: The address of a layer with a token per patch, or of a convolutional network; None: the last block.
        foreground: Patches whose first component, scaled from 0 to 1, is above this threshold are the foreground; the
            others are black, and the colours are components of the foreground alone. The end of the first component
            that the edges of the images have less of is the foreground. None: all patches.

    Examples:
        >>> model = clearhead.build("vit", classes=3, size=16, patch=4, width=8, depth=2, heads=2).eval()
        >>> patch_colours(model, torch.randn(2, 3, 16, 16), "blocks.0", foreground=0.5).foreground[0].shape
        (4, 4)
    """
    if layer is None:
        layer = layer_names(network(model), None)[-1]
    maps, images = _grids(model, data, layer)
    shapes = [grid.shape[1:] for grid in maps]
    # (patches of all images, c)
    x = torch.cat([grid.flatten(1).T for grid in maps]).double().numpy()
    inside = np.ones(len(x), dtype=bool)
    if foreground is not None:
        # Oquab et al. 2024 split the foreground by the first component of all patches.
        first = principal(x, 1)[0][:, 0]
        # The sign of a component means nothing: the end that edges have less of is the foreground.
        edge = np.concatenate([_edge(shape) for shape in shapes])
        if first[edge].mean() > first[~edge].mean():
            first = -first
        inside = (first - first.min()) / max(np.ptp(first), 1e-12) > foreground
    # Three components need three patches and three features.
    if min(inside.sum(), x.shape[1]) < 3:
        raise InputError(
            f"{inside.sum()} patches of {x.shape[1]} features: expected 3 or more of both for three colours"
        )
    # Components of the foreground alone, so that its colours use the whole range.
    points, _, explained = principal(x[inside], 3)
    # Outliers would leave all others grey: 1 % of each end is cut off.
    low, high = np.percentile(points, [1, 99], axis=0)
    colours = np.zeros((len(x), 3))
    colours[inside] = ((points - low) / np.maximum(high - low, 1e-12)).clip(0, 1)
    # Back to the grid of each image.
    ends = np.cumsum([0, *(int(shape[0] * shape[1]) for shape in shapes)])
    parts = [(slice(a, b), shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)]
    return PatchColours(
        pictures=[colours[part].reshape(*shape, 3) for part, shape in parts],
        foreground=[inside[part].reshape(*shape) for part, shape in parts],
        explained=explained,
        images=images,
        title=layer,
    )


def _edge(shape: Sequence[int]) -> np.ndarray:
    """Which cells of a grid are at its edge, row by row."""
    edge = np.ones(tuple(shape), dtype=bool)
    edge[1:-1, 1:-1] = False
    return edge.ravel()


def _grids(
    model: Bundle | nn.Module, data: Data, layer: str
) -> tuple[list[Tensor], list[np.ndarray] | None]:
    """The features of a layer for each image, (channels, y, x), and the images themselves if they are known."""
    reader = LayerReader(model, data, layer, "all")
    if len(reader.names) > 1:
        raise InputError(
            f"{layer!r} matches {len(reader.names)} layers: expected one, such as {reader.names[-1]!r}"
        )
    grids: list[Tensor] = []
    with reader.reading():
        for i in range(len(reader)):  # one by one: images may have different sizes
            for batch in reader.inputs.batches(i, i + 1):
                (x,) = reader.read_batch(batch)
                grids += reader.grid_axes(reader.names[0], x).on_grid(x).float().cpu()
    if not isinstance(model, Bundle) or model.preprocessing is None:
        return grids, None
    if isinstance(reader.inputs.items, dict):  # tensors, which may be no images
        return grids, None
    # The images as the model saw them, (c, height, width) -> (height, width, 3).
    images = [model.preprocessing.pixels(open_image(image)) for image in reader.inputs.items[:]]
    return grids, [np.broadcast_to(x.transpose(1, 2, 0), (*x.shape[1:], 3)) for x in images]


# position_similarity: how alike the position embeddings of a model are.


POSITIONS = 64  # positions that are shown of waves that have no end


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionSimilarity(draw.Result):
    """The cosine of each position embedding with every other.

    Examples:
        >>> vit = clearhead.build("vit", size=(8, 12), patch=4, width=8, depth=1, heads=2, positions="sincos2d")
        >>> result = position_similarity(vit)
        >>> result.grid, result.matrix.shape
        ((2, 3), (6, 6))
        >>> figure = result.figure()
    """

    matrix: Float[np.ndarray, "t t"]  # cosines; positions of patches row by row
    grid: tuple[int, int] | None  # rows and columns of the patches; None: positions of a text

    def figure(self) -> Figure:
        """Draw, for each cell of the grid, a map of its similarity with all cells; of a text, the matrix."""
        title = "Similarity of position embeddings"
        if self.grid is None:
            return draw.matrix(
                self.matrix, most=1.0, xlabel="position", ylabel="position", title=title
            )
        rows, columns = self.grid
        # A map (y', x') for each cell (y, x), with an empty row and column between maps: (y, x, y' + 1, x' + 1), then
        # (y, y' + 1, x, x' + 1), which is one picture.
        maps = self.matrix.reshape(rows, columns, rows, columns)
        maps = np.pad(maps, [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=np.nan)
        whole = maps.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))
        # The padding at the right and lower end of the whole picture is cut off.
        whole = whole[:-1, :-1]
        return draw.matrix(
            whole,
            most=1.0,
            title=title,
            rows=[""] * len(whole),
            columns=[""] * whole.shape[1],
            xlabel="column of the cell",
            ylabel="row of the cell",
        )

    def table(self) -> draw.Table:
        """The mean cosine of two positions by their distance."""
        n = len(self.matrix)
        distances = [d for d in (1, 2, 4, 8, 16, 32, 64, 128) if d < n]
        return draw.Table(
            columns=("distance", "cosine"),
            rows=[(d, float(np.diagonal(self.matrix, d).mean())) for d in distances],
            title=f"{n} positions: mean cosine of two at a distance",
        )


def position_similarity(model: Bundle | nn.Module) -> PositionSimilarity:
    """Return the cosine similarity of each position embedding with every other (Dosovitskiy et al. 2021, Fig. 7).

    Args:
        model: A Bundle, or any torch module, whose positions are vectors: learned, or sinusoids.

    Raises:
        InputError: If its positions are not vectors, as rotary ones are.

    Examples:
        >>> gpt = clearhead.build("gpt", vocab=5, context=8, width=8, depth=1, heads=2)
        >>> position_similarity(gpt).matrix.shape
        (8, 8)
    """
    net = network(model)
    # Our modules know their position vectors; foreign ones are found by names of parameters.
    for part in net.modules():
        for module, vectors_of in OURS.items():
            vectors = vectors_of(part) if isinstance(part, module) else None
            # Rotary and relative positions have no table of vectors.
            if vectors is not None:
                return _similar(*vectors)
    for name, table in net.named_parameters():
        if table.ndim < 2 or not any(word in name for word in THEIRS):
            continue
        flat = table.detach().reshape(-1, table.shape[-1])
        # Without a convolution the model reads a text, whose positions have no grid.
        if first_convolution(net) is None:
            return _similar(flat, None)
        side = int(len(flat) ** 0.5)  # a square of patches after a class token and registers
        return _similar(flat[len(flat) - side**2 :], (side, side))
    raise InputError(
        f"the positions of this {type(net).__name__} are not vectors: expected learned or sinusoidal ones; rotary and "
        "relative positions act inside the attention (`watch` '...attn.scores')"
    )


def _similar(table: Tensor, grid: tuple[int, int] | None) -> PositionSimilarity:
    x = unit(table.detach().double().cpu())
    return PositionSimilarity(matrix=(x @ x.T).clamp(-1, 1).numpy(), grid=grid)


def _patch_positions(part: Any) -> tuple[Tensor, tuple[int, int]] | None:
    # Learned vectors, or sinusoids computed for the same grid.
    if part.places is not None:
        return part.places, part.grid
    if part.sincos is None:
        return None
    return (part.sincos.vectors(part.at(part.grid)), part.grid)


def _text_positions(part: Any) -> tuple[Tensor, None]:
    return part.vectors(torch.arange(getattr(part, "context", POSITIONS), device="cpu")), None


# Our modules that hold position vectors, and what returns them with their grid.
OURS: dict[type, Any] = {Patches: _patch_positions, Vectors: _text_positions}
THEIRS = ("pos_embed", "position_embedding")  # in names of transformers, timm and torchvision

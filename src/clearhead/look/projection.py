"""project: vectors of many dimensions as points of the plane, by PCA or t-SNE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float

from .. import draw
from ..errors import InputError, MissingPackageError, nearest
from .vectors import as_tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection(draw.Drawn):
    """Vectors as points of a few dimensions.

    Examples:
        >>> values, species, _ = clearhead.data.read_iris()
        >>> result = project(values, labels=species)
        >>> result.points.shape, round(float(result.explained[0]), 3)
        ((150, 2), 0.925)
        >>> figure = result.figure(title="Iris")
    """

    points: Float[np.ndarray, "n k"]  # a point per vector
    method: str  # "pca" or "tsne"
    explained: Float[np.ndarray, "k"] | None = None  # pca: the share of the variance along each axis
    components: Float[np.ndarray, "k d"] | None = None  # pca: the direction of each axis, of length 1
    labels: list[str] | None = None  # the class of each point
    texts: list[str] | None = None  # a text beside each point

    def figure(self, *, title: str = "") -> Figure:
        """Draw the first two dimensions, coloured by class.

        Args:
            title: The title.
        """
        names = [f"{NAMES[self.method]} {i + 1}" for i in range(2)]
        if self.explained is not None:
            shares = zip(names, self.explained, strict=False)
            names = [f"{name} ({share:.0%} of the variance)" for name, share in shares]
        return draw.scatter(
            self.points[:, :2], labels=self.labels, texts=self.texts, title=title, xlabel=names[0], ylabel=names[1]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "points": self.points.tolist(), "method": self.method,
            "explained": None if self.explained is None else self.explained.tolist(),
            "labels": self.labels, "texts": self.texts,
        }  # fmt: skip


def project(
    x: npt.ArrayLike,
    method: str = "pca",
    *,
    dims: int = 2,
    labels: Sequence[object] | None = None,
    texts: Sequence[str] | None = None,
    perplexity: float = 30.0,
    seed: int = 0,
) -> Projection:
    """Return vectors as points of a few dimensions.

    Args:
        x: Vectors (n, d): `features` of a model, or any others.
        method: "pca", the directions of largest variance; or "tsne" (van der Maaten and Hinton 2008, by scikit-learn),
            which keeps neighbours together and whose distances mean little.
        dims: Dimensions of the points, 2 or more.
        labels: The class of each vector, for the colours of the figure.
        texts: A text beside each point of the figure, such as a word.
        perplexity: tsne: about the number of neighbours that count; at most a third of the vectors.
        seed: tsne: the seed.

    Raises:
        InputError: If these are not vectors, or an entry is not finite.

    Examples:
        >>> texts = ["A dog runs.", "A cat sleeps.", "The man walks.", "Two men talk.", "It rains."]
        >>> vectors = features(clearhead.load("everyday"), texts, "blocks.2")
        >>> project(vectors, texts=texts).points.shape
        (5, 2)
    """
    values = as_tensor(x).double().numpy()
    if values.ndim != 2 or len(values) < 3 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise InputError(f"vectors of shape {values.shape}: expected finite numbers (n, d), three vectors or more")
    if method not in METHODS:
        raise InputError(f"method={method!r}: expected one of {', '.join(METHODS)}{nearest(method, METHODS)}")
    if not 2 <= dims <= min(values.shape):
        raise InputError(f"dims={dims}: expected 2 to {min(values.shape)}")
    for name, given in (("labels", labels), ("texts", texts)):
        if given is not None and len(given) != len(values):
            raise InputError(f"{name} has {len(given)} entries: expected {len(values)}, one per vector")
    fields = METHODS[method](values, dims, perplexity, seed)
    return Projection(
        method=method, labels=None if labels is None else [str(label) for label in labels],
        texts=None if texts is None else list(texts), **fields,
    )  # fmt: skip


def principal(x: Float[np.ndarray, "n d"], dims: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points, the directions (dims, d) of largest variance, and the share of the variance along each.

    The largest entry of a direction is positive, so that the same vectors give the same picture.
    """
    centred = torch.from_numpy(x - x.mean(0))
    _, scale, directions = torch.linalg.svd(centred, full_matrices=False)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = (directions * largest.sign())[:dims]
    relative = scale / scale[0].clamp(
        min=torch.finfo(scale.dtype).tiny
    )  # squares of what is tiny or huge are no floats
    shares = relative.square() / relative.square().sum().clamp(min=torch.finfo(scale.dtype).tiny)
    return (centred @ directions.T).numpy(), directions.numpy(), shares[:dims].numpy()


def _pca(x: np.ndarray, dims: int, perplexity: float, seed: int) -> dict[str, Any]:
    points, components, explained = principal(x, dims)
    return {"points": points, "components": components, "explained": explained}


def _tsne(x: np.ndarray, dims: int, perplexity: float, seed: int) -> dict[str, Any]:
    try:
        from sklearn.manifold import TSNE
    except ImportError as cause:
        raise MissingPackageError("t-SNE needs scikit-learn: pip install scikit-learn; 'pca' needs nothing") from cause
    if dims > 3 or not perplexity > 0 or seed < 0:
        raise InputError(
            f"dims={dims}, perplexity={perplexity}, seed={seed}: expected 2 or 3 dimensions, a perplexity above 0 and "
            "a seed of 0 or more"
        )
    if (x == x[0]).all():
        raise InputError("all vectors are the same: expected vectors that differ")  # scikit-learn would crash
    most = max((len(x) - 1) / 3, 1.0)
    points = TSNE(dims, perplexity=min(perplexity, most), init="pca", random_state=seed).fit_transform(x)
    return {"points": np.asarray(points, dtype=float)}


NAMES = {"pca": "PCA", "tsne": "t-SNE"}
METHODS: dict[str, Callable[..., dict[str, Any]]] = {"pca": _pca, "tsne": _tsne}

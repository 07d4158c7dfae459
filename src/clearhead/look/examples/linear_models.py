"""Linear models as the inherently interpretable baseline: logistic regression on word counts, or on means of patches.

Their weights are the explanation: one number per class and word, or per class and patch. What a deep model explains
less well than these, or predicts no better, needs a reason to be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ... import draw
from ...data import make_data
from ...data.images.files import ImageLike, open_image
from ...data.text.labelled import read_sst2
from ...errors import InputError
from ...tokens import Words
from ...tokens.ids import SPECIAL as SPECIAL_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECIAL = len(SPECIAL_NAMES)  # ids of a tokenizer of words before its words
ROWS = 4096  # inputs that are read at a time
IMAGES = ("cifar10", "mnist", "fashion-mnist", "imagenette")  # named sets of images


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearModel(draw.Result):
    """A linear classifier of texts or images with a readable weight for each class and feature.

    Examples:
        >>> model = fit_words(["a good film", "a bad film", "good fun", "bad luck"], ["yes", "no", "yes", "no"])
        >>> model.predict(["good luck and fun"]), model.top(1)["no"][0][0]
        (['yes'], 'bad')
    """

    classes: tuple[str, ...]  # their names
    # words, or "row,column" of patches, with a third number for the channel
    features: tuple[str, ...]
    weights: Float[Tensor, "classes features"]  # of each class and feature
    bias: Float[Tensor, "classes"]  # of each class
    # inputs -> features
    read: Callable[[Sequence[Any]], Float[Tensor, "n features"]] = field(repr=False)
    grid: tuple[int, int] | None = None  # rows and columns of patches, if it reads images
    # accuracy on parts of the data that it was fitted to
    scores: dict[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def predict(self, inputs: Sequence[Any]) -> list[str]:
        """Return the class of each text or image.

        Args:
            inputs: Texts; or images of the size that it was fitted to.
        """
        predicted: list[str] = []
        # In parts, because the counts or pixels of a large set may not fit into memory.
        for first in range(0, len(inputs), ROWS):
            # (n, d) @ (d, c); counts of words are sparse.
            logits = self.read(inputs[first : first + ROWS]) @ self.weights.T + self.bias
            predicted += [self.classes[i] for i in logits.argmax(-1).tolist()]
        return predicted

    def accuracy(self, inputs: Sequence[Any], labels: Sequence[str]) -> float:
        """Return the share of inputs whose class is predicted correctly.

        Args:
            inputs: Texts or images.
            labels: Their classes.
        """
        return sum(a == b for a, b in zip(self.predict(inputs), labels, strict=True)) / len(labels)

    def top(self, n: int = 10) -> dict[str, list[tuple[str, float]]]:
        """Return the n features that speak most for each class, compared with the mean of all classes.

        Args:
            n: Features per class.
        """
        # Softmax ignores what all classes share, so weights are compared with their mean.
        weights = self.weights - self.weights.mean(0)
        strongest = {}
        for name, row in zip(self.classes, weights, strict=True):
            high, index = row.topk(min(n, len(row)))
            strongest[name] = [
                (self.features[i], x) for i, x in zip(index.tolist(), high.tolist(), strict=True)
            ]
        return strongest

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        top = {name: [list(x) for x in pairs] for name, pairs in self.top().items()}
        return {
            "classes": list(self.classes),
            "features": len(self.features),
            "scores": self.scores,
            "top": top,
        }

    def figure(self, n: int = 10) -> Figure:
        """Draw the weights of the top words of all classes, or a picture of weights per class.

        Args:
            n: Words per class.
        """
        weights = self.weights - self.weights.mean(0)
        if self.grid is not None:
            # (classes, y x c) -> (classes, y, x), the mean over the channels of a patch
            maps = weights.unflatten(1, (*self.grid, -1)).mean(-1).numpy()
            return draw.grids(
                dict(zip(self.classes, maps, strict=True)),
                signed=True,
                title="weight of each patch",
                xlabel="column",
                ylabel="row",
            )
        # The same word may be at the top of several classes: each is drawn once.
        words = list(dict.fromkeys(word for pairs in self.top(n).values() for word, _ in pairs))
        index = [self.features.index(word) for word in words]
        return draw.matrix(
            weights[:, index].T.numpy(),
            rows=words,
            columns=self.classes,
            xlabel="class",
            ylabel="word",
            title="weights of words",
            digits=1,
        )

    def table(self) -> draw.Table:
        """The features that speak most for each class."""
        top = self.top()
        rows = []
        # Places of the ranking in rows, classes in columns.
        for place in zip(*top.values(), strict=True):
            rows.append([f"{name} {weight:+.2f}" for name, weight in place])
        scores = [f"{part} {share:.2%}" for part, share in self.scores.items()]
        return draw.Table(columns=list(top), rows=rows, title=", ".join(scores))


def fit_words(
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    minimum: int = 1,
    most: int | None = 20_000,
    penalty: float = 1e-3,
) -> LinearModel:
    """Fit a logistic regression on the counts of words (lowercased, separated by white space).

    Args:
        texts: The training texts.
        labels: Their classes.
        minimum: Leave out words that occur fewer times.
        most: The largest number of words, the most frequent; None: all.
        penalty: The mean cross-entropy plus penalty x |W|^2 is minimised.

    Examples:
        >>> model = fit_words(["a good film", "a bad film"], ["positive", "negative"])
        >>> model.classes, model.features
        (('negative', 'positive'), ('a', 'film', 'bad', 'good'))
    """
    words = Words.of(texts, minimum=minimum, most=most, lower=True)

    def read(some: Sequence[str]) -> Tensor:
        # Ids of special tokens become negative and are left out.
        rows = [words.encode(text) - SPECIAL for text in some]
        # (entries, 2) -> (2, entries): the row and the column of each one
        index = (
            torch.tensor([(i, j) for i, row in enumerate(rows) for j in row.tolist() if j >= 0])
            .reshape(-1, 2)
            .T
        )
        counts = torch.ones(index.shape[1], dtype=torch.float64)
        size = (len(some), len(words) - SPECIAL)
        # coalesce adds up the ones of a word that occurs several times.
        return torch.sparse_coo_tensor(index, counts, size, check_invariants=True).coalesce()

    return _fitted(texts, labels, tuple(words.symbols[SPECIAL:]), read, penalty)


def fit_pixels(
    images: Sequence[ImageLike], labels: Sequence[str], *, patch: int = 1, penalty: float = 1e-3
) -> LinearModel:
    """Fit a logistic regression on the mean of each channel in each patch of images of one size.

    Args:
        images: The training images: paths, PIL images, or uint8 arrays.
        labels: Their classes.
        patch: Height and width of a patch in pixels; 1: the pixels themselves.
        penalty: The mean cross-entropy plus penalty x |W|^2 is minimised.

    Examples:
        >>> images = [np.full((4, 4), 255 * (i % 2), np.uint8) for i in range(6)]
        >>> model = fit_pixels(images, ["black", "white"] * 3, patch=2)
        >>> model.predict(images[:2]), model.grid
        (['black', 'white'], (2, 2))
    """
    if not len(images):
        raise InputError("there are no images: expected one or more")
    # All images have the size of the first.
    shape = _pixels(images[0]).shape
    # Whole patches only, so that every one has the same number of pixels.
    if patch < 1 or shape[0] % patch or shape[1] % patch:
        raise InputError(
            f"images of {shape[0]} x {shape[1]} do not divide into patches of {patch} x {patch}"
        )
    grid = (shape[0] // patch, shape[1] // patch)

    def read(some: Sequence[ImageLike]) -> Tensor:
        arrays = [_pixels(image) for image in some]
        other = next((x.shape for x in arrays if x.shape != shape), None)
        if other is not None:
            raise InputError(
                f"an image of {other} after one of {shape}: expected images of one size"
            )
        # (n, height, width, c) -> (n, c, height, width), from 0..255 to -0.5..0.5
        x = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).double() / 255 - 0.5
        # (n, c, y, x) -> (n, y x c), the order of the feature names below
        return F.avg_pool2d(x, patch).permute(0, 2, 3, 1).flatten(1)

    channels = range(shape[2])
    names = [(y, x, c) for y in range(grid[0]) for x in range(grid[1]) for c in channels]
    features = tuple(f"{y},{x}" if len(channels) == 1 else f"{y},{x},{c}" for y, x, c in names)
    return _fitted(images, labels, features, read, penalty, grid)


def linear_baseline(
    data: str,
    *,
    patch: int = 1,
    rows: int | None = None,
    penalty: float | None = None,
    root: Path | None = None,
) -> LinearModel:
    """Fit a linear model to a data set of texts or images, and measure its accuracy on both of its parts.

    Args:
        data: "sst2", or the name of a data set of images, such as "fashion-mnist" or "cifar10".
        patch: Height and width of a patch in pixels, of images.
        rows: Train on the first rows only; None: all.
        penalty: As of `fit_words` and `fit_pixels`; None: their own.
        root: A data folder in which files are searched first.

    Examples:
        >>> linear_baseline("reverse")
        Traceback (most recent call last):
        clearhead.errors.InputError: 'reverse' has no classes: expected sst2 or a data set of images
    """
    # Only what is given overrides each fit's own default.
    more: dict[str, Any] = {} if penalty is None else {"penalty": penalty}
    if data == "sst2":
        lines = {part: read_sst2(part, root) for part in ("train", "valid")}
        parts = {
            part: ([x.text for x in some], [x.label for x in some]) for part, some in lines.items()
        }
        model = fit_words(parts["train"][0][:rows], parts["train"][1][:rows], **more)
    else:
        opened: Any = make_data(data, {}, seed=0, root=root) if data in IMAGES else None
        if opened is None:
            raise InputError(f"{data!r} has no classes: expected sst2 or a data set of images")
        # Images are read in batches, as a data set may not fit into memory at once.
        both = {part: opened.originals(part) for part in ("train", "valid")}
        parts = {
            part: ([x for some in images.batches(ROWS) for x in some], list(images.labels))
            for part, images in both.items()
        }
        model = fit_pixels(parts["train"][0][:rows], parts["train"][1][:rows], patch=patch, **more)
    model.scores.update({part: model.accuracy(*some) for part, some in parts.items()})
    return model


def _pixels(image: ImageLike) -> np.ndarray:
    """An image as an array (height, width, channels) of uint8."""
    if isinstance(image, np.ndarray):
        x = image
    else:
        x = np.asarray(open_image(image))
    # A grey image gets an axis for its one channel.
    return x[..., None] if x.ndim == 2 else x


def _fitted(
    inputs: Sequence[Any],
    labels: Sequence[str],
    features: tuple[str, ...],
    read: Callable[[Sequence[Any]], Tensor],
    penalty: float,
    grid: tuple[int, int] | None = None,
) -> LinearModel:
    if len(inputs) != len(labels) or len(set(labels)) < 2:
        raise InputError(
            f"{len(inputs)} inputs with {len(labels)} labels of {len(set(labels))} classes: expected a label for each, "
            "of two classes or more"
        )
    # Sorted names, so that the numbers of classes do not depend on the order of the data.
    classes = tuple(sorted(set(labels)))
    wanted = torch.tensor([classes.index(label) for label in labels])
    weights, bias = logistic_regression(read(inputs), wanted, len(classes), penalty)
    return LinearModel(
        classes=classes, features=features, weights=weights, bias=bias, read=read, grid=grid
    )


def logistic_regression(
    x: Float[Tensor, "n d"], labels: Int[Tensor, "n"], classes: int, penalty: float
) -> tuple[Float[Tensor, "c d"], Float[Tensor, "c"]]:
    """The weights and biases that minimise the mean cross-entropy plus penalty x |W|^2, which is convex, by L-BFGS.

    Args:
        x: Features, dense or sparse.
        labels: Classes.
        classes: The number of classes.
        penalty: Weight of the penalty; the bias has none.
    """
    # (d, c), so that x @ weights works for sparse x; transposed at the end.
    weights = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    # The loss is convex: L-BFGS finds its one minimum from zeros, without a learning rate.
    optimiser = torch.optim.LBFGS(
        [weights, bias],
        max_iter=500,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        optimiser.zero_grad()
        with torch.enable_grad():
            # The bias is not penalised: it only fits the frequency of classes.
            value = F.cross_entropy(x @ weights + bias, labels) + penalty * weights.square().sum()
        value.backward()
        return float(value.detach())

    optimiser.step(loss)
    return weights.detach().T, bias.detach()

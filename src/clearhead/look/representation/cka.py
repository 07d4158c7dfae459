"""cka: how similar the representations of layers are, within one model, between two, or between checkpoints.

Centred kernel alignment (Kornblith et al. 2019) compares which inputs are alike in one layer with which are alike in
another. It is 1 if one representation is the other, rotated and scaled, whatever their widths.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...errors import InputError, Notice
from ...inputs import device_of
from ...inputs.read import Data
from ...progress import Done
from ...weights import Bundle, load
from .features import ROWS, LayerReader
from .projection import as_tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# HSIC of all pairs of layers at once, from batches of their features: exact sums, or an estimate per minibatch.
#
# HSIC compares two kernel matrices K and L over the same n inputs (Gretton et al. 2005), and CKA is HSIC(K, L) divided
# by sqrt(HSIC(K, K) HSIC(L, L)) (Kornblith et al. 2019, Eq. 4). For linear kernels K = X X', L = Y Y' of features X, Y:
#
# biased      |X' H Y|^2 with the centring H, Eq. 2 of Kornblith et al. 2019: a norm of the cross-covariance
# debiased    Eq. 5 of Song et al. 2012, in which no input is compared with itself. With K~ = K without its diagonal,
#             tr(K~ L~) + (1'K~1)(1'L~1) / ((n-1)(n-2)) - 2 (1'K~L~1) / (n-2), and all three follow from sums over
#             inputs: of x y', x, |x|^2, |x|^2 |y|^2 and x |y|^2
# minibatch   the debiased estimate of each minibatch, averaged (Nguyen et al. 2021, Eq. 3), for any kernel and width
#
# The sums need no n x n matrix and no second pass over the data. The features of all layers are concatenated, so that
# a batch is one matrix product for all pairs.


MOST_BYTES = 1 << 32  # of the sums of products on a CPU; on a GPU half of the free memory
# a layer whose variance is a smaller part of its mean square is constant up to the rounding of float32
NOISE = 1e-12
WIDE = torch.float64


class Hsic(ABC):
    """HSIC of every pair of layers, from batches of features.

    Args:
        count: The number of inputs of all batches together.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.broken: Tensor | None = None  # (l,) layers with a feature that is not finite

    def add(self, layers: Sequence[Float[Tensor, "b _"]]) -> None:
        """Add the features of some inputs, one matrix per layer."""
        device = layers[0].device
        if device.type == "mps":  # which has no float64
            device = torch.device("cpu")
        wide = [x.to(device).to(WIDE) for x in layers]
        # A layer with NaN or infinity is noted here and set to 0, to keep the other sums finite.
        broken = torch.stack([~x.isfinite().all() for x in wide])
        self.broken = broken if self.broken is None else self.broken | broken
        self._add([x.nan_to_num(0.0, 0.0, 0.0) for x in wide])

    @abstractmethod
    def _add(self, layers: list[Tensor]) -> None: ...

    @abstractmethod
    def result(self) -> tuple[Float[Tensor, "l l"], Float[Tensor, "l"]]:
        """HSIC of all pairs, up to a common factor, and for each layer the HSIC that rounding alone could give."""


class Sums(Hsic):
    """Exact HSIC of linear kernels over all inputs, from sums of products in float64.

    Features are taken relative to the mean of the first batch, which changes no HSIC and keeps the sums from
    cancelling.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.widths: list[int] = []

    def _start(self, layers: list[Tensor]) -> None:
        self.widths = [x.shape[1] for x in layers]
        total, device = sum(self.widths), layers[0].device
        most = MOST_BYTES
        if device.type == "cuda":
            most = torch.cuda.mem_get_info(device)[0] // 2
        # (d, d) of float64, 8 bytes each, for the features of all layers together.
        if total**2 * 8 > most:
            raise InputError(
                f"the layers have {total:,} features together, whose products take {total**2 * 8 / 2**30:.0f} GiB: "
                "expected fewer layers, features='mean' or 'cls', or estimator='minibatch'"
            )
        # The mean of the first batch: large means would cancel badly in the sums of products.
        self.shift = torch.cat([x.mean(0) for x in layers])
        self.products = layers[0].new_zeros(total, total)  # sum of z z'
        self.total = layers[0].new_zeros(total)  # sum of z
        # sum of r r', with r the |x|^2 of each layer
        self.norms = layers[0].new_zeros(len(layers), len(layers))
        self.lengths = layers[0].new_zeros(len(layers))  # sum of r
        self.weighted = layers[0].new_zeros(total, len(layers))  # sum of z r'
        index = torch.arange(len(layers), device=device)
        # the layer of each feature
        self.owner = index.repeat_interleave(torch.tensor(self.widths, device=device))

    def _add(self, layers: list[Tensor]) -> None:
        # Widths are known from the first batch on.
        if not self.widths:
            self._start(layers)
        z = torch.cat(layers, dim=1) - self.shift  # (b, d): the features of all layers
        r = self._by_layer(z.square().T).T  # (b, l): |x|^2 of each
        # Products of all pairs of layers at once; a pair is a block of the (d, d) matrix.
        self.products.addmm_(z.T, z)
        self.weighted.addmm_(z.T, r)
        self.norms.addmm_(r.T, r)
        self.total += z.sum(0)
        self.lengths += r.sum(0)

    def _by_layer(self, x: Float[Tensor, "d *n"]) -> Float[Tensor, "l *n"]:
        """The sum over the features of each layer."""
        return x.new_zeros(len(self.widths), *x.shape[1:]).index_add_(0, self.owner, x)

    def _blocks(self, x: Float[Tensor, "d d"]) -> Float[Tensor, "l l"]:
        """The sum over each pair of layers."""
        # (d, d) -> (l, d) -> (l, l)
        return self._by_layer(self._by_layer(x).T).T

    def _noise(self) -> Float[Tensor, "l"]:
        """The square of the variance that rounding may give to a constant layer."""
        # About the sum of |x|^2 before the shift, of which rounding may leave the share NOISE.
        size = self.lengths + self.count * self._by_layer(self.shift.square())
        return (NOISE * size).square()


class Biased(Sums):
    """|X' H Y|^2 of all pairs."""

    def result(self) -> tuple[Tensor, Tensor]:
        # X' H Y = X' Y - (sum of x) (sum of y)' / n
        centred = torch.addr(self.products, self.total, self.total, alpha=-1 / self.count)
        return self._blocks(centred.square_()), self._noise()


class Debiased(Sums):
    """The unbiased HSIC of Song et al. 2012 of all pairs, times n (n-3)."""

    def result(self) -> tuple[Tensor, Tensor]:
        n = self.count
        # The factors n - 2 and n - 3 of the estimate must be above 0.
        if n < 4:
            raise InputError(
                f"the debiased estimator compares 4 inputs or more, and there are {n}: 'biased' takes any"
            )
        # tr(K~ L~) = |X' Y|^2 - sum |x|^2 |y|^2, and 1' K~ 1 = |sum x|^2 - sum |x|^2
        both = self._blocks(self.products.square()) - self.norms
        sums = self._by_layer(self.total.square()) - self.lengths
        # 1' K~ L~ 1, with the row sums x . s_x - |x|^2 of K~, where s_x is the sum of x
        with_total = self._blocks(self.products * torch.outer(self.total, self.total))
        mixed = self._by_layer(self.total[:, None] * self.weighted)  # sum of (x . s_x) |y|^2
        rows = with_total - mixed - mixed.T + self.norms
        # Eq. 5 of Song et al. 2012
        hsic = both + torch.outer(sums, sums) / ((n - 1) * (n - 2)) - 2 * rows / (n - 2)
        return hsic, self._noise()


def linear(x: Float[Tensor, "b d"], width: float | None) -> tuple[Float[Tensor, "b b"], None]:
    """The dot product of each pair of rows."""
    # Centring would remove the mean anyway; without it, less is lost to rounding.
    x = x - x.mean(0)
    return x @ x.T, None


def rbf(x: Float[Tensor, "b d"], width: float | None) -> tuple[Float[Tensor, "b b"], float]:
    """exp(-|x - y|^2 / (2 width^2)); the width is the median distance of the first batch (Kornblith et al. 2019, 3)."""
    # Not |x|^2 + |y|^2 - 2 x.y, whose rounding hides small distances.
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    if width is None:
        # Without the diagonal, whose distances are 0.
        apart = distances[~torch.eye(len(x), dtype=torch.bool, device=x.device)]
        width = float(apart.median()) or float(apart.mean())  # 0 if most inputs have an equal
        # Differences that are rounding alone are none: all inputs are then alike.
        # `not (a > b)` holds for NaN as well.
        if not (width > NOISE**0.5 * float(x.square().sum(1).mean().sqrt())):
            width = float("inf")
    return torch.exp(-distances.square() / (2 * width**2)), width


KERNELS: dict[str, Callable[..., tuple[Tensor, float | None]]] = {"linear": linear, "rbf": rbf}


class Minibatch(Hsic):
    """The mean over minibatches of the unbiased HSIC, each weighted by its inputs, for any kernel.

    Args:
        count: The number of inputs of all batches together.
        kernel: A key of KERNELS.
    """

    def __init__(self, count: int, kernel: str = "linear") -> None:
        super().__init__(count)
        self.kernel = KERNELS[kernel]
        self.widths: list[float | None] = []
        self.total: Tensor | float = 0.0
        self.noise: Tensor | float = 0.0

    def _add(self, layers: list[Tensor]) -> None:
        n = len(layers[0])
        if n < 4:
            raise InputError(
                f"a minibatch has {n} inputs: expected 4 or more, rows=4 or more and as many inputs"
            )
        widths = self.widths or [None] * len(layers)  # those of the first batch stay
        kernels = [self.kernel(x, width) for x, width in zip(layers, widths, strict=True)]
        self.widths = [width for _, width in kernels]
        grams = _centred(torch.stack([gram for gram, _ in kernels])).flatten(1)  # (l, b b)
        # The unbiased HSIC is the sum of the products of both / (n (n-3)); it counts by its share of all inputs.
        share = n / self.count / (n * (n - 3))
        # (l, b b) @ (b b, l): the products of every pair of layers.
        self.total = self.total + (grams @ grams.T) * share
        size = torch.stack([x.square().sum() for x in layers])
        self.noise = self.noise + (NOISE * size).square() * share

    def result(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.total, Tensor)
        assert isinstance(self.noise, Tensor)
        if self.widths[0] is not None:  # rbf, whose width takes care of rounding
            return self.total, torch.zeros_like(self.noise)
        return self.total, self.noise


def _centred(grams: Float[Tensor, "l b b"]) -> Float[Tensor, "l b b"]:
    """Centre kernel matrices without their diagonal (Székely and Rizzo 2014, Eq. 3.1).

    The sum of the products of two such matrices is n (n-3) times the estimate of Song et al. 2012.
    """
    n = grams.shape[1]
    grams = grams - torch.diag_embed(grams.diagonal(dim1=1, dim2=2))
    # a_ij - a_i. / (n-2) - a_.j / (n-2) + a_.. / ((n-1)(n-2)), and 0 on the diagonal
    rows = grams.sum(2) / (n - 2)
    whole = rows.sum(1) / (n - 1)
    grams = grams - rows[:, :, None] - rows[:, None, :] + whole[:, None, None]
    return grams - torch.diag_embed(grams.diagonal(dim1=1, dim2=2))


ESTIMATORS: dict[str, Callable[[int, str], Hsic]] = {
    "biased": lambda count, _: Biased(count),
    "debiased": lambda count, _: Debiased(count),
    "minibatch": Minibatch,
}


def make_hsic(estimator: str, kernel: str, count: int) -> Hsic:
    """The accumulator of an estimator and a kernel; raises if there is none, and says which there are."""
    if estimator not in ESTIMATORS or kernel not in KERNELS:
        raise InputError(
            f"estimator={estimator!r}, kernel={kernel!r}: expected an estimator of {', '.join(ESTIMATORS)} and a "
            f"kernel of {', '.join(KERNELS)}"
        )
    # The exact sums are over features, so that they give the linear kernel only.
    if kernel != "linear" and estimator != "minibatch":
        raise InputError(
            f"kernel={kernel!r} has no exact sums over batches: expected estimator='minibatch'"
        )
    return ESTIMATORS[estimator](count, kernel)


SMALL, LARGE = 1e-60, 1e60  # between these, sums of fourth powers of features are floats of 64 bits
Models = Bundle | nn.Module | str | Path | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Similarity(draw.Result):
    """The similarity of each pair of layers.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(50, 8))
        >>> result = cka_of_features({"first": x, "second": x[:, :2]})
        >>> result.rows, result.matrix.shape
        (['first', 'second'], (2, 2))
        >>> figure = result.figure()
    """

    matrix: Float[np.ndarray, "a b"]  # CKA of the layers `rows` with the layers `columns`
    rows: list[str]  # the layers of the first model, or models
    columns: list[str]  # the layers of the second; the same as `rows` if there is none
    # CKA of the layers of each with one another
    within: tuple[Float[np.ndarray, "a a"], Float[np.ndarray, "b b"]]
    titles: tuple[str, str] = ("", "")  # the names of both
    inputs: int = 0  # the number of inputs
    estimator: str = "debiased"  # "biased", "debiased" or "minibatch"
    kernel: str = "linear"  # "linear" or "rbf"
    # layers that are the same for all inputs: their CKA is 0
    degenerate: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        names = "".join(f", {name!r}" for name in dict.fromkeys(self.titles) if name)
        return f"Similarity(rows={len(self.rows)}, columns={len(self.columns)}, inputs={self.inputs}{names})"

    def figure(self, *, title: str | None = None) -> Figure:
        """Draw the matrix as a heat map from 0 to 1, with the first layers at the bottom left.

        Args:
            title: The title; if not given, the names of the models.
        """
        names = " and ".join(dict.fromkeys(name for name in self.titles if name))
        if title is None and names:
            title = f"CKA of {names}"
        return draw.similarity(
            self.matrix,
            rows=self.rows,
            columns=self.columns,
            ylabel=self.titles[0],
            xlabel=self.titles[1],
            title=title or "CKA",
        )

    def table(self) -> draw.Table:
        """The most similar layer of `columns` for each layer of `rows`; of one model, the most similar other layer."""
        rows = []
        for i, name in enumerate(self.rows):
            values = self.matrix[i].copy()
            # a layer is most similar to itself
            if self.rows == self.columns and len(values) > 1:
                values[i] = -np.inf
            best = int(values.argmax())
            rows.append((name, self.columns[best], float(values[best])))
        return draw.Table(
            columns=("layer", "most similar layer", "CKA"),
            rows=rows,
            title="similarity of layers",
        )


def cka(
    a: Models,
    b: Models | None = None,
    *,
    data: Data,
    layers: str | Sequence[str] | None = None,
    layers_b: str | Sequence[str] | None = None,
    features: str | tuple[str, str] = "mean",
    estimator: str = "debiased",
    kernel: str = "linear",
    rows: int = ROWS,
    done: Done | None = None,
) -> Similarity:
    """Return the similarity (CKA) of every layer with every other: of one model, or of one model with another.

    The estimators "biased" and "debiased" are exact over all data, which is read once in batches; memory grows with the
    number of features and not with that of inputs.

    Args:
        a: A model: a Bundle, a torch module, or what `load` takes. Several, such as the checkpoints of a run, as a list
            of folders or {name: model}: the layers of all of them are compared.
        b: The model, or models, to compare it with; None: with itself.
        data: The inputs, the same for all models: images, texts or pairs of texts for Bundles; LabelledImages or a
            folder of images; for torch modules a tensor with a row per input, or tensors by the names of arguments.
        layers: Addresses or patterns, such as "blocks.*"; None: the blocks of each model.
        layers_b: The same for `b`; None: as `layers`.
        features: How the tokens or places of a layer become one vector: "mean" (of images: over the patches), "cls"
            (the first token), "last" (the last token) or "flat" (all as one vector, which needs estimator="minibatch"
            if they are many); or a pair of them, for `a` and for `b`.
        estimator: "debiased", exact and unbiased (Song et al. 2012); "biased", exact, and close to 1 where there are
            few inputs for the number of features (Kornblith et al. 2019); "minibatch", the mean of debiased estimates
            over minibatches (Nguyen et al. 2021).
        kernel: "linear"; or "rbf", whose width is the median distance of the first batch, for minibatches only.
        rows: Inputs per batch; a minibatch has at least as many, if there are as many inputs.
        done: Called with the number of inputs just finished and the number of all.

    Raises:
        InputError: If a layer has no such features, or products of all features do not fit into memory.

    Examples:
        >>> texts = ["A dog runs.", "A cat sleeps on a sofa.", "The man walks.", "Two men talk.", "It rains."]
        >>> result = cka(clearhead.load("everyday"), data=texts, layers="blocks.*")
        >>> result.columns[:2], result.matrix.shape
        (['blocks.0', 'blocks.1'], (5, 5))
        >>> bool(abs(result.matrix[2, 2] - 1) < 1e-9)
        True
    """
    if rows < 1:
        raise InputError(f"rows={rows}: expected 1 input or more per batch")
    # With two models, each may pool its features in its own way.
    pools = (features, features) if isinstance(features, str) else features
    first = _readers(a, data, layers, pools[0])
    second = []
    if b is not None:
        second = _readers(b, data, layers if layers_b is None else layers_b, pools[1])
    # Both models read the same inputs; each watches its own layers.
    readers = [reader for _, reader in (*first, *second)]
    count, device = len(readers[0]), device_of(readers[0].model)
    hsic = make_hsic(estimator, kernel, count)
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader.reading())
        for start, end in _spans(count, rows):
            # One HSIC for the layers of both, so that all pairs come from the same pass.
            hsic.add([x.to(device) for reader in readers for x in reader.read(start, end)])
            if done is not None:
                done(end - start, count)
    names = [_named(part) for part in (first, second)]
    title = [", ".join(name for name, _ in part if name) for part in (first, second or first)]
    return _similarity(hsic, names[0], names[1], (title[0], title[1]), estimator, kernel)


def cka_of_features(
    a: Mapping[str, Any],
    b: Mapping[str, Any] | None = None,
    *,
    estimator: str = "debiased",
    kernel: str = "linear",
    rows: int = 1024,
) -> Similarity:
    """Return the similarity (CKA) of every matrix of features with every other.

    Args:
        a: Matrices of features by name, (n, d) each, with a row per input; the widths d may differ.
        b: Matrices to compare them with, with the same inputs; None: with one another.
        estimator: "debiased", "biased" or "minibatch": see `cka`.
        kernel: "linear", or "rbf" for minibatches.
        rows: Inputs per batch; for the exact estimators it changes nothing.

    Examples:
        >>> random = np.random.default_rng(0)
        >>> x, rotation = random.normal(size=(50, 8)), np.linalg.qr(random.normal(size=(8, 8)))[0]
        >>> similarity = cka_of_features({"x": x}, {"rotated": 3 * x @ rotation})
        >>> round(float(similarity.matrix[0, 0]), 6)  # effectively the same, though no feature is
        1.0
    """
    # An empty second mapping is an error, no second mapping means the first with itself.
    if not a or b == {}:
        raise InputError("there are no features: expected {name: (n, d)}")
    given = [as_tensor(x) for part in (a, b or {}) for x in part.values()]
    shapes = {tuple(x.shape) for x in given}
    if any(x.ndim != 2 for x in given) or len({shape[0] for shape in shapes}) != 1:
        raise InputError(
            f"features of shapes {sorted(shapes)}: expected (n, d) each, with the same n inputs"
        )
    # CKA does not depend on the scale of features; scaled, their fourth powers stay finite.
    given = [_scaled(x) for x in given]
    count = len(given[0])
    hsic = make_hsic(estimator, kernel, count)
    for start, end in _spans(count, rows):
        hsic.add([x[start:end] for x in given])
    return _similarity(hsic, list(a), list(b or {}), ("", ""), estimator, kernel)


def _scaled(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Features divided by the largest: CKA is the same, and their fourth powers are neither 0 nor infinite."""
    largest = x.abs().amax() if x.numel() else x.new_zeros(())
    usual = not largest.isfinite() or SMALL < largest < LARGE
    if usual:
        return x
    return x / largest.where(largest > 0, 1.0)


def _readers(models: Any, data: Data, layers: Any, features: str) -> list[tuple[str, LayerReader]]:
    """A reader for each model, with its name; folders are loaded."""
    # Checkpoints by name, a sequence of models, or one model.
    if isinstance(models, Mapping):
        named = list(models.items())
    elif isinstance(models, Sequence) and not isinstance(models, str | nn.Module):
        names = [_name(model) for model in models]
        # the same name several times: with the number of the model
        numbered = [f"{name} {i}" for i, name in enumerate(names)]
        unique = [
            own if names.count(name) > 1 else name
            for name, own in zip(names, numbered, strict=True)
        ]
        named = list(zip(unique, models, strict=True))
    else:
        named = [(_name(models), models)]
    if not named:
        raise InputError("there are no models: expected one or more")
    readers = []
    for name, model in named:
        if isinstance(model, str | Path):
            model = load(model)
        readers.append((name, LayerReader(model, data, layers, features)))
    return readers


def _name(model: Any) -> str:
    """The name of a model: that of its folder, or its class."""
    folder = model if isinstance(model, str | Path) else getattr(model, "folder", None)
    if folder is not None:
        return Path(folder).name
    return str(getattr(model, "name", type(model).__name__))


def _named(readers: Sequence[tuple[str, LayerReader]]) -> list[str]:
    """The names of all layers; of several models with that of the model."""
    if len(readers) == 1:
        return list(readers[0][1].names)
    return [f"{name}: {layer}" for name, reader in readers for layer in reader.names]


def _spans(count: int, rows: int) -> list[tuple[int, int]]:
    """Batches of almost equal size, `rows` or more each, so that none is left with too few."""
    batches = max(count // max(rows, 1), 1)
    edges = [count * i // batches for i in range(batches + 1)]
    return list(pairwise(edges))


def _similarity(
    hsic: Hsic,
    rows: list[str],
    columns: list[str],
    titles: tuple[str, str],
    estimator: str,
    kernel: str,
) -> Similarity:
    """CKA from HSIC; 0 for layers that are constant, with a warning that names them."""
    values, noise = hsic.result()
    own = values.diagonal()
    assert hsic.broken is not None
    # HSIC of a constant layer with itself is 0 up to rounding.
    constant = (own <= noise.clamp(min=torch.finfo(own.dtype).tiny)) | hsic.broken
    names = [*rows, *columns]
    degenerate = [names[i] for i in constant.nonzero().flatten().tolist()]
    if degenerate:
        warnings.warn(
            f"{', '.join(dict.fromkeys(degenerate))}: the same for all {hsic.count} inputs, or not finite; its "
            "similarity is set to 0",
            Notice,
            stacklevel=3,
        )
    # CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)), Eq. 4 of Kornblith et al. 2019
    scale = own.clamp(min=torch.finfo(own.dtype).tiny).sqrt()
    matrix: Tensor = values / scale[:, None] / scale[None, :]
    # The unbiased estimate may be a little negative, or above 1 in size.
    matrix = matrix.clamp(-1.0, 1.0).masked_fill(constant[:, None] | constant[None, :], 0.0)
    # The layers of both models follow one another; without a second one, it is the first itself.
    whole, edge = matrix.cpu().numpy(), len(rows)
    first = second = between = whole[:edge, :edge]
    if columns:
        second, between = whole[edge:, edge:], whole[:edge, edge:]
    return Similarity(
        matrix=between,
        rows=rows,
        columns=columns or rows,
        within=(first, second),
        titles=titles,
        inputs=hsic.count,
        estimator=estimator,
        kernel=kernel,
        degenerate=degenerate,
    )

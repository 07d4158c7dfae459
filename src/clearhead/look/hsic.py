"""HSIC of all pairs of layers at once, from batches of their features: exact sums, or an estimate per minibatch.

HSIC compares two kernel matrices K and L over the same n inputs (Gretton et al. 2005), and CKA is HSIC(K, L) divided by
sqrt(HSIC(K, K) HSIC(L, L)) (Kornblith et al. 2019, Eq. 4). For linear kernels K = X X', L = Y Y' of features X, Y:

biased      |X' H Y|^2 with the centring H, Eq. 2 of Kornblith et al. 2019: a norm of the cross-covariance
debiased    Eq. 5 of Song et al. 2012, in which no input is compared with itself. With K~ = K without its diagonal,
            tr(K~ L~) + (1'K~1)(1'L~1) / ((n-1)(n-2)) - 2 (1'K~L~1) / (n-2), and all three follow from sums over inputs:
            of x y', x, |x|^2, |x|^2 |y|^2 and x |y|^2
minibatch   the debiased estimate of each minibatch, averaged (Nguyen et al. 2021, Eq. 3), for any kernel and width

The sums need no n x n matrix and no second pass over the data. The features of all layers stand side by side, so that a
batch is one matrix product for all pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError

MOST_BYTES = 1 << 32  # of the sums of products on a CPU; on a GPU half of the free memory
NOISE = 1e-12  # a layer whose variance is a smaller part of its mean square is constant up to the rounding of float32
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
        device = torch.device("cpu") if layers[0].device.type == "mps" else layers[0].device  # which has no float64
        wide = [x.to(device).to(WIDE) for x in layers]
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
        most = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else MOST_BYTES
        if total**2 * 8 > most:
            raise InputError(
                f"the layers have {total:,} features together, whose products take {total**2 * 8 / 2**30:.0f} GiB: "
                "expected fewer layers, features='mean' or 'cls', or estimator='minibatch'"
            )
        self.shift = torch.cat([x.mean(0) for x in layers])
        self.products = layers[0].new_zeros(total, total)  # sum of z z'
        self.total = layers[0].new_zeros(total)  # sum of z
        self.norms = layers[0].new_zeros(len(layers), len(layers))  # sum of r r', with r the |x|^2 of each layer
        self.lengths = layers[0].new_zeros(len(layers))  # sum of r
        self.weighted = layers[0].new_zeros(total, len(layers))  # sum of z r'
        index = torch.arange(len(layers), device=device)
        self.owner = index.repeat_interleave(torch.tensor(self.widths, device=device))  # the layer of each feature

    def _add(self, layers: list[Tensor]) -> None:
        if not self.widths:
            self._start(layers)
        z = torch.cat(layers, dim=1) - self.shift
        r = self._by_layer(z.square().T).T  # (b, l)
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
        return self._by_layer(self._by_layer(x).T).T

    def _noise(self) -> Float[Tensor, "l"]:
        """The square of the variance that rounding may give to a constant layer."""
        size = self.lengths + self.count * self._by_layer(self.shift.square())
        return (NOISE * size).square()


class Biased(Sums):
    """|X' H Y|^2 of all pairs."""

    def result(self) -> tuple[Tensor, Tensor]:
        centred = torch.addr(self.products, self.total, self.total, alpha=-1 / self.count)
        return self._blocks(centred.square_()), self._noise()


class Debiased(Sums):
    """The unbiased HSIC of Song et al. 2012 of all pairs, times n (n-3)."""

    def result(self) -> tuple[Tensor, Tensor]:
        n = self.count
        if n < 4:
            raise InputError(f"the debiased estimator compares 4 inputs or more, and there are {n}: 'biased' takes any")
        both = self._blocks(self.products.square()) - self.norms  # tr(K~ L~)
        sums = self._by_layer(self.total.square()) - self.lengths  # 1' K~ 1
        with_total = self._blocks(self.products * torch.outer(self.total, self.total))
        mixed = self._by_layer(self.total[:, None] * self.weighted)  # the sum over inputs of (x . s_x) |y|^2
        rows = with_total - mixed - mixed.T + self.norms  # 1' K~ L~ 1
        return both + torch.outer(sums, sums) / ((n - 1) * (n - 2)) - 2 * rows / (n - 2), self._noise()


def linear(x: Float[Tensor, "b d"], width: float | None) -> tuple[Float[Tensor, "b b"], None]:
    """The dot product of each pair of rows."""
    x = x - x.mean(0)
    return x @ x.T, None


def rbf(x: Float[Tensor, "b d"], width: float | None) -> tuple[Float[Tensor, "b b"], float]:
    """exp(-|x - y|^2 / (2 width^2)); the width is the median distance of the first batch (Kornblith et al. 2019, 3)."""
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    if width is None:
        apart = distances[~torch.eye(len(x), dtype=torch.bool, device=x.device)]
        width = float(apart.median()) or float(apart.mean())  # 0 if most inputs have an equal
        # Differences that are rounding alone are none: all inputs are then alike.
        width = width if width > NOISE**0.5 * float(x.square().sum(1).mean().sqrt()) else float("inf")
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
            raise InputError(f"a minibatch has {n} inputs: expected 4 or more, rows=4 or more and as many inputs")
        widths = self.widths or [None] * len(layers)
        found = [self.kernel(x, width) for x, width in zip(layers, widths, strict=True)]
        self.widths = [width for _, width in found]
        grams = _centred(torch.stack([gram for gram, _ in found])).flatten(1)  # (l, b b)
        # The share of the unbiased HSIC: sum of the products of both / (n (n-3)).
        self.total = self.total + (grams @ grams.T) * (n / self.count / (n * (n - 3)))
        size = torch.stack([x.square().sum() for x in layers])
        self.noise = self.noise + (NOISE * size).square() * (n / self.count / (n * (n - 3)))

    def result(self) -> tuple[Tensor, Tensor]:
        assert isinstance(self.total, Tensor)
        assert isinstance(self.noise, Tensor)
        return self.total, self.noise if self.widths[0] is None else torch.zeros_like(self.noise)


def _centred(grams: Float[Tensor, "l b b"]) -> Float[Tensor, "l b b"]:
    """Centre kernel matrices without their diagonal (Székely and Rizzo 2014, Eq. 3.1).

    The sum of the products of two such matrices is n (n-3) times the estimate of Song et al. 2012.
    """
    n = grams.shape[1]
    grams = grams - torch.diag_embed(grams.diagonal(dim1=1, dim2=2))
    rows = grams.sum(2) / (n - 2)
    grams = grams - rows[:, :, None] - rows[:, None, :] + (rows.sum(1) / (n - 1))[:, None, None]
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
    if kernel != "linear" and estimator != "minibatch":
        raise InputError(f"kernel={kernel!r} has no exact sums over batches: expected estimator='minibatch'")
    return ESTIMATORS[estimator](count, kernel)

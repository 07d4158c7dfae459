"""Classification: the cross-entropy of each row's class, for texts and images alike; images can be mixed in pairs.

labels (b,), and the model's inputs: ids (b, t) and lengths (b,), or images (b, c, height, width).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from ...checks import fraction
from ...errors import InputError
from ..augmentation import rectangle
from ..moment import DeviceRng, Moment
from .objective import Measurement, Objective, Role, Tensors, weighted_sum

if TYPE_CHECKING:
    from ...data import Data

MIXING = 1  # stream of random numbers
HITS, ROWS = " hits", " rows"  # ends of the names of the sums of a class


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationConfig:
    """Options of classification."""

    # one class per row, or a yes or no for each class (binary)
    loss: Literal["softmax", "sigmoid"] = "softmax"
    # label smoothing: share of each target that is spread evenly over all classes
    smoothing: float = 0.0
    # blend pairs of images, with shares of the distribution Beta(mixup, mixup); 0: do not
    mixup: float = 0.0
    # replace a rectangle of each image by another's, with areas of Beta(cutmix, cutmix); 0: do not
    cutmix: float = 0.0
    # share of the images that are mixed, where mixup or cutmix is on; both: half of them by each
    mixed: float = 1.0

    def __post_init__(self) -> None:
        fraction(self, "smoothing")
        if not 0.0 <= self.mixed <= 1.0:
            raise InputError(f"mixed={self.mixed}: expected a share from 0 to 1")
        for name in ("mixup", "cutmix"):
            if getattr(self, name) < 0.0:
                raise InputError(f"{name}={getattr(self, name)}: expected 0 or more")


class Classification(Objective):
    """The cross-entropy of each row's class, for texts and images.

    A mixed image has two labels and a share of the first: the loss is linear in the target, so that the mixture of the
    two losses is the loss of the mixed target (Zhang et al. 2018, Eq. 1; Yun et al. 2019, Eq. 1).
    """

    Config: ClassVar[type[Any]] = ClassificationConfig
    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="classify")}
    reads: ClassVar[tuple[str, ...]] = ("labels",)
    may_read: ClassVar[tuple[str, ...]] = ("ids", "lengths", "images")
    measurements: ClassVar[Mapping[str, Measurement]] = {
        "loss": Measurement("nats/row"),
        "accuracy": Measurement("share", "higher"),
        "f1": Measurement("score from 0 to 1", "higher"),
    }

    def __init__(self, config: Any, players: Mapping[str, nn.Module], data: Data) -> None:
        super().__init__(config, players, data)
        self.mixup_shares: Tensor | None
        self.cutmix_shares: Tensor | None
        for name in ("mixup", "cutmix"):
            parameter = getattr(config, name)
            if parameter and "images" not in data.keys:
                raise InputError(
                    f"{name}={parameter} mixes images, and this data gives {', '.join(data.keys)}: leave it out"
                )
            # a table instead of rejection sampling, whose number of draws would be random
            table = beta_quantiles(parameter) if parameter else None
            self.register_buffer(f"{name}_shares", table, persistent=False)

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        # validation measures whole images
        if not self.training or not (self.config.mixup or self.config.cutmix):
            return batch
        shares = self.mixup_shares, self.cutmix_shares
        images, share = mix(batch["images"], moment.rng(MIXING), *shares, self.config.mixed)
        other_labels = batch["labels"].roll(len(images) // 2, 0)
        return batch | {"images": images, "share": share, "other_labels": other_labels}

    def loss(self, batch: Tensors) -> Tensor:
        """The summed cross-entropy, in nats."""
        logits = self._logits(batch)
        each = self._each(logits, batch["labels"], self.config.smoothing)
        # L = lambda L(y_i) + (1 - lambda) L(y_j)
        if "share" in batch:
            other = self._each(logits, batch["other_labels"], self.config.smoothing)
            each = batch["share"] * each + (1 - batch["share"]) * other
        return weighted_sum(each, batch)

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        """The loss, the right rows, and for each class the right rows, and the rows predicted plus those labelled."""
        logits, labels = self._logits(batch), batch["labels"]
        predicted = logits.argmax(-1)
        right = (predicted == labels).float()
        sums = {
            "loss": weighted_sum(self._each(logits, labels, 0.0), batch),
            "accuracy": weighted_sum(right, batch),
        }
        weight = batch.get("weight", torch.ones_like(right))

        def by_class(classes: Tensor, each: Tensor) -> Tensor:
            return each.new_zeros(logits.shape[-1]).index_add_(0, classes, each)

        # one sum per class and not a tensor, since `measure` returns numbers that are added over batches
        hits = by_class(labels, right * weight)
        rows = by_class(labels, weight) + by_class(predicted, weight)
        sums |= {f"{i}{HITS}": x for i, x in enumerate(hits.unbind())}
        return sums | {f"{i}{ROWS}": x for i, x in enumerate(rows.unbind())}

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        """The loss, the accuracy, and the macro F1: the mean over classes of 2 hits / (predicted + labelled).

        A class that is neither predicted nor a label of any row does not count, as in scikit-learn.
        """
        scores = []
        for name, rows in means.items():
            if name.endswith(ROWS) and rows > 0:
                # F1 = 2 TP / (2 TP + FP + FN), whose denominator is predicted + labelled
                hits = means[name.removesuffix(ROWS) + HITS]
                scores.append(2 * hits / rows)
        f1 = sum(scores) / max(len(scores), 1)
        return {"loss": means["loss"], "accuracy": means["accuracy"], "f1": f1}

    def _each(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """The loss of each row."""
        if self.config.loss == "softmax":
            return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        # a yes or no for each class, summed over classes (binary cross-entropy)
        classes = logits.shape[-1]
        wanted = F.one_hot(labels, classes).to(logits.dtype)
        wanted = wanted * (1 - smoothing) + smoothing / classes
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(-1)

    def _logits(self, batch: Tensors) -> Tensor:
        inputs = {name: batch[name] for name in self.may_read if name in batch}
        return self.outputs("model", **inputs)


# Mixing pairs of images: mixup blends two images, cutmix replaces a rectangle of one by the other's.

CELLS, LEVELS = 1 << 16, 1 << 10  # of the integral of a density, and of the table of quantiles


def mix(
    images: Float[Tensor, "b c y x"],
    rng: DeviceRng,
    mixup: Float[Tensor, "n"] | None,
    cutmix: Float[Tensor, "m"] | None,
    mixed: float = 1.0,
) -> tuple[Float[Tensor, "b c y x"], Float[Tensor, "b"]]:
    """Mix each image with the one half a batch further; returns the images, and each one's share of itself.

    The partner is half a batch away, so that the pairs do not depend on the number of workers or micro-batches, as long
    as each has an even number of rows. Which of the two methods mixes an image, and how much, is drawn for each row.

    Args:
        images: float images.
        rng: the random numbers of the rows.
        mixup: quantiles of the shares of mixup (see beta_quantiles); None: do not blend.
        cutmix: quantiles of the areas of cutmix; None: do not cut.
        mixed: share of the images that are mixed.

    Examples:
        >>> images = torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
        >>> out, share = mix(images, DeviceRng(0, 0, torch.arange(2)), beta_quantiles(1.0), None)
        >>> torch.allclose(out[0], (1 - share[0]).expand(3, 4, 4))  # zeros, and (1 - share) times the ones
        True
    """
    u = rng.uniform(5)  # per row: whether, which method, how much, and where (y, x)
    other = images.roll(len(images) // 2, 0)
    is_mixed = u[:, 0] < mixed
    cut_share = 0.0 if cutmix is None else 1.0
    if mixup is not None and cutmix is not None:
        # both: each image gets one of the two, never both
        cut_share = 0.5
    is_cut = u[:, 1] < cut_share
    share, out = torch.ones_like(u[:, 0]), images
    if mixup is not None:
        # x = lambda x_i + (1 - lambda) x_j; the others have lambda 1
        share = torch.where(is_mixed & ~is_cut, _quantile(mixup, u[:, 2]), share)
        weight = share[:, None, None, None].to(images.dtype)
        out = weight * images + (1 - weight) * other
    if cutmix is not None:
        # a rectangle with the share 1 - lambda of the area; what counts are its pixels, after rounding
        side = (1 - _quantile(cutmix, u[:, 2])).sqrt()
        inside = rectangle(u[:, 3:5], side, side, *images.shape[-2:])  # (b, y, x)
        inside = inside & (is_mixed & is_cut)[:, None, None]
        share = share - inside.float().mean((1, 2))
        out = torch.where(inside[:, None], other, out)
    return out, share


def beta_quantiles(parameter: float) -> Float[Tensor, "n"]:
    """The values that a number of the distribution Beta(parameter, parameter) stays below with probability 0, ..., 1.

    With them a uniform random number becomes one of that distribution, without rejecting any.

    Args:
        parameter: 1 is uniform; below 1, most numbers are close to 0 or 1; above 1, to 1/2.

    Examples:
        >>> beta_quantiles(1.0)[[0, 256, 512, 1024]]
        tensor([0.0000, 0.2500, 0.5000, 1.0000])
    """
    # the distribution is symmetric: half of the table is the mirror image of the other
    levels = np.linspace(0.0, 0.5, LEVELS // 2 + 1)
    if parameter <= 1:
        # Of s = x^parameter, x up to 1/2, the density is proportional to (1 - x)^(parameter - 1), which is smooth.
        edges = np.linspace(0.0, 0.5**parameter, CELLS + 1)
        middle = (edges[1:] + edges[:-1]) / 2
        mass = (1 - middle ** (1 / parameter)) ** (parameter - 1)
        half = np.interp(levels, _below(mass), edges) ** (1 / parameter)
    else:  # s would be too small for a float: x itself, within 9 standard deviations of 1/2
        deviation = 0.5 / np.sqrt(2 * parameter + 1)
        edges = np.linspace(max(0.0, 0.5 - 9 * deviation), 0.5, CELLS + 1)
        middle = (edges[1:] + edges[:-1]) / 2
        mass = (4 * middle * (1 - middle)) ** (parameter - 1)
        half = np.interp(levels, _below(mass), edges)
        # the table ends at exactly 0 and 1, although the tails were cut
        half[0] = 0.0
    return torch.from_numpy(np.concatenate([half, 1 - half[-2::-1]])).float()


def _below(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of a number below each edge of cells, which cover the numbers below 1/2, given their masses."""
    return np.concatenate([[0.0], mass.cumsum()]) / (2 * mass.sum())


def _quantile(quantiles: Float[Tensor, "n"], u: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Uniform random numbers as numbers of the distribution with these quantiles."""
    # linear between the levels
    at = u * (len(quantiles) - 1)
    low = at.floor()
    return torch.lerp(quantiles[low.long()], quantiles[low.long() + 1], at - low)

"""GAN: a generator maps noise to rows, and a discriminator learns to tell them from real ones.

Goodfellow et al. 2014, with the non-saturating loss of the generator (section 3), or the hinge losses of Lim and Ye
2017 that SAGAN uses (Zhang et al. 2019, Eq. 4). Instance noise (Sønderby et al. 2017) blurs real and generated rows
alike, so that the discriminator cannot tell them apart at once and the generator finds all modes.

Batch: x (b, d), real rows; labels are allowed, and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import at_least
from ...errors import InputError
from ..moment import Moment
from ..optim.schedule import Scalar, first_and_last
from .objective import Measurement, Objective, Role, Tensors, Update, weighted_sum

if TYPE_CHECKING:
    from ...data import Data

NOISE, BLUR = 1, 2  # random streams of the generator's noise and of instance noise


@dataclass(frozen=True, kw_only=True, slots=True)
class GANConfig:
    """The options of a GAN."""

    latent: int = 8  # dimension of the noise vector
    loss: Literal["logistic", "hinge"] = "logistic"  # loss of the discriminator's logits
    # standard deviation of the instance noise that is added to real and generated rows
    blur: Scalar = 0.0

    def __post_init__(self) -> None:
        at_least(self, 1, "latent")
        if min(first_and_last(self.blur)) < 0:
            raise InputError(f"blur={self.blur}: expected standard deviations of 0 or more")


class GAN(Objective):
    """A generator against a discriminator; the discriminator is updated first, then the generator."""

    Config: ClassVar[type[Any]] = GANConfig
    roles: ClassVar[Mapping[str, Role]] = {
        "generator": Role(can="map", reads_batch=False),
        "discriminator": Role(can="map"),
    }
    updates: ClassVar[Sequence[Update]] = (
        Update("discriminator", "discriminator_loss"),
        Update("generator", "generator_loss"),
    )
    reads: ClassVar[tuple[str, ...]] = ("x",)
    may_read: ClassVar[tuple[str, ...]] = ("labels",)
    result: ClassVar[str] = "generator"

    @classmethod
    def sizes(cls, config: GANConfig, data: Data) -> dict[str, dict[str, int]]:
        width = data.sizes["width"]
        return {
            "generator": {"inputs": config.latent, "outputs": width},
            "discriminator": {"inputs": width, "outputs": 1},
        }

    @property
    def measurements(self) -> Mapping[str, Measurement]:  # type: ignore[override]
        measurements = {
            "generator_loss": Measurement("nats/row"),
            "discriminator_loss": Measurement("nats/row"),
        }
        # how good generated rows are, by the data's own measure
        for name, (unit, better) in self.data.qualities.items():
            measurements[name] = Measurement(unit, better)
        return measurements

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        batch = batch | {"noise": moment.rng(NOISE).normal(self.config.latent)}
        if any(first_and_last(self.config.blur)):
            width = batch["x"].shape[1]
            blur = moment.rng(BLUR).normal(2 * width)
            # independent noise for real and generated rows, of one draw
            batch["blur_real"], batch["blur_fake"] = blur.split(width, dim=1)
        return batch

    def discriminator_loss(self, batch: Tensors) -> Tensor:
        """The loss of the discriminator, which should score real rows high and generated rows low."""
        with torch.no_grad():
            # no gradient: this update is the discriminator's
            fake = self._generated(batch)
        real = self._scores(batch["x"], batch.get("blur_real"))
        generated = self._scores(fake, batch.get("blur_fake"))
        if self._is_hinge:
            # max(0, 1 - D(x)) + max(0, 1 + D(G(z)))
            each = F.relu(1 - real) + F.relu(1 + generated)
        else:  # - log D(x) - log(1 - D(G(z))) with D = sigmoid(score)
            each = F.softplus(-real) + F.softplus(generated)
        return weighted_sum(each, batch)

    def generator_loss(self, batch: Tensors) -> Tensor:
        """The loss of the generator, whose rows should score high."""
        scores = self._scores(self._generated(batch), batch.get("blur_fake"))
        # non-saturating: - log D(G(z)), whose gradient is large where the discriminator is sure
        each = -scores if self._is_hinge else F.softplus(-scores)
        return weighted_sum(each, batch)

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        sums = {
            "generator_loss": self.generator_loss(batch),
            "discriminator_loss": self.discriminator_loss(batch),
        }
        # judged by the data, which knows the true distribution
        generated = self._generated(batch).cpu().numpy()
        for name, each in self.data.judge(generated).items():
            # a quality per row; padding rows have the weight 0
            sums[name] = weighted_sum(torch.from_numpy(each).to(batch["x"]), batch)
        return sums

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        losses = {name: means.pop(name) for name in ("generator_loss", "discriminator_loss")}
        return losses | self.data.judged(means)

    @property
    def _is_hinge(self) -> bool:
        return bool(self.config.loss == "hinge")

    def _generated(self, batch: Tensors) -> Tensor:
        return self.outputs("generator", batch["noise"])

    def _scores(self, x: Tensor, blur: Tensor | None) -> Tensor:
        """The discriminator's logit that a row, with instance noise if there is any, is real."""
        if blur is not None:
            x = x + self.scalar("blur") * blur
        return self.outputs("discriminator", x)[:, 0]

"""GAN: a generator makes rows from noise, and a discriminator learns to tell them from real ones.

Goodfellow et al. 2014, with the non-saturating loss of the generator (section 3), or the hinge losses of Lim and Ye
2017 that SAGAN uses (Zhang et al. 2019, Eq. 4).

x (b, d), the real rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import at_least
from .objective import Measurement, Moment, Objective, Role, Tensors, Update, weighted_sum

if TYPE_CHECKING:
    from ...data import Data

NOISE = 1  # stream of random numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class GANConfig:
    """The options of a GAN."""

    latent: int = 8  # numbers of noise per row
    loss: Literal["logistic", "hinge"] = "logistic"  # how the discriminator's answers are compared with the truth

    def __post_init__(self) -> None:
        at_least(self, 1, "latent")


class GAN(Objective):
    """Two players: the discriminator is updated first, then the generator against it."""

    Config: ClassVar[type[Any]] = GANConfig
    roles: ClassVar[Mapping[str, Role]] = {"generator": Role(can="map"), "discriminator": Role(can="map")}
    updates: ClassVar[Sequence[Update]] = (
        Update("discriminator", "discriminator_loss"), Update("generator", "generator_loss"),
    )  # fmt: skip
    reads: ClassVar[tuple[str, ...]] = ("x",)
    may_read: ClassVar[tuple[str, ...]] = ("labels",)
    result: ClassVar[str] = "generator"

    @classmethod
    def sizes(cls, config: GANConfig, data: Data) -> dict[str, dict[str, int]]:
        width = data.sizes["width"]
        return {
            "generator": {"inputs": config.latent, "outputs": width}, "discriminator": {"inputs": width, "outputs": 1},
        }  # fmt: skip

    @property
    def measurements(self) -> Mapping[str, Measurement]:  # type: ignore[override]
        quality = {name: Measurement(unit, better) for name, (unit, better) in self.data.qualities.items()}
        return {"generator_loss": Measurement("nats/row"), "discriminator_loss": Measurement("nats/row"), **quality}

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        return batch | {"noise": moment.rng(NOISE).normal(self.config.latent)}

    def discriminator_loss(self, batch: Tensors) -> Tensor:
        """Real rows should score high, generated ones low."""
        with torch.no_grad():
            fake = self._generated(batch)
        real, made = self._scores(batch["x"]), self._scores(fake)
        each = F.relu(1 - real) + F.relu(1 + made) if self._hinge else F.softplus(-real) + F.softplus(made)
        return weighted_sum(each, batch)

    def generator_loss(self, batch: Tensors) -> Tensor:
        """Generated rows should score high."""
        made = self._scores(self._generated(batch))
        return weighted_sum(-made if self._hinge else F.softplus(-made), batch)

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        sums = {"generator_loss": self.generator_loss(batch), "discriminator_loss": self.discriminator_loss(batch)}
        made = self._generated(batch).cpu().numpy()
        for name, each in self.data.judge(made).items():
            sums[name] = weighted_sum(torch.from_numpy(each).to(batch["x"]), batch)
        return sums

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        losses = {name: means.pop(name) for name in ("generator_loss", "discriminator_loss")}
        return losses | self.data.judged(means)

    @property
    def _hinge(self) -> bool:
        return bool(self.config.loss == "hinge")

    def _generated(self, batch: Tensors) -> Tensor:
        return self.outputs("generator", batch["noise"])

    def _scores(self, x: Tensor) -> Tensor:
        """The logit that a row is real."""
        return self.outputs("discriminator", x)[:, 0]

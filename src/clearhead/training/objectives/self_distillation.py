"""Self-distillation: a student learns to predict the output of a teacher, which is a moving average of the student.

DINO (Caron et al. 2021): both see noisy views of the same row. The teacher's outputs are centred, which keeps one
output from dominating, and sharpened by a low temperature, which keeps them from becoming uniform.

x (b, d); labels (b,), if given, are used only by the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...checks import fraction
from ...errors import InputError
from ..moment import Moment
from ..optim.schedule import Scalar, Scheduled, ends, value
from .objective import Measurement, Objective, Role, Tensors, Update, weighted_sum

if TYPE_CHECKING:
    from ...data import Data

VIEWS = 1  # random stream of the noise of views


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfDistillationConfig:
    """The options of self-distillation; the defaults are DINO's."""

    momentum: Scalar = field(  # share of the teacher's weights that each step keeps
        default_factory=lambda: Scheduled(start=0.996, final=1.0)
    )
    temperature: Scalar = 0.1  # softmax temperature of the student
    teacher_temperature: Scalar = 0.04  # softmax temperature of the teacher
    centre_momentum: float = 0.9  # share of the centre that each step keeps
    noise: float = 0.1  # standard deviation of the noise that turns a row into two views

    def __post_init__(self) -> None:
        fraction(self, "centre_momentum")
        for name in ("temperature", "teacher_temperature"):
            if min(ends(getattr(self, name))) <= 0:
                raise InputError(f"{name}={getattr(self, name)}: expected numbers above 0")
        if not all(0 <= end <= 1 for end in ends(self.momentum)):
            raise InputError(f"momentum={self.momentum}: expected shares from 0 to 1")


class SelfDistillation(Objective):
    """A student that predicts its own moving average, the teacher."""

    Config: ClassVar[type[Any]] = SelfDistillationConfig
    roles: ClassVar[Mapping[str, Role]] = {
        "student": Role(can="map"),
        "teacher": Role(average_of="student"),
    }
    updates: ClassVar[Sequence[Update]] = (Update("student"),)
    reads: ClassVar[tuple[str, ...]] = ("x",)
    may_read: ClassVar[tuple[str, ...]] = ("labels",)
    result: ClassVar[str] = "teacher"
    measurements: ClassVar[Mapping[str, Measurement]] = {
        "loss": Measurement("nats/row"),
        "information": Measurement("nats", "higher"),
    }
    centre: Tensor  # (outputs,) moving average of the teacher's outputs
    # (outputs + 1,) sum of the teacher's outputs in this step, and the number of rows
    total: Tensor

    def __init__(
        self, config: SelfDistillationConfig, players: Mapping[str, nn.Module], data: Data
    ) -> None:
        super().__init__(config, players, data)
        outputs = self.player("student").config.outputs
        self.register_buffer("centre", torch.zeros(outputs))
        self.register_buffer("total", torch.zeros(outputs + 1), persistent=False)

    @classmethod
    def sizes(cls, config: SelfDistillationConfig, data: Data) -> dict[str, dict[str, int]]:
        return {"student": {"inputs": data.sizes["width"]}}

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        x = batch["x"]
        # two views of each row; the numbers depend on (seed, step, row) alone
        noise = self.config.noise * moment.rng(VIEWS).normal(2, x.shape[1])
        return batch | {"first": x + noise[:, 0], "second": x + noise[:, 1]}

    def loss(self, batch: Tensors) -> Tensor:
        """The cross-entropy of the student's output for each view and the teacher's for the other (Eq. 2 and 3)."""
        views = (batch["first"], batch["second"])
        with torch.no_grad():
            # no gradient flows into the teacher (Algorithm 1)
            outputs = [self.outputs("teacher", view) for view in views]
            if self.training:
                # validation must not move the centre
                self._gather(outputs, batch)
        # p_t = softmax((g_t(x) - c) / tau_t) and p_s = softmax(g_s(x) / tau_s)
        sharpness = self.scalar("teacher_temperature")
        targets = [((out - self.centre) / sharpness).softmax(-1) for out in outputs]
        students = [self.outputs("student", view) / self.scalar("temperature") for view in views]
        # each view of the student predicts the teacher's of the other view
        losses = []
        for target, student in ((targets[0], students[1]), (targets[1], students[0])):
            # H(p_t, p_s) of each row
            losses.append(-(target * student.log_softmax(-1)).sum(-1))
        return weighted_sum(torch.stack(losses).mean(0), batch)

    def after_step(self, moment: Moment) -> None:
        """Update the teacher, and the centre as a moving average of the teacher's outputs (Eq. 4)."""
        # theta_t = m theta_t + (1 - m) theta_s, with a scheduled m
        self.averages["teacher"].update(value(self.config.momentum, moment.step, moment.steps))
        if dist.is_initialized():  # the same centre on all workers
            # sums and numbers of rows, so that the mean is exact for uneven shares
            dist.all_reduce(self.total)
        mean = self.total[:-1] / self.total[-1].clamp(min=1.0)
        self.centre.lerp_(mean, 1 - self.config.centre_momentum)
        self.total.zero_()

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        """The loss, and the joint counts of labels and the teacher's largest outputs."""
        sums = {"loss": self.loss(batch)}
        winner = self.outputs("teacher", batch["x"]).argmax(-1)
        labels = batch.get("labels", torch.zeros_like(winner))
        # counts of all pairs, which add up over batches and workers
        for label in range(self.data.sizes.get("classes", 1)):
            for output in range(len(self.centre)):
                hit = ((labels == label) & (winner == output)).float()
                sums[f"{label} {output}"] = weighted_sum(hit, batch)
        return sums

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        """The loss, and the mutual information of labels and the teacher's largest outputs, in nats."""
        loss = means.pop("loss")
        # I = sum p(l, o) log p(l, o) / (p(l) p(o)), where 0 log 0 is 0
        joint = torch.tensor(list(means.values()), dtype=torch.float64).view(-1, len(self.centre))
        apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
        information = (joint * (joint / apart).log()).nan_to_num(0.0).sum()
        return {"loss": loss, "information": float(information)}

    def _gather(self, outputs: list[Tensor], batch: Tensors) -> None:
        """Add the outputs, without padding rows, to this step's total."""
        weight = torch.ones_like(outputs[0][:, :1])
        if "weight" in batch:
            weight = batch["weight"][:, None]
        rows = torch.stack([(out * weight).sum(0) for out in outputs]).mean(0)
        self.total.add_(torch.cat([rows, weight.sum()[None]]))

"""Self-distillation: a student learns to predict the output of a teacher, which is a moving average of the student.

DINO (Caron et al. 2021): both see views of the same row. The teacher's outputs are centred, which keeps one output from
dominating, and sharpened by a low temperature, which keeps them from becoming uniform.

x (b, d), or images (b, c, y, x); labels (b,), if given, are used only by the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...checks import at_least, fraction
from ...errors import InputError
from ...metrics import fit_linear_probe, nearest_neighbours
from ..augmentation import normalise
from ..moment import Moment
from ..optim.schedule import Scalar, Scheduled, first_and_last, value_at
from .objective import (
    Measurement,
    Objective,
    Role,
    Tensors,
    Update,
    compute_dtype,
    weighted_sum,
)
from .views import GLOBAL, LOCAL, Crops, NoisyVectors, Views

if TYPE_CHECKING:
    from ...data import Data
    from ..optim.optimisers import Optimiser

# by the batch key that they are made of
VIEWS: dict[str, type[Any]] = {"x": NoisyVectors, "images": Crops}
IMAGES = 256  # images that are embedded at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfDistillationConfig:
    """The options of self-distillation; the defaults are DINO's."""

    momentum: Scalar = field(  # share of the teacher's weights that each step keeps
        default_factory=lambda: Scheduled(start=0.996, final=1.0)
    )
    temperature: Scalar = 0.1  # softmax temperature of the student
    teacher_temperature: Scalar = 0.04  # softmax temperature of the teacher
    centre_momentum: float = 0.9  # share of the centre that each step keeps
    # vectors: standard deviation of the noise that turns a row into two views
    noise: float = 0.1
    # images: crops of a small part, which only the student sees, beside two of a large part
    local_crops: int = 6
    # images: height and width of the large crops in pixels; None: the size of the images
    global_size: int | None = None
    # images: height and width of the small crops; None: 3/7 of the large ones, in whole patches
    local_size: int | None = None
    # images: share of the area from which on a crop is large
    global_least: float = 0.25
    local_least: float = 0.05  # images: smallest share of the area of a small crop
    # first steps in which the last layer of the projection head is not updated
    frozen: int = 0
    # images: largest number of training images that the measurements knn and linear compare with
    probed: int = 10_000

    def __post_init__(self) -> None:
        fraction(self, "centre_momentum")
        at_least(self, 0, "local_crops", "frozen")
        at_least(self, 1, "global_size", "local_size", "probed")
        if not 0.0 < self.local_least <= self.global_least <= 1.0:
            raise InputError(
                f"local_least={self.local_least}, global_least={self.global_least}: expected shares above 0 and at "
                "most 1, the first not larger than the second"
            )
        for name in ("temperature", "teacher_temperature"):
            if min(first_and_last(getattr(self, name))) <= 0:
                raise InputError(f"{name}={getattr(self, name)}: expected numbers above 0")
        if not all(0 <= end <= 1 for end in first_and_last(self.momentum)):
            raise InputError(f"momentum={self.momentum}: expected shares from 0 to 1")


class SelfDistillation(Objective):
    """A student that predicts its own moving average, the teacher."""

    Config: ClassVar[type[Any]] = SelfDistillationConfig
    roles: ClassVar[Mapping[str, Role]] = {
        "student": Role(),
        "teacher": Role(average_of="student"),
    }
    updates: ClassVar[Sequence[Update]] = (Update("student"),)
    may_read: ClassVar[tuple[str, ...]] = (*VIEWS, "labels")
    takes_pixels: ClassVar[bool] = True
    result: ClassVar[str] = "teacher"
    centre: Tensor  # (outputs,) moving average of the teacher's outputs
    # (outputs + 1,) sum of the teacher's outputs in this step, and the number of rows
    total: Tensor

    def __init__(
        self, config: SelfDistillationConfig, players: Mapping[str, nn.Module], data: Data
    ) -> None:
        super().__init__(config, players, data)
        student = self.player("student")
        self.views: Views = VIEWS[_key(data)](config, student, data)
        if self.views.can not in student.can:
            raise InputError(
                f"self-distillation of {self.views.key}: the student must be able to {self.views.can}, and this "
                f"{student.name} can {', '.join(sorted(student.can))}"
                + (": expected projection=4096 or so" if self.views.can == "project" else "")
            )
        outputs = (
            student.config.projection if self.views.can == "project" else student.config.outputs
        )
        self.register_buffer("centre", torch.zeros(outputs))
        self.register_buffer("total", torch.zeros(outputs + 1), persistent=False)
        self._probes: dict[str, Callable[[Tensor], Tensor]] = {}  # features -> classes

    @classmethod
    def sizes(cls, config: SelfDistillationConfig, data: Data) -> dict[str, dict[str, int]]:
        if _key(data) == "x":
            return {"student": {"inputs": data.sizes["width"]}}
        # labels are only measured: no output layer
        return {"student": {"classes": 0, "channels": data.sizes["channels"]}}

    @property
    def measurements(self) -> Mapping[str, Measurement]:  # type: ignore[override]
        return self.views.measurements

    def set_scalars(self, step: int, steps: int) -> dict[str, float]:
        # the weights change in this step: the next validation embeds the training images again
        self._probes = {}
        return super().set_scalars(step, steps)

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        return self.views.add(batch, moment, compute_dtype(self.player("student")))

    def loss(self, batch: Tensors) -> Tensor:
        """The mean cross-entropy of the student's outputs for a view and the teacher's for another (Eq. 3)."""
        large, small = batch[GLOBAL], batch.get(LOCAL)
        with torch.no_grad():
            # no gradient flows into the teacher (Algorithm 1)
            outputs = self._answers("teacher", large)  # (b, 2, o)
            if self.training:
                # validation must not move the centre
                self._gather(outputs, batch)
            # p_t = softmax((g_t(x) - c) / tau_t)
            targets = ((outputs - self.centre) / self.scalar("teacher_temperature")).softmax(-1)
        # log p_s = log softmax(g_s(x) / tau_s), of the views of each size together
        answers = [self._answers("student", large)]
        if small is not None:
            answers.append(self._answers("student", small))
        student_logits = torch.cat(answers, dim=1) / self.scalar("temperature")
        students = student_logits.log_softmax(-1)  # (b, v, o)
        # H(p_t, p_s) of each of the teacher's views (t) and each of the student's (v)
        each = -torch.einsum("bto,bvo->btv", targets, students)
        # all pairs but those of a view with itself
        different = ~torch.eye(*each.shape[1:], dtype=torch.bool, device=each.device)
        return weighted_sum((each * different).sum((1, 2)) / different.sum(), batch)

    def step(self, update: Update, optimiser: Optimiser, moment: Moment, lr_scale: float) -> Tensor:
        """Update the student; at first without the last layer of its head, as the authors' code does."""
        head = getattr(self.player("student"), "projection", None)
        if head is not None and moment.step < self.config.frozen:
            # with Adam a gradient of 0 from the start is no update; the length of the weights does not matter
            name = next(n for n, p in optimiser.parameters.items() if p is head.last.weight)
            for weight in (head.last.weight, optimiser.masters.get(name)):
                if weight is not None and weight.grad is not None:
                    weight.grad.zero_()
        return super().step(update, optimiser, moment, lr_scale)

    def after_step(self, moment: Moment) -> None:
        """Update the teacher, and the centre as a moving average of the teacher's outputs (Eq. 4)."""
        # theta_t = m theta_t + (1 - m) theta_s, with a scheduled m
        self.averages["teacher"].update(value_at(self.config.momentum, moment.step, moment.steps))
        if dist.is_initialized():  # the same centre on all workers
            # sums and numbers of rows, so that the mean is exact for uneven shares
            dist.all_reduce(self.total)
        mean = self.total[:-1] / self.total[-1].clamp(min=1.0)
        self.centre.lerp_(mean, 1 - self.config.centre_momentum)
        self.total.zero_()

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        """The loss, and what shows how well classes can be told apart, if the data has labels."""
        sums = {"loss": self.loss(batch)}
        if "information" in self.measurements:
            return sums | self._joint_counts(batch)
        if "knn" not in self.measurements:
            return sums
        if not self._probes:
            features, labels = self._embedded()
            # fitted once, for all batches of this validation
            self._probes = {
                "knn": partial(nearest_neighbours, features, labels),
                "linear": fit_linear_probe(features, labels),
            }
        features = self.outputs("teacher", batch["images"])
        for name, classify in self._probes.items():
            right = classify(features) == batch["labels"]
            sums[name] = weighted_sum(right.float(), batch)
        return sums

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        """The loss, and of vectors the mutual information of labels and the teacher's largest outputs, in nats."""
        if "information" not in self.measurements:
            return means
        loss = means.pop("loss")
        # I = sum p(l, o) log p(l, o) / (p(l) p(o)), where 0 log 0 is 0
        joint = torch.tensor(list(means.values()), dtype=torch.float64).view(-1, len(self.centre))
        apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
        information = (joint * (joint / apart).log()).nan_to_num(0.0).sum()
        return {"loss": loss, "information": float(information)}

    def _joint_counts(self, batch: Tensors) -> Tensors:
        """The joint counts of labels and the teacher's largest outputs, which add up over batches and workers."""
        winner = self.outputs("teacher", batch["x"]).argmax(-1)
        labels = batch.get("labels", torch.zeros_like(winner))
        sums = {}
        for label in range(self.data.sizes.get("classes", 1)):
            for output in range(len(self.centre)):
                hit = ((labels == label) & (winner == output)).float()
                sums[f"{label} {output}"] = weighted_sum(hit, batch)
        return sums

    def _embedded(self) -> tuple[Tensor, Tensor]:
        """The teacher's features of training images, which are spread over all of them, and their labels."""
        table = self.data.labelled_table()
        assert table is not None
        images, labels = table
        chosen = torch.linspace(0, len(labels) - 1, min(self.config.probed, len(labels))).long()
        preprocessing, student = self.data.preprocessing, self.player("student")
        assert preprocessing is not None
        features = []
        for rows in chosen.split(IMAGES):
            pixels = torch.from_numpy(images[rows.numpy()]).to(self.centre.device)
            features.append(
                self.outputs("teacher", normalise(pixels, preprocessing, compute_dtype(student)))
            )
        return torch.cat(features), torch.from_numpy(labels)[chosen].to(self.centre.device)

    def _answers(self, player: str, views: Tensor) -> Tensor:
        """A player's outputs for the views of each row, (b, views, outputs), in float32."""
        model = self.player(player)
        answer = model if self.views.can == "map" else model.project
        out: Tensor = answer(views.flatten(0, 1).to(compute_dtype(model)))
        return out.float().unflatten(0, views.shape[:2])

    def _gather(self, outputs: Tensor, batch: Tensors) -> None:
        """Add the outputs (b, 2, o), without padding rows, to this step's total."""
        weight = torch.ones_like(outputs[:, 0, :1])
        if "weight" in batch:
            weight = batch["weight"][:, None]
        rows = (outputs.mean(1) * weight).sum(0)
        self.total.add_(torch.cat([rows, weight.sum()[None]]))


def _key(data: Data) -> str:
    """The batch key that views are made of."""
    for key in VIEWS:
        if key in data.keys:
            return key
    raise InputError(
        f"objective self-distillation reads {' or '.join(VIEWS)}, and the data gives {', '.join(data.keys)}"
    )

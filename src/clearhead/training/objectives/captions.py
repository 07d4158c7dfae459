"""Captions: the cross-entropy of each token of a caption given the image and the tokens before it.

images (b, c, height, width), ids (b, t) and targets (b, t) with -100 for positions without loss.

The terms of Show, Attend and Tell (Xu et al. 2015), for a recurrent decoder with attention:

    doubly      lambda sum_i (1 - sum_t alpha_ti)^2: every place should be looked at sometime (Eq. 14)
    reinforce   hard attention (Eq. 11 and 12): - lambda_r (log p - b) sum_t log alpha_t[s_t] for the sampled places
                s_t, with b a moving average of log p; and - lambda_e sum_t H[alpha_t]

Here log p is the log-probability of the caption per token, so that long captions do not have larger rewards. For half
of the images the weighted sum is taken instead of a sample (section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...checks import fraction
from ...data import IGNORE
from ...errors import InputError
from ...models.captioner import Trace
from ...tasks.caption import caption
from ...weights import Bundle
from ..moment import Moment
from .cross_entropy import linear_cross_entropy
from .objective import Losses, Measurement, Role, Sample, Tensors
from .tokens import SmoothingConfig, TokenObjective

if TYPE_CHECKING:
    from ...data import Data

ROWS = 3  # number of samples, always of the same rows
PLACES = 1  # stream of random numbers
LEAST = 1e-8  # weights below it count as this one, since the logarithm of 0 has no gradient


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionsConfig(SmoothingConfig):
    """Options of captions."""

    doubly: float = 0.0  # weight of the doubly stochastic term; 0: without it
    reward: float = 1.0  # hard attention: weight of the REINFORCE term (lambda_r)
    entropy: float = 0.01  # hard attention: weight of the entropy of the weights (lambda_e)
    # hard attention: share of the images whose weighted sum is taken instead of a sample
    expected: float = 0.5
    baseline_momentum: float = 0.9  # hard attention: share of the baseline that each step keeps

    def __post_init__(self) -> None:
        SmoothingConfig.__post_init__(self)  # super() loses its class when slots make a new one
        fraction(self, "expected", "baseline_momentum")
        for name in ("doubly", "reward", "entropy"):
            if getattr(self, name) < 0.0:
                raise InputError(f"{name}={getattr(self, name)}: expected 0 or more")


class Captions(TokenObjective):
    """The cross-entropy of each token of a caption given the image (Vinyals et al. 2015, Eq. 1)."""

    Config: ClassVar[type[Any]] = CaptionsConfig
    roles: ClassVar[Mapping[str, Role]] = {"model": Role(can="caption")}
    reads: ClassVar[tuple[str, ...]] = ("images", "ids", "targets")
    writes_text = True
    measurements: ClassVar[Mapping[str, Measurement]] = {
        "loss": Measurement("nats/token"),
        "accuracy": Measurement("share", "higher"),
        "exact": Measurement("share", "higher"),
    }
    baseline: Tensor  # moving average of log p per token
    total: Tensor  # (2,) sum of log p per token over the captions of this step, and their number

    def __init__(
        self, config: CaptionsConfig, players: Mapping[str, nn.Module], data: Data
    ) -> None:
        super().__init__(config, players, data)
        options = self.player("model").config
        self.hard = options.attention == "hard"
        # the doubly stochastic term needs one weight per place and token
        attends = options.decoder == "rnn" and options.attention != "none"
        if config.doubly and not attends:
            raise InputError(
                f"doubly={config.doubly} is for decoder='rnn' with attention='soft' or 'hard'"
            )
        # the baseline is state between steps, and is saved; `total` is empty between steps
        self.register_buffer("baseline", torch.zeros(()))
        self.register_buffer("total", torch.zeros(2), persistent=False)

    def prepare(self, batch: Tensors, moment: Moment) -> Tensors:
        # greedy places in validation, and none without hard attention
        if not (self.hard and self.training):
            return batch
        u = moment.rng(PLACES).uniform(batch["ids"].shape[1] + 1)
        draws = torch.where(u[:, :1] < self.config.expected, -1.0, u[:, 1:])  # negative: no sample
        return batch | {"draws": draws}

    def loss(self, batch: Tensors) -> Losses:
        """The summed cross-entropy, in nats, and the terms of the attention."""
        # without terms of the attention its weights need not be recorded
        if not self.hard and not self.config.doubly:
            return linear_cross_entropy(*self.readout(batch), smoothing=self.config.smoothing)
        model, targets = self.player("model"), batch["targets"]
        # records the attention weights, and the sampled places, of each token
        trace = Trace([], [])
        inputs = {name: x for name, x in batch.items() if name not in ("targets", "weight")}
        x = model.states(**inputs, trace=trace)
        counted = targets != IGNORE
        alpha = torch.stack(trace.weights, dim=1)  # (b, t, k) float32
        terms: dict[str, Tensor] = {}
        if self.config.doubly:  # Eq. 14, without the padding
            looked = (alpha * counted[..., None]).sum(1)  # (b, k)
            terms["doubly"] = self.config.doubly * (1 - looked).square().sum()
        smoothing = self.config.smoothing
        if not self.hard:
            words = linear_cross_entropy(x, model.head.weight, targets, smoothing=smoothing)
            return {"words": words, **terms}

        # REINFORCE needs the loss of each token, so that the fused loss cannot be used
        logits = model.head(x).float()
        # (b, t)
        each = F.cross_entropy(
            logits.mT, targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="none"
        )
        terms["words"] = each.sum()
        if trace.places:
            terms["reinforce"] = self._reinforce(each, alpha, trace.places, counted, batch["draws"])
        entropy = torch.special.entr(alpha.clamp(min=LEAST)).sum(-1)  # (b, t)
        terms["evenness"] = -self.config.entropy * (entropy * counted).sum()
        return terms

    def _reinforce(
        self,
        each: Tensor,  # (b, t) loss of each token
        alpha: Tensor,  # (b, t, k) attention weights
        places: list[Tensor],  # of each token, (b): the sampled place
        counted: Tensor,  # (b, t)
        draws: Tensor,  # (b, 1 + t): negative for images without samples
    ) -> Tensor:
        """- lambda_r (log p - b) sum_t log alpha_t[s_t], for the images whose places were sampled (Eq. 11 and 12)."""
        has_tokens = counted.any(1)
        # detached: the reward of the places is a number, and the words have their own loss
        log_p = -each.detach().sum(1) / counted.sum(1).clamp(min=1)
        chosen = alpha.gather(2, torch.stack(places, dim=1)[..., None])[..., 0]  # (b, t)
        log_places = ((chosen * counted).clamp(min=LEAST).log() * counted).sum(1)
        is_sampled = (draws[:, 0] >= 0) & has_tokens
        advantage = (log_p - self.baseline) * is_sampled
        # for the baseline, which is updated once per step, in `after_step`
        self.total.add_(torch.stack([(log_p * has_tokens).sum(), has_tokens.sum()]))
        return -self.config.reward * (advantage * log_places).sum()

    def after_step(self, moment: Moment) -> None:
        """Update the baseline of hard attention, b_k = 0.9 b_{k-1} + 0.1 log p (section 4.1)."""
        if not self.hard:
            return
        if dist.is_initialized():  # the same baseline on all workers
            dist.all_reduce(self.total)
        mean = self.total[0] / self.total[1].clamp(min=1.0)
        share = 1.0 if moment.step == 0 else 1 - self.config.baseline_momentum
        self.baseline.lerp_(mean, share)
        self.total.zero_()

    @torch.no_grad()
    def measure(self, batch: Tensors) -> Tensors:
        """The loss, the right tokens, and the captions all of whose tokens are right.

        Tokens are predicted given the true ones before them; so a caption is exact if and only if greedy decoding
        writes it.
        """
        x, weight, targets = self.readout(batch)
        logits = (x @ weight.T).float()
        counted = targets != IGNORE
        # padding counts as right, so that a caption is exact if all its tokens are
        right = (logits.argmax(-1) == targets) | ~counted
        rows = counted.any(1)
        loss = F.cross_entropy(logits.mT, targets, ignore_index=IGNORE, reduction="sum")
        return {
            "loss": loss,
            "accuracy": (right & counted).sum().to(loss.dtype),
            "exact": (right.all(1) & rows).sum().to(loss.dtype),
            "rows": rows.sum().to(loss.dtype),
        }

    def summarise(self, means: dict[str, float]) -> dict[str, float]:
        """The loss and accuracy per token, and the share of exact captions."""
        return {
            "loss": means["loss"],
            "accuracy": means["accuracy"],
            "exact": means["exact"] / means["rows"],
        }

    def samples(self, bundle: Bundle) -> list[Sample]:
        data, tokens = self.data, bundle.tokenizer()
        batch = data.valid(0) if data.valid_batches else data.batch(0)
        images = [image.transpose(1, 2, 0) for image in batch["images"][:ROWS]]  # (y, x, c)
        if bundle.preprocessing is not None and bundle.preprocessing.channels == "bgr":
            images = [image[:, :, ::-1] for image in images]
        wanted = [tokens.decode(row[row != IGNORE][:-1]) for row in batch["targets"][:ROWS]]
        results: Any = caption(bundle, images, beams=1)
        samples = []
        for i, (result, text) in enumerate(zip(results, wanted, strict=True)):
            samples.append({"given": f"image {i}", "written": result.text, "wanted": text})
        return samples

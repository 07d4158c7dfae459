"""What is trained: a model with its objective and its optimiser, on its device, in its precision, over all workers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..data import Data
from ..models import family
from . import probes
from .checkpoint import Checkpoint, CheckpointError
from .distributed import SyncedBatchNorm, World, let_go, narrow, recompute, shard
from .initialisation import initialise
from .muon import local
from .objective import Objective
from .optim import Optimiser
from .prefetch import Part
from .pretrained import go_on, in_head
from .recipe import Recipe, section


def build_model(recipe: Recipe, data: Data) -> nn.Module:
    """The model of a recipe with its first weights, the same on every worker."""
    name, made = section(recipe, "model", **data.sizes)
    torch.manual_seed(_key(recipe.seed, -1, 0))
    model = family(name)[0](made)
    initialise(model, recipe.initial, recipe.seed)
    if recipe.pretrained is not None:
        go_on(model, recipe.pretrained)
    if recipe.learn == "head":
        for weight_name, weight in model.named_parameters():
            weight.requires_grad_(in_head(weight_name))
    return model


class Trainee:
    """A recipe's model in training."""

    def __init__(self, recipe: Recipe, data: Data, world: World) -> None:
        self.recipe, self.data, self.world = recipe, data, world
        self.model = build_model(recipe, data)
        self.objective = Objective(self.model, data.kind, recipe.smoothing)

    def spread(self) -> None:
        """Put the model on its device, in its precision, over all workers, and make the optimiser."""
        recipe, world = self.recipe, self.world
        self.model.to(world.device)
        sharded = world.size > 1 and recipe.spread == "fsdp"
        masters = recipe.precision == "bfloat16" and not sharded
        if recipe.recompute:
            recompute(self.model)
        if world.size > 1:
            SyncedBatchNorm.convert(self.model)
        if masters:
            narrow(self.model)
        if sharded:
            shard(self.model, world, recipe.precision)
        self.optimiser = Optimiser(self.model, recipe.optim, masters=masters)
        self.forward: nn.Module = self.objective
        if world.size > 1 and not sharded:
            self.forward = DistributedDataParallel(self.objective)
        if recipe.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]

    def backward(self, parts: list[Part], step: int, counted: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of a batch of which all workers count so much; gives its loss and the last part's tensors."""
        self.model.train()
        total = torch.zeros((), device=self.world.device)
        for part in parts:
            torch.manual_seed(_key(self.recipe.seed, step, part.number))
            batch, last = part.to(self.world.device), part is parts[-1]
            with self._alone(last):
                # Workers average gradients: times their number, this is the gradient of the sum over all.
                loss = self.forward(batch) * (self.world.size / max(counted, 1.0))
                loss.backward()
            if not last:
                self.optimiser.gather()
            total = total + loss.detach()
        return total, batch

    def look(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        """The view inside, between a backward pass and the step: it changes nothing."""
        view: dict[str, Any] = {"gradient": probes.gradients(self.model, self.optimiser.gradients())}
        view |= probes.activations(self.objective, batch)
        let_go(self.model)
        return view

    @torch.no_grad()
    def measure(self, parts: Iterable[Part]) -> dict[str, float]:
        """Loss and accuracy on validation data, by the averages where there are any."""
        found, counted = [], 0
        self.model.eval()
        with self.optimiser.averaged():
            for part in parts:
                found.append(self.objective.measure(part.to(self.world.device)))
                counted += part.counted
            let_go(self.model)
        loss, right, n = self.world.sum(*(math.fsum(x) for x in torch.stack(found, 1).tolist()), counted)
        return {"valid_loss": loss / n} | ({"valid_accuracy": right / n} if self.data.kind != "vectors" else {})

    # Weights, kept and brought back

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds: weights (the masters, where there are any), buffers, optimiser, averages."""
        found = {f"model/{name}": weight for name, weight in self.optimiser.weights().items()}
        found |= {f"buffer/{name}": x for name, x in _buffers(self.model).items()}
        # Masters are the weights; a checkpoint names them once.
        return found | {n: t for n, t in self.optimiser.tensors().items() if not n.startswith("master/")}

    @torch.no_grad()
    def fill(self, found: Checkpoint) -> None:
        """Become what a checkpoint holds."""
        tensors = self.tensors()
        missing, extra = sorted(tensors.keys() - set(found.names)), sorted(set(found.names) - tensors.keys())
        if missing or extra:
            raise CheckpointError(
                f"{found.path} is of another model or optimiser than the recipe: "
                + "; ".join(
                    f"it {what} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
                    for what, names in (("lacks", missing), ("has besides", extra)) if names
                )
            )  # fmt: skip
        for name, tensor in tensors.items():
            found.fill(name, tensor.detach())
        found.close()
        self.optimiser.restore()

    def sound(self) -> bool:
        """Whether all weights, of all workers, are still numbers: a good loss may be followed by a bad update."""
        kept = [*self.optimiser.weights().values(), *self.optimiser.averages.values()]
        mine = [part for x in kept if (part := local(x.detach())).numel()]
        largest = torch.stack([*torch._foreach_norm(mine, math.inf)]) if mine else torch.zeros(1)
        return not self.world.sum(float(not largest.isfinite().all()))[0]

    @torch.no_grad()
    def trained(self, best: Checkpoint | None = None) -> nn.Module:
        """The model as it is to be kept: whole, on the CPU, with averages where there are any, or a checkpoint's."""
        weights = self.optimiser.averages or self.optimiser.weights()
        whole = {name: w.full_tensor() if hasattr(w, "full_tensor") else w for name, w in weights.items()}
        model = build_model(self.recipe, self.data)
        named = dict(model.named_parameters())
        for name, weight in whole.items():
            named[name].copy_(weight)
        for name, buffer in _buffers(self.model).items():
            model.get_buffer(name).copy_(buffer)
        if best is not None:
            prefix = "ema" if self.optimiser.averages else "model"
            for name in whole:
                best.fill(f"{prefix}/{name}", named[name].detach())
            for name, buffer in _buffers(model).items():
                best.fill(f"buffer/{name}", buffer)
        return model

    @contextmanager
    def _alone(self, last: bool) -> Iterator[None]:
        """Keep gradients to this worker until the last part of a batch."""
        model: Any = self.model
        wrapped: Any = getattr(self.forward, "_orig_mod", self.forward)
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(last)
            yield
        elif isinstance(wrapped, DistributedDataParallel) and not last and not self.optimiser.masters:
            # With masters every part's gradients are gathered, and gone, before the last could carry them along.
            with wrapped.no_sync():
                yield
        else:
            yield


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong to a model's state."""
    kept = set(model.state_dict(keep_vars=True))
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def _key(*numbers: int) -> int:
    """One seed out of several numbers, for torch's generators."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

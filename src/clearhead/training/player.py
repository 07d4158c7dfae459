"""Players: the networks of a training, each with its precision, its sharding and, if it is trained, its optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..weights.checkpoints.checkpoint import Checkpoint
from ..weights.checkpoints.unfinished import Fingerprint
from .distributed import SyncedBatchNorm, World, local, narrow, recompute, shard, whole
from .ema import EMA, EMANetwork
from .optim.optimisers import OptimConfig, Optimiser
from .optim.schedule import ScheduleConfig, ends, value
from .recipe import Recipe
from .setup import PlayerSetup


class Player:
    """A network and its tensors in checkpoints: weights (float32 masters of bfloat16 weights), buffers, averages.

    `rebuild` builds the network as it was before the first step. If it is given, checkpoints hold only the weights that
    are trained, with a fingerprint of the others.
    """

    def __init__(
        self,
        name: str,
        setup: PlayerSetup,
        model: nn.Module,
        recipe: Recipe,
        world: World,
        rebuild: Callable[[], nn.Module] | None = None,
    ) -> None:
        self.name, self.setup, self.model, self.world = name, setup, model, world
        self.rebuild = rebuild or setup.build
        untrained = (p for p in model.parameters() if not p.requires_grad)
        self.fingerprint = None if rebuild is None else Fingerprint(untrained)
        self.sharded = world.size > 1 and recipe.spread == "fsdp"
        self.has_masters = recipe.precision == "bfloat16" and not self.sharded
        model.to(world.device)
        if recipe.recompute:
            recompute(model)
        if world.size > 1:
            SyncedBatchNorm.convert(model)
        # Untrained weights in float32, since the network may compute with bfloat16 copies; none if `rebuild` has them.
        self.frozen = {
            n: p.detach().clone() if self.has_masters else p for n, p in self._untrained()
        }
        # The weights before rounding, from which the optimiser's master weights start.
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._exact = (
            {n: p.detach().clone() for n, p in trained.items()} if self.has_masters else {}
        )
        if self.has_masters:
            narrow(model)
        if self.sharded:
            shard(model, world, recipe.precision)
            self.frozen = dict(self._untrained())
        self.average: EMA | None = None

    def _untrained(self) -> list[tuple[str, nn.Parameter]]:
        """The weights that are not trained and that checkpoints hold, by name."""
        named = self.model.named_parameters() if self.fingerprint is None else ()
        return [(n, p) for n, p in named if not p.requires_grad]

    def begin_step(self) -> None:
        """Switch the network to the mode in which a step runs it: evaluation, unless it is trained."""
        self.model.eval()

    def weights(self) -> dict[str, Tensor]:
        """The float32 weights by name, before any rounding to bfloat16."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of this player in a checkpoint."""
        tensors = {f"weight/{n}": w for n, w in self.weights().items()}
        tensors |= {f"buffer/{n}": x for n, x in buffers(self.model).items()}
        if self.average is not None:
            tensors |= {f"average/{n}": x for n, x in self.average.values.items()}
        if self.fingerprint is not None:
            tensors["fingerprint"] = self.fingerprint.saved
        return tensors

    def restore(self) -> None:
        """Copy the weights that a checkpoint has filled in place to the network that computes with them."""
        if self.fingerprint is not None:
            self.fingerprint.check(self.name)

    def local_weights(self) -> list[Tensor]:
        """This worker's shards of the weights and averages."""
        averages = [] if self.average is None else list(self.average.values.values())
        return [
            part
            for x in (*self.weights().values(), *averages)
            if (part := local(x.detach())).numel()
        ]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context in which the network computes with its averages, if it has any."""
        with (
            nullcontext()
            if self.average is None or isinstance(self.average, EMANetwork)
            else (self.average.running())
        ):
            yield

    @torch.no_grad()
    def export(self, best: Checkpoint | None = None) -> nn.Module:
        """The network to save: unsharded, on the CPU, with its averages if it has any, or the weights of `best`."""
        averages = {} if self.average is None else self.average.values
        numbers = {n: whole(averages.get(n, w)) for n, w in self.weights().items()}
        model = self.rebuild()
        parameters, held = dict(model.named_parameters()), buffers(model)
        named = {n: parameters[n] for n in numbers}
        for n, tensor in numbers.items():
            named[n].copy_(tensor)
        for n, buffer in buffers(self.model).items():
            held[n].copy_(averages.get(n, buffer))
        if best is not None:
            for kind, own in (("weight", named), ("buffer", held)):
                for n, tensor in own.items():
                    best.fill(
                        f"{self.name}/{'average' if n in averages else kind}/{n}", tensor.detach()
                    )
        return model


class TrainedPlayer(Player):
    """A player that is updated by gradients."""

    def __init__(
        self,
        name: str,
        setup: PlayerSetup,
        model: nn.Module,
        recipe: Recipe,
        world: World,
        *,
        optim: OptimConfig,
        schedule: ScheduleConfig,
        rebuild: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__(name, setup, model, recipe, world, rebuild)
        self.schedule, self.trainable = schedule, [p for p in model.parameters() if p.requires_grad]
        self.optimiser = Optimiser(model, optim, masters=self.has_masters)
        for n, master in self.optimiser.masters.items():
            master.copy_(self._exact[n])  # the values before rounding
        self._exact = {}
        if any(ends(optim.ema)):
            # of batch norms
            running = {n: x for n, x in buffers(model).items() if x.is_floating_point()}
            self.average = EMA(
                {**self.optimiser.weights(), **running}, {**self.optimiser.parameters, **running}
            )
        self.forward: Any = None  # computes the losses of this player; set by `wrap`
        # Batch norms whose weights are not trained keep their running statistics, too.
        self._still = [
            m
            for m in model.modules()
            if getattr(m, "running_mean", None) is not None
            and not any(p.requires_grad for p in m.parameters())
        ]

    def wrap(self, losses: nn.Module, *, compiled: bool) -> None:
        """Set the module that computes this player's losses, inside DDP and torch.compile as configured."""
        self.forward = losses
        if self.world.size > 1 and not self.sharded:
            self.forward = DistributedDataParallel(losses)
        if compiled:
            self.forward = torch.compile(self.forward)

    def weights(self) -> dict[str, Tensor]:
        own = {**self.optimiser.weights(), **self.frozen}
        return {n: own[n] for n, _ in self.model.named_parameters() if n in own}

    def tensors(self) -> dict[str, Tensor]:
        # Master weights are saved as weights, not a second time as optimiser state.
        state = {n: t for n, t in self.optimiser.tensors().items() if not n.startswith("master/")}
        return super().tensors() | state

    @torch.no_grad()
    def restore(self) -> None:
        super().restore()
        self.optimiser.restore()
        if self.has_masters:
            for n, p in self.model.named_parameters():
                if n in self.frozen:
                    p.copy_(self.frozen[n])

    def update_average(self, step: int, steps: int) -> None:
        """Update the EMA of the weights after a step."""
        if self.average is not None:
            self.average.update(value(self.optimiser.config.ema, step, steps))

    def begin_step(self) -> None:
        self.model.train()
        for norm in self._still:
            norm.eval()

    def set_requires_grad(self, on: bool) -> None:
        """Switch gradients of this player's weights on, or off while another player is updated."""
        for p in self.trainable:
            p.requires_grad_(on)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Context that exchanges gradients between workers only for the last micro-batch of a step."""
        model: Any = self.model
        wrapped: Any = getattr(self.forward, "_orig_mod", self.forward)
        if self.sharded:
            model.set_requires_gradient_sync(last)
            yield
        elif (
            isinstance(wrapped, DistributedDataParallel) and not last and not self.optimiser.masters
        ):
            # With master weights each micro-batch's gradients are moved away, so that each must be exchanged.
            with wrapped.no_sync():
                yield
        else:
            yield


class EMAPlayer(Player):
    """A player whose weights are an exponential moving average of another's; `average.update` updates them."""

    average: EMANetwork

    def __init__(self, name: str, source: TrainedPlayer, recipe: Recipe, world: World) -> None:
        model = source.setup.build().requires_grad_(False)
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), source.weights().values(), strict=True):
                mine.copy_(whole(theirs))
            for n, buffer in buffers(source.model).items():
                model.get_buffer(n).copy_(buffer)
        super().__init__(name, source.setup, model, recipe, world)
        self.source, self._exact = source, {}
        self.average = EMANetwork(source.optimiser.weights(), source.model, self.model)

    def weights(self) -> dict[str, Tensor]:
        """The weights that are not averaged, because the source does not train them."""
        return dict(self.source.frozen)

    def tensors(self) -> dict[str, Tensor]:
        tensors = {f"buffer/{n}": x for n, x in buffers(self.model).items()}
        return tensors | {f"average/{n}": x for n, x in self.average.values.items()}

    def restore(self) -> None:
        self.average.copy_to_network()
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                if n in self.source.frozen:
                    local(p).copy_(local(self.source.frozen[n]))

    @torch.no_grad()
    def export(self, best: Checkpoint | None = None) -> nn.Module:
        model = self.setup.build()
        numbers = {**self.weights(), **self.average.values}
        for n, parameter in model.named_parameters():
            parameter.copy_(whole(numbers[n]))
            if best is not None:
                at = (
                    f"{self.name}/average/{n}"
                    if n in self.average.values
                    else f"{self.source.name}/weight/{n}"
                )
                best.fill(at, parameter.detach())
        for n, buffer in buffers(model).items():
            buffer.copy_(self.model.get_buffer(n))
            if best is not None:
                best.fill(f"{self.name}/buffer/{n}", buffer)
        return model


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """The persistent buffers of a model, by name."""
    kept = set(model.state_dict(keep_vars=True))
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def all_finite(tensors: list[Tensor]) -> bool:
    """True if no tensor holds an infinity or a NaN."""
    largest = torch.stack([*torch._foreach_norm(tensors, math.inf)]) if tensors else torch.zeros(1)
    return bool(largest.isfinite().all())

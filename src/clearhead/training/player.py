"""Players: the networks of a training, each with its precision, its sharding and, if it is trained, its optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..weights.checkpoints.checkpoint import Checkpoint
from ..weights.checkpoints.unfinished import Fingerprint
from .distributed import SyncedBatchNorm, World, local, narrow, recompute, shard, whole
from .ema import EMA, EMANetwork, warmed_up
from .optim.optimisers import OptimConfig, Optimiser
from .optim.schedule import ScheduleConfig, first_and_last, value_at
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
        self.fingerprint: Fingerprint | None = None
        if rebuild is not None:
            self.fingerprint = Fingerprint(p for p in model.parameters() if not p.requires_grad)
        self.ema: EMA | None = None
        self.sharded = world.size > 1 and recipe.spread == "fsdp"
        # FSDP keeps float32 shards itself; otherwise a bfloat16 model has float32 master weights
        self.has_masters = recipe.precision == "bfloat16" and not self.sharded
        self._place(recipe)

    def _place(self, recipe: Recipe) -> None:
        """Move the network to its device, in its precision, and keep the float32 weights that this would round."""
        model = self.model
        # this order: batch norms are synced before rounding and sharding look at them
        model.to(self.world.device)
        if recipe.recompute:
            recompute(model)
        if self.world.size > 1:
            SyncedBatchNorm.convert(model)
        # The float32 weights that are not trained; none if `rebuild` has them.
        self.frozen: dict[str, Tensor] = dict(self._untrained())
        # Those that are trained, from which the optimiser's master weights start.
        self._exact: dict[str, Tensor] = {}
        if self.has_masters:
            self.frozen = {n: p.detach().clone() for n, p in self._untrained()}
            for n, p in model.named_parameters():
                if p.requires_grad:
                    self._exact[n] = p.detach().clone()
            narrow(model)
        if self.sharded:
            shard(model, self.world, recipe.precision)
            self.frozen = dict(self._untrained())  # sharding has replaced the parameters

    def _untrained(self) -> list[tuple[str, nn.Parameter]]:
        """The weights that are not trained and that checkpoints hold, by name."""
        if self.fingerprint is not None:
            return []
        return [(n, p) for n, p in self.model.named_parameters() if not p.requires_grad]

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
        if self.ema is not None:
            tensors |= {f"average/{n}": x for n, x in self.ema.values.items()}
        if self.fingerprint is not None:
            tensors["fingerprint"] = self.fingerprint.saved
        return tensors

    def restore(self) -> None:
        """Copy the weights that a checkpoint has filled in place to the network that computes with them."""
        if self.fingerprint is not None:
            self.fingerprint.check(self.name)

    def local_weights(self) -> list[Tensor]:
        """This worker's shards of the weights and averages."""
        tensors = list(self.weights().values())
        if self.ema is not None:
            tensors += self.ema.values.values()
        shards = [local(x.detach()) for x in tensors]
        return [x for x in shards if x.numel()]  # a small tensor has no shard on some workers

    def with_ema(self) -> AbstractContextManager[None]:
        """Context in which the network computes with its averages, if it has any."""
        if self.ema is None or isinstance(self.ema, EMANetwork):  # the latter always does
            return nullcontext()
        return self.ema.running()

    @torch.no_grad()
    def export(self, best: Checkpoint | None = None) -> nn.Module:
        """The network to save: unsharded, on the CPU, with its averages if it has any, or the weights of `best`."""
        averages = {} if self.ema is None else self.ema.values
        # with LoRA this loads the pretrained weights again, which checkpoints do not hold
        model = self.rebuild()
        parameters, model_buffers = dict(model.named_parameters()), buffers(model)
        weights = self.weights()
        # `whole` gathers shards: all workers must take part
        for n, weight in weights.items():
            parameters[n].copy_(whole(averages.get(n, weight)))
        for n, buffer in buffers(self.model).items():
            # the statistics of batch norms are averaged, too
            model_buffers[n].copy_(averages.get(n, buffer))
        if best is not None:
            held: list[tuple[str, str, Tensor]] = [("weight", n, parameters[n]) for n in weights]
            held += [("buffer", n, buffer) for n, buffer in model_buffers.items()]
            for kind, n, tensor in held:
                prefix = "average" if n in averages else kind
                # overwrites the current weights by those of the best step
                best.fill(f"{self.name}/{prefix}/{n}", tensor.detach())
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
        if any(first_and_last(optim.ema)):
            # the running statistics of batch norms belong to the weights, and are averaged with them
            running = {n: x for n, x in buffers(model).items() if x.is_floating_point()}
            self.ema = EMA(
                {**self.optimiser.weights(), **running}, {**self.optimiser.parameters, **running}
            )
        self.forward: Any = None  # computes the losses of this player; set by `wrap`
        # Batch norms whose weights are not trained keep their running statistics, too.
        self._frozen_norms = []
        for module in model.modules():
            is_norm = getattr(module, "running_mean", None) is not None
            if is_norm and not any(p.requires_grad for p in module.parameters()):
                self._frozen_norms.append(module)

    def wrap(self, losses: nn.Module, *, compiled: bool) -> None:
        """Set the module that computes this player's losses, inside DDP and torch.compile as configured."""
        self.forward = losses
        if self.world.size > 1 and not self.sharded:
            # inside compile, so that the compiled graph is split at DDP's buckets
            self.forward = DistributedDataParallel(losses)
        if compiled:
            self.forward = torch.compile(self.forward)

    def weights(self) -> dict[str, Tensor]:
        # in the model's order, so that a moving average can be copied parameter by parameter
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
                    # rounded to bfloat16 again; the exact values stay in `frozen`
                    p.copy_(self.frozen[n])

    def update_ema(self, step: int, steps: int) -> None:
        """Update the EMA of the weights after a step, from 0."""
        if self.ema is not None:
            # by the step, and not by a count of updates, so that a resumed run goes on exactly
            self.ema.update(warmed_up(value_at(self.optimiser.config.ema, step, steps), step))

    def begin_step(self) -> None:
        self.model.train()
        for norm in self._frozen_norms:
            # after train(), which would make them update their statistics
            norm.eval()

    def set_requires_grad(self, on: bool) -> None:
        """Switch gradients of this player's weights on, or off while another player is updated."""
        for p in self.trainable:
            p.requires_grad_(on)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Context that exchanges gradients between workers in the last micro-batch, with bfloat16 masters in each."""
        model: Any = self.model
        wrapped: Any = getattr(self.forward, "_orig_mod", self.forward)  # inside torch.compile
        if self.sharded:
            # FSDP keeps unsharded gradients until the last micro-batch, and reduces once
            model.set_requires_gradient_sync(last)
            yield
            return
        # With master weights each micro-batch's gradients are moved away, so that each must be exchanged.
        waits = not last and not self.optimiser.masters
        if isinstance(wrapped, DistributedDataParallel) and waits:
            # gradients add up locally, and the last micro-batch exchanges their sum
            with wrapped.no_sync():
                yield
        else:
            yield


class EMAPlayer(Player):
    """A player whose weights are an exponential moving average of another's; the objective calls `ema.update`."""

    ema: EMANetwork

    def __init__(self, name: str, source: TrainedPlayer, recipe: Recipe, world: World) -> None:
        model = source.setup.build().requires_grad_(False)
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), source.weights().values(), strict=True):
                # the average starts at the initial weights of its source, before any rounding
                ours.copy_(whole(theirs))
            for n, buffer in buffers(source.model).items():
                model.get_buffer(n).copy_(buffer)
        super().__init__(name, source.setup, model, recipe, world)
        self.source, self._exact = source, {}
        self.ema = EMANetwork(source.optimiser.weights(), source.model, self.model)

    def weights(self) -> dict[str, Tensor]:
        """The weights that are not averaged, because the source does not train them."""
        return dict(self.source.frozen)

    def tensors(self) -> dict[str, Tensor]:
        # The weights that are not averaged are in the checkpoint as the source's.
        tensors = {f"buffer/{n}": x for n, x in buffers(self.model).items()}
        return tensors | {f"average/{n}": x for n, x in self.ema.values.items()}

    def restore(self) -> None:
        self.ema.copy_to_network()
        with torch.no_grad():
            for n, p in self.model.named_parameters():
                if n in self.source.frozen:
                    # weights that nobody trains are equal in both networks
                    local(p).copy_(local(self.source.frozen[n]))

    @torch.no_grad()
    def export(self, best: Checkpoint | None = None) -> nn.Module:
        model = self.setup.build()
        # averages, and the weights that nobody trains
        weights = {**self.weights(), **self.ema.values}
        for n, parameter in model.named_parameters():
            parameter.copy_(whole(weights[n]))
            if best is not None:
                owner = f"{self.source.name}/weight"
                if n in self.ema.values:
                    owner = f"{self.name}/average"
                best.fill(f"{owner}/{n}", parameter.detach())
        for n, buffer in buffers(model).items():
            buffer.copy_(self.model.get_buffer(n))
            if best is not None:
                best.fill(f"{self.name}/buffer/{n}", buffer)
        return model


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """The persistent buffers of a model, by name."""
    persistent = set(model.state_dict(keep_vars=True))
    return {name: buffer for name, buffer in model.named_buffers() if name in persistent}


def all_finite(tensors: list[Tensor]) -> bool:
    """True if no tensor holds an infinity or a NaN."""
    if not tensors:
        return True
    largest = torch.stack([*torch._foreach_norm(tensors, math.inf)])
    return bool(largest.isfinite().all())

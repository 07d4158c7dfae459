"""Trainer: an objective and its players, updated step by step. It knows no files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import config
from ..data import Data
from ..weights import Bundle
from . import probes
from .augmentation import augment, make_augmentations, normalise
from .checkpoint import Checkpoint, CheckpointError
from .distributed import World, reshard
from .initialisation import initialise
from .objectives import Moment, Objective, Update
from .objectives.objective import compute_dtype
from .player import AveragePlayer, Player, TrainedPlayer, all_finite, buffers
from .prefetch import Part
from .pretrained import fill_pretrained, in_head
from .recipe import Recipe, named_options, player_optim, pretrained_of
from .schedule import scale
from .setup import Setup


@dataclass(frozen=True, slots=True)
class Updated:
    """What one update of a step reports, on the device."""

    update: Update
    losses: dict[str, Tensor]  # by name; the first is the whole loss
    norm: Tensor  # of the gradients, before clipping
    lr: float


class Losses(nn.Module):
    """An objective's losses, as a module that owns the weights of the player they update, and no others.

    This is what distribution and compilation wrap.
    """

    def __init__(self, objective: Objective, player: nn.Module) -> None:
        super().__init__()
        self.player = player
        object.__setattr__(self, "objective", objective)  # not a child: its other players are not this one's

    def forward(self, loss: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The losses of a batch by their names, the whole first."""
        found = getattr(self.objective, loss)(batch)
        if isinstance(found, Tensor):
            return {loss: found}
        return {loss: torch.stack([x.reshape(()) for x in found.values()]).sum(), **found}


class Trainer:
    """What a recipe trains."""

    def __init__(
        self, recipe: Recipe, setup: Setup, data: Data, world: World, *, fresh: bool = True
    ) -> None:  # fmt: skip
        """Build the players with their first weights; a run that is resumed (not `fresh`) loads no pretrained ones."""
        self.recipe, self.setup, self.data, self.world = recipe, setup, data, world
        self.left_out: list[str] = []  # weights of pretrained folders that found no place
        roles = setup.kind.roles
        self.players: dict[str, Player] = {}
        for index, (name, role) in enumerate(roles.items()):
            if role.average_of is None:
                self.players[name] = self._trained(name, index, fresh)
        for name, role in roles.items():
            if role.average_of is not None:
                self.players[name] = AveragePlayer(name, self._player(role.average_of), recipe, world)
        options = config.read(setup.kind.Config, setup.options)
        self.objective = setup.kind(options, {name: self.players[name].model for name in roles}, data)
        self.objective.to(world.device)
        self.objective.averages = {n: p.average for n, p in self.players.items() if isinstance(p, AveragePlayer)}
        self.trained = {n: p for n, p in self.players.items() if isinstance(p, TrainedPlayer)}
        for player in self.trained.values():
            player.wrap(Losses(self.objective, player.model), compiled=recipe.compile)
        self.augmentations = make_augmentations([named_options(one, "augment") for one in recipe.augment])

    def _trained(self, name: str, index: int, fresh: bool) -> TrainedPlayer:
        recipe, setup = self.recipe, self.setup.players[name]
        torch.manual_seed(seed_of(recipe.seed, -1, index))
        model = setup.build()
        initialise(model, recipe.initial, recipe.seed, prefix="" if name == "model" else f"{name}.")
        if fresh:
            for start in pretrained_of(recipe, name):
                self.left_out += fill_pretrained(model, start)
        if recipe.learn == "head":
            for weight_name, weight in model.named_parameters():
                weight.requires_grad_(in_head(model, weight_name))
        optim, schedule = player_optim(recipe, name)
        return TrainedPlayer(name, setup, model, recipe, self.world, optim=optim, schedule=schedule)

    def _player(self, name: str) -> TrainedPlayer:
        player = self.players[name]
        assert isinstance(player, TrainedPlayer)
        return player

    @property
    def model(self) -> nn.Module:
        """The network that is the result."""
        return self.players[self.setup.kind.result].model

    # A step

    def step(self, parts: list[Part], step: int, counted: float) -> tuple[list[Updated], dict[str, Tensor]]:
        """Perform the updates of a step, of which all workers together count so much; returns also the last batch."""
        self.objective.train()
        for player in self.players.values():
            player.model.train(isinstance(player, TrainedPlayer))
        self.scheduled = self.objective.set_scalars(step, self.recipe.steps)
        updates = [update for update in self.objective.updates if (step + 1) % update.every == 0]
        several = len(self.objective.updates) > 1
        # With one update each part is prepared when its turn comes; with several they all see the same parts.
        prepared = [self._prepared(part, step) for part in parts] if several else []
        reports, batch, moment = [], dict[str, Tensor](), None
        for number, update in enumerate(updates):
            player = self._player(update.player)
            self._focus(player)
            total: dict[str, Tensor] = {}
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                batch, moment = prepared[i] if several else self._prepared(part, step)
                torch.manual_seed(seed_of(self.recipe.seed, step, part.number, *([number] if number else [])))
                with player.accumulating(last):
                    # Workers average gradients: times their number, this is the gradient of the sum over all.
                    factor = self.world.size / max(counted, 1.0)
                    losses = {name: x * factor for name, x in player.forward(update.loss, batch).items()}
                    losses[update.loss].backward()
                if not last:
                    player.optimiser.gather()
                total = {name: total.get(name, 0.0) + x.detach() for name, x in losses.items()}
            assert moment is not None
            reports.append(self._update(update, player, total, moment, batch))
        self._focus(None)
        if moment is not None:
            with torch.no_grad():
                self.objective.after_step(moment)
            self._reshard()
        return reports, batch

    def _update(
        self, update: Update, player: TrainedPlayer, losses: dict[str, Tensor], moment: Moment,
        batch: Mapping[str, Tensor],
    ) -> Updated:  # fmt: skip
        if self.looking:
            self.views[update.player] = self._view(update.player, player, batch)
        factor = scale(player.schedule, moment.step, moment.steps)
        norm = self.objective.step(update, player.optimiser, moment, factor)
        player.follow(moment.step, moment.steps)
        self._reshard()
        return Updated(update, losses, norm, player.optimiser.config.lr * factor)

    def _focus(self, player: TrainedPlayer | None) -> None:
        """Compute gradients for one player only; with a single one there is nothing to do."""
        if len(self.trained) > 1:
            for other in self.trained.values():
                other.train_only(player is None or other is player)

    def _reshard(self) -> None:
        """After weights have changed: networks that ran without a backward pass still hold the gathered old ones."""
        for player in self.players.values():
            reshard(player.model)

    @torch.no_grad()
    def _prepared(self, part: Part, step: int, *, training: bool = True) -> tuple[dict[str, Tensor], Moment]:
        """A part on the device: images augmented (in training) and normalised, then the objective's own preparation."""
        batch, rows = part.to(self.world.device)
        seed = self.recipe.seed if training else 0  # validation is the same whatever the seed
        moment = Moment(seed=seed, step=step, steps=self.recipe.steps, rows=rows)
        for name, x in batch.items():
            if x.dtype == torch.uint8 and x.ndim == 4:
                assert self.data.preprocessing is not None
                images = augment(x, self.augmentations, moment) if training else x
                batch[name] = normalise(images, self.data.preprocessing, compute_dtype(self.model))
        if type(self.objective).prepare is not Objective.prepare:
            torch.manual_seed(seed_of(seed, step, part.number, -1))
            batch = self.objective.prepare(batch, moment)
        return batch, moment

    # Looking and measuring

    looking = False  # whether the next step records activations and gradients
    views: dict[str, dict[str, Any]]

    def look_next(self) -> None:
        """Record the inside of every player in the next step, between its backward pass and its update."""
        self.looking, self.views = True, {}

    def looked(self) -> dict[str, Any]:
        """What the last step recorded: of several players by their names."""
        self.looking = False
        views = self.views
        return views["model"] if list(views) == ["model"] else views

    def _view(self, name: str, player: TrainedPlayer, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        view: dict[str, Any] = {"gradient": probes.gradients(player.model, player.optimiser.gradients())}
        view |= probes.activations(self.objective, player.model, batch)
        return view

    @torch.no_grad()
    def measure(self, parts: Iterable[Part]) -> dict[str, float]:
        """The objective's measurements on validation data, by averaged weights where there are some."""
        sums: dict[str, list[Tensor]] = {}
        counted = 0
        self.objective.eval()
        with ExitStack() as stack:
            for player in self.players.values():
                stack.enter_context(player.averaged())
            for i, part in enumerate(parts):
                batch, _ = self._prepared(part, i, training=False)
                for name, x in self.objective.measure(batch).items():
                    sums.setdefault(name, []).append(x)
                counted += part.counted
            self._reshard()
        totals = [math.fsum(torch.stack(x).tolist()) for x in sums.values()]
        *whole, n = self.world.sum(*totals, counted)
        means = {name: total / n for name, total in zip(sums, whole, strict=True)}
        return {f"valid_{name}": x for name, x in self.objective.summarise(means).items()}

    # Checkpoints and results

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds: of each player, and the objective's own buffers."""
        found = {f"{name}/{key}": x for name, player in self.players.items() for key, x in player.tensors().items()}
        own = {n: x for n, x in buffers(self.objective).items() if not n.startswith("players.")}
        return found | {f"objective/buffer/{n}": x for n, x in own.items()}

    @torch.no_grad()
    def fill(self, found: Checkpoint) -> None:
        """Continue from a checkpoint."""
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
        for player in self.players.values():
            player.restore()

    def finite(self) -> bool:
        """True if all weights, of all workers, are finite: a good loss may be followed by a bad update."""
        mine = [x for player in self.players.values() for x in player.finite()]
        return not self.world.sum(float(not all_finite(mine)))[0]

    def export(self, best: Checkpoint | None = None) -> dict[str, Bundle]:
        """Every player as a Bundle, the result first."""
        names = [self.setup.kind.result, *(n for n in self.players if n != self.setup.kind.result)]
        made = {}
        for name in names:
            model: Any = self.players[name].export(best)
            first = name == names[0]
            made[name] = Bundle(
                model, self.data.tokens if first else None,
                labels=self.data.classes if first and "classify" in model.can else None,
                preprocessing=self.data.preprocessing if first else None,
            )  # fmt: skip
        return made


def seed_of(*numbers: int) -> int:
    """One seed out of several numbers, for torch's generators."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

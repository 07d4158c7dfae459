"""Trainer: an objective and its players, updated step by step, without any file access except pretrained weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .. import config
from ..data import Data
from ..errors import InputError
from ..layers.lora import merge_adapters
from ..models import Model
from ..weights import Bundle, WeightsError
from ..weights.checkpoints import unfinished
from ..weights.checkpoints.pretrained import fill_pretrained, in_head, submodule
from ..weights.exported import check_exportable
from . import probes
from .augmentation import augment, make_augmentations, normalise
from .checkpoints import Checkpoint, CheckpointError, MeanCheckpoint
from .distributed import World, reshard
from .objectives import Moment, Objective, Update
from .objectives.check import (
    add_log_name,
    check_depends,
    check_losses,
    check_reported,
    check_sums,
    log_names,
)
from .objectives.objective import compute_dtype
from .optim.schedule import scale
from .player import EMAPlayer, Player, TrainedPlayer, all_finite, buffers
from .prefetch import MicroBatch, ResidentTables
from .recipe import Recipe, RunConfig, named_options, player_optim, pretrained_of
from .setup import Setup
from .start.initialisation import initialise
from .start.pretrained import adapt, base_folder

# Which validation rows are decoded for measurements of text, such as BLEU.


ROWS = 1000  # validation rows that are decoded, unless run.decode says otherwise
T = TypeVar("T")


def decoded_rows(run: RunConfig, measurements: Mapping[str, Any], texts: int) -> int:
    """The number of validation rows to decode: run.decode, or ROWS if run.best is a measurement of decoded text.

    Args:
        run: The options of the run.
        measurements: The objective's measurements of decoded text, by name.
        texts: The number of validation rows whose text is known.
    """
    best = bool(run.best) and str(run.best).removeprefix("valid_") in measurements
    if run.decode == 0 and best:
        raise InputError(
            f"run.best = {run.best!r} is measured on decoded rows: expected run.decode of 1 or more"
        )
    if run.decode is not None:
        wanted = run.decode
    elif best:
        wanted = ROWS
    else:
        wanted = 0
    if wanted and not measurements:
        raise InputError(
            f"run.decode = {wanted}: this objective has no measurements of decoded text: leave it out"
        )
    if wanted and not texts:
        word = f"best = {run.best!r}" if best else f"decode = {wanted}"
        raise InputError(
            f"run.{word} needs the text of validation rows, and this dataset has none: leave it out"
        )
    return min(wanted, texts)


def evenly(rows: Sequence[T], most: int) -> list[T]:
    """At most so many rows, at equal distances: files are often sorted by length."""
    return [rows[i * len(rows) // most] for i in range(most)]


# of random numbers in validation, which is the same whatever the seed of the training
VALIDATION_SEED = -1


@dataclass(frozen=True, slots=True)
class Updated:
    """The losses and the gradient norm of one update, still on the device."""

    update: Update
    losses: dict[str, Tensor]  # by name; the first is the total
    norm: Tensor  # gradient norm before clipping
    lr: float  # learning rate of this step


class PlayerLosses(nn.Module):
    """An objective's losses as a module whose only parameters are those of the player that they update.

    This is the module that DDP and torch.compile wrap.
    """

    def __init__(self, objective: Objective, player: nn.Module) -> None:
        super().__init__()
        self.player = player
        # not a submodule: it also holds the other players
        object.__setattr__(self, "objective", objective)

    def forward(self, loss: str, batch: dict[str, Tensor]) -> Any:
        """What the loss method returns for a batch: a loss, or its terms by name."""
        return getattr(self.objective, loss)(batch)


class Trainer:
    """The networks of a recipe, with the methods that update, measure, save and export them."""

    def __init__(
        self,
        recipe: Recipe,
        setup: Setup,
        data: Data,
        world: World,
        *,
        feeds: Mapping[str, Data] | None = None,
        fresh: bool = True,
    ) -> None:
        """Build the players; `fresh` is False for a resumed run, which does not load pretrained weights."""
        self.datasets = {"": data, **(feeds or {})}
        self.recipe, self.setup, self.data, self.world = recipe, setup, data, world
        self.left_out: list[str] = []  # pretrained weights that were not used
        # sentences about the pretrained weights, and what they will become
        self.notes: list[str] = []
        labels = next((player.labels for player in setup.players.values() if player.labels), None)
        if labels is not None and labels != data.classes:
            data.number_classes(labels)
        kind = setup.objective_class
        roles, options = kind.roles, config.read(kind.Config, setup.options)
        self._log_names = log_names(kind)  # terms of losses are added in the first step
        if data.valid_batches and kind.measure is Objective.measure:
            raise InputError(
                f"{kind.__name__} has no method measure, and the data has validation rows: expected measure(batch) and "
                "the measurements that it returns, or data without validation rows"
            )
        self.players: dict[str, Player] = {}
        for index, (name, role) in enumerate(roles.items()):
            if role.average_of is None:
                self.players[name] = self._build_trained(name, index, fresh)
        for name, role in roles.items():
            if role.average_of is not None:
                self.players[name] = EMAPlayer(
                    name, self._trained_player(role.average_of), recipe, world
                )
        self.objective = kind(options, {name: self.players[name].model for name in roles}, data)
        self.objective.to(world.device)
        texts = data.valid_texts
        self.objective.decoded = evenly(
            texts, decoded_rows(recipe.run, kind.text_measurements, len(texts))
        )
        self.objective.averages = {
            n: p.average for n, p in self.players.items() if isinstance(p, EMAPlayer)
        }
        self.trained = {n: p for n, p in self.players.items() if isinstance(p, TrainedPlayer)}
        for player in self.trained.values():
            player.wrap(PlayerLosses(self.objective, player.model), compiled=recipe.compile)
        self.notes += [note] if (note := self._export_note()) else []
        self.resident = ResidentTables(self.datasets, world.device)
        self.augmentations = make_augmentations(
            [named_options(one, "augment") for one in recipe.augment]
        )

    def _build_trained(self, name: str, index: int, fresh: bool) -> TrainedPlayer:
        recipe, setup = self.recipe, self.setup.players[name]
        # Checkpoints of a training with LoRA do not hold the pretrained weights.
        model, left_out = self._build_model(
            name, index, pretrained=fresh or recipe.lora is not None
        )
        self.left_out += left_out
        if recipe.learn == "head":
            for weight_name, weight in model.named_parameters():
                weight.requires_grad_(in_head(model, weight_name))
            if not any(p.requires_grad for p in model.parameters()):
                raise InputError(
                    f"learn='head': a {setup.model} whose output layer has the weights of its embedding has no head of "
                    "its own to train: expected learn='all', or lora"
                )
        for part in recipe.freeze:
            submodule(model, part, "freeze", "this model").requires_grad_(False)
        optim, schedule = player_optim(recipe, name)
        rebuild = (
            None
            if recipe.lora is None
            else lambda: self._build_model(name, index, pretrained=True)[0]
        )
        return TrainedPlayer(
            name, setup, model, recipe, self.world, optim=optim, schedule=schedule, rebuild=rebuild
        )

    def _build_model(
        self, name: str, index: int, *, pretrained: bool
    ) -> tuple[nn.Module, list[str]]:
        """A player's model before the first step, and the pretrained weights that it does not use."""
        recipe, filled, left_out = self.recipe, frozenset[str](), list[str]()
        torch.manual_seed(seed_of(recipe.seed, -1, index))
        model = self.setup.players[name].build()
        initialise(model, recipe.initial, recipe.seed, prefix="" if name == "model" else f"{name}.")
        for start in pretrained_of(recipe, name) if pretrained else ():
            done = fill_pretrained(model, start, self.data.tokens, self.data.classes)
            filled, left_out = filled | done.names, left_out + done.left_out
            self.notes += [done.note] if done.note and done.note not in self.notes else []
        if recipe.lora is not None:
            adapt(
                model,
                recipe.lora,
                filled,
                seed=seed_of(recipe.seed, -1, index),
                freeze=recipe.freeze,
            )
        return model, left_out

    def _trained_player(self, name: str) -> TrainedPlayer:
        player = self.players[name]
        assert isinstance(player, TrainedPlayer)
        return player

    @property
    def model(self) -> nn.Module:
        """The network that is the result of the training."""
        return self.players[self.setup.objective_class.result].model

    @property
    def late_warmups(self) -> list[int]:
        """The warm-ups of players that are longer than the whole training, in steps."""
        warmups = {player.schedule.warmup for player in self.trained.values()}
        return sorted(warmup for warmup in warmups if warmup > self.recipe.steps)

    # A step

    def step(
        self, parts: list[MicroBatch], step: int, counted: float
    ) -> tuple[list[Updated], dict[str, Tensor]]:
        """Perform the updates of a step; returns their reports and the last micro-batch.

        Losses are divided by `counted`, the number of rows or tokens of the batch over all workers.
        """
        self.objective.train()
        for player in self.players.values():
            player.begin_step()
        self.scheduled = self.objective.set_scalars(step, self.recipe.steps)
        updates = [update for update in self.objective.updates if (step + 1) % update.every == 0]
        several = len(self.objective.updates) > 1
        # A single update prepares each part when it needs it; several updates share the prepared parts.
        if several:
            prepared = [self._prepared(part, step) for part in parts]
        else:
            prepared = []
        reports, batch, moment = [], dict[str, Tensor](), None
        for number, update in enumerate(updates):
            player = self._trained_player(update.player)
            self._require_grad_only(player)
            losses: dict[str, Tensor] = {}
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                if several:
                    batch, moment = prepared[i]
                else:
                    batch, moment = self._prepared(part, step)
                # Dropout of the first update depends on (seed, step, part) only, as in a training with one update.
                torch.manual_seed(
                    seed_of(self.recipe.seed, step, part.number, *([number] if number else []))
                )
                for name, x in self._backward(update, player, batch, counted, last=last).items():
                    losses[name] = losses.get(name, 0.0) + x
            assert moment is not None
            reports.append(self._update(update, player, losses, moment, batch))
        self._require_grad_only(None)
        if moment is None:  # no player has an update in this step
            if several:
                batch, moment = prepared[-1]
            else:
                batch, moment = self._prepared(parts[-1], step)
        with torch.no_grad():
            self.objective.after_step(moment)
        self._reshard()
        return reports, batch

    def _backward(
        self,
        update: Update,
        player: TrainedPlayer,
        batch: dict[str, Tensor],
        counted: float,
        *,
        last: bool,
    ) -> dict[str, Tensor]:
        """Add the gradients of a micro-batch to the player's; returns the losses by name, detached."""
        with player.accumulating(last):
            # DDP and FSDP average gradients over workers: the factor makes the average a sum.
            factor = self.world.size / max(counted, 1.0)
            named = self._named_losses(update, player.forward(update.loss, batch))
            losses = {name: x * factor for name, x in named.items()}
            losses[update.loss].backward()
        if not last:
            player.optimiser.gather()
        return {name: x.detach() for name, x in losses.items()}

    def _named_losses(self, update: Update, returned: Any) -> dict[str, Tensor]:
        """The losses by their names in the logs, the total first; raises if a loss method returned something else."""
        kind = self.setup.objective_class
        check_losses(kind, update.loss, returned)
        if isinstance(returned, Tensor):
            losses = {update.loss: returned}
        else:
            losses = {update.loss: torch.stack(list(returned.values())).sum(), **returned}
            what = f"a term of {update.loss}"
            for name in returned:
                if self._log_names.get(name) != what:
                    add_log_name(kind, self._log_names, name, what)
        check_depends(kind, update, losses[update.loss])
        return losses

    def _update(
        self,
        update: Update,
        player: TrainedPlayer,
        losses: dict[str, Tensor],
        moment: Moment,
        batch: Mapping[str, Tensor],
    ) -> Updated:
        if self._probing:
            self._probes[update.player] = self._probe(player, batch)
        factor = scale(player.schedule, moment.step, moment.steps)
        norm = self.objective.step(update, player.optimiser, moment, factor)
        player.update_average(moment.step, moment.steps)
        self._reshard()
        return Updated(update, losses, norm, player.optimiser.config.lr * factor)

    def _require_grad_only(self, player: TrainedPlayer | None) -> None:
        """Compute gradients for one player only (None: for all); with a single player there is nothing to do."""
        if len(self.trained) > 1:
            for other in self.trained.values():
                other.set_requires_grad(player is None or other is player)

    def _reshard(self) -> None:
        """Drop gathered weights after an update: networks without a backward pass still hold the old ones."""
        for player in self.players.values():
            reshard(player.model)

    @torch.no_grad()
    def _prepared(
        self, part: MicroBatch, step: int, *, training: bool = True
    ) -> tuple[dict[str, Tensor], Moment]:
        """A part on the device, with images augmented (in training) and normalised, as the objective prepares it."""
        batch, rows = part.to(self.world.device)
        batch = self.resident.looked_up(batch)
        seed = self.recipe.seed if training else VALIDATION_SEED
        moment = Moment(seed=seed, step=step, steps=self.recipe.steps, rows=rows[""])
        for name, x in batch.items():
            feed = name.rpartition(".")[0]
            preprocessing = self.datasets[feed].preprocessing
            if preprocessing is not None and x.dtype == torch.uint8 and x.ndim == 4:
                if training and self.augmentations:
                    number = list(self.datasets).index(feed)
                    own = replace(moment, rows=rows[feed])
                    x = augment(x, self.augmentations, own, number, compiled=self.recipe.compile)
                batch[name] = normalise(x, preprocessing, compute_dtype(self.model))
        if type(self.objective).prepare is not Objective.prepare:
            torch.manual_seed(seed_of(seed, step, part.number, -1))
            batch = self.objective.prepare(batch, moment)
        return batch, moment

    # Probes and measurements

    _probing = False  # whether the next step records activations and gradients
    _probes: dict[str, dict[str, Any]]

    def probe_next(self) -> None:
        """Record activations and gradients of every player in the next step, between backward pass and update."""
        self._probing, self._probes = True, {}

    def probed(self) -> dict[str, Any]:
        """The records of the last step; by the names of the players if there are several."""
        self._probing = False
        if list(self._probes) == ["model"]:
            return self._probes["model"]
        return self._probes

    def _probe(self, player: TrainedPlayer, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        gradients = probes.gradients(player.model, player.optimiser.gradients())
        return {"gradient": gradients} | probes.activations(self.objective, player.model, batch)

    @torch.no_grad()
    def measure(self, parts: Iterable[MicroBatch]) -> dict[str, float]:
        """The objective's measurements on validation data, with averaged weights if the recipe has an EMA."""
        sums: dict[str, list[Tensor]] = {}
        counted = 0
        self.objective.eval()
        with ExitStack() as stack:
            for player in self.players.values():
                stack.enter_context(player.averaged())
            for i, part in enumerate(parts):
                batch, _ = self._prepared(part, i, training=False)
                measured = self.objective.measure(batch)
                check_sums(type(self.objective), measured)
                for name, x in measured.items():
                    sums.setdefault(name, []).append(x)
                counted += part.counted
            self._reshard()
        totals = [math.fsum(torch.stack(x).tolist()) for x in sums.values()]
        *whole, n = self.world.sum(*totals, counted)
        means = {name: total / n for name, total in zip(sums, whole, strict=True)}
        reported = self.objective.summarise(means)
        check_reported(self.objective, reported)
        return {f"valid_{name}": x for name, x in (reported | self._text_scores()).items()}

    def _text_scores(self) -> dict[str, float]:
        """The measurements of decoded text, of a copy of the model; each worker decodes a share of the rows."""
        rows = self.objective.decoded
        if not rows:
            return {}
        bundle = next(iter(self.export().values()))
        bundle.model.to(self.world.device)
        mine = rows[self.world.rank :: self.world.size]
        scores = self.objective.score(
            self.world.gather(self.objective.decode(bundle, mine) if mine else [])
        )
        check_reported(self.objective, scores, text=True)
        return scores

    # Checkpoints and results

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint: those of each player, and the objective's own buffers."""
        tensors = {
            f"{name}/{key}": x
            for name, player in self.players.items()
            for key, x in player.tensors().items()
        }
        own = {n: x for n, x in buffers(self.objective).items() if not n.startswith("players.")}
        return tensors | {f"objective/buffer/{n}": x for n, x in own.items()}

    @torch.no_grad()
    def load(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint into the players and the objective."""
        tensors, saved = self.tensors(), set(checkpoint.names)
        missing, extra = sorted(tensors.keys() - saved), sorted(saved - tensors.keys())
        if missing or extra:
            raise CheckpointError(
                f"{checkpoint.path} does not match the recipe's models and optimisers: "
                + "; ".join(
                    f"{what} {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
                    for what, names in (("missing", missing), ("unexpected", extra))
                    if names
                )
            )
        for name, tensor in tensors.items():
            checkpoint.fill(name, tensor.detach())
        checkpoint.close()
        for player in self.players.values():
            player.restore()

    @torch.no_grad()
    def load_mean(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Set the weights, buffers and averages of all players to the means of several checkpoints, oldest first."""
        mean = MeanCheckpoint(checkpoints)
        for name, player in self.players.items():
            for key, tensor in player.tensors().items():
                if key.startswith(("weight/", "buffer/", "average/")):
                    mean.fill(f"{name}/{key}", tensor.detach())
        for player in self.players.values():
            player.restore()

    def finite(self) -> bool:
        """True if all weights, of all workers, are finite: an update can fail although its loss was finite."""
        mine = [x for player in self.players.values() for x in player.local_weights()]
        return not self.world.sum(float(not all_finite(mine)))[0]

    def export(self, best: Checkpoint | None = None) -> dict[str, Bundle]:
        """Every player as a Bundle, the result first; with the weights of the checkpoint `best`, if given."""
        result = self.setup.objective_class.result
        bundles = {}
        for name in [result, *(other for other in self.players if other != result)]:
            model: Any = self.players[name].export(best)
            if not self._keeps_adapters:
                merge_adapters(model)
            bundles[name] = self._bundle(name, model)
        return bundles

    @property
    def _keeps_adapters(self) -> bool:
        return self.recipe.lora is not None and not self.recipe.lora.merge

    def _bundle(self, name: str, model: Model) -> Bundle:
        """A player's model with the tokenizer, labels and preprocessing of the data and of its checkpoint."""
        setup = self.setup.players[name]
        reads_text = model.reads in ("tokens", "pairs", "captions")
        special, chat = setup.special or self.data.special, setup.chat or self.data.chat
        return Bundle(
            model,
            self.data.tokens if reads_text else None,
            special=special if reads_text else None,
            chat=chat if reads_text else None,
            labels=self.data.classes if "classify" in model.can else None,
            columns=self.data.columns if reads_text else {},
            preprocessing=self.data.preprocessing
            if model.reads in ("images", "captions")
            else None,
            base=base_folder(pretrained_of(self.recipe, name)[0]) if self._keeps_adapters else None,
        )

    def begin_result(self, folder: Path, best: str | None) -> None:
        """Write what is needed to open the result from a checkpoint, while the training is not finished.

        Args:
            folder: The folder to write.
            best: The measurement whose best checkpoint is the result; None: the last one is.
        """
        name = self.setup.objective_class.result
        lora, starts = self.recipe.lora, pretrained_of(self.recipe, name)
        adapters = None
        if lora is not None:
            adapters = unfinished.Lora(
                rank=lora.rank,
                alpha=lora.alpha,
                maps=lora.maps,
                skip=self.recipe.freeze,
                starts=tuple(replace(start, folder=base_folder(start)) for start in starts),
                base=base_folder(starts[0]) if self._keeps_adapters else None,
            )
        training = unfinished.Training(
            steps=self.recipe.steps,
            player=name,
            best=best,
            lora=adapters,
            average_of=self.setup.objective_class.roles[name].average_of,
        )
        unfinished.begin(self._bundle(name, self.setup.players[name].empty()), folder, training)

    def _export_note(self) -> str:
        """A sentence if a whole checkpoint is fine-tuned and no library of Hugging Face could open the result."""
        name = self.setup.objective_class.result
        if not any(start.is_whole for start in pretrained_of(self.recipe, name)):
            return ""
        bundle = self._bundle(name, self.setup.players[name].empty())
        try:
            check_exportable(bundle)
        except WeightsError as problem:
            return f"`clearhead export` will not be able to write the result for Hugging Face's libraries: {problem}"
        return ""


def seed_of(*numbers: int) -> int:
    """A seed for torch's generators, hashed from several numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

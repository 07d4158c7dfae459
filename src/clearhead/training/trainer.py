"""Trainer: an objective and its players, updated step by step; it reads pretrained weights, and writes its result."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
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
from .moment import Moment
from .objectives import Objective, Update, is_shipped
from .objectives.check import ReturnChecks
from .objectives.objective import compute_dtype
from .optim.schedule import lr_share
from .player import EMAPlayer, Player, TrainedPlayer, all_finite, buffers
from .prefetch import MicroBatch, ResidentTables
from .recipe import Recipe, RunConfig, named_options, player_optim, pretrained_of
from .setup import Setup
from .start.initialisation import initialise
from .start.pretrained import adapt, base_folder

T = TypeVar("T")
DECODED = 1000  # validation rows that are decoded, unless run.decode says otherwise
# seed of random numbers in validation, which are the same whatever the seed of the training
VALIDATION_SEED = -1


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """The losses and the gradient norm of one update, still on the device."""

    update: Update
    losses: dict[str, Tensor]  # by name; the first is the total
    norm: Tensor  # gradient norm before clipping
    lr: float  # learning rate of this step


class PlayerLosses(nn.Module):
    """An objective's losses as a module that has the parameters of the updated player, and no others.

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
        self.notes: list[str] = []  # about the pretrained weights, and what they will become
        self._number_classes()
        self.players = self._build_players(fresh)
        self.objective = self._build_objective()
        self.trained = {n: p for n, p in self.players.items() if isinstance(p, TrainedPlayer)}
        # DDP and torch.compile wrap the losses of a player, which need the objective
        for player in self.trained.values():
            player.wrap(PlayerLosses(self.objective, player.model), compiled=recipe.compile)
        # The shipped objectives have tests; what the methods of others return is checked in every step.
        self.checks = None if is_shipped(setup.objective) else ReturnChecks(self.objective)
        self.resident = ResidentTables(self.datasets, world.device)
        named = [named_options(table, "augment") for table in recipe.augment]
        self.augmentations = make_augmentations(named)
        self._is_probing = False  # whether the next step records activations and gradients
        self._probes: dict[str, dict[str, Any]] = {}  # by player
        if note := self._export_note():
            self.notes.append(note)

    # A step

    def step(
        self, micro_batches: list[MicroBatch], step: int, counted: float
    ) -> tuple[list[UpdateReport], dict[str, Tensor]]:
        """Perform the updates of a step; returns their reports and the last micro-batch.

        Args:
            micro_batches: Those of this worker; their gradients are added.
            step: The step, from 0.
            counted: The number of rows or tokens of the batch over all workers, which divides the losses.
        """
        objective, seed = self.objective, self.recipe.seed
        objective.train()
        for player in self.players.values():
            player.begin_step()
        self.scheduled = objective.set_scalars(step, self.recipe.steps)
        # DDP and FSDP average gradients over workers: the factor makes the average a sum.
        loss_scale = self.world.size / max(counted, 1.0)
        # Several updates share the prepared micro-batches; a single one prepares each when it needs it.
        ready: list[tuple[dict[str, Tensor], Moment]] = []
        if len(objective.updates) > 1:
            ready = [self._prepared(micro_batch, step) for micro_batch in micro_batches]

        reports, batch, moment = [], dict[str, Tensor](), None
        due = [update for update in objective.updates if (step + 1) % update.every == 0]
        for number, update in enumerate(due):
            player = self._trained_player(update.player)
            # the other networks, such as a discriminator, take part in the loss without gradients
            self._require_grad_only(player)
            sums: dict[str, Tensor] = {}  # losses by name, the total first
            for i, micro_batch in enumerate(micro_batches):
                is_last = i == len(micro_batches) - 1
                batch, moment = ready[i] if ready else self._prepared(micro_batch, step)
                # Dropout of the first update depends on (seed, step, micro-batch) only, as if there were no other.
                key = (seed, step, micro_batch.number, *([number] if number else []))
                torch.manual_seed(seed_of(*key))
                # forward and backward pass; workers exchange gradients in the last micro-batch, with bfloat16 masters
                # in every one
                with player.accumulating(is_last):
                    losses = self._named_losses(update, player.forward(update.loss, batch))
                    losses = {name: x * loss_scale for name, x in losses.items()}
                    # the total alone: its terms are only logged
                    losses[update.loss].backward()
                if not is_last:
                    player.optimiser.gather()  # bfloat16 gradients are added in float32
                for name, x in losses.items():
                    # stays on the device, without waiting for it
                    sums[name] = sums.get(name, 0.0) + x.detach()
            assert moment is not None
            # while the gradients are there, and the weights are those that gave them
            if self._is_probing:
                self._probes[update.player] = self._probe(player, batch)
            # clip the gradients, update the weights, and then their EMA
            lr_scale = lr_share(player.schedule, step, self.recipe.steps)
            norm = objective.step(update, player.optimiser, moment, lr_scale)
            player.update_ema(step, self.recipe.steps)
            self._reshard()
            lr = player.optimiser.config.lr * lr_scale
            reports.append(UpdateReport(update, sums, norm, lr))

        self._require_grad_only(None)
        if moment is None:  # no player has an update in this step
            batch, moment = ready[-1] if ready else self._prepared(micro_batches[-1], step)
        with torch.no_grad():
            objective.after_step(moment)
        self._reshard()
        return reports, batch

    def _named_losses(self, update: Update, returned: Any) -> dict[str, Tensor]:
        """The losses by their names in the logs, the total first, given what a loss method returned."""
        if self.checks is not None:
            self.checks.losses(update, returned)
        if isinstance(returned, Tensor):
            return {update.loss: returned}
        total = torch.stack(list(returned.values())).sum()
        return {update.loss: total, **returned}

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
        self, micro_batch: MicroBatch, step: int, *, training: bool = True
    ) -> tuple[dict[str, Tensor], Moment]:
        """A micro-batch on the device, with images augmented and normalised, as the objective prepares it."""
        batch, rows = micro_batch.to(self.world.device)
        batch = self.resident.looked_up(batch)
        seed = self.recipe.seed if training else VALIDATION_SEED
        moment = Moment(seed=seed, step=step, steps=self.recipe.steps, rows=rows[""])
        for name, x in batch.items():
            # "" for the main dataset
            feed = name.rpartition(".")[0]
            preprocessing = self.datasets[feed].preprocessing
            is_image = x.dtype == torch.uint8 and x.ndim == 4
            if preprocessing is None or not is_image:
                continue
            if training and self.augmentations:
                # each dataset has its own rows and random streams
                number = list(self.datasets).index(feed)
                own = replace(moment, rows=rows[feed])
                x = augment(x, self.augmentations, own, number, compiled=self.recipe.compile)
            if self.objective.takes_pixels:
                batch[name] = x
            else:
                batch[name] = normalise(x, preprocessing, compute_dtype(self.model))
        if type(self.objective).prepare is not Objective.prepare:
            # -1: another stream than dropout's; for objectives that draw from torch's generator
            torch.manual_seed(seed_of(seed, step, micro_batch.number, -1))
            batch = self.objective.prepare(batch, moment)
        return batch, moment

    # Probes and measurements

    def probe_next(self) -> None:
        """Record activations and gradients of every player in the next step, between backward pass and update."""
        self._is_probing, self._probes = True, {}

    def probed(self) -> dict[str, Any]:
        """The records of the last step; by the names of the players if there are several."""
        self._is_probing = False
        if list(self._probes) == ["model"]:
            return self._probes["model"]
        return self._probes

    def _probe(self, player: TrainedPlayer, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        gradients = probes.gradients(player.model, player.optimiser.gradients())
        return {"gradient": gradients} | probes.activations(self.objective, player.model, batch)

    @torch.no_grad()
    def measure(self, micro_batches: Iterable[MicroBatch]) -> dict[str, float]:
        """The objective's measurements on validation data, with averaged weights if the recipe has an EMA."""
        sums: dict[str, list[Tensor]] = {}
        counted = 0
        self.objective.eval()
        with ExitStack() as stack:
            for player in self.players.values():
                stack.enter_context(player.with_ema())
            for i, micro_batch in enumerate(micro_batches):
                # i in place of the step: random numbers that are the same in every validation
                batch, _ = self._prepared(micro_batch, i, training=False)
                measured = self.objective.measure(batch)
                if self.checks is not None:
                    self.checks.sums(measured)
                for name, x in measured.items():
                    # on the device; all are read at once below
                    sums.setdefault(name, []).append(x)
                counted += micro_batch.counted
            self._reshard()
        # fsum rounds once, so that the order of the batches does not matter
        totals = [math.fsum(torch.stack(x).tolist()) for x in sums.values()]
        *whole, n = self.world.sum(*totals, counted)
        means = {name: total / n for name, total in zip(sums, whole, strict=True)}
        reported = self.objective.summarise(means)
        if self.checks is not None:
            self.checks.reported(reported)
        return {f"valid_{name}": x for name, x in (reported | self._text_scores()).items()}

    def _text_scores(self) -> dict[str, float]:
        """The measurements of text that a copy of the model decodes; each worker decodes a share of the rows."""
        rows = self.objective.decoded
        if not rows:
            return {}
        # a copy of the network, so that decoding changes neither its mode nor its weights
        bundle = next(iter(self.export().values()))
        bundle.model.to(self.world.device)
        mine = rows[self.world.rank :: self.world.size]
        decoded = self.objective.decode(bundle, mine) if mine else []
        scores = self.objective.score(self.world.gather(decoded))
        if self.checks is not None:
            self.checks.reported(scores, text=True)
        return scores

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint: each player's, and the objective's own buffers."""
        tensors = {}
        for name, player in self.players.items():
            for key, x in player.tensors().items():
                tensors[f"{name}/{key}"] = x
        for name, x in buffers(self.objective).items():
            if not name.startswith("players."):  # these have been saved with their players
                tensors[f"objective/buffer/{name}"] = x
        return tensors

    @torch.no_grad()
    def load(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint into the players and the objective."""
        # every tensor of either side is named before the first is filled
        tensors, saved = self.tensors(), set(checkpoint.names)
        differences = {
            "missing": sorted(tensors.keys() - saved),
            "unexpected": sorted(saved - tensors.keys()),
        }
        problems = []
        for what, names in differences.items():
            if names:
                more = " ..." if len(names) > 3 else ""
                problems.append(f"{what} {', '.join(names[:3])}{more}")
        if problems:
            raise CheckpointError(
                f"{checkpoint.path} does not match the recipe's models and optimisers: {'; '.join(problems)}"
            )
        # in place: the optimiser and DDP hold references to these tensors
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
                # the optimiser's state has no meaning after the last step
                if key.startswith(("weight/", "buffer/", "average/")):
                    mean.fill(f"{name}/{key}", tensor.detach())
        for player in self.players.values():
            player.restore()

    def finite(self) -> bool:
        """True if all weights, of all workers, are finite: an update can fail although its loss was finite."""
        mine = [x for player in self.players.values() for x in player.local_weights()]
        return not self.world.sum(float(not all_finite(mine)))[0]

    # Results

    @property
    def model(self) -> nn.Module:
        """The network that is the result of the training."""
        return self.players[self._result].model

    @property
    def _result(self) -> str:
        return self.setup.objective_class.result

    def export(self, best: Checkpoint | None = None) -> dict[str, Bundle]:
        """Every player as a Bundle, the result first; with the weights of the checkpoint `best`, if given."""
        bundles = {}
        others = [name for name in self.players if name != self._result]
        for name in [self._result, *others]:
            model: Any = self.players[name].export(best)
            # with LoRA: W + alpha / r B A in place of W
            if not self._keeps_adapters:
                merge_adapters(model)
            bundles[name] = self._bundle(name, model)
        return bundles

    @property
    def _keeps_adapters(self) -> bool:
        return self.recipe.lora is not None and not self.recipe.lora.merge

    def _bundle(self, name: str, model: Model) -> Bundle:
        """A player's model with the tokenizer, labels and preprocessing of the data and of its checkpoint."""
        setup, data = self.setup.players[name], self.data
        reads_text = model.reads in ("tokens", "pairs", "captions")
        tokens = data.tokens if reads_text else None
        about: dict[str, Any] = {}
        if reads_text:
            # the checkpoint's special tokens, where its tokenizer has others than the data
            about["special"] = setup.special or data.special
            about["chat"] = setup.chat or data.chat
            about["columns"] = data.columns
        if model.reads in ("images", "captions"):
            about["preprocessing"] = data.preprocessing
        if "classify" in model.can:
            about["labels"] = data.classes
        if self._keeps_adapters:
            about["base"] = base_folder(pretrained_of(self.recipe, name)[0])
        return Bundle(model, tokens, **about)

    def begin_result(self, folder: Path, best: str | None) -> None:
        """Write what is needed to open the result from a checkpoint, while the training is not finished.

        Args:
            folder: The folder to write.
            best: The measurement whose best checkpoint is the result; None: the last one is.
        """
        name, lora = self._result, self.recipe.lora
        starts = pretrained_of(self.recipe, name)
        adapters = None
        if lora is not None:
            # checkpoints hold only what is trained: this says how to rebuild the rest
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
        # on the meta device: the options and the tokenizer, without weights
        bundle = self._bundle(name, self.setup.players[name].empty())
        unfinished.begin(bundle, folder, training)

    def _export_note(self) -> str:
        """A sentence if no library of Hugging Face could open what is made of one's own data or of a checkpoint."""
        is_tuned = any(start.is_whole for start in pretrained_of(self.recipe, self._result))
        # the data sets that ship are for learning and comparing: nobody is going to export a sorter
        if not (is_tuned or self.data.files):
            return ""
        bundle = self._bundle(self._result, self.setup.players[self._result].empty())
        try:
            check_exportable(bundle)
        except WeightsError as problem:
            return f"`clearhead export` will not be able to write the result for Hugging Face's libraries: {problem}"
        return ""

    # The steps of the constructor

    def _number_classes(self) -> None:
        """Number the classes of the data as the pretrained head does, if a player keeps that head."""
        for player in self.setup.players.values():
            if player.labels:
                if player.labels != self.data.classes:
                    self.data.number_classes(player.labels)
                return

    def _build_players(self, fresh: bool) -> dict[str, Player]:
        """The trained players, then those that are moving averages of them."""
        roles = self.setup.objective_class.roles
        players: dict[str, Player] = {}
        for index, (name, role) in enumerate(roles.items()):
            if role.average_of is None:
                # numbered by its role, which keys its initial weights
                players[name] = self._build_trained(name, index, fresh)
        for name, role in roles.items():
            if role.average_of is not None:
                # built in the loop before, whatever the order of the roles
                source = players[role.average_of]
                assert isinstance(source, TrainedPlayer)
                players[name] = EMAPlayer(name, source, self.recipe, self.world)
        return players

    def _build_trained(self, name: str, index: int, fresh: bool) -> TrainedPlayer:
        """A player with its model, the weights that are frozen, and its optimiser."""
        recipe, setup = self.recipe, self.setup.players[name]
        # Checkpoints of a training with LoRA do not hold the pretrained weights.
        reads_pretrained = fresh or recipe.lora is not None
        model, left_out = self._build_model(name, index, pretrained=reads_pretrained)
        self.left_out += left_out
        if recipe.learn == "head":
            for weight_name, weight in model.named_parameters():
                # everything but the head is frozen; `freeze` below may add more
                weight.requires_grad_(in_head(model, weight_name))
            # a tied output layer is the embedding, which is no head
            if not any(p.requires_grad for p in model.parameters()):
                raise InputError(
                    f"learn='head': a {setup.model} whose output layer has the weights of its embedding has no head of "
                    "its own to train: expected learn='all', or lora"
                )
        for part in recipe.freeze:
            submodule(model, part, "freeze", "this model").requires_grad_(False)
        rebuild = None
        if recipe.lora is not None:
            # the same seed and the same checkpoints give the same weights again
            rebuild = partial(self._pretrained_model, name, index)
        optim, schedule = player_optim(recipe, name)
        return TrainedPlayer(
            name, setup, model, recipe, self.world, optim=optim, schedule=schedule, rebuild=rebuild
        )

    def _pretrained_model(self, name: str, index: int) -> nn.Module:
        return self._build_model(name, index, pretrained=True)[0]

    def _build_model(
        self, name: str, index: int, *, pretrained: bool
    ) -> tuple[nn.Module, list[str]]:
        """A player's model before the first step, and the pretrained weights that it does not use."""
        recipe = self.recipe
        filled, left_out = frozenset[str](), list[str]()
        # A seed per player: one more player does not change the weights of the others.
        seed = seed_of(recipe.seed, -1, index)
        torch.manual_seed(seed)
        model = self.setup.players[name].build()
        prefix = "" if name == "model" else f"{name}."
        initialise(model, recipe.initial, recipe.seed, prefix=prefix)
        for start in pretrained_of(recipe, name) if pretrained else ():
            done = fill_pretrained(model, start, self.data.tokens, self.data.classes)
            filled, left_out = filled | done.names, left_out + done.left_out
            if done.note and done.note not in self.notes:
                self.notes.append(done.note)
        if recipe.lora is not None:
            # after loading: what the pretrained weights did not fill, a new head, is trained in full
            adapt(model, recipe.lora, filled, seed=seed, freeze=recipe.freeze)
        return model, left_out

    def _build_objective(self) -> Objective:
        """The objective, on the device, with the averages and the validation texts that it may use."""
        kind, data = self.setup.objective_class, self.data
        if data.valid_batches and kind.measure is Objective.measure:
            raise InputError(
                f"{kind.__name__} has no method measure, and the data has validation rows: expected measure(batch) and "
                "the measurements that it returns, or data without validation rows"
            )
        options = config.read(kind.Config, self.setup.options)
        models = {name: self.players[name].model for name in kind.roles}
        objective = kind(options, models, data)
        objective.to(self.world.device)
        texts = data.valid_texts
        rows = decoded_rows(self.recipe.run, kind.text_measurements, len(texts))
        objective.decoded = evenly(texts, rows)
        for name, player in self.players.items():
            if isinstance(player, EMAPlayer):
                # such as a teacher, which the objective updates itself in after_step
                objective.averages[name] = player.ema
        return objective

    def _trained_player(self, name: str) -> TrainedPlayer:
        player = self.players[name]
        assert isinstance(player, TrainedPlayer)
        return player

    @property
    def late_warmups(self) -> list[int]:
        """The warm-ups of players that are longer than the whole training, in steps."""
        warmups = {player.schedule.warmup for player in self.trained.values()}
        return sorted(warmup for warmup in warmups if warmup > self.recipe.steps)


def decoded_rows(run: RunConfig, measurements: Mapping[str, Any], texts: int) -> int:
    """The number of validation rows to decode: run.decode, or DECODED if run.best is a measurement of decoded text.

    Args:
        run: The options of the run.
        measurements: The objective's measurements of decoded text, by name.
        texts: The number of validation rows whose text is known.
    """
    best_is_decoded = bool(run.best) and str(run.best).removeprefix("valid_") in measurements
    # a contradiction: 0 rows have no score to choose by
    if run.decode == 0 and best_is_decoded:
        raise InputError(
            f"run.best = {run.best!r} is measured on decoded rows: expected run.decode of 1 or more"
        )
    rows = DECODED if best_is_decoded else 0
    if run.decode is not None:
        rows = run.decode
    if rows and not measurements:
        raise InputError(
            f"run.decode = {rows}: this objective has no measurements of decoded text: leave it out"
        )
    # images or ids without their text
    if rows and not texts:
        word = f"best = {run.best!r}" if best_is_decoded else f"decode = {rows}"
        raise InputError(
            f"run.{word} needs the text of validation rows, and this dataset has none: leave it out"
        )
    return min(rows, texts)


def evenly(rows: Sequence[T], most: int) -> list[T]:
    """At most so many rows, at equal distances: files are often sorted by length."""
    return [rows[i * len(rows) // most] for i in range(most)]


def seed_of(*numbers: int) -> int:
    """A seed for torch's generators, hashed from several numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

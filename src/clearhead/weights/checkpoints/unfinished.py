"""The model of a training that has not ended: that of its best checkpoint, if a best one is kept, or of its last one.

    unfinished/config.json ...   the model's folder without its weights, written when the training begins
    unfinished/training.json     which tensors of a checkpoint are its weights
    checkpoints/                 see checkpoint.py

Another process may be training, so that checkpoints come and go while they are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from ... import config
from ... import tokens as text
from ...errors import Notice
from ...layers.lora import add_adapters, merge_adapters
from ...models import Model, family
from ...tokens import Pair, Tokenizer
from .. import native
from ..bundle import Bundle
from ..fill import WeightsError, build_empty, check_shapes, set_tensor, slots, state
from ..table import UsedTensors, dtype_name
from .checkpoint import Checkpoint, CheckpointError, DamagedError, latest, step_name
from .pretrained import Pretrained, fill_pretrained

FILE = "training.json"
TRIES = 5  # times that a checkpoint may disappear while it is read


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """The settings of a training with adapters, whose checkpoints hold only the trained weights."""

    rank: int
    alpha: float | None = None
    maps: str | tuple[str, ...]
    skip: tuple[str, ...]  # submodules without adapters
    starts: tuple[Pretrained, ...]  # the pretrained weights
    # the model that the adapters belong to if they are kept apart; None: they are added to the weights
    base: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """The contents of training.json."""

    steps: int
    player: str  # the network that is the result
    average_of: str | None = None  # the network whose average it is
    best: str | None = None  # the measurement whose best checkpoint is the result
    lora: Lora | None = None


class Fingerprint:
    """Sums over the bits of the frozen weights, which tell whether the pretrained files have changed."""

    @torch.no_grad()
    def __init__(self, weights: Iterable[Tensor]) -> None:
        # the bits of float32 as integers, whose sum is exact on every device
        sums = [p.detach().reshape(-1).view(torch.int32).sum(dtype=torch.int64) for p in weights]
        self.own = torch.stack(sums).cpu()
        self.saved = self.own.clone()  # which a checkpoint fills

    def check(self, player: str) -> None:
        """Raise if the weights differ from those that a checkpoint was made with."""
        if not torch.equal(self.saved, self.own):
            raise CheckpointError(
                f"the pretrained weights of the {player} have changed since this run began, and its checkpoints hold "
                "only what is trained: expected the same pretrained folder"
            )


def begin(bundle: Bundle, folder: Path, training: Training) -> None:
    """Write what is known of the model before its training; the weights of the bundle are not written."""
    native.write_without_weights(bundle, folder)
    config.write(config.dump(training), folder / FILE)


def load(
    folder: Path, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
    """Load the model of an unfinished training; returns also which tensors it was loaded from."""
    training = config.read(Training, config.load(folder / FILE))
    checkpoint, tensors = _read(folder.parent, training)
    saved = native.read_settings(folder)
    tokens = None if text.saved(folder) is None else text.load(folder)
    family_class, options_class = family(saved.model)
    options = config.read(options_class, config.Table(saved.options))
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if training.lora is None:
        # every weight is in the checkpoint: the model is built without weights of its own
        base, where = None, folder / "config.json"
        model: Model = build_empty(family_class, options, shapes, where, checkpoint.path)
        _fill(model, tensors, checkpoint.path, device, dtype)
    else:
        # only what is trained is in the checkpoint: the rest comes from the pretrained folders
        base, labels = training.lora.base, saved.labels
        model = family_class(options)
        _adapt(model, training, training.lora, tokens, labels, checkpoint, tensors)
        model.to(device, dtype)
    model.note = f"step {checkpoint.step} of {training.steps} of a training that is not finished"
    best = training.best if _is_best(checkpoint, training) else None
    _tell(folder.parent, checkpoint.step, training.steps, best)
    types = {dtype_name(x): x.numel() for x in tensors.values()}
    used = UsedTensors(shapes, {}, types, (str(checkpoint.path),))
    return native.make_bundle(folder, saved, model, tokens, base=base), used


def _read(run: Path, training: Training) -> tuple[Checkpoint, dict[str, Tensor]]:
    """The checkpoint whose weights are the result so far, and these weights."""
    for _ in range(TRIES):
        checkpoint = _choose(run / "checkpoints", training)
        try:
            return checkpoint, _weights(checkpoint, training)
        except (DamagedError, FileNotFoundError):
            continue  # the training has removed it, and has a newer one
    raise WeightsError(f"{run}: its checkpoints disappear before they can be read")


def _choose(folder: Path, training: Training) -> Checkpoint:
    """The best checkpoint, if the training keeps it, or the last one that is intact."""
    # checksums are verified here, as the training may have been killed while it wrote
    newest = latest(folder, say=lambda problem: warnings.warn(problem, Notice, stacklevel=2))
    if newest is None:
        raise WeightsError(f"{folder}: no checkpoint is intact")
    # every checkpoint knows which validation was the best so far
    best = newest.facts["best"]
    # a training that keeps no best one, or has not validated yet
    if training.best != best["name"] or best["step"] == 0 or _is_best(newest, training):
        return newest
    try:
        checkpoint = Checkpoint(folder / step_name(best["step"]))
        checkpoint.check()
        return checkpoint
    except DamagedError:
        # removed meanwhile: if the training has gone further, choose again
        again = latest(folder, say=lambda _: None, verify=False)
        if again is not None and again.step != newest.step:  # which may be a better one
            return _choose(folder, training)
        warnings.warn(
            f"the checkpoint of the best validation, step {best['step']}, is lost",
            Notice,
            stacklevel=2,
        )
        return newest


def _is_best(checkpoint: Checkpoint, training: Training) -> bool:
    """Whether no validation up to this checkpoint was better than that of its own step."""
    best = checkpoint.facts["best"]
    return bool(training.best == best["name"] and best["step"] == checkpoint.step)


def _weights(checkpoint: Checkpoint, training: Training) -> dict[str, Tensor]:
    """The weights and buffers of the result by their names in the model: averages, where there are any."""
    # tensors of a checkpoint are named NETWORK/KIND/NAME
    places = [f"{training.player}/{kind}/" for kind in ("weight", "buffer", "average")]
    if training.average_of is not None:
        places.insert(0, f"{training.average_of}/weight/")
    names = {}
    for place in places:  # of several with one name the last counts
        for name in checkpoint.names:
            if name.startswith(place):
                names[name.removeprefix(place)] = name
    tensors = {ours: checkpoint.read(name) for ours, name in names.items()}
    checkpoint.close()
    return tensors


@torch.no_grad()
def _fill(
    model: nn.Module,
    tensors: dict[str, Tensor],
    path: Path,
    device: torch.device,
    dtype: torch.dtype | None,
) -> None:
    """Give a model from `build_empty` its tensors."""
    expected = {name: tuple(x.shape) for name, x in state(model).items()}
    check_shapes({name: tuple(x.shape) for name, x in tensors.items()}, expected, path)
    for name, slot in slots(model).items():
        # In bfloat16 trainings buffers are stored in fewer bits than the model has.
        set_tensor(slot, tensors[name].to(slot[0].dtype), device, dtype)
    model.to(device)  # constants, which are not in the state


@torch.no_grad()
def _adapt(
    model: Model,
    training: Training,
    lora: Lora,
    tokens: Tokenizer | Pair | None,
    labels: tuple[str, ...] | None,
    checkpoint: Checkpoint,
    tensors: dict[str, Tensor],
) -> None:
    """Give a model its pretrained weights, its adapters and its new head, in place."""
    # in the order of the training: pretrained weights, adapters, then what was trained
    for start in lora.starts:
        fill_pretrained(model, start, tokens, labels)
    add_adapters(model, lora.maps, rank=lora.rank, alpha=lora.alpha, skip=lora.skip)
    expected = state(model)
    for name, x in tensors.items():
        # a checkpoint of another recipe
        if name not in expected:
            raise WeightsError(f"{checkpoint.path}: the tensor {name} has no place in this model")
        expected[name].copy_(x)
    # what the checkpoint lacks came from the pretrained folders, and must not have changed since
    fingerprint = Fingerprint(x for name, x in model.named_parameters() if name not in tensors)
    checkpoint.fill(f"{training.player}/fingerprint", fingerprint.saved)
    checkpoint.close()
    fingerprint.check(training.player)
    if lora.base is None:
        merge_adapters(model)


@cache  # said once, however often the model is loaded
def _tell(run: Path, step: int, steps: int, best: str | None) -> None:
    which = "its last checkpoint" if best is None else f"the best checkpoint by {best}"
    warnings.warn(
        f"{run}: this training is not finished; the model is {which}, that of step {step} of {steps}",
        Notice,
        stacklevel=2,
    )

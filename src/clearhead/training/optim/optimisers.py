"""The optimiser of a player: parameter groups, weight decay, gradient clipping, and float32 master weights."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...checks import one_of
from ...errors import InputError, nearest
from ..distributed import copy_all, local, whole, wide
from .lamb import Lamb, fresh_state
from .muon import Muon
from .schedule import Scalar, Scheduled, first_and_last

NAMES = ("adamw", "sgd", "muon", "lamb")
# Muon is for matrices between hidden states. Parameters with one of these names are embeddings, output layers or
# score vectors, which Jordan et al. 2024 leave to AdamW.
EDGES = frozenset({"table", "places", "cls_place", "embed", "head", "readout", "score"})


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """The optimiser of one player."""

    # adamw, sgd, lamb (for large batches), or muon (for hidden matrices, with adamw for the rest)
    name: str = "adamw"
    lr: float = 1e-3  # peak learning rate, which the schedule scales
    # adamw, lamb: decay rates of the first and second moments
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.9  # sgd, muon: decay rate of the momentum
    # weight decay of matrices; decoupled, except for sgd, which adds it to the gradient
    decay: Scalar = 0.1
    # factors of the learning rate of submodules: {encoder = 0.1}
    rates: dict[str, float] = field(default_factory=dict)
    # factor of the learning rate from a layer to the next lower one, for fine-tuning
    layer_decay: float = 1.0
    eps: float = 1e-8  # adamw, lamb: added to the root of the second moment
    clip: float | None = 1.0  # largest norm of all gradients together; 0: no clipping
    # decay rate of an exponential moving average of the weights, at most (1 + step) / (10 + step);
    # 0: no average
    ema: Scalar = 0.0

    def __post_init__(self) -> None:
        one_of("name", self.name, NAMES)
        if self.clip is None:
            # TOML cannot express None, and a written recipe must be read back the same
            object.__setattr__(self, "clip", 0.0)
        for option in ("lr", "eps"):
            if not 0.0 < getattr(self, option) < float("inf"):
                raise InputError(f"{option}={getattr(self, option)}: expected a number above 0")
        for option in ("decay", "clip"):
            if not all(0.0 <= end < float("inf") for end in first_and_last(getattr(self, option))):
                raise InputError(f"{option}={getattr(self, option)}: expected 0 or more")
        if not 0.0 < self.layer_decay <= 1.0:
            raise InputError(
                f"layer_decay={self.layer_decay}: expected a number above 0, at most 1"
            )
        for part, rate in self.rates.items():
            if not 0.0 < rate < float("inf"):
                raise InputError(
                    f'rates.{part}={rate}: expected a number above 0; freeze = ["{part}"] trains none of it'
                )
        if not 0.0 <= self.momentum < 1.0:
            raise InputError(f"momentum={self.momentum}: expected a share, at least 0 and below 1")
        start, final = first_and_last(self.ema)
        scheduled = isinstance(self.ema, Scheduled)
        # a constant 1 would never move the average; a schedule may end there, as DINO's does
        final_fits = 0.0 <= final < 1.0 or (scheduled and final == 1.0)
        if not 0.0 <= start < 1.0 or not final_fits:
            most = ", or 1 as the end of a schedule" if scheduled else ""
            raise InputError(f"ema={self.ema}: expected a share, at least 0 and below 1{most}")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise InputError(f"betas={self.betas}: expected two shares, at least 0 and below 1")


class Optimiser:
    """The optimiser of one player: updates its parameters with their gradients.

    With `masters` the model computes with its bfloat16 parameters, and float32 master copies of them are updated, so
    that small updates are not lost to rounding (Micikevicius et al. 2018, 3.1). `step` and `gather` do not synchronise
    with the device. Sharded parameters (FSDP2) are updated shard by shard. `tensors` is the complete state, for
    checkpoints.

    Args:
        named: A model, or its parameters by name.
        config: The options of the recipe's [optim] section.
        masters: Whether to keep float32 master copies of the parameters.

    Examples:
        >>> model = torch.nn.Linear(3, 2)
        >>> optimiser = Optimiser(model, OptimConfig(name="sgd", lr=0.1), masters=False)
        >>> model(torch.ones(1, 3)).sum().backward()
        >>> sorted(optimiser.gradients()), sorted(optimiser.weights())
        (['bias', 'weight'], ['bias', 'weight'])
        >>> optimiser.step()  # the norm of the gradients: of 6 + 2 ones
        tensor(2.8284)
        >>> optimiser.gradients()
        {}
    """

    def __init__(
        self, named: Mapping[str, nn.Parameter] | nn.Module, config: OptimConfig, *, masters: bool
    ) -> None:
        # what follows the last layer, for layer decay
        head: tuple[str, ...] = getattr(named, "head_parts", ("head",))
        if isinstance(named, nn.Module):
            named = dict(named.named_parameters())
        self.config = config
        self.parameters: dict[str, Tensor] = {
            name: p for name, p in named.items() if p.requires_grad
        }
        if not self.parameters:
            raise InputError("no parameter requires a gradient: there is nothing to train")
        # tied weights appear once in named_parameters
        if len({id(p) for p in self.parameters.values()}) < len(self.parameters):
            raise InputError(
                "one parameter has two names, and would be updated twice: expected each parameter once"
            )
        self.masters: dict[str, Tensor] = {}
        if masters:
            self.masters = {n: wide(p.detach()).clone() for n, p in self.parameters.items()}
        self._optimisers = _make_optimisers(self.weights(), config, head)
        # AdamW with master weights on a GPU has its own kernel.
        self._fused = config.name == "adamw" and bool(self.masters)
        for master in self.masters.values():
            is_sharded = hasattr(master, "device_mesh")
            self._fused &= master.is_cuda and master.is_contiguous() and not is_sharded
        self._allocate()

    def weights(self) -> dict[str, Tensor]:
        """The tensors that are updated, and saved as the model's weights: the masters, or the parameters themselves."""
        return dict(self.masters or self.parameters)

    @torch.no_grad()
    def gather(self) -> None:
        """Add the gradients of a micro-batch to float32 sums, and clear them.

        Without masters there is nothing to do, because autograd accumulates gradients in the parameters' own dtype.
        """
        if not self.masters:
            return
        # All gradients are widened by one kernel, and added by another.
        widened, sums, added = [], [], []
        for name, master in self.masters.items():
            p = self.parameters[name]
            if p.grad is None:
                continue
            grad = torch.empty_like(master)
            widened.append((grad, p.grad))
            # freed at once: the next backward pass writes a new one
            p.grad = None
            if master.grad is None:
                # the first micro-batch starts the sum
                master.grad = grad
            else:
                sums.append(local(master.grad))
                added.append(local(grad))
        copy_all(widened)
        if sums:  # of equal dtypes: with mixed ones this would be one kernel per tensor
            torch._foreach_add_(sums, added)

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the next step by name, before clipping."""
        if not self.masters:
            return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        # the micro-batches before the last, and the last one's in the model's dtype
        sums = {n: _sum(master.grad, self.parameters[n].grad) for n, master in self.masters.items()}
        return {name: grad for name, grad in sums.items() if grad is not None}

    @torch.no_grad()
    def step(self, lr_scale: float = 1.0, decay: float | None = None) -> Float[Tensor, ""]:
        """Clip the gradients, update the weights, and clear the gradients; returns their norm before clipping.

        Args:
            lr_scale: The learning rate of this step as a share of the peak, config.lr.
            decay: The weight decay of this step; by default the config's.
        """
        lr = self.config.lr * lr_scale
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                # the scale of layer decay and of `rates`
                group["lr"] = lr * group["scale"]
                if decay is not None and group["decays"]:
                    # groups of vectors keep their 0
                    group["weight_decay"] = decay
        norm = self._step_fused() if self._fused else self._step_plain()
        self.clear()
        return norm

    def _step_plain(self) -> Tensor:
        """Clip the gradients, let torch's or our optimisers update the weights, and round these for the model."""
        self.gather()
        grads = [w.grad for w in self.weights().values() if w.grad is not None]
        if not grads:
            raise RuntimeError("no parameter has a gradient: call backward() before step()")
        norm = _norm(grads)
        if self.config.clip:
            # a factor on the device, so that the host does not wait for the norm
            factor = (self.config.clip / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_([local(g) for g in grads], factor)
        for optimiser in self._optimisers:
            optimiser.step()
        self.restore()
        return norm

    def clear(self) -> None:
        """Clear all gradients, including the float32 sums of micro-batches."""
        for w in (*self.weights().values(), *self.parameters.values()):
            w.grad = None

    def _step_fused(self) -> Tensor:
        """Clip and update with one kernel per tensor."""
        from .adamw_kernel import adamw_step

        (optimiser,), name_of = self._optimisers, {id(m): n for n, m in self.masters.items()}
        grads = self.gradients()
        if not grads:
            raise RuntimeError("no parameter has a gradient: call backward() before step()")
        # accumulated in float32: squares of bfloat16 gradients would be rounded
        norms = torch._foreach_norm(list(grads.values()), 2, torch.float32)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        for group in optimiser.param_groups:
            rows, steps = [], []
            for master in group["params"]:
                name = name_of[id(master)]
                # a part that the loss did not use in this step
                if name not in grads:
                    continue
                state = optimiser.state[master]
                # the optimiser's own tensors, which checkpoints save and restore
                moments = (state["exp_avg"], state["exp_avg_sq"])
                rows.append((self.parameters[name], grads[name], master, *moments, state["step"]))
                steps.append(state["step"])
            # counted before the update: Adam's bias correction begins at 1
            torch._foreach_add_(steps, 1)
            adamw_step(
                rows,
                norm,
                clip=float(self.config.clip or 0.0),
                lr=group["lr"],
                betas=self.config.betas,
                eps=self.config.eps,
                decay=group["weight_decay"],
            )
        return norm

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the masters into the model's parameters."""
        copy_all([(self.parameters[name], master) for name, master in self.masters.items()])

    def _allocate(self) -> None:
        """Create the optimiser state, as zeros, that torch would create only in the first step.

        A checkpoint is loaded into tensors that exist, and a resumed run must have them before its first step.
        """
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                for p in group["params"]:
                    if not optimiser.state[p]:
                        optimiser.state[p].update(_fresh(optimiser, p, group.get("momentum", 0.0)))

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser state for checkpoints; to resume, fill these tensors in place and call `restore`.

        Names are optim/<name>/<state>, and master/<name> for the master weights, if there are any.
        """
        # torch keys its state by tensor, a checkpoint by name
        names = {id(w): name for name, w in self.weights().items()}
        tensors = {}
        for optimiser in self._optimisers:
            for p, state in optimiser.state.items():
                for key, value in state.items():
                    assert isinstance(value, Tensor), (
                        f"{key} is a {type(value).__name__}, and would not be saved"
                    )
                    tensors[f"optim/{names[id(p)]}/{key}"] = value
        return tensors | {f"master/{name}": master for name, master in self.masters.items()}


def is_matrix(p: Tensor) -> bool:
    """Whether a parameter is a matrix, which is decayed; scales (h, 1, 1) and tokens (1, 1, d) are vectors."""
    return p.ndim == 2 or (p.ndim > 2 and sum(n > 1 for n in p.shape) >= 2)


def is_inside(name: str, p: Tensor) -> bool:
    """Whether a parameter is a matrix between hidden states, which Muon updates."""
    return p.ndim == 2 and EDGES.isdisjoint(name.split("."))


def _make_optimisers(
    weights: Mapping[str, Tensor], config: OptimConfig, head: tuple[str, ...]
) -> list[torch.optim.Optimizer]:
    """The optimisers of all weights: the configured one; with muon, AdamW for what is not a hidden matrix."""
    optimisers: list[torch.optim.Optimizer] = []
    decay = first_and_last(config.decay)[0]
    scales = layer_scales(weights, config.layer_decay, head)
    for name, rate in part_scales(weights, config.rates).items():
        # both factors apply
        scales[name] *= rate
    hidden: dict[str, Tensor] = {}
    if config.name == "muon":
        hidden = {n: w for n, w in weights.items() if is_inside(n, w)}
    if hidden:
        groups = _by_scale(hidden, scales, decays=True)
        optimisers.append(Muon(groups, config.lr, momentum=config.momentum, weight_decay=decay))
    # Matrices decay; biases, scales of norms and the like do not.
    rest = {n: w for n, w in weights.items() if n not in hidden}
    matrices = {n: w for n, w in rest.items() if is_matrix(w)}
    vectors = {n: w for n, w in rest.items() if not is_matrix(w)}
    groups = _by_scale(matrices, scales, weight_decay=decay, decays=True)
    groups += _by_scale(vectors, scales, weight_decay=0.0, decays=False)
    if not groups:
        return optimisers
    kind: Any = functools.partial(torch.optim.AdamW, betas=config.betas, eps=config.eps, fused=True)
    if config.name == "sgd":
        kind = functools.partial(torch.optim.SGD, momentum=config.momentum, foreach=True)
    elif config.name == "lamb":
        kind = functools.partial(Lamb, betas=config.betas, eps=config.eps)
    return [*optimisers, kind(groups, config.lr)]


def _by_scale(
    weights: Mapping[str, Tensor], scales: Mapping[str, float], **options: Any
) -> list[dict[str, Any]]:
    """Parameter groups, one for each factor of the learning rate."""
    # torch has one learning rate per group
    groups: dict[float, list[Tensor]] = {}
    for name, w in weights.items():
        groups.setdefault(scales[name], []).append(w)
    return [{"params": params, "scale": scale, **options} for scale, params in groups.items()]


def _fresh(optimiser: torch.optim.Optimizer, p: Tensor, momentum: float) -> dict[str, Tensor]:
    """The state before the first step; a test compares it with torch's."""
    if isinstance(optimiser, torch.optim.AdamW | Lamb):
        return fresh_state(p)
    if momentum or isinstance(optimiser, Muon):
        return {"momentum_buffer": torch.zeros_like(p)}
    return {}


def _norm(grads: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients together, over all shards."""
    meshes: dict[object, list[Tensor]] = {}  # get_total_norm takes tensors that are sharded alike
    for grad in grads:
        meshes.setdefault(getattr(grad, "device_mesh", None), []).append(grad)
    norms = [whole(torch.nn.utils.get_total_norm(group)) for group in meshes.values()]
    if len(norms) == 1:
        return norms[0]
    return torch.linalg.vector_norm(torch.stack(norms))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two gradients, either of which may be missing."""
    if a is None:
        return b
    if b is None:
        return a
    return a + b


# Factors of the learning rate: of submodules by name, and layer decay, with which lower layers of a pretrained model
# learn more slowly (Clark et al. 2020; Bao et al. 2022).

LAYER = re.compile(r"(?:^|\.)(?:blocks\.(\d+)|stages\.(\d+)\.(\d+))\.")


def layer_scales(
    names: Iterable[str], decay: float, head: Collection[str] = ("head",)
) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter: decay^(number of layers above it).

    Layers are found by the names blocks.N and stages.N.N of the model itself, not of a part such as a stem. What
    comes before the first of them, such as embeddings, is a layer below; what comes after them, and the head, has the
    factor 1.

    Args:
        names: The names of all parameters, from input to output.
        decay: The factor from one layer to the next lower one.
        head: The parts of the model that compute its output, wherever their parameters are listed.

    Examples:
        >>> layer_scales(["embed.table", "blocks.0.norm.bias", "blocks.1.norm.bias", "head.weight"], 0.5)
        {'embed.table': 0.125, 'blocks.0.norm.bias': 0.25, 'blocks.1.norm.bias': 0.5, 'head.weight': 1.0}
    """
    names = list(names)
    matches = {name: LAYER.search(name) for name in names}
    nesting = {name: name[: m.start()].count(".") for name, m in matches.items() if m}
    outermost = min(nesting.values(), default=0)
    # (block, 0) or (stage, block) of each parameter; None outside of all layers
    layers: dict[str, tuple[int, int] | None] = {}
    for name, match in matches.items():
        # blocks inside a part, such as a stem, are nested deeper
        is_own = match is not None and nesting[name] == outermost
        layers[name] = _layer(match) if match is not None and is_own else None
    ordered = sorted({layer for layer in layers.values() if layer is not None})
    depths = {layer: depth for depth, layer in enumerate(ordered, 1)}
    top = len(ordered) + 1
    scales, begun = {}, False
    for name in names:
        layer = layers[name]
        begun = begun or layer is not None
        if layer is not None:
            depth = depths[layer]
        elif begun or not ordered or name.split(".")[0] in head:
            depth = top  # after the layers
        else:
            depth = 0  # before them, such as embeddings
        scales[name] = decay ** (top - depth)
    return scales


def part_scales(names: Iterable[str], rates: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of the learning rate of each parameter: the innermost submodule's that has one, or 1.

    Args:
        names: The names of all parameters.
        rates: Factors by the names of submodules.

    Examples:
        >>> part_scales(["encoder.stem.bias", "head.weight"], {"encoder": 0.1})
        {'encoder.stem.bias': 0.1, 'head.weight': 1.0}
    """
    names = list(names)
    for part in rates:
        if not any(name.startswith(f"{part}.") for name in names):
            known = dict.fromkeys(name.split(".")[0] for name in names)
            raise InputError(
                f"rates.{part}: no trained parameter belongs to it: there are {', '.join(known)}{nearest(part, known)}"
            )
    # the longest name that fits: encoder.stem before encoder
    innermost_first = sorted(rates, key=len, reverse=True)
    scales = {}
    for name in names:
        owners = (part for part in innermost_first if name.startswith(f"{part}."))
        scales[name] = rates.get(next(owners, ""), 1.0)
    return scales


def _layer(match: re.Match[str]) -> tuple[int, int]:
    block, stage, number = match.groups()
    if block is not None:
        return (int(block), 0)
    return (int(stage), int(number))

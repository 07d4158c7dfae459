"""Rollout as a saliency method: the row of the token that the answer is read from, on the image or the text."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError, Notice
from .addresses import Tree, matching
from .attributions import Attribution, Done, enlarged
from .capture import watch
from .layout import Layout, record_layout
from .maps import AttentionMap
from .output_names import Target
from .rollout import Fusion, relevance, rollout, square_maps, weights_of
from .subject import Subject, differentiable
from .tape import Tape

# The tokens that an image classifier of this library answers from, by its option `pool`: given the number of tokens
# and of those before the grid.
READ: dict[str, Callable[[int, int], list[int]]] = {
    "cls": lambda tokens, special: [0],
    "first": lambda tokens, special: [0],
    "distilled": lambda tokens, special: [0, 1],
    "mean": lambda tokens, special: list(range(special, tokens)),
    "both": lambda tokens, special: [0, *range(special, tokens)],
    "attention": lambda tokens, special: list(range(tokens)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutOptions:
    """The options of attention rollout."""

    residual: float = 0.5  # share of the identity, which stands for the residual stream
    fusion: Fusion = "mean"  # how the maps of all heads become one: mean, max or min


@dataclass(frozen=True, kw_only=True, slots=True)
class RelevanceOptions:
    """The gradient-weighted rollout has no options."""


def attention_rollout(subject: Subject, _: Target, options: RolloutOptions, __: Done | None) -> Attribution:
    """The product of the attention maps of all layers (Abnar and Zuidema 2020); it does not depend on the target."""
    with torch.no_grad(), record_layout(subject.model) as layout, _watched(subject, grad=False) as tape:
        subject.logits(subject.x)
    layers = square_maps(_maps(subject, tape))
    return _placed(subject, layout, rollout(layers, residual=options.residual, fusion=options.fusion)[0])


def gradient_weighted_rollout(
    subject: Subject, target: Target, _: RelevanceOptions, __: Done | None
) -> Attribution:  # fmt: skip
    """Attention maps weighted by their gradients, accumulated over the layers (Chefer et al. 2021)."""
    with differentiable(subject.model), record_layout(subject.model) as layout:
        x = subject.x.detach().clone().requires_grad_()
        with _watched(subject, grad=True) as tape:
            score = target.score(subject.logits(x)).sum()
        weights = [weights_of(layer) for layer in square_maps(_maps(subject, tape))]
        slopes = torch.autograd.grad(score, weights, allow_unused=True)
    known = [(w, torch.zeros_like(w) if s is None else s) for w, s in zip(weights, slopes, strict=True)]
    return _placed(subject, layout, relevance(known)[0])


@contextmanager
def _watched(subject: Subject, *, grad: bool) -> Iterator[Tape]:
    """Watch all attention maps of a model; raises if it cannot have any."""
    tree = Tree(subject.model)
    if not matching("**.weights", tree.known | tree.possible):
        raise _unfit(subject)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no attention call", Notice)  # the error that follows says it
        with watch(subject.model, "**.weights", grad=grad) as tape:
            yield tape


def _maps(subject: Subject, tape: Tape) -> list[AttentionMap]:
    """The maps that were recorded; raises if no tokens attend to each other."""
    found = [tape[name] for name in tape]
    if not any(layer.shape[2] == layer.shape[3] for layer in found):
        raise _unfit(subject)
    return found


def _unfit(subject: Subject) -> InputError:
    return InputError(
        f"no self-attention was seen in this {subject.name}: rollout does not fit; gradient, input-gradient, "
        "smoothgrad, integrated, occlusion" + (" and grad-cam do" if subject.kind == "image" else " do")
    )


def _placed(subject: Subject, layout: Layout, matrix: Tensor) -> Attribution:
    """The mean row of the tokens that the answer is read from; of an image, its patches on their grid."""
    tokens, pool = len(matrix), getattr(getattr(subject.model, "config", None), "pool", None)
    if subject.kind == "text":
        rows = [subject.at] if subject.at is not None else READ.get(str(pool), READ["first"])(tokens, 0)
        row = matrix[rows].mean(0)
        if subject.tokens is None or len(subject.tokens) != tokens:
            raise InputError(f"this {subject.name} reads several texts: rollout follows one stack of self-attention")
        return Attribution(values=row, whole=matrix)
    grid = layout.grid
    if grid is None or grid.tokens != tokens:
        raise InputError(
            f"the {tokens} tokens of this {subject.name} are not a grid of patches: rollout does not fit, the gradient "
            "methods and occlusion do"
        )
    default = READ["cls" if grid.special else "mean"]
    row = matrix[READ.get(str(pool), default)(tokens, grid.special)].mean(0)
    cells = row[grid.special :].unflatten(0, grid.size)
    height, width = subject.x.shape[-2:]
    return Attribution(values=enlarged(cells, (height, width)), whole=matrix)

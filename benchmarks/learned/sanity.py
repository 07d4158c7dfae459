"""Sanity checks of saliency: random weights change it, and it finds a patch that was planted."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.look import saliency

from .sources import EXAMPLES, checkpoint

METHODS = {
    "vit-imagenette": (
        "gradient",
        "input-gradient",
        "smoothgrad",
        "integrated",
        "grad-cam",
        "occlusion",
        "rollout",
        "gradient-rollout",
    ),
    "resnet-cifar10": (
        "gradient",
        "input-gradient",
        "smoothgrad",
        "integrated",
        "grad-cam",
        "occlusion",
    ),
}
PICTURES = {
    "vit-imagenette": ("church", "golf-ball", "parachute"),
    "resnet-cifar10": ("airplane", "cat", "ship"),
}
OPTIONS: dict[str, dict[str, Any]] = {"integrated": {"steps": 16}, "smoothgrad": {"samples": 8}}
# the edge of the images, and the rows and columns of the planted patch
SIZE, PATCH = 32, slice(6, 18)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of the absolute values of two maps."""
    ranks = [x.flatten().abs().argsort().argsort().double() for x in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def shuffle(module: nn.Module) -> None:
    """Permute the values of each parameter, so that their distribution stays and what was learned goes."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(
                parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter)
            )


def maps_of(
    bundle: ch.Bundle, name: str, targets: list[int] | None
) -> tuple[dict[str, list[Tensor]], list[int]]:
    """The maps of each method for the pictures of a model, of given classes or of the predicted ones."""
    found: dict[str, list[Tensor]] = {}
    for method in METHODS[name]:
        for i, picture in enumerate(PICTURES[name]):
            target = None if targets is None else targets[i]
            given = bundle.pixels(EXAMPLES / f"{picture}.webp")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ch.look.Notice)  # explicit attention is intended
                result = saliency(
                    bundle.model, given, method=method, target=target, **OPTIONS.get(method, {})
                )
            found.setdefault(method, []).append(result.values)
            if method == METHODS[name][0] and targets is None:
                found.setdefault("", []).append(torch.tensor(result.index))
    return {k: v for k, v in found.items() if k}, [int(x) for x in found.get("", [])]


def randomised() -> dict[str, Any]:
    """Rank correlations of maps with those of a model whose output layer, or all parameters, are shuffled."""
    found = {}
    for name, methods in METHODS.items():
        first, targets = maps_of(checkpoint(name), name, None)
        rows: dict[str, dict[str, float]] = {method: {} for method in methods}
        for what in ("output layer", "all parameters"):
            bundle = checkpoint(name)
            shuffle(bundle.model.head if what == "output layer" else bundle.model)
            second, _ = maps_of(bundle, name, targets)
            for method in methods:
                both = zip(first[method], second[method], strict=True)
                rows[method][what] = sum(rank_correlation(a, b) for a, b in both) / len(targets)
        for method in methods:
            turned = [*first[method][1:], first[method][0]]
            both = zip(first[method], turned, strict=True)
            rows[method]["another picture"] = sum(rank_correlation(a, b) for a, b in both) / len(
                targets
            )
        found[name] = rows
    return {"pictures": {k: list(v) for k, v in PICTURES.items()}, "models": found}


def planted_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images of noise in which only the direction of the stripes inside a patch tells the class."""
    x = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    y = torch.randint(2, (count,), generator=generator)
    side = PATCH.stop - PATCH.start
    stripes = ((torch.arange(side) // 2) % 2 * 2 - 1).float().expand(side, side)
    sign = torch.randint(2, (count, 1, 1), generator=generator) * 2 - 1
    drawn = torch.where(y[:, None, None] == 1, stripes.T, stripes) * sign
    x[:, :, PATCH, PATCH] = 0.5 * x[:, :, PATCH, PATCH] + drawn[:, None]
    return x, y


def planted() -> dict[str, Any]:
    """The share of the top 1 % of pixels inside the patch, for a small CNN trained on it and for one that is not."""
    mask = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    mask[PATCH, PATCH] = True
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    models = [
        nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(12, 16, 3, 2, 1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(16 * 64, 2),
        )
        for _ in range(2)
    ]
    optimiser = torch.optim.AdamW(models[0].parameters(), lr=3e-3, weight_decay=0.3)
    for _ in range(250):
        x, y = planted_images(64, generator)
        optimiser.zero_grad()
        F.cross_entropy(models[0](x), y).backward()
        optimiser.step()
    x, y = planted_images(500, generator)
    accuracy = float((models[0](x).argmax(1) == y).float().mean())
    shares: dict[str, dict[str, float]] = {}
    for method in METHODS["resnet-cifar10"]:
        for title, model in zip(("trained", "untrained"), models, strict=True):
            tops = [_top(saliency(model.eval(), one, method=method).values) for one in x[:20]]
            inside = torch.stack([mask.flatten()[top].float().mean() for top in tops])
            shares.setdefault(method, {})[title] = float(inside.mean())
    return {
        "accuracy": accuracy,
        "area": float(mask.float().mean()),
        "images": 20,
        "methods": shares,
    }


def _top(values: Tensor) -> Tensor:
    """The pixels with the largest absolute values, one percent of all."""
    return values.flatten().abs().topk(round(0.01 * values.numel())).indices


FACTS = {"randomised": randomised, "planted": planted}

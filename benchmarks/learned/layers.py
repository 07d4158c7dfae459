"""Which layers are alike (CKA), and where in a vision transformer the class is found."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

import clearhead as ch
from clearhead.data.images.files import LabelledImages
from clearhead.look import cka, cka_of_features

from .pictures import head_distances
from .sources import checkpoint, folder, grid_of, images, pixels, untrained

RECIPES = {  # the models of one recipe, configs/imagenette-vit.toml, and how each differs
    "vit-imagenette": "class token, seed 1 (ships)",
    "vit-seed-2": "class token, seed 2",
    "vit-mean": "mean of the patches, seed 1",
}
TRAIN, TEST = 600, 400  # images of Imagenette


def similarity() -> dict[str, Any]:
    """CKA within models, between a ViT and a ResNet, between two seeds, and between two ways of pooling."""
    small = images("cifar10", "valid", 1000)
    between = cka(checkpoint("vit-cifar10"), checkpoint("resnet-cifar10"), data=small)
    chance = cka(checkpoint("vit-cifar10"), untrained("vit-cifar10"), data=small)
    found = {
        "vit-cifar10 with resnet-cifar10": {
            "matrix": between.matrix.tolist(),
            "rows": between.rows,
            "columns": between.columns,
        },
        "vit-cifar10": _within(between.within[0]),
        "resnet-cifar10": _within(between.within[1]),
        "vit-cifar10, untrained": _within(chance.within[1]),
        "vit-cifar10 with untrained": {
            "matrix": chance.matrix.tolist(),
            "diagonal": chance.matrix.diagonal().tolist(),
        },
    }
    after = {name: imagenette_vectors(name)[1]["patches"] for name in RECIPES}
    parts = {
        (a, b): cka_of_features(_named(after[a]), _named(after[b])).matrix
        for a in RECIPES
        for b in RECIPES
    }
    for a, b in (("vit-imagenette", "vit-seed-2"), ("vit-imagenette", "vit-mean")):
        matrix = parts[a, b]
        found[f"{a} with {b}"] = {"matrix": matrix.tolist(), "diagonal": matrix.diagonal().tolist()}
    for name in RECIPES:
        found[name] = _within(parts[name, name])
    return {
        "features": "mean over patches or places",
        "estimator": "debiased",
        "imagenette_images": TEST,
        "cifar10_images": between.inputs,
        "pairs": found,
    }


def _named(blocks: np.ndarray) -> dict[str, np.ndarray]:
    """The features of each block, by a name."""
    return {f"blocks.{i}": x for i, x in enumerate(blocks)}


def _within(matrix: np.ndarray) -> dict[str, Any]:
    """A matrix of one model, with the mean of neighbours, of all other pairs, and the first with the last."""
    off = ~np.eye(len(matrix), dtype=bool)
    return {
        "matrix": matrix.tolist(),
        "neighbours": float(matrix.diagonal(1).mean()),
        "others": float(matrix[off].mean()),
        "first_last": float(matrix[0, -1]),
        "least": float(matrix.min()),
    }


@torch.no_grad()
def vectors(bundle: ch.Bundle, data: LabelledImages) -> dict[str, np.ndarray]:
    """The mean of the patches, and the class token if there is one, after every block: (blocks, images, width)."""
    names = [f"blocks.{i}" for i in range(len(bundle.model.blocks))]
    found: dict[str, list[np.ndarray]] = {}
    for some in data.batches(50):
        x = torch.stack([bundle.pixels(image) for image in some])
        with ch.watch(bundle.model, *names) as tape:
            bundle.model(x)
        every = torch.stack([tape[name] for name in names])  # (blocks, images, tokens, width)
        rows, columns = grid_of(bundle.model, *x.shape[-2:])
        special = every.shape[2] - rows * columns
        pools = {"patches": every[:, :, special:].mean(2)} | (
            {"class token": every[:, :, 0]} if special else {}
        )
        for name, vector in pools.items():
            found.setdefault(name, []).append(vector.float().numpy())
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


@cache
def imagenette_vectors(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The vectors of a model for some training images and some validation images."""
    bundle = checkpoint(name)
    both = [
        vectors(bundle, images("imagenette", part, count))
        for part, count in (("train", TRAIN), ("valid", TEST))
    ]
    return both[0], both[1]


def probe(train: np.ndarray, labels: list[str], test: np.ndarray, truth: list[str]) -> float:
    """The accuracy of a linear classifier on standardised features."""
    mean, deviation = train.mean(0), train.std(0) + 1e-6
    model = LogisticRegression(C=0.01, max_iter=300).fit((train - mean) / deviation, labels)
    return float(model.score((test - mean) / deviation, truth))


def pooling() -> dict[str, Any]:
    """Class token beside mean pooling: how far blocks look, and how well a linear probe finds the class after each."""
    train, test = (
        images("imagenette", "train", TRAIN).labels,
        images("imagenette", "valid", TEST).labels,
    )
    found: dict[str, Any] = {}
    for name, what in RECIPES.items():
        bundle = checkpoint(name)
        first, second = imagenette_vectors(name)
        found[name] = {
            "what": what,
            "distance": head_distances(bundle, pixels(bundle, images("imagenette", "valid", 32)))[
                "mean"
            ],
            "probe": {
                pool: [
                    probe(a, train, b, test) for a, b in zip(first[pool], second[pool], strict=True)
                ]
                for pool in first
            },
        }
        if name != "vit-imagenette":
            lines = (folder(name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            measured = [json.loads(line) for line in lines if "valid_accuracy" in line]
            found[name]["accuracy_of_all_validation_images"] = measured[-1]["valid_accuracy"]
    return {"train_images": TRAIN, "validation_images": TEST, "chance": 0.1, "models": found}


FACTS = {"similarity": similarity, "pooling": pooling}

"""How far heads look, how receptive fields grow, and what the class token attends to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image

import clearhead as ch
from clearhead.look import cls_maps, receptive_fields

from .sources import EXAMPLES, checkpoint, grid_of, images, pixels, untrained

# The object in each square example image: left, top, right, bottom, as shares of its side, drawn by hand.
BOXES = {
    "airplane": (0.10, 0.27, 0.95, 0.78), "church": (0.18, 0.00, 0.90, 0.84), "golf-ball": (0.22, 0.23, 0.82, 0.80),
    "parachute": (0.18, 0.13, 0.82, 0.88), "photographer": (0.00, 0.00, 0.72, 1.00), "ship": (0.07, 0.27, 0.93, 0.71),
}  # fmt: skip


def head_distances(bundle: ch.Bundle, x: torch.Tensor) -> dict[str, Any]:
    """The mean distance of each head in patches, over images and queries, and that of uniform attention."""
    grid = grid_of(bundle.model, *x.shape[-2:])
    total: Any = 0.0
    for some in x.split(8):
        with torch.no_grad(), ch.watch(bundle.model, "blocks.*.attn.weights") as tape:
            bundle.model(some)
        weights = tape[tape.names[0]]
        special = weights.shape[-1] - grid[0] * grid[1]
        total = total + ch.look.distance(tape, grid=grid, special=special)[..., special:].mean(
            -1
        ).sum(1)
    places = np.stack(
        np.meshgrid(np.arange(grid[0]), np.arange(grid[1]), indexing="ij"), -1
    ).reshape(-1, 2)
    uniform = float(np.linalg.norm(places[:, None] - places[None], axis=-1).mean())
    heads = (total / len(x)).numpy()  # (blocks, heads)
    share = heads / uniform
    return {
        "grid": list(grid),
        "uniform": uniform,
        "distance": heads.round(3).tolist(),
        "nearest": share.min(1).tolist(),
        "farthest": share.max(1).tolist(),
        "mean": share.mean(1).tolist(),
    }


def heads() -> dict[str, Any]:
    """The distance of every head: three trained ViTs, and one without training."""
    given = {"vit-cifar10": "cifar10", "vit-imagenette": "imagenette", "vit-s14": "imagenette"}
    found: dict[str, Any] = {}
    for name, data in given.items():
        bundle = checkpoint(name)
        x = pixels(bundle, images(data, "valid", 32))
        found[name] = head_distances(bundle, x)
        if name == "vit-cifar10":
            found["vit-cifar10, untrained"] = head_distances(untrained(name), x)
    return {"images": 32, "models": found}


def fields() -> dict[str, Any]:
    """The side of the square that holds 90 % of the gradient of a unit at the centre, by depth."""
    found = {}
    small = {"vit-cifar10": ["embed", "blocks.*"], "resnet-cifar10": None}
    large = {"vit-s14": ["embed", "blocks.*"], "mobilenet-v2": None, "keras-resnet50": None}
    for data, models, count in (("cifar10", small, 64), ("imagenette", large, 16)):
        for name, layers in models.items():
            made = {name: checkpoint(name)} | (
                {f"{name}, untrained": untrained(name)} if data == "cifar10" else {}
            )
            for title, bundle in made.items():
                x = pixels(bundle, images(data, "valid", count))
                result = receptive_fields(bundle.model, x, layers, theoretical=name != "vit-s14")
                found[title] = {
                    "image": x.shape[-1],
                    "images": count,
                    "layers": result.names,
                    "side": result.sides().tolist(),
                    "theoretical": [
                        None if size is None else size[0] for size in result.theoretical
                    ],
                }
    return {"models": found, "uniform": {side: _uniform_side(side) for side in (32, 224)}}


def _uniform_side(side: int) -> float:
    """The side of the square that holds 90 % of a map that is the same everywhere."""
    return float(
        ch.look.Fields(names=["all"], maps=np.ones((1, side, side)), theoretical=[None]).sides()[0]
    )


def squares(bundle: ch.Bundle, side: int) -> dict[str, torch.Tensor]:
    """The example images that have a box, as squares of `side` pixels and inputs of a model."""
    assert bundle.preprocessing is not None
    read = replace(bundle.preprocessing, resize=side, crop=(side, side))
    opened = {
        name: Image.open(EXAMPLES / f"{name}.webp").convert("RGB").resize((side, side))
        for name in BOXES
    }
    return {name: torch.from_numpy(read(image)) for name, image in opened.items()}


def inside(maps: torch.Tensor, box: tuple[float, float, float, float]) -> torch.Tensor:
    """The share of the weight of each map that lies in a box, whose cells at the edge count in part."""
    rows, columns = maps.shape[-2:]

    def covered(cells: int, first: float, last: float) -> torch.Tensor:
        at = torch.arange(cells)
        return ((at + 1).clamp(max=last * cells) - at.clamp(min=first * cells)).clamp(min=0)

    mask = covered(rows, box[1], box[3])[:, None] * covered(columns, box[0], box[2])[None]
    return (maps * mask).sum((-2, -1)) / maps.sum((-2, -1))


def maps() -> dict[str, Any]:
    """The share of the class token's attention inside the object's box, by block, mean of the heads and best head."""
    area = {name: (b[2] - b[0]) * (b[3] - b[1]) for name, b in BOXES.items()}
    found = {}
    for name, side in (("vit-imagenette", 128), ("vit-s14", 448)):
        bundle = checkpoint(name)
        given = squares(bundle, side)
        depth = len(bundle.model.blocks)
        shares = np.array(
            [
                [
                    inside(cls_maps(bundle.model, x, layer=i).maps, BOXES[what]).tolist()
                    for i in range(depth)
                ]
                for what, x in given.items()
            ]
        )  # (images, blocks, heads)
        found[name] = {
            "side": side,
            "by_block": shares.mean((0, 2)).tolist(),
            "heads_by_block": shares.mean(0).tolist(),
            "last_block": dict(zip(given, shares[:, -1].mean(-1).tolist(), strict=True)),
        }
    return {
        "boxes": {k: list(v) for k, v in BOXES.items()},
        "area": area,
        "mean_area": float(np.mean(list(area.values()))),
        "models": found,
    }


FACTS = {"heads": heads, "fields": fields, "maps": maps}

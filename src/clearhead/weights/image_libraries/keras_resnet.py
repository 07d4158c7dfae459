"""The ResNet-50 of Keras in a folder of TensorFlow.js: model.json with the names and shapes, and shards of bytes.

    ours (models/resnet.py)                theirs
    stem.first                             conv1, bn_conv1
    stages.0.0.layers.1                    res2a_branch2b, bn2a_branch2b: stage 2, block a, layer b
    stages.0.0.shortcut                    res2a_branch1, bn2a_branch1
    head                                   fc1000

Its bottlenecks have the stride in the first 1x1 convolution, as in He et al. 2016, its batch norms add 1e-3, and its
images are BGR without the mean of ImageNet. The bias of a convolution is subtracted from the mean of the batch norm
behind it, which gives the same outputs.
"""

from __future__ import annotations

import math
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import config
from ...data.images.preprocessing import Preprocessing
from ...models.resnet import Config, ResNet
from ..bundle import Bundle
from ..fill import WeightsError, build_empty
from ..huggingface.convnets import conv_names
from ..table import BATCH_NORM, Row, UsedTensors, fill
from ..tensor_files import Tensors

EPS = 1e-3  # of Keras's batch norms
MEAN = (103.939, 116.779, 123.68)  # of blue, green and red in ImageNet, from 0 to 255
PREPROCESSING = Preprocessing(
    resize=256, crop=(224, 224), scale=1.0, mean=MEAN, deviation=(1.0, 1.0, 1.0), channels="bgr"
)
NORM = dict(zip(BATCH_NORM, ("gamma", "beta", "moving_mean", "moving_variance", ""), strict=True))


def is_tfjs(folder: Path) -> bool:
    """Whether a folder has the model.json of TensorFlow.js."""
    return (folder / "model.json").is_file() and "weightsManifest" in config.load(
        folder / "model.json"
    )


def load(
    folder: Path, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
    """Load a folder; returns the bundle, and which tensors it was loaded from."""
    where = folder / "model.json"
    table = config.load(where)
    arrays = _arrays(folder, table)
    options = _config(arrays, where)
    tensors = _ours(arrays, options, where)
    model = build_empty(ResNet, options, tensors.shapes, where, where)
    fill(model, tensors, [Row((name,), (name,)) for name in tensors.shapes], {}, device, dtype)
    shards = tuple(path for group in table["weightsManifest"] for path in group["paths"])
    shapes = {name: tuple(x.shape) for name, x in arrays.items()}
    used = UsedTensors(shapes, {}, {"float32": sum(x.numel() for x in arrays.values())}, shards)
    return Bundle(model.eval(), None, options, folder, preprocessing=PREPROCESSING), used


def _arrays(folder: Path, table: config.Table) -> dict[str, Tensor]:
    """The arrays of all shards by name, in their own layout."""
    arrays: dict[str, Tensor] = {}
    for group in table["weightsManifest"]:
        # the arrays of a group follow each other in its shards, across their borders
        content = bytearray()
        for name in group["paths"]:
            # a plain name, so that nothing outside of this folder is opened
            if Path(name).name != name or not (folder / name).is_file():
                raise WeightsError(
                    f"{folder / 'model.json'}: the shard {name!r} is not a file in this folder"
                )
            content += (folder / name).read_bytes()
        start = 0
        for entry in group["weights"]:
            name, shape, dtype = entry["name"], tuple(entry["shape"]), entry["dtype"]
            if dtype != "float32" or "quantization" in entry:
                raise WeightsError(
                    f"{folder / 'model.json'}: {name} is {dtype}: expected plain float32"
                )
            size = math.prod(shape)
            if start + 4 * size > len(content):
                raise WeightsError(f"{folder}: the shards end before {name}: {len(content)} bytes")
            # a view of the bytes, without a copy
            array = np.frombuffer(content, "<f4", size, start).reshape(shape)
            arrays[name], start = torch.from_numpy(array), start + 4 * size
        if start != len(content):
            raise WeightsError(f"{folder}: the shards have {len(content)} bytes, expected {start}")
    return arrays


def _config(arrays: dict[str, Tensor], where: Path) -> Config:
    """Our Config, from the names and shapes of the arrays."""
    if not {"conv1/kernel", "res2a_branch2c/kernel", "fc1000/kernel"} <= arrays.keys():
        raise WeightsError(
            f"{where}: there is no conv1, res2a_branch2c or fc1000: expected the ResNet-50 of Keras"
        )
    depths: list[int] = []
    # stages count from 2, blocks by letters
    while f"res{len(depths) + 2}a_branch2a/kernel" in arrays:
        stage, depth = len(depths) + 2, 0
        while f"res{stage}{ascii_lowercase[depth]}_branch2a/kernel" in arrays:
            depth += 1
        depths.append(depth)
    # (y, x, i, o)
    _, _, channels, width = arrays["conv1/kernel"].shape
    return Config(
        classes=arrays["fc1000/kernel"].shape[1],
        channels=channels,
        width=width,
        depths=tuple(depths),
        block="bottleneck",
        shrink="first",
        eps=EPS,
    )


def _ours(arrays: dict[str, Tensor], c: Config, where: Path) -> Tensors:
    """The arrays under our names and in our layout; raises if one is missing or left over."""
    left, ours = dict(arrays), dict[str, Tensor]()

    def take(name: str) -> Tensor:
        if name not in left:
            # each is taken once: what is left at the end has no place in the model
            raise WeightsError(f"{where}: the tensor {name} is missing")
        return left.pop(name)

    names: dict[str, tuple[str, str]] = {"stem.first": ("conv1", "bn_conv1")}
    for name, i, j, layer in conv_names(c):
        # layers 0, 1, 2 are the branches 2a, 2b, 2c; the shortcut is branch 1
        branch = "1" if layer == "shortcut" else f"2{ascii_lowercase[int(layer)]}"
        at = f"{i + 2}{ascii_lowercase[j]}_branch{branch}"
        names[name] = (f"res{at}", f"bn{at}")
    for name, (conv, norm) in names.items():
        # (y, x, i, o) -> (o, i, y, x)
        ours[f"{name}.conv.weight"] = take(f"{conv}/kernel").permute(3, 2, 0, 1)
        for leaf, theirs in NORM.items():
            # Keras does not count batches
            ours[f"{name}.norm.{leaf}"] = take(f"{norm}/{theirs}") if theirs else torch.tensor(0)
        # BN(x + b) has the mean m - b
        ours[f"{name}.norm.running_mean"] = ours[f"{name}.norm.running_mean"] - take(f"{conv}/bias")
    ours["head.weight"], ours["head.bias"] = take("fc1000/kernel").t(), take("fc1000/bias")
    if left:
        name, x = next(iter(left.items()))
        raise WeightsError(
            f"{where}: the tensor {name} {tuple(x.shape)} has no place in this model"
        )
    files: Any = dict.fromkeys(ours, where)
    return Tensors(
        where, {name: tuple(x.shape) for name, x in ours.items()}, files, ours.__getitem__
    )

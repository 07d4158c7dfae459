"""Our ConvNeXt against transformers', outputs and gradients, and the published numbers of parameters."""

import pytest
import torch
from compare import B, Table, adopt, both, layers, match, noise, whole
from torch import nn

import clearhead as ch

WIDTH, DEPTHS, CLASSES, EPS = 6, (1, 2, 1), 3, 1e-3
BLOCK = {"conv": "dwconv", "norm": "layernorm", "mlp.up": "pwconv1", "mlp.down": "pwconv2"}


def theirs(scale: float) -> nn.Module:
    convnext = pytest.importorskip("transformers.models.convnext.modeling_convnext")
    config = convnext.ConvNextConfig(
        hidden_sizes=[WIDTH * 2**i for i in range(len(DEPTHS))], depths=list(DEPTHS), num_stages=len(DEPTHS),
        layer_norm_eps=EPS, num_labels=CLASSES, layer_scale_init_value=scale,
    )  # fmt: skip
    return convnext.ConvNextForImageClassification(config)


def table(*, scaled: bool) -> Table:
    body = "convnext.encoder.stages"
    result: Table = layers({"head": "classifier", "norm": "convnext.layernorm"})
    result |= layers(
        {"stem.0": "convnext.embeddings.patch_embeddings", "stem.1": "convnext.embeddings.layernorm"}
    )  # fmt: skip
    for i, depth in enumerate(DEPTHS):
        if i:
            result |= layers({f"stages.{i}.0.{j}": f"{body}.{i}.downsampling_layer.{j}" for j in range(2)})
        for j in range(depth):
            ours, at = f"stages.{i}.{j + (i > 0)}", f"{body}.{i}.layers.{j}"
            result |= layers({f"{ours}.{a}": f"{at}.{b}" for a, b in BLOCK.items()})
            if scaled:
                result[f"{ours}.scale"] = (f"{at}.layer_scale_parameter", whole)
    return result


@both
@pytest.mark.parametrize("scale", [1e-6, 0.0], ids=["scaled", "not scaled"])
def test_class_logits(dtype: torch.dtype, scale: float) -> None:
    options = {"width": WIDTH, "depths": DEPTHS, "classes": CLASSES, "last_eps": EPS, "layer_scale": scale or None}
    mine, oracle = ch.build("convnext", **options), theirs(scale)
    pairs = adopt(mine, oracle, table(scaled=scale > 0), dtype)
    match(mine, lambda x: oracle(x).logits, noise(dtype, (B, 3, 37, 52)), pairs)


@pytest.mark.parametrize(
    ("width", "depths", "parameters"),
    [
        (96, (3, 3, 9, 3), 28_589_128),  # ConvNeXt-T
        (96, (3, 3, 27, 3), 50_223_688),  # S
        (128, (3, 3, 27, 3), 88_591_464),  # B
        (192, (3, 3, 27, 3), 197_767_336),  # L
    ],
)
def test_parameters_are_those_of_torchvision(width: int, depths: tuple[int, ...], parameters: int) -> None:
    with torch.device("meta"):
        model = ch.build("convnext", width=width, depths=depths)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_stochastic_depth_grows_from_zero_to_the_last_block() -> None:
    model = ch.build("convnext", width=4, depths=(2, 3), skip=0.4, classes=2)
    shares = [block.skip for stage in model.stages for block in stage if hasattr(block, "skip")]
    assert shares == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])

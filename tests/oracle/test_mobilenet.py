"""Our MobileNetV2 against transformers', outputs and gradients, and the published number of parameters."""

import pytest
import torch
from compare import B, Table, adopt, both, layers, match, noise, whole
from torch import nn

import clearhead as ch

CLASSES, EPS = 3, 1e-3
IMAGE = (B, 3, 64, 96)
PARTS = {"widen": "expand_1x1", "filter": "conv_3x3", "narrow": "reduce_1x1"}


def theirs() -> nn.Module:
    mobilenet = pytest.importorskip("transformers.models.mobilenet_v2.modeling_mobilenet_v2")
    config = mobilenet.MobileNetV2Config(  # min_depth: of 0.2 x the channels, rounded to multiples of 2
        num_labels=CLASSES, depth_multiplier=0.2, depth_divisible_by=2, min_depth=2, tf_padding=False,
        classifier_dropout_prob=0.0, layer_norm_eps=EPS, finegrained_output=True,
    )  # fmt: skip
    return mobilenet.MobileNetV2ForImageClassification(config)


def sizes(oracle: nn.Module) -> dict:
    """Our options of their sizes, read from the shapes of their weights."""
    shapes = {name: tuple(p.shape) for name, p in oracle.named_parameters()}
    outputs = [shapes[f"mobilenet_v2.layer.{i}.reduce_1x1.convolution.weight"][0] for i in range(16)]
    first = shapes["mobilenet_v2.conv_stem.reduce_1x1.convolution.weight"][0]
    return {
        "width": shapes["mobilenet_v2.conv_stem.first_conv.convolution.weight"][0],
        "widths": (first, *(outputs[i] for i in (0, 2, 5, 9, 12, 15))),
        "hidden": shapes["mobilenet_v2.conv_1x1.convolution.weight"][0],
        "classes": CLASSES, "eps": EPS, "dropout": 0.0,
    }  # fmt: skip


def table(model: nn.Module) -> Table:
    result: Table = layers({"head": "classifier"})
    names = {"stem": "conv_stem.first_conv", "last": "conv_1x1"}
    names |= {f"stages.0.0.{a}": f"conv_stem.{b}" for a, b in PARTS.items() if a != "widen"}
    blocks = [f"stages.{i}.{j}" for i, stage in enumerate(model.stages) if i for j in range(len(stage))]
    names |= {f"{block}.{a}": f"layer.{i}.{b}" for i, block in enumerate(blocks) for a, b in PARTS.items()}
    for ours, at in names.items():
        result[f"{ours}.conv.weight"] = (f"mobilenet_v2.{at}.convolution.weight", whole)
        result |= layers({f"{ours}.norm": f"mobilenet_v2.{at}.normalization"})
    return result


@both
def test_class_logits(dtype: torch.dtype) -> None:
    oracle = theirs()
    mine = ch.build("mobilenet", **sizes(oracle))
    pairs = adopt(mine, oracle, table(mine), dtype)
    for _, ours, at, _ in pairs:  # scales of 0.5 x noise would shrink the signal to nothing in 53 layers
        scale = 3.0 if ours.ndim == 4 else 1.0
        ours.data *= scale
        at.data *= scale
    random, modules = torch.Generator().manual_seed(5), dict(oracle.named_modules())
    for ours, (at, _) in table(mine).items():
        if ours.endswith("norm.weight"):
            norms = mine.get_submodule(ours.removesuffix(".weight")), modules[at.removesuffix(".weight")]
            for statistic in ("running_mean", "running_var"):
                draw = torch.rand(norms[0].num_features, generator=random, dtype=torch.float64) + 0.5
                for norm in norms:
                    getattr(norm, statistic).copy_(draw)
    out = mine(noise(dtype, IMAGE)[0])
    assert float(out.detach().std(dim=0).max()) > 1e-2  # the images make a difference
    match(mine, lambda x: oracle(x).logits, noise(dtype, IMAGE), pairs)


def test_parameters_are_those_of_torchvision() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in ch.build("mobilenet").parameters()) == 3_504_872


def test_dropout_acts_on_the_pooled_vector_in_training_only() -> None:
    model = ch.build("mobilenet", width=4, widths=(4,), depths=(1,), strides=(1,), hidden=64, classes=2, dropout=0.5)
    x = torch.randn(3, 3, 16, 16)
    assert torch.equal(model.eval()(x), model.head(model.states(x)))
    assert not torch.equal(model.train()(x), model(x))

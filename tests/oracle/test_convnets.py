"""Our ResNet, ConvNeXt and MobileNetV2 against transformers': logits and gradients; and published sizes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from compare import B, Table, adopt, adopt_twin, both, layers, match, noise, whole
from torch import Tensor, nn

import clearhead as ch
from clearhead.models.resnet import GridAttention

WIDTH, DEPTHS, CLASSES, EPS = 4, (1, 2, 1), 3, 1e-3
WIDTHS = [WIDTH * 2**i for i in range(len(DEPTHS))]
Case = tuple[nn.Module, nn.Module, Table]


def theirs(kind: str, name: str, **options: Any) -> nn.Module:
    modeling = pytest.importorskip(f"transformers.models.{kind}.modeling_{kind}")
    config = getattr(modeling, f"{name}Config")(**options, num_labels=CLASSES)
    return getattr(modeling, f"{name}ForImageClassification")(config)


def conv_norm(ours: str, at: str) -> Table:
    return {
        f"{ours}.conv.weight": (f"{at}.convolution.weight", whole),
        **layers({f"{ours}.norm": f"{at}.normalization"}),
    }


def resnet(block: str) -> Case:
    mine = ch.build("resnet", width=WIDTH, depths=DEPTHS, block=block, classes=CLASSES)
    widths = [4 * width if block == "bottleneck" else width for width in WIDTHS]
    oracle = theirs(
        "resnet", "ResNet", embedding_size=WIDTH, hidden_sizes=widths, depths=list(DEPTHS), layer_type=block
    )
    table = layers({"head": "classifier.1"}) | conv_norm("stem.first", "resnet.embedder.embedder")
    for name, _ in mine.stages.named_modules(prefix="stages"):
        if name.endswith(".conv"):
            _, stage, number, *rest, _ = name.split(".")
            part = "shortcut" if rest == ["shortcut"] else f"layer.{rest[1]}"
            table |= conv_norm(name.removesuffix(".conv"), f"resnet.encoder.stages.{stage}.layers.{number}.{part}")
    return mine, oracle, table


def convnext(scale: float) -> Case:
    options = {"width": WIDTH, "depths": DEPTHS, "classes": CLASSES, "last_eps": EPS, "layer_scale": scale or None}
    sizes = {"hidden_sizes": WIDTHS, "depths": list(DEPTHS), "num_stages": len(DEPTHS), "layer_norm_eps": EPS}
    oracle = theirs("convnext", "ConvNext", **sizes, layer_scale_init_value=scale)
    stem, body = "convnext.embeddings", "convnext.encoder.stages"
    names = {"stem.0": f"{stem}.patch_embeddings", "stem.1": f"{stem}.layernorm"}
    table = layers({"head": "classifier", "norm": "convnext.layernorm", **names})
    block = {"conv": "dwconv", "norm": "layernorm", "mlp.up": "pwconv1", "mlp.down": "pwconv2"}
    for i, depth in enumerate(DEPTHS):
        if i:
            table |= layers({f"stages.{i}.0.{j}": f"{body}.{i}.downsampling_layer.{j}" for j in range(2)})
        for j in range(depth):
            ours, at = f"stages.{i}.{j + (i > 0)}", f"{body}.{i}.layers.{j}"
            table |= layers({f"{ours}.{a}": f"{at}.{b}" for a, b in block.items()})
            if scale:
                table[f"{ours}.scale"] = (f"{at}.layer_scale_parameter", whole)
    return ch.build("convnext", **options), oracle, table


def mobilenet() -> Case:
    """Its sizes are read from the shapes of their weights: 0.2 x the channels, rounded to multiples of 2."""
    oracle = theirs(
        "mobilenet_v2", "MobileNetV2", depth_multiplier=0.2, depth_divisible_by=2, min_depth=2, tf_padding=False,
        classifier_dropout_prob=0.0, layer_norm_eps=EPS, finegrained_output=True,
    )  # fmt: skip

    def channels(at: str) -> int:
        return oracle.get_parameter(f"mobilenet_v2.{at}.convolution.weight").shape[0]

    widths = [channels("conv_stem.reduce_1x1"), *(channels(f"layer.{i}.reduce_1x1") for i in (0, 2, 5, 9, 12, 15))]
    mine = ch.build(
        "mobilenet", width=channels("conv_stem.first_conv"), widths=tuple(widths), hidden=channels("conv_1x1"),
        classes=CLASSES, eps=EPS, dropout=0.0,
    )  # fmt: skip
    parts = {"widen": "expand_1x1", "filter": "conv_3x3", "narrow": "reduce_1x1"}
    names = {"stem": "conv_stem.first_conv", "last": "conv_1x1"}
    names |= {f"stages.0.0.{a}": f"conv_stem.{b}" for a, b in parts.items() if a != "widen"}
    blocks = [f"stages.{i}.{j}" for i, stage in enumerate(mine.stages) if i for j in range(len(stage))]
    names |= {f"{block}.{a}": f"layer.{i}.{b}" for i, block in enumerate(blocks) for a, b in parts.items()}
    table = layers({"head": "classifier"})
    for ours, at in names.items():
        table |= conv_norm(ours, f"mobilenet_v2.{at}")
    return mine, oracle, table


CASES: dict[str, Callable[[], Case]] = {
    "resnet, basic": partial(resnet, "basic"),
    "resnet, bottleneck": partial(resnet, "bottleneck"),
    "convnext, scaled": partial(convnext, 1e-6),
    "convnext, not scaled": partial(convnext, 0.0),
    "mobilenet": mobilenet,
}


def same_statistics(mine: nn.Module, oracle: nn.Module, table: Table) -> None:
    """Give the batch norms of both the same running means and variances, found by the names of their weights."""
    random = torch.Generator().manual_seed(5)
    for ours, (at, _) in table.items():
        norms = [model.get_submodule(name.rpartition(".")[0]) for model, name in ((mine, ours), (oracle, at))]
        if ours.endswith("weight") and isinstance(norms[0], nn.BatchNorm2d):
            for statistic in ("running_mean", "running_var"):
                draw = torch.rand(norms[0].num_features, generator=random, dtype=torch.float64) + 0.5
                for norm in norms:
                    getattr(norm, statistic).copy_(draw)


@both
@pytest.mark.parametrize(
    ("case", "training"),
    [*((case, False) for case in CASES), *((case, True) for case in CASES if case.startswith("resnet"))],
)
def test_class_logits(case: str, training: bool, dtype: torch.dtype) -> None:
    mine, oracle, table = CASES[case]()
    pairs = adopt(mine, oracle, table, dtype)
    if case == "mobilenet":  # scales of 0.5 x noise would shrink the signal to nothing in 53 layers
        for _, ours, at, _ in pairs:
            ours.data *= 3.0 if ours.ndim == 4 else 1.0
            at.data *= 3.0 if at.ndim == 4 else 1.0
    if not training:
        same_statistics(mine, oracle, table)
    mine.train(training), oracle.train(training)
    images = noise(dtype, (B, 3, 64, 96) if case == "mobilenet" else (B, 3, 37, 52))
    assert float(mine(*images).detach().std(dim=0).max()) > 1e-2  # the images make a difference
    match(mine, lambda x: oracle(x).logits, images, pairs)


@pytest.mark.parametrize(
    ("family", "options", "parameters"),
    [
        ("resnet", {"block": "basic", "depths": (2, 2, 2, 2)}, 11_689_512),  # ResNet-18
        ("resnet", {"block": "basic", "depths": (3, 4, 6, 3)}, 21_797_672),  # 34
        ("resnet", {"block": "bottleneck", "depths": (3, 4, 6, 3)}, 25_557_032),  # 50
        ("resnet", {"block": "bottleneck", "depths": (3, 4, 23, 3)}, 44_549_160),  # 101
        ("convnext", {"width": 96, "depths": (3, 3, 9, 3)}, 28_589_128),  # ConvNeXt-T
        ("convnext", {"width": 96, "depths": (3, 3, 27, 3)}, 50_223_688),  # S
        ("convnext", {"width": 128, "depths": (3, 3, 27, 3)}, 88_591_464),  # B
        ("convnext", {"width": 192, "depths": (3, 3, 27, 3)}, 197_767_336),  # L
        ("mobilenet", {}, 3_504_872),
    ],
)
def test_parameters_are_those_of_torchvision(family: str, options: dict, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in ch.build(family, **options).parameters()) == parameters


@both
def test_attention_on_a_grid_is_that_of_sagan(dtype: torch.dtype) -> None:
    """Zhang et al. 2019, Eq. 1 to 3: beta_ji = softmax_i(f(x_i) . g(x_j)), o_j = v(sum_i beta_ji h(x_i))."""
    mine, twin = GridAttention(16), GridAttention(16)
    pairs = adopt_twin(mine, twin, dtype)

    def conv(layer: nn.Module, x: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, layer.weight[:, :, None, None])

    def written(x: Tensor) -> Tensor:
        g, f, h = (conv(getattr(twin.attn, name), x).flatten(2) for name in ("query", "key", "value"))
        beta = torch.einsum("bci,bcj->bji", f, g).softmax(-1)
        o = torch.einsum("bji,bci->bcj", beta, h).unflatten(2, x.shape[2:])
        return x + twin.gamma * conv(twin.attn.out, o)

    match(mine, written, noise(dtype, (B, 16, 3, 5)), pairs)


def test_attention_and_residual_blocks_start_as_the_identity() -> None:
    """The last batch norm of each block starts with a scale of 0; so a block without a shortcut gives relu(x)."""
    x = torch.rand(B, 16, 3, 5)
    assert torch.equal(GridAttention(16)(x), x)
    model = ch.build("resnet", width=16, depths=(2,), stem="small", classes=2).train()
    assert torch.equal(model.stages[0][0](x), x)


def test_stochastic_depth_grows_from_zero_to_the_last_block() -> None:
    model = ch.build("convnext", width=4, depths=(2, 3), skip=0.4, classes=2)
    shares = [block.skip for stage in model.stages for block in stage if hasattr(block, "skip")]
    assert shares == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_dropout_acts_on_the_pooled_vector_in_training_only() -> None:
    model = ch.build("mobilenet", width=4, widths=(4,), depths=(1,), strides=(1,), hidden=64, classes=2, dropout=0.5)
    x = torch.randn(3, 3, 16, 16)
    assert torch.equal(model.eval()(x), model.head(model.states(x)))
    assert not torch.equal(model.train()(x), model(x))

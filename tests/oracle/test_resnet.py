"""Our ResNet against transformers' (basic and bottleneck), self-attention on a grid, and published sizes."""

from typing import Any

import pytest
import torch
from compare import B, Table, adopt, adopt_twin, both, layers, match, noise, whole
from torch import Tensor, nn

import clearhead as ch
from clearhead.models.resnet import GridAttention

WIDTH, DEPTHS, CLASSES = 4, (1, 2, 1), 3
IMAGE = (B, 3, 37, 45)


def theirs(kind: str) -> nn.Module:
    resnet = pytest.importorskip("transformers.models.resnet.modeling_resnet")
    more = 4 if kind == "bottleneck" else 1
    config = resnet.ResNetConfig(
        embedding_size=WIDTH, hidden_sizes=[WIDTH * 2**i * more for i in range(len(DEPTHS))], depths=list(DEPTHS),
        layer_type=kind, num_labels=CLASSES,
    )  # fmt: skip
    return resnet.ResNetForImageClassification(config)


def table(model: nn.Module) -> Table:
    result: Table = layers({"head": "classifier.1"})
    for name, _ in model.named_modules():
        if not name.endswith("conv"):
            continue
        ours = name.removesuffix(".conv")
        if ours == "stem.first":
            at = "resnet.embedder.embedder"
        else:
            _, stage, block, *rest = ours.split(".")
            at = f"resnet.encoder.stages.{stage}.layers.{block}." + (
                "shortcut" if rest == ["shortcut"] else f"layer.{rest[1]}"
            )
        result |= {f"{ours}.conv.weight": (f"{at}.convolution.weight", whole)}
        result |= layers({f"{ours}.norm": f"{at}.normalization"})
    return result


@both
@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_class_logits(dtype: torch.dtype, kind: str, training: bool) -> None:
    options: dict[str, Any] = {"width": WIDTH, "depths": DEPTHS, "block": kind, "classes": CLASSES}
    mine, oracle = ch.build("resnet", **options), theirs(kind)
    pairs = adopt(mine, oracle, table(mine), dtype)
    if not training:
        _same_statistics(mine, oracle)
    mine.train(training), oracle.train(training)
    match(mine, lambda x: oracle(x).logits, noise(dtype, IMAGE), pairs)


def _same_statistics(mine: nn.Module, oracle: nn.Module) -> None:
    """Give both the same running means and variances, found by the names of the norms' weights."""
    random, modules = torch.Generator().manual_seed(5), dict(oracle.named_modules())
    for ours, (at, _) in table(mine).items():
        if ours.endswith("norm.weight"):
            a, b = mine.get_submodule(ours.removesuffix(".weight")), modules[at.removesuffix(".weight")]
            for norm in ("running_mean", "running_var"):
                draw = torch.rand(a.num_features, generator=random, dtype=torch.float64) + 0.5
                getattr(a, norm).copy_(draw)
                getattr(b, norm).copy_(draw)


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


def test_attention_starts_as_the_identity() -> None:
    x = torch.randn(B, 16, 3, 5)
    assert torch.equal(GridAttention(16)(x), x)


def test_residual_blocks_start_as_the_identity() -> None:
    """The last batch norm of each block starts with a scale of 0; so a block without a shortcut gives relu(x)."""
    model = ch.build("resnet", width=4, depths=(2,), stem="small", classes=2).train()
    x = torch.rand(B, 4, 5, 5)
    assert torch.equal(model.stages[0][0](x), x)


@pytest.mark.parametrize(
    ("block", "depths", "parameters"),
    [
        ("basic", (2, 2, 2, 2), 11_689_512),  # ResNet-18
        ("basic", (3, 4, 6, 3), 21_797_672),  # 34
        ("bottleneck", (3, 4, 6, 3), 25_557_032),  # 50
        ("bottleneck", (3, 4, 23, 3), 44_549_160),  # 101
    ],
)
def test_parameters_are_those_of_torchvision(block: str, depths: tuple[int, ...], parameters: int) -> None:
    with torch.device("meta"):
        model = ch.build("resnet", block=block, depths=depths)
    assert sum(p.numel() for p in model.parameters()) == parameters

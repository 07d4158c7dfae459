"""Pooling, rotary positions on a grid and patches of our vision transformer, written out; published sizes."""

import pytest
import torch
import torch.nn.functional as F
from compare import HIDDEN, B, D, H, adopt_twin, both, match, noise
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Block, Patches, Rotary2d, grid, skip_rows

DEPTH, PATCH, SIZE, CLASSES, EPS = 2, 4, (8, 12), 4, 1e-3
SIZES = {
    "width": D, "depth": DEPTH, "heads": H, "hidden": HIDDEN, "eps": EPS, "patch": PATCH, "size": SIZE,
    "classes": CLASSES,
}  # fmt: skip


@both
def test_pooling_by_attention_is_the_sequence_pooling_of_cct(dtype: torch.dtype) -> None:
    """Hassani et al. 2021, Eq. 2 and 3: softmax(g(x)) x, with a linear map g to one number per token."""
    options = {**SIZES, "pool": "attention", "stem": "conv", "size": 8}
    mine, twin = ch.build("vit", **options), ch.build("vit", **options)
    pairs = adopt_twin(mine, twin, dtype)

    def written(x: Tensor) -> Tensor:
        for layer in twin.embed.project.layers:
            x = F.max_pool2d(F.relu(F.conv2d(x, layer.weight, padding=1)), kernel_size=3, stride=2, padding=1)
        tokens = x.flatten(2).transpose(1, 2) + twin.embed.places
        for block in twin.blocks:
            tokens = block(tokens)
        tokens = F.layer_norm(tokens, (D,), twin.norm.weight, twin.norm.bias, EPS)
        weights = (tokens @ twin.pool_query[0, 0]).softmax(-1)
        return twin.head(torch.einsum("bt,btd->bd", weights, tokens))

    match(mine, written, noise(dtype, (B, 3, 8, 8)), pairs)


@both
def test_rotary_positions_rotate_by_row_and_column(dtype: torch.dtype) -> None:
    """As complex numbers: the pairs i and i + e/2 are multiplied by exp(i speed row), exp(i speed column)."""
    head, rows, columns = 12, 3, 4
    q, k = noise(dtype, (B, H, rows * columns, head), (B, H, rows * columns, head))
    at = grid(rows, columns)
    speed = 100.0 ** -(torch.arange(3, dtype=torch.float64) / 3)

    def turned(x: Tensor) -> Tensor:
        z = torch.complex(x[..., : head // 2], x[..., head // 2 :])
        angle = torch.cat([at[:, :1] * speed, at[:, 1:] * speed], dim=-1).to(dtype)
        z = z * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([z.real, z.imag], dim=-1)

    match(lambda q, k: Rotary2d(head).turn(q, k, at), lambda q, k: (turned(q), turned(k)), [q, k])


def test_scores_with_rotary_positions_depend_only_on_the_difference_of_places() -> None:
    positions = Rotary2d(8)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(a: tuple[float, float], b: tuple[float, float]) -> float:
        turned, _ = positions.turn(q, q, torch.tensor([a]))
        _, other = positions.turn(k, k, torch.tensor([b]))
        return float((turned * other).sum())

    assert score((1, 2), (4, 3)) == pytest.approx(score((5, 0.5), (8, 1.5)), abs=1e-5)
    assert score((1, 2), (4, 3)) != pytest.approx(score((1, 2), (3, 4)), abs=1e-3)


def test_patch_projection_is_a_linear_map_of_the_pixels_of_each_patch() -> None:
    """The patches (b, y x, c p p) times a matrix (c p p, d): all channels of a patch, not the pixels alone."""
    patches = Patches(D, patch=PATCH, grid=(2, 3), cls=False, positions="none").double()
    x = torch.randn(B, 3, *SIZE, dtype=torch.float64)
    cut = x.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # (b, c, y, x, p, p)
    flat = cut.permute(0, 2, 3, 1, 4, 5).reshape(B, 6, 3 * PATCH * PATCH)
    matrix = patches.project.weight.reshape(D, -1)
    torch.testing.assert_close(patches(x), flat @ matrix.T + patches.project.bias)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_a_convolution_of_the_lecture_has_1216_parameters() -> None:
    assert count(nn.Conv2d(3, 16, 5)) == 1_216  # 16 x (5 x 5 x 3 + 1)


@pytest.mark.parametrize(
    ("width", "depth", "heads", "patch", "millions", "exactly"),
    [
        (768, 12, 12, 16, 86, 86_567_656),
        (1024, 24, 16, 32, 307, 306_535_400),
        (1024, 24, 16, 16, 307, 304_326_632),
        (1280, 32, 16, 14, 632, 632_045_800),
    ],
)
def test_parameters_of_table_1_of_the_paper(
    width: int, depth: int, heads: int, patch: int, millions: int, exactly: int
) -> None:
    """Base, Large and Huge of Table 1 of Dosovitskiy et al. 2021, rounded there; torchvision publishes these."""
    with torch.device("meta"):
        model = ch.build("vit", width=width, depth=depth, heads=heads, patch=patch)
    assert count(model) == exactly
    assert abs(exactly / 1e6 - millions) < 3.0


def test_vit_base_has_the_parameters_of_other_implementations() -> None:
    with torch.device("meta"):
        assert count(ch.build("vit")) == 86_567_656
        cct = {"classes": 10, "size": 32, "patch": 2, "stem": "conv", "pool": "attention"}
        assert count(ch.build("vit", **cct, width=256, depth=7, heads=4, hidden=512)) == 3_765_514


def test_skipped_rows_pass_a_block_unchanged_and_the_mean_stays() -> None:
    torch.manual_seed(0)
    block, x = Block(12, heads=3, skip=0.5).requires_grad_(False), torch.randn(400, 2, 12)
    unchanged = (block.train()(x) == x).flatten(1).all(1).float().mean()
    assert float(unchanged) == pytest.approx(0.25, abs=0.07)  # both sublayers are skipped
    assert not (block.eval()(x) == x).flatten(1).all(1).any()
    mean = skip_rows(torch.ones(4000, 3), 0.2).mean(0)
    torch.testing.assert_close(mean, torch.ones(3), rtol=0.0, atol=0.05)

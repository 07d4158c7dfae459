"""Our vision transformer against transformers' ViT and DINOv2 with registers; pooling, positions, published sizes."""

import pytest
import torch
import torch.nn.functional as F
from compare import HIDDEN, B, D, H, Table, adopt, adopt_twin, both, layers, match, noise, vit_block, whole
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Block, Patches, Rotary2d, grid, skip_rows

DEPTH, PATCH, SIZE, CLASSES, EPS = 2, 4, (8, 12), 4, 1e-3
SIZES = {
    "width": D, "depth": DEPTH, "heads": H, "hidden": HIDDEN, "eps": EPS, "patch": PATCH, "size": SIZE,
    "classes": CLASSES,
}  # fmt: skip


def theirs(size: int | tuple[int, int] = SIZE) -> nn.Module:
    vit = pytest.importorskip("transformers.models.vit.modeling_vit")
    config = vit.ViTConfig(  # their eager attention computes its softmax in float32
        hidden_size=D, num_hidden_layers=DEPTH, num_attention_heads=H, intermediate_size=HIDDEN, image_size=size,
        patch_size=PATCH, layer_norm_eps=EPS, num_labels=CLASSES, attn_implementation="sdpa",
    )  # fmt: skip
    return vit.ViTForImageClassification(config)


def table(oracle: nn.Module) -> Table:
    result: Table = {
        "embed.cls": ("vit.embeddings.cls_token", whole),
        "embed.cls_place": ("vit.embeddings.position_embeddings", lambda w: w[0, :1]),
        "embed.places": ("vit.embeddings.position_embeddings", lambda w: w[0, 1:]),
        **layers({"embed.project": "vit.embeddings.patch_embeddings.projection", "norm": "vit.layernorm"}),
        **layers({"head": "classifier"}),
    }
    stack = "vit.layers" if hasattr(oracle.vit, "layers") else "vit.encoder.layer"
    for i, block in enumerate(oracle.get_submodule(stack)):
        result |= layers({f"blocks.{i}.{a}": f"{stack}.{i}.{b}" for a, b in vit_block(block).items()})
    return result


@both
def test_class_logits(dtype: torch.dtype) -> None:
    mine, oracle = ch.build("vit", **SIZES), theirs()
    pairs = adopt(mine, oracle, table(oracle), dtype)
    match(mine, lambda x: oracle(x).logits, noise(dtype, (B, 3, *SIZE)), pairs)


@both
def test_class_logits_of_images_of_another_size(dtype: torch.dtype) -> None:
    mine, oracle = ch.build("vit", **SIZES | {"size": 12}), theirs(12)
    pairs = adopt(mine, oracle, table(oracle), dtype)
    other = noise(dtype, (B, 3, 4 * PATCH, 5 * PATCH))
    match(mine, lambda x: oracle(x, interpolate_pos_encoding=True).logits, other, pairs)


@both
def test_registers_layer_scale_and_both_poolings_against_dinov2(dtype: torch.dtype) -> None:
    name = "dinov2_with_registers"
    dinov2 = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    config = dinov2.Dinov2WithRegistersConfig(
        hidden_size=D, num_hidden_layers=DEPTH, num_attention_heads=H, mlp_ratio=2, image_size=8, patch_size=PATCH,
        num_register_tokens=2, layer_norm_eps=EPS, num_labels=CLASSES, attn_implementation="sdpa",
    )  # fmt: skip
    oracle = dinov2.Dinov2WithRegistersForImageClassification(config)
    names = dict(oracle.named_parameters())
    mine = ch.build(
        "vit", **SIZES | {"size": 8, "hidden": 2 * D}, registers=2, layer_scale=1.0, pool="both"
    )  # fmt: skip
    body = next(n for n in names if n.endswith("cls_token")).removesuffix("embeddings.cls_token")
    first = next(n for n in names if n.endswith("0.norm1.weight")).removesuffix("0.norm1.weight")
    theirs_of = {
        "attn.query": ("attention.attention.query", "attention.q_proj"),
        "attn.key": ("attention.attention.key", "attention.k_proj"),
        "attn.value": ("attention.attention.value", "attention.v_proj"),
        "attn.out": ("attention.output.dense", "attention.o_proj"),
        "attn_norm": ("norm1",), "mlp_norm": ("norm2",), "mlp.up": ("mlp.fc1",), "mlp.down": ("mlp.fc2",),
    }  # fmt: skip
    places: Table = {
        "embed.cls": (f"{body}embeddings.cls_token", whole),
        "embed.registers": (f"{body}embeddings.register_tokens", whole),
        "embed.cls_place": (f"{body}embeddings.position_embeddings", lambda w: w[0, :1]),
        "embed.places": (f"{body}embeddings.position_embeddings", lambda w: w[0, 1:]),
        **layers({"embed.project": f"{body}embeddings.patch_embeddings.projection", "norm": f"{body}layernorm"}),
        **layers({"head": "classifier"}),
    }
    for i in range(DEPTH):
        at = f"{first}{i}."
        chosen = {a: next(x for x in b if f"{at}{x}.weight" in names) for a, b in theirs_of.items()}
        places |= layers({f"blocks.{i}.{a}": f"{at}{b}" for a, b in chosen.items()})
        places[f"blocks.{i}.attn_scale"] = (f"{at}layer_scale1.lambda1", whole)
        places[f"blocks.{i}.mlp_scale"] = (f"{at}layer_scale2.lambda1", whole)
    # Their mask token, for pretraining, takes no part in this.
    oracle.get_submodule(body + "embeddings").mask_token = None
    pairs = adopt(mine, oracle, places, dtype)

    # Their classifier takes the mean of the patches, and in some versions of the registers too.
    hidden = oracle.get_submodule(body[:-1])

    def written(x: Tensor) -> Tensor:
        out = hidden(x).last_hidden_state
        return oracle.classifier(torch.cat([out[:, 0], out[:, 3:].mean(1)], dim=-1))

    match(mine, written, noise(dtype, (B, 3, 8, 8)), pairs)


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

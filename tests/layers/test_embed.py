"""Embeddings of token ids and image patches, and dropout."""

import math

import pytest
import torch

from clearhead.layers import MLP, Attention, Block, Patches, SinCos2d, Tokens, grid, resize

WIDTH = 12


@pytest.mark.parametrize(("scale", "factor"), [(False, 1.0), (True, math.sqrt(WIDTH))])
def test_tokens_are_rows_of_the_table(scale, factor):
    tokens, ids = Tokens(5, WIDTH, scale=scale), torch.tensor([[3, 0, 3], [4, 4, 1]])
    torch.testing.assert_close(tokens(ids), tokens.table[ids] * factor)


def test_scaled_tokens_start_as_large_as_positions():
    """Rows of variance 1/d, times sqrt(d): each number of a token has variance 1, comparable to a sinusoid."""
    torch.manual_seed(0)
    tokens = Tokens(1000, 64, scale=True).requires_grad_(False)
    assert abs(float(tokens(torch.arange(1000)[None]).std()) - 1) < 0.02


@pytest.mark.parametrize("scale", [False, True])
def test_the_logits_are_products_with_the_embedding_table(scale):
    """Never scaled; embedding and logits add their gradients in the one parameter."""
    torch.manual_seed(0)
    tokens = Tokens(5, WIDTH, scale=scale)
    assert [name for name, _ in tokens.named_parameters()] == ["table"]
    x = torch.randn(2, 3, WIDTH)
    torch.testing.assert_close(tokens.logits(x), torch.einsum("btd,vd->btv", x, tokens.table))
    ids = torch.tensor([[1, 2]])
    embedded = torch.autograd.grad(tokens(ids).sum(), tokens.table)[0]
    logits = torch.autograd.grad(tokens.logits(tokens(ids).detach()).sum(), tokens.table)[0]
    both = torch.autograd.grad(tokens(ids).sum() + tokens.logits(tokens(ids).detach()).sum(), tokens.table)[0]
    torch.testing.assert_close(both, embedded + logits)


def test_a_nan_row_of_the_table_reaches_its_own_id_only():
    tokens = Tokens(5, WIDTH).requires_grad_(False)
    tokens.table[2] = float("nan")
    assert tokens(torch.tensor([[1, 2, 3]])).isnan().any(-1).tolist() == [[False, True, False]]


@pytest.mark.parametrize("positions", ["learned", "sincos2d", "none"])
@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("cls", [False, True])
def test_class_token_and_registers_come_before_the_patches(cls, registers, positions):
    torch.manual_seed(0)
    patches = Patches(WIDTH, patch=(4, 2), channels=2, grid=(2, 3), cls=cls, registers=registers, positions=positions)
    tokens = patches(torch.randn(3, 2, 8, 6))
    assert patches.special == cls + registers
    assert patches.size(8, 6) == (2, 3)
    assert tokens.shape == (3, patches.special + 6, WIDTH)
    before = tokens[:, : patches.special]
    torch.testing.assert_close(before, before[:1].expand_as(before))  # independent of the image
    if cls:
        place = 0 if patches.cls_place is None else patches.cls_place
        torch.testing.assert_close(before[0, :1], patches.cls[0] + place)
    if registers:
        torch.testing.assert_close(before[0, cls:], patches.registers[0])


def test_patches_are_in_row_major_order():
    """A changed pixel changes only its own patch, number y * columns + x."""
    patches = Patches(WIDTH, patch=(4, 2), channels=1, grid=(2, 3), cls=True, registers=1)
    image = torch.randn(1, 1, 8, 6)
    for y, x in ((0, 0), (3, 5), (4, 1), (7, 4)):
        other = image.clone()
        other[0, 0, y, x] += 1
        changed = (patches(other) != patches(image)).any(-1)[0].nonzero().flatten().tolist()
        assert changed == [patches.special + y // 4 * 3 + x // 2]


def test_a_patch_is_a_linear_map_of_its_pixels():
    patches = Patches(WIDTH, patch=(4, 2), channels=3, grid=(2, 3), cls=False, positions="none")
    image = torch.randn(2, 3, 8, 6)
    pixels = image.unflatten(3, (3, 2)).unflatten(2, (2, 4)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    expected = pixels @ patches.project.weight.flatten(1).T + patches.project.bias
    torch.testing.assert_close(patches(image), expected)


def position_vectors(positions: str, size: tuple[int, int], **more) -> torch.Tensor:
    """The position vectors (t, d) of a grid of patches, from a table for 4 x 6 patches."""
    torch.manual_seed(0)
    patches = Patches(WIDTH, patch=2, channels=1, grid=(4, 6), cls=False, positions=positions, **more)
    with torch.no_grad():
        patches.project.weight.zero_(), patches.project.bias.zero_()
        return patches(torch.zeros(1, 1, 2 * size[0], 2 * size[1]))[0]


def test_a_grid_of_the_original_size_is_not_interpolated():
    torch.manual_seed(0)
    patches = Patches(WIDTH, patch=2, channels=1, grid=(4, 6), cls=False)
    assert resize(patches.places, (4, 6), (4, 6)) is patches.places
    assert torch.equal(position_vectors("learned", (4, 6)), position_vectors("none", (4, 6)) + patches.places)
    torch.testing.assert_close(position_vectors("sincos2d", (4, 6)), SinCos2d(WIDTH).vectors(grid(4, 6)).float())


def test_learned_positions_are_interpolated_along_both_axes():
    """A table that grows along y only still does so at other sizes, tall or wide."""
    table = torch.arange(4.0)[:, None, None].expand(4, 6, WIDTH).reshape(24, WIDTH)
    for size in ((8, 6), (8, 3), (2, 12)):
        wide = resize(table, (4, 6), size).reshape(*size, WIDTH)
        torch.testing.assert_close(wide, wide[:, :1, :1].expand_as(wide))
        assert (wide[:, 0, 0].diff() > 0).all()


@pytest.mark.parametrize("factor", [(2, 2), (1, 3), (3, 2)])
def test_sincos2d_of_a_finer_grid_covers_the_same_range(factor):
    """Every n-th patch of a finer grid has the position of a patch of the coarse one."""
    fine = (4 * factor[0], 6 * factor[1])
    every = position_vectors("sincos2d", fine).reshape(*fine, WIDTH)[:: factor[0], :: factor[1]]
    torch.testing.assert_close(every.reshape(24, WIDTH), position_vectors("sincos2d", (4, 6)))


def test_resize_refuses_a_table_of_another_size():
    for count in (23, 25, 1):
        with pytest.raises(ValueError, match=f"{count} positions are not a grid of 4 x 6"):
            resize(torch.zeros(count, 3), (4, 6), (4, 6))


LAYERS = {
    "attention": lambda p: Attention(WIDTH, 3, dropout=p),
    "mlp": lambda p: MLP(WIDTH, dropout=p),
    "pre": lambda p: Block(WIDTH, 3, dropout=p),
    "post": lambda p: Block(WIDTH, 3, order="post", mlp="swiglu", dropout=p),
}


def seeded(make, seed: int):
    torch.manual_seed(seed)
    return make()


@pytest.mark.parametrize("layer", LAYERS)
def test_dropout_is_for_training_only_and_repeats_with_the_seed(layer):
    x = seeded(lambda: torch.randn(2, 7, WIDTH), 0)
    plain, dropping = (seeded(lambda p=p: LAYERS[layer](p), 1) for p in (0.0, 0.4))
    assert torch.equal(dropping.eval()(x), plain.eval()(x))
    assert torch.equal(plain.train()(x), plain.eval()(x))
    dropping.train()
    first, again, other = (seeded(lambda: dropping(x), seed) for seed in (2, 2, 3))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, dropping.eval()(x))


@pytest.mark.parametrize("layer", ["mlp", "attention"])
def test_dropout_keeps_the_mean(layer):
    """What is kept is scaled up: the mean over many draws is the output without dropout."""
    x = seeded(lambda: torch.randn(1, 5, WIDTH), 0)
    dropping = seeded(lambda: LAYERS[layer](0.3), 1).requires_grad_(False)
    many = dropping.train()(x.expand(4000, -1, -1))
    torch.testing.assert_close(many.mean(0), dropping.eval()(x)[0], atol=0.03, rtol=0)


def test_a_block_drops_the_outputs_of_its_sublayers():
    """Where both are dropped, a pre-norm block returns x; elsewhere it does not."""
    torch.manual_seed(0)
    block, x = Block(WIDTH, 3, dropout=0.5).train(), torch.randn(200, 7, WIDTH)
    same = (block(x) == x).float().mean()
    assert abs(float(same) - 0.25) < 0.02

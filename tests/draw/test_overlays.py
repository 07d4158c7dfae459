"""Values over images and texts: the colours that are drawn."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb, to_rgba

from clearhead import draw
from clearhead.draw.images import DIM
from clearhead.draw.style import BLUES, ORANGES, PALETTE

PICTURE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def drawn(axes):
    return [np.asarray(image.get_array()) for image in axes.get_images()]


def test_values_are_blue_above_zero_orange_below_and_clear_at_zero():
    left, right = draw.signed_overlay([[0.0, 2.0], [-2.0, 1.0]], PICTURE, title="Title").axes
    assert np.array_equal(drawn(left)[0], PICTURE)
    grey, paint = drawn(right)
    assert (grey[..., 0] == grey[..., 2]).all()
    assert np.allclose(paint[0, 1], to_rgba(BLUES[6]), atol=0.02)
    assert np.allclose(paint[1, 0], to_rgba(ORANGES[6]), atol=0.02)
    assert paint[0, 0, 3] == 0
    assert 0 < paint[1, 1, 3] < 1
    assert list(right.get_images()[1].get_extent()) == [0, 8, 6, 0]


@pytest.mark.parametrize(
    "figure",
    [
        lambda **words: draw.signed_overlay([[0.0, 2.0], [-2.0, 1.0]], PICTURE, **words),
        lambda **words: draw.coloured_tokens(["A", " dog"], [1.0, -1.0], **words),
    ],
    ids=["image", "text"],
)
def test_a_legend_says_what_the_colours_mean(figure):
    legend = figure(above="for cat", below="against cat").legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["for cat", "against cat"]
    blue, orange = (patch.get_facecolor() for patch in legend.get_patches())
    assert blue[2] > blue[0]
    assert orange[0] > orange[2]
    assert [text.get_text() for text in figure(above="important").legends[0].get_texts()] == ["important"]
    assert not figure().legends


def test_values_without_an_image_are_drawn_alone():
    (axes,) = draw.signed_overlay([[0.0, 2.0]]).axes
    assert len(axes.get_images()) == 1
    assert len(draw.signed_overlay(np.zeros((2, 2)), PICTURE).axes) == 2


def test_each_place_has_the_colour_of_its_strongest_head():
    maps = np.zeros((3, 2, 2))
    maps[0, 0, 0], maps[1, 0, 1], maps[1, 1, 1], maps[2, 1, 1] = 0.5, 0.2, 0.1, 0.9
    figure = draw.head_colours(maps, PICTURE, keep=1.0)
    left, right = figure.axes
    assert np.array_equal(drawn(left)[0], PICTURE)
    base, paint = drawn(right)
    for place, head in (((0, 0), 0), ((0, 1), 1), ((1, 1), 2)):
        assert np.allclose(paint[place][:3], to_rgb(PALETTE[head]))
        assert paint[place][3] == pytest.approx(1)
    assert paint[1, 0, 3] == 0
    assert base.max() <= DIM
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["head 0", "head 1", "head 2"]


def test_only_the_largest_weights_of_a_head_are_shown():
    right = draw.head_colours([[[0.5, 0.3, 0.15, 0.05]]], keep=0.6).axes[1]
    assert (drawn(right)[1][0, :, 3] > 0).tolist() == [True, True, False, False]


def test_many_heads_have_colours_of_their_own():
    figure = draw.head_colours(np.eye(12).reshape(12, 3, 4), keep=0.9)
    colours = {tuple(patch.get_facecolor()) for patch in figure.legends[0].get_patches()}
    assert len(colours) == 12


def test_tokens_are_coloured_and_wrapped():
    figure = draw.coloured_tokens(["A", " dog", "gy", " $x$\n"], [0.0, 1.0, -1.0, 0.5], across=9, title="T")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["A", "dog", "gy", "$x$⏎"]
    boxes = [patch.get_facecolor() for patch in axes.patches]
    assert np.allclose(boxes[1], to_rgba(BLUES[6]), atol=0.02)
    assert np.allclose(boxes[2], to_rgba(ORANGES[6]), atol=0.02)
    assert np.allclose(boxes[0][:3], 250 / 255, atol=0.02)
    rows = [patch.get_y() for patch in axes.patches]
    assert rows[0] == rows[1] == rows[2] < rows[3]
    starts = [patch.get_x() for patch in axes.patches]
    assert starts[2] == pytest.approx(starts[1] + axes.patches[1].get_width())  # of one word, without a space


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw.coloured_tokens(["a"], [1.0, 2.0]), "1 tokens and 2 values"),
        (lambda: draw.coloured_tokens(["a"], [1.0], most=0.0), "most=0"),
        (lambda: draw.coloured_tokens(["a"], [1.0], across=0), "across=0"),
        (lambda: draw.head_colours([[[1.0]]], keep=0.0), "keep=0.0"),
        (lambda: draw.head_colours([[[-1.0]]]), "maps goes down to -1"),
        (lambda: draw.signed_overlay([1.0]), r"values has shape \(1,\): expected \(rows, columns\)"),
        (lambda: draw.signed_overlay([[1.0]], PICTURE[..., 0]), "picture has shape"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

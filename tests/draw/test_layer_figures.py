"""Figures of layers: similarities, points, grids of pictures."""

import numpy as np
import pytest

from clearhead import draw
from clearhead.errors import InputError


def test_the_first_layers_are_at_the_bottom_left_and_named():
    figure = draw.similarity([[1.0, 0.2, -0.01], [0.2, 1.0, 0.5]], rows=["a", "b"], columns=["x", "y", "z"])
    axes = figure.axes[0]
    assert axes.get_ylim() == (-0.5, 1.5)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["x", "y", "z"]
    (image,) = axes.get_images()
    assert image.get_clim() == (0.0, 1.0)
    assert image.get_array()[0, 2] == 0
    with pytest.raises(InputError, match="expected similarities from -1 to 1"):
        draw.similarity([[2.0]])


def test_points_have_the_colour_of_their_class_and_more_than_seven_classes_other_shapes():
    points = np.random.default_rng(0).normal(size=(40, 2))
    figure = draw.scatter(points, labels=[f"class {i % 10}" for i in range(40)], texts=["word", *[""] * 39])
    groups = figure.axes[0].collections
    assert [len(group.get_offsets()) for group in groups] == [4] * 10
    colours = [tuple(group.get_facecolor()[0]) for group in groups]
    assert len(set(colours)) == 7
    assert colours[0] == colours[7]
    assert len(groups[0].get_paths()[0].vertices) != len(groups[7].get_paths()[0].vertices)
    assert [text.get_text() for text in figure.axes[0].texts] == ["word"]
    assert len(figure.legends[0].get_texts()) == 10
    many = draw.scatter(points, labels=list(range(40)))
    assert [text.get_text() for text in many.legends[0].get_texts()][-1] == "others"
    assert not draw.scatter(points).legends
    with pytest.raises(InputError, match=r"expected \(points, 2\)"):
        draw.scatter(np.zeros((4, 3)))
    with pytest.raises(InputError, match="labels has 1 entries: expected 40"):
        draw.scatter(points, labels=["a"])


def test_tiles_are_colours_or_maps_with_a_scale_each():
    maps = np.stack([np.eye(3), -5 * np.eye(3)])
    figure = draw.tiles(maps, titles=["a", "b"], signed=True, across=2)
    assert [axes.get_images()[0].get_clim() for axes in figure.axes] == [(-1.0, 1.0), (-5.0, 5.0)]
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    assert draw.tiles(np.ones((5, 2, 2))).axes[0].get_images()[0].get_clim() == (1.0, 2.0)
    assert len(draw.tiles(np.zeros((5, 2, 4, 3), np.uint8)).axes) == 5
    (box,) = draw.tiles(np.zeros((1, 4, 6)), boxes=[(-1.0, 1.0, 3.0, 9.0)]).axes[0].patches  # cut at the edges
    assert (box.get_x(), box.get_y(), box.get_width(), box.get_height()) == (-0.5, 0.5, 3.0, 3.0)
    with pytest.raises(InputError, match="boxes has 1 boxes: expected 2"):
        draw.tiles(maps, boxes=[(0.0, 0.0, 1.0, 1.0)])
    for bad, problem in (
        (np.zeros((2, 3)), "expected \\(n, height, width\\)"),
        (np.full((2, 3, 3, 3), 1.5), "numbers from 0 to 1"),
        (np.full((2, 3, 3), np.nan), "expected finite"),
    ):
        with pytest.raises(InputError, match=problem):
            draw.tiles(bad)

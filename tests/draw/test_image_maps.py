"""Maps over images: smooth enlargement, overlays on one scale, and the strip of a caption."""

import numpy as np
import pytest

from clearhead import draw

IMAGE = np.full((48, 60, 3), 120, np.uint8)


def test_a_smooth_map_keeps_constants_peaks_and_sums():
    np.testing.assert_allclose(draw.smooth_map(np.full((3, 4), 0.25), 30, 50), 0.25)
    one = np.zeros((6, 5))
    one[2, 3] = 1.0
    large = draw.smooth_map(one, 60, 100)
    row, column = np.unravel_index(large.argmax(), large.shape)
    assert (20 <= row < 30, 60 <= column < 80) == (True, True)
    assert large.min() >= 0
    assert large.max() <= 1
    steps = np.abs(np.diff(large, axis=0)).max()
    assert steps < 0.12  # no edges between cells of 10 pixels, which would be a step of 1


def test_rows_and_columns_are_not_exchanged():
    top = draw.smooth_map([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], 40, 90)
    assert top[:10].min() > 0.7
    assert top[-10:].max() < 0.3
    np.testing.assert_allclose(top, top[:, :1].repeat(90, axis=1))


def test_an_overlay_lights_the_place_and_dims_the_rest_in_its_colours():
    weights = np.zeros((4, 5))
    weights[0, 4] = 0.6
    lit = draw.overlay(IMAGE, weights)
    assert lit.dtype == np.uint8
    assert lit.shape == IMAGE.shape
    assert lit[2, 57].mean() > 120 > 60 < lit[40, 5].min()
    assert lit[2, 57, 0] > lit[2, 57, 2] + 50  # the light has a colour
    colourful = IMAGE * np.array([1, 0, 1], np.uint8)
    assert draw.overlay(colourful, weights)[40, 5].tolist() == [66, 0, 66]
    assert np.array_equal(lit, draw.overlay(IMAGE, 7 * weights))  # its own largest weight is fully lit
    half = draw.overlay(IMAGE, weights, most=1.2)
    assert 66 < half[2, 57, 0] < lit[2, 57, 0]


def test_an_overlay_of_zeros_is_dim_and_not_a_failure():
    assert np.unique(draw.overlay(IMAGE, np.zeros((2, 2)))).tolist() == [66]


def test_a_strip_has_the_image_and_a_panel_per_word_each_on_a_scale_of_its_own():
    maps = np.zeros((7, 3, 3))
    maps[:, 1, 1] = np.linspace(0.1, 1.0, 7)
    maps[6] = 0.5  # looks everywhere
    maps[6, 1, 1] = 0.51
    words = ["a", "dog", "runs", "on", "the", "green", "grass"]
    figure = draw.strip(IMAGE, maps, words, title="a dog", across=3)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["", *words]
    pictures = [axes.get_images()[0].get_array() for axes in shown]
    assert np.array_equal(pictures[0], IMAGE)
    middle = [int(picture[24, 30, 0]) for picture in pictures[1:]]
    assert len(set(middle[:6])) == 1
    assert middle[0] > 120 > middle[6]
    assert all(picture.min() > 50 for picture in pictures)  # the photograph can be seen everywhere


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((IMAGE.astype(float), np.ones((1, 2, 2)), ["a"]), r"expected uint8 \(height, width, 3\)"),
        ((IMAGE, np.ones((2, 2, 2)), ["a"]), "1 words for 2 maps"),
        ((IMAGE, -np.ones((1, 2, 2)), ["a"]), "maps"),
        ((IMAGE, np.ones((2, 2)), ["a"]), r"maps has shape \(2, 2\): expected \(words, y, x\)"),
    ],
    ids=["float image", "words", "negative", "one map"],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw.strip(*arguments)

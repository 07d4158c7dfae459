"""Images side by side: the pixels that are drawn, and the shade of a map over them."""

import numpy as np
import pytest

from clearhead import draw
from clearhead.draw.style import DIM, GLOW, LIGHT, NARROW

PICTURE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def drawn(axes):
    return [np.asarray(image.get_array()) for image in axes.get_images()]


def test_an_image_is_drawn_as_it_is():
    figure = draw.images({"first": PICTURE, "second": PICTURE / 255}, title="Two")
    first, second = figure.axes
    assert np.array_equal(drawn(first)[0], PICTURE)
    assert np.allclose(drawn(second)[0], PICTURE / 255)
    assert [axes.get_title() for axes in figure.axes] == ["first", "second"]
    assert figure.get_suptitle() == "Two"


def test_a_map_is_dim_at_zero_lit_at_its_largest_weight_and_covers_the_image():
    weights = [[0.0, 0.1, 0.2], [0.4, 0.05, 0.0]]
    (axes,) = draw.images({"image": PICTURE}, maps={"image": weights}).axes
    picture, shade = axes.get_images()
    share = np.array(weights) / 0.4
    assert np.allclose(drawn(axes)[1][..., 3], DIM * (1 - share) + GLOW * share)
    assert (drawn(axes)[1][0, 0, :3] == 0).all()
    assert np.allclose(drawn(axes)[1][1, 0, :3], LIGHT)
    assert list(picture.get_extent()) == list(shade.get_extent()) == [0, 8, 6, 0]


def test_few_images_are_as_wide_as_the_figures_of_many():
    for count in (1, 2, 4):
        figure = draw.images({str(i): PICTURE for i in range(count)})
        assert figure.get_size_inches()[0] >= NARROW
        assert draw.tiles(np.zeros((count, 3, 3))).get_size_inches()[0] >= NARROW


def test_a_map_of_zeros_is_dim_everywhere():
    (axes,) = draw.images({"image": PICTURE}, maps={"image": np.zeros((2, 2))}).axes
    assert (drawn(axes)[1][..., 3] == DIM).all()


def test_rows_of_images_leave_the_last_places_empty():
    figure = draw.images({str(i): PICTURE for i in range(5)}, across=3)
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]


@pytest.mark.parametrize(
    ("pictures", "options", "message"),
    [
        ({}, {}, "images got no images"),
        ({"a": PICTURE[..., 0]}, {}, r"a has shape \(6, 8\): expected \(height, width, channels\)"),
        ({"a": PICTURE[..., :2]}, {}, r"a has shape \(6, 8, 2\) .*: expected 3 channels"),
        ({"a": PICTURE.astype(float)}, {}, "a has shape .* expected 3 channels, uint8 or 0 to 1"),
        ({"a": PICTURE}, {"maps": {"b": [[1.0]]}}, "maps has 'b': expected names of images: a"),
        ({"a": PICTURE}, {"maps": {"a": [[-1.0]]}}, "a goes down to -1: expected weights of 0 or more"),
        ({"a": PICTURE}, {"across": 0}, "across=0: expected 1 image or more in a row"),
    ],
)
def test_wrong_images_are_refused(pictures, options, message):
    with pytest.raises(ValueError, match=message):
        draw.images(pictures, **options)

"""Matrices as cells: the values that are drawn, their names, and the colour scale from 0."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clearhead import draw

WORDS = ["the", "cat", "sat", "on", "it", "$", "a\nb"]


def drawn(axes):
    (image,) = axes.get_images()
    return np.ma.filled(image.get_array(), np.nan)


def panels(figure):
    return [axes for axes in figure.axes if axes.get_images()]


def texts(labels):
    return [label.get_text() for label in labels]


def weights(*shape):
    return np.random.default_rng(0).random(shape)


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(0, 1e6)))
def test_a_heatmap_shows_the_weights_on_a_scale_from_zero(x):
    (axes, *_) = draw.heatmap(x).axes
    assert np.array_equal(drawn(axes), x)
    low, high = axes.get_images()[0].get_clim()
    assert low == 0
    assert high == (x.max() if x.max() > 1e-280 else 1.0)


def test_names_title_and_labels_are_shown():
    figure = draw.heatmap(weights(3, 5), rows=WORDS[:3], columns=WORDS[:5], title="A head", xlabel="source")
    axes = figure.axes[0]
    assert texts(axes.get_yticklabels()) == WORDS[:3]
    assert texts(axes.get_xticklabels()) == WORDS[:5]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("A head", "source", "queries")


def test_dollars_and_line_breaks_in_names_are_escaped(tmp_path):
    figure = draw.heatmap(weights(7, 7), rows=WORDS, columns=WORDS)
    assert texts(figure.axes[0].get_yticklabels())[-2:] == [r"\$", r"a\nb"]
    assert draw.save(figure, tmp_path / "odd.png").stat().st_size > 0


def test_names_of_spaces_are_seen():
    figure = draw.heatmap(weights(3, 3), rows=[" ", "  ", " a"])
    assert texts(figure.axes[0].get_yticklabels()) == ["␣", "␣␣", " a"]


def test_only_some_of_many_names_are_shown():
    n = 200
    figure = draw.heatmap(weights(n, n), rows=[str(i) for i in range(n)])
    shown = texts(figure.axes[0].get_yticklabels())
    assert len(shown) <= 48
    assert shown[:3] == ["0", "5", "10"]


def test_empty_names_are_not_shown():
    names = [f"{i}" if i % 20 == 7 else "" for i in range(200)]
    axes = draw.heatmap(weights(200, 200), rows=names, columns=names, square=False).axes[0]
    assert texts(axes.get_yticklabels()) == texts(axes.get_xticklabels()) == [f"{i}" for i in range(7, 200, 20)]
    assert axes.get_yticks().tolist() == list(range(7, 200, 20))
    assert axes.get_xticklabels()[0].get_rotation() == 0  # there is room between them
    assert axes.get_aspect() == "auto"


def test_long_names_of_columns_are_slanted():
    long = draw.heatmap(weights(2, 9), columns=["a long name"] * 9).axes[0].get_xticklabels()
    short = draw.heatmap(weights(2, 9), columns=list("abcdefghi")).axes[0].get_xticklabels()
    assert long[0].get_rotation() == 50
    assert short[0].get_rotation() == 0


def test_words_are_written_into_the_cells_and_widen_them():
    names = [["a", "b"], ["$c", "a long word"]]
    figure = draw.heatmap([[0.0, 0.25], [0.5, 1.0]], words=names, scale="KL", square=False)
    axes, bar = figure.axes
    assert [text.get_text() for text in axes.texts] == ["a", "b", "$c", "a long word"]
    assert bar.get_ylabel() == "KL"
    long = draw.heatmap(np.ones((1, 12)), words=[["a longer word"] * 12], square=False)
    assert long.get_size_inches()[0] > figure.get_size_inches()[0]
    with pytest.raises(ValueError, match="expected a text for each cell of 2 rows and 2 columns"):
        draw.heatmap([[0.0, 0.25], [0.5, 1.0]], words=[["a", "b"]])


def test_digits_are_written_into_the_cells_in_a_contrasting_colour():
    figure = draw.heatmap([[0.0, 0.25], [0.5, 1.0]], digits=2)
    written = figure.axes[0].texts
    assert texts(written) == ["0.00", "0.25", "0.50", "1.00"]
    assert written[0].get_color() != written[3].get_color()  # dark on light, light on dark


def test_signed_values_are_white_at_zero_blue_above_orange_below():
    x = np.array([[-0.5, 0.0], [0.25, 0.1]])
    image = draw.matrix(x).axes[0].get_images()[0]
    assert image.get_clim() == (-0.5, 0.5)
    red, green, blue, _ = image.cmap(image.norm(0.0))
    assert min(red, green, blue) > 0.97
    assert image.cmap(0.0)[0] > image.cmap(0.0)[2]  # orange below
    assert image.cmap(1.0)[0] < image.cmap(1.0)[2]  # blue above


def test_heads_share_one_scale_and_one_colour_bar():
    x = weights(5, 3, 7)
    x[3] *= 4
    figure = draw.heads(x, columns=WORDS, across=3)
    shown = panels(figure)
    assert [axes.get_title() for axes in shown] == [f"head {i}" for i in range(5)]
    assert all(np.array_equal(drawn(axes), x[i]) for i, axes in enumerate(shown))
    assert {axes.get_images()[0].get_clim() for axes in shown} == {(0.0, x.max())}
    assert len(figure.axes) == 6 + 1  # a grid of 2 x 3, of which one is hidden, and one colour bar
    assert [axes.get_xlabel() for axes in shown] == [
        "",
        "",
        "keys",
        "keys",
        "keys",
    ]  # only where no heatmap is below
    assert [axes.get_ylabel() for axes in shown] == ["queries", "", "", "queries", ""]


def test_most_sets_the_end_of_the_scale():
    shown = panels(draw.heads(weights(2, 3, 3), most=2.0, titles=["a", "b"]))
    assert {axes.get_images()[0].get_clim() for axes in shown} == {(0.0, 2.0)}
    assert [axes.get_title() for axes in shown] == ["a", "b"]


@pytest.mark.parametrize(("most", "extend"), [(2.0, "neither"), (0.1, "max")])
def test_the_colour_bar_has_an_arrow_if_values_are_beyond_it(most, extend):
    figure = draw.heatmap(weights(3, 3), most=most)
    assert figure.axes[0].get_images()[0].colorbar.extend == extend


def test_booleans_are_drawn_without_a_colour_bar():
    masks = {"causal": np.tri(4, dtype=bool), "chunk": np.ones((2, 4), dtype=bool)}
    figure = draw.grids(masks)
    assert [drawn(axes).shape for axes in panels(figure)] == [(4, 4), (2, 4)]
    assert np.array_equal(drawn(figure.axes[0]), np.tri(4, dtype=bool))
    assert len(figure.axes) == 2  # no colour bar


def test_nan_has_a_colour_of_its_own():
    axes = draw.heatmap([[0.5, np.nan]]).axes[0]
    image = axes.get_images()[0]
    assert np.isnan(drawn(axes)[0, 1])
    assert image.get_clim() == (0.0, 0.5)
    assert tuple(image.cmap.get_bad()[:3]) != tuple(image.cmap(0.0)[:3])


def test_all_zero_weights_are_white():
    assert draw.heatmap(np.zeros((2, 2))).axes[0].get_images()[0].get_clim() == (0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw.heatmap(np.ones(3)), r"weights has shape \(3,\): expected \(queries, keys\)"),
        (
            lambda: draw.heads(np.ones((2, 2))),
            r"weights has shape \(2, 2\): expected \(heads, queries, keys\)",
        ),
        (lambda: draw.heatmap(np.ones((0, 3))), r"weights has shape \(0, 3\): there is nothing to draw"),
        (lambda: draw.heatmap([[1, 2], [3]]), r"weights cannot be read as an array \(queries, keys\)"),
        (lambda: draw.heatmap([["a"]]), r"weights holds <U1: expected real numbers"),
        (lambda: draw.heatmap([[1j]]), r"weights holds complex128: expected real numbers"),
        (lambda: draw.heatmap([[np.inf]]), r"weights holds an infinite number"),
        (lambda: draw.heatmap([[np.nan]]), r"weights holds only NaN"),
        (lambda: draw.heatmap([[-0.5, 1.0]]), r"weights goes down to -0.5: expected weights of 0 or more; .* matrix"),
        (lambda: draw.heatmap(np.ones((2, 2)), rows=["a"]), r"rows has 1 names: expected 2"),
        (lambda: draw.heatmap(np.ones((2, 2)), columns=list("abc")), r"columns has 3 names: expected 2"),
        (lambda: draw.heatmap(np.ones((2, 2)), most=0.0), r"most=0.0: the colour scale goes from 0"),
        (lambda: draw.heads(np.ones((2, 2, 2)), titles=["a"]), r"titles has 1 names: expected 2, one per head"),
        (lambda: draw.heads(np.ones((2, 2, 2)), across=0), r"across=0: expected 1 panel or more"),
        (lambda: draw.grids({}), r"grids got no matrices: expected \{name: matrix\}"),
        (lambda: draw.grids({"a": [[-1.0]]}), r"a goes down to -1: .* signed=True"),
        (lambda: draw.grids({"a": [1.0]}), r"a has shape \(1,\): expected \(rows, columns\)"),
    ],
)
def test_bad_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tensors_are_drawn_unless_they_require_a_gradient():
    torch = pytest.importorskip("torch")
    assert np.array_equal(drawn(draw.heatmap(torch.eye(3)).axes[0]), np.eye(3))
    with pytest.raises(ValueError, match="weights cannot be read as an array"):
        draw.heatmap(torch.eye(3, requires_grad=True))

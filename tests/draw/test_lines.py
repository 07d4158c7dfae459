"""Curves, panels and bars: every number at its place, one colour and one legend entry per name."""

import numpy as np
import pytest

from clearhead import draw

X = np.arange(1, 6)


def data(line):
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()] if figure.legends else []


def test_curves_have_the_given_points_labels_and_legend():
    lines = {"a": (X, X**2), "b": (X, [3.0, 1, 4, 1, 5])}
    figure = draw.curves(lines, xlabel="steps", ylabel="loss", title="A run")
    (axes,) = figure.axes
    for line, (name, (x, y)) in zip(axes.get_lines(), lines.items(), strict=True):
        assert line.get_label() == name
        assert np.array_equal(data(line)[0], x)
        assert np.array_equal(data(line)[1], y)
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("steps", "loss", "A run")
    assert legend(figure) == ["a", "b"]


def test_more_lines_than_colours_get_other_line_styles():
    lines = {str(i): (X, X + i) for i in range(21)}
    figure = draw.curves(lines | {"limit": (X, X)}, dashed=["limit"])
    drawn = figure.axes[0].get_lines()
    looks = [(line.get_color(), line._unscaled_dash_pattern) for line in drawn]
    assert len(set(map(str, looks))) == 22  # every line differs in colour or dashes
    assert len({line.get_color() for line in drawn[:7]}) == 7
    assert {line.get_linestyle() for line in drawn[:7]} == {"-"}
    assert legend(figure) == [*lines, "limit"]
    keys = figure.legends[0].get_lines()
    assert [(key.get_color(), key._unscaled_dash_pattern) for key in keys] == looks


def test_one_curve_needs_no_legend():
    assert legend(draw.curves({"a": (X, X)})) == []


def test_a_name_has_the_same_colour_in_all_panels_and_one_legend_entry():
    plots = {"left": {"a": (X, X), "b": (X, X)}, "right": {"b": (X, X), "c": (X, X)}}
    figure = draw.panels(plots, xlabel="x", ylabel=["one", "two"])
    left, right = figure.axes
    assert legend(figure) == ["a", "b", "c"]
    assert left.get_lines()[1].get_color() == right.get_lines()[0].get_color()
    assert len({line.get_color() for axes in figure.axes for line in axes.get_lines()}) == 3
    assert [axes.get_title() for axes in figure.axes] == ["left", "right"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["one", "two"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["x", "x"]


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_log_sets_the_logarithmic_axes(log):
    (axes,) = draw.curves({"a": (X, X)}, log=log).axes
    assert (axes.get_xscale() == "log") == ("x" in log)
    assert (axes.get_yscale() == "log") == ("y" in log)


def test_log_auto_chooses_axes_that_span_orders_of_magnitude():
    (axes,) = draw.curves({"a": ([1, 50], [1.0, 20.0]), "b": ([1, 999], [1.0, 2.0])}, log="auto").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    (axes,) = draw.curves({"a": ([1, 5000], [-1.0, 20.0])}, log="auto").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    (axes,) = draw.curves({"a": ([1, 2, 3], [20.0, 1.0, 0.0])}, log="auto").axes  # a loss that became 0
    assert axes.get_yscale() == "log"


def test_a_short_logarithmic_axis_has_ticks_between_the_powers_of_ten():
    (axes,) = draw.curves({"a": (X, [0.3, 0.4, 1.0, 2.0, 4.0])}, log="y").axes
    low, high = axes.get_ylim()
    assert [y for y in axes.get_yticks().round(3).tolist() if low <= y <= high] == [0.5, 1.0, 2.0]


def test_faint_lines_are_thin_behind_the_others_and_not_in_the_legend():
    lines = {str(i): (X, X + i) for i in range(9)}
    figure = draw.curves(lines, faint=["7", "8"])
    (axes,) = figure.axes
    assert legend(figure) == [str(i) for i in range(7)]
    assert axes.get_lines()[8].get_linewidth() < axes.get_lines()[0].get_linewidth()
    assert axes.get_lines()[8].get_zorder() < axes.get_lines()[0].get_zorder()


def test_ordered_names_go_from_pale_to_dark():
    figure = draw.panels(
        {"p": {str(i): (X, X + i) for i in range(12)} | {"rest": (X, X)}}, ordered=True, dashed=["rest"]
    )
    (axes,) = figure.axes
    light = [sum(int(line.get_color()[i : i + 2], 16) for i in (1, 3, 5)) for line in axes.get_lines()[:12]]
    assert light == sorted(light, reverse=True)
    assert legend(figure) == ["0", "2", "4", "6", "8", "10", "rest"]


def test_shared_gives_the_plots_of_a_row_the_same_y_axis():
    plots = {str(i): {"a": (X, X * 10**i)} for i in range(4)}
    a, b, c, d = draw.panels(plots, shared=True, zero=True, across=2).axes
    assert a.get_ylim() == b.get_ylim() != c.get_ylim() == d.get_ylim()
    assert a.get_ylim()[0] <= 0
    assert a.get_ylim()[1] >= 50


def test_across_sets_the_panels_per_row():
    figure = draw.panels({str(i): {"a": (X, X)} for i in range(5)}, across=3, xlabel="steps")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == list("01234")
    assert len({round(axes.get_position().y0, 2) for axes in shown}) == 2
    assert [axes.get_xlabel() for axes in shown] == ["", "", "steps", "steps", "steps"]  # only where no plot is below


def test_a_logarithmic_axis_has_ticks_at_the_points():
    (axes,) = draw.curves({"a": ([1, 2, 4, 8], [1, 1, 1, 1])}, log="x").axes
    assert axes.get_xticks().tolist() == [1, 2, 4, 8]
    assert axes.xaxis.get_major_formatter()(2048.0, 0) == "2,048"


def test_dashed_lines_differ_in_style_and_colour():
    (axes,) = draw.curves({"a": (X, X), "limit": (X, X)}, dashed=["limit"]).axes
    full, limit = axes.get_lines()
    assert full.get_linestyle() == "-"
    assert limit.get_linestyle() != "-"
    assert full.get_color() != limit.get_color()


def test_zero_includes_zero_in_the_y_axis():
    (axes,) = draw.curves({"a": (X, X + 100)}, zero=True).axes
    assert axes.get_ylim()[0] == 0
    (axes,) = draw.curves({"a": (X, -X)}, zero=True).axes
    assert axes.get_ylim()[1] == 0


@pytest.mark.parametrize("y", [X + 100, X / 1000 + 0.97, X * 0.0 + 3, X - 1, -X - 100, X - 3])
def test_zero_clips_no_value(y):
    (axes,) = draw.curves({"a": (X, y)}, zero=True).axes
    low, high = axes.get_ylim()
    margin = 0.04 * (high - low)
    assert low <= 0 <= high
    assert y.min() - low >= margin
    assert high - y.max() >= margin


def test_steps_draws_stairs():
    (axes,) = draw.curves({"a": (X, X)}, steps=True).axes
    assert axes.get_lines()[0].get_drawstyle() == "steps-mid"


def test_bars_are_side_by_side_above_their_names():
    figure = draw.bars({"a": [1.0, 2, 3], "b": [3.0, 2, 1]}, names=["x", "y", "z"], ylabel="share")
    (axes,) = figure.axes
    first, second = axes.containers
    assert [bar.get_height() for bar in first] == [1, 2, 3]
    assert [bar.get_height() for bar in second] == [3, 2, 1]
    assert all(a.get_x() + a.get_width() <= b.get_x() + 1e-9 for a, b in zip(first, second, strict=True))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["x", "y", "z"]
    assert legend(figure) == ["a", "b"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw.panels({}), r"panels got no plots"),
        (lambda: draw.curves({}), r"a plot got no lines"),
        (lambda: draw.curves({"a": (X, X[:3])}), r"'a' has 5 x and 3 y: expected the same number"),
        (lambda: draw.curves({"a": (X, [[1.0]])}), r"y of 'a' has shape \(1, 1\): expected \(points,\)"),
        (
            lambda: draw.curves({"a": (X, X - 3)}, log="y"),
            r"log='y' with y down to -2 in 'a': a logarithm needs",
        ),
        (lambda: draw.curves({"a": (X, X)}, log="z"), r"log='z': expected x, y, xy, auto or nothing"),
        (lambda: draw.curves({"a": (X, X)}, dashed=["b"]), r"dashed names 'b': the lines are 'a'"),
        (lambda: draw.curves({"a": (X, X)}, faint=["b"]), r"faint names 'b': the lines are 'a'"),
        (lambda: draw.panels({"p": {"a": (X, X)}}, across=0), r"across=0: expected 1 plot or more in a row"),
        (
            lambda: draw.curves({str(i): (X, X) for i in range(22)}),
            r"22 lines: expected at most 21, .* some in faint=.* panels",
        ),
        (
            lambda: draw.bars({str(i): [1.0] for i in range(8)}, names=["x"]),
            r"8 groups of bars: expected at most 7, .* several figures",
        ),
        (
            lambda: draw.panels({"p": {"a": (X, X)}}, ylabel=["1", "2"]),
            r"ylabel has 2 for 1 plots: expected one for all, or one per plot",
        ),
        (lambda: draw.bars({}, names=[]), r"bars got no groups"),
        (lambda: draw.bars({"a": [1.0]}, names=["x", "y"]), r"'a' has 1 values for 2 names"),
    ],
)
def test_bad_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()

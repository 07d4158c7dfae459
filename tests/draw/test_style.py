"""Style of figures: no global state, light imports, reproducible files, distinguishable colours."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from clearhead import draw
from clearhead.draw.style import BLUES, ORANGES, PALETTE


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_draw_imports_neither_torch_nor_matplotlib():
    code = "import sys, clearhead.draw; print(*(m for m in ('torch', 'matplotlib') if m in sys.modules))"
    assert python(code) == []


def test_drawing_and_saving_import_neither_torch_nor_pyplot(tmp_path):
    code = (
        "import sys, clearhead as ch\n"
        f"ch.draw.save(ch.draw.heatmap([[0.5, 0.5]]), {str(tmp_path / 'x.png')!r})\n"
        "print(*(m for m in ('torch', 'matplotlib.pyplot') if m in sys.modules))"
    )
    assert python(code) == []
    assert (tmp_path / "x.png").exists()


def figures():
    x = np.arange(1, 6)
    return [
        draw.heatmap(np.eye(3), rows=list("abc"), digits=1),
        draw.matrix(np.eye(3) - 0.5),
        draw.heads(np.ones((3, 2, 2)) / 2, title="Three heads"),
        draw.grids({"causal": np.tri(3, dtype=bool)}),
        draw.curves({"a": (x, x), "b": (x, x**2)}, log="xy"),
        draw.panels({"p": {"a": (x, x)}, "q": {"b": (x, x)}}),
        draw.bars({"a": x, "b": x}, names=[str(i) for i in x]),
    ]


def test_the_user_s_settings_are_neither_changed_nor_used(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"axes.grid": True, "figure.facecolor": "black", "image.origin": "lower"}):
        before = dict(matplotlib.rcParams)
        mine = draw.save(draw.heatmap(np.eye(3)), tmp_path / "mine.png").read_bytes()
        assert dict(matplotlib.rcParams) == before
    assert draw.save(draw.heatmap(np.eye(3)), tmp_path / "plain.png").read_bytes() == mine


def test_equal_figures_give_equal_files(tmp_path):
    for i, (one, two) in enumerate(zip(figures(), figures(), strict=True)):
        first = draw.save(one, tmp_path / f"{i}.png").read_bytes()
        assert draw.save(two, tmp_path / f"{i}-again.png").read_bytes() == first


def test_threads_can_draw_at_once(tmp_path):
    def one(i):
        return draw.save(draw.heatmap(np.eye(4)), tmp_path / f"{i}.png").read_bytes()

    alone = one(99)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(one, range(8))) == {alone}


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_every_figure_can_be_saved_in_a_new_folder(tmp_path, ending):
    for i, figure in enumerate(figures()):
        path = draw.save(figure, tmp_path / "new" / "folder" / f"{i}.{ending}")
        assert path.stat().st_size > 1000


def test_saved_pictures_have_the_dots_of_a_projector(tmp_path):
    figure = draw.heatmap([[1.0, 0.0], [0.3, 0.7]])
    widths = []
    for options in ({}, {"dpi": 100.0}):
        with Image.open(draw.save(figure, tmp_path / "x.png", **options)) as picture:
            widths.append(picture.width)
    assert widths[0] == pytest.approx(2 * widths[1], abs=2)


def test_save_names_the_endings_it_knows(tmp_path):
    with pytest.raises(ValueError, match=r"'x.foo': expected a name that ends in one of .*\.png"):
        draw.save(draw.heatmap([[1.0]]), tmp_path / "x.foo")


def lightness(colours):
    """CIE L* of sRGB colours."""
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


@pytest.mark.parametrize("ramp", [BLUES, ORANGES])
def test_steps_of_a_colour_map_have_equal_lightness(ramp):
    steps = -np.diff(lightness(ramp))
    assert steps.min() > 0.7 * steps.mean()
    assert steps.max() < 1.4 * steps.mean()


def test_line_colours_are_distinct_and_darker_than_the_background():
    assert len(set(PALETTE)) == len(PALETTE)
    assert lightness(PALETTE).max() < 75

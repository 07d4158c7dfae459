"""Figures of papers: each is drawn with models that ship, and shows something."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from clearhead import draw
from clearhead.errors import InputError
from clearhead.report import figure
from clearhead.report.figures import FIGURES, draw_figure


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_ink(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figure(name)
    picture = np.asarray(Image.open(io.BytesIO(draw.encode(drawn, dpi=60.0))).convert("L"))
    inside = picture[picture.shape[0] // 8 :, picture.shape[1] // 8 :]
    assert inside.std() > 3
    assert len(np.unique(inside)) > 20
    assert FIGURES[name].help.endswith(".")
    assert FIGURES[name].source.endswith(".")


def test_rotated_features_are_the_same_and_noise_is_not():
    x = figure("rotation").axes[0].get_images()[0].get_array()
    assert x[0, 1] == pytest.approx(1, abs=1e-5)
    assert abs(x[0, 3]) < 0.5


def test_files_and_unknown_names(tmp_path):
    assert draw_figure("iris", tmp_path / "a" / "iris.svg").read_text().startswith("<?xml")
    page = draw_figure("iris", tmp_path / "iris.html").read_text()
    assert "Fisher 1936" in page
    assert "data:image/png;base64," in page
    with pytest.raises(InputError, match=r"no figure 'irsi': expected one of .*the nearest is iris"):
        figure("irsi")
    with pytest.raises(InputError, match="ends in"):
        draw_figure("iris", tmp_path / "iris.txt")

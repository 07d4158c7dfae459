"""plot: the numbers of metrics.jsonl are where they belong in the figures."""

import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from clearhead import plot
from clearhead.training.run_folder import FolderError


def write(folder, *, steps=6, layers=2, heads=3, looks=True, scale=1.0):
    """A run folder with made-up metrics."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    lines = []
    for step in range(1, steps + 1):
        lines.append({"step": step, "loss": scale / step, "norm": 1.0, "lr": 0.1, "seconds": 1.0})
        if step % 2 == 0:
            lines.append({"step": step, "valid_loss": 2 * scale / step, "valid_accuracy": 0.5})
        if looks and step % 2 == 0:
            blocks = [f"blocks.{i}" for i in range(layers)]
            view = {"gradient": {"rest": 1.0} | {name: float(i + 1) for i, name in enumerate(blocks)}}
            for name in blocks:
                view |= {f"{name}.attn.{kind}": list(rng.random(heads)) for kind in ("entropy", "distance", "sink")}
                view[name] = 1.5
            lines.append({"step": step, "inside": view})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def lines(figure, title):
    axes = next(axes for axes in figure.axes if axes.get_title() == title)
    return {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.get_lines()}


def test_the_curves_of_a_run(tmp_path):
    write(tmp_path / "run", looks=False)
    (figure,) = plot(tmp_path / "run")
    assert isinstance(figure, Figure)
    found = lines(figure, "loss")
    assert found["training"] == ([1, 2, 3, 4, 5, 6], [1 / step for step in range(1, 7)])
    assert found["validation"] == ([2, 4, 6], [1.0, 0.5, 2 / 6])
    assert lines(figure, "learning rate")["training"][1] == [0.1] * 6
    assert lines(figure, "norm of the gradient")["training"][1] == [1.0] * 6
    assert lines(figure, "accuracy")["validation"] == ([2, 4, 6], [0.5] * 3)


def test_few_heads_are_lines(tmp_path):
    views = [line["inside"] for line in write(tmp_path / "run") if "inside" in line]
    _, heads, blocks = plot(tmp_path / "run")
    for kind in ("entropy", "distance", "sink"):
        for layer in ("blocks.0.attn", "blocks.1.attn"):
            found = lines(heads, f"{layer}.{kind}")
            assert list(found) == ["head 0", "head 1", "head 2"]
            for h in range(3):
                assert found[f"head {h}"] == ([2, 4, 6], [view[f"{layer}.{kind}"][h] for view in views])
    assert lines(blocks, "norm of the gradient")["blocks.1"] == ([2, 4, 6], [2.0] * 3)
    assert lines(blocks, "norm of the gradient")["rest"] == ([2, 4, 6], [1.0] * 3)
    assert lines(blocks, "root mean square passed on").keys() == {"blocks.0", "blocks.1"}


def test_many_heads_are_cells(tmp_path):
    views = [line["inside"] for line in write(tmp_path / "run", layers=9, heads=8) if "inside" in line]
    _, entropy, distance, sink, blocks = plot(tmp_path / "run")
    assert [figure.axes[0].get_title() for figure in (entropy, distance, sink)] == [
        "entropy (nats)", "mean distance (tokens)", "weight on the first token",
    ]  # fmt: skip
    axes = distance.axes[0]
    cells = np.ma.filled(axes.get_images()[0].get_array(), np.nan)
    assert cells.shape == (9 * 8 + 8, 3)
    for i in range(9):
        wanted = np.array([view[f"blocks.{i}.attn.distance"] for view in views]).T
        assert np.array_equal(cells[9 * i : 9 * i + 8], wanted)
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"blocks.{i}.attn" for i in range(9)]
    assert axes.get_yticks().tolist() == [9 * i + 3 for i in range(9)]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["2", "4", "6"]
    assert len(lines(blocks, "norm of the gradient")) == 10


def test_several_runs_share_their_axes(tmp_path):
    write(tmp_path / "a" / "run")
    write(tmp_path / "b" / "run", scale=2.0, steps=4)
    (figure,) = plot(tmp_path / "a" / "run", str(tmp_path / "b" / "run"))
    found = lines(figure, "loss")
    assert found["a/run"][1][0] == 1.0
    assert found["b/run"] == ([1, 2, 3, 4], [2.0, 1.0, 2 / 3, 0.5])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a/run", "b/run"]
    assert lines(figure, "validation loss")["b/run"] == ([2, 4], [2.0, 1.0])


def test_files_lie_beside_each_other(tmp_path):
    write(tmp_path / "run")
    paths = plot(tmp_path / "run", out=tmp_path / "figures" / "a.svg")
    assert [path.name for path in paths] == ["a.svg", "a-heads.svg", "a-blocks.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_a_run_that_has_just_begun(tmp_path):
    write(tmp_path / "run", steps=1)
    (figure,) = plot(tmp_path / "run")
    assert lines(figure, "loss") == {"training": ([1], [1.0])}


def test_a_loss_that_was_no_number_is_left_out(tmp_path):
    write(tmp_path / "run", looks=False)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "loss": null, "norm": null, "lr": 0.1}\n')
    assert lines(plot(tmp_path / "run")[0], "loss")["training"][0] == [1, 2, 3, 4, 5, 6]


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="plot got no run"):
        plot()
    with pytest.raises(FolderError, match="there is no run folder"):
        plot(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=re.escape("metrics.jsonl holds nothing to draw")):
        plot(tmp_path)
    write(tmp_path / "run")
    with pytest.raises(ValueError, match="plot got a run twice"):
        plot(tmp_path / "run", tmp_path / "x" / ".." / "run")
    for i in range(8):
        write(tmp_path / f"{i}", looks=False)
    with pytest.raises(ValueError, match="8 lines: there are 7 colours"):
        plot(*(tmp_path / f"{i}" for i in range(8)))

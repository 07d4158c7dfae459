"""plot: the numbers of metrics.jsonl are at their places in the figures."""

import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from clearhead import plot, train
from clearhead.training.run_folder import FolderError
from support.command_line import call


def write(folder, records, about=None):
    """A run folder with these metrics and, unless it is an old one, with the names and units of what was measured."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if about is not None:
        (folder / "setup.json").write_text(json.dumps({"objective": {}, "models": {}, **about}))


def view(layers, heads, rng):
    """What a probe records of a model: the gradient and the output of each block, statistics of each head."""
    blocks = [f"blocks.{i}" for i in range(layers)]
    found = {"gradient": {"rest": 1.0} | {name: float(i + 1) for i, name in enumerate(blocks)}}
    for name in blocks:
        found |= {f"{name}.attn.{kind}": list(rng.random(heads)) for kind in ("entropy", "distance", "sink")}
        found[name] = 1.5
    return found


def old_run(folder, *, steps=6, layers=2, heads=3, looks=True, scale=1.0):
    """A run of one model without setup.json; returns its records."""
    rng = np.random.default_rng(0)
    records = []
    for step in range(1, steps + 1):
        records.append({"step": step, "loss": scale / step, "norm": 1.0, "lr": 0.1, "seconds": 1.0})
        if step % 2 == 0:
            records.append({"step": step, "valid_loss": 2 * scale / step, "valid_accuracy": 0.5})
            if looks:
                records.append({"step": step, "inside": view(layers, heads, rng)})
    write(folder, records)
    return records


def lines(figure, title):
    """The lines of a panel by their labels, each as (x, y)."""
    axes = panel(figure, title)
    return {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.get_lines()}


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title() == title)


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_visible()]


def units(figure):
    return {axes.get_title(): axes.get_ylabel() for axes in figure.axes if axes.get_visible()}


def test_a_run_has_a_panel_for_its_loss_each_measurement_the_learning_rate_and_the_norm(tmp_path):
    old_run(tmp_path / "run", looks=False)
    (figure,) = plot(tmp_path / "run")
    assert isinstance(figure, Figure)
    assert titles(figure) == ["loss", "accuracy", "learning rate", "norm of the gradient"]
    assert lines(figure, "loss") == {
        "training": ([1, 2, 3, 4, 5, 6], [1 / step for step in range(1, 7)]),
        "validation": ([2, 4, 6], [1.0, 0.5, 2 / 6]),
    }
    assert lines(figure, "learning rate")["training"][1] == [0.1] * 6
    assert lines(figure, "norm of the gradient")["training"][1] == [1.0] * 6
    assert lines(figure, "accuracy")["validation"] == ([2, 4, 6], [0.5] * 3)


def test_the_axes_have_the_units_of_the_objective(tmp_path):
    measurements = {
        "valid_loss": {"unit": "nats/token", "better": "lower"},
        "valid_accuracy": {"unit": "share", "better": "higher"},
    }
    records = [
        {"step": 1, "loss": 2.0, "norm": 1.0, "lr": 0.1, "rate": 5.0},
        {"step": 1, "valid_loss": 1.5, "valid_accuracy": 0.5},
    ]
    write(tmp_path / "run", records, {"unit": "tokens", "losses": ["loss"], "measurements": measurements})
    (figure,) = plot(tmp_path / "run")
    assert units(figure) == {
        "loss": "nats/token", "accuracy": "share", "learning rate": "", "norm of the gradient": "",
    }  # fmt: skip


def test_scores_have_linear_axes_and_perplexity_may_be_logarithmic(tmp_path):
    scores = {f"valid_{name}": {"unit": "score from 0 to 100", "better": "higher"} for name in ("bleu", "chrf")}
    measurements = scores | {"valid_perplexity": {"unit": "tokens", "better": "lower"}}
    records = [
        {"step": step, "valid_bleu": 0.01 * 10**step, "valid_chrf": 30.5, "valid_perplexity": 10.0 ** (5 - step)}
        for step in range(1, 5)
    ]
    write(tmp_path / "run", records, {"unit": "tokens", "losses": ["loss"], "measurements": measurements})
    (figure,) = plot(tmp_path / "run")
    scales = {axes.get_title(loc="left") or axes.get_title(): axes.get_yscale() for axes in figure.axes}
    scales.pop("", None)  # of an empty place in the grid
    assert scales == {"bleu": "linear", "chrf": "linear", "perplexity": "log"}


TWO_PLAYERS = {
    "unit": "rows",
    "losses": ["discriminator_loss", "generator_loss"],
    "measurements": {
        "valid_generator_loss": {"unit": "nats/row", "better": "lower"},
        "valid_discriminator_loss": {"unit": "nats/row", "better": "lower"},
        "valid_near": {"unit": "share", "better": "higher"},
        "valid_modes": {"unit": "modes", "better": "higher"},
    },
}


def two_players(folder, *, scale=1.0, looks=False):
    """A run of a generator, updated every other step, and a discriminator."""
    rng, records = np.random.default_rng(0), []
    for step in range(1, 5):
        record = {"step": step, "discriminator_loss": scale / step, "norm_discriminator": 2.0, "lr_discriminator": 0.2}
        if step % 2 == 0:
            record |= {"generator_loss": -scale * step, "norm_generator": 3.0, "lr_generator": 0.3}
        records.append(record | {"temperature": 1.0 - step / 10, "seconds": 1.0, "rate": 9.0, "share": 0.1})
        if step % 2 == 0:
            records.append({
                "step": step, "valid_generator_loss": 1.0, "valid_discriminator_loss": 2.0, "valid_near": 0.5,
                "valid_modes": 3.0,
            })  # fmt: skip
        if looks:
            views = {"discriminator": view(1, 2, rng)} | ({"generator": view(2, 2, rng)} if step % 2 == 0 else {})
            records.append({"step": step, "inside": views})
    write(folder, records, TWO_PLAYERS)


def test_a_run_of_two_players_shows_the_loss_the_learning_rate_and_the_norm_of_each(tmp_path):
    two_players(tmp_path / "run")
    (figure,) = plot(tmp_path / "run")
    assert titles(figure) == [
        "discriminator loss", "generator loss", "near", "modes", "learning rate", "norm of the gradient", "temperature",
    ]  # fmt: skip
    assert units(figure) == {
        "discriminator loss": "nats/row", "generator loss": "nats/row", "near": "share", "modes": "modes",
        "learning rate": "", "norm of the gradient": "", "temperature": "",
    }  # fmt: skip
    assert lines(figure, "discriminator loss") == {
        "training": ([1, 2, 3, 4], [1 / step for step in range(1, 5)]), "validation": ([2, 4], [2.0, 2.0]),
    }  # fmt: skip
    assert lines(figure, "generator loss") == {
        "training": ([2, 4], [-2.0, -4.0]), "validation": ([2, 4], [1.0, 1.0]),
    }  # fmt: skip
    assert lines(figure, "modes") == {"validation": ([2, 4], [3.0, 3.0])}
    assert lines(figure, "learning rate") == {
        "discriminator": ([1, 2, 3, 4], [0.2] * 4), "generator": ([2, 4], [0.3] * 2),
    }  # fmt: skip
    assert lines(figure, "norm of the gradient") == {
        "discriminator": ([1, 2, 3, 4], [2.0] * 4), "generator": ([2, 4], [3.0] * 2),
    }  # fmt: skip
    assert lines(figure, "temperature")["training"][1] == [0.9, 0.8, 0.7, 0.6]


def test_probes_of_several_players_have_figures_of_their_own(tmp_path):
    two_players(tmp_path / "run", looks=True)
    paths = plot(tmp_path / "run", out=tmp_path / "a.svg")
    assert [path.name for path in paths] == [
        "a.svg", "a-heads-discriminator.svg", "a-blocks-discriminator.svg", "a-heads-generator.svg",
        "a-blocks-generator.svg",
    ]  # fmt: skip
    _, _, blocks, heads, _ = plot(tmp_path / "run")
    assert lines(blocks, "norm of the gradient")["blocks.0"] == ([1, 2, 3, 4], [1.0] * 4)
    assert lines(heads, "blocks.1.attn.sink")["head 0"][0] == [2, 4]  # it is updated every other step


def test_probes_of_a_model_without_blocks_can_be_drawn(tmp_path):
    probes = [{"step": step, "inside": {"student": {"gradient": {"rest": float(step)}}}} for step in (1, 2)]
    write(tmp_path / "run", [{"step": 1, "loss": 1.0}, *probes])
    _, blocks = plot(tmp_path / "run")
    assert lines(blocks, "norm of the gradient") == {"rest": ([1, 2], [1.0, 2.0])}


def test_a_trained_gan_can_be_drawn(tmp_path):
    """The names in the records of a real run are those that plot expects."""
    small = {"model": {"name": "mlp", "hidden": 4, "depth": 1}}
    recipe = {
        "steps": 2, "data": {"name": "gaussians", "rows": 4, "valid_rows": 4, "valid_batches": 1},
        "objective": {"name": "gan", "latent": 2}, "players": {"generator": small, "discriminator": small},
        "run": {"log_every": 1, "valid_every": 1},
    }  # fmt: skip
    train(recipe, out=tmp_path / "run", device="cpu", quiet=True)
    (figure,) = plot(tmp_path / "run")
    for title in ("discriminator loss", "generator loss"):
        assert {name: x for name, (x, _) in lines(figure, title).items()} == {"training": [1, 2], "validation": [1, 2]}
        assert units(figure)[title] == "nats/row"
    assert list(lines(figure, "norm of the gradient")) == ["discriminator", "generator"]
    assert list(lines(figure, "learning rate")) == ["all players"]  # the curves coincide
    assert {"near", "modes"} <= set(titles(figure))


def test_values_that_reach_0_are_on_a_linear_axis(tmp_path):
    records = [
        {"step": step, "loss": 10.0 ** -step, "blur": (8 - step) / 8, "decay": 10.0 ** -step, "norm": 8.0 - step}
        for step in range(1, 9)
    ]  # fmt: skip
    write(tmp_path / "run", records)
    (figure,) = plot(tmp_path / "run")
    scales = {title: panel(figure, title).get_yscale() for title in titles(figure)}
    assert scales == {"loss": "log", "norm of the gradient": "linear", "blur": "linear", "decay": "linear"}


def test_no_point_is_clipped(tmp_path):
    records = [{"step": step, "loss": 100.0 + step, "momentum": 0.9 + step / 80} for step in range(1, 9)]
    write(tmp_path / "run", records)
    (figure,) = plot(tmp_path / "run")
    for title in titles(figure):
        axes = panel(figure, title)
        low, high = axes.get_ylim()
        assert high - max(y for line in axes.get_lines() for y in line.get_ydata()) > 0.04 * (high - low)


def test_shares_go_from_0_to_1_and_counts_have_whole_ticks(tmp_path):
    for name, near in (("a", 0.6), ("b", 0.8)):
        measured = [{"step": step, "valid_near": near, "valid_modes": 7.0 - step % 2} for step in (1, 2)]
        write(tmp_path / name, [{"step": 1, "discriminator_loss": 1.0}, *measured], TWO_PLAYERS)
    (one,) = plot(tmp_path / "a")
    (both,) = plot(tmp_path / "a", tmp_path / "b")
    for figure, prefix in ((one, ""), (both, "validation ")):
        near, modes = panel(figure, f"{prefix}near"), panel(figure, f"{prefix}modes")
        low, high = near.get_ylim()
        assert low == 0
        assert 1 < high < 1.1
        low, high = modes.get_ylim()
        assert low == 0
        assert 7 < high < 8
        assert all(tick == round(tick) for tick in modes.get_yticks())


def test_runs_with_different_units_have_panels_of_their_own(tmp_path):
    for name, unit in (("a", "nats/token"), ("b", "nats/row")):
        about = {"losses": ["loss"], "measurements": {"valid_loss": {"unit": unit, "better": "lower"}}}
        write(tmp_path / name, [{"step": 1, "loss": 2.0, "valid_loss": 2.0}], about)
    (figure,) = plot(tmp_path / "a", tmp_path / "b")
    assert units(figure) == {
        "loss (nats/token)": "nats/token", "loss (nats/row)": "nats/row",
        "validation loss (nats/token)": "nats/token", "validation loss (nats/row)": "nats/row",
    }  # fmt: skip
    assert list(lines(figure, "loss (nats/row)")) == ["b"]


def test_several_runs_of_two_players_share_a_panel_for_each_loss_and_measurement(tmp_path):
    two_players(tmp_path / "a")
    two_players(tmp_path / "b", scale=2.0)
    (figure,) = plot(tmp_path / "a", tmp_path / "b")
    assert titles(figure) == [
        "discriminator loss", "validation discriminator loss", "generator loss", "validation generator loss",
        "validation near", "validation modes", "norm of the gradient, discriminator", "norm of the gradient, generator",
    ]  # fmt: skip
    assert lines(figure, "generator loss")["b"] == ([2, 4], [-4.0, -8.0])
    assert units(figure)["validation modes"] == "modes"
    assert units(figure)["generator loss"] == "nats/row"


def test_runs_of_different_objectives_share_the_panels_that_they_can(tmp_path):
    two_players(tmp_path / "a")
    old_run(tmp_path / "b", looks=False)
    (figure,) = plot(tmp_path / "a", tmp_path / "b")
    assert list(lines(figure, "loss")) == ["b"]
    assert list(lines(figure, "generator loss")) == ["a"]
    assert list(lines(figure, "norm of the gradient")) == ["b"]


def test_few_heads_are_lines(tmp_path):
    views = [record["inside"] for record in old_run(tmp_path / "run") if "inside" in record]
    _, heads, blocks = plot(tmp_path / "run")
    for kind in ("entropy", "distance", "sink"):
        for layer in ("blocks.0.attn", "blocks.1.attn"):
            found = lines(heads, f"{layer}.{kind}")
            assert list(found) == ["head 0", "head 1", "head 2"]
            for h in range(3):
                assert found[f"head {h}"] == ([2, 4, 6], [view[f"{layer}.{kind}"][h] for view in views])
    assert lines(blocks, "norm of the gradient")["blocks.1"] == ([2, 4, 6], [2.0] * 3)
    assert lines(blocks, "norm of the gradient")["rest"] == ([2, 4, 6], [1.0] * 3)
    assert lines(blocks, "root mean square of the output").keys() == {"blocks.0", "blocks.1"}


def test_many_heads_are_cells(tmp_path):
    views = [record["inside"] for record in old_run(tmp_path / "run", layers=9, heads=8) if "inside" in record]
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
    old_run(tmp_path / "a" / "run")
    old_run(tmp_path / "b" / "run", scale=2.0, steps=4)
    (figure,) = plot(tmp_path / "a" / "run", str(tmp_path / "b" / "run"))
    assert titles(figure) == ["loss", "validation loss", "validation accuracy", "norm of the gradient"]
    found = lines(figure, "loss")
    assert found["a/run"][1][0] == 1.0
    assert found["b/run"] == ([1, 2, 3, 4], [2.0, 1.0, 2 / 3, 0.5])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a/run", "b/run"]
    assert lines(figure, "validation loss")["b/run"] == ([2, 4], [2.0, 1.0])


def test_many_runs_can_be_drawn(tmp_path):
    runs = [tmp_path / f"{i}" for i in range(9)]
    for run in runs:
        old_run(run, looks=False)
    (figure,) = plot(*runs)
    assert list(lines(figure, "loss")) == [run.name for run in runs]


def test_figures_are_written_beside_each_other(tmp_path):
    old_run(tmp_path / "run")
    paths = plot(tmp_path / "run", out=tmp_path / "figures" / "a.svg")
    assert [path.name for path in paths] == ["a.svg", "a-heads.svg", "a-blocks.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_a_run_that_has_just_begun_can_be_drawn(tmp_path):
    old_run(tmp_path / "run", steps=1)
    (figure,) = plot(tmp_path / "run")
    assert lines(figure, "loss") == {"training": ([1], [1.0])}


def test_a_loss_that_is_not_finite_is_left_out(tmp_path):
    old_run(tmp_path / "run", looks=False)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "loss": null, "norm": null, "lr": 0.1}\n')
    assert lines(plot(tmp_path / "run")[0], "loss")["training"][0] == [1, 2, 3, 4, 5, 6]


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="plot got no run"):
        plot()
    with pytest.raises(FolderError, match="there is no run folder"):
        plot(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=re.escape("metrics.jsonl has no losses or measurements")):
        plot(tmp_path)
    write(tmp_path / "texts", [{"step": 1, "samples": [{"given": "a", "written": "b", "wanted": "c"}]}])
    with pytest.raises(FolderError, match=re.escape("metrics.jsonl has no losses or measurements")):
        plot(tmp_path / "texts")
    old_run(tmp_path / "run")
    with pytest.raises(ValueError, match="plot got a run twice"):
        plot(tmp_path / "run", tmp_path / "x" / ".." / "run")


def test_the_folder_of_several_runs_is_drawn_like_the_runs(tmp_path, monkeypatch):
    for name in ("seed=1", "seed=2"):
        old_run(tmp_path / "sweep" / name, looks=False)
    (one,), (same,) = plot(tmp_path / "sweep"), plot(tmp_path / "sweep" / "seed=1", tmp_path / "sweep" / "seed=2")
    assert [lines(x, "loss") for x in (one,)] == [lines(x, "loss") for x in (same,)]
    assert {*lines(one, "loss")} == {"seed=1", "seed=2"}


def test_a_plot_of_two_runs_leaves_that_of_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        old_run(tmp_path / name, looks=False)
    (tmp_path / "a" / "plot.png").write_text("of a alone")
    found = call("plot", "a", "b")
    assert (found.exit_code, found.stdout.strip()) == (0, "plot.png")
    assert (tmp_path / "a" / "plot.png").read_text() == "of a alone"

"""sweep.png: the losses of all alternatives against steps, averaged over seeds."""

import json

import pytest

from clearhead import draw
from clearhead.report.sweep import draw_sweep
from clearhead.training.sweep import Sweep, Trial

MEASURED = {"losses": ["loss"], "measurements": {"valid_loss": {"unit": "nats/token", "better": "lower"}}}
TWO_PLAYERS = {
    "losses": ["discriminator_loss", "generator_loss"],
    "measurements": {
        "valid_generator_loss": {"unit": "nats/row", "better": "lower"},
        "valid_modes": {"unit": "modes", "better": "higher"},
    },
}


@pytest.fixture
def figures(monkeypatch) -> list:
    """The figures that are saved."""
    saved = []
    monkeypatch.setattr(draw, "save", lambda figure, path: saved.append((figure, path.name)))
    return saved


def trial(folder, choices, records, about=None) -> Trial:
    path = folder / ",".join(choices.values())
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if about is not None:
        (path / "setup.json").write_text(json.dumps(about))
    return Trial(choices=choices, folder=path, finished=True)


def lines(axes):
    return {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.get_lines()}


@pytest.mark.parametrize("about", [None, MEASURED], ids=["an old run", "with units"])
def test_a_line_is_the_mean_over_the_seeds_that_have_reached_a_step(tmp_path, figures, about):
    trials = [
        trial(
            tmp_path, {"model.depth": depth, "seed": seed},
            [{"step": 1, "loss": 4.0 * k}, {"step": 1, "valid_loss": 1.0}, {"step": 2, "loss": 1.0, "valid_loss": 2.0}],
            about,
        )
        for depth in ("1", "2") for k, seed in enumerate(("3", "4"), start=1)
    ]  # fmt: skip
    draw_sweep(Sweep(folder=tmp_path, trials=trials))
    ((figure, name),) = figures
    assert name == "sweep.png"
    loss, valid = figure.axes
    assert (loss.get_title(), valid.get_title()) == ("loss", "validation loss")
    assert lines(loss) == {f"depth={depth}": ([1, 2], [6.0, 1.0]) for depth in (1, 2)}
    assert lines(valid) == {f"depth={depth}": ([1, 2], [1.0, 2.0]) for depth in (1, 2)}
    assert {axes.get_ylabel() for axes in figure.axes} == {"nats/token" if about else ""}


def test_values_with_a_dot_are_lines_of_their_own(tmp_path, figures):
    records = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    trials = [trial(tmp_path, {"model.dropout": dropout}, records) for dropout in ("0.1", "1.1")]
    draw_sweep(Sweep(folder=tmp_path, trials=trials))
    assert lines(figures[0][0].axes[0]).keys() == {"dropout=0.1", "dropout=1.1"}


def test_every_loss_of_several_players_is_drawn(tmp_path, figures):
    records = [
        {
            "step": step,
            "discriminator_loss": 1.0,
            "generator_loss": 2.0,
            "valid_generator_loss": 3.0,
            "valid_modes": 4.0,
        }
        for step in (1, 2)
    ]
    trials = [trial(tmp_path, {"objective.loss": loss}, records, TWO_PLAYERS) for loss in ("hinge", "logistic")]
    draw_sweep(Sweep(folder=tmp_path, trials=trials))
    ((figure, _),) = figures
    titles = {axes.get_title(): axes for axes in figure.axes if axes.get_visible()}
    assert list(titles) == ["discriminator loss", "generator loss", "validation generator loss"]
    assert lines(titles["generator loss"])["loss=hinge"] == ([1, 2], [2.0, 2.0])
    assert lines(titles["validation generator loss"])["loss=logistic"] == ([1, 2], [3.0, 3.0])
    assert titles["generator loss"].get_ylabel() == "nats/row"


def test_of_more_than_21_alternatives_the_worst_are_faint(tmp_path, figures):
    trials = [
        trial(tmp_path, {"seed": "0", "width": str(i)}, [{"step": 1, "loss": 9.0}, {"step": 2, "loss": float(i)}])
        for i in range(23)
    ]
    draw_sweep(Sweep(folder=tmp_path, trials=trials))
    ((figure, _),) = figures
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"width={i}" for i in range(21)]
    drawn = figure.axes[0].get_lines()
    assert len(drawn) == 23
    assert len({(line.get_color(), line._unscaled_dash_pattern) for line in drawn[:21]}) == 21
    assert len({line.get_color() for line in drawn[21:]}) == 1


def test_alternatives_without_the_first_loss_are_the_first_to_be_faint(tmp_path, figures):
    about = {"losses": ["loss", "other"]}
    trials = [
        trial(
            tmp_path,
            {"seed": "0", "width": str(i)},
            [{"step": s, "other" if i == 0 else "loss": 1.0} for s in (1, 2)],
            about,
        )
        for i in range(22)
    ]
    draw_sweep(Sweep(folder=tmp_path, trials=trials))
    ((figure, _),) = figures
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"width={i}" for i in range(1, 22)]


def test_nothing_is_drawn_of_trials_that_have_one_step(tmp_path, figures):
    draw_sweep(Sweep(folder=tmp_path, trials=[trial(tmp_path, {"seed": "1"}, [{"step": 1, "loss": 1.0}])]))
    assert not figures

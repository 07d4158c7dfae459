"""The best validation, by a measurement; of equal ones that of the lowest loss."""

import pytest

from clearhead.training.best import Best
from clearhead.training.objectives import Measurement
from clearhead.training.recipe import RunConfig

MEASURED = {"loss": Measurement(unit="nats"), "accuracy": Measurement(unit="share", better="higher")}


def taken(run, *records):
    best = Best(run, MEASURED)
    chosen = [best.take(record, step) for step, record in enumerate(records, 1)]
    return best, chosen


def test_of_equal_values_the_lowest_loss_is_the_best():
    records = [{"valid_accuracy": a, "valid_loss": x} for a, x in ((0.5, 1.0), (0.5, 0.4), (0.5, 0.7), (0.4, 0.1))]
    best, chosen = taken(RunConfig(valid_every=1, best="valid_accuracy", patience=3), *records)
    assert chosen == [True, True, False, False]
    assert (best.step, best.value, best.waited, best.out_of_patience) == (2, 0.5, 3, True)


def test_without_a_loss_the_first_of_equal_values_is_the_best():
    best, chosen = taken(
        RunConfig(valid_every=1, best="valid_accuracy"), {"valid_accuracy": 0.5}, {"valid_accuracy": 0.5}
    )
    assert (best.step, chosen) == (1, [True, False])


@pytest.mark.parametrize("loss", [{}, {"loss": 0.7}], ids=["older", "newer"])
def test_the_state_of_a_checkpoint_is_taken(loss):
    best = Best(RunConfig(valid_every=1, best="valid_accuracy"), MEASURED)
    best.resume({"name": "valid_accuracy", "value": -0.5, "step": 3, "waited": 1, **loss})
    assert best.take({"valid_accuracy": 0.5, "valid_loss": 0.6}, 4)
    assert not best.take({"valid_accuracy": 0.5, "valid_loss": 0.65}, 5)
    assert best.step == 4

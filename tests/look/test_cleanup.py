"""A watch or an edit ends without a trace, and concerns the calls of its own thread only."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext

import pytest
import torch
from torch import Tensor

from clearhead import edit, watch
from clearhead.look import Notice, silence
from support.two_blocks import B, E, H, T, hooks_and_taps, inputs

# Leaving no trace


class StopError(Exception):
    """Raised on purpose."""


def raising(y: Tensor) -> Tensor:
    raise StopError


WAYS = {
    "the end": lambda model: model(inputs()),
    "an exception inside": lambda model: (_ for _ in ()).throw(StopError),
    "an exception of the model": lambda model: model(inputs()[..., :3]),
}


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("way", WAYS)
def test_hooks_and_taps_are_removed_at_the_end(model, way):
    before = model(inputs())
    everything = {"blocks.*": torch.neg, "**.heads": silence([0]), "**.scores": torch.neg, "**.q": torch.neg}
    idle = nullcontext() if way == "the end" else pytest.raises(ValueError, match="changed nothing")
    for end, entered in (
        (nullcontext(), watch(model, "**")),
        (nullcontext(), watch(model, "**", grad=True)),
        (idle, edit(model, everything)),
    ):
        with end, entered:
            assert hooks_and_taps(model)
            try:
                WAYS[way](model)
            except (StopError, RuntimeError):
                assert way != "the end"
        assert not hooks_and_taps(model)
    with pytest.raises(StopError), edit(model, {"blocks.1.attn.heads": raising}), watch(model, "**"):
        model(inputs())
    assert not hooks_and_taps(model)
    assert torch.equal(model(inputs()), before)


@pytest.mark.parametrize(
    ("enter", "error"),
    [
        (lambda model: watch(model, "**", "blocks.7"), KeyError),
        (lambda model: edit(model, {"**.heads": torch.neg, "norm": torch.neg, "blocks.7": torch.neg}), KeyError),
        (lambda model: edit(model, {"**.heads": torch.neg, "norm": torch.neg, "**.rms": torch.neg}), ValueError),
    ],
    ids=["watch", "edit", "edit of a measurement"],
)
def test_hooks_and_taps_are_removed_after_an_error_at_the_start(model, enter, error):
    with pytest.raises(error), enter(model):
        pass
    assert not hooks_and_taps(model)
    with watch(model, "norm"):  # the lock of the model is free again
        model(inputs())


def test_a_watch_goes_on_when_another_ends(model):
    """Watches need not end in the order they began."""
    first, second = ExitStack(), ExitStack()
    first.enter_context(watch(model, "**.q"))
    tape = second.enter_context(watch(model, "**.q"))
    with pytest.warns(Notice, match=r"nothing was recorded at '\*\*\.q'"):
        first.close()
    model(inputs())
    second.close()
    assert tape["blocks.0.attn.q"].shape == (B, H, T, E)
    assert not hooks_and_taps(model)


# Threads


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
def test_the_calls_of_another_thread_are_neither_recorded_nor_edited(model):
    before = model(inputs())
    with ThreadPoolExecutor(1) as other:
        with watch(model, "**", grad=True) as tape:
            torch.testing.assert_close(other.submit(model, inputs()).result(), before)
            assert not any(name in tape for name in tape.names)
        for leaf in ("q", "k", "v", "scores", "weights", "heads"):
            with edit(model, {f"**.{leaf}": torch.zeros_like}):
                torch.testing.assert_close(other.submit(model, inputs()).result(), before)
                model(inputs())


def test_the_watch_of_a_second_thread_waits_for_the_first(model):
    waiting, entered, names = threading.Event(), threading.Event(), []

    def second() -> None:
        waiting.set()
        with watch(model, "norm") as tape:
            entered.set()
            model(inputs())
        names.extend(tape.names)

    thread = threading.Thread(target=second)
    with watch(model, "blocks.*") as tape:
        with watch(model, "norm"):  # the same thread does not wait for itself
            thread.start()
            assert waiting.wait(10)
            assert not entered.wait(0.2)
            model(inputs())
        assert not entered.wait(0.1)
    assert entered.wait(10)
    thread.join(10)
    assert names == ["norm"]
    assert len(tape.calls("blocks.0")) == 1
    assert not hooks_and_taps(model)


def test_a_copy_made_meanwhile_is_not_watched(model):
    end = pytest.warns(Notice, match="nothing that it names ran inside the `with`")
    with end, watch(model, "blocks.*.attn.entropy") as tape:
        twin = copy.deepcopy(model)
        twin(inputs())
        assert list(tape) == []
    assert all(getattr(part, "tap", None) is None for part in twin.modules())

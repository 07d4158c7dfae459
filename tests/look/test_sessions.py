"""Watches and edits that overlap, are interrupted, copied, or end in another thread leave nothing behind."""

import contextlib
import copy
import gc
import io
import os
import pickle
import sys
import threading
import weakref
from contextlib import ExitStack

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from support.two_blocks import TwoBlocks, hooks_and_taps
from support.two_blocks import inputs as vectors

quiet = pytest.mark.filterwarnings("ignore::clearhead.look.Notice")


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.line(x)
        return F.scaled_dot_product_attention(x, x, x)


X = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(1))


def stance() -> str:
    return torch._dynamo.eval_frame._stance.stance


# The stance of torch.compile


@quiet
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_compiled_code_runs_eagerly_until_the_last_watch_ends_in_whatever_order(order):
    models = [Attends(), torch.compile(Attends(), backend="eager"), Attends()]
    open_ones = [ExitStack() for _ in models]
    for model, stack in zip(models, open_ones, strict=True):
        stack.enter_context(ch.watch(model, "entropy"))
        model(X)
    for i in order:
        assert stance() == "force_eager"
        models[i](X)
        open_ones[i].close()
    assert stance() == "default"


@quiet
def test_watches_of_two_threads_restore_the_stance_that_the_first_found():
    first_is_open, second_is_open, first_has_ended = (threading.Event() for _ in range(3))
    seen = []

    def first() -> None:
        with ch.watch(Attends(), "entropy"):
            first_is_open.set()
            second_is_open.wait(10)
        seen.append(stance())
        first_has_ended.set()

    def second() -> None:
        first_is_open.wait(10)
        with ch.watch(Attends(), "entropy"):
            second_is_open.set()
            first_has_ended.wait(10)

    with torch.compiler.set_stance("eager_on_recompile"):
        threads = [threading.Thread(target=run) for run in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert seen == ["force_eager"]
        assert stance() == "eager_on_recompile"


# Interrupts

FILES = (os.path.dirname(ch.look.__file__), contextlib.__file__, threading.__file__)


class Interrupt:
    """Raises a KeyboardInterrupt at the n-th point at which Python may, of those in this library's look/ folder.

    Python looks for signals where a function begins and after calls of functions of C.
    """

    def __init__(self, n: int) -> None:
        self.left = n

    def profile(self, frame, event, _) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(FILES):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


CASES = {
    "theirs": (Attends, X, {"line": torch.neg, "heads": torch.neg}, "**.entropy"),
    "ours": (TwoBlocks, vectors(), {"norm": torch.neg, "blocks.0.attn.heads": torch.neg}, "blocks.1.attn.entropy"),
}


@quiet
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt of a generator's end
@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_an_interrupt_at_any_point_of_an_edit_leaves_the_model_as_it_was(case):
    make, x, changes, address = CASES[case]
    model = make()
    before, n, interrupted = model(x), 1, 0
    while True:
        interrupt = Interrupt(n)
        sys.setprofile(interrupt.profile)
        try:
            with ch.edit(model, changes), ch.watch(model, address):
                model(x)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(None)
        assert not hooks_and_taps(model), n
        assert torch._C._len_torch_function_stack() == 0, n
        assert stance() == "default", n
        if interrupt.left > 0:
            break
        n += 11
    assert interrupted > 50
    assert torch.equal(model(x), before)
    assert in_another_thread(lambda: watched(model, x, address))  # no lock is held


def watched(model: nn.Module, x: Tensor, address: str) -> bool:
    with ch.watch(model, address) as tape:
        model(x)
    return bool(list(tape))


def in_another_thread(function):
    """What a function returns in another thread; fails if it waits for ever."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it raised, or waits"
    return found[0]


# Copies


@quiet
@pytest.mark.parametrize("case", CASES)
def test_a_copy_made_meanwhile_can_be_saved_and_holds_nothing_of_the_original(case):
    make, x, changes, address = CASES[case]
    model = make()
    before, saved = model(x), io.BytesIO()
    with ch.watch(model, address, *changes), ch.edit(model, changes):
        twin = copy.deepcopy(model)
        torch.save(model, saved)
        pickled = pickle.dumps(twin)
        model(x)
    saved.seek(0)
    for other in (twin, pickle.loads(pickled), torch.load(saved, weights_only=False)):
        assert torch.equal(other(x), before)
        with ch.watch(other, address) as tape:
            other(x)
        assert list(tape)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# Threads


def suspended(model: nn.Module):
    with ch.watch(model, "entropy", "line") as tape:
        yield tape


@quiet
def test_a_watch_that_another_thread_ends_leaves_nothing_behind():
    model = Attends()
    generator = suspended(model)
    next(generator)
    in_another_thread(generator.close)
    assert not hooks_and_taps(model)
    assert stance() == "default"
    assert in_another_thread(lambda: watched(model, X, "entropy"))
    with ch.watch(model, "**.entropy") as tape:
        model(X)
    assert tape.names == ["entropy"]
    assert len(tape.calls("entropy")) == 1
    assert torch._C._len_torch_function_stack() == 0

"""translating, which yields the beams after every step: it ends with the result of translate."""

from itertools import pairwise

import numpy as np
import pytest

import clearhead as ch
from clearhead.tasks.translate import translating


@pytest.fixture(scope="module", params=["en-de", "en-de-rnn"])
def bundle(request):
    return ch.load(request.param, device="cpu")


@pytest.mark.parametrize("beams", [1, 4])
def test_the_last_step_is_the_result_of_translate(bundle, beams):
    seen = list(translating(bundle, "Two dogs run across the green field.", beams=beams))
    found = ch.translate(bundle, "Two dogs run across the green field.", beams=beams, best=beams)
    assert [one.text for one in seen[-1]] == [found.text, *(other.text for other in found.others)]
    assert seen[-1][0].score == pytest.approx(found.score, abs=1e-5)


def test_hypotheses_grow_by_one_piece_per_step_and_the_best_is_first(bundle):
    seen = list(translating(bundle, "A dog runs.", beams=3))
    assert len(seen[0][0].target) == 1
    assert all(len(step[0].target) <= i + 1 for i, step in enumerate(seen))
    assert all([h.score for h in step] == sorted((h.score for h in step), reverse=True) for step in seen)
    one = [step[0].target for step in translating(bundle, "A dog runs.", beams=1)]
    assert all(later[: len(sooner)] == sooner for sooner, later in pairwise(one))


def test_white_space_has_an_empty_translation(bundle):
    assert [step[0].text for step in translating(bundle, " \t ")] == [""]


def test_the_tape_of_a_translation_holds_its_alignment(bundle):
    found = ch.translate(bundle, "A dog runs.", beams=2)
    tape = found.tape("decoder.blocks.*.cross.weights")
    mean = np.mean([tape[name].dense()[0].numpy().mean(0) for name in tape.names], axis=0)
    assert np.allclose(mean, found.alignment, atol=1e-6)
    with pytest.raises(ValueError, match="nothing was translated"):
        ch.translate(bundle, " ").tape("decoder.blocks.*.cross.weights")

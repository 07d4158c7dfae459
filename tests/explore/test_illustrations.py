"""The numbers behind the figures of positions and of the recurrent memory with decay."""

import numpy as np
import pytest

from clearhead.explore.build import memory_decay, position_vectors


def test_similarity_of_rotary_and_alibi_positions_depends_on_distance_alone():
    found = np.array(position_vectors("rotary", width=16, length=9)["similarity"])
    assert np.allclose(found[2, 5], found[4, 7])
    assert np.allclose(np.diag(found), 1.0)


@pytest.mark.parametrize("head", [0, 3, 7])
def test_alibi_biases_fall_with_distance_by_the_slope_of_the_head(head):
    found = position_vectors("alibi", length=9, head=head)
    distance = np.abs(np.subtract.outer(range(9), range(9)))
    assert np.allclose(found["similarity"], -distance * 2.0 ** -(head + 1))
    assert np.array(found["vectors"]).shape == (9, 8)  # one column per head
    assert np.allclose(np.array(found["vectors"])[:, head], -distance[8] * 2.0 ** -(head + 1))


def test_an_unknown_head_or_kind_is_a_sentence():
    with pytest.raises(ValueError, match="head=8: expected a number from 0 to 7"):
        position_vectors("alibi", head=8)
    with pytest.raises(ValueError, match="'guess': expected sinusoid"):
        position_vectors("guess")


def test_a_memory_holds_gamma_to_the_power_of_the_age_of_each_input():
    found = memory_decay(0.5, length=4)
    assert np.allclose(found["left"], [[0.5 ** (n - k) if k <= n else 0 for k in range(4)] for n in range(4)])
    assert np.allclose(np.sum(found["share"], axis=1), 1.0)


def test_a_memory_with_gamma_1_holds_all_inputs_equally():
    found = memory_decay(1.0, length=5, sharpness=0.0)
    assert np.allclose(found["share"][4], 0.2)
    assert np.allclose(found["attention"], [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])

"""The numbers behind the pictures of positions and of the memory with forgetting."""

import numpy as np

from clearhead.explore.illustrations import memory_decay, position_vectors


def test_similarity_of_rotary_and_alibi_positions_depends_on_distance_alone():
    found = np.array(position_vectors("rotary", width=16, length=9)["similarity"])
    assert np.allclose(found[2, 5], found[4, 7])
    assert np.allclose(np.diag(found), 1.0)
    alibi = np.array(position_vectors("alibi", width=64, length=9)["similarity"])
    assert np.allclose(alibi, -np.abs(np.subtract.outer(range(9), range(9))) / 2)


def test_a_memory_with_gamma_1_holds_all_inputs_equally():
    found = memory_decay(1.0, length=5, sharpness=0.0)
    assert np.allclose(found["share"][4], 0.2)
    assert np.allclose(found["attention"], [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])

"""The words that configs may use are those that the layers know."""

from typing import get_args

import pytest

from clearhead.layers import NORMS, POSITIONS, PROJECTIONS, SCORES, choices
from clearhead.layers.attention import QK_NORMS
from clearhead.layers.block import ORDERS
from clearhead.layers.conv import EXPANSION, SHRINKS
from clearhead.layers.embed import PATCH_POSITIONS
from clearhead.layers.mlp import ACTIVATIONS, KINDS
from clearhead.layers.positions.rotary import SCALINGS
from clearhead.layers.positions.vectors import JOINS, PAIRS
from clearhead.layers.recurrent import CELLS
from clearhead.layers.stack import CONNECTIONS

KNOWN = {
    "Position": [kind for kind in POSITIONS if kind != "sincos2d"],  # which needs a grid, so it is for images only
    "PatchPosition": PATCH_POSITIONS,
    "Join": JOINS,
    "Pairs": PAIRS,
    "Rope": SCALINGS,
    "DotScore": SCORES,
    "Projection": PROJECTIONS,
    "MLPKind": KINDS,
    "Activation": ACTIVATIONS,
    "Norm": NORMS,
    "Order": ORDERS,
    "QKNorm": QK_NORMS,
    "Cell": CELLS,
    "Connection": CONNECTIONS,
    "ResidualKind": EXPANSION,
    "Shrink": SHRINKS,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_literal_lists_the_words_of_its_registry(name):
    listed = get_args(getattr(choices, name))
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(KNOWN[name])


def test_every_literal_has_a_registry():
    literals = {name for name, value in vars(choices).items() if get_args(value)}
    assert literals == KNOWN.keys()

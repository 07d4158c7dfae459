"""The checks that run in all other tests find what they are for."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from clearhead.layers import attend
from clearhead.tokens import sentences


def test_a_wrong_type_is_found():
    with pytest.raises(BeartypeCallHintViolation):
        sentences(3)


def test_a_wrong_shape_is_found():
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    with pytest.raises(TypeCheckError):
        attend(q, k, k[:, :, :4])


def test_neither_is_checked_where_checks_are_off(unchecked):
    with pytest.raises((TypeError, AttributeError)) as found:
        sentences(3)
    assert not isinstance(found.value, BeartypeCallHintViolation)

"""Checks of fields, and the nearest names that error messages suggest."""

from types import SimpleNamespace

import pytest

from clearhead.checks import at_least, fraction, one_of
from clearhead.errors import InputError, InputKeyError, UserError, nearest


def test_at_least_names_the_field_and_its_value():
    config = SimpleNamespace(width=3, depth=0, window=None)
    at_least(config, 0, "width", "depth", "window")  # None is allowed
    with pytest.raises(InputError, match=r"^depth=0: expected 1 or more$"):
        at_least(config, 1, "width", "depth")


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_fraction_is_at_least_0_and_below_1(value):
    fraction(SimpleNamespace(a=0.0, b=0.99), "a", "b")
    with pytest.raises(InputError, match=rf"^share={value}: expected a share, at least 0 and below 1$"):
        fraction(SimpleNamespace(share=value), "share")


def test_an_unknown_word_raises_with_the_known_and_the_nearest_ones():
    one_of("positions", "rotary", ["none", "rotary"])
    with pytest.raises(InputError, match=r"^positions='Rotry': expected one of none, rotary; the nearest is rotary$"):
        one_of("positions", "Rotry", ["none", "rotary"])


def test_the_nearest_names_ignore_case_and_are_few():
    names = ["width", "Widths", "wide", "wider", "depth"]
    assert nearest("WIDTH", names) == "; the nearest are width, Widths"
    assert nearest("width", names, most=1) == "; the nearest is width"
    assert nearest(17, names) == nearest("xyz", []) == ""


def test_a_message_about_an_unknown_name_has_no_quotes():
    assert str(InputKeyError("no layer x")) == "no layer x"
    assert str(InputKeyError()) == ""
    assert issubclass(InputKeyError, UserError)

"""Sentences of a text: where one ends, and where a full stop belongs to a word."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.tokens import sentences


@pytest.mark.parametrize("parts", [
    ["A dog runs.", "It barks!", "Why?", "I do not know…", "Perhaps...", "Nobody knows."],
    ["Mr. and Mrs. Smith met Dr. J. R. Brown.", "They talked."],
    ["Das ist z.B. Peter.", "Er kommt am 3. Oktober, d.h. Montag, mit ca. Hundert Leuten."],
    ["He lives in the U.S. Senate building, e.g. London."],
    ["So do I.", "You too."],
    ['"Stop!" he said.', '"Why?"', '"Because."', "(It was late.)", "He left."],
    ["Il a dit: « Viens. »", "Elle est venue.", "M. Dupont et Mme. Curie aussi."],
    ["It costs 3.50 and not 4. 5 would be too much."],
    ["No.", "Never again.", "This is art.", "That is not."],
    ["今日は。", "元気ですか\uff1f", "はい\uff01"],
    ["यह अच्छा है।", "हाँ।"],
    ["¿Qué es esto?", "¡Nada!", "Über alles.", "Ça va."],
    ["Ludwig XIV. Er war König."],
    ["He was born in 1999.", "She was not."],
    ["Visit example.com.", "Then go."],
    ["one sentence without an end"],
])  # fmt: skip
def test_a_text_is_split_at_the_ends_of_its_sentences(parts):
    assert sentences(" ".join(parts)) == parts
    assert sentences("  " + "  ".join(parts) + " \n") == parts


def test_lines_always_split_and_empty_ones_are_left_out():
    assert sentences("a title\n\n  and Mr.\nSmith\r\nhere") == ["a title", "and Mr.", "Smith", "here"]
    assert sentences(" \n\t ") == []
    assert sentences("") == []


@given(st.text(alphabet=st.sampled_from("aB .!?…\"'»\n。3(-é"), max_size=40))
def test_nothing_but_white_space_is_lost(text):
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("run", ["!", ".", ". ", '."', "a.", "\u2026 "])
def test_long_runs_of_marks_take_no_longer_than_other_texts(run):
    began = time.process_time()
    assert sentences(run * (200_000 // len(run)))
    assert time.process_time() - began < 10  # it would take minutes if every mark were tried as the start of a run

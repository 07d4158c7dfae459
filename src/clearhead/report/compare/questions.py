"""What a model is asked about an input: to classify it, or to predict the last word of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...data.text.labelled import MASKS
from ...weights import Bundle

ONE_WORD = "no text has a word before the one to predict: expected texts of two words or more"
MARKS = ".,;:!?\"')»"  # punctuation after a last word


class Question(NamedTuple):
    """A question about the last word of a text."""

    make: Callable[[Any], Any]  # the text, or pair of texts, that a model is given
    words: str  # the end of a sentence that begins with the name of a model


def questions(bundle: Bundle, items: Sequence[Any]) -> list[Any]:
    """What a model is given so that its answer is the last word of each text; images as they are.

    A language model gets the text before that word, a masked model the text with a gap in its place, a translator the
    source and the translation before its last word. A text with a gap of its own is asked about that gap. None stands
    for a text that a language model cannot be asked about, because nothing is before its last word.

    Args:
        bundle: The model.
        items: Images, texts, or pairs of texts.

    Examples:
        >>> questions(clearhead.load("cloze"), ["A man is here.", "A [MASK] sleeps."])
        ['A man is [MASK].', 'A [MASK] sleeps.']
        >>> questions(clearhead.load("everyday"), ["A man is here.", "A [MASK] sleeps.", "Hello."])
        ['A man is', 'A', None]
    """
    question = _question(bundle)
    # Images need no question: a classifier gives its class.
    if question is None:
        return list(items)
    return [question.make(item) for item in items]


def question_words(bundle: Bundle) -> str:
    """What a model is asked, as the end of a sentence that begins with its name."""
    question = _question(bundle)
    if question is None:
        return "classifies each input"
    return question.words


def _parts(text: str) -> tuple[str, str]:
    """A text before and after its gap or its last word."""
    for mask in MASKS:
        # A gap of the text's own counts before its last word.
        if mask in text:
            before, _, after = text.partition(mask)
            # Only the first gap of a text is asked about.
            return before.rstrip(), after
    words = text.rstrip()
    bare = words.rstrip(MARKS)
    # Punctuation alone has no last word.
    if not bare.split():
        return "", words[len(bare) :]
    # Everything before the last word, whose length is cut from the end.
    before = bare[: len(bare) - len(bare.split()[-1])]
    return before.rstrip(), words[len(bare) :]


def _beginning(text: str) -> str | None:
    return _parts(text)[0] or None


def _with_gap(text: str) -> str:
    before, after = _parts(text)
    return f"{before} {MASKS[0]}{after}".lstrip()


def _half_written(item: Any) -> tuple[str, str]:
    # Without a translation the question is about its first word.
    source, target = (item, "") if isinstance(item, str) else item
    return source, _parts(target)[0]


QUESTIONS = {  # by what a model can do; the first that it can is used
    "fill": Question(_with_gap, "fills a gap in the place of the last word"),
    "predict": Question(_beginning, "predicts the last word from those before it"),
    "translate": Question(
        _half_written,
        "predicts the last word of the translation from the source and the words before",
    ),
}


def _question(bundle: Bundle) -> Question | None:
    for capability, question in QUESTIONS.items():
        # Ordered: a model that fills gaps and also predicts is asked for the gap.
        if capability in bundle.can:
            return question
    return None

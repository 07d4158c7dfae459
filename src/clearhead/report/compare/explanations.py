"""Sections of single inputs: features as colours, saliency."""

from __future__ import annotations

from typing import Any

from ...look import patch_colours, saliency
from ..views.registry import answers
from .pair import Pair, Section, UnfitError
from .questions import ONE_WORD, question_words, questions


def colours(pair: Pair) -> Section:
    """Principal components of patches as colours."""
    pair.need_images()
    every = [pair.inputs.items[i] for i in pair.shown]
    figures = {
        f"features of {name}": patch_colours(one, every).figure()
        for name, one in pair.models.items()
    }
    return Section(
        figures=figures,
        text="Red, green and blue are the first three principal components of the last layer's features; equal colours "
        "are equal features (Oquab et al. 2024).",
    )


def salience(pair: Pair) -> Section:
    """Saliency of some inputs, side by side."""
    models, missing = pair.fitting(answers)
    chosen = pair.shown
    items = [pair.inputs.items[i] for i in chosen]
    asked = {name: questions(bundle, items) for name, bundle in models.items()}
    figures: dict[str, Any] = {}
    for place, number in enumerate(chosen):
        for name, bundle in (
            models.items() if all(one[place] is not None for one in asked.values()) else ()
        ):
            found = saliency(
                bundle, asked[name][place], method="gradient" if pair.images else "input-gradient"
            )
            if found.probability is None:
                share = ""
            else:
                share = f", {found.probability:.0%}"
            if pair.inputs.subjects:
                subject = pair.inputs.subjects[number]
            else:
                subject = ""
            which = f"{'image' if pair.images else 'text'} {place}" + (
                f" ({subject})" if subject else ""
            )
            figures[f"{which}, {name}: {found.target.strip()}{share}"] = found.figure()
    if not figures:
        raise UnfitError(ONE_WORD)
    words = {name: question_words(bundle) for name, bundle in models.items()}
    same = len(words) > 1 and len(set(words.values())) == 1
    said = {"Each model": next(iter(words.values()))} if same else words
    asked_words = "".join(f" {name} {what}." for name, what in said.items())
    return Section(
        figures=figures,
        text=(IMAGES + _strangers(pair) if pair.images else TEXTS + asked_words) + missing,
    )


IMAGES = (
    "Which pixels the likeliest class depends on, by its gradient. "
    "The captions have the class and its probability."
)
TEXTS = (
    "Which tokens the likeliest answer depends on, by gradient times input: blue speaks for it, orange against it. The "
    "captions have the answer and its probability."
)


def _strangers(pair: Pair) -> str:
    """Sentences about images that are drawn and whose class a model does not have."""
    if pair.inputs.subjects:
        names = dict.fromkeys(pair.inputs.subjects[i] for i in pair.shown)
    else:
        names = {}
    text = ""
    for model, bundle in pair.models.items():
        known = {label.lower() for label in bundle.labels or ()}
        unknown = [name for name in names if name and known and name.lower() not in known]
        if unknown:
            text += f" {model} has no class for {', '.join(unknown)}: it can only give the nearest that it has."
    return text

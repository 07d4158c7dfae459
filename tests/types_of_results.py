"""The types that a type checker sees in a user's code: `make check` reads this file, and nothing runs it."""

from pathlib import Path
from typing import assert_type

import numpy as np

import clearhead as ch
from clearhead.tasks import Caption, Generation, Likelihood, Translation

Classes = list[tuple[str, float]]


def results(bundle: ch.Bundle, texts: list[str], images: list[Path]) -> None:
    assert_type(ch.generate(bundle, "a"), Generation)
    assert_type(ch.generate(bundle, "a", max_new=3).text, str)
    assert_type(ch.generate(bundle, texts, seed=1), list[Generation])
    assert_type(ch.translate(bundle, "a", beams=1), Translation)
    assert_type(ch.translate(bundle, texts), list[Translation])
    assert_type(ch.caption(bundle, "a.png").words, list[str])
    assert_type(ch.caption(bundle, images, limit=3), list[Caption])
    assert_type(ch.classify(bundle, "a"), Classes)
    assert_type(ch.classify(bundle, np.zeros((4, 4, 3), np.uint8)), Classes)
    assert_type(ch.classify(bundle, texts, top=1), list[Classes])
    assert_type(ch.score(bundle, "a"), Likelihood)
    assert_type(ch.score(bundle, "a", "b"), Translation)
    ch.embed(bundle, "a").shape[0]
    ch.embed(bundle, texts).shape[0]
    assert_type("".join(ch.stream(bundle, "a")), str)

"""Captions for captioners: their start and end tokens, and what the decoder reads to write one."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from ..weights import Bundle, Special


def caption_special(bundle: Bundle) -> Special:
    """The start and end tokens of a captioner, as its folder gives them; raises if it has none."""
    special = bundle.special or Special()
    if special.start is None or not special.ends:
        raise InputError(
            f"the tokens of this {bundle.name} have no <start> and <end>: captions need them"
        )
    return special


def caption_reads(bundle: Bundle, written: Sequence[int]) -> list[int]:
    """What a captioner's decoder reads to write these ids: <start>, and all but the last of them."""
    start = caption_special(bundle).start
    assert start is not None
    return [start, *written[:-1]]

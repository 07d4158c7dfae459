"""decoder_prompt: what the decoder of a translator reads before a target."""

from __future__ import annotations

import re

from ..errors import InputError
from .pair import Pair
from .special import Special, first_known

# __fr__ of M2M-100, fr_XX of mBART, fra_Latn of NLLB
LANGUAGE = re.compile(r"__[a-z]+__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
SHOWN = 8  # languages that a message lists


def decoder_prompt(tokens: Pair, special: Special | None) -> list[int]:
    """What the decoder of a translator reads before a target: BOS, or else padding, and the forced first token if any.

    The forced token is the target's language in mBART, M2M-100 and NLLB.

    Raises:
        InputError: The model writes several languages, and none is chosen.
    """
    given = special or Special()
    # Marian and T5 start with padding
    start = first_known(given.start, tokens.target.start, tokens.target.pad)
    assert start is not None  # a Pair has padding
    if given.first is not None:
        return [start, given.first]
    known = tokens.target.special_names if given.languages else {}
    # the tokens of a vocabulary that are written like a language
    codes = {name: i for name, i in known.items() if LANGUAGE.fullmatch(name)}
    if len(codes) > 1 and start not in codes.values():
        more = f" and {len(codes) - SHOWN} more" if len(codes) > SHOWN else ""
        raise InputError(
            "this translator writes several languages, and none is chosen: expected target_language='...', or a bundle "
            f"from with_languages(target='...'), with one of {', '.join(list(codes)[:SHOWN])}{more}"
        )
    return [start]

"""The seeds of sampling: one per text, so that a text's samples do not depend on the others in its batch."""

from __future__ import annotations

import secrets


def seeds_of(seed: int | None, texts: int) -> list[int]:
    """A seed for each text: seed, seed + 1, ...; a fresh random seed if none is given."""
    first = secrets.randbelow(1 << 31) if seed is None else seed
    return [first + i for i in range(texts)]

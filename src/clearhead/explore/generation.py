"""Text generation one token at a time, with the probability of each token and of its alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import decode
from ..decode import Choice, Plan
from ..look import edit, watch
from ..weights import Bundle
from .inspections import language_model_tokens, likeliest, silenced


def generate_tokens(
    bundle: Bundle, ids: Sequence[int], *, max_new: int, choice: Choice, seed: int = 0,
    off: Mapping[int, Sequence[int]] | None = None, top: int = 5,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield each new token of a prompt's continuation: its id, piece, probability and likeliest alternatives.

    `off` names heads to silence, by layer. The model is watched and edited only while a token is computed, so that
    other requests may use it between two tokens.
    """
    tokens, ends = (
        language_model_tokens(bundle),
        [] if bundle.special is None else [int(i) for i in bundle.special.ends],
    )
    steps = decode.stream(
        bundle.model, {}, Plan(start=[list(ids)], end=ends, limit=max_new, choice=choice, seed=[seed])
    )
    while True:
        changed = edit(bundle.model, silenced(off))
        with torch.no_grad(), changed, watch(bundle.model, "head", keep="last") as tape:
            new = next(steps, None)
            logits = tape.calls("head")[-1][0, -1:] if new is not None else None
        if new is None or logits is None or new[0] in ends:
            return
        share = float(logits[0].float().softmax(-1)[new[0]])
        best = likeliest(tokens, logits, top)[0]
        yield {"id": new[0], "piece": tokens.pieces([new[0]])[0], "share": round(share, 5), "candidates": best}

"""Position encodings, which turn a set of tokens into a sequence.

Attention treats its input as a set: if the tokens are permuted, its outputs are permuted and otherwise the same. Each
kind of positions breaks this symmetry in one of three places, and does nothing in the other two:

    add(x, at)          none sinusoid learned sincos2d   (added to x, or concatenated to it)
    turn(q, k, at)      rotary, and rotary on a grid
    bias(q_at, k_at)    alibi relative
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ...checks import one_of
from ...errors import InputError
from ..choices import Join, Pairs, Position
from .distance import Alibi, Relative
from .interface import Positions
from .rotary import Rotary, Rotary2d
from .vectors import Learned, SinCos2d, Sinusoid, Vectors, grid

__all__ = [
    "POSITIONS",
    "Alibi",
    "Learned",
    "Positions",
    "Relative",
    "Rotary",
    "Rotary2d",
    "SinCos2d",
    "Sinusoid",
    "Vectors",
    "grid",
    "make_positions",
]

# The names that `make_positions` knows: the ways in which a model can tell the places of tokens.
POSITIONS = ("none", "sinusoid", "learned", "sincos2d", "rotary", "alibi", "relative")
# the kinds that are added to tokens or concatenated with them
VECTORS = ("sinusoid", "learned", "sincos2d")


def make_positions(
    kind: Position | Literal["sincos2d"],
    *,
    width: int,
    heads: int,
    head: int,
    context: int,
    causal: bool = False,
    join: Join = "add",
    pairs: Pairs | None = None,
    **more: Any,
) -> Positions:
    """Build a position encoding from its name and the sizes of the model that uses it.

    Args:
        kind: none, sinusoid, learned, sincos2d, rotary, alibi or relative.
        width: width of the tokens.
        heads: number of query heads.
        head: head dimension.
        context: tokens that the model is trained on.
        causal: relative: queries attend to no later key.
        join: sinusoid, learned, sincos2d: "add" to the tokens or "concatenate" with them.
        pairs: sinusoid, rotary: which columns make a pair, "halves" or "neighbours"; that of the paper or of Llama if
            not given.
        **more: further arguments of the class: Sinusoid, Learned, SinCos2d, Rotary or Relative.

    Examples:
        >>> positions = make_positions("alibi", width=12, heads=3, head=4, context=64)
        >>> Attention(12, heads=3)(torch.zeros(2, 7, 12), positions=positions).shape
        torch.Size([2, 7, 12])
    """
    # functions, because only one of them may be built: the sizes need not fit the others
    makers: dict[str, Callable[[], Positions]] = {
        "none": Positions,
        "sinusoid": lambda: Sinusoid(width, join=join, pairs=pairs or "neighbours", **more),
        "learned": lambda: Learned(width, context, join=join, **more),
        "sincos2d": lambda: SinCos2d(width, join=join, **more),
        "rotary": lambda: Rotary(head, pairs=pairs or "halves", context=context, **more),
        "alibi": lambda: Alibi(heads),
        "relative": lambda: Relative(heads, causal=causal, **more),
    }
    one_of("positions", kind, makers)
    if join != "add" and kind not in VECTORS:
        # the other kinds act inside attention, and have no vectors to concatenate
        raise InputError(
            f"join={join!r} with positions={kind!r}: only {', '.join(VECTORS)} can be joined with tokens"
        )
    return makers[kind]()

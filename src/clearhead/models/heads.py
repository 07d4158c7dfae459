"""The check of the sizes of attention heads in a config, shared by all families that have attention."""

from __future__ import annotations

from ..errors import InputError


def check_heads(
    width: int,
    heads: int,
    *,
    positions: str = "none",
    head: int | None = None,
    kv_heads: int | None = None,
) -> None:
    """Raise unless these sizes fit together; `head` is the width of a head if it is not width / heads."""
    if head is None and width % heads:
        raise InputError(f"width={width} does not divide into heads={heads}: expected a multiple")
    if kv_heads is not None and heads % kv_heads:
        raise InputError(f"kv_heads={kv_heads} does not divide heads={heads}")
    each = width // heads if head is None else head
    if positions == "rotary" and each % 2:
        raise InputError(
            f"positions='rotary' rotates pairs of columns: the head width {each} is not even"
        )

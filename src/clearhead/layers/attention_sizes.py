"""The sizes of an attention: the defaults, and the checks that they fit together."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import one_of
from ..errors import InputError
from .words import Projection

# Which of queries, keys and values have a learned projection ("qkv": all three). "q=k": queries and keys share one;
# "k=v": keys and values share one; "q=k=v": all share one; "qk": values are not projected; "none": nothing is.
PROJECTIONS = ("qkv", "q=k", "k=v", "q=k=v", "qk", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of an Attention that have defaults."""

    kv_heads: int  # number of key and value heads
    head: int  # head dimension of queries and keys
    value: int  # head dimension of values
    context: int  # width of the context


def attention_sizes(
    width: int,
    heads: int,
    kv_heads: int | None,
    head: int | None,
    value: int | None,
    context: int | None,
    project: Projection,
) -> Sizes:
    """Return the sizes of an Attention, whose arguments these are; raise if they do not fit together."""
    kv_heads = heads if kv_heads is None else kv_heads
    context = width if context is None else context
    if min(heads, width, kv_heads, context) < 1:
        raise InputError(
            f"width={width}, heads={heads}, kv_heads={kv_heads}, context={context}: expected 1 or more of each"
        )
    one_of("project", project, PROJECTIONS)
    if heads % kv_heads:
        raise InputError(f"heads={heads}, kv_heads={kv_heads}: expected heads to be a multiple of kv_heads")
    if head is None and width % heads:
        raise InputError(f"width={width} does not divide into heads={heads}: give head, the width of one")
    head = width // heads if head is None else head
    value = head if value is None else value
    if min(head, value) < 1:
        raise InputError(f"head={head}, value={value}: expected widths of 1 or more")
    if project in ("qk", "none"):  # values are the context itself, split over the heads
        if context % kv_heads:
            raise InputError(f"unprojected values of width {context} do not divide into {kv_heads} heads")
        value = context // kv_heads
    if "k=v" in project and value != head:
        raise InputError(f"project={project!r} with head={head} and value={value}: expected equal widths")
    if "q=k" in project and (context != width or kv_heads != heads):
        raise InputError(
            f"project={project!r}: expected context = width and kv_heads = heads, got "
            f"context={context}, width={width}, kv_heads={kv_heads}, heads={heads}"
        )
    if project == "none" and (heads * head != width or kv_heads * head != context):
        raise InputError(
            f"project='none' splits the input over the heads: expected width = heads x head = "
            f"{heads * head} and context = kv_heads x head = {kv_heads * head}, got {width}, {context}"
        )
    return Sizes(kv_heads=kv_heads, head=head, value=value, context=context)

"""Views of causes: logit lens, logit attribution, activation patching, head ablation, removal of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InputError
from ...look import (
    AttentionEffects,
    HeadEffects,
    LogitAttribution,
    LogitLens,
    Patching,
    attention_effects,
    head_effects,
    logit_attribution,
    logit_lens,
)
from ...look import patching as patch_activations
from ...weights import Bundle
from ..conditions import answers, at_once, attends, layered, linear_end, reads
from ..example_inputs import own_translation
from ..registry import view_of

Done = Callable[[int, int], None]
Word = str | int | None


@view_of("lens", reads("tokens", "pairs", "images"), layered, answers)
def lens(
    bundle: Bundle,
    given: Any,
    *,
    top: int = 5,
    at: int | None = None,
    written: str | None = None,
    done: Done | None = None,
) -> LogitLens:
    """Logit lens: the likeliest answers after each layer.

    Args:
        top: Number of answers.
        at: The position whose next token is the answer; all of a language model if not given.
        written: For a translator: what it has written so far.
    """
    return logit_lens(bundle, given, top=top, at=at, written=written)


@view_of("attribution", reads("tokens", "pairs", "images"), layered, answers, linear_end)
def attribution(
    bundle: Bundle,
    given: Any,
    *,
    target: Word = None,
    against: Word = None,
    at: int | None = None,
    written: str | None = None,
    done: Done | None = None,
) -> LogitAttribution:
    """What every head, MLP and embedding adds to one logit.

    Args:
        target: The class or word; the likeliest if not given.
        against: Another one, whose logit is subtracted.
        at: The position whose next token is the answer; the last if not given.
        written: For a translator: what it has written so far.
    """
    return logit_attribution(bundle, given, target=targets(target, against), at=at, written=written)


@view_of(
    "patching",
    reads("tokens", "pairs", "images"),
    layered,
    answers,
    cheaper="what=heads, or a shorter input",
)
def patching(
    bundle: Bundle,
    given: Any,
    *,
    other: str | None = None,
    target: Word = None,
    against: Word = None,
    what: str = "residual",
    at: int | None = None,
    stack: str | None = None,
    written: str | None = None,
    done: Done | None = None,
) -> Patching:
    """Which layer and position carry the difference between two inputs: INPUT and other=.

    Args:
        other: The other input, with as many tokens, whose run is patched; --other does the same.
        target: The class or word whose probability is measured; if not given, the likeliest answer to INPUT, against
            that to the other input if the two differ.
        against: Another one, whose log-probability is subtracted.
        what: What is exchanged: residual, attention, cross, mlp or heads.
        at: The position whose next token is the answer; the last, or the mask, if not given.
        stack: For a translator: encoder or decoder.
        written: For a translator: what it has written so far.
    """
    # The second input is an option, because a view has one INPUT.
    if other is None:
        raise InputError(
            "the view patching compares two inputs: expected another one, --other INPUT"
        )
    return patch_activations(
        bundle,
        given,
        other,
        target=targets(target, against),
        what=what,
        at=at,
        stack=stack,
        written=written,
        done=done,
    )


@view_of("heads", reads("tokens", "pairs", "images"), attends, cheaper="a shorter input")
def heads(
    bundle: Bundle,
    given: Any,
    *,
    target: str | None = None,
    kind: str | None = None,
    done: Done | None = None,
) -> HeadEffects:
    """Importance of every head: the change of the answer when it is silenced (Michel et al. 2019).

    Args:
        target: The translation, or the class; the model's own if not given.
        kind: For a translator: encoder, decoder or cross; cross if not given.
    """
    # A translation is needed whose tokens are scored: the model's own is the likeliest to be of
    # interest.
    if bundle.reads == "pairs" and target is None:
        target = own_translation(bundle, given)
    return head_effects(bundle, given, target=target, kind=kind, done=_steps(done))


@view_of(
    "effects",
    reads("tokens", "pairs", "images"),
    layered,
    at_once,
    answers,
    dense=True,
    cheaper="the view heads, which takes one row per head and not per key",
)
def effects(
    bundle: Bundle,
    given: Any,
    *,
    target: Word = None,
    at: int | None = None,
    query: int | None = None,
    stack: str | None = None,
    written: str | None = None,
    done: Done | None = None,
) -> AttentionEffects:
    """Attention of each head against the effect of removing what it attends to.

    Args:
        target: The class or word whose probability is measured; the likeliest if not given.
        at: The position whose next token is the answer; the last, or the mask, if not given.
        query: The query whose keys are removed; that of the answer if not given.
        stack: For a translator: encoder or decoder; the decoder if not given.
        written: For a translator: what it has written so far; all but the last word of its own translation if not
            given.
    """
    # After the start token alone there is one key, and no correlation.
    if bundle.reads == "pairs" and written is None:
        # The last word is left to be predicted; a translation of one word leaves nothing.
        written = own_translation(bundle, given).rpartition(" ")[0] or None
    return attention_effects(
        bundle, given, target=target, at=at, query=query, stack=stack, written=written, done=done
    )


def targets(target: Word, against: Word) -> Any:
    """What a view measures: one answer, a pair whose difference is measured, or None."""
    if target is None and against is not None:
        raise InputError(f"against={against!r}: expected a target too")
    return target if against is None else (target, against)


def _steps(done: Done | None) -> Done | None:
    """A callback for functions that report the total done so far: passes on only what is new since the last call."""
    if done is None:
        return None
    report, before = done, [0]

    def step(so_far: int, total: int) -> None:
        # The number of new steps since the last report.
        report(so_far - before[0], total)
        before[0] = so_far

    return step

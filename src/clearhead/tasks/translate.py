"""translate: sentences in, sentences out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..decode import Choice, Hypothesis, Plan, follow, forced, search
from ..errors import Notice
from ..tokens import Pair
from ..weights import Bundle
from .batching import batches
from .translation import Pass, Translation, source_inputs, start_id, translator_tokens

EMPTY = Translation(text="", score=0.0, logprob=0.0, source=[], target=[])  # the translation of white space


def translate(
    bundle: Bundle,
    text: str | Sequence[str],
    *,
    beams: int = 5,
    best: int = 1,
    penalty: float = 1.0,
    limit: int | None = None,
    batch_tokens: int = 2048,
    sample: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    done: Callable[[int], None] | None = None,
) -> Translation | list[Translation]:
    """Translate a sentence, or many at once.

    Results are in the order of the texts; white space alone has an empty translation. A text longer than the model's
    context is cut there, with a Notice that names it.

    Args:
        bundle: A translator.
        text: A sentence, or several.
        beams: Hypotheses that the search keeps; 1 is greedy.
        best: Translations to return of each; the others are in `.others`.
        penalty: The search ranks by log-probability / length^penalty.
        limit: Tokens to write at most; twice the source's and 20 if not given, never more than the context.
        batch_tokens: Source tokens that are translated at a time, padding included.
        sample: Sample instead of searching.
        temperature: Of sampling.
        seed: Of sampling.
        done: Called with the number of sentences just finished.

    Returns:
        A Translation, or a list of them for several texts.

    Examples:
        >>> translate(clearhead.load("en-de"), "A dog runs.").text
        'Ein Hund rennt.'
    """
    tokens = translator_tokens(bundle)
    texts = [text] if isinstance(text, str) else list(text)
    found: list[Translation | None] = [None] * len(texts)
    read = _read(bundle, tokens, texts)
    waiting = [i for i, one in enumerate(texts) if one.strip() and len(read[i][0]) > 1]  # more than the end token
    for i in set(range(len(texts))) - set(waiting):
        found[i] = EMPTY
    if done is not None and len(waiting) < len(texts):
        done(len(texts) - len(waiting))
    choice = Choice(sample=sample, temperature=temperature)
    for rows in batches([len(read[i][0]) for i in waiting], bundle.model, batch_tokens):
        batch = [waiting[row] for row in rows]
        wanted = [2 * len(read[i][0]) + 20 if limit is None else limit for i in batch]
        plan = Plan(
            start=start_id(tokens), end=_end(tokens), beams=beams, best=best, penalty=penalty, choice=choice, seed=seed,
            limit=[min(n, _context(bundle)) for n in wanted], banned=_banned(tokens),
        )  # fmt: skip
        answers = search(bundle.model, source_inputs(bundle, [read[i][0] for i in batch]), plan)
        for i, hypotheses in zip(batch, answers, strict=True):
            first, *others = [_translation(bundle, tokens, *read[i], h) for h in hypotheses]
            found[i] = replace(first, others=others)
        if done is not None:
            done(len(batch))
    results = [one for one in found if one is not None]
    return results[0] if isinstance(text, str) else results


def translating(
    bundle: Bundle, text: str, *, beams: int = 5, penalty: float = 1.0, limit: int | None = None
) -> Iterator[list[Translation]]:
    """Yield a translation as it is written: the beams after every step, the best first, and at last the result.

    The first of the last is what `translate` returns.
    """
    tokens = translator_tokens(bundle)
    ((ids, cut),) = _read(bundle, tokens, [text])
    if not text.strip() or len(ids) < 2:
        yield [EMPTY]
        return
    plan = Plan(
        start=start_id(tokens), end=_end(tokens), beams=beams, best=beams, penalty=penalty, banned=_banned(tokens),
        limit=min(2 * len(ids) + 20 if limit is None else limit, _context(bundle)),
    )  # fmt: skip
    steps = follow(bundle.model, source_inputs(bundle, [ids]), plan)
    while True:
        with torch.no_grad():  # whatever thread takes the next step
            found = next(steps, None)
        if found is None:
            return
        yield [_translation(bundle, tokens, ids, cut, h) for h in found[0]]


def given_translation(bundle: Bundle, source: str, target: str) -> Translation:
    """A given translation with its score and attention under a model: forced decoding."""
    tokens = translator_tokens(bundle)
    ((ids, cut),) = _read(bundle, tokens, [source])
    wanted = tokens.written(target)
    before = torch.from_numpy(np.concatenate([[start_id(tokens)], wanted[:-1]]))[None].to(bundle.device)
    targets = torch.from_numpy(wanted)[None].to(bundle.device)
    logprob = float(forced(bundle.model, source_inputs(bundle, [ids]), before, targets).sum())
    found = Hypothesis(ids=tuple(wanted[:-1].tolist()), logprob=logprob, score=logprob / len(wanted), finished=True)
    return _translation(bundle, tokens, ids, cut, found)


def _translation(bundle: Bundle, tokens: Pair, ids: np.ndarray, cut: bool, h: Hypothesis) -> Translation:
    written = [*h.ids, _end(tokens)] if h.finished else list(h.ids)
    return Translation(
        text=tokens.target.decode(np.array(h.ids, np.int64)), score=h.score, logprob=h.logprob,
        source=tokens.source.pieces(ids), target=tokens.target.pieces(written), cut=cut or not h.finished,
        forced=Pass(bundle, ids, written), word_numbers=(tokens.source.words(ids), tokens.target.words(written)),
    )  # fmt: skip


def _context(bundle: Bundle) -> int:
    return bundle.max_tokens or 512


def _read(bundle: Bundle, tokens: Pair, texts: Sequence[str]) -> list[tuple[np.ndarray, bool]]:
    """The ids of each source, at most as many as the model reads, and whether it was cut."""
    rows, most = [tokens.read(text) for text in texts], _context(bundle)
    long = [i for i, ids in enumerate(rows) if len(ids) > most]
    if long:
        names = ", ".join(str(i + 1) for i in long[:5]) + (f" and {len(long) - 5} more" if len(long) > 5 else "")
        warnings.warn(
            f"sentence {names} of {len(texts)} is longer than the {most} tokens that this model reads (the longest has "
            f"{max(map(len, rows))}): the rest was left out; split it",
            Notice,
            stacklevel=3,
        )
    return [(np.append(ids[: most - 1], ids[-1:]), True) if len(ids) > most else (ids, False) for ids in rows]


def _end(tokens: Pair) -> int:
    assert tokens.target.end is not None
    return int(tokens.target.end)


def _banned(tokens: Pair) -> list[int]:
    return [int(i) for i in {tokens.target.pad, tokens.target.start} if i is not None]

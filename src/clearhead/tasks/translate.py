"""translate: sentences of one language to sentences of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..decode import Choice, Hypothesis, Plan, follow, forced, search
from ..errors import TextError
from ..tokens import Pair
from ..tokens.ids import as_row
from ..weights import Bundle
from .batching import batches, warn_cut
from .seeds import seeds_of
from .translation import Pass, Translation, source_inputs, translator_tokens

EMPTY = Translation(text="", score=0.0, logprob=0.0, source=[], target=[])  # the translation of white space


def translate(
    bundle: Bundle,
    text: str | Sequence[str],
    *,
    beams: int = 5,
    best: int = 1,
    penalty: float = 1.0,
    limit: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    batch_tokens: int = 2048,
    sample: bool = False,
    temperature: float = 1.0,
    seed: int | None = None,
    done: Callable[[int], None] | None = None,
) -> Translation | list[Translation]:
    """Translate a sentence, or many at once.

    Results are in the order of the texts; a text of white space has an empty translation. A text longer than the
    model's context is cut there, with a Notice.

    Args:
        bundle: A translator.
        text: A sentence, or several.
        beams: Number of hypotheses of the beam search; 1 is greedy.
        best: Translations to return for each text; all but the first are in `.others`.
        penalty: The search ranks by log-probability / length^penalty.
        limit: Largest number of tokens of a translation; twice the source's plus 20 if not given, and never more than
            the model's context.
        source_language: Token of the source's language, of a model of many languages: "eng_Latn" of NLLB. If not given,
            that of the folder.
        target_language: Token of the translation's language.
        batch_tokens: Source tokens that are translated at a time, padding included.
        sample: Sample instead of searching.
        temperature: Of sampling: below 1 prefers likelier tokens, above 1 flattens the distribution.
        seed: Seed of sampling. A text's samples depend on nothing else: text i of several uses seed + i. If not given,
            each call uses a fresh seed; the result reports it.
        done: Called with the number of sentences just finished.

    Returns:
        A Translation, or a list of them for several texts.

    Examples:
        >>> translate(clearhead.load("en-de"), "A dog runs.").text
        'Ein Hund rennt.'
    """
    translator_tokens(bundle)
    bundle = bundle.with_languages(source_language, target_language)
    tokens = bundle.pair()
    texts = [text] if isinstance(text, str) else list(text)
    sources = _sources(bundle, tokens, texts)
    waiting = [i for i, one in enumerate(texts) if one.strip() and len(sources[i][0]) > 1]  # more than the end token
    if done is not None and len(waiting) < len(texts):
        done(len(texts) - len(waiting))
    choice, seeds = Choice(sample=sample, temperature=temperature), seeds_of(seed if sample else 0, len(texts))
    results: dict[int, Translation] = {}
    for rows in batches([len(sources[i][0]) for i in waiting], bundle.model, batch_tokens):
        batch = [waiting[row] for row in rows]
        plan = Plan(
            start=[bundle.decoder_prompt()] * len(batch), end=_end(tokens), beams=beams, best=best, penalty=penalty,
            choice=choice, seed=[seeds[i] for i in batch], limit=[_limit(bundle, sources[i][0], limit) for i in batch],
            banned=_banned(bundle, tokens),
        )  # fmt: skip
        answers = search(bundle.model, source_inputs(bundle, [sources[i][0] for i in batch]), plan)
        for i, hypotheses in zip(batch, answers, strict=True):
            used = seeds[i] if sample else None
            first, *others = [_translation(bundle, tokens, *sources[i], h, used) for h in hypotheses]
            results[i] = replace(first, others=others)
        if done is not None:
            done(len(batch))
    return results.get(0, EMPTY) if isinstance(text, str) else [results.get(i, EMPTY) for i in range(len(texts))]


def translating(
    bundle: Bundle, text: str, *, beams: int = 5, penalty: float = 1.0, limit: int | None = None
) -> Iterator[list[Translation]]:
    """Yield the hypotheses of a translation after every step of the search, the best first, and at last the result.

    The first of the last list is what `translate` returns. The options are those of `translate`.
    """
    tokens = translator_tokens(bundle)
    ((ids, cut),) = _sources(bundle, tokens, [text])
    if not text.strip() or len(ids) < 2:
        yield [EMPTY]
        return
    plan = Plan(
        start=[bundle.decoder_prompt()], end=_end(tokens), beams=beams, best=beams, penalty=penalty,
        limit=_limit(bundle, ids, limit), banned=_banned(bundle, tokens),
    )  # fmt: skip
    for hypotheses in follow(bundle.model, source_inputs(bundle, [ids]), plan):
        yield [_translation(bundle, tokens, ids, cut, h) for h in hypotheses[0]]


def given_translation(bundle: Bundle, source: str, target: str | Sequence[int]) -> Translation:
    """A given translation with its log-probability and attention under a model (forced decoding).

    The target is a text, or the ids of one, which may be unfinished: without the end token.
    """
    tokens = translator_tokens(bundle)
    ((ids, cut),) = _sources(bundle, tokens, [source])
    written = tokens.written(target) if isinstance(target, str) else as_row(target, len(tokens.target))
    if not len(written):
        raise TextError("the translation has no tokens: expected one or more")
    start = bundle.decoder_prompt()
    before = torch.from_numpy(np.concatenate([start, written[:-1]]))[None].to(bundle.device)
    targets = torch.from_numpy(np.concatenate([[-1] * (len(start) - 1), written]).astype(np.int64))[None].to(
        bundle.device
    )
    logprob = float(forced(bundle.model, source_inputs(bundle, [ids]), before, targets).sum())
    finished = int(written[-1]) == _end(tokens)
    own = written[:-1] if finished else written
    h = Hypothesis(ids=tuple(own.tolist()), logprob=logprob, score=logprob / len(written), finished=finished)
    return _translation(bundle, tokens, ids, cut, h)


def _translation(
    bundle: Bundle, tokens: Pair, ids: np.ndarray, cut: bool, h: Hypothesis, seed: int | None = None
) -> Translation:
    written = [*h.ids, _end(tokens)] if h.finished else list(h.ids)
    return Translation(
        text=tokens.target.decode(np.array(h.ids, np.int64)), score=h.score, logprob=h.logprob,
        source=tokens.source.pieces(ids), target=tokens.target.pieces(written), cut=cut or not h.finished, seed=seed,
        forced=Pass(bundle, ids, written), word_numbers=(tokens.source.words(ids), tokens.target.words(written)),
    )  # fmt: skip


def _context(bundle: Bundle) -> int:
    """The number of tokens that the model reads and writes at most."""
    return bundle.max_tokens or 512


def _limit(bundle: Bundle, source: np.ndarray, limit: int | None) -> int:
    """The largest number of tokens of a translation."""
    return min(2 * len(source) + 20 if limit is None else limit, _context(bundle))


def _sources(bundle: Bundle, tokens: Pair, texts: Sequence[str]) -> list[tuple[np.ndarray, bool]]:
    """The ids of each source, cut at the model's context, and whether it was cut."""
    rows, most = [tokens.read(text) for text in texts], _context(bundle)
    warn_cut([len(ids) for ids in rows], most)
    return [(np.append(ids[: most - 1], ids[-1:]), True) if len(ids) > most else (ids, False) for ids in rows]


def _end(tokens: Pair) -> int:
    assert tokens.target.end is not None
    return int(tokens.target.end)


def _banned(bundle: Bundle, tokens: Pair) -> list[int]:
    """Ids that no translation has."""
    return [*(int(i) for i in {tokens.target.pad, tokens.target.start} if i is not None), *bundle.spare_ids]

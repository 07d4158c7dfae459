"""translate: sentences of one language to sentences of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch
from jaxtyping import Float

from ..decode import Choice, Hypothesis, Plan, follow, forced, search
from ..errors import InputError, TextError
from ..inputs.batching import by_length, cut_rows
from ..inputs.pairs import decoder_ids, source_batch
from ..inputs.texts import texts_of
from ..look import Tape, watch
from ..tokens import Pair
from ..tokens.ids import as_row
from ..weights import Bundle, ModelLike, opened
from .generate import seeds_of

# Translation: a translated sentence with its score and its attention to the source.


CROSS = "decoder.blocks.*.cross.weights"  # the addresses of the attention to the source


class NoAttentionError(InputError):
    """The model has no attention to its source."""


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass over a source and its translation (forced decoding), run only when it is watched."""

    bundle: Bundle
    source: np.ndarray  # ids, the end token included
    target: list[int]  # ids, the end token included if it was reached

    @torch.no_grad()
    def watch(self, *names: str) -> Tape:
        """Run the pass and record these addresses.

        Up to rounding, this is the attention of the search itself, because a decoder's states depend only on the
        tokens before them.
        """
        reads, _ = decoder_ids(self.bundle, self.target)
        before = torch.from_numpy(reads)[None].to(self.bundle.device)
        try:
            with watch(self.bundle.model, *names) as tape:
                # one teacher-forced pass gives the attention of all target tokens at once
                self.bundle.model(before, **source_batch(self.bundle, [self.source]))
        except KeyError as cause:
            # any other unknown address is the caller's mistake, and keeps its own message
            if list(names) != [CROSS]:
                raise
            raise NoAttentionError(
                "this model has no attention to its source, which it reads as one vector: expected one with attention"
            ) from cause
        return tape


@dataclass(frozen=True, eq=False)
class Translation:
    """A translation with its score and, computed when first used, its attention to the source.

    Examples:
        >>> translation = clearhead.translate(clearhead.load("en-de"), "A dog runs.")
        >>> translation.target
        ['Ein', ' Hund', ' rennt', '.', '<end>']
        >>> source, target, weights = translation.by_word()
        >>> source[weights[1].argmax()]
        'dog'
    """

    text: str  # the translation
    score: float  # what the search ranks by: log-probability / length^penalty
    logprob: float  # sum of the log-probabilities of its tokens, in nats
    source: list[str]  # the source's pieces (tokens as text), the end token included
    target: list[str]  # the translation's pieces, the end token included if it was reached
    # True if the source was longer than the model reads, or the translation than the limit
    cut: bool = False
    # the next best translations, or the other samples
    others: list[Translation] = field(default_factory=list)
    # the seed of sampling, which gives the same translation again; None: not sampled
    seed: int | None = None
    # computes its attention; None for an empty text
    forced: Pass | None = field(default=None, repr=False)
    # word of each source, target piece
    word_numbers: tuple[list[int], list[int]] = field(default=([], []), repr=False)

    @cached_property
    def alignment(self) -> Float[np.ndarray, "t s"]:
        """The attention from each target piece to each source piece, mean of layers and heads; rows sum to 1.

        It is computed by one more forward pass, when it is first used.
        """
        return self.attention()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        try:
            if self.forced is not None:
                # float64 first, because rounded float32 numbers are long in JSON
                rows = self.alignment.astype(np.float64).round(6).tolist()
            else:
                rows = []
        except NoAttentionError:
            rows = []
        return {
            "text": self.text,
            "score": self.score,
            "logprob": self.logprob,
            "cut": self.cut,
            "source": self.source,
            "target": self.target,
            "alignment": rows,
            "seed": self.seed,
            # without maps, which would take a forward pass each
            "others": [{"text": other.text, "score": other.score} for other in self.others],
        }

    def attention(
        self, layer: int | None = None, head: int | None = None
    ) -> Float[np.ndarray, "t s"]:
        """The attention (target, source) of one layer and head, or the mean over those that are not given."""
        if self.forced is None:
            # an empty text has no tokens to attend
            return np.zeros((len(self.target), len(self.source)), np.float32)
        tape = self.forced.watch(CROSS)
        rows = cross_attention(tape, layer, head)
        return rows[-len(self.target) :]  # without a forced first token

    def tape(self, *names: str) -> Tape:
        """The model's activations at these addresses, by one forward pass over the whole answer."""
        if self.forced is None:
            raise InputError(
                "nothing was translated, so there is nothing to watch: expected a text"
            )
        return self.forced.watch(*names)

    @property
    def words(self) -> tuple[list[list[int]], list[list[int]]]:
        """The pieces of each word, by number: of the source, and of the target."""
        source, target = self.word_numbers
        return word_pieces(self.source, source), word_pieces(self.target, target)

    def by_word(
        self, layer: int | None = None, head: int | None = None
    ) -> tuple[list[str], list[str], Float[np.ndarray, "t s"]]:
        """The words of the source, those of the target, and the attention (target, source) between them.

        A source word's weight is the sum over its pieces, a target word's row the mean over its pieces; rows sum to 1.
        """
        source_words, target_words = self.words
        source = ["".join(self.source[i] for i in word).strip() for word in source_words]
        target = ["".join(self.target[i] for i in word).strip() for word in target_words]
        weights = self.attention(layer, head)
        # a sum over source pieces and a mean over target pieces keep each row a distribution
        by_word = np.zeros((len(target), len(source)), np.float32)
        for t, row in enumerate(target_words):
            for s, column in enumerate(source_words):
                # (pieces of t, pieces of s) -> one number
                by_word[t, s] = weights[row][:, column].sum(1).mean()
        return source, target, by_word


def cross_attention(tape: Tape, layer: int | None, head: int | None) -> Float[np.ndarray, "t s"]:
    """The attention of one layer and head to the source, or the mean over those that are not given."""
    layers = [tape[name].dense()[0].float().cpu().numpy() for name in tape.names]  # (h, t, s) each
    sizes = {"layer": (layer, len(layers)), "head": (head, len(layers[0]))}
    for name, (number, count) in sizes.items():
        # as Python's indices: -1 is the last
        if number is not None and not (isinstance(number, int) and -count <= number < count):
            raise InputError(f"{name}={number}: there are {count}, counted from 0")
    if layer is not None:
        # negative numbers count from the last layer
        layers = [layers[layer]]
    if head is not None:
        # over the layers, (t, s)
        return np.mean([x[head] for x in layers], axis=0)
    return np.mean([x.mean(0) for x in layers], axis=0)


def word_pieces(pieces: Sequence[str], words: Sequence[int]) -> list[list[int]]:
    """The numbers of each word's pieces; white space belongs to the word after it."""
    groups: list[list[int]] = []
    last, spaces = -1, list[int]()
    for i, (piece, word) in enumerate(zip(pieces, words, strict=True)):
        if word < 0 and not piece.strip():
            # held back until the word that follows
            spaces.append(i)
            continue
        # the next piece of the same word; a special token (word -1) is a group of its own
        if word >= 0 and word == last and not spaces:
            groups[-1].append(i)
        else:
            # a new word begins, with the white space before it
            groups.append([*spaces, i])
        last, spaces = word, []
    # white space at the end has no word after it
    return [*groups, spaces] if spaces else groups


def translator_tokens(bundle: Bundle) -> Pair:
    """The tokenizers of a translator; raises for other models."""
    bundle.require("translate", "a translator")
    return bundle.pair()


# the translation of white space
EMPTY = Translation(text="", score=0.0, logprob=0.0, source=[], target=[])


class TranslateOptions(TypedDict, total=False):
    """The options of `translate`, for type checkers; the function documents them."""

    beams: int
    best: int
    penalty: float
    limit: int | None
    source_language: str | None
    target_language: str | None
    batch_tokens: int
    sample: bool
    temperature: float
    seed: int | None
    done: Callable[[int], None] | None


@overload
def translate(bundle: ModelLike, text: str, **options: Unpack[TranslateOptions]) -> Translation: ...  # type: ignore[overload-overlap]


@overload
def translate(
    bundle: ModelLike, text: Sequence[str], **options: Unpack[TranslateOptions]
) -> list[Translation]: ...


def translate(
    bundle: ModelLike,
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
        bundle: A translator, or its name or folder.
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
    bundle = opened(bundle)
    translator_tokens(bundle)
    # before anything is tokenised: the languages are tokens of source and prompt
    bundle = bundle.with_languages(source_language, target_language)
    tokens = bundle.pair()
    texts = texts_of(bundle, text)
    sources = _sources(bundle, tokens, texts)
    # a source without text is its end token alone, and is not translated
    waiting = [i for i, (ids, _) in enumerate(sources) if texts[i].strip() and len(ids) > 1]
    if done is not None and len(waiting) < len(texts):
        # texts of white space are finished at once
        done(len(texts) - len(waiting))
    choice = Choice(sample=sample, temperature=temperature)
    seeds = seeds_of(seed if sample else 0, len(texts))
    results: dict[int, Translation] = {}
    # sentences of similar length are searched together, the longest first
    for rows in by_length([len(sources[i][0]) for i in waiting], bundle.model, batch_tokens):
        batch = [waiting[row] for row in rows]
        plan = Plan(
            start=[bundle.decoder_prompt()] * len(batch),
            end=_end(tokens),
            beams=beams,
            best=best,
            penalty=penalty,
            choice=choice,
            seed=[seeds[i] for i in batch],
            # per row, so that a translation does not depend on its batch
            limit=[_limit(bundle, sources[i][0], limit) for i in batch],
            banned=_banned(bundle, tokens),
        )
        answers = search(bundle.model, source_batch(bundle, [sources[i][0] for i in batch]), plan)
        # the best hypothesis, or the first sample, is the translation; the rest is in .others
        for i, hypotheses in zip(batch, answers, strict=True):
            used = seeds[i] if sample else None
            first, *others = [
                _translation(bundle, tokens, *sources[i], h, used) for h in hypotheses
            ]
            results[i] = replace(first, others=others)
        if done is not None:
            done(len(batch))
    if isinstance(text, str):
        return results.get(0, EMPTY)
    return [results.get(i, EMPTY) for i in range(len(texts))]


def translating(
    bundle: Bundle, text: str, *, beams: int = 5, penalty: float = 1.0, limit: int | None = None
) -> Iterator[list[Translation]]:
    """Yield the hypotheses of a translation after every step of the search, the best first, and at last the result.

    The first of the last list is what `translate` returns. The options are those of `translate`.
    """
    tokens = translator_tokens(bundle)
    ((ids, cut),) = _sources(bundle, tokens, [text])
    if not text.strip() or len(ids) < 2:
        # white space alone is not searched
        yield [EMPTY]
        return
    plan = Plan(
        start=[bundle.decoder_prompt()],
        end=_end(tokens),
        beams=beams,
        best=beams,
        penalty=penalty,
        limit=_limit(bundle, ids, limit),
        banned=_banned(bundle, tokens),
    )
    for hypotheses in follow(bundle.model, source_batch(bundle, [ids]), plan):
        # of the only text, the best first
        yield [_translation(bundle, tokens, ids, cut, h) for h in hypotheses[0]]


def given_translation(bundle: Bundle, source: str, target: str | Sequence[int]) -> Translation:
    """A given translation with its log-probability and attention under a model (forced decoding).

    The target is a text, or the ids of one, which may be unfinished: without the end token.
    """
    tokens = translator_tokens(bundle)
    ((ids, cut),) = _sources(bundle, tokens, [source])
    if isinstance(target, str):
        # with the end token
        written = tokens.written(target)
    else:
        # ids as they are: the end token only if it is among them
        written = as_row(target, len(tokens.target))
    if not len(written):
        raise TextError("the translation has no tokens: expected one or more")
    reads, writes = decoder_ids(bundle, written)
    # the rest of the prompt is given, and no part of the translation
    writes[: -len(written)] = -1
    before, targets = (torch.from_numpy(ids)[None].to(bundle.device) for ids in (reads, writes))
    logprob = float(forced(bundle.model, source_batch(bundle, [ids]), before, targets).sum())
    # a translation that is given as ids may have no end yet
    finished = int(written[-1]) == _end(tokens)
    # a Hypothesis keeps its ids without the end token
    own = written[:-1] if finished else written
    h = Hypothesis(
        ids=tuple(own.tolist()), logprob=logprob, score=logprob / len(written), finished=finished
    )
    return _translation(bundle, tokens, ids, cut, h)


def _translation(
    bundle: Bundle, tokens: Pair, ids: np.ndarray, cut: bool, h: Hypothesis, seed: int | None = None
) -> Translation:
    # the end token has a row of attention of its own
    written = [*h.ids, _end(tokens)] if h.finished else list(h.ids)
    return Translation(
        text=tokens.target.decode(np.array(h.ids, np.int64)),
        score=h.score,
        logprob=h.logprob,
        source=tokens.source.pieces(ids),
        target=tokens.target.pieces(written),
        cut=cut or not h.finished,
        seed=seed,
        forced=Pass(bundle, ids, written),
        word_numbers=(tokens.source.words(ids), tokens.target.words(written)),
    )


def _context(bundle: Bundle) -> int:
    """The number of tokens that the model reads and writes at most."""
    return bundle.max_tokens or 512


def _limit(bundle: Bundle, source: np.ndarray, limit: int | None) -> int:
    """The largest number of tokens of a translation."""
    if limit is None:
        # ends a search whose hypotheses never write the end token
        limit = 2 * len(source) + 20
    return min(limit, _context(bundle))


def _sources(bundle: Bundle, tokens: Pair, texts: Sequence[str]) -> list[tuple[np.ndarray, bool]]:
    """The ids of each source, cut at the model's context, and whether it was cut."""
    rows = [tokens.read(text) for text in texts]
    kept = cut_rows(rows, _context(bundle))
    return [(ids, len(ids) < len(row)) for ids, row in zip(kept, rows, strict=True)]


def _end(tokens: Pair) -> int:
    assert tokens.target.end is not None
    return int(tokens.target.end)


def _banned(bundle: Bundle, tokens: Pair) -> list[int]:
    """Ids that no translation has."""
    return [
        *(int(i) for i in {tokens.target.pad, tokens.target.start} if i is not None),
        *bundle.spare_ids,
    ]

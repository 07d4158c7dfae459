"""translate, score and align: sentences in, sentences out, and what the model looked at while it wrote."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from ..data.files import DataError, as_lines, as_text, read_text
from ..decode import Hypothesis, follow, forced, search
from ..errors import InputError, Notice
from ..look import Tape, watch
from ..tokens import Pair
from ..weights import Bundle

CROSS = "decoder.blocks.*.cross.weights"
FILES = (".txt", ".tsv", ".csv", ".md", ".gz")  # what the names of files of text end with, and sentences do not


class NoAttentionError(InputError):
    """A model that squeezes its source through one vector was asked what it looked at."""


@dataclass(frozen=True, eq=False)
class Translation:
    """A translation, how sure the model was, and, when asked, which source tokens each of its tokens looked at."""

    text: str
    score: float  # what it was ranked by: logprob over its length's penalty
    logprob: float  # sum of the log-probabilities of its tokens, in nats
    source: list[str]  # the pieces that were read, the end among them
    target: list[str]  # the pieces that were written, the end among them if it came to it
    cut: bool = False  # the source was longer than the model reads, or the answer than it may write
    others: list[Translation] = field(default_factory=list)  # the next best ones, where they were asked for
    _words: tuple[list[int], list[int]] = field(default=([], []), repr=False)  # the word that each piece is part of
    _watched: Callable[[Sequence[str]], Tape] | None = field(default=None, repr=False)

    @cached_property
    def alignment(self) -> Float[np.ndarray, "t s"]:
        """Attention from each target piece to each source piece, the mean over layers and heads; rows sum to 1."""
        return self.attention()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        try:
            rows = self.alignment.round(6).tolist() if self._watched is not None else []
        except NoAttentionError:
            rows = []
        found = {"text": self.text, "score": self.score, "logprob": self.logprob, "cut": self.cut}
        return found | {
            "source": self.source, "target": self.target, "alignment": rows,
            "others": [{"text": other.text, "score": other.score} for other in self.others],
        }  # fmt: skip

    def attention(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "t s"]:
        """The same of one layer, one head, or the mean over those that are not named."""
        if self._watched is None:
            return np.zeros((len(self.target), len(self.source)), np.float32)
        return _mean(self._watched([CROSS]), layer, head)

    def tape(self, *names: str) -> Tape:
        """What the model did at these addresses while it wrote this, by one pass over the whole answer."""
        if self._watched is None:
            raise InputError("nothing was translated here: there is nothing to watch")
        return self._watched(names)

    @property
    def words(self) -> tuple[list[list[int]], list[list[int]]]:
        """The pieces of each word, by their numbers: of the source, and of the target."""
        return _joined(self.source, self._words[0])[1], _joined(self.target, self._words[1])[1]

    def by_word(
        self, layer: int | None = None, head: int | None = None
    ) -> tuple[list[str], list[str], Float[np.ndarray, "t s"]]:
        """The source's words, the target's, and the attention between them; rows sum to 1.

        What a word receives is the sum over its pieces, what it gives is their mean.
        """
        read, written = self.words
        source, target = (
            ["".join(pieces[i] for i in word).strip() for word in words]
            for pieces, words in ((self.source, read), (self.target, written))
        )
        weights = self.attention(layer, head)
        rows = [[weights[row][:, column].sum(1).mean() for column in read] for row in written]
        return source, target, np.array(rows, np.float32).reshape(len(target), len(source))


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The choices of a translation, as the command line takes them; see `translate`."""

    beams: int = 5  # answers that are followed at a time
    best: int = 1  # answers to give
    penalty: float = 1.0  # score = logprob / length^penalty
    limit: int | None = None  # tokens to write at most
    batch_tokens: int = 2048  # source tokens that are translated at a time, padding counted
    sample: bool = False  # draw instead of searching
    temperature: float = 1.0  # of sampling
    seed: int = 0  # of sampling

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def sentences(*texts: str) -> list[str]:
    """Sentences as they are, the lines of files that are named so, and those of stdin for "-".

    A single word that is a folder's name, or ends as files of text do, is taken for a mistake.
    """
    return [line for text in texts for line in _lines(text)]


def _lines(text: str) -> list[str]:
    if text == "-":
        return as_lines(as_text(sys.stdin.buffer.read(), "stdin"))
    if os.path.isfile(text):  # which takes any text, where a Path minds its length
        return as_lines(read_text(Path(text), may_be_empty=True))
    if len(text.split()) == 1 and (text.endswith(FILES) or os.path.isdir(text)):
        found = "this is a folder" if os.path.isdir(text) else "there is no such file"
        raise DataError(f"{text}: {found}; expected a text, a file of one a line, or - for stdin")
    return [text]


def translate(
    bundle: Bundle,
    text: str | Sequence[str],
    *,
    beams: int = 5,
    best: int = 1,  # how many translations of each; the others are in .others
    penalty: float = 1.0,
    limit: int | None = None,  # tokens to write at most; None: twice the source's and 20; never more than the context
    batch_tokens: int = 2048,  # source tokens that are translated at a time, padding counted
    sample: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    done: Callable[[int], None] | None = None,  # is told how many sentences have just been finished
) -> Translation | list[Translation]:
    """Translate a sentence, or many at once: translate(load("en-de"), "A dog runs.").text

    Answers stand where their texts stood; white space alone is translated by nothing. A text that is longer than the
    context is cut there, with a Notice that names its number.
    """
    tokens = _pair(bundle)
    texts = [text] if isinstance(text, str) else list(text)
    found: list[Translation | None] = [None] * len(texts)
    read = _read(bundle, tokens, texts)
    waiting = [i for i, one in enumerate(texts) if one.strip() and len(read[i][0]) > 1]  # more than the end
    for i in set(range(len(texts))) - set(waiting):
        found[i] = Translation(text="", score=0.0, logprob=0.0, source=[], target=[])
    if done is not None and len(waiting) < len(texts):
        done(len(texts) - len(waiting))
    for rows in _batches([len(read[i][0]) for i in waiting], batch_tokens):
        batch = [waiting[row] for row in rows]
        inputs = _inputs(bundle, tokens, [read[i][0] for i in batch])
        wanted = [2 * len(read[i][0]) + 20 if limit is None else limit for i in batch]
        answers = search(
            bundle.model, inputs, start=_start(tokens), end=_end(tokens), beams=beams, best=best,
            limit=[min(n, _context(bundle)) for n in wanted],
            penalty=penalty, sample=sample, temperature=temperature, seed=seed, banned=_banned(tokens),
        )  # fmt: skip
        for i, hypotheses in zip(batch, answers, strict=True):
            first, *others = [_translation(bundle, tokens, *read[i], h) for h in hypotheses]
            object.__setattr__(first, "others", others)
            found[i] = first
        if done is not None:
            done(len(batch))
    results = [one for one in found if one is not None]
    return results[0] if isinstance(text, str) else results


def translating(
    bundle: Bundle, text: str, *, beams: int = 5, penalty: float = 1.0, limit: int | None = None
) -> Iterator[list[Translation]]:
    """A translation as it is written: after every step what the beams have, the best first, and at last the answers.

    The first of the last is what `translate` finds.
    """
    tokens = _pair(bundle)
    ((ids, cut),) = _read(bundle, tokens, [text])
    if not text.strip() or len(ids) < 2:
        yield [Translation(text="", score=0.0, logprob=0.0, source=[], target=[])]
        return
    wanted = 2 * len(ids) + 20 if limit is None else limit
    steps = follow(
        bundle.model, _inputs(bundle, tokens, [ids]), start=_start(tokens), end=_end(tokens), beams=beams, best=beams,
        limit=min(wanted, _context(bundle)), penalty=penalty, banned=_banned(tokens),
    )  # fmt: skip
    while True:
        with torch.no_grad():  # whatever thread takes the next step
            found = next(steps, None)
        if found is None:
            return
        yield [_translation(bundle, tokens, ids, cut, h) for h in found[0]]


def given(bundle: Bundle, source: str, target: str) -> Translation:
    """What a model thinks of a given translation: forced decoding, with its attention."""
    tokens = _pair(bundle)
    ((ids, cut),) = _read(bundle, tokens, [source])
    wanted = tokens.written(target)
    inputs = _inputs(bundle, tokens, [ids])
    before = torch.from_numpy(np.concatenate([[_start(tokens)], wanted[:-1]]))[None].to(bundle.device)
    logprob = float(forced(bundle.model, inputs, before, torch.from_numpy(wanted)[None].to(bundle.device)).sum())
    found = Hypothesis(ids=tuple(wanted[:-1].tolist()), logprob=logprob, score=logprob / len(wanted), finished=True)
    return _translation(bundle, tokens, ids, cut, found)


def align(
    bundle: Bundle, source: np.ndarray, written: Sequence[int], layer: int | None = None, head: int | None = None
) -> Float[np.ndarray, "t s"]:
    """Attention from each written id to each source id, by one pass over the whole answer.

    The pass gives the weights of the search itself, to rounding: a decoder's states depend on what was written only.
    """
    return _mean(_watched(bundle, source, written, [CROSS]), layer, head)


@torch.no_grad()
def _watched(bundle: Bundle, source: np.ndarray, written: Sequence[int], names: Sequence[str]) -> Tape:
    tokens = _pair(bundle)
    before = torch.tensor([[_start(tokens), *written[:-1]]], device=bundle.device)
    try:
        with watch(bundle.model, *names) as tape:
            bundle.model(before, **_inputs(bundle, tokens, [source]))
    except KeyError as cause:
        if list(names) != [CROSS]:
            raise
        raise NoAttentionError(
            "this model has no attention to its source: it squeezes it through one vector"
        ) from cause
    return tape


def _mean(tape: Tape, layer: int | None, head: int | None) -> Float[np.ndarray, "t s"]:
    """The attention of one layer and head, or the mean over those that are not named."""
    layers = [tape[name].dense()[0].float().cpu().numpy() for name in tape.names]  # (h, t, s) each
    for name, number, most in (("layer", layer, len(layers)), ("head", head, layers[0].shape[0])):
        if number is not None and not -most <= number < most:
            raise InputError(f"{name}={number}: there are {most}, counted from 0")
    chosen = layers if layer is None else [layers[layer]]
    return np.mean([x.mean(0) if head is None else x[head] for x in chosen], axis=0)


def _translation(bundle: Bundle, tokens: Pair, ids: np.ndarray, cut: bool, h: Hypothesis) -> Translation:
    written = [*h.ids, _end(tokens)] if h.finished else list(h.ids)
    return Translation(
        text=tokens.target.decode(np.array(h.ids, np.int64)), score=h.score, logprob=h.logprob,
        source=tokens.source.pieces(ids), target=tokens.target.pieces(written), cut=cut or not h.finished,
        _words=(tokens.source.words(ids), tokens.target.words(written)),
        _watched=lambda names: _watched(bundle, ids, written, names),
    )  # fmt: skip


def _joined(pieces: Sequence[str], words: Sequence[int]) -> tuple[list[str], list[list[int]]]:
    """The words that pieces make, and the pieces of each; white space belongs to what it stands before."""
    groups: list[list[int]] = []
    last, spaces = -1, list[int]()
    for i, (piece, word) in enumerate(zip(pieces, words, strict=True)):
        if word < 0 and not piece.strip():
            spaces.append(i)
            continue
        if word >= 0 and word == last and not spaces:
            groups[-1].append(i)
        else:
            groups.append([*spaces, i])
        last, spaces = word, []
    groups += [spaces] if spaces else []
    return ["".join(pieces[i] for i in group).strip() for group in groups], groups


def _pair(bundle: Bundle) -> Pair:
    if not isinstance(bundle.tokens, Pair):
        raise InputError(
            f"this {type(ready.model).__name__} does not translate: expected a model with a pair of tokens"
        )
    return bundle.tokens


def _context(bundle: Bundle) -> int:
    return int(getattr(bundle.config, "context", 512))


def _read(bundle: Bundle, tokens: Pair, texts: Sequence[str]) -> list[tuple[np.ndarray, bool]]:
    """The ids of each source, at most as many as the model reads, and whether some were left out."""
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


def _inputs(bundle: Bundle, tokens: Pair, rows: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
    lengths = [len(row) for row in rows]
    source = np.full((len(rows), max(lengths)), tokens.source.pad, np.int64)
    for i, row in enumerate(rows):
        source[i, : len(row)] = row
    return {
        "source": torch.from_numpy(source).to(bundle.device),
        "lengths": torch.tensor(lengths, device=bundle.device),
    }


def _batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Rows of like length together, the longest first, so that a full memory shows at once."""
    if most < 1:
        raise InputError(f"batch_tokens={most}: expected 1 or more; a longer sentence goes by itself")
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > most:
            batches.append([])
        batches[-1].append(i)
    return batches


def _start(tokens: Pair) -> int:
    """What a decoder goes on from: <start>, or <pad> where there is none (Marian)."""
    start = tokens.target.start
    found = tokens.target.pad if start is None else start
    assert found is not None
    return int(found)


def _end(tokens: Pair) -> int:
    assert tokens.target.end is not None
    return int(tokens.target.end)


def _banned(tokens: Pair) -> list[int]:
    return [int(i) for i in {tokens.target.pad, tokens.target.start} if i is not None]

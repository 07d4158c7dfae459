"""The evaluation of language models (perplexity) and of classifiers (accuracy)."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ..data.fetch import HOMES, find
from ..data.files import DataError, locate, read_text
from ..data.labelled import SST2, read_labels, read_sst2
from ..errors import InputError
from ..weights import Bundle
from .text import classify, likelihood

Place = str | Path
Done = Callable[[int, int], None]  # called with the number of texts or tokens just finished, and of all
AT_ONCE = 256  # texts that are classified between two reports of progress


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """The options for language models."""

    stride: int | None = None  # tokens that the window of the model's context moves by; None: half its context
    last: float = 1.0  # share of the text that is read, counted from its end

    def __post_init__(self) -> None:
        if not 0.0 < self.last <= 1.0:
            raise InputError(f"last={self.last}: expected a share above 0, up to 1")


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """The log-probability of a text under a language model, and the measures that follow from it."""

    data: str  # the name of the data
    tokens: int  # number of tokens that count: all but the first
    bytes: int  # size of the text in UTF-8
    logprob: float  # sum of the log-probabilities of these tokens, in nats
    stride: int | None  # tokens that the window moved by; None: half the context
    seconds: float  # time that it took

    @property
    def loss(self) -> float:
        """The mean negative log-probability per token, in nats."""
        return -self.logprob / max(self.tokens, 1)

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """The negative log-probability per byte, in bits: it does not depend on the tokenizer."""
        return -self.logprob / math.log(2.0) / max(self.bytes, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "data": self.data, "perplexity": self.perplexity, "loss": self.loss, "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens, "bytes": self.bytes, "logprob": self.logprob, "stride": self.stride,
            "seconds": self.seconds,
        }  # fmt: skip

    def __rich__(self) -> Table:
        return _table(
            ("data", self.data, ""),
            ("perplexity", f"{self.perplexity:.3f}", f"per token; {self.loss:.4f} nats"),
            ("bits per byte", f"{self.bits_per_byte:.4f}", ""),
            ("tokens", f"{self.tokens:,}", f"{self.seconds:.1f} s"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassOptions:
    """The options for classifiers."""

    split: str | None = None  # part of a named set; None: its test part


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """The classes that a classifier predicted, and the measures that follow from them."""

    data: str  # the name of the data
    hypotheses: list[str]  # the predicted class of each text
    references: list[str]  # the true class of each text
    seconds: float  # time that it took

    @property
    def accuracy(self) -> float:
        """The share of texts whose class was predicted correctly."""
        right = sum(a == b for a, b in zip(self.hypotheses, self.references, strict=True))
        return right / len(self.references)

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """The number of texts of each true class (first key) by their predicted class (second key)."""
        pairs = Counter(zip(self.references, self.hypotheses, strict=True))
        names = sorted({*self.references, *self.hypotheses})
        return {
            true: {predicted: pairs[true, predicted] for predicted in names} for true in sorted(set(self.references))
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "data": self.data, "accuracy": self.accuracy, "texts": len(self.references), "confusion": self.confusion,
            "seconds": self.seconds, "hypotheses": self.hypotheses,
        }  # fmt: skip

    def __rich__(self) -> Table:
        rows = [
            (true, f"{counts[true] / sum(counts.values()):.2%}", f"of {sum(counts.values()):,} texts recognised")
            for true, counts in self.confusion.items()
        ]
        texts = len(self.references)
        return _table(
            ("data", self.data, ""),
            ("accuracy", f"{self.accuracy:.2%}", f"of {texts:,} texts, {self.seconds:.1f} s"),
            *rows,
        )


def text_scores(
    bundle: Bundle, data: Place | Sequence[Place], chosen: TextOptions, root: Path | None, done: Done | None
) -> TextScores:
    """Compute the log-probability of a text file, or of a named text."""
    data = one_file(bundle, data)
    text = read_text(find(str(data), root) if str(data) in HOMES else _file(data, root, "shakespeare"))
    text = text[len(text) - round(len(text) * chosen.last) :]
    start = time.perf_counter()
    result = likelihood(bundle, text, stride=chosen.stride, done=done)
    return TextScores(
        data=str(data), tokens=result.counted, bytes=len(text.encode()), logprob=result.logprob, stride=chosen.stride,
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def class_scores(
    bundle: Bundle, data: Place | Sequence[Place], chosen: ClassOptions, root: Path | None, done: Done | None
) -> ClassScores:
    """Classify the texts of a file of text TAB label, or of a part of sst2."""
    data = one_file(bundle, data)
    if data == "sst2":
        part = chosen.split or "test"
        name, lines = f"sst2 {part}", read_sst2(part, root)
    elif chosen.split is not None:
        raise InputError(f"split={chosen.split!r} is for sst2 ({', '.join(SST2)}): a file is taken as it is")
    else:
        name, lines = str(data), read_labels(_file(data, root, "sst2"))
    labels = bundle.labels or tuple(str(i) for i in range(bundle.config.classes))
    for line in lines:
        if line.label not in labels:
            raise DataError(f"{line.where}: the label {line.label!r} is none of the model's: {', '.join(labels)}")
    start, predicted = time.perf_counter(), list[str]()
    for first in range(0, len(lines), AT_ONCE):
        texts = [line.text for line in lines[first : first + AT_ONCE]]
        results: Any = classify(bundle, texts, top=1)
        predicted += [classes[0][0] for classes in results]
        if done is not None:
            done(len(texts), len(lines))
    return ClassScores(
        data=name, hypotheses=predicted, references=[line.label for line in lines], seconds=time.perf_counter() - start
    )


def one_file(bundle: Bundle, data: Place | Sequence[Place]) -> Place:
    """The name of the data; raises for several files, which only translators take."""
    if not isinstance(data, Place):
        raise InputError(f"{len(data)} files: this {bundle.name} does not translate, expected one")
    return data


def _file(data: Place, root: Path | None, known: str) -> Path:
    try:
        return locate(data, root)
    except FileNotFoundError as cause:
        raise DataError(f"{cause}, and no set of that name: there is {known}") from cause


def _table(*rows: tuple[str, str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table

"""How good language models and classifiers are: perplexity with a stride, and accuracy."""

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
Done = Callable[[int, int], None]  # is told how many have just been finished, of how many
AT_ONCE = 256  # texts that are sorted between two words of progress


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """The choices of an evaluation of a language model."""

    stride: int | None = None  # tokens that a window of the model's context goes on by; None: half its context
    last: float = 1.0  # part of the text that is taken, from its end

    def __post_init__(self) -> None:
        if not 0.0 < self.last <= 1.0:
            raise InputError(f"last={self.last}: expected a share above 0, up to 1")


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """How much a text surprised a language model."""

    data: str  # what was read
    tokens: int  # that were counted: all but the first
    bytes: int  # of the text, as UTF-8
    logprob: float  # of all of them, in nats
    stride: int | None
    seconds: float

    @property
    def loss(self) -> float:
        """Nats a token."""
        return -self.logprob / max(self.tokens, 1)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    @property
    def bits_a_byte(self) -> float:
        """Which does not depend on how the text is cut into tokens."""
        return -self.logprob / math.log(2.0) / max(self.bytes, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "data": self.data, "perplexity": self.perplexity, "loss": self.loss, "bits_a_byte": self.bits_a_byte,
            "tokens": self.tokens, "bytes": self.bytes, "logprob": self.logprob, "stride": self.stride,
            "seconds": self.seconds,
        }  # fmt: skip

    def __rich__(self) -> Table:
        return _table(
            ("data", self.data, ""),
            ("perplexity", f"{self.perplexity:.3f}", f"a token; {self.loss:.4f} nats"),
            ("bits a byte", f"{self.bits_a_byte:.4f}", ""),
            ("tokens", f"{self.tokens:,}", f"{self.seconds:.1f} s"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassOptions:
    """The choices of an evaluation of a classifier."""

    split: str | None = None  # part of a named set; None: its test part


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """How often a classifier was right."""

    data: str  # what was sorted
    hypotheses: list[str]  # the class that each text was given
    references: list[str]
    seconds: float

    @property
    def accuracy(self) -> float:
        """The share of texts that were given their own class."""
        right = sum(a == b for a, b in zip(self.hypotheses, self.references, strict=True))
        return right / len(self.references)

    @property
    def confusion(self) -> dict[str, dict[str, int]]:
        """For each class, what its texts were taken for."""
        pairs = Counter(zip(self.references, self.hypotheses, strict=True))
        names = sorted({*self.references, *self.hypotheses})
        return {true: {said: pairs[true, said] for said in names} for true in sorted(set(self.references))}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "data": self.data, "accuracy": self.accuracy, "texts": len(self.references), "confusion": self.confusion,
            "seconds": self.seconds, "hypotheses": self.hypotheses,
        }  # fmt: skip

    def __rich__(self) -> Table:
        rows = [
            (true, f"{said[true] / sum(said.values()):.2%}", f"of {sum(said.values()):,} were taken for it")
            for true, said in self.confusion.items()
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
    """The perplexity of a file, or of a named text."""
    data = one_file(bundle, data)
    text = read_text(find(str(data), root) if str(data) in HOMES else _file(data, root, "shakespeare"))
    text = text[len(text) - round(len(text) * chosen.last) :]
    start = time.perf_counter()
    found = likelihood(bundle, text, stride=chosen.stride, done=done)
    return TextScores(
        data=str(data), tokens=found.counted, bytes=len(text.encode()), logprob=found.logprob, stride=chosen.stride,
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def class_scores(
    bundle: Bundle, data: Place | Sequence[Place], chosen: ClassOptions, root: Path | None, done: Done | None
) -> ClassScores:
    """The accuracy on a file of text TAB label, or on a part of sst2."""
    data = one_file(bundle, data)
    if data == "sst2":
        part = chosen.split or "test"
        name, lines = f"sst2 {part}", read_sst2(part, root)
    elif chosen.split is not None:
        raise InputError(f"split={chosen.split!r} is for sst2 ({', '.join(SST2)}): a file is taken as it is")
    else:
        name, lines = str(data), read_labels(_file(data, root, "sst2"))
    known = bundle.labels or tuple(str(i) for i in range(bundle.config.classes))
    for line in lines:
        if line.label not in known:
            raise DataError(f"{line.where}: the label {line.label!r} is none of the model's: {', '.join(known)}")
    start, said = time.perf_counter(), list[str]()
    for first in range(0, len(lines), AT_ONCE):
        part_of = [line.text for line in lines[first : first + AT_ONCE]]
        found: Any = classify(bundle, part_of, top=1)
        said += [one[0][0] for one in found]
        if done is not None:
            done(len(part_of), len(lines))
    return ClassScores(
        data=name, hypotheses=said, references=[line.label for line in lines], seconds=time.perf_counter() - start
    )


def one_file(bundle: Bundle, data: Place | Sequence[Place]) -> Place:
    """The name of the data; raises for several files, which only a translator takes."""
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

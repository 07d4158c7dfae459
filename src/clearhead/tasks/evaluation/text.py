"""The evaluation of language models: the perplexity of texts, or of the answers of chats."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table

from ...data.batching import WindowConfig
from ...data.files import HOMES, DataError, find, locate
from ...data.tables.kinds import guess
from ...data.tables.reading import is_table, open_table
from ...data.text.chats import ChatsConfig
from ...data.text.plain import validation_start
from ...data.text_files import read_text
from ...draw.result import PlainValues
from ...errors import InputError, Notice
from ...metrics import Score
from ...weights import Bundle
from ..score import Counted, answer_likelihoods, document_likelihoods
from ..text import likelihood
from .columns import ALL, PARTS, trained_on, trained_on_all, trained_on_file

Place = str | Path
# called with the number of texts or tokens just finished, and of all
Done = Callable[[int, int], None]
ROWS = 100  # of a table, by which it is recognised


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """The options for language models."""

    # tokens that the window of the model's context moves by; None: half its context
    stride: int | None = None
    # share of the text that is read, counted from its end; None: 1, or the held-out share
    last: float | None = None
    # of the chats that the model was trained on: valid, train or all; None: valid
    split: str | None = None

    def __post_init__(self) -> None:
        if self.last is not None and not 0.0 < self.last <= 1.0:
            raise InputError(f"last={self.last}: expected a share above 0, up to 1")


@dataclass(frozen=True, kw_only=True)
class TextScores(PlainValues):
    """The log-probability of a text under a language model, and the measures that follow from it."""

    in_json = """data perplexity loss bits_per_byte bits_per_character tokens bytes characters logprob stride left_out
        seconds"""

    data: str  # the name of the data
    tokens: int  # number of tokens that count: all but the first
    bytes: int  # size of the text in UTF-8
    characters: int  # number of its characters
    logprob: float  # sum of the log-probabilities of these tokens, in nats
    stride: int | None  # tokens that the window moved by; None: half the context
    seconds: float  # time that it took
    left_out: int = 0  # rows without text, or chats without an answer, which are not counted
    remark: str = ""  # which part of the data it is, if that is not all

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

    @property
    def bits_per_character(self) -> float:
        """The negative log-probability per character, in bits."""
        return -self.logprob / math.log(2.0) / max(self.characters, 1)

    def __rich__(self) -> Table:
        rows = [("data", self.data, self.remark)]
        if self.left_out:
            rows.append(("left out", f"{self.left_out:,}", "rows without text or an answer"))
        rows.append(("perplexity", f"{self.perplexity:.3f}", f"per token; {self.loss:.4f} nats"))
        per_character = f"{self.bits_per_character:.4f} per character"
        rows.append(("bits per byte", f"{self.bits_per_byte:.4f}", per_character))
        rows.append(("tokens", f"{self.tokens:,}", f"{self.seconds:.1f} s"))
        return table(*rows)


def text_scores(
    bundle: Bundle,
    data: Place | Sequence[Place],
    chosen: TextOptions,
    root: Path | None,
    done: Done | None,
) -> TextScores:
    """Compute the log-probability of a text file, of a named text, of a table of texts, or of the answers in chats."""
    data = one_file(bundle, data)
    start = time.perf_counter()
    if str(data) in HOMES:
        path = find(str(data), root)
        trained = trained_on(bundle, str(data))
    else:
        path = file_or_set(data, root, "shakespeare")
        trained = trained_on_file(bundle, path, root)
    if path.is_dir() or is_table(path):
        name, remark, counted = _rows_counted(bundle, data, path, chosen, trained, done)
    else:
        # one long text, in windows of the context
        name, remark, counted = _text_counted(bundle, data, path, chosen, trained, done)
    # no part was asked for, and none was held out: the score is of training text
    if trained is not None and chosen == TextOptions(stride=chosen.stride) and not remark:
        warnings.warn(Notice(trained_on_all(data)), stacklevel=3)
    return TextScores(
        data=name,
        remark=remark,
        left_out=counted.left_out,
        tokens=counted.tokens,
        bytes=len(counted.text.encode()),
        characters=len(counted.text),
        logprob=counted.logprob,
        stride=chosen.stride,
        seconds=time.perf_counter() - start,
    )


def _rows_counted(
    bundle: Bundle, data: Place, path: Path, chosen: TextOptions, trained: Any, done: Done | None
) -> tuple[str, str, Counted]:
    """The name of the data, a remark about its part, and the log-probability of the texts or answers in it."""
    if chosen.stride is not None or chosen.last is not None:
        raise InputError(
            f"stride and last are for a text file: {data} has several texts, which are read as a whole"
        )
    # texts, each scored by itself, rather than conversations
    if path.is_dir() or not _has_chats(path):
        _check_no_split(data, chosen)
        return str(data), "", document_likelihoods(bundle, path, done)
    # chats that the model was trained on, with a share of them held out
    divided = isinstance(trained, ChatsConfig) and trained.valid_path is None and trained.share > 0
    part = chosen.split or ("valid" if divided else "all")
    if part != "all" and (not divided or part not in PARTS):
        # the message lists the parts, or says that there are none
        if divided:
            expected = f"one of {', '.join(PARTS)}"
        else:
            expected = f"no split: the model was not trained on a part of {data}"
        raise InputError(f"split={part!r}: expected {expected}")
    if part == "all":
        return str(data), "", answer_likelihoods(bundle, path, done)
    counted = answer_likelihoods(bundle, path, done, part=part, options=trained)
    return f"{data} {part}", ALL if chosen.split is None else "", counted


def _text_counted(
    bundle: Bundle, data: Place, path: Path, chosen: TextOptions, trained: Any, done: Done | None
) -> tuple[str, str, Counted]:
    """The same for a text file: the share `last` at its end, by default what training held out of it, or all."""
    _check_no_split(data, chosen)
    text, remark = read_text(path), ""
    if chosen.last is not None:
        # a share of the characters, from the end
        text = text[len(text) - round(len(text) * chosen.last) :]
    elif _divided(trained):
        # by default the held-out end alone, since the rest was trained on
        text = text[validation_start(trained, path, bundle.tokenizer(), bundle.special) :]
        remark = f"the last {trained.share:.0%}, held out of its training; last=1 takes all"
    result = likelihood(bundle, text, stride=chosen.stride, done=done)
    return str(data), remark, Counted(result.logprob, result.counted, text)


def _divided(trained: Any) -> bool:
    """Whether training kept a share of its text for validation."""
    if not isinstance(trained, WindowConfig):
        return False
    # a file for validation takes the place of the share
    return trained.share > 0 and getattr(trained, "valid_path", None) is None


def _check_no_split(data: Place, chosen: TextOptions) -> None:
    """Raise if the options name a split of data that has none."""
    if chosen.split is not None:
        raise InputError(
            f"split={chosen.split!r} is for chats: of a text last=SHARE takes the end; {data} has no split"
        )


def _has_chats(path: Path) -> bool:
    """Whether a table has conversations."""
    opened = open_table(path)
    # the first rows are enough
    return guess(opened, list(islice(opened.rows(), ROWS))).kind == "chats"


def one_file(bundle: Bundle, data: Place | Sequence[Place]) -> Place:
    """The name of the data; raises for several files, which only translators take."""
    if not isinstance(data, Place):
        raise InputError(f"{len(data)} files: this {bundle.name} does not translate, expected one")
    return data


def file_or_set(data: Place, root: Path | None, known: str) -> Path:
    """The path of a data file; if it is missing, the message names the set `known`, too."""
    try:
        return locate(data, root)
    except FileNotFoundError as cause:
        raise DataError(f"{cause}, and no set of that name: there is {known}") from cause


def score_rows(scores: Iterable[Score]) -> list[tuple[str, str, str]]:
    """The rows of a table of scores: name, value and signature."""
    return [(score.name, f"{score.value:.2f}", score.signature) for score in scores]


def table(*rows: tuple[str, str, str]) -> Table:
    """A table of name, value and remark, for rich."""
    result = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for row in rows:
        result.add_row(*row)
    return result

"""evaluate: how good a model is on held-out data, in numbers that can be reproduced.

The measure follows from what the model can do: BLEU and chrF for a translator, BLEU, ROUGE-L and CIDEr-D for
a captioner, perplexity for a language model, accuracy for a classifier. To add one, write a dataclass of its options, a
function that measures, and a line in EVALUATIONS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from ... import config
from ...data.files import DataError, as_line, locate
from ...data.tables.column_names import may_be_language
from ...data.text.parallel import SPLITS, lines_of, load_split, read_two
from ...draw.result import PlainValues
from ...errors import InputError, nearest
from ...metrics import Score, bleu, bleu_by, chrf
from ...weights import Bundle, ModelLike, opened
from ..translate import translate
from .captions import CaptionEvaluationOptions, CaptionScores, measure_captions
from .classes import ClassOptions, ClassScores, class_scores
from .columns import EvaluatedRows, evaluated_part, pair_columns, trained_languages, trained_on
from .text import TextOptions, TextScores, score_rows, table, text_scores

Place = str | Path
# called with the number of texts, tokens or images just finished, and of all
Done = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslationOptions:
    """The options for translators."""

    # part of a named set or of the model's data; None: its first test part, the held-out one
    split: str | None = None
    # source language, "en", or column of a file; None: as in the model's training
    source: str | None = None
    target: str | None = None  # target language, or column; None: as in the model's training
    join: int = 1  # number of neighbouring sentences of a named set that are joined to one text
    # how texts are tokenised before they are compared
    protocol: Literal["plain", "moses", "words"] = "plain"
    beams: int = 5  # hypotheses of the beam search; 1 is greedy
    penalty: float = 1.0  # the search ranks by log-probability / length^penalty
    limit: int | None = None  # largest number of tokens of a translation; None: as in `translate`
    batch_tokens: int = 2048  # source tokens that are translated at a time, padding included


@dataclass(frozen=True, kw_only=True)
class TranslationScores(PlainValues):
    """The scores of a translator, and its translations.

    Examples:
        >>> _ = (tmp / "test.tsv").write_text("A dog runs.\\tEin Hund rennt.\\n")
        >>> scores = evaluate(clearhead.load("en-de"), tmp / "test.tsv")
        >>> round(scores.chrf.value), scores.hypotheses
        (100, ['Ein Hund rennt.'])
    """

    in_json = "data sentences scores seconds speed cut left_out hypotheses"

    data: str  # the name of the data
    # BLEU by the protocol, by sacreBLEU's own if that is another, and chrF
    scores: tuple[Score, ...]
    seconds: float  # time that translating took
    cut: int  # number of texts longer than the model reads, or whose translations reached the limit
    hypotheses: list[str]  # the translations, one line each
    references: list[str] | list[list[str]]  # one per text, or several
    left_out: int = 0  # rows without a source or a target, which are not counted
    remark: str = ""  # which part of the data it is, if that is not all

    @property
    def bleu(self) -> Score:
        """The BLEU score by the chosen protocol."""
        return self.scores[0]

    @property
    def chrf(self) -> Score:
        """The chrF score."""
        return self.scores[-1]

    @property
    def sentences(self) -> int:
        """The number of texts."""
        return len(self.hypotheses)

    @property
    def speed(self) -> float:
        """Sentences per second."""
        return self.sentences / self.seconds

    def __rich__(self) -> Table:
        rows = [("data", self.data, self.remark)]
        if self.left_out:
            rows.append(("left out", f"{self.left_out:,}", "rows without a source or a target"))
        rows += score_rows(self.scores)
        speed = f"{self.seconds:.1f} s, {self.speed:.1f} per second"
        rows.append(("sentences", str(self.sentences), speed))
        # texts that were cut lower the scores, so the table says so
        if self.cut:
            rows.append(("cut", str(self.cut), "too long to be read or translated to their end"))
        return table(*rows)


def evaluate(
    bundle: ModelLike,
    data: Place | Sequence[Place],
    *,
    split: str | None = None,
    source: str | None = None,
    target: str | None = None,
    text: str | None = None,
    label: str | None = None,
    join: int | None = None,
    protocol: Literal["plain", "moses", "words"] | None = None,
    beams: int | None = None,
    penalty: float | None = None,
    limit: int | None = None,
    batch_tokens: int | None = None,
    stride: int | None = None,
    last: float | None = None,
    by: Literal["head", "knn", "linear"] | None = None,
    neighbours: int | None = None,
    skip_bad: bool | None = None,
    root: Path | None = None,
    done: Done | None = None,
) -> TranslationScores | CaptionScores | TextScores | ClassScores:
    """Measure a model on data: BLEU and chrF, the scores of captions, perplexity, or accuracy.

    Args:
        bundle: The model, or its name or folder.
        data: For a translator the name of a set (multi30k, tatoeba), a file of source TAB target, or a file of
            sources and one of references; for a language model a text file, or shakespeare; for a classifier of texts a
            file of text TAB label, or sst2; for a classifier of images cifar10, fashion-mnist, imagenette, mnist, or a
            folder or zip file with a folder per class, or with train/class and val/class; for a captioner flickr8k or
            scenes.
        split: Translator, captioner, classifier: the part of a named set; its test part if not given. Images: train,
            valid or all, of data that is divided (test instead of valid: cifar10, mnist, fashion-mnist). A file or
            an undivided folder is taken as a whole, unless the model was trained on it: then its parts are those that
            training has made, and the one that it held out, valid, is taken if not given. A language model: of chats.
        source: Translator: the source language, "en", or the column of the sources in a file, by name or number; as in
            the model's own training if not given.
        target: Translator: the target language, or the column of the targets.
        text: Classifier of texts: the column of the texts in a file; the one that the model was trained on, if it is
            there, or one with a usual name, if not given.
        label: Classifier of texts: the column of the labels, likewise.
        join: Translator: number of neighbouring sentences of a named set that are joined to one text; 1 if not given.
        protocol: Translator: how texts are tokenised before they are compared; plain if not given.
        beams: Translator, captioner: hypotheses of the beam search; 5 if not given.
        penalty: Translator, captioner: the search ranks by log-probability / length^penalty; if not given, 1 for a
            translator and 0.6 for a captioner.
        limit: Translator, captioner: largest number of tokens of a translation or caption.
        batch_tokens: Translator: source tokens that are translated at a time.
        stride: Language model: tokens that the window of the model's context moves by; half the context if not given.
        last: Language model: share of the text that is read, counted from its end; 1 if not given, or, of the file that
            the model was trained on, the share that was held out.
        by: Images: "head", the model's output layer; "knn" (nearest neighbours) or "linear" (a linear probe) classify
            the validation images by frozen features of the training images. head if not given, or knn without a head.
        neighbours: Images, by="knn": number of neighbours that vote; 20 if not given.
        skip_bad: Images: leave out files that cannot be read, and count them. (Rows of tables without a value are
            always left out and counted.)
        root: A folder in which files are searched first.
        done: Called with the number of texts (or tokens, or images) just finished and the number of all.

    Returns:
        TranslationScores, CaptionScores, TextScores or ClassScores.

    Examples:
        >>> _ = (tmp / "text.txt").write_text("A man is standing in the street.")
        >>> scores = evaluate(clearhead.load("everyday"), tmp / "text.txt")
        >>> 1 < scores.perplexity < 10
        True
    """
    options = {
        "split": split, "source": source, "target": target, "text": text, "label": label, "join": join,
        "protocol": protocol, "beams": beams, "penalty": penalty, "limit": limit, "batch_tokens": batch_tokens,
        "stride": stride, "last": last, "by": by, "neighbours": neighbours, "skip_bad": skip_bad,
    }  # fmt: skip
    bundle = opened(bundle)
    for capability, (kind, measure) in EVALUATIONS.items():
        # in the order of EVALUATIONS: the first capability that the model has decides
        if capability in bundle.can:
            chosen = config.read(
                # config.read refuses options that this kind of model does not have
                kind,
                {name: value for name, value in options.items() if value is not None},
            )
            return measure(bundle, data, chosen, root, done)
    raise InputError(
        f"this {bundle.name} cannot be evaluated: expected a translator, a captioner, a language model or a "
        "classifier"
    )


def translation_scores(
    bundle: Bundle,
    data: Place | Sequence[Place],
    chosen: TranslationOptions,
    root: Path | None,
    done: Done | None,
) -> TranslationScores:
    """Translate data, and compute BLEU and chrF."""
    settings = _settings(bundle)
    is_set = isinstance(data, str) and data in SPLITS
    # the user's languages replace those of the training
    for side in ("source", "target"):
        word = getattr(chosen, side)
        # of a file it may also be the name of a column
        if word is not None and (is_set or may_be_language(word)):
            settings[side] = word
    # some protocols tokenise by the rules of the target language
    by_protocol = bleu_by(chosen.protocol, settings.get("target"))
    given = _texts(bundle, data, chosen, settings, root)
    sources, references = given.sources, given.references
    start = time.perf_counter()
    translations = translate(
        bundle,
        sources,
        beams=chosen.beams,
        penalty=chosen.penalty,
        limit=chosen.limit,
        batch_tokens=chosen.batch_tokens,
        # `translate` reports the number just finished, `evaluate` also the total
        done=None if done is None else lambda n: done(n, len(sources)),
    )
    seconds = time.perf_counter() - start
    assert isinstance(translations, list)
    # one line each, as sacreBLEU reads files
    hypotheses = [as_line(translation.text) for translation in translations]
    # sacreBLEU's own BLEU is always among the scores, so that papers can be compared
    measures = [by_protocol, chrf] if by_protocol is bleu else [by_protocol, bleu, chrf]
    return TranslationScores(
        data=given.name,
        left_out=given.left_out,
        remark=given.remark,
        scores=tuple(measure(hypotheses, references) for measure in measures),
        seconds=seconds,
        cut=sum(translation.cut for translation in translations),
        hypotheses=hypotheses,
        references=references,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTexts:
    """What is translated, and what it is compared with."""

    name: str  # of the data
    sources: list[str]
    references: list[str] | list[list[str]]  # one per source, or several
    left_out: int = 0  # rows that are not among the sources
    remark: str = ""  # which part of the data it is


def _texts(
    bundle: Bundle,
    data: Place | Sequence[Place],
    chosen: TranslationOptions,
    settings: dict[str, Any],
    root: Path | None,
) -> SourceTexts:
    """The sources and the references of a named set or of files."""
    if isinstance(data, str) and data in SPLITS:
        return _named_texts(data, chosen, settings, root)
    if chosen.join != 1:
        raise InputError(
            f"join={chosen.join!r} is for {' and '.join(SPLITS)}: a file is taken as it is"
        )
    names = [data] if isinstance(data, Place) else list(data)
    if len(names) not in (1, 2):
        raise InputError(
            f"{len(names)} files: expected one of source TAB target, or one of sources and one of targets"
        )
    paths = [_file(name, root) for name in names]
    # line i of the second file translates line i of the first
    if len(paths) == 2:
        # the training read one table: two files cannot be it
        if chosen.split is not None:
            raise InputError(
                f"split={chosen.split!r}: two files are taken as a whole: expected no split"
            )
        part, empty = EvaluatedRows(" ".join(map(str, names)), read_two(*paths)), 0
    else:
        # one table: which column is the source follows from the options, or from the training
        columns = pair_columns(bundle, paths[0], chosen.source, chosen.target)
        lines = lines_of(columns, skip_empty=True)
        part = evaluated_part(bundle, names[0], paths[0], lines, chosen.split, root)
        # known once all rows have been read
        empty = columns.empty
    return SourceTexts(
        name=part.name,
        sources=[line.source for line in part.rows],
        references=[line.target for line in part.rows],
        left_out=empty,
        remark=part.remark,
    )


def _named_texts(
    data: str, chosen: TranslationOptions, settings: dict[str, Any], root: Path | None
) -> SourceTexts:
    """The sources and the references of a named set; a sentence of Tatoeba may have several references."""
    split = chosen.split or next(part for part in SPLITS[data] if part.startswith("test"))
    if not settings.keys() >= {"source", "target"}:
        raise InputError(
            f"{data} has several languages, and the model has no recipe that says which it translates: expected source "
            "and target, like source='en', target='de'"
        )
    name = f"{data} {split} {settings['source']}-{settings['target']}"
    sources, references = load_split(data, split, root=root, join=chosen.join, **settings)
    if data != "tatoeba":
        return SourceTexts(name=name, sources=sources, references=references)
    grouped: dict[str, list[str]] = {}  # a sentence occurs once for each of its translations
    for source, reference in zip(sources, references, strict=True):
        # a dict keeps the order of the sources
        grouped.setdefault(source, []).append(reference)
    return SourceTexts(name=name, sources=list(grouped), references=list(grouped.values()))


def _file(name: Place, root: Path | None) -> Path:
    try:
        return locate(name, root)
    except FileNotFoundError as cause:
        hint = nearest(name, SPLITS)
        raise DataError(
            f"{cause}, and no set of that name: there are {' and '.join(SPLITS)}{hint}"
        ) from cause


def _settings(bundle: Bundle) -> dict[str, Any]:
    """The languages and the shares of validation and test data that a translator was trained with."""
    # the same shares give the same division into training and test rows
    options, shares = trained_on(bundle), ("valid_share", "test_share")
    kept = {option: getattr(options, option) for option in shares if hasattr(options, option)}
    return {**trained_languages(bundle), **kept}


# By capability: the options, and the function that measures. The first capability that a model has is used.
EVALUATIONS: dict[str, tuple[type[Any], Callable[..., Any]]] = {
    "translate": (TranslationOptions, translation_scores),
    "caption": (CaptionEvaluationOptions, measure_captions),
    "classify": (ClassOptions, class_scores),
    "predict": (TextOptions, text_scores),
    "embed": (ClassOptions, class_scores),
}

"""Understand a file as a person has it: its format, its columns, what kind of data it is, and its [data] section.

A file is read up to a number of rows and characters, so that one of any size needs little memory and time; the number
of rows beyond is estimated from the share of the file that was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...progress import Stage, progress_bar
from ...tokens import Tokenizer
from ..batching import WindowConfig
from ..files import DataError, locate
from ..images.files import (
    ImageFile,
    find_images,
    has_images,
    image_root,
    loose_images,
    read_image,
    unreadable,
)
from ..images.folders import CropConfig, none_readable
from ..splits import columns_told, counted
from ..text.chats import ChatsConfig
from ..text.documents import Documents
from ..text.labelled import LabelledConfig
from ..text.tokenizers import find_tokenizer, open_pair, open_tokenizer
from ..text.translations import PairConfig
from ..text_files import TextFile
from .kinds import COLUMNS, Guess, Kind, candidates, guess, named_kind
from .lengths import Cut, Lengths, Measured, what_is_cut
from .reading import TableFile, TableRow, class_folders, is_table, open_table

ROWS = 200_000  # rows that are read
CHARACTERS = 1 << 28  # characters that are read
SAMPLE = 100  # rows by which the kind is recognised
FIRST = 3  # rows that are shown
EVERY = 5000  # rows between two moves of the progress bar
VALIDATION = ("valid", "validation", "val", "dev")  # names of a file for validation beside train


@dataclass(frozen=True, kw_only=True, slots=True)
class Understood:
    """What is in a file or folder of data.

    Examples:
        >>> path = tmp / "reviews.csv"
        >>> _ = path.write_text("sentence,label\\nA fine film,1\\nDull,0\\nA good one,1\\n")
        >>> found = understand(path)
        >>> found.kind, found.rows, found.labels
        ('labelled', 3, {'1': 2, '0': 1})
        >>> {**found.options, "path": "reviews.csv"}
        {'name': 'labelled', 'path': 'reviews.csv', 'text': 'sentence', 'label': 'label'}
    """

    path: str  # what was given
    files: tuple[str, ...]  # the files that are read
    format: str  # text, csv, tsv, jsonl, json or parquet
    encoding: str | None  # None for Parquet
    delimiter: str | None  # of CSV and TSV
    header: bool | None  # of CSV and TSV
    columns: tuple[str, ...]  # none for text
    kind: Kind  # text, labelled, pairs or chats
    why: str  # why it is taken for this kind
    options: dict[str, Any]  # a [data] section
    rows: int  # the number of rows, or of lines of text
    read: int  # of which this many were read
    sampled: bool  # whether only a part was read, so that `rows` is an estimate
    first: tuple[dict[str, Any], ...]  # the first rows
    # by column, and by unit: characters, words, and tokens if they are given
    lengths: dict[str, dict[str, Lengths]]
    labels: dict[str, int]  # the number of rows of each label, most frequent first
    empty: int  # rows of which a needed value is empty
    duplicates: int  # rows whose texts are those of an earlier row
    split: str  # how training and validation are divided
    cut: str  # what a context would cut, if one is given
    # other columns, by the option to name them
    candidates: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @property
    def chosen(self) -> str:
        """The columns that are read, in words, by what they are for: text = review, label = stars."""
        return _chosen(self.kind, self.options)

    @property
    def other_columns(self) -> str:
        """The columns that could be read instead, in words, or "" if there is none."""
        return _other_columns(self.candidates)


def understand(
    path: str | Path,
    root: Path | None = None,
    *,
    tokens: str | None = None,
    context: int | None = None,
    given: Mapping[str, Any] | None = None,
) -> Understood:
    """Read a file or folder of data, as far as needed, and say what it is.

    Args:
        path: A text file, a table (.csv, .tsv, .jsonl, .ndjson, .json, .parquet), compressed (.gz, .bz2, .xz) or not,
            or a folder: of text files, of one table, or of train and valid.
        root: A data folder in which the path is searched too.
        tokens: A folder with a tokenizer, for lengths in tokens.
        context: A number of tokens, for what would be cut; without `tokens` words are counted instead.
        given: Options of the [data] section that say how to read it: text, label, source, target, messages, prompt,
            answer and column name columns, and so the kind of data; header says whether the first row has names.

    Raises:
        DataError: The file cannot be read, or its columns tell nothing; the message names the place.

    Examples:
        >>> _ = (tmp / "pairs.tsv").write_text("A dog.\\tEin Hund.\\nTwo dogs run.\\tZwei Hunde rennen.\\n")
        >>> found = understand("pairs.tsv", tmp)
        >>> found.kind, found.header, found.lengths["1"]["words"].largest
        ('pairs', False, 3)
        >>> found.options
        {'name': 'pairs', 'path': 'pairs.tsv', 'source': '1', 'target': '2', 'join': False}
    """
    if context is not None and context < 1:
        raise InputError(f"context={context}: expected 1 or more")
    found = recognise(path, root, given=given)
    guessed, place, valid = found.guessed, found.place, found.valid
    tokenizers = _tokenizers(tokens, root, guessed)
    measured = Measured(guessed.columns or ("line",), tokenizers)
    cut = what_is_cut(guessed, found.table, context, tokens, root)
    first: list[dict[str, Any]] = []
    with progress_bar() as stage:
        _measure(found, measured, cut, first, stage)
    rows = _number_of_rows(found, measured.rows)
    options = found.options
    if tokens is not None:
        # a recipe with these options trains with the tokenizer that was measured
        options = {**options, "tokens": tokens}
    table = found.table
    return Understood(
        path=str(path),
        files=tuple(str(file) for file in (place, valid) if file),
        encoding=found.encoding,
        **_format(table),
        kind=guessed.kind,
        why=guessed.why,
        options=options,
        rows=rows,
        read=measured.rows,
        sampled=not found.ended,
        first=tuple(first),
        lengths=measured.lengths(),
        labels=dict(measured.labels.most_common()),
        empty=measured.empty,
        duplicates=measured.duplicates,
        split=_split(guessed.kind, rows, measured, valid),
        cut=cut.told(measured),
        candidates=found.candidates,
    )


def _format(table: TableFile | None) -> dict[str, Any]:
    """Return the fields of an Understood that describe a table, or the lack of one."""
    if table is None:
        return {"format": "text", "delimiter": None, "header": None, "columns": ()}
    header = table.header if table.delimiter else None  # JSON and Parquet have no header
    return {
        "format": table.format,
        "delimiter": table.delimiter,
        "header": header,
        "columns": table.columns,
    }


@dataclass
class Recognised:
    """An opened file or folder of data: its kind, its [data] section, and its rows, of which few are read."""

    place: Path  # the file or folder that is read
    guessed: Guess
    rows: Iterator[TableRow]
    encoding: str | None
    share_read: Callable[[], float]
    table: TableFile | None = None
    ended: bool = False  # whether all of it has been read
    valid: Path | None = None  # a file for validation
    # a [data] section
    options: dict[str, Any] = field(default_factory=dict)
    # other columns, by the option to name them
    candidates: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def chosen(self) -> str:
        """The columns that are read, in words, by what they are for: text = review, label = stars."""
        return _chosen(self.guessed.kind, self.options)

    @property
    def other_columns(self) -> str:
        """The columns that could be read instead, in words, or "" if there is none."""
        return _other_columns(self.candidates)


def _chosen(kind: Kind, options: Mapping[str, Any]) -> str:
    return columns_told({name: value for name, value in options.items() if name in COLUMNS[kind]})


def _other_columns(candidates: Mapping[str, tuple[str, ...]]) -> str:
    if not candidates:
        return ""
    words = [f"{option} = {' or '.join(names)}" for option, names in candidates.items()]
    # the first of them as an example of what to write
    option, names = next(iter(candidates.items()))
    return f"{', '.join(words)}: data.{option}={names[0]} chooses it"


def recognise(
    path: str | Path, root: Path | None = None, *, given: Mapping[str, Any] | None = None
) -> Recognised:
    """Open a file or folder of data, and say what kind it is by its columns and its first rows.

    The arguments are those of `understand`, which also reads the rows.
    """
    words = dict(given or {})
    # a folder may have train and valid files: both are found here
    place, valid = _files(locate(path, root))
    # a folder per class, if the user asks for labels
    by_class = place.is_dir() and named_kind(words) == "labelled"
    if place.is_dir() and not by_class:
        # a folder of text files, read as one text
        found = _text(place)
    else:
        # a text file with TABs is a table as well
        found = _table(place, words) or _text(place)
    found.valid = valid
    found.options = {"name": found.guessed.kind, "path": str(path)}
    # the file itself, so that a recipe does not depend on what else is in the folder
    if place != locate(path, root):  # a file inside the folder that was given
        found.options["path"] = str(place)
    if valid is not None:
        found.options["valid_path"] = str(valid)
    found.options |= found.guessed.options
    # the user's answer is passed on; a recognised header is recognised again
    if "header" in words:
        found.options["header"] = words["header"]
    return found


def _table(path: Path, given: Mapping[str, Any]) -> Recognised | None:
    """Open a table, or a text file whose lines all have TABs; None for other text files."""
    kind = named_kind(given)
    # a plain text file, unless the user names another kind or its first lines have TABs
    if not is_table(path) and (kind in (None, "text") and not _has_tabs(path)):
        return None
    named = [str(given[option]) for option in COLUMNS.get(kind or "text", ()) if option in given]
    table = open_table(path, header=given.get("header"), named=named)
    # the reader goes on after the sample, which is put in front of it again
    reading = table.rows()
    sample = list(islice(reading, SAMPLE))
    if not sample:
        raise DataError(f"{path} has no rows")
    guessed = guess(table, sample, given)
    return Recognised(
        path,
        guessed,
        chain(sample, reading),
        table.encoding,
        table.share_read,
        table,
        candidates=candidates(table, sample, guessed, given),
    )


def _text(path: Path) -> Recognised:
    """Open a text file, or a folder of text files, as lines."""
    files = Documents([path]).files
    sources = [TextFile(file) for file in files]
    size = sum(source.size for source in sources)
    why = "it is a text file without columns"
    if path.is_dir():
        why = f"the folder has {counted(len(files), 'text file')}"
        if class_folders(path):
            why += "; data.name=labelled takes the folders inside for labels"
    lines = (
        # rstrip: a line feed is no character of the text
        TableRow({"line": line.rstrip("\r\n")}, f"{source.path}:{number}")
        for source in sources
        for number, line in enumerate(source.lines(), 1)
    )

    def share() -> float:
        return sum(source.position for source in sources) / size

    # opening them read the beginning, which does not count as progress
    for source in sources:
        source.position = 0
    return Recognised(path, Guess("text", {}, why), lines, sources[0].encoding, share)


def _has_tabs(path: Path) -> bool:
    """Whether the first lines of a file have the same number of TABs, one or two each."""
    # one or two TABs in all of the first lines: text with a TAB here and there is no table
    numbers = {line.count("\t") for line in islice(TextFile(path).lines(), SAMPLE)}
    return numbers in ({1}, {2})


def _files(path: Path) -> tuple[Path, Path | None]:
    """Return the file or the folder of text files to read, and a file for validation."""
    if not path.is_dir():
        return path, None
    # by the name before the first dot: train.csv and train.jsonl.gz are both "train"
    tables = sorted(file for file in path.iterdir() if file.is_file() and is_table(file))
    by_name: dict[str, list[Path]] = {}
    for file in tables:
        by_name.setdefault(file.name.split(".")[0].lower(), []).append(file)
    # a table that is called train, perhaps with another for validation
    if "train" in by_name:
        valid = next((_only(by_name[name]) for name in VALIDATION if name in by_name), None)
        return _only(by_name["train"]), valid
    # a single table and nothing else to read
    if len(tables) == 1 and Documents([path]).files == tuple(tables):
        return tables[0], None
    # several tables without a train among them: which one is meant cannot be known
    if tables and all(is_table(file) for file in Documents([path]).files):
        listed = ", ".join(file.name for file in tables[:10])
        raise DataError(
            f"{path} has {counted(len(tables), 'table')}, and none is called train: expected one of {listed}"
        )
    return path, None


def _only(files: list[Path]) -> Path:
    """The only one of files with the same name; raises if there are more."""
    if len(files) > 1:
        raise DataError(
            f"{files[0].parent} has {' and '.join(file.name for file in files)}: expected one of them, or the path of "
            "one file"
        )
    return files[0]


def _tokenizers(tokens: str | None, root: Path | None, guessed: Guess) -> dict[str, Tokenizer]:
    """Return the tokenizer of each column of texts."""
    if tokens is None:
        return {}
    # a translator has a tokenizer per side
    if guessed.kind == "pairs":
        # source and target, each with its own tokenizer
        pair, _ = open_pair(tokens, root)
        return {guessed.options["source"]: pair.source, guessed.options["target"]: pair.target}
    tokenizer = open_tokenizer(tokens, find_tokenizer(tokens, root))
    return {
        name: tokenizer
        for name in guessed.columns or ("line",)
        # labels are names, and never tokenized
        if name != guessed.options.get("label")
    }


def _measure(
    found: Recognised, measured: Measured, cut: Cut, first: list[dict[str, Any]], stage: Stage
) -> None:
    """Read the rows, up to the limits."""
    label_column = found.guessed.options.get("label")
    # text files have one column, "line"
    columns = [name for name in found.guessed.columns if name != label_column] or ["line"]
    for row in found.rows:
        values = dict(row.values)
        # a few rows to show; of text files no empty lines
        if len(first) < FIRST and (found.table or values["line"].strip()):
            first.append(values)
        # None: there are no labels; "": the label of this row is missing
        label = None
        if label_column is not None:
            # a row without a label, until one is found
            label = ""
            if values.get(label_column) is not None:
                label = row.label(label_column)
        texts = {name: _as_text(row, name) for name in columns}
        # the input of an instruction continues its question
        more = [text for name in found.guessed.more if (text := _as_text(row, name))]
        texts[columns[0]] = "\n".join([texts[columns[0]], *more])
        measured.add(texts, label)
        cut.add(row)
        # progress towards whatever ends the reading first: the file, ROWS or CHARACTERS
        if measured.rows % EVERY == 0:
            stage(
                "reading",
                max(found.share_read(), measured.rows / ROWS, measured.characters / CHARACTERS),
            )
        if measured.rows >= ROWS or measured.characters >= CHARACTERS:
            # one row more would tell that the file goes on
            found.ended = next(found.rows, None) is None
            return
    found.ended = True


def _number_of_rows(found: Recognised, read: int) -> int:
    """Return the number of rows of a file: as it says, as they were read, or estimated by the share that was read."""
    if found.table is not None and found.table.known_rows:
        return found.table.known_rows
    # an estimate by the share of bytes; at least one more row, for the file goes on
    share = found.share_read()
    if found.ended or not share:
        return read
    return max(round(read / share), read + 1)


def _as_text(row: TableRow, column: str) -> str:
    """Return a value as text; of a conversation, what its messages say."""
    value = row.values.get(column)
    if isinstance(value, list):
        contents = []
        # messages have their text under "content", or under "value" as in ShareGPT
        for message in value:
            if isinstance(message, dict):
                message = message.get("content", message.get("value"))
            if message:
                contents.append(str(message))
        return "\n".join(contents)
    if value is None:
        return ""
    if isinstance(value, str):
        return row.text(column)
    return str(value)


def _split(kind: Kind, rows: int, measured: Measured, valid: Path | None) -> str:
    if valid is not None:
        return f"{valid.name} is for validation"
    options, part = _SHARES[kind]
    # the default of the options: a recipe may change it
    share = options.__dataclass_fields__["share"].default
    if kind == "text":
        return f"{part}, share = {share}, is kept for validation"
    # rows without a value are left out before the split
    good = rows - round(rows * measured.empty / max(measured.rows, 1))
    return f"share = {share} of {part} is kept for validation: about {round(share * good):,} of {good:,} rows"


# By kind: the options that have the share of validation, and what it is a share of.
_SHARES: dict[Kind, tuple[type[Any], str]] = {
    "text": (WindowConfig, "the end of the text"),
    "labelled": (LabelledConfig, "the different texts"),
    "pairs": (PairConfig, "the different sources"),
    "chats": (ChatsConfig, "the questions"),
}


# Understand a folder, zip file or CSV file of images: its classes, how it is divided, and its [data] section.


IMAGE_SAMPLE = 20  # images that are opened


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderstoodImages:
    """What is in a folder, zip file or CSV file of images.

    Examples:
        >>> from PIL import Image
        >>> for name in ("cat/1.png", "dog/1.png", "dog/2.png"):
        ...     (tmp / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        ...     Image.new("RGB", (8, 6)).save(tmp / "pets" / name)
        >>> found = understand_images("pets", tmp)
        >>> found.images, found.labels, found.sizes
        (3, {'dog': 2, 'cat': 1}, {'8 x 6': 3})
    """

    path: str  # what was given
    images: int  # the number of images that can be read
    # the number of images of each class, most frequent first; none if some have no class
    labels: dict[str, int]
    sizes: dict[str, int]  # width x height of the first images, most frequent first
    split: str  # how training and validation are divided
    options: dict[str, Any]  # a [data] section
    bad: tuple[str, ...] = ()  # the files that cannot be read

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def is_images(path: str | Path, root: Path | None = None) -> bool:
    """Return whether a path is that of a zip file, or of a folder with images in it."""
    place = locate(path, root)
    return place.suffix.lower() == ".zip" or (place.is_dir() and has_images(place))


def understand_images(
    path: str | Path, root: Path | None = None, *, given: Mapping[str, Any] | None = None
) -> UnderstoodImages:
    """Check all images, read the sizes of the first, and say what they are.

    Args:
        path: A folder or zip file with a folder per class, or with train/ and val/; or a CSV file of path and label.
        root: A data folder in which the path is searched too.
        given: Options for the [data] section, such as skip_bad.

    Raises:
        DataError: There are no images, or none of them can be read.
    """
    place = locate(path, root)
    loose = loose_images(place)
    train: list[ImageFile] = []
    valid: list[ImageFile] = []
    # loose images have no classes: they are only counted
    if not loose:
        # raises where an image has no class
        train, valid = find_images(place)
    names = loose or [file.name for file in (*train, *valid)]
    problems = unreadable(str(image_root(place)), names)
    bad = tuple(problems)
    if len(bad) == len(names):
        raise none_readable(image_root(place), bad)
    # what cannot be read is not counted as an image of its class
    good = [name for name in names if name not in problems]
    train, valid = ([file for file in part if file.name not in problems] for part in (train, valid))
    labels = Counter(file.label for file in (*train, *valid))
    # the sizes of a few are enough for a summary
    opened = (read_image(str(image_root(place)), name) for name in good[:IMAGE_SAMPLE])
    sizes = Counter(f"{image.width} x {image.height}" for image in opened)
    return UnderstoodImages(
        path=str(path),
        images=len(good),
        labels=dict(labels.most_common()),
        sizes=dict(sizes.most_common()),
        split=_split_images(len(train), len(valid)),
        options={"name": "images", "path": str(path), **(given or {})},
        bad=bad,
    )


def _split_images(train: int, valid: int) -> str:
    if not train:
        return "none: some images are in no folder of a class, so that there is nothing to learn from them"
    if valid:
        return f"{counted(train, 'image')} for training, {counted(valid, 'image')} for validation"
    share = CropConfig().share
    return f"share = {share} of the images is kept for validation: about {round(share * train):,} of {train:,}"

"""Recipes from a file of data alone: what it holds, how long a training of it takes, and a new model that fits it."""

from __future__ import annotations

import json
import warnings
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ... import config
from ...atomic_files import atomic_write
from ...data import Data, data_config, make_data
from ...data.batching import Bucketed
from ...data.files import locate
from ...data.tables.understand import is_images, recognise
from ...devices import find_device
from ...errors import InputError, InputTypeError, MissingFileError, Notice, nearest
from ..logs import HOUR
from ..recipe import Recipe

VALIDATIONS = 10  # at most this many in a training of up to 10,000 steps
LONGEST_INTERVAL = 1000  # steps between two validations
# steps of a new language model on a CPU, unless the number of steps or epochs is given
CPU_STEPS = 10_000
ROUND = 32  # tokens that limits are rounded up to
BUCKETED = ("chats", "labelled", "masked", "pairs")  # data in batches of similar length
# options that divide the same rows into other batches
LIMITS = ("longest", "batch_tokens", "pack", "valid_most")
LONGEST = 2048  # tokens of a row, whatever the context of a model
# characters of text for each token of a vocabulary that is trained on it
CHARACTERS_PER_TOKEN = 500

# Sections of the recipe of a new model, by the kind of data, and how often each example is used.
NEW_EPOCHS = {"text": 10.0, "pairs": 40.0, "labelled": 10.0, "images": 30.0}
NEW: dict[str, dict[str, Any]] = {
    "text": {
        "data": {"tokens": "bpe", "context": 256, "rows": 16, "valid_rows": 16},
        "model": {
            "name": "gpt",
            "width": 256,
            "depth": 6,
            "heads": 8,
            "positions": "rotary",
            "dropout": 0.2,
        },
        "optim": {"lr": 1e-3},
    },
    "pairs": {
        "data": {"join": False, "size": 4000, "batch_tokens": 4096},
        "model": {
            "name": "transformer",
            "width": 256,
            "depth": 4,
            "heads": 4,
            "order": "pre",
            "dropout": 0.3,
        },
        "objective": {"smoothing": 0.1},
        "optim": {"lr": 2e-3, "betas": [0.9, 0.98], "decay": 0.0, "ema": 0.999},
    },
    "labelled": {
        "data": {"size": 8000},
        "model": {
            "name": "bert",
            "answer": "class",
            "width": 128,
            "depth": 4,
            "heads": 4,
            "dropout": 0.3,
        },
        "optim": {"lr": 5e-4},
        "run": {"best": "valid_accuracy"},
    },
    "images": {
        "data": {"size": 64},
        "model": {"name": "resnet"},
        "optim": {"lr": 1e-3},
        "run": {"best": "valid_accuracy"},
    },
}


def is_data(source: object) -> bool:
    """Whether a source is data and not a recipe: a file or folder, but no .toml, and no .json that holds a table.

    The name of a recipe that ships stands for the recipe, unless there is a file of this name.

    Raises:
        MissingFileError: There is no such file, and a recipe has another ending.
    """
    if not isinstance(source, str | Path):
        return False
    path = config.find_recipe(source)
    if not path.exists():
        # a recipe that is missing: its loader has the better message
        if path.suffix in (".toml", ".json"):
            return False
        others: list[str] = []  # names that could have been meant
        # a misspelt name is compared with the files beside it
        if path.parent.is_dir():
            others = [file.name for file in path.parent.iterdir()]
        if path.parent == Path():
            # a bare name may also be meant for a recipe that ships
            others += config.shipped_recipes()
        raise MissingFileError(
            f"{source}: there is no such file: expected a recipe, .toml or .json, one that ships, or a file of data"
            f"{nearest(path.name, others)}"
        )
    if (path / "recipe.toml").exists():  # a run folder
        return False
    if path.suffix == ".json":
        # rows begin as a list; a recipe in JSON begins as a table, with a brace
        with path.open("rb") as file:
            # a byte order mark and white space may come before the bracket
            return file.read(1000).removeprefix(BOM_UTF8).lstrip()[:1] == b"["
    return path.suffix != ".toml"


def understood(
    data: str | Path, root: Path | None, overrides: Sequence[str] = ()
) -> tuple[str, dict[str, Any]]:
    """The kind of a file or folder of data, and its [data] section; overrides like data.text=COLUMN decide first."""
    if is_images(data, root):
        return "images", {"name": "images", "path": str(data)}
    recognised = recognise(data, root, given=data_options(overrides))
    if recognised.other_columns:
        warnings.warn(
            Notice(
                f"{data}: the columns {recognised.chosen} are read; there is also {recognised.other_columns}"
            ),
            stacklevel=4,
        )
    return recognised.guessed.kind, recognised.options


def data_options(overrides: Sequence[str]) -> dict[str, Any]:
    """The options of the [data] section that overrides give."""
    # `data.text=COLUMN` is parsed as any override of a recipe, on an otherwise empty section
    words = [word for word in overrides if word.startswith("data.")]
    return dict(config.override(config.Table({"data": {}}), *words)["data"])


@dataclass(frozen=True, slots=True)
class Opened:
    """Data that was opened to plan a training, and the options that it was opened with."""

    data: Data
    config: Any
    seed: int

    @classmethod
    def of(cls, section: Mapping[str, Any], seed: int, root: Path | None) -> Opened:
        """Open a [data] section."""
        options = _table(section).without("name")
        name = str(section["name"])
        data = make_data(name, options, seed=seed, root=root)
        return cls(data, config.read(data_config(name), options, where="data"), seed)

    def adapted(self, section: Mapping[str, Any], seed: int, root: Path | None) -> Opened:
        """Return the data of a section of the same name; rows are read and tokenized again only where it demands that.

        No row may be longer than the `longest` of the new section.
        """
        wanted = config.read(type(self.config), _table(section).without("name"), where="data")
        # the same options and the same seed: nothing is read again
        if (wanted, seed) == (self.config, self.seed):
            return self
        # data with buckets keeps its tokenized rows; only the division into batches changes
        if isinstance(self.data, Bucketed):
            # not every kind of data has all of them: only chats can be packed
            limits = {name: getattr(wanted, name) for name in LIMITS if hasattr(wanted, name)}
            # equal once the limits are: no other option differs, which would need a new reading
            if replace(self.config, **limits) == wanted:
                self.data.seed = seed
                self.data.regroup(**limits)
                return Opened(self.data, wanted, seed)
        # closed first, so that files and workers are not held twice
        self.data.close()
        return Opened.of(section, seed, root)


def _table(section: Mapping[str, Any]) -> config.Table:
    return section if isinstance(section, config.Table) else config.Table(section)


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """A recipe, and its data, which was opened to count the steps."""

    recipe: config.Table
    data: Data


def new_recipe(
    data: str | Path, *overrides: str, root: Path | None = None, device: str = "auto"
) -> config.Table:
    """Return the recipe of a new model for a file of data; the arguments are those of `plan_new`."""
    return plan_new(data, *overrides, root=root, device=device).recipe


def plan_new(
    data: str | Path, *overrides: str, root: Path | None = None, device: str = "auto"
) -> RecipePlan:
    """Plan the training of a new model for a file of data, of a size that two CPU cores can train.

    Args:
        data: A file or folder, as `clearhead data FILE` understands it.
        overrides: Values to change: "model.width=384", "epochs=20".
        root: A folder to search for data files first.
        device: auto, cpu, cuda, cuda:1 or mps; on a CPU a large text is not read several times unless "epochs=10" or
            "steps=N" is given.
    """
    kind, section = understood(data, root, overrides)
    if kind not in NEW:
        raise InputError(
            f"{data} holds {kind}, which need a pretrained model: expected `clearhead finetune MODEL {data}`; a new "
            f"model learns from {', '.join(NEW)}"
        )
    given = NEW[kind]
    section = {**section, **given["data"]}
    # `most`: the largest number of steps, None for no limit
    most = None
    if kind == "text":
        # small texts cannot fill a large vocabulary: the size follows from the bytes of the files
        section["size"] = vocabulary_size(locate(data, root))
        if find_device(device).type == "cpu":
            # a text may be so large that epochs would take days
            most = CPU_STEPS
    table = {**given, "data": section, "schedule": {"final": 0.0}}
    best = given.get("run", {}).get("best", "valid_loss")
    return with_steps(table, overrides, epochs=NEW_EPOCHS[kind], best=best, root=root, most=most)


def propose_shorter(recipe: Recipe, *, new: bool, step: int, rate: float) -> str:
    """A sentence with the options of a training that takes about an hour, for one that takes longer.

    Args:
        recipe: The recipe, made from a file of data.
        new: Whether the model is a new one, which may be smaller.
        step: The steps that are done.
        rate: Steps per second.
    """
    # the hour begins now: steps that are done already come on top
    steps = step + max(int(HOUR * rate), 1)
    sentence = f"for about an hour add steps={steps} to the same command, also after Ctrl-C"
    halved = []
    # a smaller width or depth would change a pretrained model, so this is for new ones
    for name in ("width", "depth"):
        # families without a width or a depth have none to halve
        size = recipe.model.get(name)
        if isinstance(size, int) and size > 1:
            halved.append(f"model.{name}={size // 2}")
    if new and halved:
        sentence += (
            f"; steps of a smaller model are faster, in another folder (--out): {' '.join(halved)}"
        )
    return sentence


def vocabulary_size(path: Path) -> int:
    """The vocabulary size for a text: proportional to its bytes, within limits."""
    if path.is_file():
        files = [path]
    else:
        files = [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return min(max(size // CHARACTERS_PER_TOKEN, 512), 16_000)


def batch_size(
    section: Mapping[str, Any], root: Path | None, rows: int, context: int | None
) -> tuple[dict[str, int], Opened | None]:
    """Return limits in tokens for about this many rows per step, and the data, which was opened to find them.

    There are none for data whose rows all have the same length; it is not opened.

    A row may be as long as the model's context, up to LONGEST and to batch_tokens, if it is given; the limit is that of
    the longest row, if it is shorter. With pack=true a step has as many tokens, in as few rows as the context allows.
    """
    if section["name"] not in BUCKETED:
        # their batches are counted in rows, not in tokens
        return {}, None
    tokens = section.get("batch_tokens")
    most = min(context or LONGEST, LONGEST)
    if isinstance(tokens, int):
        # a row must fit into a step of the user's size
        most = min(most, tokens)
    limits = {"longest": most} | dict(section)
    # any value does for the lengths; one that is no number is reported when the data is opened
    if tokens is None or isinstance(tokens, int):
        limits["batch_tokens"] = max(most, 1 << 14)
    # opened without packing: the lengths of single rows are needed
    packs = bool(limits.pop("pack", False))
    opened = Opened.of(limits, 0, root)
    assert isinstance(opened.data, Bucketed)
    parts = opened.data.training, opened.data.validation
    # both parts, since `longest` holds for validation, too
    lengths, others = (part.buckets.lengths for part in parts)
    longest = min(_rounded_up(int(np.concatenate([lengths, others]).max())), most)
    # the median: a few long rows should not make every step large
    usual = int(np.median(lengths))
    # a step must hold the longest row
    step = max(_rounded_up(rows * usual), longest)
    if packs:
        fewest_rows = -(-step // most)  # that the context allows
        # the tokens of a step, divided evenly among its packed rows
        longest = max(step // fewest_rows, longest)
    # options that the user gave stay as they are
    sizes = {"longest": longest, "batch_tokens": step}
    return {name: value for name, value in sizes.items() if name not in section}, opened


def _rounded_up(tokens: int) -> int:
    return -(-tokens // ROUND) * ROUND


def with_steps(
    table: Mapping[str, Any],
    overrides: Sequence[str],
    *,
    epochs: float,
    best: str,
    root: Path | None,
    most: int | None = None,
    opened: Opened | None = None,
) -> RecipePlan:
    """Complete a recipe: its overrides, the number of steps of these epochs, and validations in between.

    An override such as "epochs=20" changes their number; without one there are at most `most` steps. `opened` is data
    with other limits of its batches, if it has been opened.
    """
    # epochs is no key of a recipe: it becomes a number of steps here
    times = [word.partition("=")[2] for word in overrides if word.startswith("epochs=")]
    overrides = [word for word in overrides if not word.startswith("epochs=")]
    try:
        if times:
            # the last one counts, as with all overrides
            epochs = float(times[-1])
    except ValueError:
        raise InputError(f"epochs={times[-1]}: expected a number") from None
    if not epochs > 0:
        raise InputError(f"epochs={epochs}: expected more than 0")
    # 0 steps stand for "not given"
    given = config.override(config.Table({"steps": 0, **table}), *overrides)
    section, seed = given["data"], given.get("seed", 0)
    # the data is opened to count its batches, and passed on to the training
    if opened is None:
        opened = Opened.of(section, seed, root)
    else:
        opened = opened.adapted(section, seed, root)
    steps = given["steps"] or _steps(opened.data, epochs)
    # neither epochs nor steps were asked for: a large text is not read several times
    if most is not None and not times and not given["steps"] and steps > most:
        _tell_shortened(steps, most, epochs)
        steps = most
    validations = opened.data.valid_batches
    # rounded up: at most VALIDATIONS, unless LONGEST_INTERVAL is shorter
    interval = min(max(-(-int(steps) // VALIDATIONS), 1), LONGEST_INTERVAL)
    known = {f.name for f in fields(data_config(section["name"]))}
    # it would take longer than the steps in between
    if validations > LONGEST_INTERVAL and "valid_most" in known:
        table = {**table, "data": {"valid_most": LONGEST_INTERVAL // 4, **table["data"]}}
    run: dict[str, Any] = {"log_every": max(min(int(steps) // 20, 10), 1), "save_every": interval}
    if validations:
        # without validation data nothing can be measured or called the best
        run["valid_every"] = interval
        # an average over checkpoints and the best of them would be different weights
        if not dict(given.get("run", {})).get("average"):
            run["best"] = best
    complete = {
        **table,
        "run": run,
        "schedule": {**table.get("schedule", {}), "warmup": max(int(steps) // 16, 1)},
    }
    # overrides last: they win over everything that was derived
    recipe = config.override(config.Table({"steps": steps, **complete}), *overrides)
    # valid_most may have been added: the data gets its final options
    return RecipePlan(recipe, opened.adapted(recipe["data"], seed, root).data)


def _tell_shortened(steps: int, most: int, epochs: float) -> None:
    warnings.warn(
        Notice(
            f"a new model on a CPU: {most:,} steps, which use each example {epochs * most / steps:.2g} times; "
            f"epochs={epochs:g} would be {steps:,} steps"
        ),
        stacklevel=4,
    )


def _steps(data: Data, epochs: float) -> int:
    """The number of steps in which each example is used `epochs` times."""
    if data.steps_per_epoch is None:
        raise InputError("this data has no end, so that it has no epochs: expected steps=N")
    return max(round(data.steps_per_epoch * epochs), 1)


# Rows of data that are in memory, not in a file: a data frame, dictionaries, or texts.


@runtime_checkable
class DataFrame(Protocol):
    """A data frame, such as that of pandas."""

    def to_dict(self, orient: str) -> Any: ...


DataLike = str | Path | DataFrame | Sequence[Any]  # a path, or rows


def as_file(data: DataLike, path: Path) -> str | Path:
    """Return the path of data; rows are written to `path`, as JSON Lines, with null for a missing value.

    Args:
        data: A path; or a data frame, a list of dictionaries, or a list of texts.
        path: Where rows are written.

    Examples:
        >>> as_file([{"text": "Good.", "label": 1}], tmp / "data.jsonl").read_text()
        '{"text": "Good.", "label": 1}\\n'
        >>> as_file("reviews.csv", tmp / "data.jsonl")
        'reviews.csv'
    """
    if isinstance(data, str | Path):
        return data
    # a list with a dictionary per row
    rows = data.to_dict("records") if isinstance(data, DataFrame) else data
    if not isinstance(rows, Sequence) or not rows:
        raise InputError(
            "no rows are given: expected the path of a file, a data frame, dictionaries or texts"
        )
    lines = []
    for number, row in enumerate(rows):
        if isinstance(row, str) or _is_missing(row):
            # a text alone is a row with the usual column
            value = {"text": row}
        else:
            value = row
        if not isinstance(value, Mapping):
            raise InputTypeError(
                f"row {number} is a {type(row).__name__}: expected a dictionary, or a text"
            )
        try:
            # NaN is not JSON, and null is what readers take for a missing value
            given = {name: None if _is_missing(cell) else cell for name, cell in value.items()}
            lines.append(json.dumps(given, ensure_ascii=False, default=_plain))
        except (TypeError, ValueError) as problem:
            raise InputTypeError(
                f"row {number}: {problem}: expected texts and numbers"
            ) from problem
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, "".join(f"{line}\n" for line in lines).encode())
    return path


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN of any type, or pandas' NaT or NA."""
    if value is None:
        return True
    # of NaN and NaT alone it is true, of NA it is NA, of an array an array
    unequal = value != value
    return unequal is value or (isinstance(unequal, bool | np.bool_) and bool(unequal))


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")

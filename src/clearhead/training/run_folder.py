"""The run folder of a training: recipe, facts, metrics, checkpoints and model, written so that a crash damages nothing.

recipe.toml     the recipe
setup.json      the objective and the models, with the sizes from the data or a checkpoint; units of the metrics
facts.json      the seed, command, versions and machine of every attempt, and what model/ was made of
metrics.jsonl   one record per line, its step first
checkpoints/    see checkpoint.py
unfinished/     the model without its weights, until model/ is there: see weights/checkpoints/unfinished.py
model/          the trained model; players/NAME/ the other networks of the objective
lock            held by the process that writes here; holder.json names it
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import secrets
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import torch

from .. import __version__, config
from ..atomic_files import atomic_write
from ..data import Data
from ..data.files import fingerprint, locate
from ..errors import InputError, MissingFileError, UserError
from ..tokens import Pair, Tokenizer

if TYPE_CHECKING:
    from .objectives import Objective
    from .recipe import Recipe
    from .setup import Setup


# the keys of a recipe that are 0, or not set, if a run has no average of its weights
AVERAGE = ("optim.ema", "optim.ema.start", "optim.ema.final")


class FolderError(UserError, RuntimeError):
    """A run folder cannot be used; the message says why and what to do."""


class Folder:
    """The folder of a run. A process that writes holds its lock; readers open it with lock=False."""

    def __init__(self, path: str | Path, *, create: bool = True, lock: bool = True) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._lock: filelock.BaseFileLock | None = None
        if create:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as cause:
                raise FolderError(
                    f"the run folder {self.path} cannot be created: {cause.strerror}"
                ) from cause
        elif not self.path.is_dir():
            raise FolderError(f"there is no run folder {self.path}")
        if lock:
            self._acquire()
            self._rewrite(None)  # removes a partial line that a crash has left

    def _acquire(self) -> None:
        holder = self.path / "holder.json"
        # A singleton or thread-local lock would admit a second Folder of this process.
        lock = filelock.FileLock(self.path / "lock", timeout=0, thread_local=False)
        try:
            lock.acquire()
            try:
                # names the process for the message that another one prints
                atomic_write(holder, to_json({"pid": os.getpid(), "host": socket.gethostname()}))
            except OSError:
                lock.release()
                raise
        except filelock.Timeout as cause:
            raise FolderError(
                f"the run folder {self.path} is in use by {_holder(holder)}; only one process may write"
            ) from cause
        except OSError as cause:
            raise FolderError(
                f"the run folder {self.path} cannot be written to: {cause.strerror or cause}"
            ) from cause
        self._lock = lock

    def close(self) -> None:
        """Release the lock; the end of the process releases it, too."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Metrics

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one record, `step` first. NaN and infinity, which JSON lacks, become null and are read as None."""
        step = record.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise InputError(f"step={step!r}: a record of metrics needs a whole number as its step")
        # one write per line, so that a reader or a crash meets whole lines but for the last
        line = json.dumps(_plain({"step": step, **record}), allow_nan=False)
        path = self.path / "metrics.jsonl"
        try:
            # opened and closed for each record, so that no line waits in a buffer
            with open(path, "ab") as file:
                file.write(line.encode() + b"\n")
        except OSError as cause:
            cause.filename = cause.filename or str(path)  # a full disk does not name the file
            raise

    def metrics(self) -> list[dict[str, Any]]:
        """All records, oldest first, without a partial last line that is being written or was cut off by a crash."""
        return [record for _, record in self._lines()]

    def cut(self, step: int) -> None:
        """Remove all records after `step`, because a resumed run writes them again."""
        self._rewrite(step)

    def _lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        path, records = self.path / "metrics.jsonl", []
        if not path.exists():
            return []
        lines = [line for line in path.read_bytes().split(b"\n") if line]
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError as cause:
                # the last line is being written, or was when the run was killed
                if number == len(lines):
                    break
                raise FolderError(
                    f"{path}:{number}: this is not a line of JSON: {_start(line)}"
                ) from cause
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise FolderError(
                    f"{path}:{number}: expected an object with a step, found {_start(line)}"
                )
            records.append((line, record))
        return records

    def _rewrite(self, step: int | None) -> None:
        path = self.path / "metrics.jsonl"
        if path.exists():
            lines = []
            for line, record in self._lines():
                if step is None or record["step"] <= step:
                    lines.append(line + b"\n")
            kept = b"".join(lines)
            # replaced as a whole: a crash leaves the old file or the new one
            if kept != path.read_bytes():
                atomic_write(path, kept)

    # Recipe, setup and facts

    def keep_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Write recipe.toml, which always has the recipe of the newest attempt."""
        config.write(_plain_recipe(recipe), self.path / "recipe.toml")

    def compare_recipe(
        self, recipe: Mapping[str, Any], *, may_change: Collection[str] = ()
    ) -> list[str]:
        """Return each difference from recipe.toml as a text; raise if one may not change, and write nothing.

        `may_change` names keys ("steps") or sections ("run") that may differ when a run is resumed.
        """
        path = self.path / "recipe.toml"
        if not path.exists():
            return []
        before, given = dict(_flat(config.load(path))), dict(_flat(recipe))
        had_average, has_average = (any(map(table.get, AVERAGE)) for table in (before, given))
        texts, refused = [], []
        for key in sorted(before.keys() | given):
            if before.get(key) == given.get(key):
                continue
            texts.append(f"{key} was {_value(before, key)}, now {_value(given, key)}")
            is_free = any(key == free or key.startswith(f"{free}.") for free in may_change)
            # another decay may follow, but either all checkpoints of a run have averages, or none
            if key in AVERAGE and has_average != had_average:
                is_free = False
                texts[-1] += ", and the average of a run can neither begin nor end"
            if not is_free:
                # this key changes what is trained
                refused.append(texts[-1])
        if refused:
            raise FolderError(
                f"{path} belongs to another recipe: {'; '.join(refused)}. Resume with the same recipe, or train in "
                "another folder"
            )
        return texts

    def keep_setup(self, setup: Setup, *, unit: str, objective: Objective) -> None:
        """Write setup.json: the objective, the models, and the units of the measurements."""
        measurements = {}
        for name, measurement in objective.reported.items():
            measurements[f"valid_{name}"] = asdict(measurement)
        losses = [update.loss for update in objective.updates]
        about = {"unit": unit, "losses": losses, "measurements": measurements}
        atomic_write(self.path / "setup.json", to_json({**config.dump(setup), **about}))

    @staticmethod
    def read_setup(path: Path) -> Setup | None:
        """The setup of a run; None if its folder has no setup.json."""
        from .setup import Setup

        if not (path / "setup.json").is_file():
            return None
        return config.read(
            Setup, config.load(path / "setup.json").without("unit", "losses", "measurements")
        )

    def about(self) -> dict[str, Any]:
        """The unit of throughput, the names of losses, and the measurements with units; {} without setup.json."""
        if not (self.path / "setup.json").is_file():
            return {}
        table = config.load(self.path / "setup.json")
        return {name: table[name] for name in ("unit", "losses", "measurements") if name in table}

    def facts(self) -> dict[str, Any]:
        """The content of facts.json; empty before the first attempt."""
        path = self.path / "facts.json"
        if not path.exists():
            return {}
        try:
            return dict(json.loads(path.read_bytes()))
        except ValueError as cause:
            raise FolderError(
                f"{path} is damaged ({cause}): move it away, and the next attempt writes a new one"
            ) from cause

    def begin(
        self,
        *,
        command: Sequence[str],
        seed: int,
        device: torch.device | str,
        step: int = 0,
        left_out: Sequence[str] = (),
        data: str = "",
        files: Mapping[str, str] | None = None,
    ) -> str:
        """Record a new attempt that starts after `step`; returns its unique name.

        `left_out` are pretrained weights that the run does not use; `data` describes the version of the data, and
        `files` has the fingerprint of each of its files.
        """
        facts = self.facts() or {"seed": seed, "attempts": []}
        # another seed means other batches: the metrics would be of two trainings
        if facts.get("seed") != seed:
            raise FolderError(
                f"{self.path} was trained with seed {facts.get('seed')}, not with {seed}"
            )
        # numbered, and with random letters: a copy of the folder may begin an attempt of the same number
        name = f"{len(facts['attempts']) + 1:03d}-{secrets.token_hex(4)}"
        attempt: dict[str, Any] = {
            "name": name,
            "step": step,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": list(command),
            "versions": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "clearhead": __version__,
                "numpy": np.__version__,
            },
            "platform": platform.platform(),
            "device": _device_name(torch.device(device)),
        }
        if left_out:
            attempt["left_out"] = list(left_out)
        if data:
            attempt["data"] = data
        if files:
            attempt["files"] = dict(files)
        facts["attempts"].append(attempt)
        atomic_write(self.path / "facts.json", to_json(facts))
        return name

    def tell(self, **facts: Any) -> None:
        """Add facts to the record of the last attempt, such as why it failed (problem).

        Examples:
            >>> folder = Folder(tmp / "run")
            >>> _ = folder.begin(command=["train"], seed=0, device="cpu")
            >>> folder.tell(problem="the loss became nan in step 3")
            >>> folder.facts()["attempts"][-1]["problem"]
            'the loss became nan in step 3'
        """
        known = self.facts()
        if known.get("attempts"):
            known["attempts"][-1] |= facts
            atomic_write(self.path / "facts.json", to_json(known))

    def keep_model(
        self, recipe: Recipe, *, step: int, best: int | None, mean: Mapping[str, float]
    ) -> None:
        """Record in facts.json that the model of a recipe has been saved in model/.

        Args:
            recipe: The recipe.
            step: The last step of the training.
            best: The step of its weights, if it is not the last one.
            mean: The validation of the mean of several checkpoints, if it is the model.
        """
        facts = self.facts()
        facts["model"] = {
            "recipe": _recipe_hash(recipe),
            "step": step,
            "best": best,
            "mean": _plain(mean),
        }
        atomic_write(self.path / "facts.json", to_json(facts))

    def kept_model(self, recipe: Recipe) -> dict[str, Any] | None:
        """What `keep_model` recorded of this recipe; None if model/ is missing, or belongs to another recipe."""
        model = self.facts().get("model") or {}
        files = [self.path / "model" / name for name in ("config.json", "adapter_config.json")]
        is_there = any(file.is_file() for file in files)
        if is_there and model.get("recipe") == _recipe_hash(recipe):
            return model
        return None


def _start(line: bytes) -> str:
    """The first characters of a line, for messages."""
    return line[:60].decode(errors="replace") + "…" * (len(line) > 60)


def to_json(value: Any) -> bytes:
    """Strict JSON with one key per line, readable by people, too."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _plain(value: Any) -> Any:
    """Convert numpy and torch numbers to Python's, and NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic | torch.Tensor | np.ndarray):
        value = value.item()  # raises for more than one number
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _plain_recipe(value: Any) -> Any:
    """A recipe with the types of TOML: lists for tuples, and no None."""
    if isinstance(value, Mapping):
        return {str(key): _plain_recipe(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain_recipe(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _recipe_hash(recipe: Recipe) -> str:
    table = _plain_recipe(config.dump(recipe))
    del table["run"]["save_minutes"]  # says only when checkpoints are written
    content = json.dumps(table, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in _plain_recipe(recipe).items():
        if isinstance(value, dict):
            # nested sections as dotted keys: optim.lr
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value(recipe: Mapping[str, Any], key: str) -> str:
    return repr(recipe[key]) if key in recipe else "not set"


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.processor() or platform.machine()}"


# Facts about the data of a run, kept with its checkpoints: a later attempt notices by them that the data has changed.
#
# Ids and class numbers of a model mean what they meant in training, so another tokenizer or other classes are refused;
# other changes are stated.


NUMBERS = ("steps per epoch", "validation batches")
SHOWN = 10  # classes that a message lists


def data_facts(data: Data, feeds: Iterable[Data], root: Path | None) -> dict[str, Any]:
    """Return the sizes, the classes, a hash of the tokenizer, and the fingerprints of the files of a run's data."""
    # feeds may read the same files
    names = dict.fromkeys(name for dataset in (data, *feeds) for name in dataset.files)
    return {
        "steps per epoch": data.steps_per_epoch,
        "validation batches": data.valid_batches,
        "classes": None if data.classes is None else list(data.classes),
        "tokenizer": None if data.tokens is None else tokenizer_hash(data.tokens),
        "files": {name: fingerprint(locate(name, root)) for name in names},
    }


def tokenizer_hash(tokens: Tokenizer | Pair) -> str:
    """Return a hash of what the files of a tokenizer contain."""
    digest = hashlib.sha256()
    for name, content in sorted(tokens.files().items()):
        # with the length, so that no two sets of files have the same bytes
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def check_same_meaning(was: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Raise if the classes or the tokenizer of the data are not those that a run was trained with.

    Args:
        was: The facts in the run's checkpoint; older ones may have fewer.
        now: The facts of the data as it is.
        folder: The run folder.
    """
    # A class is a row of the output layer, and an id a row of the embedding: their meaning cannot change.
    if was.get("classes") is not None and was["classes"] != now["classes"]:
        problem = (
            f"was trained on the classes {_listed(was['classes'])}, "
            f"and the data now has {_listed(now['classes'])}"
        )
    elif was.get("tokenizer") is not None and was["tokenizer"] != now["tokenizer"]:
        problem = "was trained with another tokenizer than the data now gives, so that its ids mean other tokens"
    else:
        return
    changed = []
    for name, mark in was.get("files", {}).items():
        if now["files"].get(name, mark) != mark:
            # these files explain the difference
            changed.append(name)
    files = f" ({', '.join(changed)} changed)" if changed else ""
    raise FolderError(
        f"{folder} {problem}{files}. Expected the data of its first attempt, or another folder for a new training"
    )


def changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return each change of the data as a text that begins with "data"."""
    texts = []
    for name in NUMBERS:
        if was.get(name, now[name]) != now[name]:
            texts.append(f"data had {was[name]} {name}, now {now[name]}")
    marks = was.get("files", {})
    for name, mark in now["files"].items():
        if marks.get(name, mark) != mark:
            # a file without an earlier fingerprint is no change
            texts.append(f"data file {name}")
    return texts


def changed_files(was: Mapping[str, Any], root: Path | None) -> list[str]:
    """Return a sentence for each file of a run that is no longer as it was, without opening the data."""
    sentences = []
    for name, mark in was.get("files", {}).items():
        try:
            place = locate(name, root)
        except MissingFileError:
            sentences.append(f"{name} is no longer there")
            continue
        if fingerprint(place) != mark:
            sentences.append(f"{name} has changed")
    return sentences


def _listed(classes: list[str] | None) -> str:
    if classes is None:
        return "none"
    more = f" and {len(classes) - SHOWN} more" if len(classes) > SHOWN else ""
    return ", ".join(classes[:SHOWN]) + more

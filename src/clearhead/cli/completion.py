"""Shell completion of models, recipes, runs and names; where there is nothing to offer, the shell offers its files.

A shell runs this at every press of Tab, so it must not import torch or numpy.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

ZOO = Path(__file__).parent.parent / "zoo"
IMAGES = ("cifar10", "fashion-mnist", "imagenette", "mnist")  # data sets of images
MOST = 1000  # entries of a folder to look at
LONGEST = 100_000  # bytes; a larger file is no recipe


def models(incomplete: str) -> list[str]:
    """The shipped models, and folders and files of models."""
    return _begins(
        incomplete, *sorted(card.parent.name for card in ZOO.glob("*/card.toml"))
    ) + folders(incomplete)


def folders(incomplete: str) -> list[str]:
    """Model folders, folders of runs that have a model or a checkpoint, and GGUF files."""
    return list(_near(incomplete, _is_model))


def recipes(incomplete: str) -> list[str]:
    """Files that have the tables of a recipe, and the names of the recipes that ship."""
    from ..config import shipped_recipes

    return [*_near(incomplete, _is_recipe), *_begins(incomplete, *shipped_recipes())]


def runs(incomplete: str) -> list[str]:
    """Run folders."""
    return list(_near(incomplete, lambda path: (path / "metrics.jsonl").is_file()))


def sets(incomplete: str) -> list[str]:
    """The names of data sets that `evaluate` takes."""
    return _begins(incomplete, "multi30k", "tatoeba", "sst2", "shakespeare", *IMAGES)


def views(incomplete: str) -> list[str]:
    """The names of views that `look` takes."""
    from .registered import VIEWS, names

    return _begins(incomplete, *names(VIEWS))


def figures(incomplete: str) -> list[str]:
    """The names of figures that `figure` draws."""
    from .registered import FIGURES, names

    return _begins(incomplete, *names(FIGURES))


def devices(incomplete: str) -> list[str]:
    """The names of devices."""
    return _begins(incomplete, "auto", "cpu", "cuda", "mps")


def types(incomplete: str) -> list[str]:
    """The names of dtypes."""
    return _begins(incomplete, "float32", "bfloat16", "float16", "int8")


def _begins(incomplete: str, *names: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _is_model(path: Path) -> bool:
    if not (path / "recipe.toml").is_file():  # no run folder
        # A config.json alone is a model folder.
        return (path / "config.json").is_file() or path.suffix == ".gguf"
    saved = any(
        (path / "model" / name).is_file() for name in ("config.json", "adapter_config.json")
    )
    unfinished = (path / "unfinished" / "config.json").is_file()
    # A run that is still training can be opened by its checkpoints.
    return saved or (unfinished and any((path / "checkpoints").glob("step-*")))


def _is_recipe(path: Path) -> bool:
    from ..config import load

    # Large JSON files are data, and would take too long to parse at every Tab.
    if path.suffix not in (".toml", ".json") or not path.is_file() or path.stat().st_size > LONGEST:
        return False
    try:
        return {"data", "model", "steps"} <= load(path).keys()
    # A file that is being edited may not parse at this moment.
    except (ValueError, OSError):
        return False


def _near(incomplete: str, accept: Callable[[Path], bool]) -> Iterator[str]:
    """Yield accepted paths that begin with `incomplete`, and those inside folders that do; relative as they were typed.

    A path that needs quotes is left to the shell.
    """
    start, name = os.path.split(incomplete)
    begun = [path for path in _inside(start) if os.path.basename(path).startswith(name)]
    for path in begun[:MOST]:
        paths = [path]
        if not accept(Path(path)):
            # A folder that is not accepted itself may contain what is: offer the level below.
            paths = [below for below in _inside(path)[:MOST] if accept(Path(below))]
        # The shell would have to quote the path while the user is typing it.
        yield from (one for one in paths if shlex.quote(one) == one)


def _inside(folder: str) -> list[str]:
    """The paths in a folder, sorted, without hidden ones; none if it cannot be read."""
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if not name.startswith(".")]

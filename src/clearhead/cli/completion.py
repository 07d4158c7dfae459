"""What Tab offers: models, recipes, runs and names. Where there is nothing to offer, the shell offers its own files.

A shell asks at every press of the key, so nothing heavy is imported: no torch, no numpy.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

ZOO = Path(__file__).parent.parent / "zoo"
MOST = 1000  # entries of folders that are looked at
LONGEST = 100_000  # bytes of a file that may be a recipe


def models(incomplete: str) -> list[str]:
    """The models that ship, and those of folders."""
    return _begins(incomplete, *sorted(card.parent.name for card in ZOO.glob("*/card.toml"))) + folders(incomplete)


def folders(incomplete: str) -> list[str]:
    """Folders that hold a model, or a finished run's; GGUF files."""
    return list(_near(incomplete, _is_model))


def recipes(incomplete: str) -> list[str]:
    """Files that have the tables of a recipe."""
    return list(_near(incomplete, _is_recipe))


def runs(incomplete: str) -> list[str]:
    """Folders of trainings."""
    return list(_near(incomplete, lambda path: (path / "metrics.jsonl").is_file()))


def sets(incomplete: str) -> list[str]:
    """The names of data on which a model can be measured."""
    return _begins(incomplete, "multi30k", "tatoeba", "sst2", "shakespeare")


def devices(incomplete: str) -> list[str]:
    return _begins(incomplete, "auto", "cpu", "cuda", "mps")


def types(incomplete: str) -> list[str]:
    return _begins(incomplete, "float32", "bfloat16", "float16", "int8")


def _begins(incomplete: str, *names: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _is_model(path: Path) -> bool:
    run = path / "model" if (path / "recipe.toml").is_file() else path
    return (run / "config.json").is_file() or path.suffix == ".gguf"


def _is_recipe(path: Path) -> bool:
    from ..config import load

    if path.suffix not in (".toml", ".json") or not path.is_file() or path.stat().st_size > LONGEST:
        return False
    try:
        return {"data", "model", "steps"} <= load(path).keys()
    except (ValueError, OSError):
        return False


def _near(incomplete: str, wanted: Callable[[Path], bool]) -> Iterator[str]:
    """What is wanted among the paths that begin so, and in the folders among them; written as it was begun.

    A path that a shell would have to quote is left to the shell.
    """
    start, name = os.path.split(incomplete)
    begun = [path for path in _inside(start) if os.path.basename(path).startswith(name)]
    for path in begun[:MOST]:
        found = [path] if wanted(Path(path)) else filter(lambda below: wanted(Path(below)), _inside(path)[:MOST])
        yield from (one for one in found if shlex.quote(one) == one)


def _inside(folder: str) -> list[str]:
    """The paths in a folder in their order, but for hidden ones; none if it cannot be read."""
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if not name.startswith(".")]

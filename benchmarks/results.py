"""Shared by the experiments: measure a trained model on validation data, and write numbers to docs/results."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from clearhead.data import Data
from clearhead.models import Model
from clearhead.training.objectives import choose, objective_class

HOME = Path(__file__).parents[1]
CONFIGS, RESULTS = HOME / "configs", HOME / "docs" / "results"


@torch.no_grad()
def measure(model: Model, data: Data) -> dict[str, float]:
    """Measure a model on validation data: the mean of each measurement of the objective that fits them."""
    kind = objective_class(choose(type(model).__name__, model.can, data))
    objective = kind(kind.Config(), {"model": model}, data).eval()
    sums, counted = dict.fromkeys(kind.measurements, 0.0), 0
    for i in range(data.valid_batches):
        batch = data.valid(i)
        for name, value in objective.measure(
            {key: torch.from_numpy(x) for key, x in batch.items()}
        ).items():
            sums[name] += value.item()
        counted += objective.count(batch)
    return objective.summarise({name: total / counted for name, total in sums.items()})


def keep(name: str, **numbers: Any) -> None:
    """Write docs/results/NAME.json: the numbers, with the command, the machine, the version of torch and the date."""
    _write(name, _facts(" ".join(sys.argv[1:])) | numbers)


def keep_part(name: str, part: str, numbers: dict[str, Any]) -> None:
    """Write one part of docs/results/NAME.json, with the command and the like; the other parts stay as they are."""
    path = RESULTS / f"{name}.json"
    others = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    _write(name, dict(sorted((others | {part: _facts(part) | numbers}).items())))


def _facts(arguments: str) -> dict[str, Any]:
    """The command, the machine, the version of torch and the date."""
    return {
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {arguments}".strip(),
        "machine": f"{os.cpu_count()} CPU cores, {torch.get_num_threads()} used",
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }


def _write(name: str, content: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(_text(content) + "\n", encoding="utf-8")
    print(path)


def rounded(x: Any) -> Any:
    """Round every number to six digits, which is more than seeds agree on."""
    if isinstance(x, float):
        return float(f"{x:.6g}")
    if isinstance(x, dict):
        return {str(key): rounded(value) for key, value in x.items()}
    return [rounded(value) for value in x] if isinstance(x, list | tuple) else x


def _text(x: Any, indent: int = 0) -> str:
    """JSON with one line per list of numbers, so that a diff shows which list changed."""
    if isinstance(x, dict):
        pad = " " * (indent + 1)
        inside = ",\n".join(
            f"{pad}{json.dumps(str(k))}: {_text(v, indent + 1)}" for k, v in x.items()
        )
        return "{\n" + inside + "\n" + " " * indent + "}"
    return json.dumps(rounded(x))

"""What the experiments share: the measure of a trained model on any data, and the file that their numbers go to."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.data import Data
from clearhead.training.objective import Objective, count

HOME = Path(__file__).parents[1]
CONFIGS, RESULTS = HOME / "configs", HOME / "docs" / "results"


@torch.no_grad()
def measure(model: nn.Module, data: Data) -> tuple[float, float]:
    """Loss and accuracy on the validation part, a counted token."""
    model.eval()
    objective, found, counted = Objective(model, data.kind), torch.zeros(2, dtype=torch.float64), 0
    for i in range(data.valid_batches):
        batch = data.valid(i)
        found += objective.measure({name: torch.from_numpy(x) for name, x in batch.items()})
        counted += count(batch)
    loss, right = (found / counted).tolist()
    return loss, right


def keep(name: str, **numbers: Any) -> None:
    """Write docs/results/NAME.json: the numbers, and what they were measured with."""
    facts = {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} CPU cores, {torch.get_num_threads()} used",
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(_text(facts | numbers) + "\n", encoding="utf-8")
    print(path)


def rounded(x: Any) -> Any:
    """Six digits of every number, which is more than a seed leaves alone."""
    if isinstance(x, float):
        return float(f"{x:.6g}")
    if isinstance(x, dict):
        return {str(key): rounded(value) for key, value in x.items()}
    return [rounded(value) for value in x] if isinstance(x, list | tuple) else x


def _text(x: Any, indent: int = 0) -> str:
    """JSON with one line a list of numbers, so that a change of a number is a change of a line."""
    if isinstance(x, dict):
        pad = " " * (indent + 1)
        inside = ",\n".join(f"{pad}{json.dumps(str(k))}: {_text(v, indent + 1)}" for k, v in x.items())
        return "{\n" + inside + "\n" + " " * indent + "}"
    return json.dumps(rounded(x))

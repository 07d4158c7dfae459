"""One two-way table a foreign family: what each of our parameters is called there, and how it lies there.

    Row(("blocks.0.attn.query.weight", ...), ("h.0.attn.c_attn.weight",), joined(turned=True))

The first name there is the usual one, the others stand in some files: where two are there, they must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..tokens import Pair, Tokenizer
from .bundle import Special
from .files import Tensors
from .fill import WeightsError, check_type, compare, put, slots


@dataclass(frozen=True, slots=True)
class Way:
    """How tensors of ours lie in one of theirs."""

    give: Callable[..., Tensor]  # ours -> theirs
    take: Callable[[Tensor, Sequence[tuple[int, ...]]], Sequence[Tensor]]  # theirs, our shapes -> ours


SAME = Way(lambda x: x, lambda x, _: [x])
TURNED = Way(torch.t, lambda x, _: [x.t()])  # a matrix that is multiplied from the other side
ROW = Way(lambda x: x[None], lambda x, _: [x[0]])  # a vector as a matrix of one row
JOINED = Way(
    lambda *parts: torch.cat(parts),
    lambda x, shapes: x.split([shape[0] for shape in shapes]),
)
JOINED_TURNED = Way(
    lambda *parts: torch.cat([part.t() for part in parts], dim=1),
    lambda x, shapes: [part.t() for part in x.split([shape[0] for shape in shapes], dim=1)],
)


@dataclass(frozen=True, slots=True)
class Row:
    """Parameters of ours, usually one, and the tensor that they are there."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    way: Way = SAME


# Names of tensors, with * for anything, that a model has no place for; a constant may be looked at before it is left.
Ignored = Mapping[str, Callable[[Tensor, Any], bool] | None]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What `huggingface` must know of a family of models."""

    model: str  # the family of ours that it is
    theirs: type[Any]  # a dataclass of what their config.json says
    ours: Callable[[Any, Mapping[str, tuple[int, ...]]], Any]  # theirs, and the tensors' shapes -> our Config
    written: Callable[[Any, Special], dict[str, Any]]  # our Config -> their config.json; raises for what they have not
    rows: Callable[[Any], Iterable[Row]]
    tokens: Callable[[Path, Any], Tokenizer | Pair | None]  # folder, theirs -> how its text is read
    write_tokens: Callable[[Tokenizer | Pair, Path, Special], None]
    wiring: Mapping[str, Any] = field(default_factory=dict)  # what config.json must say, where it says anything
    prefix: str = ""  # that tensors have in a model with its head, and not in one without
    ignored: Callable[[Any], Ignored] = lambda c: {}  # our Config -> what is no part of the model
    rename: Callable[[str], str] | None = None  # names of old files -> new ones
    beside: Callable[[Path], dict[str, Any]] = lambda folder: {}  # what files beside config.json say, in its words
    write_beside: Callable[[Any, Path], None] = lambda c, folder: None
    also: Callable[[Any], dict[str, Tensor]] = lambda model: {}  # tensors that they expect and we do not have
    # How transformers answers: what loads one of its classes, the inputs of our forward, and our Config -> its output.
    reference: Callable[[Callable[[str], Any], dict[str, Tensor], Any], Tensor] = lambda pretrained, asked, c: (
        pretrained("AutoModelForCausalLM")(asked["ids"]).logits
    )


def pairs(names: Mapping[str, str], leaves: Sequence[str] = ("weight", "bias"), way: Way = SAME) -> Iterator[Row]:
    """Layers that have other names there: of each its weight and, if it has one, its bias."""
    for ours, theirs in names.items():
        for leaf in leaves:
            yield Row((f"{ours}.{leaf}",), (f"{theirs}.{leaf}",), way if leaf == "weight" else SAME)


@dataclass(frozen=True, slots=True)
class Used:
    """What became of the tensors of a folder."""

    used: dict[str, tuple[int, ...]]  # name there: shape
    ignored: dict[str, tuple[int, ...]]
    types: dict[str, int]  # how numbers are stored: how many of each
    files: tuple[str, ...]


@torch.no_grad()
def fill(
    model: nn.Module,
    tensors: Tensors,
    rows: Iterable[Row],
    ignoring: Ignored,
    device: torch.device,
    dtype: torch.dtype | None,
) -> Used:
    """Give a model without numbers theirs."""
    places, rows, given = slots(model), list(rows), dict(tensors.shapes)
    known = [name for row in rows for name in row.ours]
    assert sorted(known) == sorted(places), f"in the table or in ours, not in both: {set(known) ^ set(places)}"
    ignored = {}
    for name in list(given):
        found = next((pattern for pattern in ignoring if fnmatchcase(name, pattern)), None)
        if found is not None:
            check = ignoring[found]
            if check is not None and not check(tensors[name], model.config):
                raise WeightsError(f"{tensors.files[name]}: {name} is not the constant that such a model has")
            ignored[name] = given.pop(name)
    names: dict[Row, str] = {}
    for row in rows:
        there = [name for name in row.theirs if name in given]
        for other in there[1:]:
            if given[other] != given[there[0]] or not torch.equal(tensors[there[0]], tensors[other]):
                raise WeightsError(
                    f"{tensors.files[other]}: {there[0]} and {other} differ, and the model has one table for both"
                )
            del given[other]
        names[row] = there[0] if there else row.theirs[0]
    expected = {name: tuple(row.way.give(*(places[ours][0] for ours in row.ours)).shape) for row, name in names.items()}
    _compare(given, expected, tensors)
    types: Counter[str] = Counter()
    for row, name in names.items():
        tensor = tensors[name]
        check_type(name, tensor, places[row.ours[0]][0], tensors.files[name])
        types[tensors.types.get(name) or stored(tensor)] += tensor.numel()
        parts = row.way.take(tensor, [tuple(places[ours][0].shape) for ours in row.ours])
        for ours, part in zip(row.ours, parts, strict=True):
            put(places[ours], part, device, dtype)
    model.to(device)  # constants, which are no part of the state
    files = tuple(sorted({path.name for path in tensors.files.values()}))
    return Used(
        {name: tensors.shapes[name] for name in tensors.shapes if name not in ignored}, ignored, dict(types), files
    )


def stored(tensor: Tensor) -> str:
    """The name of a tensor's type."""
    return str(tensor.dtype).removeprefix("torch.")


def given_away(model: nn.Module, rows: Iterable[Row]) -> dict[str, Tensor]:
    """A model's tensors by their names there, on the host."""
    places = slots(model)
    return {
        row.theirs[0]: row.way.give(*(places[ours][0].detach().cpu() for ours in row.ours)).contiguous()
        for row in rows
        if all(ours in places for ours in row.ours)
    }


def _compare(given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], tensors: Tensors) -> None:
    """Raise unless there are just the tensors of a model; the message names the file where one is wrong."""
    for name, shape in expected.items():
        if name in given and given[name] != shape:
            compare({name: given[name]}, {name: shape}, tensors.files[name])
    compare(given, expected, tensors.path)

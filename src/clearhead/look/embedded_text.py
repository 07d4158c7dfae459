"""The token embeddings of a text as one tensor, and the model's output as a function of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from ..layers import Tokens
from .addresses import Tree
from .capture import edit
from .layout import find_tensor

CHUNK = 1 << 12  # ids that are embedded at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A call of an embedding, whose output is a part of the tokens."""

    address: str  # of the embedding
    call: int  # number of the call among those of this embedding in one pass
    start: int  # its tokens are start..stop-1
    stop: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddedText:
    """The embeddings of a text's tokens, those of several inputs one after the other."""

    model: nn.Module
    row: Mapping[str, Tensor]  # the arguments of the model, one row
    places: list[Place]
    x: Float[Tensor, "1 t d"]

    @torch.no_grad()
    def mean(self) -> Float[Tensor, "1 t d"]:
        """At every token the mean embedding of the vocabulary that the token is of."""
        parts = [
            _mean(self.model.get_submodule(place.address)).expand(place.stop - place.start, -1) for place in self.places
        ]
        return torch.cat(parts)[None].to(self.x)

    def output(self, rows: Float[Tensor, "n t d"], run: Callable[[Mapping[str, Tensor]], Any]) -> Any:
        """The output of `run`, which calls the model with arguments, if its embeddings return these rows instead."""
        given = {key: value.expand(len(rows), *value.shape[1:]) for key, value in self.row.items()}
        changes = {place.address: _in_turn(self.places, place.address, rows) for place in self.places}
        with edit(self.model, changes):
            return run(given)


def _mean(embedding: nn.Module) -> Float[Tensor, "1 d"]:
    """The mean output of an embedding over all ids."""
    weight = next(embedding.parameters())
    every = torch.arange(weight.shape[0], device=weight.device)
    return sum(embedding(ids[None])[0].float().sum(0, keepdim=True) for ids in every.split(CHUNK)) / len(every)


def _in_turn(places: Sequence[Place], address: str, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """An edit that replaces the calls of one embedding by the parts of the rows that are theirs."""
    own = {place.call: rows[:, place.start : place.stop] for place in places if place.address == address}
    calls = iter(range(1 << 30))

    def change(x: Tensor) -> Tensor:
        return own.get(next(calls), x)

    return change


def embed_text(model: nn.Module, row: Mapping[str, Tensor], texts: Sequence[str]) -> tuple[EmbeddedText, Tensor]:
    """Run a model once, and return the embeddings of its ids, and its output.

    Args:
        model: The model.
        row: Its arguments by name, one row each; the argument without a name comes first.
        texts: The names of those that are ids.
    """
    calls: list[tuple[str, int, Tensor, Tensor]] = []  # address, number of the call, ids, embeddings
    count: dict[str, int] = {}
    hooks = []
    for path, module in Tree(model).parts:
        if not isinstance(module, nn.Embedding | Tokens):
            continue

        def record(_: nn.Module, args: Any, out: Tensor, path: str = path) -> None:
            calls.append((path, count.get(path, 0), args[0], out))
            count[path] = count.get(path, 0) + 1

        hooks.append(module.register_forward_hook(record))
    try:
        out = call_model(model, row)
    finally:
        for hook in hooks:
            hook.remove()
    places: list[Place] = []
    parts: list[Tensor] = []
    for name in texts:
        ids, start = row[name], sum(part.shape[1] for part in parts)
        for path, number, given, x in calls:
            taken = any((place.address, place.call) == (path, number) for place in places)
            if not taken and path and given.numel() == ids.numel() and torch.equal(given.reshape(ids.shape), ids):
                places.append(Place(address=path, call=number, start=start, stop=start + x.shape[1]))
                parts.append(x)
                break
        else:
            raise InputError(
                f"no embedding of these tokens was seen in this {type(model).__name__}: expected an nn.Embedding that "
                "is called with the ids"
            )
    return EmbeddedText(model=model, row=row, places=places, x=torch.cat(parts, dim=1)), output_of(out)


def call_model(model: nn.Module, row: Mapping[str, Tensor]) -> Any:
    """Call a model with arguments by name; the argument without a name comes first."""
    return model(row[""]) if "" in row else model(**row)


def output_of(out: Any) -> Tensor:
    """The logits of a model's output, or its first tensor if it has none."""
    logits = getattr(out, "logits", None)
    x = logits if isinstance(logits, Tensor) else find_tensor(out)
    if x is None:
        raise InputError(f"the model returned a {type(out).__name__} without a tensor: expected logits")
    return x

"""Subject: one input of a model as a tensor that gradients can be taken of, and the logits that follow from it.

image   x (1, c, height, width), the pixels after preprocessing
text    x (1, t, d), the token embeddings; `edit` puts them in the place of what the embedding returns
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...data.images.files import open_image
from ...data.images.preprocessing import Preprocessing
from ...data.text.labelled import MASKS
from ...errors import InputError, InputIndexError
from ...layers import Tokens
from ...models import Model
from ...weights import Bundle
from ..capture.addresses import Tree, module_of
from ..capture.watch import edit
from ..maps.text_attention import id_row, pieces_of, read_ids, translation_inputs
from ..structure import find_tensor
from ..targets import (
    ClassNames,
    OutputNames,
    TokenNames,
    names_of,
    tokenizer_names,
    tokenizer_pieces,
)

# The token embeddings of a text as one tensor, and the model's output as a function of them.


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
            _mean(self.model.get_submodule(place.address)).expand(place.stop - place.start, -1)
            for place in self.places
        ]
        return torch.cat(parts)[None].to(self.x)

    def output(
        self, rows: Float[Tensor, "n t d"], run: Callable[[Mapping[str, Tensor]], Any]
    ) -> Any:
        """The output of `run`, which calls the model with arguments, if its embeddings return these rows instead."""
        given = {key: value.expand(len(rows), *value.shape[1:]) for key, value in self.row.items()}
        changes = {
            place.address: _in_turn(self.places, place.address, rows) for place in self.places
        }
        with edit(self.model, changes):
            return run(given)


def _mean(embedding: nn.Module) -> Float[Tensor, "1 d"]:
    """The mean output of an embedding over all ids."""
    weight = next(embedding.parameters())
    every = torch.arange(weight.shape[0], device=weight.device)
    return sum(
        embedding(ids[None])[0].float().sum(0, keepdim=True) for ids in every.split(CHUNK)
    ) / len(every)


def _in_turn(places: Sequence[Place], address: str, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """An edit that replaces the calls of one embedding by the parts of the rows that are theirs."""
    own = {
        place.call: rows[:, place.start : place.stop]
        for place in places
        if place.address == address
    }
    calls = iter(range(1 << 30))

    def change(x: Tensor) -> Tensor:
        return own.get(next(calls), x)

    return change


def embed_text(
    model: nn.Module, row: Mapping[str, Tensor], texts: Sequence[str]
) -> tuple[EmbeddedText, Tensor]:
    """Run a model once, and return the embeddings of its ids, and its output.

    Args:
        model: The model.
        row: Its arguments by name, one row each; the argument without a name comes first.
        texts: The names of those that are ids.
    """
    # address, number of the call, ids, embeddings
    calls: list[tuple[str, int, Tensor, Tensor]] = []
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
            if (
                not taken
                and path
                and given.numel() == ids.numel()
                and torch.equal(given.reshape(ids.shape), ids)
            ):
                places.append(
                    Place(address=path, call=number, start=start, stop=start + x.shape[1])
                )
                parts.append(x)
                break
        else:
            raise InputError(
                f"no embedding of these tokens was seen in this {type(model).__name__}: expected an nn.Embedding that "
                "is called with the ids"
            )
    return EmbeddedText(model=model, row=row, places=places, x=torch.cat(parts, dim=1)), output_of(
        out
    )


def call_model(model: nn.Module, row: Mapping[str, Tensor]) -> Any:
    """Call a model with arguments by name; the argument without a name comes first."""
    return model(row[""]) if "" in row else model(**row)


def output_of(out: Any) -> Tensor:
    """The logits of a model's output, or its first tensor if it has none."""
    logits = getattr(out, "logits", None)
    x = logits if isinstance(logits, Tensor) else find_tensor(out)
    if x is None:
        raise InputError(
            f"the model returned a {type(out).__name__} without a tensor: expected logits"
        )
    return x


# what a Bundle takes: an image or a text, for a translator (source, target so far); or tensors
Given = Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """One input of a model, its logits as a function of rows like it, and the names of the outputs."""

    model: nn.Module
    name: str  # of the model, for messages
    x: Tensor  # one row: (1, c, height, width) or (1, t, d)
    # of rows like x, at the position that is explained
    logits: Callable[[Tensor], Float[Tensor, "n v"]]
    names: OutputNames  # of the logits
    tokens: list[str] | None = None  # the text of each token; None: an image
    # the token whose prediction is explained, if there are logits for every token
    at: int | None = None
    answers: int = 1  # number of tokens whose logits one pass computes
    picture: np.ndarray | None = None  # (height, width, 3) uint8: the image as the model saw it
    preprocessing: Preprocessing | None = None  # of an image
    # of a text: like x, the mean embedding of the vocabulary at every token
    mean: Callable[[], Tensor] | None = None

    @property
    def kind(self) -> str:
        """What is explained: "image" or "text"."""
        return "image" if self.tokens is None else "text"

    def rows(self, outputs: int) -> int:
        """The number of rows that one pass takes, where the model has this many outputs per token."""
        room = ROOM_CUDA if self.x.is_cuda else ROOM
        return max(1, min(MOST_ROWS, room // max(self.x.numel(), outputs * self.answers)))


# inputs or logits per pass, whose activations fit, and rows
ROOM, ROOM_CUDA, MOST_ROWS = 1 << 19, 1 << 22, 64


def subject(
    model: Bundle | nn.Module, given: Given, *, tokenizer: Any = None, at: int | None = None
) -> Subject:
    """Prepare an input of a model, whose values can then be attributed to.

    Args:
        model: A Bundle, or any torch module in evaluation mode.
        given: What a Bundle takes, or the tensors of a bare module: one, or a mapping of its arguments.
        tokenizer: The tokenizer of a model of transformers, if a text is given.
        at: The token whose prediction is explained, where there are logits for every token.
    """
    module = module_of(model)
    if module.training:
        raise InputError(
            f"this {type(module).__name__} is in training mode: call .eval() first, so that it is fixed"
        )
    if isinstance(model, Bundle) and not isinstance(given, Mapping):
        if tokenizer is not None:
            raise InputError("a Bundle has tokens of its own: expected no tokenizer")
        return READERS.get(model.reads, _unknown)(model, given, at)
    return _foreign(module, given, tokenizer, at)


def _image(bundle: Bundle, given: Given, at: int | None) -> Subject:
    """An image for a model with its preprocessing."""
    picture = None
    if isinstance(given, Tensor) and given.dtype == torch.uint8:
        given = given.permute(1, 2, 0).cpu().numpy()
    if isinstance(given, Tensor):
        x = _one_image(given)
    else:
        x, pre = bundle.pixels(given)[None], bundle.preprocessing
        assert pre is not None
        seen = pre.pixels(open_image(given))
        if pre.channels == "bgr":
            seen = seen[::-1]
        picture = np.ascontiguousarray(
            np.broadcast_to(seen.transpose(1, 2, 0), (*seen.shape[1:], 3))
        )
    return Subject(
        model=bundle.model,
        name=bundle.name,
        x=x.to(bundle.device, bundle.dtype),
        names=names_of(bundle),
        logits=lambda rows: _at(bundle.model(rows), None),
        picture=picture,
        preprocessing=bundle.preprocessing,
    )


def _text(bundle: Bundle, given: Given, at: int | None) -> Subject:
    """A text for a language model, a BERT or a classifier of texts."""
    if not isinstance(given, str):
        raise InputError(
            f"this {bundle.name} reads text: expected a string, got {type(given).__name__}"
        )
    ids, masks = read_ids(bundle, given)
    if "fill" in bundle.can:
        if at is None and not masks:
            raise InputError(
                f"{given[:60]!r} has no gap: expected one or more {MASKS[0]}, or at=the number of a token"
            )
        if at is None:
            at = masks[0]
    elif "predict" in bundle.can and at is None:
        at = -1
    row = {"ids": id_row(bundle, ids, "text")}
    return _of_tokens(bundle.model, bundle.name, row, names_of(bundle), pieces_of(bundle, ids), at)


def _pair(bundle: Bundle, given: Given, at: int | None) -> Subject:
    """A source, and what a translator has written of its target so far."""
    source, written = (given, "") if isinstance(given, str) else given
    inputs = translation_inputs(bundle, source, written, {})
    row = {"source": inputs.row["source"], "ids": inputs.row["ids"]}
    pieces = [*inputs.pieces, *(inputs.decoder_input or [])]
    return _of_tokens(
        bundle.model, bundle.name, row, names_of(bundle), pieces, -1 if at is None else at
    )


def _unknown(bundle: Bundle, given: Given, at: int | None) -> Subject:
    raise InputError(
        f"this {bundle.name} reads {bundle.reads}: expected a model that reads images or text"
    )


READERS: dict[str, Callable[[Bundle, Given, int | None], Subject]] = {
    "images": _image,
    "tokens": _text,
    "pairs": _pair,
}


def _foreign(model: nn.Module, given: Given, tokenizer: Any, at: int | None) -> Subject:
    """The tensors of a bare module, or a text and its tokenizer."""
    name, labels = type(model).__name__, getattr(getattr(model, "config", None), "id2label", None)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    names: OutputNames = ClassNames(
        tuple(str(labels[i]) for i in sorted(labels)) if labels else None
    )
    if isinstance(given, str):
        if tokenizer is None:
            raise InputError(
                f"a text for this {name}, which has no tokens: expected tokenizer=..., a Bundle or ids"
            )
        given = dict(tokenizer(given, return_tensors="pt"))
    if isinstance(given, Tensor):
        given = {"": given}
    if not isinstance(given, Mapping) or not all(isinstance(x, Tensor) for x in given.values()):
        raise InputError(
            f"a {type(given).__name__} for this {name}: expected a tensor, a mapping of the tensors that it is called "
            "with, or a Bundle, which reads images and texts"
        )
    row = {key: x.to(device) for key, x in given.items()}
    pixels = [key for key, x in row.items() if x.is_floating_point()]
    if pixels:
        key = pixels[0]
        row[key] = _one_image(row[key])
        return Subject(
            model=model,
            name=name,
            x=row[key],
            names=names,
            logits=lambda rows: _at(
                call_model(model, {**_repeated(row, len(rows)), key: rows}), at or 0
            ),
        )
    row = {key: x if x.ndim > 1 else x[None] for key, x in row.items()}
    ids = next(iter(row.values()))
    mask = getattr(tokenizer, "mask_token_id", None)
    if at is None:
        gaps = (ids[0] == mask).nonzero() if mask is not None else []
        at = int(gaps[0]) if len(gaps) else -1
    texts = [
        key for key in row if key in ("", "input_ids", "ids", "decoder_input_ids", "source")
    ] or list(row)[:1]
    pieces = [str(i) for key in texts for i in row[key][0].tolist()]
    if tokenizer is not None:
        pieces, by_text = tokenizer_pieces(tokenizer, map(int, pieces)), tokenizer_names(tokenizer)
    else:
        by_text = TokenNames(None, lambda ids: [str(int(i)) for i in ids])
    return _of_tokens(model, name, row, by_text, pieces, at, texts=texts, classes=names)


def _of_tokens(
    model: nn.Module,
    name: str,
    row: dict[str, Tensor],
    names: OutputNames,
    pieces: list[str],
    at: int | None,
    *,
    texts: Sequence[str] | None = None,
    classes: OutputNames | None = None,
) -> Subject:
    """The embeddings of a text's tokens; logits for every token are taken at one of them, those of classes as such."""
    with torch.no_grad():
        embedded, out = embed_text(model, row, list(texts or row))
    queries = out.shape[1] if out.ndim == 3 else 0
    if at is not None and queries and not -queries <= at < queries:
        raise InputIndexError(f"at={at}: there are {queries} tokens")
    at = at % queries if at is not None and queries else None
    ours: Any = model
    one = (
        at is not None
        and isinstance(model, Model)
        and hasattr(model, "states")
        and hasattr(model, "head")
    )
    run = (lambda row: ours.head(ours.states(**row)[:, at])) if one else partial(call_model, model)
    return Subject(
        model=model,
        name=name,
        x=embedded.x,
        tokens=pieces,
        at=at,
        answers=1 if one else len(pieces),
        names=names if queries or classes is None else classes,
        logits=lambda rows: _at(embedded.output(rows, run), at),
        mean=embedded.mean,
    )


def _at(out: Any, at: int | None) -> Float[Tensor, "n v"]:
    x = output_of(out)
    if x.ndim == 3 and at is not None:
        return x[:, at]
    if x.ndim != 2:
        raise InputError(
            f"the model returned a tensor of shape {tuple(x.shape)}: expected (rows, outputs)"
        )
    return x


def _one_image(x: Tensor) -> Tensor:
    if x.ndim != 4:
        x = x[None]
    if x.ndim != 4 or x.shape[0] != 1:
        raise InputError(
            f"an image of shape {tuple(x.shape)}: expected (channels, height, width), a single image"
        )
    return x


def _repeated(row: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    return {key: x.expand(rows, *x.shape[1:]) for key, x in row.items()}


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Let gradients be taken inside a `with`, whatever the caller has switched off."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in model.modules())
    with torch.inference_mode(False), torch.enable_grad():
        if recurrent:  # cuDNN's recurrent layers have no backward pass in evaluation mode
            with torch.backends.cudnn.flags(enabled=False):
                yield
        else:
            yield

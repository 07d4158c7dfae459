"""FloatInput: one input of a model as a tensor that gradients can be taken of, and the logits that follow from it.

image   x (1, c, height, width), the pixels after preprocessing
text    x (1, t, d), the token embeddings; `edit` puts them in the place of what the embedding returns
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...data.images.preprocessing import Preprocessing
from ...data.text.labelled import MASKS
from ...errors import InputError, InputIndexError
from ...inputs import ModelInput, read_input
from ...inputs.images import one_image
from ...inputs.read import Given
from ...layers import Tokens
from ...models import Model
from ...models.hooks import Session, call_after
from ...weights import Bundle
from ..capture.addresses import Tree
from ..targets import (
    ClassNames,
    OutputNames,
    TokenNames,
    config_labels,
    names_of,
    output_of,
    tokenizer_names,
)
from ..watch import edit

# inputs or logits per pass, whose activations fit into memory, and rows
ROOM, ROOM_CUDA, MOST_ROWS = 1 << 19, 1 << 22, 64
CHUNK = 1 << 12  # ids that are embedded at a time
# The arguments that are ids of a text, a source before its target; "" is the first argument, which has no name.
TEXTS = ("source", "", "input_ids", "ids", "decoder_input_ids")


@dataclass(frozen=True, kw_only=True, eq=False)
class FloatInput:
    """One input of a model, its logits as a function of rows like it, and the names of the outputs."""

    given: ModelInput
    x: Tensor  # one row: (1, c, height, width) or (1, t, d)
    # of rows like x, at the position that is explained
    logits: Callable[[Tensor], Float[Tensor, "n v"]]
    names: OutputNames  # of the logits
    tokens: list[str] | None = None  # the text of each token; None: an image
    # the token whose prediction is explained, if there are logits for every token
    at: int | None = None
    answers: int = 1  # number of tokens whose logits one pass computes
    # of a text: like x, the mean embedding of the vocabulary at every token
    mean: Callable[[], Tensor] | None = None

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.given.model

    @property
    def name(self) -> str:
        """The class of the model, for messages."""
        bundle = self.given.bundle
        return type(self.model).__name__ if bundle is None else bundle.name

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of an image, if it is known."""
        return None if self.given.bundle is None else self.given.bundle.preprocessing

    @property
    def kind(self) -> str:
        """The kind of input: "image" or "text"."""
        return "image" if self.tokens is None else "text"

    def rows(self, outputs: int) -> int:
        """The number of rows that one pass takes, where the model has this many outputs per token."""
        room = ROOM_CUDA if self.x.is_cuda else ROOM
        # Either the input or the logits are the largest tensor of a pass.
        return max(1, min(MOST_ROWS, room // max(self.x.numel(), outputs * self.answers)))


def float_input(
    model: Bundle | nn.Module, given: Given, *, tokenizer: Any = None, at: int | None = None
) -> FloatInput:
    """Prepare an input of a model, whose values can then be attributed to.

    Args:
        model: A Bundle, or any torch module in evaluation mode.
        given: What a Bundle takes, or the tensors of a bare module: one, or a mapping of its arguments.
        tokenizer: The tokenizer of a model of transformers, if a text is given.
        at: The token whose prediction is explained, where there are logits for every token.
    """
    # A single image without a batch axis gets one.
    if isinstance(given, Tensor) and given.is_floating_point():
        given = one_image(given)
    read = read_input(model, given, tokenizer=tokenizer)
    # Floats are pixels; ids of a text have no gradient, and its embeddings take their place.
    pixels = next((x for x in read.tensors if x.is_floating_point()), None)
    if pixels is not None:
        return _image(read, pixels, at)
    return _text(read, _explained_place(read, given, at))


def _image(read: ModelInput, pixels: Tensor, at: int | None) -> FloatInput:
    """The pixels of an image, which is one of the model's arguments."""

    # A bare module may have logits for every token of an image: by default the first is explained.
    place = None if read.bundle is not None else at or 0

    def logits(rows: Tensor) -> Float[Tensor, "n v"]:
        # the other arguments get as many rows
        batch = read.repeated(len(rows))
        # The repeated image is found by its dtype and replaced by the rows.
        repeated = next(x for x in batch.tensors if x.is_floating_point())
        return _at(batch.exchanged(repeated, rows).run(read.model), place)

    return FloatInput(given=read, x=pixels, logits=logits, names=_class_names(read))


def _class_names(read: ModelInput) -> OutputNames:
    """The class names of a Bundle, or those in the config of a bare module, if it has any."""
    if read.bundle is not None:
        return names_of(read.bundle)
    return ClassNames(config_labels(read.model) or None)


def _token_names(read: ModelInput) -> OutputNames:
    """The names of logits that every token has."""
    if read.bundle is not None:
        return names_of(read.bundle)
    if read.tokenizer is not None:
        return tokenizer_names(read.tokenizer)
    return TokenNames(None, lambda ids: [str(int(i)) for i in ids])


def _text(read: ModelInput, place: int | None) -> FloatInput:
    """The embeddings of a text's tokens; logits for every token are taken at one of them, those of classes as such."""
    arguments = _arguments(read)
    texts = [name for name in TEXTS if name in arguments] or list(arguments)[:1]
    # one pass shows which embeddings are called with the ids, and whether every token has logits
    with torch.no_grad():
        embedded, out = embed_text(read.model, arguments, texts)
    # (1, t, v) is one row of logits per token, (1, v) one for the whole text.
    queries = out.shape[1] if out.ndim == 3 else 0
    if not queries:
        place = None
    elif place is not None:
        if not -queries <= place < queries:
            raise InputIndexError(f"at={place}: there are {queries} tokens")
        # at=-1 is the last token; stored as a position from 0.
        place %= queries
    tokens = _token_texts(read, [arguments[name] for name in texts])
    ours: Any = read.model
    # our models compute the logits of the one token only, to save memory
    alone = place is not None and isinstance(ours, Model) and hasattr(ours, "states")
    # `states` returns the vectors before the head, of which one row is then enough.
    alone = alone and hasattr(ours, "head")

    def run(row: Mapping[str, Tensor]) -> Any:
        if alone:
            return ours.head(call_model(ours.states, row)[:, place])
        return call_model(ours, row)

    return FloatInput(
        given=read,
        x=embedded.x,
        tokens=tokens,
        at=place,
        answers=1 if alone else len(tokens),
        names=_token_names(read) if queries else _class_names(read),
        logits=lambda rows: _at(embedded.output(rows, run), place),
        mean=embedded.mean,
    )


def _arguments(read: ModelInput) -> dict[str, Tensor]:
    """The arguments by name; the first without a name is ""."""
    first = {"": read.args[0]} if read.args else {}
    return {**first, **read.named}


def _explained_place(read: ModelInput, given: Given, at: int | None) -> int | None:
    """The token whose prediction is explained: the first masked one of an encoder, the last of any other model."""
    if at is not None:
        return at
    bare = read.bundle is None  # its capabilities are not known
    if read.masks and (bare or "fill" in read.can):
        return read.masks[0]
    # A text without a mask has no token for an encoder to predict.
    if "fill" in read.can:
        raise InputError(
            f"{str(given)[:60]!r} has no gap: expected one or more {MASKS[0]}, or at=the number of a token"
        )
    if bare or read.can & {"predict", "translate"}:
        return -1
    return None  # a classifier has one answer


def _token_texts(read: ModelInput, ids: Sequence[Tensor]) -> list[str]:
    """The text of every token (a translator's source first), or the ids of tokens without names."""
    if read.pieces is not None:
        return [*read.pieces, *(read.decoder_input or [])]
    return [str(i) for row in ids for i in row[0].tolist()]


def _at(out: Any, at: int | None) -> Float[Tensor, "n v"]:
    x = output_of(out)
    # Logits of every token need a position; one row of logits per input does not.
    if x.ndim == 3 and at is not None:
        return x[:, at]
    if x.ndim != 2:
        raise InputError(
            f"the model returned a tensor of shape {tuple(x.shape)}: expected (rows, outputs)"
        )
    return x


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Let gradients be taken inside a `with`, whatever the caller has switched off."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in model.modules())
    # Inference mode would make tensors that autograd rejects.
    with torch.inference_mode(False), torch.enable_grad():
        if recurrent:  # cuDNN's recurrent layers have no backward pass in evaluation mode
            with torch.backends.cudnn.flags(enabled=False):
                yield
        else:
            yield


# The token embeddings of a text as one tensor, and the model's output as a function of them.


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A call of an embedding, whose output is a part of the tokens."""

    address: str  # of the embedding
    call: int  # number of the call among those of this embedding in one pass
    start: int  # its tokens are start..stop-1
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingCall:
    """A call of an embedding in one pass of a model."""

    address: str
    number: int  # among the calls of this embedding
    ids: Tensor
    x: Tensor  # the embeddings

    def embeds(self, ids: Tensor) -> bool:
        """Whether these are the ids that it embedded, in any shape."""
        return self.ids.numel() == ids.numel() and torch.equal(self.ids.reshape(ids.shape), ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddedText:
    """The embeddings of a text's tokens, those of several inputs one after the other."""

    model: nn.Module
    row: Mapping[str, Tensor]  # the arguments of the model, one row
    places: list[Place]
    x: Float[Tensor, "1 t d"]

    @torch.no_grad()
    def mean(self) -> Float[Tensor, "1 t d"]:
        """The mean embedding over the vocabulary of each token's own embedding table, at every token."""
        parts = []
        for place in self.places:
            mean = _mean(self.model.get_submodule(place.address))
            parts.append(mean.expand(place.stop - place.start, -1))
        return torch.cat(parts)[None].to(self.x)

    def output(
        self, rows: Float[Tensor, "n t d"], run: Callable[[Mapping[str, Tensor]], Any]
    ) -> Any:
        """The output of `run`, which calls the model with arguments, if its embeddings return these rows instead."""
        given = {key: value.expand(len(rows), *value.shape[1:]) for key, value in self.row.items()}
        addresses = {place.address for place in self.places}
        # An embedding may be called several times: rows are handed out call by call.
        changes = {address: _in_turn(self.places, address, rows) for address in addresses}
        with edit(self.model, changes):
            return run(given)


def _mean(embedding: nn.Module) -> Float[Tensor, "1 d"]:
    """The mean output of an embedding over all ids."""
    # The rows of the weight are the ids; calling the module applies its scale, if it has one.
    weight = next(embedding.parameters())
    ids = torch.arange(weight.shape[0], device=weight.device)
    # some ids at a time, to save memory
    sums = [embedding(some[None])[0].float().sum(0, keepdim=True) for some in ids.split(CHUNK)]
    return sum(sums) / len(ids)


def _in_turn(places: Sequence[Place], address: str, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """An edit that replaces each call of one embedding by its part of the rows."""
    parts = {
        place.call: rows[:, place.start : place.stop]
        for place in places
        if place.address == address
    }
    # Counts the calls of one pass; more than any model makes.
    calls = iter(range(1 << 30))

    def change(x: Tensor) -> Tensor:
        # Calls with other ids, such as positions, keep their output.
        return parts.get(next(calls), x)

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
    with _recorded_embeddings(model) as calls:
        out = call_model(model, row)
    places: list[Place] = []
    parts: list[Tensor] = []
    # Each text is found by its ids, because the names of embeddings differ between models.
    for name in texts:
        call = _first_call(calls, row[name], places)
        if call is None:
            raise InputError(
                f"no embedding of these tokens was seen in this {type(model).__name__}: expected an nn.Embedding that "
                "is called with the ids"
            )
        start = sum(part.shape[1] for part in parts)
        stop = start + call.x.shape[1]
        # the tokens of several texts stand one after the other
        places.append(Place(address=call.address, call=call.number, start=start, stop=stop))
        parts.append(call.x)
    embedded = EmbeddedText(model=model, row=row, places=places, x=torch.cat(parts, dim=1))
    return embedded, output_of(out)


@contextmanager
def _recorded_embeddings(model: nn.Module) -> Iterator[list[EmbeddingCall]]:
    """A list that receives every call of an embedding inside a `with`."""
    calls: list[EmbeddingCall] = []
    count: dict[str, int] = {}
    # Our embeddings and torch's; other modules do not read ids.
    paths: dict[nn.Module, str] = {}
    for path, part in Tree(model).parts:
        if isinstance(part, nn.Embedding | Tokens):
            paths[part] = path

    def record(module: nn.Module, args: Any, out: Tensor) -> None:
        if module not in paths:  # a copy of it, which shares its hooks
            return
        path = paths[module]
        number = count.get(path, 0)
        calls.append(EmbeddingCall(address=path, number=number, ids=args[0], x=out))
        count[path] = number + 1

    with Session(model) as session, session:
        call_after(session, paths, record)
        yield calls


def _first_call(
    calls: Sequence[EmbeddingCall], ids: Tensor, places: Sequence[Place]
) -> EmbeddingCall | None:
    """The first call of a submodule that embedded these ids and is not taken by a place."""
    taken = {(place.address, place.call) for place in places}
    for call in calls:
        # Source and target may have the same ids, so a call serves one text only.
        if call.address and (call.address, call.number) not in taken and call.embeds(ids):
            return call
    return None


def call_model(model: Callable[..., Any], row: Mapping[str, Tensor]) -> Any:
    """Call a model with arguments by name; the argument without a name comes first."""
    named = {name: x for name, x in row.items() if name}
    if "" in row:
        return model(row[""], **named)
    return model(**named)

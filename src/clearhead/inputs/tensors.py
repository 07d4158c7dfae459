"""Inputs of bare torch modules: tensors as they are, or a text by a tokenizer of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError, InputTypeError
from ..models.model import network
from ..weights import Bundle
from .batch import Batch, ModelInput, device_of, floats_of

# Tensors by the names of the arguments; "" is the first, which has no name.
Tensors = Mapping[str, Tensor]


def read_tensors(model: Bundle | nn.Module, given: Any) -> ModelInput:
    """The tensors that a module is called with, one row each, as one input."""
    tensors = dict(given) if isinstance(given, Mapping) else {"": given}
    # a text or an array would fail inside the module with a message about its layers
    wrong = [x for x in tensors.values() if not isinstance(x, Tensor)]
    if wrong:
        raise InputError(
            f"a {type(wrong[0]).__name__} for this {type(network(model)).__name__}: expected tensors by the names of "
            "the arguments that it is called with"
        )
    device = device_of(model)
    # ids (t,) are a text; anything else has an axis of rows
    row: dict[str, Tensor] = {}
    for name, x in tensors.items():
        row[name] = x.to(device)
        if x.ndim == 1:
            # (t,) -> (1, t)
            row[name] = row[name][None]
    shapes = [tuple(x.shape) for x in row.values() if x.shape[:1] != (1,)]
    if shapes:
        raise InputError(f"tensors of shapes {shapes}: expected one row, the first axis of size 1")
    # the name "" stands for the first positional argument
    args = tuple(x for name, x in row.items() if name == "")
    named = {name: x for name, x in row.items() if name != ""}
    return ModelInput(model=network(model), args=args, named=named)


def read_vectors(bundle: Bundle, given: Any, _: str | None) -> ModelInput:
    """A tensor with one row as one input of a model that reads vectors."""
    if not isinstance(given, Tensor):
        raise InputError(f"this {bundle.name} reads {bundle.reads}: expected a tensor with one row")
    return read_tensors(bundle, given)


def tensor_items(model: Any, data: Any) -> tuple[dict[str, Tensor], bool]:
    """Tensors with a row for each input, by the names of the arguments; they never count as a single input."""
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    # a tensor alone is the first argument
    given = {"": data} if isinstance(data, Tensor) else data
    readable = isinstance(given, Mapping)
    readable = readable and all(isinstance(x, Tensor) and x.ndim for x in given.values())
    if not readable:
        name = getattr(model, "name", type(model).__name__)
        raise InputError(
            f"a bare {name} reads tensors: expected a tensor with a row per input, or {{argument: tensor}}; images and "
            "texts need a Bundle, with preprocessing or tokens"
        )
    # all arguments share the axis of rows
    rows = {len(x) for x in given.values()}
    if len(rows) > 1:
        raise InputError(f"tensors of {sorted(rows)} rows: expected as many in each")
    return dict(given), False


def tensor_batches(model: Any, tensors: Tensors) -> Iterator[Batch]:
    """Yield tensors as one batch, on the model's device and in its dtype."""
    device, dtype = device_of(model), floats_of(model)
    args: tuple[Tensor, ...] = ()
    named: dict[str, Tensor] = {}
    size = None
    for name, x in tensors.items():
        x = x.to(device)
        # integers are ids or masks, and keep their dtype
        if x.is_floating_point():
            x = x.to(dtype)
        # (b, c, y, x): taken for images
        if x.ndim == 4 and size is None:
            size = (x.shape[2], x.shape[3])
        if name == "":
            args = (x,)
        else:
            named[name] = x
    yield Batch(args=args, named=named, size=size)


def grouped_tensors(model: Any, tensors: Tensors) -> Iterator[tuple[list[int], Batch]]:
    """Yield tensors as one batch, with the numbers of its rows."""
    for batch in tensor_batches(model, tensors):
        yield list(range(batch.rows)), batch


# Texts for models of transformers, which come without tokens: their tokenizer reads them.


def check_tokenizer(tokenizer: Any) -> None:
    """Raise unless this can be called as a tokenizer of transformers."""
    if not callable(tokenizer):
        raise InputTypeError(
            f"tokenizer={tokenizer!r}: expected a tokenizer of transformers, as from AutoTokenizer.from_pretrained"
        )


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether a model of transformers reads one text and writes another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def read_with_tokenizer(
    model: nn.Module, tokenizer: Any, given: Any, target: str | None
) -> ModelInput:
    """A text, two texts or tensors as one input of a model of transformers, with the names of its tokens.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        given: A text, for an encoder-decoder the source; two texts, for a tokenizer that reads pairs; or tensors.
        target: What the decoder of an encoder-decoder has written so far.
    """
    check_tokenizer(tokenizer)
    target_ids = None
    if isinstance(given, str | tuple):
        # a tensor or a dict of arguments stays as it is
        given, target_ids = _tokenized(model, tokenizer, given, target)
    read = read_tensors(model, given)
    # ids by their name in transformers, or the only positional argument
    ids = read.named.get("input_ids", next(iter(read.args), None))
    # embeddings or pixels: there are no tokens to name
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        return read
    mask_id = getattr(tokenizer, "mask_token_id", None)
    decoder_ids = read.named.get("decoder_input_ids")
    return ModelInput(
        model=model,
        args=read.args,
        named=read.named,
        tokenizer=tokenizer,
        pieces=tokenizer_pieces(tokenizer, ids[0].tolist()),
        decoder_input=_pieces(tokenizer, decoder_ids),
        target=_pieces(tokenizer, target_ids),
        masks=tuple(place for place, i in enumerate(ids[0].tolist()) if i == mask_id),
    )


def _tokenized(
    model: nn.Module, tokenizer: Any, text: str | tuple[str, ...], target: str | None
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The arguments of a model for a text, and the ids (1, t) of its target."""
    if target is not None and not is_encoder_decoder(model):
        raise InputError(
            f"this {type(model).__name__} is no encoder-decoder: expected a text without a target"
        )
    texts = (text,) if isinstance(text, str) else text
    try:
        arguments = dict(tokenizer(*texts, return_tensors="pt"))
    except (TypeError, ValueError) as cause:
        raise InputError(f"this tokenizer does not read {text!r}: {cause}") from cause
    # a tokenizer without special tokens returns no ids for ""
    if not arguments["input_ids"].numel():
        raise InputError("the text is empty: expected a token or more")
    if not is_encoder_decoder(model):
        return arguments, None
    # an empty target still has its end token, so the decoder reads its start token alone
    labels = tokenizer(text_target=target or "", return_tensors="pt")["input_ids"].long()
    foreign: Any = model
    # Shifted right, so that the start comes first and the end is left out.
    arguments["decoder_input_ids"] = foreign.prepare_decoder_input_ids_from_labels(labels=labels)
    return arguments, labels


def _pieces(tokenizer: Any, ids: Tensor | None) -> list[str] | None:
    if ids is None:
        return None
    return tokenizer_pieces(tokenizer, ids[0].tolist())


def tokenizer_pieces(tokenizer: Any, ids: Iterable[int]) -> list[str]:
    """The text of each token by a tokenizer of transformers."""
    # some tokens decode to "", such as a lone "▁" of SentencePiece: their raw name is shown
    return [tokenizer.decode([int(i)]) or str(tokenizer.convert_ids_to_tokens(int(i))) for i in ids]

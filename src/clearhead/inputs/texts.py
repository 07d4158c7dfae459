"""Texts as ids of tokens, for language models, encoders and classifiers of texts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..data.text.labelled import MASKS, masked_ids, with_special
from ..errors import InputError, TextError
from ..weights import Bundle
from .batch import Batch, ModelInput
from .batching import by_length, cut_rows, padded


def check_text(bundle: Bundle, text: object) -> None:
    """Raise unless a text is a string."""
    if not isinstance(text, str):
        raise InputError(
            f"this {bundle.name} reads text: expected a string, got {type(text).__name__}"
        )


def texts_of(bundle: Bundle, given: Any) -> list[str]:
    """One text or several as a list; raises unless all are strings."""
    # bytes are taken for one text, so that check_text names the wrong type
    single = isinstance(given, str | bytes) or not isinstance(given, Iterable)
    texts: list[Any] = [given] if single else list(given)
    for text in texts:
        # before the tokenizer, whose message would not name the model
        check_text(bundle, text)
    return texts


def read_ids(bundle: Bundle, text: str) -> tuple[np.ndarray, list[int]]:
    """The ids of a text as a model reads it, and the positions of its masks.

    A model that predicts masked tokens reads "[MASK]" as its mask token, as `fill` does. A language model reads what
    its tokenizer puts around a text, an encoder the start and end tokens.
    """
    tokens = bundle.tokenizer()
    if "fill" in bundle.can:
        # with the mask's id, which the tokenizer itself may not have
        return masked_ids(tokens, text)
    if "predict" in bundle.can:
        # such as a BOS token
        return tokens.wrapped(text), []
    # encoders and classifiers of texts
    return with_special(tokens, tokens.encode(text)), []


def pieces_of(bundle: Bundle, ids: np.ndarray) -> list[str]:
    """The text of each id; a mask may come after the ids of the tokenizer."""
    tokens = bundle.tokenizer()
    # the tokenizer cannot name ids beyond its vocabulary
    known = iter(tokens.pieces(ids[ids < len(tokens)]))
    return [next(known) if i < len(tokens) else MASKS[0] for i in ids.tolist()]


def id_row(bundle: Bundle, ids: np.ndarray, what: str = "text") -> Int[Tensor, "1 t"]:
    """A batch of one row on the model's device; raises if it is empty or longer than the model reads."""
    if not len(ids):
        raise TextError(f"the {what} is empty: expected a token or more")
    if bundle.max_tokens is not None and len(ids) > bundle.max_tokens:
        raise TextError(
            f"the {what} has {len(ids)} tokens: this model reads {bundle.max_tokens} at once"
        )
    return torch.from_numpy(ids)[None].to(bundle.device)


def read_text(bundle: Bundle, given: Any, target: str | None) -> ModelInput:
    """A text as one input of a model; raises if it is longer than the model reads."""
    if target is not None:
        raise InputError(f"this {bundle.name} is no translator: expected a text without a target")
    check_text(bundle, given)
    ids, masks = read_ids(bundle, given)
    return ModelInput(
        model=bundle.model,
        bundle=bundle,
        # not cut: a tape of a cut text would surprise
        args=(id_row(bundle, ids),),
        pieces=pieces_of(bundle, ids),
        masks=tuple(masks),
    )


def text_items(bundle: Bundle, data: Any) -> tuple[list[np.ndarray], bool]:
    """The ids of one text or several, cut to what the model reads; and whether a single text was given."""
    single = isinstance(data, str | bytes) or not isinstance(data, Iterable)
    texts = texts_of(bundle, data)
    # the positions of masks are for `fill` alone
    rows = [read_ids(bundle, text)[0] for text in texts]
    if not all(len(row) for row in rows):
        raise TextError("a text is empty: expected a token or more")
    # a sentence model cuts texts as it did in training
    limits = [size for size in (bundle.max_tokens, bundle.longest) if size is not None]
    return cut_rows(rows, min(limits, default=None)), single


def text_batches(bundle: Bundle, rows: Sequence[np.ndarray]) -> Iterator[Batch]:
    """Yield rows of ids as one batch; one by one if their lengths differ and the model does not take lengths."""
    ids, lengths = padded(rows, bundle.tokenizer().pad, bundle.device)
    takes_lengths = "lengths" in inspect.signature(bundle.model.forward).parameters
    # a causal model never reads the padding, which comes after a text
    padding_hidden = takes_lengths or "predict" in bundle.can
    if not padding_hidden and len(set(lengths.tolist())) > 1:
        # the recursion ends: a batch of one row has one length
        for row in rows:
            # without padding, so that nothing has to be masked
            yield from text_batches(bundle, [row])
        return
    named = {"lengths": lengths} if takes_lengths else {}
    yield Batch(args=(ids,), named=named, lengths=lengths)


def grouped_texts(bundle: Bundle, rows: Sequence[np.ndarray]) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of rows of similar length, with their numbers."""
    for numbers, ids, lengths in id_batches(bundle, rows):
        yield numbers, Batch(args=(ids,), named={"lengths": lengths}, lengths=lengths)


def id_batches(
    bundle: Bundle, rows: Sequence[np.ndarray]
) -> Iterator[tuple[list[int], Int[Tensor, "b t"], Int[Tensor, "b"]]]:
    """Yield batches of rows of similar length: their numbers, padded ids and lengths."""
    # sorting by length keeps padding low; `numbers` restores the order
    for numbers in by_length([len(row) for row in rows], bundle.model):
        pad = bundle.tokenizer().pad
        yield numbers, *padded([rows[i] for i in numbers], pad, bundle.device)

"""Nearest neighbours by cosine: of any vectors, and of the words of a text model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError, InputKeyError, Notice
from ..layers import Tokens
from ..tokens import Pair, Tokenizer
from ..weights import Bundle
from .vectors import as_tensor, unit

Neighbours = list[tuple[str, float]]  # names and cosines, the nearest first
SIGNS = {"+": 1.0, "-": -1.0}


def neighbours(
    x: npt.ArrayLike, query: npt.ArrayLike, *, names: Sequence[object] | None = None, top: int = 5
) -> list[Neighbours]:
    """Return the vectors that are nearest to each query by the cosine of their angle, the nearest first.

    A vector with an entry that is not finite has no angle: it is left out, with a Notice. Zeros have the cosine 0.

    Args:
        x: Vectors (n, d).
        query: A vector (d), or several (m, d).
        names: A name for each vector; None: their numbers.
        top: Neighbours to return.

    Returns:
        Pairs of name and cosine, a list per query.

    Raises:
        InputError: If the shapes do not fit, or a query is not finite, or zero.

    Examples:
        >>> x = [[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]]
        >>> [(name, round(cosine, 2)) for name, cosine in neighbours(x, [3.0, 0.5], names="abc", top=2)[0]]
        [('a', 0.99), ('b', 0.81)]
    """
    vectors, queries = as_tensor(x).double(), as_tensor(query).double()
    queries = queries[None] if queries.ndim == 1 else queries
    if vectors.ndim != 2 or queries.ndim != 2 or vectors.shape[1] != queries.shape[1] or not len(vectors):
        raise InputError(f"vectors {tuple(vectors.shape)} and queries {tuple(queries.shape)}: expected (n, d), (m, d)")
    if names is not None and len(names) != len(vectors):
        raise InputError(f"names has {len(names)} entries: expected {len(vectors)}, one per vector")
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    for i, one in enumerate(queries):
        if not one.isfinite().all() or not one.any():
            raise InputError(f"query {i} is zero, or not finite: expected a vector with a direction")
    kept = _finite_rows(vectors, "vectors")
    cosines, nearest_rows = (unit(queries) @ unit(vectors[kept]).T).topk(min(top, len(kept)), dim=1)
    answers = []
    for row, rows in zip(cosines.tolist(), kept[nearest_rows].tolist(), strict=True):
        labels = [str(i if names is None else names[i]) for i in rows]
        answers.append(list(zip(labels, row, strict=True)))
    return answers


def word_neighbours(bundle: Bundle, expression: str, *, side: str = "source", top: int = 10) -> Neighbours:
    """Return the words whose embeddings are nearest to a word, or to a sum and difference of words.

    The vectors are the rows of the token embedding, scaled to length 1 before they are added (Mikolov et al. 2013);
    that of a word of several tokens is their mean. The words of the expression are left out of the answer.

    Args:
        bundle: Any model with tokens: a GPT, a BERT, a translator, or a model of transformers that `load` opened.
        expression: A word, or words with + and - between them: "king - man + woman".
        side: For a translator: the embedding of the "source" or of the "target".
        top: Words to return.

    Returns:
        Pairs of word and cosine, the nearest first.

    Raises:
        InputKeyError: If the vocabulary has no token for a word.

    Examples:
        >>> words = word_neighbours(clearhead.load("everyday"), "man - boy + girl", top=3)
        >>> words[0][0]
        'woman'
    """
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    tokens, table = _embedding(bundle, side)
    table = table.detach()[: len(tokens)].float().cpu()
    kept = _finite_rows(table, "embeddings")
    table = unit(table)
    query, words, used = torch.zeros(table.shape[1]), set[str](), set[int]()
    for sign, word in _terms(expression):
        ids = _ids(tokens, word)
        query += sign * unit(table[ids].mean(0))
        words.add(word.casefold())
        used |= set(ids)
    if not query.isfinite().all() or not query.any():
        raise InputError(f"{expression!r} is the vector 0, or not finite: expected words that do not cancel")
    pieces = tokens.pieces(np.arange(len(tokens)))
    special = {*tokens.special_names.values(), *used}
    answer: Neighbours = []
    order = (table[kept] @ unit(query)).sort(descending=True)
    for cosine, i in zip(order.values.tolist(), kept[order.indices].tolist(), strict=True):
        word = pieces[i].strip()
        if i not in special and word and word.casefold() not in words:
            answer.append((word, cosine))
            words.add(word.casefold())
        if len(answer) == top:
            break
    return answer


def _finite_rows(x: Float[Tensor, "n d"], what: str) -> Int[Tensor, "k"]:
    """The numbers of the rows whose entries are all finite; a Notice says how many others there are."""
    finite = x.isfinite().all(1)
    left_out = (~finite).nonzero().flatten().tolist()
    if len(left_out) == len(x):
        raise InputError(f"none of the {len(x)} {what} is finite: expected vectors without NaN and infinity")
    if left_out:
        some = ", ".join(map(str, left_out[:5])) + (" ..." if len(left_out) > 5 else "")
        warnings.warn(f"{len(left_out)} of {len(x)} {what} are not finite and are left out: {some}", Notice, 3)
    return finite.nonzero().flatten()


def _terms(expression: str) -> list[tuple[float, str]]:
    """The words of an expression, each with its sign."""
    sign, terms, expected = 1.0, list[tuple[float, str]](), True
    for part in expression.split():
        if part in SIGNS:
            sign, expected = sign * SIGNS[part] if expected else SIGNS[part], True
        elif expected:
            terms.append((sign, part))
            sign, expected = 1.0, False
        else:
            raise InputError(f"{expression!r}: expected + or - before {part!r}")
    if not terms or expected:
        raise InputError(f"{expression!r}: expected a word, or words with + and - between them")
    return terms


def _ids(tokens: Tokenizer, word: str) -> list[int]:
    """The ids of a word as it stands inside a text, with a space before it if that needs fewer tokens."""
    options = [[int(i) for i in tokens.encode(text)] for text in (f" {word}", word)]
    unknown = getattr(tokens, "unknown", None)
    ids = min((ids for ids in options if ids), key=len, default=[])
    if not ids or unknown in ids:
        raise InputKeyError(f"{word!r} is not in the vocabulary of this model")
    return ids


def _embedding(bundle: Bundle, side: str) -> tuple[Tokenizer, Float[Tensor, "v d"]]:
    """The tokenizer, and the embedding of its tokens."""
    model: Any = bundle.model
    if isinstance(bundle.tokens, Pair):
        parts = {"source": (bundle.tokens.source, "encoder"), "target": (bundle.tokens.target, "decoder")}
        if side not in parts:
            raise InputError(f"side={side!r}: expected {' or '.join(parts)}")
        tokens, name = parts[side]
        model = getattr(model, name)
    else:
        tokens = bundle.tokenizer()
    for part in model.modules():
        table = part.table if isinstance(part, Tokens) else part.weight if isinstance(part, nn.Embedding) else None
        if table is not None and len(table) >= len(tokens):
            return tokens, table
    raise InputError(f"this {bundle.name} has no embedding of its {len(tokens)} tokens: expected a model of text")

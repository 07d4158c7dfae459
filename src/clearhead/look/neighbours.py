"""Nearest neighbours by cosine: of any vectors, and of the words of a text model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError, InputKeyError
from ..layers import Tokens
from ..tokens import Pair, Tokenizer
from ..weights import Bundle

Neighbours = list[tuple[str, float]]  # names and cosines, the nearest first
SIGNS = {"+": 1.0, "-": -1.0}


def neighbours(
    x: npt.ArrayLike, query: npt.ArrayLike, *, names: Sequence[object] | None = None, top: int = 5
) -> list[Neighbours]:
    """Return the vectors that are nearest to each query by the cosine of their angle, the nearest first.

    Args:
        x: Vectors (n, d).
        query: A vector (d), or several (m, d).
        names: A name for each vector; None: their numbers.
        top: Neighbours to return.

    Returns:
        Pairs of name and cosine, a list per query.

    Examples:
        >>> x = [[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]]
        >>> [(name, round(cosine, 2)) for name, cosine in neighbours(x, [3.0, 0.5], names="abc", top=2)[0]]
        [('a', 0.99), ('b', 0.81)]
    """
    vectors, queries = (torch.as_tensor(np.asarray(one, dtype=float)) for one in (x, query))
    queries = queries[None] if queries.ndim == 1 else queries
    if vectors.ndim != 2 or queries.ndim != 2 or vectors.shape[1] != queries.shape[1] or not len(vectors):
        raise InputError(f"vectors {tuple(vectors.shape)} and queries {tuple(queries.shape)}: expected (n, d), (m, d)")
    if names is not None and len(names) != len(vectors):
        raise InputError(f"names has {len(names)} entries: expected {len(vectors)}, one per vector")
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    cosines = F.normalize(queries, dim=1) @ F.normalize(vectors, dim=1).T
    found, index = cosines.topk(min(top, len(vectors)), dim=1)
    return [
        [(str(i if names is None else names[i]), cosine) for cosine, i in zip(row, which, strict=True)]
        for row, which in zip(found.tolist(), index.tolist(), strict=True)
    ]


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
    table = F.normalize(table.detach().float().cpu(), dim=1)
    query, words, used = torch.zeros(table.shape[1]), set[str](), set[int]()
    for sign, word in _terms(expression):
        ids = _ids(tokens, word)
        query += sign * F.normalize(table[ids].mean(0), dim=0)
        words.add(word.casefold())
        used |= set(ids)
    pieces = tokens.pieces(np.arange(len(tokens)))
    special = {*tokens.special_names.values(), *used}
    answer: Neighbours = []
    order = (table[: len(tokens)] @ F.normalize(query, dim=0)).sort(descending=True)
    for cosine, i in zip(order.values.tolist(), order.indices.tolist(), strict=True):
        word = pieces[i].strip()
        if i not in special and word and word.casefold() not in words:
            answer.append((word, cosine))
            words.add(word.casefold())
        if len(answer) == top:
            break
    return answer


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

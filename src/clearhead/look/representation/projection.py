"""project: vectors of many dimensions as points of the plane, by PCA or t-SNE."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ... import draw
from ...errors import InputError, InputKeyError, MissingPackageError, Notice, nearest
from ...layers import Tokens
from ...tokens import Pair, Tokenizer
from ...weights import Bundle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Numbers that a caller gives in any form, as a tensor; and vectors of length 1.


def as_tensor(given: Any) -> Tensor:
    """Return numbers in any form as a tensor of float32 or float64 on the CPU, without a gradient.

    Arrays with negative strides, bfloat16, float16, whole numbers and lists of tensors are all read; what is not
    float32 becomes float64, which holds it without rounding.

    Args:
        given: A tensor, an array, or nested sequences of numbers or tensors.

    Raises:
        InputError: If these are not real numbers, or rows of different lengths, or if entries are masked.

    Examples:
        >>> as_tensor(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
        tensor([1., 1.], dtype=torch.float64)
    """
    x = given if isinstance(given, Tensor) else _of_array(given)
    if x.is_complex():
        raise InputError(f"complex numbers of shape {tuple(x.shape)}: expected real numbers")
    x = x.detach().cpu()
    if x.dtype == torch.float32:
        return x
    # float64 keeps whole numbers up to 2^53; other floats are read exactly.
    return x.double()


def _of_array(given: Any) -> Tensor:
    """The tensor of an array or of nested sequences."""
    rows = given if isinstance(given, Sequence) else ()
    # Masked entries would be read as ordinary numbers.
    if any(np.ma.is_masked(part) for part in (given, *rows)):
        raise InputError(
            "an array with masked entries: expected a number for each, such as x.filled(...) gives"
        )
    try:
        # A list of tensors: numpy would read them one number at a time, or fail on a GPU.
        if isinstance(given, Sequence) and any(isinstance(row, Tensor) for row in given):
            return torch.stack([as_tensor(row).double() for row in given])
        array = np.asarray(given)
        # Booleans, whole numbers, floats, and objects that may be numbers.
        if array.dtype.kind not in "biufO":
            raise InputError(f"an array of {array.dtype}: expected real numbers")
        # A copy, because torch reads neither negative strides nor the other byte order, and warns of read-only memory.
        kept = np.float32 if array.dtype == np.float32 else np.float64
        return torch.from_numpy(array.astype(kept, order="C"))
    except (TypeError, ValueError, RuntimeError) as cause:
        raise InputError(f"a {type(given).__name__} is not an array of numbers: {cause}") from cause


def unit(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """Return vectors divided by their length; a vector of zeros stays one.

    Each is divided by its largest entry first: the squares of entries below 1e-162 or above 1e154 have no float64.

    Args:
        x: Finite vectors.

    Examples:
        >>> unit(torch.tensor([[3e30, 4e30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    largest = x.abs().amax(-1, keepdim=True)
    # After this, squares are at most 1 and the norm neither overflows nor vanishes.
    x = x / largest.where(largest > 0, 1.0)
    length = x.norm(dim=-1, keepdim=True)
    return x / length.where(length > 0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection(draw.Result):
    """Vectors as points of a few dimensions.

    Examples:
        >>> values, species, _ = clearhead.data.read_iris()
        >>> result = project(values, labels=species)
        >>> result.points.shape, round(float(result.explained[0]), 3)
        ((150, 2), 0.925)
        >>> figure = result.figure(title="Iris")
    """

    in_json = "points method explained labels texts"

    points: Float[np.ndarray, "n k"]  # a point per vector
    method: str  # "pca" or "tsne"
    # pca: the share of the variance along each axis
    explained: Float[np.ndarray, "k"] | None = None
    # pca: the direction of each axis, of length 1
    components: Float[np.ndarray, "k d"] | None = None
    labels: list[str] | None = None  # the class of each point
    texts: list[str] | None = None  # a text beside each point

    def figure(self, *, title: str = "") -> Figure:
        """Draw the first two dimensions, coloured by class.

        Args:
            title: The title.
        """
        names = [f"{NAMES[self.method]} {i + 1}" for i in range(2)]
        if self.explained is not None:
            shares = zip(names, self.explained, strict=False)
            names = [f"{name} ({share:.0%} of the variance)" for name, share in shares]
        return draw.scatter(
            self.points[:, :2],
            labels=self.labels,
            texts=self.texts,
            title=title,
            xlabel=names[0],
            ylabel=names[1],
        )

    def table(self) -> draw.Table:
        """The share of the variance along each axis, of PCA; otherwise the range of the points along it."""
        axes = [f"{NAMES[self.method]} {i + 1}" for i in range(self.points.shape[1])]
        rows = []
        for i, name in enumerate(axes):
            share = "" if self.explained is None else f"{self.explained[i]:.1%}"
            along = self.points[:, i]
            rows.append((name, float(along.min()), float(along.max()), share))
        return draw.Table(
            columns=("axis", "least", "most", "share of the variance"),
            rows=rows,
            title=f"{len(self.points)} points",
        )


def project(
    x: npt.ArrayLike,
    method: str = "pca",
    *,
    dims: int = 2,
    labels: Sequence[object] | None = None,
    texts: Sequence[str] | None = None,
    perplexity: float = 30.0,
    seed: int = 0,
) -> Projection:
    """Return vectors as points of a few dimensions.

    Args:
        x: Vectors (n, d): `features` of a model, or any others.
        method: "pca", the directions of largest variance; or "tsne" (van der Maaten and Hinton 2008, by scikit-learn),
            which keeps neighbours together and whose distances mean little.
        dims: Dimensions of the points, 2 or more.
        labels: The class of each vector, for the colours of the figure.
        texts: A text beside each point of the figure, such as a word.
        perplexity: tsne: about the number of neighbours that count; at most a third of the vectors.
        seed: tsne: the seed.

    Raises:
        InputError: If these are not vectors, or an entry is not finite.

    Examples:
        >>> texts = ["A dog runs.", "A cat sleeps.", "The man walks.", "Two men talk.", "It rains."]
        >>> vectors = features(clearhead.load("everyday"), texts, "blocks.2")
        >>> project(vectors, texts=texts).points.shape
        (5, 2)
    """
    values = as_tensor(x).double().numpy()
    # Two dimensions need three points or more.
    if values.ndim != 2 or len(values) < 3 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise InputError(
            f"vectors of shape {values.shape}: expected finite numbers (n, d), three vectors or more"
        )
    if method not in METHODS:
        raise InputError(
            f"method={method!r}: expected one of {', '.join(METHODS)}{nearest(method, METHODS)}"
        )
    if not 2 <= dims <= min(values.shape):
        raise InputError(f"dims={dims}: expected 2 to {min(values.shape)}")
    for name, given in (("labels", labels), ("texts", texts)):
        if given is not None and len(given) != len(values):
            raise InputError(
                f"{name} has {len(given)} entries: expected {len(values)}, one per vector"
            )
    fields = METHODS[method](values, dims, perplexity, seed)
    return Projection(
        method=method,
        labels=None if labels is None else [str(label) for label in labels],
        texts=None if texts is None else list(texts),
        **fields,
    )


def principal(x: Float[np.ndarray, "n d"], dims: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points, the directions (dims, d) of largest variance, and the share of the variance along each.

    The largest entry of a direction is positive, so that the same vectors give the same picture.
    """
    centred = torch.from_numpy(x - x.mean(0))
    # x - mean = U S V': directions are the rows of V', points are the products with them.
    _, scale, directions = torch.linalg.svd(centred, full_matrices=False)
    # The sign of each direction's largest entry; argmax gives its place.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = (directions * largest.sign())[:dims]
    # The share of component i is s_i^2 / sum_j s_j^2; squares of what is tiny or huge are not floats, so that all are
    # taken relative to the largest.
    tiny = torch.finfo(scale.dtype).tiny
    relative = scale / scale[0].clamp(min=tiny)
    shares = relative.square() / relative.square().sum().clamp(min=tiny)
    return (centred @ directions.T).numpy(), directions.numpy(), shares[:dims].numpy()


def _pca(x: np.ndarray, dims: int, perplexity: float, seed: int) -> dict[str, Any]:
    points, components, explained = principal(x, dims)
    return {"points": points, "components": components, "explained": explained}


def _tsne(x: np.ndarray, dims: int, perplexity: float, seed: int) -> dict[str, Any]:
    try:
        from sklearn.manifold import TSNE
    except ImportError as cause:
        raise MissingPackageError(
            "t-SNE needs scikit-learn: pip install scikit-learn; 'pca' needs nothing"
        ) from cause
    if dims > 3 or not perplexity > 0 or seed < 0:
        raise InputError(
            f"dims={dims}, perplexity={perplexity}, seed={seed}: expected 2 or 3 dimensions, a perplexity above 0 and "
            "a seed of 0 or more"
        )
    if (x == x[0]).all():  # scikit-learn would crash
        raise InputError("all vectors are the same: expected vectors that differ")
    # t-SNE looks at 3 x perplexity neighbours, of which there are n - 1.
    most = max((len(x) - 1) / 3, 1.0)
    points = TSNE(
        dims, perplexity=min(perplexity, most), init="pca", random_state=seed
    ).fit_transform(x)
    return {"points": np.asarray(points, dtype=float)}


NAMES = {"pca": "PCA", "tsne": "t-SNE"}
METHODS: dict[str, Callable[..., dict[str, Any]]] = {"pca": _pca, "tsne": _tsne}


# Nearest neighbours by cosine: of any vectors, and of the words of a text model.


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
    # One query without a batch axis.
    if queries.ndim == 1:
        queries = queries[None]
    if (
        vectors.ndim != 2
        or queries.ndim != 2
        or vectors.shape[1] != queries.shape[1]
        or not len(vectors)
    ):
        raise InputError(
            f"vectors {tuple(vectors.shape)} and queries {tuple(queries.shape)}: expected (n, d), (m, d)"
        )
    if names is not None and len(names) != len(vectors):
        raise InputError(f"names has {len(names)} entries: expected {len(vectors)}, one per vector")
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    for i, direction in enumerate(queries):
        if not direction.isfinite().all() or not direction.any():
            raise InputError(
                f"query {i} is zero, or not finite: expected a vector with a direction"
            )
    kept = _finite_rows(vectors, "vectors")
    # The cosine is the dot product of unit vectors.
    cosines, nearest_rows = (unit(queries) @ unit(vectors[kept]).T).topk(min(top, len(kept)), dim=1)
    answers = []
    labels = range(len(vectors)) if names is None else names
    # Rows of `kept` are numbered among the finite vectors: map back to all.
    for row, rows in zip(cosines.tolist(), kept[nearest_rows].tolist(), strict=True):
        answers.append([(str(labels[i]), cosine) for i, cosine in zip(rows, row, strict=True)])
    return answers


def word_neighbours(
    bundle: Bundle, expression: str, *, side: str = "source", top: int = 10
) -> Neighbours:
    """Return the words whose embeddings are nearest to a word, or to a sum and difference of words.

    The vectors are the rows of the token embedding, scaled to length 1 before they are added (Mikolov et al. 2013). A
    word is one token that stands for a whole word: pieces of words are neither read nor returned. The words of the
    expression are left out of the answer.

    Args:
        bundle: Any model with tokens: a GPT, a BERT, a translator, or a model of transformers that `load` opened.
        expression: A word, or words with + and - between them: "king - man + woman".
        side: For a translator: the embedding of the "source" or of the "target".
        top: Words to return.

    Returns:
        Pairs of word and cosine, the nearest first.

    Raises:
        InputKeyError: If a word is no token of its own; the message names its pieces, and words of similar spelling.

    Examples:
        >>> words = word_neighbours(clearhead.load("everyday"), "man - boy + girl", top=3)
        >>> words[0][0]
        'woman'
    """
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    tokens, table = _embedding(bundle, side)
    # Embeddings beyond the vocabulary are padding of the table.
    table = table.detach()[: len(tokens)].float().cpu()
    kept = _finite_rows(table, "embeddings")
    table = unit(table)
    pieces = tokens.pieces(np.arange(len(tokens)))
    whole = _whole_words(pieces)
    query, words, used = torch.zeros(table.shape[1]), set[str](), set[int]()
    for sign, word in _terms(expression):
        i = _word_id(tokens, word, pieces, whole)
        query += sign * table[i]
        words.add(word.casefold())
        used.add(i)
    if not query.isfinite().all() or not query.any():
        raise InputError(
            f"{expression!r} is the vector 0, or not finite: expected words that do not cancel"
        )
    left_out = {*tokens.special_names.values(), *used}
    answer: Neighbours = []
    order = (table[kept] @ unit(query)).sort(descending=True)
    for cosine, i in zip(order.values.tolist(), kept[order.indices].tolist(), strict=True):
        word = pieces[i].strip()
        if i in left_out or not whole[i]:
            continue
        # No words of the query, and no word twice in another case.
        if word and word.casefold() not in words:
            answer.append((word, cosine))
            words.add(word.casefold())
        if len(answer) == top:
            break
    return answer


def _finite_rows(x: Float[Tensor, "n d"], what: str) -> Int[Tensor, "k"]:
    """The numbers of the rows whose entries are all finite; a Notice says how many others there are."""
    # NaN or infinity in a row would make its cosine NaN, which topk ranks first.
    finite = x.isfinite().all(1)
    left_out = (~finite).nonzero().flatten().tolist()
    if len(left_out) == len(x):
        raise InputError(
            f"none of the {len(x)} {what} is finite: expected vectors without NaN and infinity"
        )
    if left_out:
        some = ", ".join(map(str, left_out[:5])) + (" ..." if len(left_out) > 5 else "")
        warnings.warn(
            f"{len(left_out)} of {len(x)} {what} are not finite and are left out: {some}", Notice, 3
        )
    return finite.nonzero().flatten()


def _terms(expression: str) -> list[tuple[float, str]]:
    """The words of an expression, each with its sign."""
    sign, terms = 1.0, list[tuple[float, str]]()
    expected = True  # a word comes next, perhaps after more signs
    for part in expression.split():
        if part in SIGNS:
            # "- - x" has two signs before one word: they multiply.
            sign = sign * SIGNS[part] if expected else SIGNS[part]
            expected = True
        elif expected:
            terms.append((sign, part))
            sign, expected = 1.0, False
        else:
            raise InputError(f"{expression!r}: expected + or - before {part!r}")
    if not terms or expected:
        raise InputError(f"{expression!r}: expected a word, or words with + and - between them")
    return terms


def _whole_words(pieces: list[str]) -> list[bool]:
    """Whether each piece of a vocabulary is a whole word, and not a part of one."""
    # Byte-level BPE and SentencePiece mark the start of a word with a space, WordPiece what continues one with ##.
    if any(piece.startswith(" ") and piece[1:].isalpha() for piece in pieces):
        return [piece.startswith(" ") for piece in pieces]
    return [not piece.startswith("##") for piece in pieces]


def _word_id(tokens: Tokenizer, word: str, pieces: list[str], whole: list[bool]) -> int:
    """The id of the token that is this whole word; raises if it is split into pieces."""
    # As it stands inside a text, and alone for tokenizers that put a space before a text themselves.
    spellings = [tokens.encode(text).tolist() for text in (f" {word}", word)]
    unknown = getattr(tokens, "unknown", None)
    for ids in spellings:
        if len(ids) == 1 and ids[0] != unknown and whole[ids[0]]:
            return int(ids[0])
    # A spelling of one token is a piece that only looks like the word: the other one shows how it is split.
    split: list[int] = min((ids for ids in spellings if len(ids) > 1), key=len, default=[])
    known = [piece.strip() for piece, is_word in zip(pieces, whole, strict=True) if is_word]
    if not split or unknown in split:
        raise InputKeyError(
            f"{word!r} is not in the vocabulary of this model{nearest(word, known)}"
        )
    parts = " + ".join(repr(pieces[i]) for i in split)
    raise InputKeyError(
        f"{word!r} is not a token of this model, which splits it into {parts}: expected words that are one token each"
        f"{nearest(word, known)}"
    )


def _embedding(bundle: Bundle, side: str) -> tuple[Tokenizer, Float[Tensor, "v d"]]:
    """The tokenizer, and the embedding of its tokens."""
    model: Any = bundle.model
    # A translator has a vocabulary and an embedding per side.
    if isinstance(bundle.tokens, Pair):
        parts = {
            "source": (bundle.tokens.source, "encoder"),
            "target": (bundle.tokens.target, "decoder"),
        }
        if side not in parts:
            raise InputError(f"side={side!r}: expected {' or '.join(parts)}")
        tokens, name = parts[side]
        model = getattr(model, name)
    else:
        tokens = bundle.tokenizer()
    # The first table that is large enough; those of positions and token types are smaller.
    for part in model.modules():
        table: Tensor
        if isinstance(part, Tokens):
            table = part.table
        elif isinstance(part, nn.Embedding):
            table = part.weight
        else:
            continue
        if len(table) >= len(tokens):  # not one of positions or of types of tokens
            return tokens, table
    raise InputError(
        f"this {bundle.name} has no embedding of its {len(tokens)} tokens: expected a model of text"
    )

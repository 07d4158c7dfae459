"""attend(), the only softmax(QK)V of the library, and the Attention module around it.

Vaswani et al. 2017, section 3.2: every query is scored against every key, a softmax turns the scores into weights that
sum to 1, and the output is the weighted sum of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import one_of
from ..errors import InputError, InputTypeError
from .bias import Bias, as_bias
from .choices import DotScore, Norm, Projection, QKNorm
from .fused import FREE, fused
from .linear import Linear
from .mask import Mask
from .norm import make_norm
from .scores import SCORES, Score, repeat_heads

if TYPE_CHECKING:
    from .cache import Cache
    from .positions import Positions

# Which of queries, keys and values have a learned projection ("qkv": all three). "q=k": queries and keys share one;
# "k=v": keys and values share one; "q=k=v": all share one; "qk": values are not projected; "none": nothing is.
PROJECTIONS = ("qkv", "q=k", "k=v", "q=k=v", "qk", "none")
QK_NORMS = ("head", "width")  # what a norm of queries and keys is computed over


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of an Attention that can be left out, with their defaults filled in."""

    kv_heads: int  # number of key and value heads
    head: int  # head dimension of queries and keys
    value: int  # head dimension of values
    context: int  # width of the context


def attention_sizes(
    width: int,
    heads: int,
    kv_heads: int | None,
    head: int | None,
    value: int | None,
    context: int | None,
    project: Projection,
) -> Sizes:
    """Return the sizes of an Attention, whose arguments these are; raise if they do not fit together."""
    if kv_heads is None:
        kv_heads = heads
    if context is None:
        context = width
    if min(heads, width, kv_heads, context) < 1:
        raise InputError(
            f"width={width}, heads={heads}, kv_heads={kv_heads}, context={context}: expected 1 or more of each"
        )
    one_of("project", project, PROJECTIONS)
    if heads % kv_heads:
        # key heads are shared by groups of query heads of one size (Ainslie et al. 2023)
        raise InputError(
            f"heads={heads}, kv_heads={kv_heads}: expected heads to be a multiple of kv_heads"
        )
    if head is None and width % heads:
        raise InputError(
            f"width={width} does not divide into heads={heads}: give head, the width of one"
        )
    if head is None:
        head = width // heads
    if value is None:
        value = head
    if min(head, value) < 1:
        raise InputError(f"head={head}, value={value}: expected widths of 1 or more")
    # values that are not projected are the context itself, split over the heads
    if project in ("qk", "none"):
        if context % kv_heads:
            raise InputError(
                f"unprojected values of width {context} do not divide into {kv_heads} heads"
            )
        value = context // kv_heads
    if "k=v" in project and value != head:
        # keys are their own values, so that their widths are one
        raise InputError(
            f"project={project!r} with head={head} and value={value}: expected equal widths"
        )
    # queries and keys are one map of one input
    if "q=k" in project and (context != width or kv_heads != heads):
        raise InputError(
            f"project={project!r}: expected context = width and kv_heads = heads, got "
            f"context={context}, width={width}, kv_heads={kv_heads}, heads={heads}"
        )
    if project == "none" and (heads * head != width or kv_heads * head != context):
        raise InputError(
            f"project='none' splits the input over the heads: expected width = heads x head = "
            f"{heads * head} and context = kv_heads x head = {kv_heads * head}, got {width}, {context}"
        )
    return Sizes(kv_heads=kv_heads, head=head, value=value, context=context)


class Tap:
    """Hooks inside one call of `attend`, to observe or change it; the methods of this base class do neither.

    If `explicit` is True, or the score is a module such as Additive, scores and weights are computed explicitly.
    Otherwise a fused kernel computes the output, and `seen` receives what is needed to compute them later.

    Examples:
        >>> class Entropy(Tap):
        ...     explicit = True
        ...     def weights(self, weights, mask):
        ...         self.entropy = torch.special.entr(weights).sum(-1)
        ...         return weights
        >>> tap, x = Entropy(), torch.zeros(1, 1, 2, 4)
        >>> _ = attend(x, x, x, tap=tap)
        >>> tap.entropy.tolist()  # log 2: two keys with equal weights
        [[[0.693..., 0.693...]]]
    """

    explicit = False

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values to use."""
        return q, k, v

    def scores(self, scores: Tensor) -> Tensor:
        """Return the scores to use, with the bias and before the mask; called if they are computed explicitly."""
        return scores

    def weights(self, weights: Tensor, mask: Mask) -> Tensor:
        """Return the weights to use, before dropout; called if they are computed explicitly."""
        return weights

    def heads(self, out: Tensor) -> Tensor:
        """Return the output of the heads to use."""
        return out

    def seen(
        self, q: Tensor, k: Tensor, mask: Mask, bias: Bias | None, scale: float, lse: Tensor | None
    ) -> None:
        """Receive the inputs of the fused kernel, and the log-sum-exp of each query's scores if it returns that."""
        return None


def attend(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k f"],
    v: Float[Tensor, "b g k w"],
    *,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    score: DotScore | Score = "scaled",
    sharpness: float | Tensor = 1.0,
    dropout: float = 0.0,
    choose: Callable[[Tensor], Tensor] | None = None,
    tap: Tap | None = None,
) -> Float[Tensor, "b h q w"]:
    """Attention: softmax(sharpness * score(q, k) + bias, where the mask allows) v; Eq. 1 of Vaswani et al. 2017.

    A query that may attend to no key gets zeros and zero gradient. A NaN is never hidden: a NaN in a query makes that
    query's output NaN, a NaN in a key or value that of every query that may attend to it (and, as kernels differ,
    perhaps that of other queries of the same row and head), and of no others.

    Args:
        q: queries.
        k: keys; each of the g key heads serves h / g query heads.
        v: values.
        mask: which keys each query may attend to; all if not given.
        bias: added to the scores; a tensor must broadcast to (b, h, q, k).
        score: "dot", "scaled", "cosine", or a module such as Additive or Bilinear.
        sharpness: factor of the scores, per head if it is a tensor (h, 1, 1); as it grows, attention becomes a lookup
            of the best key.
        dropout: share of the weights dropped.
        choose: maps the weights (b, h, q, k) to those that are used, as hard attention does; computed explicitly.
        tap: observes or changes the call (see Tap).

    Examples:
        >>> q, k, v = torch.randn(2, 6, 7, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 5)
        >>> attend(q, k, v, mask=Mask(causal=True)).shape
        torch.Size([2, 6, 7, 5])
        >>> torch.allclose(attend(q, k, v, sharpness=0.0)[0, 0, 0], v[0, 0].mean(0), atol=1e-6)  # equal weights
        True
    """
    if mask is None:
        mask = FREE
    bias = as_bias(bias)
    _check(q, k, v, mask, bias)
    if tap is not None:
        q, k, v = tap.inputs(q, k, v)

    # a score that is not a product, such as Additive, gives the whole matrix (b, h, q, k)
    scored = _score(score)(q, k)
    if isinstance(scored, Tensor):
        if tap is None:
            tap = Tap()
        out = _explicit(scored * sharpness, v, mask, bias, dropout, choose, tap)
        return tap.heads(out)

    # any other is scale * q . k, which a fused kernel computes without holding the matrix
    q, k, scale = scored
    if q.shape[-1] != k.shape[-1]:
        raise InputError(
            f"queries of width {q.shape[-1]} and keys of width {k.shape[-1]} have no dot product: expected equal "
            "widths, or a score such as Bilinear"
        )
    # kernels multiply the -inf of a mask by their scale: it must be a number above 0
    if isinstance(sharpness, Tensor) or sharpness <= 0.0:
        # one number per head, or 0 and below: a factor of the queries instead
        q = q * sharpness
    else:
        scale = scale * sharpness
    if choose is not None or (tap is not None and tap.explicit):
        if tap is None:
            tap = Tap()
        # the scores are written out in memory, because the caller reads or changes them
        k = repeat_heads(k, q.shape[1])  # (b, g, k, e) -> (b, h, k, e)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32  # as kernels accumulate
        scores = (q.to(wide) * scale) @ k.to(wide).mT
        return tap.heads(_explicit(scores, v, mask, bias, dropout, choose, tap))
    out, lse = fused(
        q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout, lse=tap is not None
    )
    if tap is not None:
        tap.seen(q, k, mask, bias, scale, lse)
        out = tap.heads(out)
    return out


def _explicit(
    scores: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Bias | None,
    dropout: float,
    choose: Callable[[Tensor], Tensor] | None,
    tap: Tap,
) -> Tensor:
    """Eq. 1 written out: the weights of the scores, and the weighted sum of the values."""
    n, m = scores.shape[-2:]  # queries, keys
    if bias is not None:
        # Eq. 1 with a bias: added before the mask, so that no bias allows a forbidden key
        scores = scores + bias.tile((0, n), (0, m))
    scores = tap.scores(scores)
    if scores.dtype != torch.float64:
        # as the fused kernels, which accumulate in float32 too
        scores = scores.float()

    # The softmax of a row of -inf is NaN: forbidden keys get a finite score, and then weight 0. So a query without
    # any key gets zeros.
    forbidden = scores.isneginf()
    if not mask.free:
        forbidden = forbidden | ~mask.dense(n, m, device=scores.device)
    scores = scores.masked_fill(forbidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).masked_fill(forbidden, 0.0)

    # a tap sees the weights before dropout, as the paper defines them
    weights = tap.weights(weights, mask)
    if choose is not None:
        weights = choose(weights)
    weights = F.dropout(weights, dropout).to(v.dtype)
    return weights @ repeat_heads(v, weights.shape[1])


def _score(score: DotScore | Score) -> Score:
    if callable(score):
        # a module or a function that the caller brings
        return score
    if score not in SCORES:
        raise InputError(
            f"score={score!r}: expected one of {', '.join(SCORES)}, or a module such as Additive"
        )
    return SCORES[score]


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias | None) -> None:
    """Raise unless the shapes and dtypes fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            # an axis that is missing would broadcast, and give a result of another meaning
            raise InputError(
                f"{name} has shape {tuple(x.shape)}: expected (batch, heads, tokens, width)"
            )
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise InputError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: "
            "expected one batch size, and a value for every key of every head"
        )
    if not q.dtype == k.dtype == v.dtype and not torch.is_autocast_enabled(q.device.type):
        raise InputTypeError(f"q {q.dtype}, k {k.dtype}, v {v.dtype}: expected one dtype")
    if q.shape[1] % k.shape[1]:
        raise InputError(
            f"{q.shape[1]} query heads over {k.shape[1]} key heads: expected a multiple"
        )
    size = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    mask.fit(*size)
    if bias is not None:
        bias.fit(*size)


class Attention(nn.Module):
    """Multi-head attention, section 3.2.2 of Vaswani et al. 2017; grouped heads as in Ainslie et al. 2023.

    x (b, t, width) -> queries; context (or x itself) -> keys and values -> attend -> (b, t, width). Without its last
    projection (out=False) the output has width heads x value.

    Args:
        width: width of x, and of the output.
        heads: number of query heads.
        kv_heads: number of key and value heads, each shared by heads / kv_heads query heads; heads if not given.
        head: head dimension of queries and keys; width / heads if not given.
        value: head dimension of the values; that of the keys if not given.
        context: width of the context that keys and values are made of; width if not given.
        project: which of queries, keys and values are projected: "qkv" all, "q=k", "k=v" and "q=k=v" with shared
            projections, "qk" not the values, "none" nothing.
        out: mix the heads by a last projection.
        bias: projections have a bias; "qkv": all but the last.
        score: "dot", "scaled", "cosine", or a module such as Additive or Bilinear.
        dropout: share of the weights dropped in training.
        qk_norm: normalise queries and keys after their projections: each "head" (Qwen3), or all heads together over
            the whole "width" (OLMo 2); not at all if not given.
        norm: kind of that normalisation: "layer", "rms" or "rms_plus_one".
        eps: added to the variance in that normalisation.

    Examples:
        >>> attention = Attention(12, heads=3)
        >>> attention(torch.zeros(2, 7, 12), mask=Mask(causal=True)).shape
        torch.Size([2, 7, 12])
        >>> cross = Attention(12, heads=3, context=8)
        >>> memory = cross.remember(torch.zeros(2, 5, 8))  # keys and values, computed once
        >>> cross(torch.zeros(2, 1, 12), memory).shape
        torch.Size([2, 1, 12])
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        kv_heads: int | None = None,
        head: int | None = None,
        value: int | None = None,
        context: int | None = None,
        project: Projection = "qkv",
        out: bool = True,
        bias: bool | Literal["qkv"] = True,
        score: DotScore | Score = "scaled",
        dropout: float = 0.0,
        qk_norm: QKNorm | None = None,
        norm: Norm = "rms",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        size = attention_sizes(width, heads, kv_heads, head, value, context, project)
        _check_choices(bias, score, dropout)
        self.heads, self.kv_heads, self.project = heads, size.kv_heads, project
        self.head_width, self.value_width = size.head, size.value
        self.score, self.dropout = score, dropout

        # W_Q, W_K, W_V and W_O of section 3.2.2, all heads side by side; a shared one is the first of those that share
        queries, keys = heads * size.head, size.kv_heads * size.head
        self.query: Linear | None = None
        self.key: Linear | None = None
        self.value: Linear | None = None
        self.out: Linear | None = None
        if project != "none":
            self.query = Linear(width, queries, bias=bool(bias))
        if project in ("qkv", "k=v", "qk"):
            self.key = Linear(size.context, keys, bias=bool(bias))
        if project in ("qkv", "q=k"):
            self.value = Linear(size.context, size.kv_heads * size.value, bias=bool(bias))
        if out:
            self.out = Linear(heads * size.value, width, bias=bias is True)

        self.qk_norm = qk_norm
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        if qk_norm is not None:
            one_of("qk_norm", qk_norm, QK_NORMS)
            if qk_norm == "head":
                # one norm of the head dimension, shared by all heads (Qwen3)
                queries = keys = size.head
            self.query_norm = make_norm(norm, queries, eps=eps)
            self.key_norm = make_norm(norm, keys, eps=eps)
        # Cosines lie in [-1, 1], too flat for a softmax: each head learns its sharpness (Liu et al. 2022, Eq. 2).
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), 10.0)) if score == "cosine" else 1.0
        self.tap: Tap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tap": None}  # a copy is not watched

    def remember(
        self, context: Float[Tensor, "b k c"]
    ) -> tuple[Float[Tensor, "b g k e"], Float[Tensor, "b g k w"]]:
        """Return the keys and values of a context, to be computed once and attended to many times."""
        key_map = self.query if "q=k" in self.project else self.key
        k = context
        if key_map is not None:
            k = key_map(context)
        v = context
        if "k=v" in self.project:
            # "k=v" and "q=k=v": one map for both
            v = k
        elif self.value is not None:
            v = self.value(context)
        # (b, k, g e) -> (b, g, k, e); values are not normalised
        return self._normed(k, self.kv_heads, self.key_norm), _split(v, self.kv_heads)

    def forward(
        self,
        x: Float[Tensor, "b q d"],
        context: Float[Tensor, "b k c"] | tuple[Tensor, Tensor] | None = None,
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
        at: Tensor | None = None,
        cache: Cache | None = None,
        choose: Callable[[Tensor], Tensor] | None = None,
    ) -> Float[Tensor, "b q o"]:
        """Attend to a context, or to x itself.

        Args:
            x: the tokens that queries are made of.
            context: what keys and values are made of, or the result of `remember`; x if not given.
            mask: which keys each query may attend to; all if not given.
            positions: rotates queries and keys, or biases the scores.
            at: positions of the tokens of x, (t,) or (b, t), on a grid (t, 2) or (b, t, 2); from 0, or from where the
                cache ends, if not given.
            cache: KV cache; the new keys and values are appended, and all it holds are attended to.
            choose: maps the weights (b, h, q, k) to those that are used (see attend).
        """
        # queries (b, h, q, e), keys (b, g, k, e) and values (b, g, k, w)
        q = x
        if self.query is not None:
            q = self.query(x)
        q = self._normed(q, self.heads, self.query_norm)
        if isinstance(context, tuple):
            # made by `remember`, once for all decoding steps
            k, v = context
        elif context is None:
            k, v = self.remember(x)
        else:
            k, v = self.remember(context)

        # keys are rotated before they are stored, so that each is rotated once
        if positions is not None:
            if at is None and cache is not None:
                # (b, t): rows of a batch may be at different positions
                at = cache.positions(x.shape[1])
            elif at is None:
                at = torch.arange(x.shape[1], device=x.device)
            q, k = positions.turn(q, k, at)
        if cache is not None:
            k, v = cache.append(k, v)

        # a bias is by distance to all keys, those of the cache included
        bias = None
        if positions is not None and positions.biases and at is not None:
            keys_at = at
            if cache is not None:
                # the cache holds the keys from position 0 on
                keys_at = torch.arange(k.shape[2], device=x.device)
            bias = positions.bias(at, keys_at)
        out = attend(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            score=self.score,
            sharpness=self.sharpness,
            dropout=self.dropout if self.training else 0.0,
            choose=choose,
            tap=self.tap,
        )
        out = out.transpose(1, 2).flatten(2)  # (b, h, q, w) -> (b, q, h w)
        if self.out is not None:
            out = self.out(out)
        return out

    def _normed(
        self, x: Float[Tensor, "b t d"], heads: int, norm: nn.Module | None
    ) -> Float[Tensor, "b h t e"]:
        """Queries or keys split into heads, normalised before or after that."""
        if norm is None:
            return _split(x, heads)
        if self.qk_norm == "width":
            # before the split: the norm is over all heads together (OLMo 2)
            return _split(norm(x), heads)
        return norm(_split(x, heads))


def _split(x: Float[Tensor, "b t d"], heads: int) -> Float[Tensor, "b h t e"]:
    """The width cut into heads: (b, t, h e) -> (b, h, t, e), without a copy."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def _check_choices(bias: bool | str, score: DotScore | Score, dropout: float) -> None:
    """Raise for an unknown choice when the module is built, not in the first forward pass."""
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout={dropout}: expected a share of weights, from 0 to below 1")
    if bias not in (True, False, "qkv"):
        raise InputError(f"bias={bias!r}: expected True, False or 'qkv'")
    _score(score)

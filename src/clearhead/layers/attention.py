"""attend(), the only softmax(QK)V in the house, and the Attention module around it.

Vaswani et al. 2017, section 3.2: every query scores every key, a softmax turns the scores into weights
that sum to 1, and the answer is the weighted sum of the values: a dictionary that answers softly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError, InputTypeError
from .bias import Bias, as_bias
from .fused import FREE, fused
from .linear import Linear
from .mask import Mask

if TYPE_CHECKING:
    from .cache import Cache
    from .positions import Positions

# A score either turns (q, k) into a pair whose scaled dot product it is, which a fused kernel can
# take, or into the scores themselves.
Score = Callable[[Tensor, Tensor], "tuple[Tensor, Tensor, float] | Tensor"]


def dot(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
    """q . k"""
    return q, k, 1.0


def scaled(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
    """q . k / sqrt(e): keeps the variance of a score at 1 whatever the width (Vaswani et al. 2017, 3.2.1)."""
    return q, k, q.shape[-1] ** -0.5


def cosine(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
    """cos(q, k): directions only, so a long vector shouts no louder than a short one."""
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1), 1.0


SCORES: dict[str, Score] = {"dot": dot, "scaled": scaled, "cosine": cosine}


class Additive(nn.Module):
    """v . tanh(q + k), of Bahdanau et al. 2015, A.1.2, where q = W s and k = U h are already projected.

    The tanh is what lets the query matter: without it v.q would be one number for all keys of a query,
    and a softmax does not see what is common to all.
    """

    def __init__(self, head: int, heads: int = 1) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(heads, head).uniform_(-(head**-0.5), head**-0.5))

    def forward(self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b g k e"]) -> Float[Tensor, "b h q k"]:
        k = _serving(k, q.shape[1])
        hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # (b, h, q, k, e)
        return torch.einsum("bhqke,he->bhqk", hidden, self.v)


class Bilinear(nn.Module):
    """q W k, the "general" score of Luong et al. 2015, 3.1: a dot product after turning the query by W."""

    def __init__(self, head: int, heads: int = 1, *, key: int | None = None) -> None:
        super().__init__()
        key = head if key is None else key
        self.weight = nn.Parameter(torch.empty(heads, head, key).uniform_(-(head**-0.5), head**-0.5))

    def forward(
        self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b g k f"]
    ) -> tuple[Float[Tensor, "b h q f"], Float[Tensor, "b g k f"], float]:
        return q @ self.weight, k, 1.0


class Tap:
    """What may listen, or change things, inside one call of `attend`; this one does neither.

    `explicit` asks for scores and weights to be really computed; otherwise the fused kernel answers and
    `seen` gets what is needed to compute any of them later.
    """

    explicit = False

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v

    def scores(self, scores: Tensor) -> Tensor:
        return scores

    def weights(self, weights: Tensor, mask: Mask) -> Tensor:
        return weights

    def heads(self, out: Tensor) -> Tensor:
        return out

    def seen(self, q: Tensor, k: Tensor, mask: Mask, bias: Bias | None, scale: float, lse: Tensor | None) -> None:
        return None


def attend(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b g k f"],
    v: Float[Tensor, "b g k w"],
    *,
    mask: Mask | None = None,
    bias: Bias | Tensor | None = None,
    score: str | Score = "scaled",
    sharpness: float | Tensor = 1.0,
    dropout: float = 0.0,
    tap: Tap | None = None,
) -> Float[Tensor, "b h q w"]:
    """softmax(sharpness * score(q, k) + bias, where the mask allows) v: Eq. 1 of Vaswani et al. 2017.

    `g` key heads may serve `h` query heads (h a multiple of g). A query that may look at nothing gets
    zeros and zero gradient. As `sharpness` grows the weights become a lookup of the best key. A NaN is
    never hidden: from a query it spreads to that query's answer, from a key or value to every query that
    may look at it (and, as kernels differ, perhaps to others of its row and head), and to nobody else.
    """
    mask, bias = FREE if mask is None else mask, as_bias(bias)
    _check(q, k, v, mask, bias)
    if tap is not None:
        q, k, v = tap.inputs(q, k, v)
    scored = _score(score)(q, k)
    if isinstance(scored, Tensor):
        out = _explicit(scored * sharpness, v, mask, bias, dropout, tap or Tap())
        return out if tap is None else tap.heads(out)
    q, k, scale = scored
    if q.shape[-1] != k.shape[-1]:
        raise InputError(
            f"queries of width {q.shape[-1]} and keys of width {k.shape[-1]} have no dot product: expected equal "
            "widths, or a score such as Bilinear"
        )
    if isinstance(sharpness, Tensor) or sharpness <= 0.0:  # kernels multiply the -inf of a mask by their scale
        q = q * sharpness
    else:
        scale = scale * sharpness
    if tap is not None and tap.explicit:
        k = _serving(k, q.shape[1])
        kind = torch.float64 if q.dtype == torch.float64 else torch.float32  # as the kernels count
        return tap.heads(_explicit((q.to(kind) * scale) @ k.to(kind).mT, v, mask, bias, dropout, tap))
    out, lse = fused(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout, lse=tap is not None)
    if tap is not None:
        tap.seen(q, k, mask, bias, scale, lse)
        out = tap.heads(out)
    return out


def _serving(x: Float[Tensor, "b g n e"], heads: int) -> Float[Tensor, "b h n e"]:
    """Keys or values, one for each head that they serve; not a copy where each serves one."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _explicit(scores: Tensor, v: Tensor, mask: Mask, bias: Bias | None, dropout: float, tap: Tap) -> Tensor:
    """Eq. 1 written out, with every number in sight."""
    n, m = scores.shape[-2:]
    if bias is not None:
        scores = scores + bias.tile((0, n), (0, m))
    scores = tap.scores(scores)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    forbidden = scores.isneginf() if mask.free else scores.isneginf() | ~mask.dense(n, m, device=scores.device)
    weights = scores.masked_fill(forbidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(forbidden, 0.0)
    weights = F.dropout(tap.weights(weights, mask), dropout).to(v.dtype)
    return weights @ _serving(v, weights.shape[1])


def _score(score: str | Score) -> Score:
    if callable(score):
        return score
    if score not in SCORES:
        raise InputError(f"score={score!r}: expected one of {', '.join(SCORES)}, or a module such as Additive")
    return SCORES[score]


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise InputError(f"{name} has shape {tuple(x.shape)}: expected (batch, heads, tokens, width)")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise InputError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: "
            "expected one batch size, and a value for every key of every head"
        )
    if not q.dtype == k.dtype == v.dtype and not torch.is_autocast_enabled(q.device.type):
        raise InputTypeError(f"q {q.dtype}, k {k.dtype}, v {v.dtype}: expected one type")
    if q.shape[1] % k.shape[1]:
        raise InputError(f"{q.shape[1]} query heads over {k.shape[1]} key heads: expected a multiple")
    size = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    mask.fit(*size)
    if bias is not None:
        bias.fit(*size)


# Which of the three representations are learned: "why three?" is answered by trying the others.
PROJECTIONS = ("qkv", "q=k", "k=v", "q=k=v", "qk", "none")


class Attention(nn.Module):
    """Multi-head attention, section 3.2.2 of Vaswani et al. 2017; grouped heads as in Ainslie et al. 2023.

    x (b, t, width) -> queries; context (or x itself) -> keys and values -> attend -> (b, t, width).
    `tap` is None, and costs nothing, unless somebody watches.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        kv_heads: int | None = None,  # key and value heads, each serving heads / kv_heads query heads
        head: int | None = None,  # width of a query and key head; width / heads if not given
        value: int | None = None,  # width of a value head; head if not given
        context: int | None = None,  # width of the context that is looked at; width if not given
        project: str = "qkv",
        out: bool = True,  # mix the heads by a last projection
        bias: bool | str = True,  # projections carry a bias; "qkv": all but the last
        score: str | Score = "scaled",
        dropout: float = 0.0,  # of weights, in training
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        context = width if context is None else context
        if min(heads, width, kv_heads, context) < 1:
            raise InputError(
                f"width={width}, heads={heads}, kv_heads={kv_heads}, context={context}: expected 1 or more of each"
            )
        if not 0.0 <= dropout < 1.0:
            raise InputError(f"dropout={dropout}: expected a share of weights, from 0 to below 1")
        if bias not in (True, False, "qkv"):
            raise InputError(f"bias={bias!r}: expected true, false or 'qkv'")
        if project not in PROJECTIONS:
            raise InputError(f"project={project!r}: expected one of {', '.join(PROJECTIONS)}")
        if heads % kv_heads:
            raise InputError(f"heads={heads}, kv_heads={kv_heads}: expected heads to be a multiple of kv_heads")
        if head is None:
            if width % heads:
                raise InputError(f"width={width} does not divide into heads={heads}: give head, the width of one")
            head = width // heads
        value = head if value is None else value
        if min(head, value) < 1:
            raise InputError(f"head={head}, value={value}: expected widths of 1 or more")
        raw = project in ("qk", "none")  # values are the context itself, split over the heads
        if raw and context % kv_heads:
            raise InputError(f"unprojected values of width {context} do not divide into {kv_heads} heads")
        value = context // kv_heads if raw else value
        if "k=v" in project and value != head:
            raise InputError(f"project={project!r} with head={head} and value={value}: expected equal widths")
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
        _score(score)  # an unknown word fails now, not in the first forward
        self.heads, self.kv_heads, self.project = heads, kv_heads, project
        self.score, self.dropout = score, dropout
        none, some = project == "none", bool(bias)
        self.query = None if none else Linear(width, heads * head, bias=some)
        self.key = None if none or "q=k" in project else Linear(context, kv_heads * head, bias=some)
        self.value = None if raw or "k=v" in project else Linear(context, kv_heads * value, bias=some)
        self.out = Linear(heads * value, width, bias=bias is True) if out else None
        # Cosines lie in [-1, 1], too flat for a softmax: each head learns its sharpness (Liu et al. 2022, Eq. 2).
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), 10.0)) if score == "cosine" else 1.0
        self.head_width, self.value_width = head, value
        self.tap: Tap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tap": None}  # a copy is not watched

    def remember(self, context: Float[Tensor, "b k c"]) -> tuple[Float[Tensor, "b g k e"], Float[Tensor, "b g k w"]]:
        """Keys and values of a context, to be computed once and looked at many times."""
        share = self.query if "q=k" in self.project else self.key
        k = context if share is None else share(context)
        v = k if "k=v" in self.project else (context if self.value is None else self.value(context))
        return _split(k, self.kv_heads), _split(v, self.kv_heads)

    def forward(
        self,
        x: Float[Tensor, "b q d"],
        context: Float[Tensor, "b k c"] | tuple[Tensor, Tensor] | None = None,
        *,
        mask: Mask | None = None,
        positions: Positions | None = None,
        at: Int[Tensor, "*b q"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b q o"]:
        """Look at `context` (a tensor, or what `remember` made of it), or at x itself.

        `at` is where the tokens of x stand, for `positions` to turn or bias by; if not given, they stand from 0 on,
        or from where the `cache` ends. With a cache the keys are all it holds, and these.
        """
        q = _split(x if self.query is None else self.query(x), self.heads)
        k, v = context if isinstance(context, tuple) else self.remember(x if context is None else context)
        if positions is not None:
            if at is None:
                at = torch.arange(x.shape[1], device=x.device) if cache is None else cache.positions(x.shape[1])
            q, k = positions.turn(q, k, at)
        if cache is not None:
            k, v = cache.append(k, v)
        bias = None
        if positions is not None and positions.biases and at is not None:
            bias = positions.bias(at, at if cache is None else torch.arange(k.shape[2], device=x.device))
        out = attend(
            q, k, v, mask=mask, bias=bias, score=self.score, sharpness=self.sharpness,
            dropout=self.dropout if self.training else 0.0, tap=self.tap,
        )  # fmt: skip
        out = out.transpose(1, 2).flatten(2)  # (b, h, q, w) -> (b, q, h w)
        return out if self.out is None else self.out(out)


def _split(x: Float[Tensor, "b t d"], heads: int) -> Float[Tensor, "b h t e"]:
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)

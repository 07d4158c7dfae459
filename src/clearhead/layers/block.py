"""The Transformer block: self-attention, optional cross-attention and an MLP, each with a residual connection.

pre      x = x + f(norm(x))          the residual stream is only added to; trains deep models without warm-up
post     x = norm(x + f(x))          the original order
output   x = x + norm(f(x))          OLMo 2 (OLMo team 2024, section 3.1)
both     x = x + norm(f(norm(x)))    Gemma 2 (Gemma Team 2024, section 2), with two norms per sublayer
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import one_of
from ..errors import InputError
from .attention import Attention
from .cache import Cache
from .choices import DotScore, MLPKind, Norm, Order, Projection, QKNorm
from .mask import Mask
from .mlp import MLP
from .norm import make_norm
from .positions import Positions
from .scores import Score

ORDERS = ("pre", "post", "output", "both")


class Block(nn.Module):
    """The Transformer block of sections 3.1 to 3.3 of Vaswani et al. 2017; Xiong et al. 2020 compare pre and post.

    Args:
        width: width of the residual stream (d_model).
        heads: number of attention heads.
        kv_heads: number of key and value heads, each shared by heads / kv_heads query heads; heads if not given.
        head: head dimension; width / heads if not given.
        hidden: width inside the MLP; 4 x width if not given.
        order: "pre" (norm before each sublayer), "post" (norm after each residual addition), "output" (norm of each
            sublayer's output) or "both" (norms before each sublayer and of its output).
        norm: "layer", "rms", "rms_plus_one" or "none".
        eps: added to the variance in a norm.
        mlp: activation of the MLP: relu, leaky_relu, gelu, gelu_tanh, silu, tanh, swiglu or geglu.
        cross: add cross-attention to a context, between self-attention and MLP (a decoder block).
        context: width of the context of cross-attention; width if not given.
        project: which of queries, keys and values are projected (see Attention).
        score: score of self-attention (see attend).
        cross_score: score of cross-attention.
        qk_norm: normalise queries and keys of self-attention: each "head", or all together over the "width".
        bias: linear maps have a bias; "qkv": only those of queries, keys and values.
        dropout: share of each sublayer's output dropped in training.
        inner_dropout: share of attention weights and of the MLP's hidden layer dropped; that of dropout if not given.
        layer_scale: initial value of a learned factor per column of each sublayer's output (Touvron et al. 2021, CaiT,
            Eq. 4); no factor if not given.
        skip: share of the rows for which a sublayer is skipped in training: stochastic depth (Huang et al. 2016).

    Examples:
        >>> block = Block(12, heads=3, norm="rms", mlp="swiglu")
        >>> block(torch.zeros(2, 7, 12), mask=Mask(causal=True)).shape
        torch.Size([2, 7, 12])
        >>> decoder = Block(12, heads=3, cross=True, context=8)
        >>> decoder(torch.zeros(2, 7, 12), torch.zeros(2, 5, 8), context_mask=Mask(lengths=[5, 3])).shape
        torch.Size([2, 7, 12])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head: int | None = None,
        hidden: int | None = None,
        order: Order = "pre",
        norm: Norm = "layer",
        eps: float = 1e-5,
        mlp: MLPKind = "gelu",
        cross: bool = False,
        context: int | None = None,
        project: Projection = "qkv",
        score: DotScore | Score = "scaled",
        cross_score: DotScore | Score = "scaled",
        qk_norm: QKNorm | None = None,
        bias: bool | Literal["qkv"] = True,
        dropout: float = 0.0,
        inner_dropout: float | None = None,
        layer_scale: float | None = None,
        skip: float = 0.0,
    ) -> None:
        super().__init__()
        one_of("order", order, ORDERS)
        self.order, self.dropout, self.skip = order, dropout, skip
        inner = dropout if inner_dropout is None else inner_dropout
        common = {"kv_heads": kv_heads, "head": head, "bias": bias, "dropout": inner}

        # the sublayers, each with its norm
        self.attn = Attention(
            width,
            heads,
            project=project,
            score=score,
            qk_norm=qk_norm,
            norm=norm,
            eps=eps,
            **common,  # type: ignore[arg-type]
        )
        self.attn_norm = make_norm(norm, width, eps=eps)
        self.cross: Attention | None = None
        self.cross_norm: nn.Module | None = None
        if cross:
            self.cross = Attention(width, heads, context=context, score=cross_score, **common)  # type: ignore[arg-type]
            self.cross_norm = make_norm(norm, width, eps=eps)
        self.mlp = MLP(width, hidden, kind=mlp, bias=bias is True, dropout=inner)
        self.mlp_norm = make_norm(norm, width, eps=eps)

        # order="both": a second norm for the output of each sublayer
        def out_norm() -> nn.Module | None:
            if order != "both":
                return None
            return make_norm(norm, width, eps=eps)

        self.attn_out_norm = out_norm()
        self.cross_out_norm = out_norm() if cross else None
        self.mlp_out_norm = out_norm()

        def scale() -> nn.Parameter | None:
            if layer_scale is None:
                # a block without layer scale has no such weights in its checkpoint
                return None
            return nn.Parameter(torch.full((width,), layer_scale))

        self.attn_scale = scale()
        self.cross_scale = scale() if cross else None
        self.mlp_scale = scale()

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        context: Float[Tensor, "b k c"] | tuple[Tensor, Tensor] | None = None,
        *,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        positions: Positions | None = None,
        at: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Return the residual stream after the block.

        Args:
            x: the residual stream.
            context: what cross-attention attends to: a tensor, or the keys and values that `cross.remember` made of it.
            mask: mask of self-attention.
            context_mask: mask of cross-attention.
            positions: position encoding of self-attention.
            at: positions of the tokens of x, (t,) or (b, t), on a grid (t, 2) or (b, t, 2); from 0, or from where the
                cache ends, if not given.
            cache: KV cache of self-attention.
        """
        if context is None and self.cross is not None:
            raise InputError("a block with cross-attention needs a context, got None")
        if context is not None and self.cross is None:
            raise InputError(
                "a context was given to a block without cross-attention: build it with cross=True"
            )
        norm_first = self.order in ("pre", "both")

        # self-attention: tokens attend to each other
        y = x
        if norm_first:
            y = self.attn_norm(x)
        y = self.attn(y, mask=mask, positions=positions, at=at, cache=cache)
        x = self._add(x, self.attn_norm, self.attn_out_norm, y, self.attn_scale)

        # cross-attention: tokens attend to the context
        if self.cross is not None and self.cross_norm is not None:
            # the residual stream gives the queries, the context the keys and values
            y = x
            if norm_first:
                y = self.cross_norm(x)
            y = _attend_shared(self.cross, y, context, context_mask)
            x = self._add(x, self.cross_norm, self.cross_out_norm, y, self.cross_scale)

        # MLP: each token by itself
        y = x
        if norm_first:
            y = self.mlp_norm(x)
        y = self.mlp(y)
        return self._add(x, self.mlp_norm, self.mlp_out_norm, y, self.mlp_scale)

    def _add(
        self,
        x: Tensor,
        norm: nn.Module,
        out_norm: nn.Module | None,
        y: Tensor,
        scale: Tensor | None,
    ) -> Tensor:
        """The residual connection x + scale * y, with the norms that come after the sublayer."""
        if self.order == "output":
            out_norm = norm
        if out_norm is not None:
            # before dropout and the residual, so that what is added has a bounded size
            y = out_norm(y)
        if self.training:
            y = F.dropout(y, self.dropout)
        if scale is not None:
            y = y * scale
        if self.training and self.skip:
            y = skip_rows(y, self.skip)
        x = x + y
        if self.order == "post":
            # LayerNorm(x + Sublayer(x)), section 3.1 of Vaswani et al. 2017
            x = norm(x)
        return x


def skip_rows(x: Float[Tensor, "b *n"], share: float) -> Float[Tensor, "b *n"]:
    """Set random rows to 0 and divide the others by the share that is kept, so that the mean does not change.

    Args:
        x: the output of a sublayer.
        share: share of the rows that are set to 0.

    Examples:
        >>> sorted(set(skip_rows(torch.ones(64, 3), 0.5).flatten().tolist()))
        [0.0, 2.0]
    """
    keep = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= share  # (b, 1, ...)
    return x * (keep / (1 - share)).to(x.dtype)


def _attend_shared(
    cross: Attention,
    x: Float[Tensor, "b t d"],
    context: Tensor | tuple[Tensor, Tensor] | None,
    mask: Mask | None,
) -> Float[Tensor, "b t o"]:
    """Cross-attention where n neighbouring rows may share one context; their queries are attended as one row."""
    if context is None or isinstance(context, Tensor):
        # in training each row has its own context
        return cross(x, context, mask=mask)
    rows, contexts = x.shape[0], context[0].shape[0]
    if rows == contexts or not contexts:
        return cross(x, context, mask=mask)
    queries = x.reshape(contexts, -1, x.shape[-1])  # (b n, t, d) -> (b, n t, d)
    return cross(queries, context, mask=mask).reshape(rows, x.shape[1], -1)

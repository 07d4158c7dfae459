"""The Transformer block: attention, perhaps attention to another sequence, and an MLP, each with a way around.

pre    x = x + f(norm(x))        the stream stays as it was and is added to; trains deep without warm-up
post   x = norm(x + f(x))        the original order, and the lecture's
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError
from .attention import Attention, Score
from .cache import Cache
from .mask import Mask
from .mlp import MLP
from .norm import make_norm
from .positions import Positions

ORDERS = ("pre", "post")


class Block(nn.Module):
    """Sections 3.1 to 3.3 of Vaswani et al. 2017 ("post"); Xiong et al. 2020 compare the orders.

    With `cross` the block also looks at a context (a decoder's), between the other two.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head: int | None = None,
        hidden: int | None = None,  # width inside the MLP; 4 x width if not given
        order: str = "pre",
        norm: str = "layer",
        eps: float = 1e-5,
        mlp: str = "gelu",
        cross: bool = False,
        context: int | None = None,  # width of what `cross` looks at
        project: str = "qkv",
        score: str | Score = "scaled",
        bias: bool | str = True,  # "qkv": only queries, keys and values have one
        dropout: float = 0.0,  # of what is added to the stream
        inner_dropout: float | None = None,  # of attention's weights and of the MLP's inside; None for as much
    ) -> None:
        super().__init__()
        if order not in ORDERS:
            raise InputError(f"order={order!r}: expected one of {', '.join(ORDERS)}")
        self.order, self.dropout = order, dropout
        inner = dropout if inner_dropout is None else inner_dropout
        common = {"kv_heads": kv_heads, "head": head, "bias": bias, "dropout": inner}
        self.attn = Attention(width, heads, project=project, score=score, **common)  # type: ignore[arg-type]
        self.attn_norm = make_norm(norm, width, eps=eps)
        self.cross = Attention(width, heads, context=context, **common) if cross else None  # type: ignore[arg-type]
        self.cross_norm = make_norm(norm, width, eps=eps) if cross else None
        self.mlp = MLP(width, hidden, kind=mlp, bias=bias is True, dropout=inner)
        self.mlp_norm = make_norm(norm, width, eps=eps)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        context: Float[Tensor, "b k c"] | tuple[Tensor, Tensor] | None = None,
        *,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        positions: Positions | None = None,
        at: Int[Tensor, "*b t"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b t d"]:
        if (context is None) != (self.cross is None):
            raise InputError(
                "a block with cross-attention needs a context" if context is None
                else "a context was given to a block built without cross=True"
            )  # fmt: skip
        pre = self.order == "pre"
        y = self.attn_norm(x) if pre else x
        x = self._way(x, self.attn_norm, self.attn(y, mask=mask, positions=positions, at=at, cache=cache))
        if self.cross is not None and self.cross_norm is not None:
            y = self.cross_norm(x) if pre else x
            x = self._way(x, self.cross_norm, _folded(self.cross, y, context, context_mask))
        y = self.mlp_norm(x) if pre else x
        return self._way(x, self.mlp_norm, self.mlp(y))

    def _way(self, x: Tensor, norm: nn.Module, y: Tensor) -> Tensor:
        x = x + (F.dropout(y, self.dropout) if self.training else y)
        return x if self.order == "pre" else norm(x)


def _folded(
    cross: Attention, x: Float[Tensor, "b t d"], context: Tensor | tuple[Tensor, Tensor] | None, mask: Mask | None
) -> Float[Tensor, "b t o"]:
    """Cross-attention of rows of which n neighbours may share one context: they ask it together, as one row."""
    rows, contexts = x.shape[0], x.shape[0] if context is None else context[0].shape[0]
    if isinstance(context, Tensor) or rows == contexts or not contexts:
        return cross(x, context, mask=mask)
    asked = x.reshape(contexts, -1, x.shape[-1])  # (b n, t, d) -> (b, n t, d)
    return cross(asked, context, mask=mask).reshape(rows, x.shape[1], -1)

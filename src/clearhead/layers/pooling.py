"""The mean of a row's tokens, without its padding."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def mean_of_tokens(x: Float[Tensor, "b t d"], lengths: Int[Tensor, "b"] | None = None) -> Float[Tensor, "b d"]:
    """Return the mean over the tokens of each row that are not padding.

    Args:
        x: A vector per token.
        lengths: Tokens of each row; those after them are padding. None: there is none.

    Examples:
        >>> x = torch.tensor([[[1.0], [3.0]], [[5.0], [9.0]]])
        >>> mean_of_tokens(x, torch.tensor([2, 1]))
        tensor([[2.],
                [5.]])
    """
    if lengths is None:
        return x.mean(1)
    lengths = lengths.to(x.device)
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return (x * inside[..., None]).sum(1) / lengths.clamp(min=1)[:, None]

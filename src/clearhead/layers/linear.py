"""The linear map, with a product that faster code may replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Linear(nn.Linear):
    """The linear map x W' + b: torch.nn.Linear, with a replaceable product.

    `product(x, weight, bias)` computes it; fast.accelerate sets a faster one for inference on the modules of a model.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: add a learned bias.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Examples:
        >>> Linear(4, 3)(torch.zeros(2, 7, 4)).shape
        torch.Size([2, 7, 3])
    """

    product: Product = staticmethod(F.linear)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        return self.product(x, self.weight, self.bias)


class Readout(Linear):
    """An output layer whose input is scaled, whose logits are capped, or both: cap * tanh(scale x W' / cap).

    Args:
        in_features: width of the input.
        out_features: number of logits.
        bias: add a learned bias.
        scale: factor of the input (T5).
        cap: bound of the logits' size (Gemma 2); none if not given.

    Examples:
        >>> readout = Readout(4, 3, cap=30.0)
        >>> bool(readout(1e6 * torch.ones(1, 4)).abs().max() <= 30.0)
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        scale: float = 1.0,
        cap: float | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.scale, self.cap = scale, cap

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        if self.scale != 1.0:
            x = x * self.scale
        logits = super().forward(x)
        if self.cap is not None:
            # almost linear near 0, and never beyond the cap
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits


class Exact(nn.Module):
    """A module whose constants follow its device but keep their dtype, such as the angles of a bfloat16 model.

    They are computed on the CPU when the module is built, whatever device it is built for (a meta device too),
    and are not part of its state dict.
    """

    def constant(self, name: str, value: Tensor) -> None:
        """Register `value` as a constant attribute."""
        self.__dict__.setdefault("_exact", {})[name] = value
        self.register_buffer(name, value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Exact:
        super()._apply(fn, recurse)
        # fn has moved and cast the buffers: the constants follow the move only
        for name, value in self.__dict__.get("_exact", {}).items():
            device, dtype = self.get_buffer(name).device, value.dtype
            if device.type == "mps" and dtype == torch.float64:  # Apple GPUs have none
                dtype = torch.float32
            self.register_buffer(name, value.to(device, dtype), persistent=False)
        return self


def mean_of_tokens(
    x: Float[Tensor, "b t d"], lengths: Int[Tensor, "b"] | None = None
) -> Float[Tensor, "b d"]:
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
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # (b, t)
    return (x * inside[..., None]).sum(1) / lengths.clamp(min=1)[:, None]

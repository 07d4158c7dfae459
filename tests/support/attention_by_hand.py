"""A module whose attention is written by hand: its projections, and what it keeps for a comparison."""

import torch
from torch import Tensor, nn

B, T, H, E = 2, 6, 3, 4  # rows, tokens, heads, head dimension
WIDTH = H * E


class ByHand(nn.Module):
    """Projections to queries, keys and values, and one back; `forward` is what a test is about."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def three(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (..., h, e)."""
        return self.qkv(x).unflatten(-1, (3, H, E)).unbind(-3)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (b, h, n, e)."""
        q, k, v = (y.transpose(1, 2) for y in self.three(x))
        return q, k, v

    def keep(self, weights: Tensor, heads: Tensor) -> None:
        """Keep weights (b, h, q, k) and outputs of heads (b, h, q, e), to compare with."""
        self.weights, self.heads = weights.detach().clone(), heads.detach().clone()

    def joined(self, out: Tensor) -> Tensor:
        """The output of a module whose heads are (b, h, n, e)."""
        return self.out(out.transpose(1, 2).flatten(2))

    def kept(self, weights: Tensor, out: Tensor) -> Tensor:
        """The same, and weights and heads are kept."""
        self.keep(weights, out)
        return self.joined(out)


def seeded(kind: type[nn.Module]) -> nn.Module:
    """A module of a class, always with the same parameters."""
    torch.manual_seed(0)
    return kind().eval()


def silenced_by_hook(model: nn.Module, x: Tensor) -> Tensor:
    """The output of a module whose output projection reads zeros from head 1."""

    def without_head(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0].unflatten(-1, (H, E)).index_fill(-2, torch.tensor(1), 0.0).flatten(-2),)

    hook = model.out.register_forward_pre_hook(without_head)
    try:
        return model(x)
    finally:
        hook.remove()

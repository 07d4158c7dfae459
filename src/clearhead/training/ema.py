"""Exponential moving averages (EMA) of weights, and networks that compute with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .distributed import copy_all, local, wide


class EMA:
    """An exponential moving average of weights, in float32 or better; sharded weights have sharded averages.

    `Objective.averages` has one for each player with `average_of`, whose network computes with the averages.

    Args:
        weights: The weights to average: the master weights, if the model computes in bfloat16.
        network: The parameters that the averages can be copied to.

    Examples:
        >>> weights = {"w": torch.zeros(2)}
        >>> ema = EMA(weights, {"w": torch.zeros(2)})
        >>> weights["w"].fill_(1.0)
        tensor([1., 1.])
        >>> ema.update(0.75)
        >>> ema.values["w"]
        tensor([0.2500, 0.2500])
    """

    def __init__(self, weights: Mapping[str, Tensor], network: Mapping[str, Tensor]) -> None:
        self.weights, self.network = dict(weights), dict(network)
        with torch.no_grad():
            # in bfloat16 a share of 0.001 of the difference would be rounded away
            self.values = {name: wide(w.detach()).clone() for name, w in self.weights.items()}

    @torch.no_grad()
    def update(self, keep: float) -> None:
        """Update the averages: keep * average + (1 - keep) * weight.

        Args:
            keep: The share of the old average that remains, from 0 to 1.
        """
        # average + (1 - keep) (weight - average), in one kernel for all weights
        now = [local(wide(w.detach())) for w in self.weights.values()]
        torch._foreach_lerp_([local(x) for x in self.values.values()], now, 1 - keep)

    @torch.no_grad()
    def copy_to_network(self) -> None:
        """Copy the averages into the network's parameters."""
        copy_all([(self.network[name], value) for name, value in self.values.items()])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context in which the network computes with the averages; its own weights are restored afterwards."""
        saved = {name: self.network[name].detach().clone() for name in self.values}
        self.copy_to_network()
        try:
            yield
        finally:
            with torch.no_grad():
                # from copies: the averages have replaced the only weights that the network had
                copy_all([(self.network[name], old) for name, old in saved.items()])


def warmed_up(ema: float, step: int) -> float:
    """The decay rate of an average in a step, from 0: min(ema, (1 + step) / (10 + step)).

    Without this warm-up the average would be mostly the initial weights for about 1 / (1 - ema) steps.

    Examples:
        >>> [round(warmed_up(0.999, step), 3) for step in (0, 90, 8990, 20_000)]
        [0.1, 0.91, 0.999, 0.999]
    """
    return min(ema, (1 + step) / (10 + step))


class EMANetwork(EMA):
    """An EMA with its own network, such as a teacher, which receives the averages after every update."""

    def __init__(
        self, weights: Mapping[str, Tensor], source: nn.Module, network: nn.Module
    ) -> None:
        super().__init__(weights, dict(network.named_parameters()))
        # (ours, theirs): running statistics of batch norms are copied, not averaged a second time
        self._buffers = [
            (network.get_buffer(name), buffer) for name, buffer in source.named_buffers()
        ]
        self.copy_to_network()

    def update(self, keep: float) -> None:
        super().update(keep)
        self.copy_to_network()
        with torch.no_grad():
            for ours, theirs in self._buffers:
                # the statistics of the last step
                ours.copy_(theirs)

"""An exponential moving average of a network's weights, which can itself run as a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .tensors import copy_all, local, wide


class Average:
    """Averages of some weights, in float32 or better; sharded weights have sharded averages.

    `weights` are what is averaged (the masters, where a model computes in bfloat16), `network` the parameters that can
    compute with the averages.
    """

    def __init__(self, weights: Mapping[str, Tensor], network: Mapping[str, Tensor]) -> None:
        self.weights, self.network = dict(weights), dict(network)
        with torch.no_grad():
            self.values = {name: wide(w.detach()).clone() for name, w in self.weights.items()}

    @torch.no_grad()
    def update(self, keep: float) -> None:
        """Move the averages towards the weights; `keep` is the share of the averages that stays."""
        now = [local(wide(w.detach())) for w in self.weights.values()]
        torch._foreach_lerp_([local(x) for x in self.values.values()], now, 1 - keep)

    @torch.no_grad()
    def copy_to_network(self) -> None:
        """Let the network compute with the averages from now on."""
        copy_all([(self.network[name], value) for name, value in self.values.items()])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it the network computes with the averages; after it, with the same bits as before."""
        kept = {name: self.network[name].detach().clone() for name in self.values}
        self.copy_to_network()
        try:
            yield
        finally:
            with torch.no_grad():
                copy_all([(self.network[name], old) for name, old in kept.items()])


class AverageNetwork(Average):
    """An average with a network of its own, such as a teacher: it follows the averages after every update."""

    def __init__(self, weights: Mapping[str, Tensor], source: nn.Module, network: nn.Module) -> None:
        super().__init__(weights, dict(network.named_parameters()))
        self._buffers = [(network.get_buffer(name), buffer) for name, buffer in source.named_buffers()]
        self.copy_to_network()

    def update(self, keep: float) -> None:
        super().update(keep)
        self.copy_to_network()
        with torch.no_grad():
            for mine, theirs in self._buffers:  # running statistics of batch norms
                mine.copy_(theirs)

"""Whether anybody watches or edits the inside of modules: fast paths that skip modules may run only if nobody does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules import module as _global

from ..layers import Attention


class Hooks:
    """The hooks of some modules and the taps of their attentions, collected once and asked at every step."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        modules = [module for root in roots for module in root.modules()]
        self._attentions = [module for module in modules if isinstance(module, Attention)]
        self._hooks: list[Any] = [_global._global_forward_hooks, _global._global_forward_pre_hooks]
        for module in modules:
            self._hooks += [module._forward_hooks, module._forward_pre_hooks]

    def any(self) -> bool:
        """True if a hook or a tap is set."""
        return any(self._hooks) or any(attention.tap is not None for attention in self._attentions)


def hooked(*roots: nn.Module) -> bool:
    """True if somebody watches or edits one of these modules, or anything inside them."""
    return Hooks(roots).any()

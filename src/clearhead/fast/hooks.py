"""Whether modules have hooks or taps: fast code that skips modules may run only if they have none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules import module as _global

from ..layers import Attention


class Hooks:
    """The hooks of some modules and the taps of their attentions, collected once and checked at every step.

    Args:
        roots: The modules; everything inside them counts too.

    Examples:
        >>> layer = torch.nn.Linear(2, 2)
        >>> hooks = Hooks([layer])
        >>> handle = layer.register_forward_hook(lambda *_: None)
        >>> hooks.any()
        True
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        # the dicts themselves: hooks that are set later are in them too
        modules = [module for root in roots for module in root.modules()]
        self._attentions = [module for module in modules if isinstance(module, Attention)]
        self._hooks: list[Any] = [_global._global_forward_hooks, _global._global_forward_pre_hooks]
        for module in modules:
            self._hooks += [module._forward_hooks, module._forward_pre_hooks]

    def any(self) -> bool:
        """True if a hook or a tap is set."""
        return any(self._hooks) or any(attention.tap is not None for attention in self._attentions)


def hooked(*roots: nn.Module) -> bool:
    """Return whether one of these modules, or anything inside them, is watched or edited: has a hook or a tap.

    Args:
        roots: The modules.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, width=8, depth=1, heads=2, context=4)
        >>> handle = model.blocks[0].register_forward_hook(lambda *_: None)
        >>> hooked(model), hooked(model.head)
        (True, False)
    """
    return Hooks(roots).any()

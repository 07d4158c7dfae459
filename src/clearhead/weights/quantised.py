"""quantise: a model with 8-bit weights, for a CPU."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from ..errors import InputError
from ..fast import quantised
from ..layers.lora import adapters, merge_adapters
from .bundle import Bundle


def quantise(bundle: Bundle) -> Bundle:
    """Return the same model with the weights of its linear maps rounded to 8 bits, for faster inference on a CPU.

    It shares its embeddings with the original, cannot be saved, and gives no gradients for the rounded weights.

    Args:
        bundle: A model on the CPU.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=32, depth=1, heads=2)
        >>> bundle = Bundle(model, clearhead.tokens.Characters("abc"))
        >>> bool((quantise(bundle)("abba") - bundle("abba")).abs().max() < 0.1)
        True
    """
    if bundle.device.type != "cpu":
        raise InputError(
            f"8-bit weights are for a CPU, and this model is on {bundle.device}: load it with device='cpu'"
        )
    model = merge_adapters(deepcopy(bundle.model)) if adapters(bundle.model) else bundle.model
    return replace(bundle, model=quantised(model), base=None)

"""The models, one family a file: Config, parts, forward. A family is built by its name and its config's words.

The room is a verb too: clearhead.models() lists the families, whatever has imported the room before.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import nn

from ..config import read
from ..errors import InputError, nearest

# Name: (module, class, what it is). A module is imported when its family is first asked for.
FAMILIES = {
    "gpt": ("gpt", "GPT", "a decoder that predicts the next token: GPT-2's and Llama's choices by the word"),
    "bert": ("bert", "BERT", "an encoder that reads both ways: it fills gaps, sorts texts, or gives each a vector"),
    "transformer": ("transformer", "Transformer", "an encoder and a decoder that looks at it, for translation"),
    "rnn-seq2seq": ("rnn_seq2seq", "RNNSeq2Seq", "two recurrent networks, the second with or without a look back"),
    "reader": ("reader", "Reader", "one layer that holds a stream: a sum, a fading sum, or attention"),
    "deep": ("deep", "Deep", "many simple layers, plain, dense or residual: what gets through them"),
}


def families() -> dict[str, str]:
    """The families that `build` knows, each with a line about it."""
    return {name: about for name, (_, _, about) in FAMILIES.items()}


def family(name: str) -> tuple[type[nn.Module], type[Any]]:
    """A family's class and its Config."""
    if name not in FAMILIES:
        raise InputError(f"no model {name!r}: expected one of {', '.join(FAMILIES)}{nearest(name, FAMILIES)}")
    module, kind, _ = FAMILIES[name]
    found = import_module(f".{module}", __name__)
    return getattr(found, kind), found.Config


def build(name: str, **options: Any) -> nn.Module:
    """A new model of a family: build("gpt", vocab=65, width=384, depth=6, heads=6, context=256)."""
    kind, config = family(name)
    return kind(read(config, options, where="model"))


def name_of(model: nn.Module) -> str:
    """The family of a model."""
    for name, (module, kind, _) in FAMILIES.items():
        if type(model).__name__ == kind and type(model).__module__ == f"{__name__}.{module}":
            return name
    raise InputError(f"{type(model).__name__} is of no known family: expected one of {', '.join(FAMILIES)}")


class _Room(ModuleType):
    __call__ = staticmethod(families)


sys.modules[__name__].__class__ = _Room

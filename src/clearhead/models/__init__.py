"""The models, one family per file: Config, parts, forward. `build` makes a model from a family's name and options.

model.py           Model, the base class, and how to add a family
decoder_state.py   what a decoder keeps between steps
text_events.py     how a search announces that a text begins
hooks.py           hooks on modules, and how they are undone
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from ..config import read
from ..errors import InputError, nearest
from .model import CAPABILITIES, INPUT_KEYS, DecoderStack, Model

__all__ = [
    "CAPABILITIES", "FAMILIES", "INPUT_KEYS", "DecoderStack", "Model", "build", "families", "family", "family_of",
]  # fmt: skip

# Name: (module, class, description). A module is imported when its family is first used.
FAMILIES = {
    "gpt": (
        "gpt",
        "GPT",
        "a decoder that predicts the next token: GPT-2, Llama, Qwen3 or Gemma by its options",
    ),
    "bert": (
        "bert",
        "BERT",
        "a bidirectional encoder that predicts masked tokens, classifies, or embeds a text",
    ),
    "transformer": (
        "transformer",
        "Transformer",
        "an encoder and a decoder that attends to it: Marian, BART or T5 by its options",
    ),
    "rnn-seq2seq": (
        "rnn_seq2seq",
        "RNNSeq2Seq",
        "two recurrent networks, for translation, with or without attention",
    ),
    "vit": (
        "vit",
        "ViT",
        "a vision transformer, with patches or convolutions in front, that classifies images",
    ),
    "resnet": (
        "resnet",
        "ResNet",
        "a residual convolutional network that classifies images, with or without attention",
    ),
    "convnext": (
        "convnext",
        "ConvNeXt",
        "a convolutional network with the choices of a transformer, for images",
    ),
    "mobilenet": (
        "mobilenet",
        "MobileNet",
        "MobileNetV2, a light convolutional network that classifies images",
    ),
    "captioner": (
        "captioner",
        "Captioner",
        "an image encoder and a decoder that writes what the image shows",
    ),
    "reader": (
        "reader",
        "Reader",
        "one layer that remembers a sequence: a sum, a fading sum, or attention",
    ),
    "mlp": ("mlp", "Perceptron", "a multi-layer perceptron, from vectors to vectors"),
    "deep": (
        "deep",
        "Deep",
        "many simple layers with plain, dense or residual connections: how a signal passes through depth",
    ),
}


def families() -> dict[str, str]:
    """Return the names of all families that `build` can make, each with a line about it.

    Examples:
        >>> list(families())[:2]
        ['gpt', 'bert']
    """
    return {name: about for name, (_, _, about) in FAMILIES.items()}


def family(name: str) -> tuple[type[Model], type[Any]]:
    """Return the model class and the Config class of a family.

    Args:
        name: The family, one of `families()`.

    Examples:
        >>> model, config = family("mlp")
        >>> model(config(inputs=3, outputs=2)).head.out_features
        2
    """
    if name not in FAMILIES:
        raise InputError(
            f"no model {name!r}: expected one of {', '.join(FAMILIES)}{nearest(name, FAMILIES)}"
        )
    module, model_class, _ = FAMILIES[name]
    file = import_module(f".{module}", __name__)
    return getattr(file, model_class), file.Config


def build(name: str, **options: Any) -> Model:
    """Build a new model of a family, with random weights.

    Args:
        name: The family, one of `families()`.
        options: The fields of its Config: `clearhead models NAME` lists them.

    Returns:
        The model, an `nn.Module` in training mode.

    Examples:
        >>> model = build("gpt", vocab=65, width=48, depth=2, heads=4, context=16, positions="rotary")
        >>> model.config.positions
        'rotary'
    """
    model, config = family(name)
    return model(read(config, options, where="model"))


def family_of(model: nn.Module) -> str:
    """Return the name of a model's family.

    Args:
        model: A model that `build` or `load` made.

    Examples:
        >>> family_of(build("mlp", inputs=3, outputs=2))
        'mlp'
    """
    own = (type(model).__module__, type(model).__name__)
    for name, (module, model_class, _) in FAMILIES.items():
        # compared by name: an isinstance check would import the modules of all families
        if own == (f"{__name__}.{module}", model_class):
            return name
    raise InputError(
        f"{type(model).__name__} belongs to no known family: expected one of {', '.join(FAMILIES)}"
    )

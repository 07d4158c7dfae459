"""What a model must have for a view, or for a section of a comparison: conditions that give a reason, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..errors import UserError
from ..look import filters, position_similarity
from ..look.capture.addresses import Tree, matching
from ..look.structure import layer_lists
from ..weights import Bundle

Condition = Callable[[Bundle], str | None]  # None if a model fits, else the reason why it does not
READS = {
    "tokens": "texts",
    "pairs": "pairs of texts",
    "images": "images",
    "captions": "images with captions",
    "vectors": "vectors",
}


def reads(*kinds: str) -> Condition:
    """The model reads one of these kinds of input."""

    def condition(bundle: Bundle) -> str | None:
        # Follows "the view ... does not fit this model:" in the message.
        wanted = " or ".join(READS[kind] for kind in kinds)
        if bundle.reads in kinds:
            return None
        return f"it reads {READS[bundle.reads]}, and this view is of {wanted}"

    return condition


def attends(bundle: Bundle) -> str | None:
    """The model has attention."""
    # Possible addresses belong to foreign modules, whose attention is known only when they run.
    tree = Tree(bundle.model)
    if matching("**.weights", tree.known | tree.possible):
        return None
    return "it has no attention"


def layered(bundle: Bundle) -> str | None:
    """The model has a list of layers with attention."""
    if layer_lists(bundle.model):
        return None
    return "it has no list of layers with attention"


def at_once(bundle: Bundle) -> str | None:
    """The model reads all tokens at once."""
    # A recurrent network has no map of all queries at once: its queries depend on earlier outputs.
    steps = any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in bundle.model.modules())
    if steps:
        return "it reads and attends step by step"
    return None


def answers(bundle: Bundle) -> str | None:
    """The model gives logits of classes or tokens."""
    can = bundle.can & {"classify", "predict", "fill", "translate"}
    if can:
        return None
    return "it returns vectors, and this view explains an answer: a class or a token"


def class_token(bundle: Bundle) -> str | None:
    """The model has a class token."""
    # Only an embedding with `cls` set to None counts: models without such an embedding have no
    # class token to miss.
    without = getattr(getattr(bundle.model, "embed", None), "cls", ()) is None
    if without:
        return "it has no class token: its answer is read from its patches"
    return None


def linear_end(bundle: Bundle) -> str | None:
    """What follows the last norm of the model is linear."""
    # The head for masked tokens has a layer and an activation before its output layer.
    if "fill" in bundle.can:
        return "what follows its last norm is not linear"
    normed = any(
        "norm" in type(part).__name__.lower()
        for part in bundle.model.modules()
        # Norms are leaves of the module tree, recognised by their name: LayerNorm, RMSNorm and
        # foreign ones.
        if not list(part.children())
    )
    if normed:
        return None
    return "it has no norm before its output layer"


def tokens(bundle: Bundle) -> str | None:
    """The model has tokens."""
    if bundle.tokens is not None:
        return None
    return "it has no tokens"


def colour_filters(bundle: Bundle) -> str | None:
    """The first convolution of the model reads an image."""
    return _reason(lambda: filters(bundle, most=1), "no convolution of it reads 1 or 3 channels")


def position_vectors(bundle: Bundle) -> str | None:
    """The positions of the model are vectors."""
    return _reason(lambda: position_similarity(bundle), "its positions are not vectors")


def _reason(attempt: Callable[[], Any], words: str) -> str | None:
    try:
        # The function itself knows best whether it works: its error is the condition.
        attempt()
    except UserError:
        return words
    return None

"""Looking inside a model: watch and edit activations, lazy attention maps, exact statistics.

watch       record activations of any torch model          edit       change them
Tape        what a watch recorded, by address              silence, scale, patch   ready-made edits of heads
attention   the maps of one text, with its tokens          AttentionMap            the weights, computed on request
head_effects   the change of a text's probability when each head is silenced
saliency    which pixels or tokens an answer depends on    perturbation_curves     deletion and insertion of them
rollout, gradient_rollout   attention through all layers    cls_maps    what the class token attends to, per head
attention_view   a map without its sinks, or weighted by the norms of the values
statistics  any of MEANING; entropy, received and distance of all watched layers

cka         similarity of layers, models, checkpoints      cka_of_features   the same of matrices of features
receptive_fields   what a unit depends on, by depth        features          a vector per input, of any layer
project     PCA and t-SNE of vectors                       patch_colours     PCA of patches as red, green and blue
neighbours  the nearest vectors by cosine                  word_neighbours   the nearest words; king - man + woman
filters, feature_maps   weights and activations as pictures
position_similarity     each position embedding with every other

Causes:
patching            which layer and position carries the difference between two inputs
logit_attribution   what every head, MLP and embedding adds to one logit
logit_lens          the likeliest answers after each layer
attention_effects   the weight of each key against the effect of its removal
word_attention      how often a head attends from one word to another, in sentences of read_sentences
linear_baseline     a linear model with readable weights; fit_words, fit_pixels
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError, Notice
from .capture.edits import patch, scale, silence
from .capture.tape import Tape
from .capture.text_counter import new_text
from .capture.watch import edit, watch
from .causes.head_effects import HeadEffects, head_effects
from .maps.attention_map import AttentionMap
from .maps.statistics import MEANING, statistics
from .maps.text_attention import TextAttention, attention
from .representation.cka import Similarity, cka, cka_of_features
from .representation.features import features
from .representation.fields import Fields, receptive_fields
from .representation.pictures import (
    PatchColours,
    PictureGrid,
    PositionSimilarity,
    feature_maps,
    filters,
    patch_colours,
    position_similarity,
)
from .representation.projection import Projection, neighbours, project, word_neighbours

# isort: split
from .maps.cls_maps import ClsMaps, cls_maps
from .maps.rollout import gradient_rollout, rollout
from .maps.sinks import AttentionView, attention_view
from .saliency_methods.perturbation import PerturbationCurves, perturbation_curves
from .saliency_methods.saliency import SALIENCY_METHODS, Saliency, saliency

# Causes, and the linear baseline.
from .causes.attention_effects import AttentionEffects, attention_effects  # isort: skip
from .causes.logit_lens import LogitLens, logit_lens  # isort: skip
from .examples.linear_models import LinearModel, fit_pixels, fit_words, linear_baseline  # isort: skip
from .causes.logit_attribution import LogitAttribution, LogitPart, logit_attribution  # isort: skip
from .causes.patching import Patching, patching  # isort: skip
from .examples.word_attention import Sentence, WordAttention, read_sentences, word_attention  # isort: skip

__all__ = [
    "MEANING",
    "AttentionEffects",
    "AttentionMap",
    "HeadEffects",
    "LinearModel",
    "LogitAttribution",
    "LogitLens",
    "LogitPart",
    "Notice",
    "Patching",
    "Sentence",
    "Tape",
    "TextAttention",
    "WordAttention",
    "attention",
    "attention_effects",
    "distance",
    "edit",
    "entropy",
    "fit_pixels",
    "fit_words",
    "head_effects",
    "linear_baseline",
    "logit_attribution",
    "logit_lens",
    "new_text",
    "patch",
    "patching",
    "read_sentences",
    "received",
    "scale",
    "silence",
    "statistics",
    "watch",
    "word_attention",
]
__all__ += [  # similarity, fields and features
    "Fields",
    "PatchColours",
    "PictureGrid",
    "PositionSimilarity",
    "Projection",
    "Similarity",
    "cka",
    "cka_of_features",
    "feature_maps",
    "features",
    "filters",
    "neighbours",
    "patch_colours",
    "position_similarity",
    "project",
    "receptive_fields",
    "word_neighbours",
]
__all__ += [  # saliency and maps
    "SALIENCY_METHODS", "AttentionView", "ClsMaps", "PerturbationCurves", "Saliency", "attention_view", "cls_maps",
    "gradient_rollout", "perturbation_curves", "rollout", "saliency",
]  # fmt: skip


def entropy(tape: Tape) -> Float[Tensor, "l b h q"]:
    """Return the entropy of each query in every watched attention, layer by layer, in nats.

    Args:
        tape: A tape of entropies ("...attn.entropy") or maps ("...attn.weights").

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.weights") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> entropy(tape).shape
        torch.Size([3, 1, 2, 4])
    """
    return _every(tape, "entropy")


def received(tape: Tape) -> Float[Tensor, "l b h k"]:
    """Return the weight that each key receives from all queries in every watched attention, layer by layer.

    Args:
        tape: A tape of these sums ("...attn.received") or of maps ("...attn.weights").

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.received") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> received(tape).sum(-1).round()[:, 0, 0]
        tensor([4., 4., 4.])
    """
    return _every(tape, "received")


def distance(
    tape: Tape, *, grid: tuple[int, int] | None = None, special: int = 0, rms: bool = False
) -> Float[Tensor, "l b h q"]:
    """Return the mean distance from each query to its keys in every watched attention, layer by layer.

    Args:
        tape: A tape of distances ("...attn.distance", "...attn.rms") or of maps; a grid needs maps.
        grid: Height and width of a grid of patches; None: tokens on a line.
        special: Tokens before the grid that have no place in it.
        rms: The root mean square instead of the mean.

    Examples:
        >>> model = clearhead.build("gpt", vocab=5, context=8, width=8, depth=3, heads=2).eval()
        >>> with watch(model, "blocks.*.attn.distance") as tape:
        ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
        >>> distance(tape)[:, 0, 0, 0]
        tensor([0., 0., 0.])
    """
    return _every(tape, "rms" if rms else "distance", grid=grid, special=special)


def _every(tape: Tape, name: str, *, grid: tuple[int, int] | None = None, special: int = 0) -> Tensor:
    """A statistic of all watched attentions, stacked."""
    layers = []
    for path in dict.fromkeys("".join(n.rpartition(".")[:2]) for n in tape.names):  # "blocks.0.attn."
        if grid is None and path + name in tape:
            layers.append(tape[path + name])
        elif path + "weights" in tape:
            layers.append(tape[path + "weights"].statistics(name, grid=grid, special=special)[name])
    if not layers:
        raise InputError(f"this tape has no {name}: watch '...attn.{name}' or '...attn.weights'")
    sizes = sorted({tuple(x.shape) for x in layers})
    if len(sizes) > 1:
        raise InputError(f"layers of sizes {sizes} do not stack: take {name} from the tape one by one")
    return torch.stack(layers)


def __dir__() -> list[str]:
    return sorted(__all__)

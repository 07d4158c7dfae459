"""Figures of translators and language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import draw
from ...look import (
    attention,
    attention_view,
    head_effects,
    logit_lens,
    patching,
    saliency,
    word_neighbours,
)
from .registry import figure_of, model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SENTENCE = "She told me that she was happy."


@figure_of("translation", "Vaswani et al. 2017: cross-attention of an encoder-decoder Transformer.")
def translation() -> Figure:
    """Cross-attention of a translation: which source word each target word reads."""
    found = attention(
        model("fr-en"), "Je ne sais pas où il habite.", target="I don't know where he lives."
    )
    return found.figure(layer=-1)


@figure_of(
    "alignment",
    "Bahdanau et al. 2015, Fig. 3: the alignment that a recurrent translator learns by itself.",
)
def alignment() -> Figure:
    """Alignment of a recurrent translator with attention."""
    found = attention(
        model("en-de-rnn"),
        "A dog runs across the street.",
        target="Ein Hund rennt über die Straße.",
    )
    return found.figure(layer=0)


@figure_of("heads", "Vaswani et al. 2017, appendix: heads of one layer attend to different things.")
def heads() -> Figure:
    """All heads of one layer of a language model."""
    return attention(model("everyday"), SENTENCE).heads_figure(layer=2)


@figure_of("sinks", "Xiao et al. 2023: weights that have nowhere to go stay on one token.")
def sinks() -> Figure:
    """One layer of attention as it is, and without its sinks."""
    found = attention(model("everyday"), SENTENCE)
    views = {view: attention_view(found.maps["self"][3], view) for view in ("raw", "without-sink")}
    maps = {name: one.weights[0].mean(0).numpy() for name, one in views.items()}
    return draw.grids(
        maps, rows=found.pieces, columns=found.pieces, title="layer 3, mean over heads"
    )


@figure_of("head-importance", "Michel et al. 2019: most heads can be removed, and a few cannot.")
def head_importance() -> Figure:
    """Change of a text's probability when each head is silenced."""
    return head_effects(model("everyday"), SENTENCE).figure()


@figure_of("lens", "nostalgebraist 2020: each layer's output, read as an answer.")
def lens() -> Figure:
    """Logit lens: the likeliest next word after each layer, and how far it is from the final answer."""
    return logit_lens(model("everyday"), "A man is standing in the").figure()


@figure_of(
    "patching",
    "Meng et al. 2022, causal tracing; the exchanged word and the last token carry the difference.",
)
def patched() -> Figure:
    """Activation patching: which layer and position carry the difference between two texts."""
    both = "The children in the garden", "The child in the garden"
    return patching(model("everyday"), *both, target=(" are", " is")).figure()


@figure_of(
    "text-saliency",
    "Sundararajan et al. 2017: integrated gradients, which sum to the change of the logit.",
)
def text_saliency() -> Figure:
    """Integrated gradients of the next word of a text."""
    return saliency(model("everyday"), "A man is standing in the", target="street").figure()


@figure_of("word-arithmetic", "Mikolov et al. 2013: directions between embeddings have a meaning.")
def word_arithmetic() -> Figure:
    """Nearest words of man - boy + girl."""
    found = word_neighbours(model("everyday"), "man - boy + girl", top=6)
    names = [word for word, _ in found]
    return draw.bars(
        {"cosine": [cosine for _, cosine in found]},
        names=names,
        ylabel="cosine",
        title="man - boy + girl",
    )

"""tasks/: the verbs people came for. They take a Bundle and plain text, and give back plain results."""

from .evaluate import TranslationScores, evaluate
from .generate import Generation, Writing, chat, conversation, generate, stream
from .score import score
from .text import Likelihood, classify, embed, fill, likelihood
from .translate import Translation, align, translate

__all__ = [
    "Generation", "Likelihood", "Translation", "TranslationScores", "Writing",
    "align", "chat", "classify", "conversation", "embed", "evaluate", "fill", "generate", "likelihood", "score",
    "stream", "translate",
]  # fmt: skip

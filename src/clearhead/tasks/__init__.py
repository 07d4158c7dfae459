"""The verbs people came for. They take a Bundle and plain text, and return plain results."""

from .evaluate import TranslationScores, evaluate
from .generate import Generation, chat, conversation, generate, stream
from .score import score
from .text import Likelihood, classify, embed, fill, likelihood
from .translate import translate
from .translation import Translation

__all__ = [
    "Generation", "Likelihood", "Translation", "TranslationScores",
    "chat", "classify", "conversation", "embed", "evaluate", "fill", "generate", "likelihood", "score",
    "stream", "translate",
]  # fmt: skip

"""tasks/: the verbs people came for. They take a Ready and plain text, and give back plain results."""

from .evaluate import TranslationScores, evaluate
from .translate import Translation, align, score, translate

__all__ = ["Translation", "TranslationScores", "align", "evaluate", "score", "translate"]

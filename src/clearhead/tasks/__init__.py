"""tasks/: the verbs people came for. They take a Ready and plain text, and give back plain results."""

from .translate import Translation, align, score, translate

__all__ = ["Translation", "align", "score", "translate"]

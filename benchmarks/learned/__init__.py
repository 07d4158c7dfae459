"""The facts of docs/15-what-models-learn.md: one function per fact, which returns its numbers as plain values."""

from . import layers, pictures, sanity, sentences

FACTS = {**pictures.FACTS, **layers.FACTS, **sentences.FACTS, **sanity.FACTS}

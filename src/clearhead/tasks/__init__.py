"""What users do with a model: each function takes a Bundle and texts or images, and returns plain values.

generate, stream, chat, conversation   continue a text or a conversation
translate                              translate sentences, with their alignment to the source
score, likelihood                      log-probabilities of a given text
embed                                  a vector of a text or an image
fill                                   masked tokens of a text
classify                               classes of a text or an image
evaluate                               BLEU, perplexity or accuracy on data
"""

from .classify import classify
from .evaluate import TranslationScores, evaluate
from .generate import Generation, chat, conversation, generate, stream
from .score import score
from .text import Likelihood, embed, fill, likelihood
from .translate import translate
from .translation import Translation

__all__ = [
    "Generation", "Likelihood", "Translation", "TranslationScores",
    "chat", "classify", "conversation", "embed", "evaluate", "fill", "generate", "likelihood", "score",
    "stream", "translate",
]  # fmt: skip

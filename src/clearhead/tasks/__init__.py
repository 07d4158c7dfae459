"""What users do with a model: each function takes a Bundle and texts or images, and returns plain values.

generate, stream, chat, conversation   continue a text or a conversation
translate                              translate sentences, with their alignment to the source
caption                                captions of images, with a map over the image for each word
score, likelihood                      log-probabilities of a given text
embed                                  a vector of a text or an image
fill                                   masked tokens of a text
classify                               classes of a text or an image
evaluate                               BLEU, perplexity or accuracy on data
"""

from .caption import Caption, caption
from .classify import classify
from .evaluation.evaluate import TranslationScores, evaluate
from .generate import Generation, chat, conversation, generate, stream
from .score import score
from .text import Likelihood, embed, fill, likelihood
from .translate import Translation, translate

__all__ = [
    "Caption", "Generation", "Likelihood", "Translation", "TranslationScores",
    "caption", "chat", "classify", "conversation", "embed", "evaluate", "fill", "generate", "likelihood", "score",
    "stream", "translate",
]  # fmt: skip

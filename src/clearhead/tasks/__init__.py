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

from .caption import caption
from .captioned import Caption
from .classify import classify
from .evaluate import TranslationScores, evaluate
from .generate import chat, conversation, generate, stream
from .generation import Generation
from .score import score
from .text import Likelihood, embed, fill, likelihood
from .translate import translate
from .translation import Translation

__all__ = [
    "Caption", "Generation", "Likelihood", "Translation", "TranslationScores",
    "caption", "chat", "classify", "conversation", "embed", "evaluate", "fill", "generate", "likelihood", "score",
    "stream", "translate",
]  # fmt: skip

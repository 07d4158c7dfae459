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

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .caption import Caption as Caption
    from .caption import caption as caption
    from .classify import classify as classify
    from .evaluation.evaluate import TranslationScores as TranslationScores
    from .evaluation.evaluate import evaluate as evaluate
    from .generate import Generation as Generation
    from .generate import chat as chat
    from .generate import conversation as conversation
    from .generate import generate as generate
    from .generate import stream as stream
    from .score import score as score
    from .text import Likelihood as Likelihood
    from .text import embed as embed
    from .text import fill as fill
    from .text import likelihood as likelihood
    from .translate import Translation as Translation
    from .translate import translate as translate

lazy.public_names(__name__)

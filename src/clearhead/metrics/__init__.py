"""Scores of translations and captions, each with the signature that others need to reproduce it.

bleu              corpus BLEU (Papineni et al. 2002) of plain text, by sacreBLEU (Post 2018)
token_bleu        corpus BLEU-4 of texts that are already split into tokens
bleu_by           BLEU by one of the PROTOCOLS that published scores of translations follow
chrf              character F-score (Popović 2015), by sacreBLEU
caption_scores    BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D of captions, as coco-caption computes them
caption_words     the words that the scores of captions count
nearest_neighbours   the classes of features by votes of the nearest training features
linear_probe      the classes of features by a linear classifier of training features
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .caption_tokens import caption_words as caption_words
    from .captions import CAPTION_METRICS as CAPTION_METRICS
    from .captions import CaptionScore as CaptionScore
    from .captions import caption_scores as caption_scores
    from .probes import fit_linear_probe as fit_linear_probe
    from .probes import linear_probe as linear_probe
    from .probes import nearest_neighbours as nearest_neighbours
    from .texts import References as References
    from .texts import Score as Score
    from .translation import PROTOCOLS as PROTOCOLS
    from .translation import TOKENIZERS as TOKENIZERS
    from .translation import bleu as bleu
    from .translation import bleu_by as bleu_by
    from .translation import chrf as chrf
    from .translation import moses_words as moses_words
    from .translation import spacy_words as spacy_words
    from .translation import token_bleu as token_bleu

lazy.public_names(__name__)

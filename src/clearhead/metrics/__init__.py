"""Scores of translations and captions, each with the signature that others need to reproduce it.

bleu              corpus BLEU (Papineni et al. 2002) of plain text, by sacreBLEU (Post 2018)
token_bleu        corpus BLEU-4 of texts that are already split into tokens
bleu_by           BLEU by one of the PROTOCOLS that published scores of translations follow
chrf              character F-score (Popović 2015), by sacreBLEU
caption_scores    BLEU-1 to BLEU-4, METEOR, ROUGE-L and CIDEr-D of captions, as coco-caption computes them
caption_words     the words that the scores of captions count
"""

from .captions import CAPTION_METRICS, CaptionScore, caption_scores
from .ptb import caption_words
from .texts import References, Score
from .translation import PROTOCOLS, TOKENIZERS, bleu, bleu_by, chrf, moses_words, spacy_words, token_bleu

__all__ = [
    "CAPTION_METRICS", "PROTOCOLS", "TOKENIZERS", "CaptionScore", "References", "Score", "bleu", "bleu_by",
    "caption_scores", "caption_words", "chrf", "moses_words", "spacy_words", "token_bleu",
]  # fmt: skip

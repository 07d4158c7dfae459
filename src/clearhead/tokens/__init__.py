"""Tokenizers: text <-> ids. All share the interface of `Tokenizer`; `len` is the size of the vocabulary.

Characters   one id per character; lossless
Words        one id per word; rare words become <unk>
Subwords     learned pieces of words, down to bytes; lossless
Pieces       the pieces of a SentencePiece model
Pair         the source and target tokenizers of a translation

save, load   write a tokenizer into a folder, and read it again
"""

from .characters import Characters
from .files import load, remove, save, saved
from .ids import split
from .pair import Pair
from .pieces import Pieces
from .subwords import Subwords
from .tokenizer import Tokenizer
from .words import Words

__all__ = ["Characters", "Pair", "Pieces", "Subwords", "Tokenizer", "Words", "load", "remove", "save", "saved", "split"]

"""Tokenizers: text <-> ids. All share the interface of `Tokenizer`; `len` is the size of the vocabulary.

Characters   one id per character; lossless
Words        one id per word; rare words become <unk>
Subwords     learned pieces of words, down to bytes; lossless
Pieces       the pieces of a SentencePiece model
Symbols      letters or numbers of generated sequences
Pair         the source and target tokenizers of a translation

split        the words of a text                       sentences   its sentences
save, load   write a tokenizer into a folder, and read it again
"""

from .characters import Characters
from .files import load, remove, save, saved
from .ids import split
from .pair import Pair
from .pieces import Pieces
from .sentences import sentences
from .subwords import Subwords
from .symbols import Symbols
from .tokenizer import Tokenizer
from .words import Words

__all__ = [
    "Characters", "Pair", "Pieces", "Subwords", "Symbols", "Tokenizer", "Words", "load", "remove", "save", "saved",
    "sentences", "split",
]  # fmt: skip

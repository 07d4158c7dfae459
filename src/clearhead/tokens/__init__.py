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

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .characters import Characters as Characters
    from .files import load as load
    from .files import remove as remove
    from .files import save as save
    from .files import saved as saved
    from .ids import split as split
    from .pair import Pair as Pair
    from .pieces import Pieces as Pieces
    from .sentences import sentences as sentences
    from .subwords import Subwords as Subwords
    from .symbols import Symbols as Symbols
    from .tokenizer import Tokenizer as Tokenizer
    from .words import Words as Words

lazy.public_names(__name__)

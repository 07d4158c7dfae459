"""SentencePiece models (Kudo and Richardson 2018), read and run without the library.

kinds.py        the kinds of pieces
model.py        Model: reads and writes a .spm file, encodes text into pieces, decodes pieces into text
normaliser.py   the replacements and the handling of spaces before a text is encoded
unigram.py      the most probable pieces (Kudo 2018)
bpe.py          byte pair encoding (Sennrich et al. 2016)
"""

from .kinds import BYTE, CONTROL, DEFINED, NORMAL, SPACE, UNKNOWN, UNUSED
from .model import Model

__all__ = ["BYTE", "CONTROL", "DEFINED", "NORMAL", "SPACE", "UNKNOWN", "UNUSED", "Model"]

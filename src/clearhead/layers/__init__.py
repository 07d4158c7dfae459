"""Tensor -> tensor: the parts every model is built from. Knows no file, no text and no model."""

from ..fast.cpu_decode import Swift
from ..fast.int8 import Int8, quantise
from .attention import PROJECTIONS, SCORES, Additive, Attention, Bilinear, Tap, attend
from .bias import Bias
from .block import Block
from .cache import Cache
from .embed import Patches, Tokens, resize
from .linear import Linear, Together
from .mask import Mask
from .memory import Memory
from .mlp import MLP
from .norm import NORMS, make_norm
from .positions import (
    POSITIONS,
    Alibi,
    Learned,
    Positions,
    Relative,
    Rotary,
    SinCos2d,
    Sinusoid,
    Vectors,
    grid,
    make_positions,
)
from .recurrent import Recurrent
from .stack import Stack

__all__ = [
    "MLP",
    "NORMS",
    "POSITIONS",
    "PROJECTIONS",
    "SCORES",
    "Additive",
    "Alibi",
    "Attention",
    "Bias",
    "Bilinear",
    "Block",
    "Cache",
    "Int8",
    "Learned",
    "Linear",
    "Mask",
    "Memory",
    "Patches",
    "Positions",
    "Recurrent",
    "Relative",
    "Rotary",
    "SinCos2d",
    "Sinusoid",
    "Stack",
    "Swift",
    "Tap",
    "Together",
    "Tokens",
    "Vectors",
    "attend",
    "grid",
    "make_norm",
    "make_positions",
    "quantise",
    "resize",
]

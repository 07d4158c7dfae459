"""The parts that all models are built from, tensor -> tensor: no files, no text, no models."""

from .attention import PROJECTIONS, Attention, Tap, attend
from .bias import Bias
from .block import Block, skip_rows
from .cache import Cache
from .conv import ConvNorm, ConvStem, Residual, ResidualStem
from .embed import Patches, Tokens, resize
from .linear import Linear, Readout, mean_of_tokens
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
    Rotary2d,
    SinCos2d,
    Sinusoid,
    Vectors,
    grid,
    make_positions,
)
from .recurrent import Recurrent
from .scores import SCORES, Additive, Bilinear, Dot
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
    "ConvNorm",
    "ConvStem",
    "Dot",
    "Learned",
    "Linear",
    "Mask",
    "Memory",
    "Patches",
    "Positions",
    "Readout",
    "Recurrent",
    "Relative",
    "Residual",
    "ResidualStem",
    "Rotary",
    "Rotary2d",
    "SinCos2d",
    "Sinusoid",
    "Stack",
    "Tap",
    "Tokens",
    "Vectors",
    "attend",
    "grid",
    "make_norm",
    "make_positions",
    "mean_of_tokens",
    "resize",
    "skip_rows",
]

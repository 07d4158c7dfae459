"""The parts that all models are built from, tensor -> tensor: no files, no text, no models."""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .attention import PROJECTIONS as PROJECTIONS
    from .attention import Attention as Attention
    from .attention import Tap as Tap
    from .attention import attend as attend
    from .bias import Bias as Bias
    from .block import Block as Block
    from .block import skip_rows as skip_rows
    from .cache import Cache as Cache
    from .conv import ConvNorm as ConvNorm
    from .conv import ConvStem as ConvStem
    from .conv import Residual as Residual
    from .conv import ResidualStem as ResidualStem
    from .embed import Patches as Patches
    from .embed import Tokens as Tokens
    from .embed import resize as resize
    from .linear import Linear as Linear
    from .linear import Readout as Readout
    from .linear import mean_of_tokens as mean_of_tokens
    from .mask import Mask as Mask
    from .memory import Memory as Memory
    from .mlp import MLP as MLP
    from .norm import NORMS as NORMS
    from .norm import make_norm as make_norm
    from .positions import POSITIONS as POSITIONS
    from .positions import Alibi as Alibi
    from .positions import Learned as Learned
    from .positions import Positions as Positions
    from .positions import Relative as Relative
    from .positions import Rotary as Rotary
    from .positions import Rotary2d as Rotary2d
    from .positions import SinCos2d as SinCos2d
    from .positions import Sinusoid as Sinusoid
    from .positions import Vectors as Vectors
    from .positions import grid as grid
    from .positions import make_positions as make_positions
    from .projection import ProjectionHead as ProjectionHead
    from .recurrent import Recurrent as Recurrent
    from .scores import SCORES as SCORES
    from .scores import Additive as Additive
    from .scores import Bilinear as Bilinear
    from .scores import Dot as Dot
    from .stack import Stack as Stack

lazy.public_names(__name__)

"""The same computation, faster: what decode/ and loaded models use instead of the plain modules where it pays.

accelerate     let a model's linear maps and norms use the fastest kernels for inference on a CPU
CpuDecoder     decode one token per row on a CPU, in few calls
GraphDecoder   decode on a GPU: Triton kernels in a CUDA graph, several tokens ahead of the host
quantised      copy a model with 8-bit weights
hooked         whether a module has a hook or a tap, so that it must not be skipped

models/ and layers/ do not use this folder. decode/runner.py alone chooses a decoder: `CpuDecoder.of` and
`GraphDecoder.of` return None for a model that they do not support, and then the model's own `step` is used.
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from ..models.hooks import Hooks as Hooks
    from ..models.hooks import hooked as hooked
    from .cpu_decode import CpuDecoder as CpuDecoder
    from .cuda_graph import GraphDecoder as GraphDecoder
    from .int8 import Int8 as Int8
    from .int8 import quantised as quantised
    from .products import accelerate as accelerate

lazy.public_names(__name__)

"""The same computation, faster: what decode/ and loaded models use instead of the plain modules where it pays.

accelerate     a model's linear maps and norms use the fastest kernels for inference on a CPU
CpuDecoder     one token per row through all blocks on a CPU, in few calls
GraphDecoder   the same on a GPU: Triton kernels in a CUDA graph, several tokens ahead of the host
quantised      a copy of a model with weights in 8 bits
hooked         whether somebody watches or edits a module, so that it must not be skipped

models/ and layers/ know nothing of this folder. decode/search.py is the one place that chooses a fast decoder; each
decoder's `of` returns None for a model that it does not know, and the model's own `step` is used.
"""

from .cpu_decode import CpuDecoder
from .cuda_graph import GraphDecoder
from .hooks import Hooks, hooked
from .int8 import Int8, quantised
from .products import accelerate

__all__ = ["CpuDecoder", "GraphDecoder", "Hooks", "Int8", "accelerate", "hooked", "quantised"]

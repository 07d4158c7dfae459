"""The structure of any model, ours or foreign: its layers, where inside each the attention and its heads are, and axes.

layers.py   lists of layers, the attention of each and its number of heads, and the addresses of blocks
axes.py     which axes of an output are channels, and which are tokens or places of an image

Everything that needs to know such a thing of a model asks here.
"""

from typing import TYPE_CHECKING

from ... import lazy

if TYPE_CHECKING:
    from .axes import Axes as Axes
    from .axes import OutputAxes as OutputAxes
    from .axes import first_tensor as first_tensor
    from .axes import record_layout as record_layout
    from .layers import KINDS as KINDS
    from .layers import Layer as Layer
    from .layers import LayerStack as LayerStack
    from .layers import attention_layers as attention_layers
    from .layers import first_convolution as first_convolution
    from .layers import has_matrix as has_matrix
    from .layers import layer_lists as layer_lists
    from .layers import layer_names as layer_names
    from .layers import layer_stack as layer_stack
    from .layers import view_addresses as view_addresses

lazy.public_names(__name__)

"""The way from a text, a pair of texts, an image or tensors to a model's arguments, and back to the names of tokens.

read_input     one input of a model: the arguments of a call, one row each, with the names of its tokens or patches
Inputs         many inputs of a model, as batches

A file for each kind of input (texts, pairs, images, tensors) says how it is read; `READERS` in read.py lists them by
what a model reads. To add a kind of input, write such a file and add its line there.
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from ..models.model import network as network
    from .batch import Batch as Batch
    from .batch import ModelInput as ModelInput
    from .batch import device_of as device_of
    from .read import Inputs as Inputs
    from .read import read_input as read_input

lazy.public_names(__name__)

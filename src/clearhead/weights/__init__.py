"""Models <-> files.

Bundle        a model with its tokenizer or image preprocessing
load, save    our own folder (config.json, model.safetensors, tokens.json) or Hugging Face's; GGUF files are only read
export        a model as a new folder that transformers or PEFT opens, with a model card
read_config   the family and the options of a folder's model
shipped       the models that come with the package, by name, each with its card
quantise      a model with 8-bit weights
parity        which tensors of a checkpoint were used, and how far its outputs are from the reference's
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from ..tokens.special import Special as Special
    from .bundle import Bundle as Bundle
    from .bundle import quantise as quantise
    from .exported import export as export
    from .fill import WeightsError as WeightsError
    from .folder import Card as Card
    from .folder import ModelLike as ModelLike
    from .folder import load as load
    from .folder import opened as opened
    from .folder import read_config as read_config
    from .folder import save as save
    from .folder import shipped as shipped
    from .parity import Certificate as Certificate
    from .parity import certificate as certificate
    from .parity import parity as parity
    from .parity import write_probe as write_probe

lazy.public_names(__name__)

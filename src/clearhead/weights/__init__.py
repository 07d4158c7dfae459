"""Models <-> files.

Bundle        a model with its tokenizer or image preprocessing
load, save    our own folder (config.json, model.safetensors, tokens.json) or Hugging Face's; GGUF files are only read
export        a model as a new folder that transformers or PEFT opens, with a model card
read_config   the family and the options of a folder's model
shipped       the models that come with the package, by name, each with its card
quantise      a model with 8-bit weights
certificate   which tensors of a checkpoint were used, and how far its outputs are from the reference's
"""

from ..tokens.special import Special
from .bundle import Bundle, quantise
from .exported import export
from .fill import WeightsError
from .folder import Card, load, read_config, save, shipped
from .parity import Certificate, certificate, write_probe

__all__ = [
    "Bundle",
    "Card",
    "Certificate",
    "Special",
    "WeightsError",
    "certificate",
    "export",
    "load",
    "quantise",
    "read_config",
    "save",
    "shipped",
    "write_probe",
]  # fmt: skip

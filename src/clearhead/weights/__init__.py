"""Folders <-> models.

Bundle        a model with its tokens and its config
load, save   our own folder (config.json, model.safetensors, tokens.json) or Hugging Face's; GGUF files are read
shipped      the models that come with the package, by name, each with its card
quantise     a model with weights in 8 bits
certificate  what became of every tensor of a checkpoint, and how far its answers are from the reference's
"""

from .bundle import Bundle, Special
from .fill import WeightsError
from .folder import load, read_config, save
from .parity import Certificate, certificate, write_probe
from .quantised import quantise
from .zoo import Card, shipped

__all__ = [
    "Bundle",
    "Card",
    "Certificate",
    "Special",
    "WeightsError",
    "certificate",
    "load",
    "quantise",
    "read_config",
    "save",
    "shipped",
    "write_probe",
]  # fmt: skip

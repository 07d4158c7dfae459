"""Folders <-> models.

Ready        a model with its tokens and its config
load, save   our own folder (config.json, model.safetensors, tokens.json) or Hugging Face's; GGUF files are read
certificate  what became of every tensor of a checkpoint, and how far its answers are from the reference's
"""

from .fill import WeightsError
from .folder import load, save
from .parity import Certificate, certificate, write_probe
from .ready import Ready, Special

__all__ = ["Certificate", "Ready", "Special", "WeightsError", "certificate", "load", "save", "write_probe"]

"""Folders <-> models.

Ready        a model with its tokens and its config
load, save   our own folder (config.json, model.safetensors, tokens.json) or Hugging Face's
"""

from .fill import WeightsError
from .folder import load, save
from .ready import Ready, Special

__all__ = ["Ready", "Special", "WeightsError", "load", "save"]

"""Folders <-> models.

Ready        a model with its tokens and its config
save, load   our own folder: config.json, model.safetensors, tokens.json
"""

from .native import WeightsError, load, save
from .ready import Ready

__all__ = ["Ready", "WeightsError", "load", "save"]

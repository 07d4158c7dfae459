"""A small GPT of letters."""

import torch

import clearhead as ch
from clearhead.models import Model
from clearhead.tokens import Characters

TEXT = "to be or not to be"
TOKENS = Characters.of(TEXT)


def build(**options: object) -> Model:
    """A GPT with random weights, always the same ones."""
    torch.manual_seed(0)
    return ch.build("gpt", vocab=len(TOKENS), **{"width": 6, "depth": 1, "heads": 3, "context": 20} | options)

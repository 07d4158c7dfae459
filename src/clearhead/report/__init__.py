"""Figures and checks made with the folders above: plot, sweep, doctor."""

from .plot import plot
from .sweep import sweep

__all__ = ["plot", "sweep"]

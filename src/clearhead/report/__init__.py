"""Figures, reports and checks made with the folders above: plot, sweep, doctor, view, compare, figure."""

from .compare import Comparison, compare
from .figures import figure
from .plot import plot
from .sweep import sweep
from .views import view

__all__ = ["Comparison", "compare", "figure", "plot", "sweep", "view"]

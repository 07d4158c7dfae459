"""Figures, reports and checks made with the folders above: plot, sweep, doctor, view, compare, figure."""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .compare import Comparison as Comparison
    from .compare import compare as compare
    from .doctor import doctor as doctor
    from .figures import figure as figure
    from .plot import plot as plot
    from .sweep import sweep as sweep
    from .views import view as view

lazy.public_names(__name__)

"""report/: whole stories told with the rooms above.

plot    the curves of a training, and what its heads and blocks did meanwhile
"""

from .plot import plot

__all__ = ["plot"]

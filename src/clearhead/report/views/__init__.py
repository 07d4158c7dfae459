"""Views: every tool of `look` by one word, for a model and one input.

view         `view`, which finds a view by its name and runs it
attention    attention, cls, rollout, gradient-rollout, sinks
salience     saliency, perturbation
appearance   fields, features, filters, positions, patch-colours, neighbours
causes       lens, attribution, patching, heads, effects
time_limit   the estimate of a view's time, and the limit
"""

from typing import TYPE_CHECKING

from ... import lazy

if TYPE_CHECKING:
    from .view import VIEWS as VIEWS
    from .view import fitting as fitting
    from .view import view as view

lazy.public_names(__name__)

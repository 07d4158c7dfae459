"""Logits -> ids: one search loop for every model that has `start` and `step`, RNN and Transformer alike.

search(model, {"source": ids, "lengths": lengths}, Plan(start=1, end=2, beams=5))     the best answers for every source
search(model, {}, Plan(start=prompts, end=0, choice=Choice(sample=True, top_p=0.9)))  a sample after every prompt
stream(...)                                                                           the same, token by token
follow(...)                                                                           the beams after every step
forced(model, inputs, ids, targets)                                                   log-probabilities of given ids
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .forced import Ensemble as Ensemble
    from .forced import forced as forced
    from .plan import STOPS as STOPS
    from .plan import Hypothesis as Hypothesis
    from .plan import Plan as Plan
    from .sampling import Choice as Choice
    from .search import follow as follow
    from .search import search as search
    from .search import stream as stream

lazy.public_names(__name__)

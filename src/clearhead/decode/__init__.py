"""Logits -> ids: one search loop for every model that has `start` and `step`, RNN and Transformer alike.

search(model, {"source": ids, "lengths": lengths}, Plan(start=1, end=2, beams=5))     the best answers for every source
search(model, {}, Plan(start=prompts, end=0, choice=Choice(sample=True, top_p=0.9)))  a sample after every prompt
stream(...)                                                                           the same, token by token
follow(...)                                                                           the beams after every step
forced(model, inputs, ids, targets)                                                   log-probabilities of given ids
"""

from .forced import Ensemble, forced
from .plan import STOPS, Hypothesis, Plan
from .sampling import Choice
from .search import follow, search, stream

__all__ = ["STOPS", "Choice", "Ensemble", "Hypothesis", "Plan", "follow", "forced", "search", "stream"]

"""decode/: logits -> ids. One search loop for every model that can `start` and `step`, RNN and Transformer alike.

found = search(model, {"source": ids, "lengths": lengths}, start=1, end=2, beams=5)      # n-best lists, a row each
forced(model, inputs, ids)                                                              # log-probabilities of given tokens
"""

from .forced import Ensemble, forced
from .search import STOPS, Hypothesis, search

__all__ = ["STOPS", "Ensemble", "Hypothesis", "forced", "search"]

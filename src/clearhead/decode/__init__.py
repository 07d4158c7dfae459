"""decode/: logits -> ids. One search loop for every model that can `start` and `step`, RNN and Transformer alike.

search(model, {"source": ids, "lengths": lengths}, start=1, end=2, beams=5)     the best answers of every row
forced(model, inputs, ids, targets)                                             what the model thinks of given ones
"""

from .forced import Ensemble, forced
from .search import STOPS, Hypothesis, search

__all__ = ["STOPS", "Ensemble", "Hypothesis", "forced", "search"]

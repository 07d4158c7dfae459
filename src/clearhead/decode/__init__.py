"""decode/: logits -> ids. One search loop for every model that can `start` and `step`, RNN and Transformer alike.

search(model, {"source": ids, "lengths": lengths}, start=1, end=2, beams=5)     the best answers of every row
search(model, {}, start=prompts, end=0, choice=Choice(sample=True, top_p=0.9))  what is drawn after each prompt
stream(...)                                                                     the same, token by token
follow(...)                                                                     a search as it goes: its beams
forced(model, inputs, ids, targets)                                             what the model thinks of given ones
"""

from .forced import Ensemble, forced
from .sampling import Choice
from .search import STOPS, Hypothesis, Plan, follow, search, stream

__all__ = ["STOPS", "Choice", "Ensemble", "Hypothesis", "Plan", "follow", "forced", "search", "stream"]

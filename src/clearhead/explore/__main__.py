"""`python -m clearhead.explore` prints the worked example."""

from .worked import tell

print(tell())

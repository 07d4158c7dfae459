"""`python -m clearhead.explore` prints the worked example; `clearhead explore` opens the page."""

from .worked import tell

print(tell())

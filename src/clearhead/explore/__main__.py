"""`python -m clearhead.explore` prints the worked example; `clearhead explore` opens the page."""

from .build import tell

print(tell())

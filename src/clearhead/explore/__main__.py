"""`python -m clearhead.explore` prints the worked example, and how to open the page; it takes no arguments."""

import sys

from .build import tell

words = " ".join(sys.argv[1:])
if words:
    print(
        f"python -m clearhead.explore {words}: expected no arguments, it prints the worked example; the page is "
        f"opened by: clearhead explore {words}",
        file=sys.stderr,
    )
    sys.exit(2)
print(f"{tell()}\n\nclearhead explore opens a page that changes these numbers: its Build view.")

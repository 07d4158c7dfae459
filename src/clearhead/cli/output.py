"""What is printed: results on stdout; progress and notices on stderr."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def rank() -> int:
    """Which of several workers this is, under torchrun."""
    return int(os.environ.get("RANK", "0"))


def show(result: Any, as_json: bool) -> None:
    """Print a result: plain values as JSON, or whatever rich can draw. Of several workers, the first does."""
    if rank():
        return
    if as_json:
        print(json.dumps(result if isinstance(result, dict | list) else result.to_dict(), allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 10_000  # nothing is wrapped or cut for a file
    console.print(result, soft_wrap=isinstance(result, str))


def rows(*rows: tuple[str, ...]) -> Any:
    """A table of columns without lines."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, told how many more of how many things are done; for one thing, and for a file, nothing."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda n, total: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", visible=False)

        def done(n: int, total: int) -> None:
            bar.update(task, advance=n, total=total, visible=total > 1)

        yield done


@contextmanager
def notices() -> Iterator[None]:
    """What is done otherwise than asked is told in a sentence, without its place in the code."""
    from ..errors import Notice

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def said(message: Warning | str, category: type[Warning], *where: Any, **how: Any) -> None:
            if issubclass(category, Notice):
                print(message, file=sys.stderr)
            else:
                usual(message, category, *where, **how)

        warnings.simplefilter("always", Notice)
        warnings.showwarning = said
        yield

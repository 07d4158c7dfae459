"""Print results to stdout, progress and notices to stderr."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def rank() -> int:
    """The rank of this process under torchrun, else 0."""
    return int(os.environ.get("RANK", "0"))


def show(result: Any, as_json: bool) -> None:
    """Print a result as JSON, or as rich renders it. Under torchrun only rank 0 prints."""
    # All ranks compute the same result.
    if rank():
        return
    if as_json:
        values = result if isinstance(result, dict | list) else result.to_dict()
        # NaN and infinity are not JSON, and other programs would refuse the whole line.
        print(json.dumps(values, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 10_000  # no line is wrapped or cut in a file
    console.print(result, soft_wrap=isinstance(result, str))


def show_table(texts: dict[str, str], as_json: bool) -> None:
    """Print named texts as JSON, or as a table with a row for each."""
    show(texts if as_json else rows(*texts.items()), as_json)


def rows(*rows: tuple[str, ...]) -> Any:
    """A table without lines and header, for `show`."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def progress(*, beside_results: bool = False) -> Iterator[Callable[[float, int | None], None]]:
    """A progress bar on stderr, if that is a terminal; what it yields is called with (newly done, total if known).

    With `beside_results`, stdout shows the results as they come, and there is no bar if it is a terminal too.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # The lines of the results and the bar would overwrite one another.
    if not console.is_terminal or (beside_results and sys.stdout.isatty()):
        yield lambda n, total: None
        return
    # Results on stdout must not pass through the bar.
    with Progress(console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", visible=False, total=None)

        def done(n: float, total: int | None) -> None:
            # Work of a single step needs no bar.
            bar.update(task, advance=n, total=total, visible=total is None or total > 1)

        yield done


@contextmanager
def notices() -> Iterator[None]:
    """Print each Notice as a plain sentence on stderr, without its place in the code."""
    from ..errors import Notice

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def print_notice(
            message: Warning | str, category: type[Warning], *where: Any, **how: Any
        ) -> None:
            # Others, such as deprecations, keep their place in the code.
            if issubclass(category, Notice):
                print(message, file=sys.stderr)
            else:
                usual(message, category, *where, **how)

        # Python shows a warning once per place; a Notice about every file counts.
        warnings.simplefilter("always", Notice)
        warnings.showwarning = print_notice
        yield

"""The functions that a decorator registers by name, such as views and figures, read from source.

Help and completion must be fast, and importing the functions would import torch.
"""

from __future__ import annotations

import ast
import textwrap
from functools import cache

from .option_help import SOURCE, WIDTH, options_of

# files of the package, and the decorator
VIEWS = ("report/views/*.py", "view_of")
SECTIONS = ("report/compare/*.py", "section_of")
FIGURES = ("report/figures.py", "figure_of")


@cache
def registered(files: str, decorator: str) -> dict[str, tuple[str, ast.FunctionDef]]:
    """The registered functions by name: the file of each, relative to the package, and its syntax tree."""
    found = {}
    for path in sorted(SOURCE.glob(files)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                # Matched by the decorator's name: nothing is imported.
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == decorator:
                    assert isinstance(node, ast.FunctionDef)
                    # The first argument of the decorator is the name that users write.
                    name = ast.literal_eval(call.args[0])
                    found[name] = (str(path.relative_to(SOURCE)), node)
    return dict(sorted(found.items()))


def names(kind: tuple[str, str]) -> list[str]:
    """The names of all registered functions of a kind."""
    return list(registered(*kind))


def summaries(kind: tuple[str, str]) -> dict[str, str]:
    """The first line of each function's docstring, by name."""
    return {
        name: (ast.get_docstring(node) or "").splitlines()[0]
        for name, (_, node) in registered(*kind).items()
    }


def views_help() -> str:
    """A paragraph that lists all views, each with its options."""
    lines = ["Views, with their options, written name=value:"]
    for name, (file, node) in registered(*VIEWS).items():
        summary = (ast.get_docstring(node) or "").splitlines()[0]
        # A view's summary, and indented below it each option with its meaning.
        lines += textwrap.wrap(
            f"{name}: {summary}", WIDTH, initial_indent="  ", subsequent_indent="    "
        )
        for option, meaning in options_of(file, node.name):
            first, *more = textwrap.wrap(meaning, WIDTH - 26) or [""]
            lines += [f"      {option:<16}  {first}", *(" " * 24 + line for line in more)]
    return "\b\n" + "\n".join(lines)

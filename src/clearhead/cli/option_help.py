"""The keyword options of a function for the help of its subcommand, read from source because help must be fast.

Importing the function would import torch.
"""

from __future__ import annotations

import ast
import re
import shutil
import textwrap
from functools import cache
from pathlib import Path

from .arguments import NOT_OPTIONS

SOURCE = Path(__file__).parent.parent
WIDTH = max(60, min(shutil.get_terminal_size().columns, 110) - 4)  # characters of a line of help


@cache
def options_of(file: str, function: str) -> list[tuple[str, str]]:
    """The keyword arguments of a function that are options, like beams=5, each with its meaning.

    `file` is relative to the package, like tasks/generate.py; the meanings come from the docstring's Args section.
    """
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    named = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
    node = named[-1]  # the overloads for type checkers come before it
    meanings = argument_docs(ast.get_docstring(node) or "")
    constants = {
        target.id: n.value
        for n in tree.body
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Name)
    }
    rows = []
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if argument.arg not in NOT_OPTIONS:
            # In kw_defaults a missing default is None; a default of None is a node.
            if default is None:
                text = "None"
            else:
                # A default that is a constant of the module is shown by its value.
                text = ast.unparse(constants.get(getattr(default, "id", ""), default))
            # Written as in TOML, which has no null: a missing default is empty.
            value = {"None": "", "()": "", "True": "true", "False": "false"}.get(text, text)
            rows.append((f"{argument.arg}={value}", meanings.get(argument.arg, "")))
    return rows


@cache
def options_help(file: str, function: str) -> str:
    """A paragraph that lists the keyword arguments of a function, each with its default and its meaning."""
    rows = options_of(file, function)
    wide = max(len(name) for name, _ in rows)
    lines = ["Options, written name=value:"]
    for name, meaning in rows:
        # Further lines of a meaning are indented below its first.
        first, *more = textwrap.wrap(meaning, WIDTH - wide - 4) or [""]
        lines += [f"  {name:<{wide}}  {first}", *(" " * (wide + 4) + line for line in more)]
    return "\b\n" + "\n".join(lines)


def argument_docs(docstring: str) -> dict[str, str]:
    """The arguments in a docstring's Args section, with their meanings."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", docstring, re.MULTILINE)
    meanings: dict[str, str] = {}
    for line in (section[1] if section else "").splitlines():
        if entry := re.match(r"    (\w+): (.*)", line):
            # "name: meaning" begins an argument.
            name, meanings[entry[1]] = entry[1], entry[2]
        elif line.strip() and meanings:
            # A line that is indented further continues the meaning of the last argument.
            meanings[name] += " " + line.strip()
    return meanings

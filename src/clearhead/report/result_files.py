"""Write a result with a figure to a file: PNG, SVG, PDF, HTML or JSON, by the ending of its name."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import draw
from ..atomic_files import atomic_write
from ..draw import Result, Table
from ..errors import InputError

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  background: light-dark(#fff, #14181d); color: light-dark(#1f2933, #dde3ea); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.row { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
figure { margin: 0; max-width: min(100%, 30rem); }
img { background: #fff; border-radius: 6px; max-width: 100%; padding: 6px; box-sizing: border-box; }
figcaption, .quiet { color: light-dark(#66717d, #9aa5b1); font-size: .9rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .25rem 1.2rem .25rem 0; text-align: left; border-bottom: 1px solid light-dark(#e3e6ea, #2c343d); }
"""


def page(title: str, body: str) -> str:
    """An HTML page that needs nothing else: styles inside, light and dark.

    Args:
        title: Its title, as plain text.
        body: Its content, as HTML.
    """
    # Titles and captions may be texts of the user.
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<h1>{name}</h1>\n{body}\n</body>\n</html>\n"
    )


def picture(figure: Any, caption: str = "") -> str:
    """A figure as an HTML element with the picture inside.

    Args:
        figure: A figure of `draw`.
        caption: A line below it, as plain text.
    """
    # Inside the page as base64, so that the file needs no others.
    data = base64.b64encode(draw.encode(figure)).decode()
    words = html.escape(caption)
    below = f"<figcaption>{words}</figcaption>" if caption else ""
    return f'<figure><img alt="{words or "figure"}" src="data:image/png;base64,{data}">{below}</figure>'


def table_html(table: Table) -> str:
    """A table as an HTML element.

    Args:
        table: The columns and rows.
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    lines = [head]
    for row in table.cells():
        # Cells may contain text of the user, such as "<".
        lines.append("".join(f"<td>{html.escape(cell)}</td>" for cell in row))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _json(result: Result, _: str) -> bytes:
    return json.dumps(result.to_dict(), allow_nan=False).encode()


def _html(result: Result, title: str) -> bytes:
    return page(title, picture(result.figure(), title)).encode()


# what a file contains, by the ending of its name
WRITERS: dict[str, Callable[[Result, str], bytes]] = {
    ".png": lambda result, _: draw.encode(result.figure(), dpi=draw.FILE_DPI),
    ".svg": lambda result, _: draw.encode(result.figure(), "svg"),
    ".pdf": lambda result, _: draw.encode(result.figure(), "pdf"),
    ".html": _html,
    ".json": _json,
}


def check_file(path: Path) -> None:
    """Raise if a file has no known ending, or if it cannot be written; before the work is done."""
    # The ending decides the format, so an unknown one is an error.
    if path.suffix.lower() not in WRITERS:
        raise InputError(f"{path}: expected the name of a file that ends in {', '.join(WRITERS)}")
    if path.is_dir():
        raise InputError(f"{path}: this is a folder, expected the name of a file")


def write_result(result: Result, path: Path, title: str = "") -> Path:
    """Write a result to a file, whose ending is the format; a missing folder is created.

    Args:
        result: What a function of `look` or a view returns.
        path: The file.
        title: The title of a page of HTML.

    Returns:
        The path of the file.
    """
    check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Atomic: an interrupted write leaves the old file, not half of a new one.
    atomic_write(path, WRITERS[path.suffix.lower()](result, title or path.stem))
    return path

"""Docstrings and code as HTML in which the public names are links to their entries in the reference."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from public_names import Public, members, recipe_options
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

RECIPES = "api-recipes.html"


def page_name(module: str) -> str:
    """The file that describes a module."""
    return f"api-{module.removeprefix('clearhead.')}.html"


@dataclass(frozen=True)
class Scope:
    """Where a text is, which decides what the names in it refer to."""

    page: str  # the file
    module: str  # the module that the page describes
    source: str  # the module whose source the text is from
    address: str = ""  # the entry that the text belongs to, which does not link to itself
    owner: str = ""  # the class of a method, by its full name
    arguments: frozenset[str] = frozenset()  # these are no links, whatever else has their name


class Links:
    """The addresses of all public names, and HTML that links to them.

    Args:
        names: The public names of each module.
        markdown: Turns Markdown into HTML.
    """

    def __init__(
        self, names: Mapping[str, Sequence[Public]], markdown: Callable[[str], str]
    ) -> None:
        self.markdown = markdown
        self.addresses = {module: page_name(module) for module in names}  # by full name
        self.by_object: dict[int, str] = {}
        for one in (one for group in names.values() for one in group):
            address = f"{page_name(one.home)}#{one.name}"
            self.addresses[one.full_name] = address
            self.addresses |= {
                f"{one.full_name}.{name}": f"{address}.{name}" for name in members(one.thing)
            }
            self.by_object.setdefault(id(one.thing), address)
        for options in recipe_options():
            self.by_object.setdefault(id(options.config), f"{RECIPES}#{options.anchor}")

    def text(self, text: str, scope: Scope) -> str:
        """Markdown as HTML; names in `code` become links, and tables that are set with spaces keep their columns."""
        blocks = [
            f"```text\n{block}\n```" if _is_table(block) else block for block in text.split("\n\n")
        ]
        html = self.markdown("\n\n".join(blocks))
        return re.sub(
            r"<code>(([A-Za-z_][\w.]*)(?:\(.*?\))?)</code>",
            lambda match: self._words(match, scope),
            html,
        )

    def inline(self, text: str, scope: Scope) -> str:
        """The same for one paragraph, without the tags of a paragraph."""
        return self.text(text, scope).strip().removeprefix("<p>").removesuffix("</p>")

    def code(self, code: str, scope: Scope, lexer: str = "python", *, inline: bool = False) -> str:
        """Highlighted code; public classes become links."""
        html = highlight(
            code, get_lexer_by_name(lexer), HtmlFormatter(cssclass="code", nowrap=inline)
        )
        html = f"<code>{html.strip()}</code>" if inline else html
        return re.sub(
            r'(?<=<span class="n">)\w+(?=</span>)', lambda match: self._class(match[0], scope), html
        )

    def _words(self, match: re.Match[str], scope: Scope) -> str:
        code, words, name = match[0], match[1], match[2]
        if name in scope.arguments:
            return code
        paths = [f"{base}.{name}" for base in (scope.owner, scope.module, "clearhead") if base]
        address = next(
            (self.addresses[path] for path in [*paths, name] if path in self.addresses), ""
        )
        address = address or self.by_object.get(id(vars(sys.modules[scope.source]).get(name)), "")
        return _link(address, f"<code>{words}</code>", scope)

    def _class(self, name: str, scope: Scope) -> str:
        kind = vars(sys.modules[scope.source]).get(name)
        if isinstance(kind, type):
            return _link(self.by_object.get(id(kind), ""), name, scope)
        if kind is not None or name in scope.arguments or not name[0].isupper():
            return name
        # A class that is imported for type checkers only.
        same = {address for path, address in self.addresses.items() if path.endswith(f".{name}")}
        return _link(same.pop() if len(same) == 1 else "", name, scope)


def relative(address: str, page: str) -> str:
    """An address as a link from a page."""
    return address.removeprefix(page) or address


def _link(address: str, html: str, scope: Scope) -> str:
    # the entry itself, or that of its class
    if not address or f"{scope.address}.".startswith(f"{address}."):
        return html
    return f'<a href="{relative(address, scope.page)}">{html}</a>'


def _is_table(block: str) -> bool:
    """Whether a paragraph of a docstring is a table whose columns are set with spaces."""
    lines = block.splitlines()
    return (
        len(lines) > 1
        and all(re.search(r"\S {2,}\S", line) for line in lines)
        and not block.startswith("    ")
    )

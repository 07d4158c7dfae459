"""The API reference: a page per public module, made of signatures, docstrings and the comments beside fields.

Written with `inspect` and `ast` instead of pdoc or griffe: neither reads the comment beside a field, which is how our
options are documented, and their templates would have to be rewritten to look and link like the rest of the site.
"""

from __future__ import annotations

import inspect
import pprint
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import docstrings
from api_links import RECIPES, Links, Scope, page_name, relative
from docstrings import Doc, Parameter
from public_names import MODULES, Public, members, public, recipe_options

ROOT = Path(__file__).parent.parent
NAMES = "api-names.html"
ABOUT_NAMES = (
    f"Every public name, by module. The options of recipes have [a page of their own]({RECIPES})."
)
ABOUT_RECIPES = """A recipe is a TOML file that decides everything about a training; `train` reads it. Below are its
sections with all options, their types, defaults and meanings. `clearhead recipe` prints the same."""
LINE = 88  # characters of a signature that fit on one line
VALUE = 20  # lines that are shown of a constant


@dataclass(frozen=True)
class ApiPage:
    """A page of the reference: the name of its file, its title, and its HTML."""

    name: str
    title: str
    body: str


class Reference:
    """Writes the pages of the reference.

    Args:
        markdown: Turns Markdown into HTML.
    """

    def __init__(self, markdown: Callable[[str], str]) -> None:
        self.names = {module: public(module) for module in MODULES}
        self.links = Links(self.names, markdown)

    def pages(self) -> list[ApiPage]:
        """All pages, in their order."""
        first, *others = (
            ApiPage(page_name(module), module, self._module(module)) for module in MODULES
        )
        recipes = ApiPage(RECIPES, "Recipes", self._recipes())
        return [first, recipes, *others, ApiPage(NAMES, "All names", self._all_names())]

    # Pages

    def _module(self, module: str) -> str:
        names = self.names[module]
        groups: dict[str, list[Public]] = {}
        for one in names:
            groups.setdefault(one.group, []).append(one)
        tables = [
            _table(group, (self._row(one, page_name(module)) for one in ones))
            for group, ones in groups.items()
        ]
        if module == "clearhead":
            tables.append(_table("Modules", map(self._module_row, MODULES[1:])))
        text = self.links.text(
            inspect.getdoc(import_module(module)) or "", Scope(page_name(module), module, module)
        )
        return "\n".join([f"<h1>{module}</h1>", text, *tables, *map(self._entry, names)])

    def _recipes(self) -> str:
        parts = [
            "<h1>Recipes</h1>",
            self.links.text(ABOUT_RECIPES, Scope(RECIPES, "clearhead", "clearhead")),
        ]
        section = None
        for options in recipe_options():
            if options.section != section:
                section = options.section
                parts.append(
                    _heading(2, section or "recipe", f"[{section}]" if section else "Top level")
                )
            if options.name:
                parts.append(_heading(3, options.anchor, options.name))
            source = options.config.__module__
            scope = Scope(RECIPES, "clearhead.training", source, f"{RECIPES}#{options.anchor}")
            fields = self._list("", docstrings.attributes(options.config), scope)
            parts += [
                self.links.text(options.summary, scope),
                fields or "<p>It has no options.</p>",
            ]
        return "\n".join(parts)

    def _all_names(self) -> str:
        parts = ["<h1>All names</h1>", self.links.markdown(ABOUT_NAMES)]
        for module, names in self.names.items():
            rows = (self._row(one, NAMES) for one in names if one.home == module)
            parts.append(_table(f'<a href="{page_name(module)}">{module}</a>', rows))
        return "\n".join(parts)

    def _row(self, one: Public, page: str) -> str:
        scope = Scope(page, one.module, one.module, self.links.addresses[one.full_name])
        link = f'<a href="{relative(scope.address, page)}"><code>{one.name}</code></a>'
        return f"<tr><td>{link}</td>\n<td>{self.links.inline(one.doc.summary, scope)}</td></tr>"

    def _module_row(self, module: str) -> str:
        summary = docstrings.parse(inspect.getdoc(import_module(module)) or "").summary
        text = self.links.inline(summary, Scope(page_name("clearhead"), module, module))
        return f'<tr><td><a href="{page_name(module)}"><code>{module}</code></a></td>\n<td>{text}</td></tr>'

    # Entries

    def _entry(self, one: Public) -> str:
        """The section of a public name; a short one if it is described on another page."""
        address = self.links.addresses[one.full_name]
        source = one.module if one.group == "Constants" else one.thing.__module__
        scope = Scope(page_name(one.module), one.module, source, address)
        if one.home != one.module:
            link = f'<a href="{address}"><code>{one.home}.{one.name}</code></a>'
            summary = self.links.text(one.doc.summary, scope)
            return f"{_heading(2, one.name, one.name)}\n{summary}<p>Described as {link}.</p>"
        if one.group == "Constants":
            return self._constant(one, scope)
        parts = [
            _heading(2, one.name, one.name, _place(one.thing)),
            self._body(one.full_name, one.thing, one.doc, scope),
        ]
        for name, member in members(one.thing).items():
            title, function = f"{one.name}.{name}", docstrings.function_of(member)
            inner = replace(scope, address=f"{address}.{name}", owner=one.full_name)
            doc = docstrings.parse(inspect.getdoc(function) or "")
            parts += [
                _heading(3, title, title, _place(function)),
                self._body(title, member, doc, inner),
            ]
        return "\n".join(parts)

    def _constant(self, one: Public, scope: Scope) -> str:
        module, line, comment = docstrings.constant(import_module(one.module), one.name)
        value = pprint.pformat(one.thing, width=LINE, sort_dicts=False)
        # by name, without the address
        value = re.sub(r"<(?:function|class) '?([\w.]+)'?(?: at 0x\w+)?>", r"\1", value)
        lines = docstrings.double_quotes(re.sub(r" at 0x\w+", "", value)).splitlines()
        value = "\n".join(lines[:VALUE] + ["..."] * (len(lines) > VALUE))
        heading = _heading(2, one.name, one.name, f"{_path(module.__file__)}:{line}")
        code = self.links.code(f"{one.full_name} = {value}", scope).replace(
            'class="code"', 'class="code signature"', 1
        )
        return f"{heading}\n{code}\n{self.links.text(comment, scope)}"

    def _body(self, title: str, thing: Any, doc: Doc, scope: Scope) -> str:
        """The signature, the text and the sections of a function, a class or a member of a class."""
        parameters, returns = docstrings.parameters(thing)
        by_name = {one.name.lstrip("*"): one for one in parameters}
        scope = replace(scope, arguments=frozenset(by_name))
        arguments = [
            replace(one, comment=doc.args[name])
            for name, one in by_name.items()
            if name in doc.args
        ]
        attributes = {
            name: Parameter(name, comment=text)
            for name, text in doc.args.items()
            if name not in by_name
        }
        if isinstance(thing, type):
            own = [
                replace(one, comment=doc.args.get(one.name, one.comment))
                for one in docstrings.attributes(thing)
            ]
            arguments, own = (own, []) if is_dataclass(thing) else (arguments, own)
            attributes |= {one.name: one for one in own}
        raises = [Parameter(name, comment=text) for name, text in doc.raises.items()]
        # The signature has the types, except that of a dataclass, which has them beside its fields.
        named = "Fields" if is_dataclass(thing) else "Arguments"
        parts = [
            self._signature(title, thing, parameters, returns, scope),
            self.links.text(f"{doc.summary}\n\n{doc.text}", scope),
            self._list(named, arguments, scope, types=is_dataclass(thing)),
            self._list("Attributes", attributes.values(), scope),
            doc.returns and f'<p class="part">Returns</p>\n{self.links.text(doc.returns, scope)}',
            self._list("Raises", raises, scope, types=False),
            doc.examples
            and f'<p class="part">Examples</p>\n{self.links.code(doc.examples, scope, "pycon")}',
        ]
        return "\n".join(filter(None, parts))

    def _signature(
        self, title: str, thing: Any, parameters: list[Parameter], returns: str, scope: Scope
    ) -> str:
        """A signature on one line, or with one line per parameter."""
        is_class = isinstance(thing, type)
        if is_class and issubclass(thing, BaseException):
            parameters = [Parameter(base.__name__) for base in thing.__bases__]
        listed = [one.untyped if is_dataclass(thing) else str(one) for one in parameters]
        arrow = f" -> {returns}" if returns and not is_class else ""
        line = f"{title}({', '.join(listed)}){arrow}" if listed or not is_class else title
        if len(line) > LINE:
            line = f"{title}(\n" + "".join(f"    {one},\n" for one in listed) + f"){arrow}"
        if isinstance(thing, property | cached_property):
            line = f"{title}: {returns}"
        html = self.links.code(line, scope).replace('class="code"', 'class="code signature"', 1)
        return html.replace("<pre>", '<pre><span class="k">class</span> ', 1) if is_class else html

    def _list(
        self, title: str, entries: Iterable[Parameter], scope: Scope, *, types: bool = True
    ) -> str:
        """Names with their meanings, and with the words that a type allows if the meaning does not list them."""
        rows = []
        for one in entries:
            words, meaning = docstrings.choices(one.type, scope.source), one.comment
            if any(word not in re.findall(r"[\w=]+", meaning) for word in words):
                listed = ", ".join(f'`"{word}"`' for word in words)
                meaning = f"{meaning.rstrip('.')}; one of {listed}".removeprefix("; ")
            code = self.links.code(str(one) if types else one.name, scope, inline=True)
            rows.append(f"<dt>{code}</dt>\n<dd>{self.links.text(meaning, scope)}</dd>\n")
        heading = f'<p class="part">{title}</p>\n' if title else ""
        return (
            f'{heading}<dl class="{"typed" if types else "plain"}">{"".join(rows)}</dl>'
            if rows
            else ""
        )


def _heading(level: int, anchor: str, words: str, place: str = "") -> str:
    """A heading that links to itself, with a place in the source beside it."""
    beside = f'\n<p class="source">{place}</p>' if place else ""
    return f'<div class="head"><h{level} id="{anchor}"><a href="#{anchor}">{escape(words)}</a></h{level}>{beside}</div>'


def _table(title: str, rows: Iterable[str]) -> str:
    return f'<table class="names"><caption>{title}</caption>{"".join(rows)}</table>'


def _place(thing: Any) -> str:
    """The file and line of a function or class."""
    thing = inspect.unwrap(thing)
    return f"{_path(inspect.getsourcefile(thing))}:{inspect.getsourcelines(thing)[1]}"


def _path(file: str | None) -> str:
    path = Path(file or "").resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)

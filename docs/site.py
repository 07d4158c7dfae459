"""Make a site of the pages and the API reference: `make docs`, or `python docs/site.py FOLDER`; open its index.html.

README.md is the front page, docs/*.md follow in their order, then the reference that `api` makes of the docstrings. The
site works from a disk: it loads nothing from elsewhere, and its one script, the search, has its index inside. Without
JavaScript only the search box is missing. A link to a page, heading or file that does not exist is an error.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from api import Reference
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from matplotlib import rc_context
from matplotlib.textpath import TextPath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

ROOT = Path(__file__).parent.parent
LIGHT, DARK = "default", "github-dark"  # the colours of code
# a line of a block of commands
COMMANDS = re.compile(r"((clearhead|make|python|pip|torchrun) .*|)\n?")
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?![\s$])([^$`\n]+?)(?<!\s)\$(?!\w)", re.DOTALL)
STROKES = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # matplotlib's path codes -> SVG commands
BLOCK = re.compile(r"(?=</?(?:p|div|pre|table|caption|tr|td|th|dl|dt|dd|ul|ol|li)\b)")
UNSEARCHED = re.compile(
    r'<div class="code signature">.*?</div>|<p class="source">.*?</p>', re.DOTALL
)
HEADING = re.compile(r'<h([1-3])(?: id="([^"]*)")?>(.*?)</h\1>', re.DOTALL)

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="style.css">
<script src="search.js" defer></script>
</head>
<body>
<a class="skip" href="#page">Skip to the page</a>
<nav aria-label="Pages">
<a class="name" href="index.html"><img src="icon.svg" alt="" width="24" height="24">clearhead</a>
<div class="search" role="search" hidden>
<input type="search" placeholder="Search" aria-label="Search names, headings and text" autocomplete="off">
<p role="status"></p>
<ul hidden></ul>
</div>
{groups}
</nav>
<main id="page">
{body}
<footer>{neighbours}</footer>
</main>
</body>
</html>
"""


@dataclass
class Page:
    """A page of the site; one that is made of a Markdown file has its source and its tokens."""

    name: str  # of its file in the site
    title: str = ""
    body: str = ""  # HTML
    source: Path | None = None
    tokens: list[Token] = field(default_factory=list)
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, anchor, text


def build(out: Path, root: Path = ROOT, *, reference: bool = True) -> list[str]:
    """Write the site into a folder; returns the names of its pages in their order."""
    reader = MarkdownIt("commonmark", {"html": False}, renderer_cls=Renderer).enable("table")
    reader.inline.ruler.before("escape", "formula", _formula)
    guide, files = _guide(root, reader)
    api = (
        [Page(page.name, page.title, page.body) for page in Reference(reader.render).pages()]
        if reference
        else []
    )
    for page in api:
        page.headings = [
            (int(level), anchor, _plain(text))
            for level, anchor, text in HEADING.findall(page.body)
            if anchor
        ]
    groups = {"Guide": guide, "Reference": api}
    out.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, out / name)
    (out / "style.css").write_text(_style(), encoding="utf-8")
    (out / "search.js").write_text(_search(groups), encoding="utf-8")
    for page in guide + api:
        (out / page.name).write_text(_whole(page, groups), encoding="utf-8")
    return [page.name for page in guide + api]


def _guide(root: Path, reader: MarkdownIt) -> tuple[list[Page], dict[str, Path]]:
    """The pages that are made of Markdown files, and the files to copy, by their names in the site."""
    pages = [
        Page(f"{path.stem}.html", source=path) for path in sorted((root / "docs").glob("*.md"))
    ]
    last = [
        Page(f"{name.lower()}.html", source=root / f"{name}.md")
        for name in ("CONTRIBUTING", "CHANGELOG")
    ]
    pages = [Page("index.html", source=root / "README.md"), *pages, *last]
    for page in pages:
        assert page.source is not None
        page.tokens = reader.parse(page.source.read_text(encoding="utf-8"))
        page.headings = list(_headings(page.tokens))
        page.title = "Overview" if page.name == "index.html" else page.headings[0][2]
    files = {"icon.svg": root / "src" / "clearhead" / "explore" / "page" / "icon.svg"}
    if problems := [
        problem for page in pages for problem in _resolve_links(page, pages, files, root.resolve())
    ]:
        raise ValueError("links that lead nowhere:\n" + "\n".join(problems))
    for page in pages:
        page.body = reader.renderer.render(page.tokens, reader.options, {})
    return pages, files


def _whole(page: Page, groups: dict[str, list[Page]]) -> str:
    """The complete HTML of a page: its content, the list of all pages, and links to the one before and after it."""
    lists = [
        f"<details{' open' * (page in pages)}><summary>{title}</summary>"
        f"<ol>{''.join(_listed(one, page) for one in pages)}</ol></details>"
        for title, pages in groups.items()
        if pages
    ]
    pages = [one for group in groups.values() for one in group]
    at = pages.index(page)
    before = [
        f'<a href="{one.name}" rel="prev">← {escape(one.title)}</a>'
        for one in pages[max(at - 1, 0) : at]
    ]
    after = [
        f'<a href="{one.name}" rel="next">{escape(one.title)} →</a>'
        for one in pages[at + 1 : at + 2]
    ]
    return PAGE.format(
        title=f"{escape(page.title)} · clearhead",
        groups="\n".join(lists),
        body=page.body,
        neighbours="".join([*before, *after]),
    )


def _listed(page: Page, current: Page) -> str:
    """A line of the list of pages; below the current page its headings."""
    title = escape(page.title.removeprefix("clearhead."))
    if page is not current:
        return f'<li><a href="{page.name}">{title}</a></li>\n'
    parts = "".join(
        f'<li><a href="#{to}">{escape(text)}</a></li>'
        for level, to, text in page.headings
        if level == 2
    )
    inner = f"<ul>{parts}</ul>" if parts else ""
    return f'<li><a href="{page.name}" aria-current="page">{title}</a>{inner}</li>\n'


def _style() -> str:
    light, dark = (HtmlFormatter(style=name).get_style_defs(".code") for name in (LIGHT, DARK))
    ours = Path(__file__).with_name("site.css").read_text(encoding="utf-8")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{ours}"


def _search(groups: dict[str, list[Page]]) -> str:
    """The script of the search with its index of all sections inside, because browsers fetch no files from a disk."""
    index = []
    for group, pages in groups.items():
        for page in pages:
            _, *parts = HEADING.split(UNSEARCHED.sub("", page.body))
            for _, anchor, heading, text in zip(*(parts[i::4] for i in range(4)), strict=True):
                address = f"{page.name}#{anchor}" if anchor else page.name
                index.append(
                    [_plain(heading), page.title, address, _plain(text), int(group == "Reference")]
                )
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in index)
    return f"const INDEX = [\n{rows}\n];\n" + Path(__file__).with_name("search.js").read_text(
        encoding="utf-8"
    )


def _plain(html: str) -> str:
    """The words of some HTML."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", BLOCK.sub(" ", html))).split())


# Markdown


def _headings(tokens: list[Token]) -> Iterator[tuple[int, str, str]]:
    """Each heading (level, anchor, text); sets the anchor, which is made of its words, on its token."""
    used: set[str] = set()
    for opened, inside in pairwise(tokens):
        if opened.type == "heading_open":
            text = "".join(child.content for child in inside.children or ())
            anchor = plain = re.sub(r"[^\w-]", "", text.lower().replace(" ", "-"))
            n = 1
            while anchor in used:
                anchor, n = f"{plain}-{n}", n + 1
            used.add(anchor)
            opened.attrSet("id", anchor)
            yield int(opened.tag[1]), anchor, text


def _resolve_links(
    page: Page, pages: list[Page], files: dict[str, Path], root: Path
) -> Iterator[str]:
    """Replace the links of a page by addresses in the site and collect the files to copy; yields what is not found."""
    assert page.source is not None
    for token in (child for block in page.tokens for child in block.children or ()):
        kind = {"link_open": "href", "image": "src"}.get(token.type)
        if kind is None:
            continue
        to = urlsplit(str(token.attrGet(kind)))
        if to.scheme:
            if kind == "src":
                yield f"{page.source.name}: the picture {to.geturl()} is not in the repository"
            continue
        target = (page.source.parent / to.path).resolve() if to.path else page.source.resolve()
        linked = next(
            (one for one in pages if one.source is not None and one.source.resolve() == target),
            None,
        )
        if linked is not None:
            if to.fragment and to.fragment not in {anchor for _, anchor, _ in linked.headings}:
                yield f"{page.source.name}: {to.geturl()}: there is no such heading"
            name = linked.name if to.path else ""
        elif target.is_file() and target.is_relative_to(root):
            suffix = "" if kind == "src" else ".txt"  # which every browser shows
            name = f"files/{target.relative_to(root)}{suffix}"
            files[name] = target
        else:
            yield f"{page.source.name}: {to.geturl()}: there is no such file"
            continue
        token.attrSet(kind, name + (f"#{to.fragment}" if to.fragment else ""))


def _formula(state: StateInline, silent: bool) -> bool:
    """Parse formulas as GitHub does: $within a line$, or $$on lines of their own$$."""
    if state.src[state.pos] != "$" or not (match := FORMULA.match(state.src, state.pos)):
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content, token.block = " ".join((match[1] or match[2]).split()), match[1] is not None
    state.pos = match.end()
    return True


class Renderer(RendererHTML):
    """Markdown's own HTML, except for code, formulas, pictures and tables."""

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        code, kind = tokens[idx].content, tokens[idx].info.strip()
        if not kind:
            kind = "bash" if all(COMMANDS.fullmatch(line) for line in code.splitlines()) else "text"
        return highlight(code, get_lexer_by_name(kind), HtmlFormatter(cssclass="code"))

    def code_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return self.fence(tokens, idx, options, env)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        # --flags stay whole
        words = re.sub(r"(?<!\S)-\S+", r"<span>\g<0></span>", escape(tokens[idx].content))
        return f"<code>{words}</code>"

    def formula(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return _draw(tokens[idx].content, own_line=tokens[idx].block)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        tokens[idx].attrSet("loading", "lazy")
        return super().image(tokens, idx, options, env)

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return '<div class="table" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return "</table></div>\n"


def _draw(formula: str, own_line: bool) -> str:
    """A formula as an SVG picture of the size and colour of the text around it."""
    em, plain = 100, formula.replace(r"\big", "")  # unknown to matplotlib
    # more space before what is summed
    plain = re.sub(r"(\\sum(?:[_^](?:\{[^}]*\}|\w))*)", r"\1\\,", plain)
    if own_line:
        plain = plain.replace(r"\frac", r"\dfrac")
    try:
        with rc_context({"mathtext.fontset": "stix"}):
            path = TextPath((0, 0), f"${plain}$", size=em)
    except ValueError as problem:
        raise ValueError(f"the formula {formula} cannot be drawn: {problem}") from problem
    box = path.get_extents().padded(2)
    strokes = [
        STROKES[int(code)]
        + (" ".join(f"{x:.1f},{-y:.1f}" for x, y in points.reshape(-1, 2)) if code != 79 else "")
        for points, code in path.iter_segments(simplify=False)
    ]
    style = f"width:{box.width / em:.3f}em;height:{box.height / em:.3f}em;vertical-align:{box.y0 / em:.3f}em"
    drawn = (
        f'<svg class="formula" role="img" aria-label="{escape(formula)}" style="{style}" '
        f'viewBox="{box.x0:.1f} {-box.y1:.1f} {box.width:.1f} {box.height:.1f}"><path d="{"".join(strokes)}"/></svg>'
    )
    return f'<span class="line" tabindex="0">{drawn}</span>' if own_line else drawn


if __name__ == "__main__":
    home = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site")
    try:
        build(home)
    except ValueError as problem:
        sys.exit(str(problem))
    print(home / "index.html")

"""Make a small site of the pages: `make docs`, or `python docs/site.py FOLDER`; then open its index.html.

README.md is the front page, docs/*.md follow in their order. No script and nothing from elsewhere, so it works from a
disk. A link that leads nowhere stops it, and is named with its page.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
COMMANDS = re.compile(r"((clearhead|make|python|pip|torchrun) .*|)\n?")  # a line of a block of commands
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?![\s$])([^$`\n]+?)(?<!\s)\$(?!\w)", re.DOTALL)
STROKES = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}  # matplotlib's codes in the words of SVG

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="style.css">
</head>
<body>
<a class="skip" href="#page">Skip to the page</a>
<nav aria-label="Pages">
<a class="name" href="index.html"><img src="icon.svg" alt="" width="24" height="24">clearhead</a>
<ol>{pages}</ol>
</nav>
<main id="page">
{body}
<footer>{ways}</footer>
</main>
</body>
</html>
"""


@dataclass
class Page:
    """A page on its way: where it comes from, what it is called, and the headings that were found in it."""

    source: Path
    name: str  # of its file in the site
    tokens: list[Token] = field(default_factory=list)
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, anchor, text

    @property
    def title(self) -> str:
        return "Overview" if self.name == "index.html" else self.headings[0][2]


def build(out: Path, root: Path = ROOT) -> list[str]:
    """Write the site into a folder; returns the names of its pages in their order."""
    pages = [Page(path, f"{path.stem}.html") for path in sorted((root / "docs").glob("*.md"))]
    pages = [Page(root / "README.md", "index.html"), *pages, Page(root / "CONTRIBUTING.md", "contributing.html")]
    reader = MarkdownIt("commonmark", {"html": False}, renderer_cls=Renderer).enable("table")
    reader.inline.ruler.before("escape", "formula", _formula)
    for page in pages:
        page.tokens = reader.parse(page.source.read_text(encoding="utf-8"))
        page.headings = list(_headings(page.tokens))
    files = {"icon.svg": root / "src" / "clearhead" / "explore" / "page" / "icon.svg"}
    if lost := [problem for page in pages for problem in _lead(page, pages, files)]:
        raise ValueError("links that lead nowhere:\n" + "\n".join(lost))
    out.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, out / name)
    (out / "style.css").write_text(_style(), encoding="utf-8")
    for page in pages:
        body = reader.renderer.render(page.tokens, reader.options, {})
        (out / page.name).write_text(_whole(page, pages, body), encoding="utf-8")
    return [page.name for page in pages]


def _whole(page: Page, pages: list[Page], body: str) -> str:
    """The page with the list of all beside it, its own parts in the list, and the ways to its neighbours."""
    parts = "".join(f'<li><a href="#{to}">{escape(text)}</a></li>' for level, to, text in page.headings if level == 2)
    lines = [
        f'<li><a href="{one.name}" aria-current="page">{escape(one.title)}</a><ul>{parts}</ul></li>'
        if one is page
        else f'<li><a href="{one.name}">{escape(one.title)}</a></li>'
        for one in pages
    ]
    at = pages.index(page)
    before = [f'<a href="{one.name}" rel="prev">← {escape(one.title)}</a>' for one in pages[max(at - 1, 0) : at]]
    after = [f'<a href="{one.name}" rel="next">{escape(one.title)} →</a>' for one in pages[at + 1 : at + 2]]
    return PAGE.format(
        title=f"{escape(page.title)} · clearhead", pages="\n".join(lines), body=body, ways="".join([*before, *after])
    )


def _style() -> str:
    light, dark = (HtmlFormatter(style=name).get_style_defs(".code") for name in (LIGHT, DARK))
    ours = Path(__file__).with_name("site.css").read_text(encoding="utf-8")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{ours}"


# What Markdown says


def _headings(tokens: list[Token]) -> Iterator[tuple[int, str, str]]:
    """Each heading with an anchor of its words, which is set on it."""
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


def _lead(page: Page, pages: list[Page], files: dict[str, Path]) -> Iterator[str]:
    """Turn the links of a page to where things lie in the site, note the files to be copied, and tell what is lost."""
    root = pages[0].source.parent
    for token in (child for block in page.tokens for child in block.children or ()):
        kind = {"link_open": "href", "image": "src"}.get(token.type)
        if kind is None:
            continue
        to = urlsplit(str(token.attrGet(kind)))
        if to.scheme:
            if kind == "src":
                yield f"{page.source.name}: the picture {to.geturl()} lies elsewhere"
            continue
        target = (page.source.parent / to.path).resolve() if to.path else page.source.resolve()
        found = next((one for one in pages if one.source.resolve() == target), None)
        if found is not None:
            if to.fragment and to.fragment not in {anchor for _, anchor, _ in found.headings}:
                yield f"{page.source.name}: {to.geturl()}: there is no such heading"
            name = found.name if to.path else ""
        elif target.is_file() and target.is_relative_to(root.resolve()):
            suffix = "" if kind == "src" else ".txt"  # which every browser shows
            name = f"files/{target.relative_to(root.resolve())}{suffix}"
            files[name] = target
        else:
            yield f"{page.source.name}: {to.geturl()}: there is no such file"
            continue
        token.attrSet(kind, name + (f"#{to.fragment}" if to.fragment else ""))


def _formula(state: StateInline, silent: bool) -> bool:
    """Formulas between dollars, as GitHub has them: $one in a line$, or $$one in lines of its own$$."""
    if state.src[state.pos] != "$" or not (found := FORMULA.match(state.src, state.pos)):
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.content, token.block = " ".join((found[1] or found[2]).split()), found[1] is not None
    state.pos = found.end()
    return True


class Renderer(RendererHTML):
    """Markdown's own HTML, but for code, formulas, pictures and tables."""

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        code, kind = tokens[idx].content, tokens[idx].info.strip()
        if not kind:
            kind = "bash" if all(COMMANDS.fullmatch(line) for line in code.splitlines()) else "text"
        return highlight(code, get_lexer_by_name(kind), HtmlFormatter(cssclass="code"))

    def code_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        words = re.sub(r"(?<!\S)-\S+", r"<span>\g<0></span>", escape(tokens[idx].content))  # --flags stay whole
        return f"<code>{words}</code>"

    def formula(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return _drawn(tokens[idx].content, own_line=tokens[idx].block)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        tokens[idx].attrSet("loading", "lazy")
        return super().image(tokens, idx, options, env)

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return '<div class="table" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return "</table></div>\n"


def _drawn(formula: str, own_line: bool) -> str:
    """A formula as a picture of lines, as tall as the text around it and of its colour."""
    em, plain = 100, formula.replace(r"\big", "")  # which matplotlib does not know
    plain = re.sub(r"(\\sum(?:[_^](?:\{[^}]*\}|\w))*)", r"\1\\,", plain)  # it sets what is summed too near
    if own_line:
        plain = plain.replace(r"\frac", r"\dfrac")
    try:
        with rc_context({"mathtext.fontset": "stix"}):
            path = TextPath((0, 0), f"${plain}$", size=em)
    except ValueError as problem:
        raise ValueError(f"the formula {formula} cannot be drawn: {problem}") from problem
    box = path.get_extents().padded(2)
    strokes = [
        STROKES[int(code)] + (" ".join(f"{x:.1f},{-y:.1f}" for x, y in points.reshape(-1, 2)) if code != 79 else "")
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

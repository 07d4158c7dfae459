"""The site of the pages: built in a moment, whole, its links and pictures found, nothing from elsewhere."""

import importlib.util
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parent.parent
VOID = {"meta", "link", "img", "br", "hr", "path"}


def load(name, path):
    """A module of a folder that is no package."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = load("docs_site", ROOT / "docs" / "site.py")
web = load("docs_browser", ROOT / "tests" / "explore" / "browser.py")


class LazyCall(HTMLParser):
    """What a page has: links by tag, anchors, all tags and words; and that each tag is closed by its own."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors, self.tags, self.words, self.open = [], set(), set(), "", []
        self.feed(page.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            if name in ("href", "src"):
                self.links.append((tag, value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.words += data


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    return folder


@pytest.fixture(scope="module")
def pages(out):
    return {path.name: LazyCall(path) for path in sorted(out.glob("*.html"))}


def test_every_page_is_there_and_in_every_list(pages):
    names = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} | {"index.html", "contributing.html"}
    assert pages.keys() == names
    for page in pages.values():
        assert {to for tag, to in page.links if tag == "a"} >= names


def test_every_link_and_picture_leads_somewhere(out, pages):
    pictures = set()
    for name, page in pages.items():
        for tag, to in page.links:
            parts = urlsplit(to)
            assert not parts.scheme or tag == "a", f"{name}: {to} comes from elsewhere"
            target = parts.path or name
            assert (out / target).is_file(), f"{name}: {to}"
            if parts.fragment:
                assert parts.fragment in pages[target].anchors, f"{name}: {to}"
            if tag == "img":
                pictures.add(Path(target).name)
    assert pictures == {path.name for path in (ROOT / "docs" / "pictures").glob("*.png")} | {"icon.svg"}


def test_nothing_runs_and_nothing_is_fetched(out, pages):
    for page in pages.values():
        assert not page.tags & {"script", "iframe", "object", "embed", "form", "style"}
    style = (out / "style.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_code_is_coloured_and_formulas_are_drawn(out, pages):
    text = (out / "01-attention.html").read_text()
    assert '<span class="kn">import</span>' in text
    assert 'aria-label="\\sqrt{e}"' in text
    for name, page in pages.items():
        assert "\\frac" not in page.words, name
        assert "$q" not in page.words, name


def test_dollars_are_no_formulas():
    reader = site.MarkdownIt("commonmark", renderer_cls=site.Renderer)
    reader.inline.ruler.before("escape", "formula", site._formula)
    assert reader.render("from $5 to $6, `$HOME$`") == "<p>from $5 to $6, <code>$HOME$</code></p>\n"
    assert reader.render("from $a$ to $b$").count("<svg") == 2
    with pytest.raises(ValueError, match=r"the formula \\nowhere cannot be drawn"):
        reader.render(r"$\nowhere$")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("[a](docs/no.md)", "README.md: docs/no.md: there is no such file"),
        ("[a](#no)", "README.md: #no: there is no such heading"),
        ("[a](docs/01-a.md#no)", "README.md: docs/01-a.md#no: there is no such heading"),
        ("![a](https://example.org/a.png)", "README.md: the picture https://example.org/a.png lies elsewhere"),
        ("[a](../outside.txt)", "README.md: ../outside.txt: there is no such file"),
    ],
)
def test_a_link_that_leads_nowhere_stops_it(tmp_path, words, problem):
    (tmp_path / "outside.txt").write_text("")
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_text(f"# A\n\n{words}\n")
    (root / "CONTRIBUTING.md").write_text("# B\n")
    (root / "docs" / "01-a.md").write_text("# C\n\n[a](../README.md#a)\n")
    with pytest.raises(ValueError, match="lead nowhere") as caught:
        site.build(tmp_path / "out", root)
    assert str(caught.value).splitlines()[1:] == [problem]
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
def test_it_is_read_in_a_browser_wide_and_narrow_light_and_dark(out, pages):
    for wide, dark in ((1280, False), (400, True)):
        browser = web.start(wide, 900, dark)
        try:
            papers = set()
            for name in pages:
                browser.get((out / name).as_uri())
                across, paper = browser.execute_script(
                    "return [document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
                )
                assert across <= wide, f"{name} is {across} pixels wide"
                papers.add(paper)
            assert papers == {"rgb(18, 21, 26)" if dark else "rgb(252, 252, 251)"}
            browser.get((out / "index.html").as_uri())
            web.shot(browser, f"site-{wide}")
            assert browser.get_log("browser") == []
        finally:
            browser.quit()

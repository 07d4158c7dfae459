"""The site: complete, with working links and pictures, searchable, and readable without a network or a script."""

import importlib.util
import json
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parent.parent
VOID = {"meta", "link", "img", "br", "hr", "path", "input"}


def load(name, path):
    """Import a file that is not in a package; the files beside it can be imported by it."""
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


site = load("docs_site", ROOT / "docs" / "site.py")
web = load("docs_browser", ROOT / "tests" / "explore" / "browser.py")


class ParsedPage(HTMLParser):
    """The links with their tags, the anchors, all tags and the text of a page; fails if a tag is not closed."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors, self.tags, self.text, self.open = [], [], set(), "", []
        self.feed(page.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.anchors.append(value)
            if name in ("href", "src"):
                self.links.append((tag, value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def out(once):
    return once("site", lambda path: site.build(path / "site")) / "site"


@pytest.fixture(scope="module")
def pages(out):
    return {path.name: ParsedPage(path) for path in sorted(out.glob("*.html"))}


def test_every_page_exists_and_is_in_the_navigation_of_every_page(pages):
    guide = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    guide |= {"index.html", "contributing.html", "changelog.html"}
    reference = {page for page in pages if page.startswith("api-")}
    assert pages.keys() == guide | reference
    assert len(reference) > 20
    for page in pages.values():
        assert {to for tag, to in page.links if tag == "a"} >= pages.keys()


def test_every_link_and_picture_exists(out, pages):
    pictures = set()
    for name, page in pages.items():
        assert len(page.anchors) == len(set(page.anchors)), name
        for tag, to in page.links:
            parts = urlsplit(to)
            assert not parts.scheme or tag == "a", f"{name}: {to} is loaded from elsewhere"
            if parts.scheme:
                continue
            target = parts.path or name
            assert (out / target).is_file(), f"{name}: {to}"
            if parts.fragment:
                assert parts.fragment in pages[target].anchors, f"{name}: {to}"
            if tag == "img":
                pictures.add(Path(target).name)
    assert pictures == {path.name for path in (ROOT / "docs" / "pictures").iterdir()} | {"icon.svg"}


def test_nothing_is_loaded_from_elsewhere_and_the_search_is_the_only_script(out, pages):
    for page in pages.values():
        assert not page.tags & {"iframe", "object", "embed", "form", "style"}
        assert [to for tag, to in page.links if tag == "script"] == ["search.js"]
    style = (out / "style.css").read_text()
    assert "url(" not in style
    assert "@import" not in style
    script = (ROOT / "docs" / "search.js").read_text()
    assert not [word for word in ("fetch(", "import", "XMLHttpRequest", "innerHTML", "eval") if word in script]


def test_code_is_coloured_and_formulas_are_drawn(out, pages):
    text = (out / "01-attention.html").read_text()
    assert '<span class="kn">import</span>' in text
    assert 'aria-label="\\sqrt{e}"' in text
    for name, page in pages.items():
        assert "\\frac" not in page.text, name
        assert "$q" not in page.text, name


def test_dollars_in_prose_and_code_are_not_formulas():
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
        (
            "![a](https://example.org/a.png)",
            "README.md: the picture https://example.org/a.png is not in the repository",
        ),
        ("[a](../outside.txt)", "README.md: ../outside.txt: there is no such file"),
    ],
)
def test_a_broken_link_is_an_error_and_nothing_is_written(tmp_path, words, problem):
    (tmp_path / "outside.txt").write_text("")
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_text(f"# A\n\n{words}\n")
    (root / "CONTRIBUTING.md").write_text("# B\n")
    (root / "CHANGELOG.md").write_text("# D\n")
    (root / "docs" / "01-a.md").write_text("# C\n\n[a](../README.md#a)\n")
    with pytest.raises(ValueError, match="lead nowhere") as caught:
        site.build(tmp_path / "out", root, reference=False)
    assert str(caught.value).splitlines()[1:] == [problem]
    assert not (tmp_path / "out").exists()


# The reference


def test_a_function_has_its_signature_arguments_source_and_example(out, pages):
    html, text = (out / "api-clearhead.html").read_text(), " ".join(pages["api-clearhead.html"].text.split())
    assert "Bundle.prompt" in pages["api-clearhead.html"].anchors
    begin = text.index("load src/clearhead/weights/folder.py:")
    entry = text[begin : text.index("plot src/", begin)]
    for words in (
        'device: str | torch.device = "auto"', ") -> Bundle", "Load a model with its tokenizer",
        "Arguments folder A folder", "Raises WeightsError If files", ">>> load(folder, device=",
    ):  # fmt: skip
        assert words in entry, f"{words} is not in {entry}"
    assert '<a href="api-weights.html#WeightsError">WeightsError</a>' in html  # a class links to its entry
    assert '<a href="api-weights.html#shipped"><code>shipped</code></a>' in html  # and so does a name in a docstring


def test_a_name_of_several_modules_is_described_once(out):
    assert "Load a model with" in (out / "api-weights.html").read_text()
    assert 'Described as <a href="api-clearhead.html#load">' in (out / "api-weights.html").read_text()
    assert 'Described as <a href="api-errors.html#Notice">' in (out / "api-look.html").read_text()


def test_the_options_of_recipes_have_defaults_meanings_and_choices(pages):
    text = " ".join(pages["api-recipes.html"].text.split())
    assert pages["api-recipes.html"].anchors[:4] == ["page", "recipe", "data", "data.reverse"]
    assert "width: int = 768 width of the residual stream (d_model)" in text
    assert '"rotary"' in text


def test_docstrings_are_split_into_sections():
    docstrings = sys.modules["docstrings"]
    doc = docstrings.parse(
        "Do it,\nnow.\n\nMore.\n\nArgs:\n    a: One\n        two.\n    *b (int): Three.\n\nReturns:\n    Nothing.\n\n"
        "Raises:\n    errors.InputError: Always.\n\nExamples:\n    >>> 1\n    1\n"
    )
    assert (doc.summary, doc.text, doc.returns, doc.examples) == ("Do it, now.", "More.", "Nothing.", ">>> 1\n1")
    assert doc.args == {"a": "One\ntwo.", "b": "Three."}
    assert doc.raises == {"errors.InputError": "Always."}


# The search


@pytest.fixture(scope="module")
def index(out):
    script = (out / "search.js").read_text(encoding="utf-8")
    return json.loads(script[len("const INDEX = ") : script.index("\n];") + 2])


def test_the_search_index_has_every_name_and_heading(index, pages):
    anchors = {name: [] for name in pages}
    for _, _, address, _, _ in index:
        page, _, anchor = address.partition("#")
        anchors[page] += [anchor] if anchor else []
    assert anchors == {name: [anchor for anchor in page.anchors if anchor != "page"] for name, page in pages.items()}


@pytest.fixture
def browser():
    browsers = []

    def start(*args):
        browsers.append(web.start(*args))
        return browsers[-1]

    yield start
    for one in browsers:
        one.quit()


def find(browser, words):
    """The addresses that the search shows for some words, typed by hand."""
    box = browser.find_element("css selector", ".search input")
    box.clear()
    box.send_keys(words)
    links = browser.find_elements("css selector", ".search li a")
    assert all(link.is_displayed() for link in links)
    return [link.get_attribute("href").rpartition("/")[2] for link in links]


@pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
@pytest.mark.parametrize(("wide", "dark"), [(1280, False), pytest.param(400, True, marks=pytest.mark.slow)])
def test_the_search_finds_names_headings_and_text_without_a_server(out, index, browser, wide, dark):
    from selenium.webdriver.common.keys import Keys

    here = browser(wide, 900, dark)
    here.get((out / "01-attention.html").as_uri())
    assert find(here, "load")[0] == "api-clearhead.html#load"
    assert find(here, "clearhead.weights.Special")[0] == "api-weights.html#Special"
    assert find(here, "bundle.prompt()") == ["api-clearhead.html#Bundle.prompt"]
    assert "api-recipes.html#model.gpt" in find(here, "kv_heads")  # text
    heading, page, address = next(row[:3] for row in index if "positions.html#" in row[2] and " " in row[0])
    assert find(here, heading.lower())[0] == address, page
    assert find(here, "nosuchword") == []
    assert here.find_element("css selector", "[role=status]").text == "nothing found"
    find(here, "mask")
    web.shot(here, f"search-{wide}")
    here.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert find(here, "") == []
    here.find_element("tag name", "body").click()
    here.find_element("tag name", "body").send_keys("/")  # focuses the box
    here.switch_to.active_element.send_keys("clearhead.load" + Keys.ARROW_DOWN)
    here.switch_to.active_element.send_keys(Keys.ENTER)
    assert here.current_url.endswith("/api-clearhead.html#load")
    assert here.get_log("browser") == []


@pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
def test_without_javascript_only_the_search_box_is_missing(out, browser):
    here = browser()
    here.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    here.get((out / "api-weights.html").as_uri())
    assert not here.find_element("css selector", ".search").is_displayed()
    assert here.find_element("css selector", "#Special + * , #Special").is_displayed()
    here.find_element("link text", "tokens").click()
    assert here.current_url.endswith("/api-tokens.html")


@pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
@pytest.mark.parametrize(("wide", "dark"), [pytest.param(1280, False, marks=pytest.mark.slow), (400, True)])
def test_every_page_fits_the_window_wide_and_narrow_light_and_dark(out, pages, browser, wide, dark):
    here = browser(wide, 900, dark)
    colours = set()
    for name in pages:
        here.get((out / name).as_uri())
        measure = "return [document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
        for _ in range(50):  # on a busy machine the styles may be applied a moment after the page is loaded
            across, colour = here.execute_script(measure)
            if across <= wide and colour != "rgba(0, 0, 0, 0)":
                break
            time.sleep(0.1)
        assert across <= wide, f"{name} is {across} pixels wide"
        colours.add(colour)
    assert colours == {"rgb(18, 21, 26)" if dark else "rgb(252, 252, 251)"}
    for name in ("index", "api-clearhead"):
        here.get((out / f"{name}.html").as_uri())
        web.shot(here, f"site-{name}-{wide}")
    assert here.get_log("browser") == []

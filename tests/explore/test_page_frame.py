"""The frame of the page in a real browser: start page, guided path, menu, addresses, errors, saving, themes."""

import json
import time
from itertools import pairwise
from xml.etree import ElementTree

import browser as web
import pytest
from browser import MARKUP
from page_steps import focus, press, settled, translated

from support.marks import one_in

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
SVG = "{http://www.w3.org/2000/svg}"
VIEWS = ("start", "translate", "write", "read", "classify", "caption", "build", "train")
READY = {  # what is there when a view shows its example
    "start": ".example .lines .token", "translate": ".lines .token", "write": ".lens tr", "read": ".lines .token",
    "classify": ".sight .heads canvas", "caption": ".strip button", "build": "[aria-label^='A'] td",
    "train": ".curves path", "compare": ".fields canvas",
}  # fmt: skip


def ready(page, view):
    page.until(lambda: page.count(f".view.{view} {READY[view]}"))
    page.until(lambda: not page.all(".mapbox.busy"))


def test_the_start_page_the_menu_and_the_themes(page):
    """The start page shows an example and the path, and names the models that no view shows, and why; so does a view
    that is given one, or one that does something else. The menu switches views, also before one has its data; the
    skip link stays in the view. The theme is stored.
    """
    page.open()
    ready(page, "start")
    assert page.texts(".example .token text") == ["Je", "la", "mange", ".", "<end>", "I", "eat", "it", ".", "<end>"]
    assert page.count(".steps li") >= 12
    assert page.count(".steps li .try") == page.count(".steps li")
    web.shot(page.driver, "start")

    page.open()
    page.until(lambda: "No view shows the model vectors: it reads vectors" in page.text(".start"))
    page.open("write", model="vectors", text="a")
    page.until(lambda: "The model vectors does not write: it reads vectors" in page.text(".write .problem"))

    page.go("write", model="en-de", text="a")
    page.until(lambda: page.text(".write .problem"))
    assert page.text(".write .problem") == "The model en-de does not write: open it in Translate."
    assert page.run("return document.querySelector('.choice select').value") != "en-de"  # the others are offered

    page.go("write", model="tiny", text="The", max_new=2, off="null", layer="x", temperature="hot")
    page.until(lambda: page.count(".lens tr"))
    assert page.text(".write .problem") == ""

    page.open("build")
    ready(page, "build")
    for view in ("translate", "build", "classify", "caption", "compare", "write", "train", "read", "start"):
        page.click(f"#nav a[href='#{view}']")
        page.until(lambda view=view: page.all(f".view.{view}"), 5)
        assert page.texts("#nav [aria-current]") == [view.capitalize()]
    page.click("#nav a[href='#train']")
    page.click("#nav a[href='#write']")  # before the runs have arrived
    time.sleep(0.5)
    assert page.driver.current_url.partition("#")[2].startswith("write")

    page.go("train")
    ready(page, "train")
    page.click(".skip")
    assert page.run("return document.activeElement.id") == "view"
    assert page.driver.current_url.partition("#")[2].startswith("train")

    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.click("#theme")
    assert page.run(ground) != light
    web.shot(page.driver, "translate-dark")
    page.open("build")
    ready(page, "build")
    assert page.run(ground) != light  # the choice is stored
    page.click("#theme")
    assert page.run(ground) == light


def test_every_step_of_the_path_opens_a_view_with_a_result(page):
    page.open()
    ready(page, "start")
    page.run("localStorage.removeItem('path')")
    steps = page.run("return [...document.querySelectorAll('.steps a')].map((one) => one.getAttribute('href'))")
    page.click(".steps li:first-child a")
    for number, step in enumerate(steps, 1):
        view = step[1:].split("?")[0]
        page.until(lambda number=number: page.text(".path").startswith(f"{number} of {len(steps)}:"))
        steps_show = {"build": ".panel:not([hidden]) td, .panel:not([hidden]) canvas", "classify": ".bars li"}
        there = steps_show.get(view, READY[view])
        there = there.replace(", ", f", .view.{view} ")
        page.until(
            lambda view=view, there=there: page.count(f".view.{view} {there}"), 90
        )  # Compare measures two models
        assert page.text(f".view.{view} .problem") == ""
        page.click(".path nav a:nth-child(2)")
    page.until(lambda: page.count(".view.start"))
    assert f"step {len(steps)}" in page.text(".welcome .go")  # the position is kept
    page.open()
    ready(page, "start")
    assert f"step {len(steps)}" in page.text(".welcome .go")


@pytest.mark.slow
def test_opening_views_again_needs_no_more_memory(page):
    def nodes():
        page.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        found = page.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(one["value"] for one in found if one["name"] == "Nodes")

    page.open("start")
    page.driver.execute_cdp_cmd("Performance.enable", {})
    for view in VIEWS:
        page.run("location.hash = arguments[0]", f"#{view}")
        ready(page, view)
    before = nodes()
    for view in VIEWS * 5:
        page.run("location.hash = arguments[0]", f"#{view}")
        page.until(lambda view=view: page.count(f".view.{view}"))
    page.until(lambda: nodes() < 1.5 * before, 10)
    page.driver.execute_cdp_cmd("Performance.disable", {})


def test_markup_stays_text_everywhere(page):
    page.open("translate", model="en-de", text=MARKUP, beams=1)
    page.until(lambda: " ms" in page.text(".status"))
    page.open("write", model="tiny", text=MARKUP.replace("'", "").replace("_", ""), max_new=2)
    page.until(lambda: "2 tokens written" in page.text(".status") and page.count(".lens tr"))
    page.open("build", m=json.dumps({"words": [MARKUP, MARKUP, MARKUP]}))
    page.until(lambda: MARKUP[:20] in page.text(".matrix th"))
    page.open("translate", model=MARKUP, text=MARKUP)
    page.until(lambda: page.text(".translate .problem"))
    assert "clearhead" in page.driver.title
    assert page.all("main img, main script") == []
    page.driver.get_log("browser")  # drops the expected error: no such model


def test_the_message_goes_when_the_server_is_back(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.run("window.plain = window.fetch; window.fetch = async () => { throw new TypeError('Failed to fetch'); }")
    page.type(".sentence", "A cat runs.\n")
    page.until(lambda: "does not answer" in page.text("#problem"))
    assert page.count(".answers li") == 0
    page.run("window.fetch = window.plain")
    page.until(lambda: page.text("#problem") == "")  # asked again by itself
    page.until(lambda: "Katze" in page.text(".answers .first .said"))  # and what had failed is done
    assert page.text(".translate .problem") == ""


@pytest.mark.parametrize("view", one_in(2, VIEWS))
def test_every_view_can_be_saved_and_fits_a_narrow_screen(page, view, tmp_path):
    page.open(view, **({"runs": "first"} if view == "train" else {}))
    ready(page, view)
    png, svg, data = (page.saved(kind, tmp_path) for kind in ("png", "svg", "json"))
    assert png.name.startswith(f"clearhead-{view}")
    assert png.read_bytes().startswith(b"\x89PNG")
    (web.SHOTS / f"saved-{view}.png").write_bytes(png.read_bytes())
    texts = ["".join(node.itertext()) for node in ElementTree.parse(svg).getroot().iter(f"{SVG}text")]
    assert any(text.startswith("clearhead 0.") for text in texts)  # where it comes from
    saved = json.loads(data.read_text())
    assert saved["view"] == view
    assert saved["address"].startswith("http")
    with page.sized(400, 800):
        page.until(lambda: page.run("return document.documentElement.scrollWidth") <= 400)
        web.shot(page.driver, f"{view}-narrow")
        assert page.run("return document.documentElement.scrollWidth") <= 400


def test_saved_figures(page, tmp_path):
    """An exported map has titles, a scale and labels that do not overlap; one figure can be saved alone."""
    page.open("write", model="everyday", text="The man went to the shop to buy bread. " * 6, inspect=1, layer=1, head=2)
    page.until(lambda: "inspected" in page.text(".status") and settled(page))
    file = page.saved("svg", tmp_path)
    assert file.name == "clearhead-write-everyday-layer1-head2.svg"
    root = ElementTree.parse(file).getroot()
    texts = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    for text in ("Self-attention, layer 1, head 2", "query", "key", "attention weight", "0", "1"):
        assert text in texts
    assert any("everyday (language model, 1,870,560 parameters)" in text for text in texts)
    rows = sorted(
        float(node.get("transform").partition(",")[2].partition(")")[0])
        for node in root.iter(f"{SVG}text")
        if node.get("text-anchor") == "end" and "translate(" in (node.get("transform") or "")
    )
    assert len(rows) > 10
    assert min(b - a for a, b in pairwise(rows)) >= 11  # pixels between labels of 12 pixels

    page.go("translate", model="en-de", text="A dog runs.")
    translated(page)
    file = page.saved("svg", tmp_path, ".mapbox .save-one")
    root = ElementTree.parse(file).getroot()
    assert len(root.findall(f"{SVG}g/{SVG}svg")) == 1
    texts = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    assert any("4 beams" in text and "between words" in text for text in texts)


def test_a_link_of_a_server_with_a_token_has_the_token(tiny):
    from starlette.testclient import TestClient

    from clearhead.explore.app import make_app

    app = make_app([tiny], device="cpu", host="0.0.0.0", token="secret")
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        assert client.get("/api/share").status_code == 401
        sent = {"authorization": "Bearer secret"}
        assert client.get("/api/share", headers=sent).json() == {"query": "?token=secret"}
        assert client.get("/", params={"token": "secret"}, follow_redirects=False).headers["location"] == "/"


def test_the_first_view_appears_soon_after_the_start(server):
    web.note(first_view=1000 * server.soon)
    assert server.soon < 60  # seconds: a page that never comes; how long it takes depends on the machine


@pytest.mark.slow
def test_views_in_the_background_recover_when_the_server_is_back(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.run("window.plain = window.fetch; window.fetch = async () => { throw new TypeError('Failed to fetch'); }")
    page.click('.heads [data-at="1,2"]')  # a head whose map cannot be drawn now
    page.until(lambda: "does not answer" in page.text("#problem"))
    page.run("location.hash = '#read'")
    page.until(lambda: "does not answer" in page.text(".read .problem"))
    page.run("location.hash = '#build'")
    page.until(lambda: page.count(".view.build"))
    page.run("window.fetch = window.plain")
    page.until(lambda: page.text("#problem") == "")
    page.run("location.hash = '#read'")
    page.until(lambda: "read in" in page.text(".read .status") and page.text(".read .problem") == "")
    page.run("location.hash = '#translate'")
    page.until(lambda: page.text(".mapbox figcaption b") == "Cross-attention, layer 1, head 2")


def test_a_stream_that_breaks_off(page):
    """It is repeated when the server is back, and only once: it may be what stops the server."""
    page.open("write", model="everyday", text="The man", max_new=4)
    page.until(lambda: "4 tokens written" in page.text(".write .status"))
    page.run(
        "window.plain = window.fetch; window.fetch = async (path, options) => {"
        " if (!String(path).includes('/api/write')) throw new TypeError('Failed to fetch');"
        " return new Response(new ReadableStream("
        "{ start(to) { setTimeout(() => to.error(new TypeError('gone')), 50); } })); }"
    )
    page.run("document.querySelector('.prompt').value = 'Two dogs'")
    page.click(".write .go")
    page.until(lambda: "broke off" in page.text(".write .problem"))
    page.run("window.fetch = window.plain")
    page.until(lambda: "4 tokens written" in page.text(".write .status") and page.text(".write .problem") == "")
    assert page.text(".flow").startswith("Two dogs")

    page.open("write", model="everyday", text="The man", max_new=4)
    page.until(lambda: "4 tokens written" in page.text(".write .status"))
    page.run(
        "window.plain = window.fetch; window.asked = 0; window.fetch = async (path, options) => {"
        " if (!String(path).includes('/api/write')) return window.plain(path, options); window.asked += 1;"
        " return new Response(new ReadableStream("
        "{ start(to) { setTimeout(() => to.error(new TypeError('gone')), 20); } })); }"
    )
    page.run("document.querySelector('.prompt').value = 'Two dogs'")
    page.click(".write .go")
    page.until(lambda: page.run("return window.asked") == 2)
    page.until(lambda: page.text("#problem") != "")  # the second one has broken off, too
    page.until(lambda: page.text("#problem") == "")  # and the server answers again
    assert page.run("return window.asked") == 2
    assert "broke off" in page.text(".write .problem")


def test_the_steps_that_were_opened(page):
    """Only steps that were opened are ticked; Next keeps the focus."""
    page.open("start")
    page.run("localStorage.removeItem('path'); localStorage.removeItem('path-opened')")
    page.open("build", panel="memory", step=7)
    page.until(lambda: "7 of " in page.text(".path"))
    page.run("location.hash = '#start'")
    page.until(lambda: page.count(".steps li") > 7)
    assert page.count(".steps li.done") == 0
    assert page.count(".steps li.now") == 1

    page.go("build", step=1)
    page.until(lambda: "1 of " in page.text(".path"))
    page.run("[...document.querySelectorAll('.path a')].find((one) => one.textContent === 'Next').focus()")
    press(page, "\ue007")  # Enter
    page.until(lambda: "2 of " in page.text(".path"))
    assert focus(page) == "Next"


def test_titles_and_labels_of_figures_have_room(page):
    """Of saved figures and of the labels of maps, which are drawn on a canvas."""
    page.open("start")
    found = page.run("""
      const { barsFigure, tableFigure, textFigure } = await import("/page/figures/small_figures.js");
      const { short } = await import("/page/attention/map_figure.js");
      const { fitted } = await import("/page/attention/token_lines.js");
      const title = "After ␣they: the next token by each block, without layer 0 head 1";
      const canvas = document.createElement("canvas").getContext("2d");
      const figures = [tableFigure(title, [["a", "b"]]), barsFigure(title, [["a", 0.5]], ["p"])];
      const spare = [...figures, textFigure(title, ["a"], [1], "nats")].map((figure) => {
        document.body.append(figure);
        const room = Number(figure.getAttribute("width")) - figure.querySelector("text").getComputedTextLength();
        figure.remove();
        return room;
      });
      const label = fitted("A man is playing the guitar.", 60, canvas), wide = canvas.measureText(label).width;
      const names = [" ", "  ", " dog", "\\n"].map(short);
      return { spare, names, label, wide, twice: fitted("A man is playing …", 60, canvas) };
    """)
    assert min(found["spare"]) > 0
    assert found["names"] == ["␣", "␣␣", " dog", "⏎"]
    assert found["label"].endswith("…")
    assert found["wide"] <= 60
    assert found["twice"].count("…") == 1

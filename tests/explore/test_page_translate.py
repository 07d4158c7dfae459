"""The Translate view in a real browser, used as people do."""

import json
from pathlib import Path

import browser as web
import pytest
from page_steps import SLACK, answering, focus, hang, press, settled, translated

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
DOG = {"model": "en-de", "text": "A dog runs."}
TITLE = ".mapbox figcaption b"
BEST = ".answers .first .said"


def test_a_sentence_its_translations_and_the_attention_inside(page):
    """The example is above the fold. Then one sentence: its answers and tokens; a word under the pointer; small maps;
    a common colour scale or one's own; a head; another answer, which keeps focus and head; the keyboard in the grid,
    the map and the lines; the kind of attention, which keeps the focus; words and pieces.
    """
    from selenium.webdriver.common.keys import Keys

    with page.sized(1366, 768):
        page.open("translate")
        translated(page)
        assert page.text(BEST) == "Zwei Hunde rennen über das grüne Feld."
        page.driver.save_screenshot(str(web.SHOTS / "translate-first.png"))
        assert page.bottom("svg.lines") < 768
        assert page.bottom("canvas.map") < 768

    page.go("translate", **DOG)
    translated(page)
    assert page.text(BEST) == "Ein Hund rennt."
    assert page.count(".answers li") == 4
    assert page.texts(".lines .token text")[:4] == ["A", "dog", "runs", "."]
    assert page.text(TITLE) == "Cross-attention, mean of 15 heads"
    page.run("arguments[0].dispatchEvent(new PointerEvent('pointerenter'))", page.all(".lines .token")[6])
    assert page.text(".tokenlines .note").startswith("Hund attends to dog (")

    page.until(lambda: page.count(".heads canvas") == 15)
    drawn = (
        "const c = document.querySelector('.heads canvas'), d = c.getContext('2d').getImageData(0, 0, c.width,"
        " c.height).data; return [c.width, c.height, new Set(d).size]"
    )
    wide, tall, colours = page.run(drawn)
    assert (wide, tall) == (5, 5)
    assert colours > 10
    assert page.texts("button.legend") == ["Colours from 0 to 1"]
    page.click("button.legend")
    page.until(lambda: page.state().get("scale") == "own")
    assert page.texts("button.legend")[0].startswith("Colours from 0 to 0.")

    page.click('.heads [data-at="1,2"]')
    page.until(lambda: page.text(TITLE) == "Cross-attention, layer 1, head 2")
    assert page.state()["head"] == "2"
    page.find(".answers li:nth-child(2) button").click()
    page.until(lambda: "läuft" in page.text(".lines"))
    assert page.state()["layer"] == "1"
    assert focus(page).startswith("Ein Hund läuft.")  # the focus stays on the chosen translation
    web.shot(page.driver, "translate")

    page.go("translate", **DOG, colouring="entropy")
    translated(page)
    page.until(lambda: page.count(".heads [title*=entropy]") == 15)
    page.find(".heads [tabindex='0']").send_keys(Keys.ARROW_DOWN)
    press(page, Keys.ARROW_RIGHT)
    press(page, Keys.ENTER)
    page.until(lambda: (page.state().get("layer"), page.state().get("head")) == ("0", "0") and settled(page))
    page.find("canvas.map").send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    note = page.text(".mapbox .note")
    assert "Hund → dog" in note
    assert 0.0 <= float(note.split()[-1]) <= 1.0
    page.run("document.querySelector('.lines .token').focus()")
    press(page, Keys.ARROW_RIGHT)
    assert "dog receives attention from" in page.text(".tokenlines .note")

    page.find(".inside .row select").send_keys("within the source")
    page.until(lambda: page.text(TITLE).startswith("Self-attention of the encoder"))
    assert page.run("return document.activeElement.tagName") == "SELECT"
    page.go("translate", model="en-de", text="A man in a blue shirt is standing on a ladder.", group="decoder")
    translated(page)
    words = page.count(".lines .token")
    page.click(".segments input[value=pieces]")
    page.until(lambda: page.count(".lines .token") > words)


def test_other_models_sentences_and_settings(page):
    """A model with one head has no grid; one of another language brings its example and forgets the answer; a new
    sentence starts with its best translation; several sentences are listed and chosen; a setting belongs to the next
    run; a long sentence shows the lines of one word, and says what was left out; a text that is too long is refused,
    not cut.
    """
    page.open("translate", **DOG, answer=2)
    translated(page)
    page.run("document.querySelector('.heads button').focus()")
    page.choose(".choice select", "en-de-rnn")
    page.until(lambda: page.text(TITLE) == "Cross-attention, the only head" and settled(page))
    assert not page.find(".picker").is_displayed()  # there is nothing to choose, and no note of the earlier model
    page.choose(".choice select", "fr-en")
    page.until(lambda: page.text(BEST) == "I eat it." and settled(page))
    assert page.run("return document.querySelector('.sentence').value") == "Je la mange."
    assert "answer" not in page.state()
    assert "Hund" not in page.text("main")

    page.go("translate", **DOG)
    translated(page)
    page.click(".answers li:nth-child(3) button")
    page.until(lambda: page.state().get("answer") == "2")
    page.type(".sentence", "A cat sleeps.\n")
    page.until(lambda: "Katze" in page.text(BEST) and page.count(".answers [aria-pressed=true]"))
    assert page.run("return document.querySelector('.answers [aria-pressed=true]').dataset.at") == "0"

    page.go("translate", model="en-de", text="A dog runs. Mr. Smith is reading a book. I like it.")
    page.until(lambda: "3 sentences" in page.text(".status"))
    assert page.texts(".sentences button span:first-child") == [
        "A dog runs.", "Mr. Smith is reading a book.", "I like it.",
    ]  # fmt: skip
    assert page.texts(".sentences .said")[2] == "Ich mag es."
    page.click(".sentences li:nth-child(3) button")
    page.until(lambda: page.texts(".lines .token text")[:1] == ["I"] and page.state()["sentence"] == "2")

    page.go("translate", **DOG, beams=2)
    translated(page)
    page.slide("beams", 3)
    assert page.state()["beams"] == "2"  # of what is on screen
    page.click(".translate .go")
    page.until(lambda: page.count(".answers li") == 3)
    assert page.state()["beams"] == "3"
    assert "next" not in page.state()

    page.go("translate", model="en-de", text=" and ".join(["a dog runs"] * 9) + ".")
    translated(page)
    shown = "[...document.querySelectorAll('.lines path')].filter((p) => p.getAttribute('visibility') !== 'hidden')"
    assert 0 < page.run(f"return {shown}.length") < page.count(".lines path") / 4
    assert page.run("return document.documentElement.scrollWidth") <= 1280
    page.go("translate", model="en-de", text="a dog and " * 200 + "a cat.", beams=1)
    page.until(lambda: "left out" in page.text(".remark"), 60)
    assert "256" in page.text(".remark")

    page.run("document.querySelector('.sentence').value = 'A dog. '.repeat(8000)")
    page.click(".translate .go")
    page.until(lambda: page.text(".translate .problem"))
    assert "56,000" in page.text(".translate .problem")
    assert page.text(".translate .activity").startswith(page.text(".translate .problem"))
    assert not page.find(".inside").is_displayed()  # nothing of the earlier sentence stays
    assert page.texts(".answers li") == []
    page.driver.get_log("browser")  # drops the expected error


def test_back_forward_and_another_view(page):
    """Back and Forward move through results, with their sentences; a sentence that is being typed stays when the user
    comes back from another view, beside the result that it does not change.
    """
    page.open("translate", **DOG)
    translated(page)
    page.type(".sentence", "A cat sleeps.\n")
    page.until(lambda: "Katze" in page.text(BEST) and "ms" in page.text(".status"))
    page.driver.back()
    page.until(lambda: page.text(BEST) == "Ein Hund rennt.")
    assert page.run("return document.querySelector('.sentence').value") == "A dog runs."
    page.until(lambda: page.texts(".lines .token text")[1:2] == ["dog"])
    page.driver.forward()
    page.until(lambda: "Katze" in page.text(BEST))
    page.driver.back()
    page.until(lambda: page.count(".lines .token") == 10)
    page.type(".sentence", "A cat sleeps and")
    page.click("#nav a[href='#build']")
    page.until(lambda: page.all(".view.build"))
    page.click("#nav a[href='#translate']")
    page.until(lambda: page.all(".view.translate"))
    assert page.run("return document.querySelector('.sentence').value") == "A cat sleeps and"
    assert page.text(BEST) == "Ein Hund rennt."
    assert page.count(".lines .token") == 10


def test_stop_and_a_response_that_breaks_off(page):
    """What was written before Stop can be inspected; a response that breaks off is a sentence without stale figures."""
    page.open("translate", **DOG)
    translated(page)
    ids = page.run(
        "const a = await fetch('/api/translate', { method: 'POST', headers: { 'content-type': 'application/json' },"
        " body: JSON.stringify({ model: 'en-de', text: 'A cat sleeps.', beams: 1 }) });"
        " return JSON.parse((await a.text()).trim().split('\\n').at(-1)).translations[0].ids"
    )
    beam = {
        "text": "Eine Katze",
        "score": -0.2,
        "logprob": -0.4,
        "ids": ids[:2],
        "source": [],
        "target": [],
        "cut": None,
    }
    events = [{"sentences": ["A cat sleeps."]}, {"sentence": 0, "beams": [beam]}]
    hang(page, "/api/translate", [json.dumps(event) for event in events])
    page.type(".sentence", "A cat sleeps.\n")
    page.until(lambda: page.text(".answers .said") == "Eine Katze")
    assert page.count(".inside .lines .token") == 0  # nothing of the earlier sentence
    page.click(".stop")
    page.until(lambda: "Stopped" in page.text(".status") and page.count(".lines .token") and settled(page))
    assert page.run("return document.querySelector('.activity').dataset.state") == "stopped"
    assert page.texts(".lines .token text") == ["A", "cat", "sleeps", ".", "<end>", "Eine", "Katze"]
    answering(page)
    page.run(
        "window.fetch = async () => new Response(new ReadableStream({ pull: (to) => to.error(new TypeError('gone')) }))"
    )
    page.type(".sentence", "A cat runs.\n")
    page.until(lambda: page.text(".translate .problem") == "The answer broke off: is the server still running?")
    assert not page.find(".inside").is_displayed()
    assert page.count(".answers li") == 0


def test_a_click_before_the_models_are_there_waits(page):
    page.open("translate", **DOG)
    page.driver.get("about:blank")
    late = (
        "const plain = window.fetch; window.fetch = async (path, options) => { if (String(path).endsWith('/models'))"
        " await new Promise((go) => setTimeout(go, 1500)); return plain(path, options); };"
    )
    script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": late})
    try:
        page.open("translate")
        page.run("document.querySelector('.sentence').value = 'A cat sleeps.'")
        page.click(".translate .go")
        page.until(lambda: "Katze" in page.text(BEST))
        assert page.text(".translate .problem") == ""
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_two_models_side_by_side(page, tmp_path):
    """The second pane starts with another model on the same sentence; other sentences have no difference; the
    difference is named, read by keyboard, follows the heads of both sides and is saved; one pane again, and Back.
    """
    page.open("translate", **DOG)
    translated(page)
    page.click(".beside-toggle")
    translated(page, 2)
    chosen = "return [...document.querySelectorAll('.choice select')].map((one) => one.value)"
    assert page.run(chosen) == ["en-de", "en-de-rnn"]
    page.run("document.querySelectorAll('.sentence')[1].value = 'A cat sleeps.'")
    page.click(".pane:nth-child(2) .go")
    page.until(lambda: "not between the same tokens" in page.text(".difference .note"))

    text = "I know that you like it."
    page.go("translate", model="en-de-rnn", text=text, model2="en-de", text2=text)
    translated(page, 1)
    translated(page, 2)
    page.until(lambda: page.find(".difference").is_displayed() and settled(page))
    names = ("en-de (Cross-attention, mean of 15 heads)", "en-de-rnn (Cross-attention, the only head)")
    page.until(lambda: page.text(".difference figcaption b") == " − ".join(names))
    assert "a mean of many heads is softer" in page.text(".difference > .note")
    page.find(".difference canvas").send_keys("\ue015")  # the cell below
    assert float(page.text(".difference .mapbox .note").split()[-1]) != 0.0
    web.shot(page.driver, "translate-two")
    page.click('.pane:nth-child(2) .heads [data-at="1,2"]')
    page.until(lambda: "layer 1, head 2" in page.text(".difference figcaption b"))
    assert page.text(".difference > .note") == ""  # one head on each side
    saved = json.loads(page.saved("json", tmp_path).read_text())
    left, right = (pane["attention"]["weights"] for pane in saved["panes"])
    assert saved["panes"][1]["attention"]["head"] == 2
    for row, a, b in zip(saved["difference"], left, right, strict=True):
        assert row == pytest.approx([y - x for x, y in zip(a, b, strict=True)], abs=1e-6)
    drawn = page.saved("svg", tmp_path).read_text()
    assert "Left: en-de-rnn (RNN" in drawn
    assert "Right: en-de (" in drawn
    page.click(".beside-toggle")
    page.until(lambda: page.count(".pane") == 1 and not page.find(".difference").is_displayed())
    page.driver.back()
    page.until(lambda: page.count(".pane") == 2)


def test_right_to_left_and_very_long_words_keep_their_lines(page):
    page.open("translate", **DOG)
    translated(page)
    draw = (
        "const { TokenLines } = await import('/page/attention/token_lines.js'), one = new TokenLines();"
        " document.querySelector('main').prepend(one.root); const n = arguments[0].length;"
        " one.show({ above: arguments[0], below: arguments[0], weights: arguments[0].map((_, i) =>"
        " arguments[0].map((_, j) => (i === j ? 1 : 0))) });"
        " const boxes = [...one.svgNode.querySelectorAll('rect')].map((r) => r.getBBox()), texts ="
        " [...one.svgNode.querySelectorAll('.token text')].map((t) => t.getBBox());"
        " return [one.svgNode.clientWidth, boxes.map((b) => [b.x, b.y, b.width]), texts.map((t) => t.width)]"
    )
    wide, boxes, texts = page.run(draw, ["قط", "ينام", "على", "الكرسي"])
    assert boxes[0][0] > boxes[1][0] > boxes[2][0] > boxes[3][0]  # the first word is on the right
    assert all(x >= 0 and x + w <= wide for x, _, w in boxes)
    wide, boxes, texts = page.run(draw, ["x" * 300, "a", "Donaudampfschifffahrtsgesellschaftskapitän" * 3])
    assert all(x >= 0 and x + w <= wide for x, _, w in boxes)
    assert all(text <= box[2] for text, box in zip(texts, boxes, strict=True))  # no text is wider than its box
    assert len({tuple(box[:2]) for box in boxes}) == 6


def test_the_view_is_fast(page):
    """Feedback within 100 ms, results within 300 ms, the first word within 500 ms, all times SLACK."""
    speeds = (Path(__file__).parent / "speeds.js").read_text(encoding="utf-8")
    page.open("translate", **DOG)
    translated(page)  # warm
    times = page.run(speeds, "translating")
    web.note(**times)
    assert times["acknowledged"] < 100 * SLACK
    assert times["word"] < 500 * SLACK
    assert times["head"] < 300 * SLACK

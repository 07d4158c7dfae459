"""The Translate view in a real browser, used as people do."""

import json
from pathlib import Path

import browser as web
import pytest
from page_steps import SLACK, focus, hang, press, settled, translated

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
SENTENCE = "Two dogs run across the green field."


def test_it_opens_on_a_finished_example_above_the_fold(page):
    web.size(page.driver, 1366, 768)
    try:
        page.open("translate")
        translated(page)
        assert page.text(".answers .first .said") == "Zwei Hunde rennen über das grüne Feld."
        page.driver.save_screenshot(str(web.SHOTS / "translate-first.png"))
        low = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
        assert page.run(low, "svg.lines") < 768
        assert page.run(low, "canvas.map") < 768
    finally:
        web.size(page.driver, 1280, 900)


def test_a_word_a_head_and_another_translation(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    assert page.text(".answers .first .said") == "Ein Hund rennt."
    assert page.count(".answers li") == 4
    assert page.texts(".lines .token text")[:4] == ["A", "dog", "runs", "."]
    assert page.text(".mapbox figcaption b") == "Cross-attention, mean of 15 heads"
    hund = page.all(".lines .token")[6]
    page.run("arguments[0].dispatchEvent(new PointerEvent('pointerenter'))", hund)
    assert page.text(".tokenlines .note").startswith("Hund attends to dog (")
    page.click('.heads [data-at="1,2"]')
    page.until(lambda: page.text(".mapbox figcaption b") == "Cross-attention, layer 1, head 2")
    assert page.state()["head"] == "2"
    page.find(".answers li:nth-child(2) button").click()
    page.until(lambda: "läuft" in page.text(".lines"))
    assert page.state()["layer"] == "1"
    assert focus(page).startswith("Ein Hund läuft.")  # the focus stays on the chosen translation
    web.shot(page.driver, "translate")


def test_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    page.open("translate", model="en-de", text="A dog runs.", colouring="entropy")
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


def test_the_focus_stays_when_the_kind_of_attention_changes(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    select = page.find(".inside .row select")
    select.send_keys("within the source")
    page.until(lambda: page.text(".mapbox figcaption b").startswith("Self-attention of the encoder"))
    assert page.run("return document.activeElement.tagName") == "SELECT"


def test_words_and_pieces_within_the_translation(page):
    page.open("translate", model="en-de", text="A man in a blue shirt is standing on a ladder.", group="decoder")
    translated(page)
    words = page.count(".lines .token")
    page.click(".segments input[value=pieces]")
    page.until(lambda: page.count(".lines .token") > words)


def test_small_maps_of_every_head(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.until(lambda: page.count(".heads canvas") == 15)
    drawn = (
        "const c = document.querySelector('.heads canvas'), d = c.getContext('2d').getImageData(0, 0, c.width,"
        " c.height).data; return [c.width, c.height, new Set(d).size]"
    )
    wide, tall, colours = page.run(drawn)
    assert (wide, tall) == (5, 5)
    assert colours > 10


def test_one_colour_scale_for_all_maps_or_the_maps_own(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    assert page.texts("button.legend") == ["Colours from 0 to 1"]
    page.click("button.legend")
    page.until(lambda: page.state().get("scale") == "own")
    assert page.texts("button.legend")[0].startswith("Colours from 0 to 0.")


def test_a_model_with_one_head_and_one_without_attention_elsewhere(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.run("document.querySelector('.heads button').focus()")
    page.choose(".choice select", "en-de-rnn")
    page.until(lambda: page.text(".mapbox figcaption b") == "Cross-attention, the only head" and settled(page))
    assert not page.find(".picker").is_displayed()  # there is nothing to choose, and no note of the earlier model


def test_a_model_of_another_language_brings_its_own_example(page):
    page.open("translate", model="en-de", text="A dog runs.", answer=2)
    translated(page)
    page.choose(".choice select", "fr-en")
    page.until(lambda: page.text(".answers .first .said") == "I eat it." and settled(page))
    assert page.run("return document.querySelector('.sentence').value") == "Je la mange."
    assert "answer" not in page.state()
    assert "Hund" not in page.text("main")


def test_a_new_sentence_starts_with_its_best_translation(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.click(".answers li:nth-child(3) button")
    page.until(lambda: page.state().get("answer") == "2")
    page.type(".sentence", "A cat sleeps.\n")
    page.until(lambda: "Katze" in page.text(".answers .first .said") and page.count(".answers [aria-pressed=true]"))
    assert page.run("return document.querySelector('.answers [aria-pressed=true]').dataset.at") == "0"


def test_several_sentences_are_translated_one_after_another(page):
    page.open("translate", model="en-de", text="A dog runs. Mr. Smith is reading a book. I like it.")
    page.until(lambda: "3 sentences" in page.text(".status"))
    assert page.texts(".sentences button span:first-child") == [
        "A dog runs.",
        "Mr. Smith is reading a book.",
        "I like it.",
    ]
    assert page.texts(".sentences .said")[2] == "Ich mag es."
    page.click(".sentences li:nth-child(3) button")
    page.until(lambda: page.texts(".lines .token text")[:1] == ["I"] and page.state()["sentence"] == "2")


def test_a_text_that_is_too_long_is_refused_not_cut(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.run("document.querySelector('.sentence').value = 'A dog. '.repeat(8000)")
    page.click(".translate .go")
    page.until(lambda: page.text(".translate .problem"))
    assert "56,000" in page.text(".translate .problem")
    assert page.text(".translate .activity").startswith(page.text(".translate .problem"))
    assert not page.find(".inside").is_displayed()  # nothing of the earlier sentence stays
    assert page.texts(".answers li") == []
    page.driver.get_log("browser")  # drops the expected error


def test_what_is_left_out_of_a_long_sentence_is_said(page):
    page.open("translate", model="en-de", text="a dog and " * 200 + "a cat.", beams=1)
    page.until(lambda: "left out" in page.text(".remark"), 60)
    assert "256" in page.text(".remark")


def test_what_was_written_before_stop_can_be_inspected(page):
    page.open("translate", model="en-de", text="A dog runs.")
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
    hang(page, "/api/translate", [json.dumps({"sentences": ["A cat sleeps."]}),
                                  json.dumps({"sentence": 0, "beams": [beam]})])  # fmt: skip
    page.type(".sentence", "A cat sleeps.\n")
    page.until(lambda: page.text(".answers .said") == "Eine Katze")
    assert page.count(".inside .lines .token") == 0  # nothing of the earlier sentence
    page.click(".stop")
    page.until(lambda: "Stopped" in page.text(".status") and page.count(".lines .token") and settled(page))
    assert page.run("return document.querySelector('.activity').dataset.state") == "stopped"
    assert page.texts(".lines .token text") == ["A", "cat", "sleeps", ".", "<end>", "Eine", "Katze"]


def test_a_click_before_the_models_are_there_waits(page):
    page.open("translate", model="en-de", text="A dog runs.")
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
        page.until(lambda: "Katze" in page.text(".answers .first .said"))
        assert page.text(".translate .problem") == ""
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_an_interrupted_response_is_shown_as_a_sentence_without_stale_figures(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.run(
        "window.fetch = async () => new Response(new ReadableStream({ pull: (to) => to.error(new TypeError('gone')) }))"
    )
    page.type(".sentence", "A cat runs.\n")
    page.until(lambda: page.text(".translate .problem") == "The answer broke off: is the server still running?")
    assert not page.find(".inside").is_displayed()
    assert page.count(".answers li") == 0


def test_back_and_forward_move_through_results(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.type(".sentence", "A cat sleeps.\n")
    page.until(lambda: "Katze" in page.text(".answers .first .said") and "ms" in page.text(".status"))
    page.driver.back()
    page.until(lambda: page.text(".answers .first .said") == "Ein Hund rennt.")
    assert page.run("return document.querySelector('.sentence').value") == "A dog runs."
    page.until(lambda: page.texts(".lines .token text")[1:2] == ["dog"])
    page.driver.forward()
    page.until(lambda: "Katze" in page.text(".answers .first .said"))


def test_the_text_stays_when_coming_back(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.type(".sentence", "A cat sleeps and")
    page.click("#nav a[href='#build']")
    page.until(lambda: page.all(".view.build"))
    page.click("#nav a[href='#translate']")
    page.until(lambda: page.all(".view.translate"))
    assert page.run("return document.querySelector('.sentence').value") == "A cat sleeps and"
    assert page.text(".answers .first .said") == "Ein Hund rennt."
    assert page.count(".lines .token") == 10


def test_two_models_side_by_side(page):
    page.open("translate", model="en-de-rnn", text="A dog runs.", model2="en-de", text2="A dog runs.")
    translated(page, 1)
    translated(page, 2)
    page.until(lambda: page.find(".difference").is_displayed() and settled(page))
    names = ("en-de (Cross-attention, mean of 15 heads)", "en-de-rnn (Cross-attention, the only head)")
    assert page.text(".difference figcaption b") == " − ".join(names)
    assert "a mean of many heads is softer" in page.text(".difference > .note")
    page.find(".difference canvas").send_keys("\ue015")  # the cell below
    assert float(page.text(".difference .mapbox .note").split()[-1]) != 0.0
    web.shot(page.driver, "translate-two")
    page.click(".beside-toggle")
    page.until(lambda: page.count(".pane") == 1 and not page.find(".difference").is_displayed())
    page.driver.back()
    page.until(lambda: page.count(".pane") == 2)


def test_side_by_side_starts_with_another_model_on_the_same_text(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    page.click(".beside-toggle")
    translated(page, 2)
    assert page.run("return [...document.querySelectorAll('.choice select')].map((one) => one.value)") == [
        "en-de",
        "en-de-rnn",
    ]
    page.run("document.querySelectorAll('.sentence')[1].value = 'A cat sleeps.'")
    page.click(".pane:nth-child(2) .go")
    page.until(lambda: "not between the same tokens" in page.text(".difference .note"))


def test_right_to_left_and_very_long_words_keep_their_lines(page):
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)
    draw = (
        "const { TokenLines } = await import('/page/tokens.js'), one = new TokenLines();"
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


def test_a_long_sentence_shows_the_lines_of_one_word(page):
    page.open("translate", model="en-de", text=" and ".join(["a dog runs"] * 9) + ".")
    translated(page)
    visible = (
        "return [...document.querySelectorAll('.lines path')].filter((p) => p.getAttribute('visibility') !== 'hidden')"
        ".length"
    )
    some = page.run(visible)
    assert 0 < some < page.count(".lines path") / 4
    assert page.run("return document.documentElement.scrollWidth") <= 1280


def test_the_view_is_fast(page):
    """Feedback within 100 ms, results within 300 ms, the first word within 500 ms, all times SLACK."""
    speeds = (Path(__file__).parent / "speeds.js").read_text(encoding="utf-8")
    page.open("translate", model="en-de", text="A dog runs.")
    translated(page)  # warm
    times = page.run(speeds, "translating")
    web.note(**times)
    assert times["acknowledged"] < 100 * SLACK
    assert times["word"] < 500 * SLACK
    assert times["head"] < 300 * SLACK


def test_the_difference_follows_both_maps(page, tmp_path):
    text = "I know that you like it."
    page.open("translate", model="en-de-rnn", text=text, model2="en-de", text2=text)
    translated(page, 1)
    translated(page, 2)
    page.until(lambda: "mean of 15 heads" in page.text(".difference figcaption b"))
    page.click('.pane:nth-child(2) .heads [data-at="1,2"]')
    page.until(lambda: "layer 1, head 2" in page.text(".difference figcaption b"))
    assert page.text(".difference > .note") == ""  # one head on each side
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.click("[data-save=json]")
    file = page.until(lambda: next(tmp_path.glob("*.json"), None))
    page.until(lambda: file.read_text().rstrip().endswith("}"))
    saved = json.loads(file.read_text())
    left, right = (pane["attention"]["weights"] for pane in saved["panes"])
    assert saved["panes"][1]["attention"]["head"] == 2
    for row, a, b in zip(saved["difference"], left, right, strict=True):
        assert row == pytest.approx([y - x for x, y in zip(a, b, strict=True)], abs=1e-6)
    page.click("[data-save=svg]")
    drawn = page.until(lambda: next(tmp_path.glob("*.svg"), None))
    page.until(lambda: drawn.read_text().endswith("</svg>"))
    assert "Left: en-de-rnn (RNN" in drawn.read_text()
    assert "Right: en-de (" in drawn.read_text()


def test_a_setting_that_is_changed_belongs_to_the_next_run(page):
    page.open("translate", model="en-de", text="A dog runs.", beams=2)
    translated(page)
    slider = page.find("input[type=range][aria-label=beams]")
    page.run("arguments[0].value = 3; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert page.state()["beams"] == "2"  # of what is on screen
    page.click(".translate .go")
    page.until(lambda: page.count(".answers li") == 3)
    assert page.state()["beams"] == "3"
    assert "next" not in page.state()

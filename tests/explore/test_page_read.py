"""The Read view in a real browser."""

import browser as web
import pytest
from page_steps import settled

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)


def done(page, pane=1):
    root = f".read .pane:nth-child({pane})"
    page.until(lambda: " read in " in page.text(f"{root} .status") and page.count(f"{root} .lines .token"))
    page.until(lambda: settled(page))


def test_a_text_its_masks_and_its_tokens(page):
    """The example is above the fold. Masks have guesses, tokens have similar ones; a text without a mask says how to
    put one. Every token attends to both sides. A mask is inserted in place of a word, or after the last one, and read
    at once.
    """
    with page.sized(1366, 768):
        page.open("read")
        done(page)
        assert page.texts(".outputs code")[0] == "␣playing"
        page.driver.save_screenshot(str(web.SHOTS / "read-first.png"))
        assert page.bottom("svg.lines") < 768
        assert page.bottom("canvas.map") < 768

    page.go("read", model="cloze", text="She [MASK] to the store to buy some [MASK].")
    done(page)
    assert page.texts(".outputs h2") == ["Mask 1, token 3", "Mask 2, token 10"]
    assert page.texts(".outputs ul:nth-of-type(1) code")[0] == "␣went"
    assert "[MASK]" in page.text(".similar h2")
    page.run("[...document.querySelectorAll('.lines .token')].at(-1).dispatchEvent(new Event('click'))")
    page.until(lambda: "[MASK]" not in page.text(".similar h2"))
    page.type(".sentence", "No gap here.\n")
    page.until(lambda: "Replace a word by [MASK]" in page.text(".outputs"))
    web.shot(page.driver, "read")

    page.go("read", model="cloze", text="A dog runs in the park.", layer=2, head=1)
    done(page)
    page.find("canvas.map").send_keys("\ue014", "\ue014")  # the first row, the third key
    assert float(page.text(".mapbox .note").split()[-1]) > 0.0

    page.go("read", model="cloze", text="She [MASK] to the store to buy some milk.")
    page.until(lambda: "read in" in page.text(".status") and page.count(".outputs .bars li"))
    page.run(
        "const node = document.querySelector('.read .sentence'), at = node.value.indexOf('store');"
        " node.setSelectionRange(at, at + 5)"
    )
    page.click(".read .mask")
    page.until(lambda: page.count(".outputs h2") == 2)  # the guesses of both masks
    assert page.state()["text"] == "She [MASK] to the [MASK] to buy some milk."
    page.run(
        "const node = document.querySelector('.read .sentence'); node.value = 'Two cats'; node.setSelectionRange(8, 8)"
    )
    page.click(".read .mask")
    page.until(lambda: page.state()["text"] == "Two cats [MASK]")


def test_texts_heads_and_what_is_saved(page, tmp_path):
    """Whole texts are compared by their vectors; the effect of a head is a change of vectors; a saved figure has the
    predictions; two texts are side by side.
    """
    page.open("read", model="cloze")
    done(page)
    page.until(lambda: page.text(".neighbours canvas + .note") is not None and page.count(".neighbours canvas"))
    height = "return document.querySelector('.neighbours canvas').height"
    five = page.run(height)
    page.run("document.querySelector('.neighbours textarea').value = 'She reads.\\nHe reads.\\nThe car is red.'")
    page.click(".neighbours button[type=submit]")
    page.until(lambda: "She+reads." in page.driver.current_url)
    page.until(lambda: page.run(height) < five)  # the map of three texts
    page.find(".neighbours canvas").send_keys("\ue014")
    similar = float(page.text(".neighbours .mapbox .note").split()[-1])
    page.find(".neighbours canvas").send_keys("\ue014")
    assert similar > float(page.text(".neighbours .mapbox .note").split()[-1])

    page.go("read", model="cloze", text="A dog runs.", colouring="effect")
    done(page)
    page.until(lambda: page.count(".heads [title*='of their length']") == 25)
    assert "output vectors change" in page.text(".picker .legend")

    page.go("read", model="cloze", text="She [MASK] to the store.")
    page.until(lambda: "read in" in page.text(".status") and page.count(".similar .bars li") and settled(page))
    drawn = page.saved("svg", tmp_path).read_text()
    assert "The masked token" in drawn
    assert "Tokens similar to" in drawn

    page.go("read", model="cloze", text="A dog [MASK].", model2="cloze", text2="A bird [MASK].")
    done(page, 1)
    done(page, 2)
    assert page.count(".pane") == 2
    assert "not between the same tokens" in page.until(lambda: page.text(".difference .note"))

"""Patching in the Write view, in a real browser."""

import json
import re

import browser as web
import pytest
from page_steps import hang, inspected, press

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
CLEAN = "The children in the garden"
OPEN = {"model": "everyday", "text": "The man", "inspect": 1, "patch": json.dumps({"open": 1})}
FOUND = (
    "After the clean prompt “␣are” is 2.5 times more likely than “␣is”, after the corrupted one it is 14 times less"
    " likely. Most of the difference is carried in blocks 0 to 3 at “␣children”, then in block 4 at “␣garden”, the"
    " last token."
)


def patched(page):
    page.until(
        lambda: (
            page.count(".patching .verdict")
            and page.run("return arguments[0].height > 0", page.find(".patching canvas"))
        )
    )


def test_the_example_is_opened_read_and_closed(page):
    """It is closed at first, and opens on an example that works, in the address; its cells are read by keyboard; the
    page helps to make the prompts equally long.
    """
    page.open("write", model="everyday", text="The man", inspect=1)
    inspected(page)
    assert not page.find(".patching form").is_displayed()
    assert "patch" not in page.state()
    page.click(".patching summary")
    patched(page)
    assert page.text(".patching .verdict") == FOUND
    assert json.loads(page.state()["patch"])["clean"] == CLEAN
    page.click(".patching summary")
    page.until(lambda: "patch" not in page.state())

    page.open("write", **OPEN)
    patched(page)
    page.run("document.querySelector('.patching canvas').focus()")
    press(page, "\ue014")  # right
    page.until(lambda: page.text(".patching .mapbox .note").startswith("block 0, ␣children: 0.97"))
    press(page, *["\ue015"] * 5, *["\ue014"] * 5)
    page.until(lambda: page.text(".patching .mapbox .note") == "block 4, ␣garden: 1 of the clean answer comes back")

    page.open("write", **OPEN)
    patched(page)
    assert page.texts(".tokens .differs") == ["␣children", "␣child"]
    page.type(".patchform .corrupted input", "John in the big garden")
    page.until(lambda: "they need the same number" in page.text(".tokens"))
    assert "“John” is 2 tokens; a commoner word may be one token." in page.text(".tokens")
    assert page.run("return document.querySelector('.patchform .go').disabled")
    page.type(".patchform .corrupted input", "the woman in the garden")
    page.until(lambda: "“the” is 2 tokens; with a capital letter" in page.text(".tokens"))
    page.type(".patchform .corrupted input", "The woman in the garden")
    page.until(lambda: "the same number of tokens and differ in 1 token." in page.text(".tokens"))
    assert not page.run("return document.querySelector('.patchform .go').disabled")


def asks(**given):
    """The address of two prompts and their answers."""
    usual = {"open": 1, "clean": CLEAN, "corrupted": "The child in the garden", "answer": "are", "other": "is"}
    return OPEN | {"patch": json.dumps(usual | given)}


def verdict(page, **given):
    page.run("document.querySelector('.patching .verdict')?.remove()")  # of the prompts before
    page.go("write", **asks(**given))
    page.until(lambda: page.count(".patching .verdict"))
    return page.text(".patching .verdict")


def test_what_is_said_of_a_map(page):
    """Only blocks that bring back half are named; an answer may be the word "against"; colours reach the largest
    share; prompts that hardly differ have a warning and no map.
    """
    page.open("write", **OPEN)
    patched(page)
    said = verdict(page, what="attention")  # at most 0.70, 0.01, 0.02, 0.25 and 0.73
    assert said.endswith("carried in block 0 at “␣children”, then in block 4 at “␣garden”, the last token.")

    said = verdict(page, answer="against", other="is")
    assert re.match("After the clean prompt “␣against” is .* than “␣is”, after the corrupted one it is", said)

    said = verdict(page, clean="The man in the garden", corrupted="The boy in the garden", answer="is", other="are")
    assert "Most of the difference" in said
    page.until(lambda: re.fullmatch(r"Colours from −1\.8\d* to 1\.8\d* share", scale(page)))

    far = " and " + "the dog and " * 15 + "the cat"
    said = verdict(page, clean=CLEAN + far, corrupted="The child in the garden" + far)
    assert re.search(r"The prompts differ in this by [89]\.?\d*e−4 nats only: .* so there is no map", said)
    assert not page.count(".patching canvas")


def scale(page):
    return page.run("return document.querySelector('.patching .legend').textContent")


def test_heads_and_a_link(page):
    page.open("write", **OPEN)
    patched(page)
    page.choose(".patching [name=what]", "heads")
    page.until(lambda: page.text(".patching .verdict").find("The head that brings back most is head") > 0)
    state = json.loads(page.state()["patch"])
    assert state["what"] == "heads"
    page.open("write", **OPEN | {"patch": json.dumps(state | {"corrupted": "The man in the garden"})})
    patched(page)
    assert page.text(".patching figcaption b") == "Exchanged: the output of each head, at all tokens"


def test_errors_are_sentences_and_work_can_be_stopped(page):
    page.open("write", **OPEN)
    patched(page)
    page.type(".patchform .answer input", "xylophone")
    page.click(".patchform .go")
    page.until(lambda: "The answer 'xylophone' is 6 tokens (" in page.text(".patching .problem"))
    assert "[" not in page.text(".patching .problem")
    wide = page.run("return ['.problem', 'form'].map((one) => document.querySelector(`.patching ${one}`).clientWidth)")
    assert wide[0] == wide[1]
    assert not page.count(".patching .verdict, .patching canvas")
    page.type(".patchform .answer input", "are")  # an old problem goes
    page.until(lambda: page.text(".patching .problem") == "")
    hang(page, "/api/patching", [json.dumps({"progress": [5, 25]})])
    page.click(".patching .chips button:nth-child(2)")
    page.until(lambda: page.text(".patching .status") == "Exchanging: 5 of 25…")
    page.click(".patching .stop")
    page.until(lambda: page.text(".patching .status") == "Stopped.")


def test_what_cannot_be_exchanged_is_not_asked_for(page):
    page.open("write", **asks())
    patched(page)
    page.run(
        "window.asked = 0; const plain = window.fetch; window.fetch = (path, options) => {"
        " window.asked += String(path) === '/api/patching'; return plain(path, options); }"
    )
    for field, text, why in (
        ("corrupted", CLEAN, "The prompts are the same"),
        ("corrupted", "The child in the big garden", "they need the same number"),
    ):
        page.type(f".patchform .{field} input", text)
        page.until(lambda why=why: why in page.text(".tokens"))
        assert page.run("return document.querySelector('.patchform .go').disabled")
    page.choose(".patching [name=what]", "mlp")
    page.until(lambda: not page.count(".patching .verdict") and page.text(".patching .status") == "")
    assert page.run("return window.asked") == 0
    assert page.text(".patching .problem") == ""


def test_what_empty_answers_mean_is_said(page):
    page.open("write", **asks(answer="", other="is"))
    page.until(lambda: "Type the answer to the clean prompt, too, or leave both empty." in page.text(".tokens"))
    page.type(".patchform .other input", "\ue003")
    page.run("document.querySelector('.patchform .other input').dispatchEvent(new Event('input'))")
    page.until(lambda: "Without answers, the likeliest token after each prompt is taken." in page.text(".tokens"))
    assert page.run("return document.querySelector('.patchform .answer input').placeholder") == (
        "empty: the likeliest token"
    )
    page.click(".patchform .go")
    patched(page)


@pytest.mark.slow
def test_it_is_repeated_when_the_server_is_back(page):
    page.open("write", **asks())
    patched(page)
    page.run("window.plain = window.fetch; window.fetch = async () => { throw new TypeError('Failed to fetch'); }")
    page.choose(".patching [name=what]", "mlp")
    page.until(lambda: "does not answer" in page.text(".patching .problem"))
    page.run("window.fetch = window.plain")
    page.until(lambda: page.text(".patching figcaption b") == "Exchanged: the output of each MLP")
    assert page.text(".patching .problem") == ""


def test_it_is_saved_and_fits_a_phone(page, tmp_path):
    page.open("write", **OPEN)
    inspected(page)
    patched(page)
    found = json.loads(page.saved("json", tmp_path).read_text())["patching"]
    assert len(found["effects"]) == 5
    assert (found["given"]["answer"], found["answers"]) == ("are", [" are", " is"])
    texts = " ".join(re.findall(r"<text[^>]*>([^<]*)", page.saved("svg", tmp_path).read_text()))
    assert "Exchanged: the residual stream after each block" in texts
    assert f"Clean prompt: “{CLEAN}”. Corrupted prompt: “{CLEAN.replace('children', 'child')}”. {FOUND}" in texts
    with page.sized(390, 844):
        page.until(lambda: page.run("return document.documentElement.scrollWidth") <= 390)


def test_another_model_has_a_map_of_its_own(page):
    page.open("write", **OPEN)
    patched(page)
    page.choose(".write .choice select", "tiny")
    page.until(lambda: page.count(".tokens td code") > 20)  # characters


def test_a_model_of_characters_has_an_example_that_fits_and_advice_of_its_own(page):
    page.open("write", model="tiny", text="The man", inspect=1, patch='{"open":1}')
    page.until(lambda: page.count(".patching .verdict"))
    assert page.texts(".patchform .chip") == ["The man is here and / dog"]
    assert page.text(".tokens th") == "clean (19 tokens)"
    page.type(".patchform .corrupted input", "The horse is here and")
    advice = "Every character is a token of this model: exchange words with the same number of letters."
    page.until(lambda: advice in page.text(".tokens"))
    wide = page.run("return [...document.querySelectorAll('.tokens .count')].map((one) => one.getBoundingClientRect())")
    assert all(box["right"] < 640 for box in wide)  # seen, though the row of tokens goes on
    page.choose(".write .choice select", "everyday")
    page.until(lambda: len(page.texts(".patchform .chip")) == 3)

"""Patching in the Write view, in a real browser."""

import json

import browser as web
import pytest
from page_steps import hang, inspected, press
from test_page_classify import saved

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
OPEN = {"model": "everyday", "text": "The man", "inspect": 1, "patch": json.dumps({"open": 1})}
FOUND = (
    "After the clean prompt “are” is 2.5 times more likely than “is”, after the corrupted one it is 14 times less"
    " likely. Most of the difference is carried in blocks 0 to 3 at “children”, then in block 4 at “garden”, the"
    " last token."
)


def patched(page):
    page.until(
        lambda: (
            page.count(".patching .verdict")
            and page.run("return arguments[0].height > 0", page.find(".patching canvas"))
        )
    )


def test_it_is_closed_at_first_and_opens_on_an_example_that_works(page):
    page.open("write", model="everyday", text="The man", inspect=1)
    inspected(page)
    assert not page.find(".patching form").is_displayed()
    assert "patch" not in page.state()
    page.click(".patching summary")
    patched(page)
    assert page.text(".patching .verdict") == FOUND
    assert json.loads(page.state()["patch"])["clean"] == "The children in the garden"
    page.click(".patching summary")
    page.until(lambda: "patch" not in page.state())


def test_a_cell_is_read_by_keyboard(page):
    page.open("write", **OPEN)
    patched(page)
    page.run("document.querySelector('.patching canvas').focus()")
    press(page, "\ue014")  # right
    page.until(lambda: page.text(".patching .mapbox .note").startswith("block 0, ␣children: 0.97"))
    press(page, *["\ue015"] * 5, *["\ue014"] * 5)
    page.until(lambda: page.text(".patching .mapbox .note") == "block 4, ␣garden: 1 of the clean answer comes back")


def test_the_page_helps_to_make_the_prompts_equally_long(page):
    page.open("write", **OPEN)
    patched(page)
    assert page.texts(".tokens .differs") == ["␣children", "␣child"]
    page.type(".patchform .corrupted input", "John in the big garden")
    page.until(lambda: "they need the same number" in page.text(".tokens"))
    assert "“John” is 2 tokens; a commoner word may be one token." in page.text(".tokens")
    assert page.run("return document.querySelector('.patchform .go').disabled")
    page.type(".patchform .corrupted input", "The woman in the garden")
    page.until(lambda: "the same number of tokens and differ in 1" in page.text(".tokens"))
    assert not page.run("return document.querySelector('.patchform .go').disabled")


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
    page.until(lambda: "The answer 'xylophone' is 6 tokens" in page.text(".patching .problem"))
    assert not page.count(".patching .verdict, .patching canvas")
    hang(page, "/api/patching", [json.dumps({"progress": [5, 25]})])
    page.click(".patching .chips button:nth-child(2)")
    page.until(lambda: page.text(".patching .status") == "Exchanging: 5 of 25…")
    page.click(".patching .stop")
    page.until(lambda: page.text(".patching .status") == "Stopped.")


def test_it_is_saved_and_fits_a_phone(page, tmp_path):
    page.open("write", **OPEN)
    inspected(page)
    patched(page)
    found = json.loads(saved(page, "json", tmp_path).read_text())["patching"]
    assert len(found["effects"]) == 5
    assert (found["given"]["answer"], found["answer"]) == ("are", " are against  is")
    assert "Exchanged: the residual stream after each block" in saved(page, "svg", tmp_path).read_text()
    web.size(page.driver, 390, 844)
    try:
        page.until(lambda: page.run("return document.documentElement.scrollWidth") <= 390)
    finally:
        web.size(page.driver, 1280, 900)


def test_another_model_has_a_map_of_its_own(page):
    page.open("write", **OPEN)
    patched(page)
    page.choose(".write .choice select", "tiny")
    page.until(lambda: page.count(".tokens td code") > 20)  # characters

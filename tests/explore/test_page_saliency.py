"""Saliency in the Classify view, in a real browser."""

import json
import re

import browser as web
import numpy as np
import pytest
from page_steps import hang, press
from test_page_classify import done, title

import clearhead as ch
from clearhead.explore.examples import example_file

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
CHURCH = {"model": "vit-imagenette", "image": "church", "group": "saliency"}
DRAG = """
const box = document.querySelector('.salient canvas').getBoundingClientRect(), send = (kind, x, y) => document.querySelector('.salient canvas').dispatchEvent(
  new PointerEvent(kind, { clientX: box.left + x * box.width, clientY: box.top + y * box.height, pointerId: 1, bubbles: true, button: 0 }));
HTMLElement.prototype.setPointerCapture = () => {};
send('pointerdown', arguments[0], arguments[1]); send('pointermove', arguments[2], arguments[3]); send('pointerup', arguments[2], arguments[3]);
"""  # noqa: E501


def explained(page, name="What speaks for church: Grad-CAM", seconds=60):
    page.until(lambda: page.text(".salient figcaption b") == name and page.find(".salient").is_displayed(), seconds)


def test_a_class_is_explained(page):
    """A click on a class explains it, in the address and without the heads; the mouse reaches the likeliest one;
    another image is explained by its own class, and Back has the region; a wrong region, class or method is read as
    far as it goes.
    """
    page.open("classify", model="vit-imagenette", image="church")
    done(page)
    assert "Click a class" in page.text(".classes .note")
    page.click(".classes li:nth-child(2) button")
    explained(page, "What speaks for golf ball: Grad-CAM")
    assert page.run("return document.querySelector('.classes [aria-pressed=true]').textContent") == "golf ball"
    assert (page.state()["group"], page.state()["target"]) == ("saliency", "golf ball")
    assert not page.find(".sight .heads").is_displayed()
    assert "blocks.4" in page.text(".salience .note")
    page.choose(".detail [name=shown]", "self")
    page.until(lambda: title(page).startswith("Attention of the class token") and page.count(".sight .heads canvas"))
    assert not page.find(".salient").is_displayed()

    page.open("classify", model="vit-imagenette", image="church")
    done(page)
    page.find(".classes li:first-child button").click()  # of the mouse: raises if the bar is in the way
    explained(page)
    assert page.state()["target"] == "church"

    page.open("classify", **CHURCH, target="church", region="[26,4,116,106]")
    explained(page)
    page.click('.photo[data-image="golf-ball"]')
    explained(page, "What speaks for golf ball: Grad-CAM")
    assert page.state().keys() == {"model", "image", "group"}
    assert page.text(".salience .share") == ""
    page.driver.back()
    explained(page)
    assert page.state()["region"] == "[26,4,116,106]"

    page.go("classify", **CHURCH, region="[5,5,4,900]", target="unicorn", method="magic")
    explained(page)
    assert page.text(".salience .share") == ""
    assert page.text(".classify .problem") == ""


def test_methods_progress_and_stop(page):
    """Integrated gradients state their error and their sign, and a network has no method of attention. A method can
    be stopped and asked for again; what is known needs no request.
    """
    page.open("classify", model="resnet-cifar10", image="cat", group="saliency", method="integrated", target="dog")
    explained(page, "What speaks for dog: integrated gradients")
    said = page.text(".salience .note")
    assert "64 steps" in said
    assert re.search(r"they miss it by −?\d\.\d+ \(.* %\)", said)
    legend = page.text(".salient .legend")
    assert re.fullmatch(r"−0\.\d+\s*0\.\d+ for \(blue\) or against \(orange\)", legend)
    methods = page.run("return [...document.querySelectorAll('[name=method] option')].map((one) => one.value)")
    assert "grad-cam" in methods
    assert "gradient-rollout" not in methods  # it has no attention

    page.go("classify", **CHURCH)
    explained(page)
    hang(page, "/api/saliency", [json.dumps({"progress": [7, 64]})])
    page.choose(".detail [name=method]", "occlusion")
    page.until(lambda: page.text(".salience .status") == "Explaining church: 7 of 64…")
    page.click(".salience .stop")
    page.until(lambda: page.text(".salience .status") == "Stopped.")
    assert not page.find(".salient").is_displayed()  # it was of the method before
    hang(page, "/api/saliency", [json.dumps({"progress": [8, 64]})])
    page.click(".salience .again")
    page.until(lambda: page.text(".salience .status") == "Explaining church: 8 of 64…")
    page.choose(".detail [name=method]", "grad-cam")  # kept
    explained(page)


def test_the_share_of_a_region(page, tmp_path):
    """By mouse, with the library's share and saved; by keyboard: placed, moved, resized, within the image, removed."""
    page.open("classify", **CHURCH)
    explained(page)
    page.run(DRAG, 0.2505, 0.1255, 0.7475, 0.872)
    page.until(lambda: page.text(".salience .share").startswith("The region holds"))
    box = json.loads(page.state()["region"])
    assert box == [32, 16, 96, 112]
    found = ch.look.saliency(ch.load("vit-imagenette"), example_file("church"), method="grad-cam", target="church")
    kept = json.loads(page.saved("json", tmp_path).read_text())["saliency"]
    assert kept["region"]["share"] == pytest.approx(found.share(box), abs=1e-3)
    assert kept["region"]["area"] == pytest.approx(64 * 96 / 128**2)
    np.testing.assert_allclose(kept["values"], found.values, rtol=1e-3, atol=1e-6)
    assert (
        page.text(".salience .share")
        == f"The region holds {100 * found.share(box):.0f} % of the saliency, on 38 % of the image."
    )

    page.open("classify", **CHURCH)
    explained(page)
    page.click(".salience .row button")
    page.until(lambda: page.state().get("region") == "[32,32,96,96]")
    assert page.run("return document.activeElement === document.querySelector('.salient canvas')")
    press(page, "\ue014")  # right
    page.until(lambda: page.state().get("region") == "[40,32,104,96]")
    press(page, "\ue008", "\ue015", "\ue008")  # Shift and down
    page.until(lambda: page.state().get("region") == "[40,32,104,104]")
    press(page, *["\ue014"] * 9)
    page.until(lambda: page.state().get("region") == "[64,32,128,104]")  # within the image
    press(page, "\ue00c")  # Escape
    page.until(lambda: "region" not in page.state())
    assert page.text(".salience .share") == ""


@pytest.mark.slow
def test_it_is_repeated_when_the_server_is_back(page):
    page.open("classify", **CHURCH)
    explained(page)
    page.run("window.plain = window.fetch; window.fetch = async () => { throw new TypeError('Failed to fetch'); }")
    page.choose(".detail [name=method]", "gradient")
    page.until(lambda: "does not answer" in page.text(".salience .problem"))
    assert not page.find(".salient").is_displayed()
    page.run("window.fetch = window.plain")
    explained(page, "What speaks for church: gradient")
    assert page.text(".salience .problem") == ""


def test_two_models_are_explained_side_by_side(page, tmp_path):
    other = {"model2": "resnet-cifar10", "image2": "cat", "group2": "saliency"}
    page.open("classify", model="vit-cifar10", image="cat", group="saliency", **other)
    page.until(
        lambda: page.count(".salient canvas") == 2 and "in multiples of each map's mean" in page.text(".difference")
    )
    found = json.loads(page.saved("json", tmp_path).read_text())
    left, right = (np.array(one["saliency"]["values"]) for one in found["panes"])
    expected = right / np.abs(right).mean() - left / np.abs(left).mean()
    np.testing.assert_allclose(found["difference"], expected, atol=1e-6)
    low, high = (float(x.replace("−", "-")) for x in page.text(".difference .legend").split()[:2])
    assert low == -high  # 0 is in the middle of the colours

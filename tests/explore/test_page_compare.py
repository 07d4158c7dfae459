"""The Compare view in a real browser."""

import json
from xml.etree import ElementTree

import browser as web
import pytest
from page_steps import hang, press, settled
from test_page_classify import SVG

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
# The line of /api/compare with what was measured of a model.
STUDY = """
const headers = { "content-type": "application/json" };
const body = JSON.stringify({ model: arguments[0], other: arguments[0] });
return (await (await fetch("/api/compare", { method: "POST", headers, body })).text()).split("\\n")[0];
"""
MODELS = {"model": "vit-cifar10", "other": "resnet-cifar10"}


def done(page):
    page.until(lambda: "Compared in" in page.text(".compare .status") and settled(page), 90)


def test_the_example_is_read_saved_and_stopped(page, tmp_path):
    """The example says how many images it used, and what each part shows. A cell names both layers, the first at the
    bottom left; distances are read by keyboard. It is saved and fits a phone. Other models are measured, stopped and
    asked for again, and Back leads to the example.
    """
    page.open("compare")
    done(page)
    assert page.state() == MODELS
    said = page.text(".compare .remark")
    assert "9 photographs, each whole and in quarters: 45 images" in said
    assert "noisy" in said
    assert "debiased" in said
    titles = ["Within vit-cifar10", "vit-cifar10 and resnet-cifar10", "Within resnet-cifar10"]
    assert page.texts(".grids figcaption b") == titles
    assert page.count(".compare .curves .line circle") > 9 * 4  # a dot per head in every layer, and the fields
    assert page.texts(".pairs .curves")[0].count("0.8") == 0  # the axis ends at 0.6
    assert "resnet-cifar10 has no attention" in page.text(".compare .pairs")
    assert page.texts(".fields .layer")[9:11] == ["stem", "stages.0.0"]
    assert page.run("return document.querySelectorAll('.fields canvas')[9].getAttribute('aria-label')") == (
        "stem: 90 % of the gradient is within 3 × 3 pixels; it can depend on 3 × 3"
    )

    page.go("compare", **MODELS)
    done(page)
    page.run("document.querySelectorAll('.grids canvas')[1].focus()")
    press(page, *["\ue015"] * 12, *["\ue012"] * 12)  # down, left
    note = ".grids .mapbox:nth-child(2) .note"
    page.until(lambda: page.text(note).startswith("blocks.0 of vit-cifar10 and stem of resnet-cifar10: 0."))
    assert " ± 0." in page.text(note)
    press(page, "\ue013", "\ue014")  # up, right
    page.until(lambda: page.text(note).startswith("blocks.1 of vit-cifar10 and stages.0.0 of resnet-cifar10"))
    page.run("document.querySelectorAll('.grids canvas')[0].focus()")
    press(page, *["\ue015"] * 12, *["\ue012"] * 12)
    page.until(
        lambda: page.text(".grids .note").startswith("blocks.0 of vit-cifar10 and blocks.0 of vit-cifar10: 1.00")
    )

    page.go("compare", **MODELS)
    done(page)
    page.run("document.querySelector('.pairs .curves').focus()")
    press(page, "\ue014", "\ue014")
    page.until(lambda: page.text(".pairs .note").startswith("layer 1: head 0 0."))
    assert page.text(".pairs .note").count("head") == 4

    page.go("compare", **MODELS)
    done(page)
    found = json.loads(page.saved("json", tmp_path).read_text())
    assert [one["model"] for one in found["studies"]] == list(MODELS.values())
    assert len(found["similarity"]["between"]["cka"]) == 9
    root = ElementTree.fromstring(page.saved("svg", tmp_path).read_text())
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert {"Within vit-cifar10", "stages.3.1"} <= set(texts)
    said = " ".join(text or "" for text in texts)
    assert "median standard error of 0." in said
    assert "The solid square holds 90 % of it" in said
    assert any("debiased CKA over 45 images" in (text or "") for text in texts)
    with page.sized(390, 844):
        page.until(lambda: page.run("return document.documentElement.scrollWidth") <= 390)

    page.go("compare", **MODELS)
    done(page)
    hang(page, "/api/compare", [json.dumps({"model": "vit-imagenette", "progress": [3, 27]})])
    page.choose("[name=model]", "vit-imagenette")
    page.until(lambda: page.text(".compare .status") == "Measuring vit-imagenette: 3 of 27…")
    assert not page.find(".comparison").is_displayed()
    page.click(".compare .stop")
    page.until(lambda: page.text(".compare .status") == "Stopped.")
    assert page.state()["model"] == "vit-imagenette"
    hang(page, "/api/compare", [json.dumps({"model": "vit-imagenette", "progress": [4, 27]})])
    page.click(".compare .again")
    page.until(lambda: page.text(".compare .status") == "Measuring vit-imagenette: 4 of 27…")
    page.driver.back()
    page.until(lambda: page.state() == MODELS and page.find(".comparison").is_displayed())
    assert page.run("return document.querySelector('[name=model]').value") == "vit-cifar10"


def test_one_model_twice_and_models_that_go(page):
    """A model beside itself is shown once; one that is no longer chosen goes at once; one that reads no images is
    refused in a sentence.
    """
    page.open("compare", model="resnet-cifar10", other="resnet-cifar10")
    done(page)
    assert [one.is_displayed() for one in page.all(".fieldbox")] == [True, False]
    assert [one.is_displayed() for one in page.all(".grids .mapbox")] == [True, False, False]

    page.go("compare", model="resnet-cifar10", other="vit-cifar10")
    done(page)
    study = page.run(STUDY, "resnet-cifar10")
    hang(page, "/api/compare", [study])
    page.choose("[name=other]", "vit-imagenette")
    page.until(lambda: page.find(".pairs").is_displayed())
    assert not any(one.is_displayed() for one in page.all(".pairs .curves"))

    page.open("compare", model="everyday")
    page.until(lambda: "everyday does not classify" in page.text(".compare .problem"))
    page.open("compare", model="none-such", other="resnet-cifar10")
    page.until(lambda: "There is no model 'none-such'" in page.text(".compare .problem"))
    page.driver.get_log("browser")  # the refused request is logged there

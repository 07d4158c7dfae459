"""The Classify view in a real browser."""

import json
import time
import urllib.parse
from xml.etree import ElementTree

import browser as web
import numpy as np
import pytest
import torch
from page_steps import SLACK, hang, press
from PIL import Image
from test_images_api import UNUSUAL, bomb

import clearhead as ch
from clearhead.data import Preprocessing
from clearhead.explore.examples import example_file
from support.marks import one_in

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
SVG = "{http://www.w3.org/2000/svg}"
SUFFIXES = {"animated": "gif", "CMYK": "tif"}


def done(page, pane=1):
    """Wait for the result of a pane and its figures."""
    root = f".classify .pane:nth-child({pane})"
    page.until(lambda: " ms." in page.text(f"{root} .status") and page.count(f"{root} .classes h2"))
    page.until(lambda: drawn(page, root))


def drawn(page, root=".classify .pane"):
    return page.run("return document.querySelector(arguments[0]).getAttribute('aria-label') !== ''", f"{root} .picture")


def title(page, pane=1):
    return page.text(f".classify .pane:nth-child({pane}) .mapbox figcaption b")


def give(page, path):
    page.find(".classify .pane:first-child input[type=file]").send_keys(str(path))


@pytest.fixture(scope="module")
def others(tmp_path_factory, chrome):
    """A server with a network that has attention, a model that only embeds, and one whose patches are pooled."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("sights")
    small = {"size": 28, "patch": 7, "width": 16, "depth": 2, "heads": 2}
    models = {
        "embedder": ch.build("vit", classes=0, pool="mean", **small),
        "pooled": ch.build("vit", classes=3, pool="attention", registers=2, **small),
        "sagan": ch.build("resnet", classes=3, width=16, depths=(1, 1), attention=(1,), stem="small"),
    }
    for name, model in models.items():
        ch.save(ch.Bundle(model, preprocessing=Preprocessing(resize=(35, 49))), root / name)
    found = web.Server(*(str(root / name) for name in models))
    yield found, root
    found.stop()


def elsewhere(page, others, **state):
    page.driver.get("about:blank")
    page.driver.get(f"{others[0].address}#classify?{urllib.parse.urlencode(state)}")
    done(page)


def test_images_links_patches_and_the_history(page):
    """The example is above the fold. A link opens model, image, layer, head and patch, and what it cannot mean is as
    usual. Patches are chosen by mouse and by keyboard, within the grid, and left by the class token. Back and Forward
    move through images and models, and the view is as it was left.
    """
    with page.sized(1366, 768):
        page.open("classify")
        done(page)
        page.until(lambda: page.count(".sight .heads canvas") == 36)
        assert page.texts(".classes .label")[0] == "church"
        assert title(page) == "Attention of the class token, layer 0, head 1"
        example = {"model": "vit-imagenette", "image": "church", "layer": "0", "head": "1"}
        assert page.state() == example | {"group": "self"}
        page.driver.save_screenshot(str(web.SHOTS / "classify-first.png"))
        for css in (".sight .picture", ".classes li:last-child", ".sight .heads", ".sight .mapbox .legend"):
            assert page.bottom(css) < 768

    state = {"model": "vit-imagenette", "image": "golf-ball", "group": "self", "layer": "2", "head": "3", "at": "120"}
    page.go("classify", **state)
    done(page)
    assert title(page) == "Attention of the patch in row 7, column 7, layer 2, head 3"
    assert page.state() == state
    assert page.run("return document.querySelector('.photo[aria-pressed=true]').dataset.image") == "golf-ball"
    for layer, head in (("99", "x"), ("-1", "3"), ("0.5", "0")):
        wrong = {"layer": layer, "head": head, "at": "-4", "group": "none", "colouring": "odd"}
        page.go("classify", **state | wrong)
        done(page)
        page.until(lambda: title(page) == "Attention of the class token, mean of 36 heads")
    assert page.text(".classify .problem") == ""

    page.go("classify", model="vit-imagenette", image="golf-ball")
    done(page)
    x, y, side = page.run(
        "const box = document.querySelector('.picture').getBoundingClientRect(); return [box.left, box.top, box.width]"
    )
    page.run(
        "document.querySelector('.picture').dispatchEvent(new MouseEvent('click', {clientX: arguments[0], clientY:"
        " arguments[1], bubbles: true}))",
        x + side * 4.5 / 16, y + side * 6.5 / 16,
    )  # fmt: skip
    page.until(lambda: "row 6, column 4" in title(page))
    assert page.state()["at"] == str(1 + 6 * 16 + 4)
    page.run("document.querySelector('.picture').focus()")
    press(page, "\ue014", "\ue015")  # right, down
    page.until(lambda: "row 7, column 5" in title(page))
    assert "row 7, column 5: " in page.text(".sight .mapbox > .note:last-child")
    for _ in range(12):
        press(page, "\ue014")
    page.until(lambda: "row 7, column 15" in title(page))  # it stays in the grid
    page.click(".sight .chip")
    page.until(lambda: "class token" in title(page))
    assert "at" not in page.state()
    assert page.text(".sight .rest").endswith("%.")  # the weight on the class token itself

    page.open("classify", model="vit-imagenette", image="church")
    done(page)
    page.click(".photo[data-image=parachute]")
    page.until(lambda: page.texts(".classes .label")[:1] == ["parachute"])
    page.choose(".choice select", "vit-cifar10")
    page.until(lambda: "airplane" in page.texts(".classes .label"))
    assert page.state()["image"] == "parachute"  # another model looks at the same image
    page.driver.back()
    page.until(lambda: page.texts(".classes .label")[:1] == ["parachute"])
    page.driver.back()
    page.until(lambda: page.texts(".classes .label")[:1] == ["church"])
    assert page.state()["image"] == "church"
    page.driver.forward()
    page.until(lambda: page.texts(".classes .label")[:1] == ["parachute"])
    page.click("#nav a[href='#build']")
    page.until(lambda: page.count(".view.build"))
    page.click("#nav a[href='#classify']")
    page.until(lambda: page.texts(".classes .label")[:1] == ["parachute"])  # as it was left


def test_heads_and_their_numbers(page, tmp_path):
    """Another head needs no request and is fast; heads are coloured by distance (the library's number) and entropy,
    also of another image; saved numbers are those of the library; a saved figure says what it shows.
    """
    page.open("classify", model="vit-imagenette", image="parachute")
    done(page)
    page.until(lambda: page.count(".sight .heads canvas") == 36)
    times = page.run(
        """
        const requests = () => performance.getEntriesByType("resource").length, before = requests(), shown = [];
        const title = () => document.querySelector(".mapbox figcaption b").textContent;
        for (const at of ["0,1", "3,2", "5,null", "null,null", "1,1"]) {
          const began = performance.now(), earlier = title();
          document.querySelector(`.heads [data-at="${at}"]`).click();
          while (title() === earlier && performance.now() - began < 5000) await new Promise(requestAnimationFrame);
          shown.push([performance.now() - began, title()]);
        }
        return [shown, requests() - before];
        """
    )
    assert [text.partition(", ")[2] for _, text in times[0]] == [
        "layer 0, head 1", "layer 3, head 2", "layer 5, mean of 6 heads", "mean of 36 heads", "layer 1, head 1"
    ]  # fmt: skip
    assert times[1] == 0
    web.note(classify_head=max(ms for ms, _ in times[0]))
    assert max(ms for ms, _ in times[0]) < 180 * SLACK

    page.go("classify", model="vit-cifar10", image="ship", layer=1, head=2)
    done(page)
    page.choose(".picker select", "distance")
    page.until(lambda: "patches" in page.text(".picker .legend"))
    page.until(lambda: page.count(".heads button.plain[data-at]:not([data-at$=null])") == 0)
    assert page.state()["colouring"] == "distance"
    names = page.run("return [...document.querySelectorAll('.heads [role=gridcell]')].map((one) => one.title)")
    bundle = ch.load("vit-cifar10", device="cpu")
    with torch.no_grad(), ch.watch(bundle, "blocks.*.attn.weights") as tape:
        bundle(example_file("ship"))
    want = float(tape["blocks.1.attn.weights"].distance(grid=(16, 16), special=1)[0, 2, 1:].mean())
    assert f"layer 1, head 2: distance {want:.3f} patches" in names
    page.choose(".picker select", "entropy")
    page.until(lambda: "nats" in page.text(".picker .legend"))
    page.click(".photo[data-image=cat]")
    page.until(lambda: page.state()["image"] == "cat")
    done(page)
    page.until(lambda: "nats" in page.text(".picker .legend"))  # measured again for the other image
    assert title(page).endswith("layer 1, head 2")

    page.go("classify", model="vit-imagenette", image="church", layer=3, head=4, at=40, colouring="entropy")
    done(page)
    page.until(lambda: page.count(".heads button.plain[data-at]:not([data-at$=null])") == 0)
    data = json.loads(page.saved("json", tmp_path).read_text())
    bundle = ch.load("vit-imagenette", device="cpu")
    with torch.no_grad(), ch.watch(bundle, "blocks.*.attn.weights") as tape:
        want = bundle(example_file("church")).softmax(-1).sort(descending=True)
    maps = [tape[name] for name in tape.names]
    assert [label for label, _ in data["classes"]] == [bundle.labels[i] for i in want.indices]
    assert [p for _, p in data["classes"]] == pytest.approx(want.values.tolist(), rel=1e-3)
    found = data["attention"]
    assert (found["query"], found["grid"], found["special"], data["seen"]) == (40, [16, 16], [0], [128, 128])
    assert np.allclose(found["weights"], maps[3].row(40)[0, 4], atol=1e-5)
    every = np.array(found["every_head"]["weights"]).reshape(found["every_head"]["shape"])
    assert np.allclose(every, np.stack([m.row(40)[0].numpy() for m in maps]), atol=1e-5)
    entropy = np.stack([m.entropy()[0].mean(-1).numpy() for m in maps])
    assert np.allclose([one["entropy"] for one in found["heads"]], entropy, rtol=1e-3)

    page.go("classify", model="vit-imagenette", image="church", layer=3, head=4)
    done(page)
    page.until(lambda: page.count(".sight .heads canvas") == 36)
    file = page.saved("svg", tmp_path)
    assert file.name == "clearhead-classify-vit-imagenette-church-layer3-head4.svg"
    texts = ["".join(node.itertext()) for node in ElementTree.parse(file).getroot().iter(f"{SVG}text")]
    assert texts[0].startswith("Classify: church → church 8")
    for text in ("Attention of the class token, layer 3, head 4", "attention weight", "Classes", "head", "layer"):
        assert text in texts
    assert any("vit-imagenette (vision transformer, 2,8" in text for text in texts)
    images = [node.get("href") for node in ElementTree.parse(file).getroot().iter(f"{SVG}image")]
    assert len(images) == 1 + 36
    assert all(href.startswith("data:image/png") for href in images)


def test_feature_maps(page, tmp_path):
    """Feature maps of a convolutional network: pages, stages, order, keyboard, and the library's numbers. They put
    the head grid of a transformer away. The zoom keeps the shape and the chosen patch in view, and is not in the
    figure.
    """
    page.open("classify", model="resnet-cifar10", image="cat")
    done(page)
    page.until(lambda: page.count(".features button") == 48)
    assert page.text(".featurebox .pages span") == "1 to 48 of 192 channels"
    assert title(page).startswith("Channel ")
    assert title(page).endswith(" of stage 3")
    page.click(".featurebox .pages [aria-label='Further channels']")
    page.until(lambda: page.text(".featurebox .pages span") == "49 to 96 of 192 channels")
    page.choose("[name=stage]", "1")
    page.until(lambda: page.count(".features button") == 24)
    page.choose("[name=order]", "number")
    page.until(lambda: page.run("return document.querySelector('.features button').dataset.channel") == "0")
    page.run("document.querySelector('.features button').focus()")
    press(page, "\ue014", "\ue014")
    page.until(lambda: title(page) == "Channel 2 of stage 0")
    assert page.run("return document.activeElement.dataset.channel") == "2"
    assert page.state()["channel"] == "2"
    data = json.loads(page.saved("json", tmp_path).read_text())
    bundle = ch.load("resnet-cifar10", device="cpu")
    with torch.no_grad(), ch.watch(bundle, "stages.0.1") as tape:
        bundle(example_file("cat"))
    maps = np.array(data["features"]["maps"]).reshape(data["features"]["shape"])
    assert np.allclose(maps, tape["stages.0.1"][0], atol=1e-4)
    assert (data["features"]["stage"], data["features"]["channel"], data["attention"]) == ("stage 0", 2, None)
    web.shot(page.driver, "classify-features")

    page.go("classify", model="vit-imagenette", image="church", layer=0, head=1)
    done(page)
    page.choose("[name=shown]", "features")
    page.until(lambda: "Channel" in title(page))
    assert not page.find(".sight .picker").is_displayed()
    page.click("#theme")
    assert not page.find(".sight .picker").is_displayed()
    page.click("#theme")
    page.choose("[name=shown]", "self")
    page.until(lambda: page.find(".sight .picker").is_displayed())

    page.open("classify", model="vit-imagenette", image="church", at=1 + 15 * 16 + 15)
    done(page)
    size = "const box = document.querySelector('.picture').getBoundingClientRect(); return [box.width, box.height]"
    before = page.run(size)
    page.run("document.querySelector('.picture').focus()")
    press(page, "+", "+")
    assert page.run(size) == pytest.approx([4 * x for x in before], rel=0.02)
    assert (
        page.run(
            "const { scrollTop, scrollLeft } = document.querySelector('.pictureframe'); return scrollTop * scrollLeft"
        )
        > 0
    )
    drawn = page.saved("svg", tmp_path).read_text()
    assert f'width="{before[0]:.0f}"' in drawn  # a figure does not depend on the zoom
    press(page, "0")
    assert page.run(size) == pytest.approx(before, rel=0.02)


def test_two_models_side_by_side(page, tmp_path):
    """The second pane starts with another model on the same image. Patches are chosen in both, images for both; the
    difference is saved, and explained where there is none: other grids, channels of different models. A refused file
    clears both panes, and Back leads to the image before. It fits a dark phone.
    """
    page.open("classify", model="resnet-cifar10", image="airplane")
    done(page)
    page.click(".beside-toggle")
    page.until(lambda: page.count(".pane") == 2)
    done(page, 2)
    assert (page.state()["model2"], page.state()["image2"]) == ("vit-cifar10", "airplane")
    page.click(".beside-toggle")
    assert page.count(".pane") == 1
    assert "model2" not in page.state()

    page.go("classify", model="vit-cifar10", image="cat", layer=0, head=0, model2="vit-imagenette", image2="cat")
    done(page)
    done(page, 2)
    page.until(lambda: page.count(".difference:not([hidden]) .picture"))
    page.run("document.querySelector('.pane .picture').focus()")
    press(page, "\ue015", "\ue015")  # the first patch, and the one below it
    for pane in (1, 2):  # both have 16 x 16 patches
        page.until(lambda pane=pane: "row 1, column 0" in title(page, pane))
    page.until(lambda: "vit-imagenette (Attention of the patch" in page.text(".difference figcaption"))
    data = json.loads(page.saved("json", tmp_path).read_text())
    left, right = (np.array(one["attention"]["weights"]) for one in data["panes"])
    assert np.allclose(np.array(data["difference"]).ravel(), (right - left)[1:], atol=1e-6)
    page.click(".photo[data-image=ship]")  # for both
    page.until(lambda: page.state()["image"] == page.state()["image2"] == "ship")
    done(page)
    done(page, 2)
    page.choose(".pane:nth-child(2) .choice select", "resnet-cifar10")
    page.until(lambda: "no difference patch by patch" in page.text(".difference .note"))
    assert page.run("return document.querySelector('.difference .mapbox').hidden")
    web.shot(page.driver, "classify-two")

    page.go(
        "classify",
        model="resnet-cifar10",
        image="cat",
        stage=1,
        group="features",
        model2="vit-cifar10",
        image2="cat",
        group2="features",
        stage2=0,
    )
    done(page)
    done(page, 2)
    page.until(lambda: "Channels of different models" in page.text(".difference .note"))
    assert page.run("return document.querySelector('.difference .mapbox').hidden")

    (tmp_path / "text.png").write_text("this is no image")
    page.open("classify", model="vit-cifar10", image="cat", model2="resnet-cifar10", image2="cat")
    done(page)
    done(page, 2)
    give(page, tmp_path / "text.png")
    page.until(lambda: "cannot be used" in page.text(".classify .problem"))
    assert page.count(".classes *") == 0
    page.driver.back()
    page.until(lambda: page.count(".classes .label") == 10)
    assert (page.state()["image"], page.state()["image2"]) == ("cat", "cat")
    page.driver.forward()
    page.until(lambda: page.count(".classes *") == 0)
    page.driver.get_log("browser")  # drops the expected error of the server

    with page.sized(400, 800):
        page.open("classify", model="vit-cifar10", image="cat", model2="resnet-cifar10", image2="cat")
        done(page, 2)
        page.run("document.documentElement.dataset.theme = 'dark'; dispatchEvent(new Event('theme'))")
        time.sleep(0.2)
        web.shot(page.driver, "classify-narrow-two-dark")
        assert page.run("return document.documentElement.scrollWidth") <= 400


def test_an_image_of_ones_own(page, tmp_path):
    """A small image is sent as it is, a big one is shrunk in the page; an image can be dropped and pasted. A file
    that cannot be used leaves nothing stale, whatever is wrong with it.
    """
    page.open("classify", model="vit-cifar10")
    done(page)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / "noise.png")
    give(page, tmp_path / "noise.png")
    page.until(lambda: page.state().get("image") not in (None, "cat"))
    done(page)
    assert page.count(".photo[aria-pressed=true]") == 0
    data = json.loads(page.saved("json", tmp_path).read_text())
    want = ch.classify(ch.load("vit-cifar10", device="cpu"), tmp_path / "noise.png")
    assert data["image_name"] == "noise.png"
    assert [p for _, p in data["classes"]] == pytest.approx([p for _, p in want], rel=1e-3)  # sent as it is
    big = Image.fromarray(rng.integers(0, 256, (90, 120, 3), np.uint8)).resize((2400, 1800))
    big.save(tmp_path / "big.jpg")
    earlier = page.state()["image"]
    give(page, tmp_path / "big.jpg")
    page.until(lambda: page.state().get("image") not in (None, earlier))
    done(page)
    kept = page.run(
        "return fetch(`/api/images/one?id=${arguments[0]}`).then((r) => r.blob()).then(createImageBitmap)"
        ".then((image) => [image.width, image.height])",
        page.state()["image"],
    )
    assert kept == [1024, 768]  # shrunk in the page

    script = """
        const canvas = new OffscreenCanvas(40, 30), c = canvas.getContext("2d");
        c.fillStyle = arguments[1]; c.fillRect(0, 0, 40, 30);
        const file = new File([await canvas.convertToBlob()], "made.png", { type: "image/png" }), items = new DataTransfer();
        items.items.add(file);
        if (arguments[0] === "drop") document.querySelector(".classify .drop").dispatchEvent(new DragEvent("drop", { dataTransfer: items, bubbles: true, cancelable: true }));
        else dispatchEvent(new ClipboardEvent("paste", { clipboardData: items, bubbles: true, cancelable: true }));
    """  # noqa: E501
    page.go("classify", model="vit-cifar10", image="cat")
    done(page)
    seen = ["cat"]
    for way, colour in (("drop", "red"), ("paste", "blue")):
        page.run(script, way, colour)
        page.until(lambda: page.state().get("image") not in (None, *seen))
        seen.append(page.state()["image"])
        done(page)

    (tmp_path / "text.png").write_text("this is no image")
    whole = tmp_path / "whole.jpg"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 90, 3), np.uint8)).save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:400])
    (tmp_path / "bomb.png").write_bytes(bomb(60_000, 60_000))
    (tmp_path / "empty.png").write_bytes(b"")
    page.go("classify", model="vit-cifar10", image="cat")
    done(page)
    for name, sentence in (
        ("text.png", "no image that can be read"), ("cut.jpg", "cut.jpg cannot be used"),
        ("bomb.png", "too many pixels: expected at most 40,000,000"), ("empty.png", "the file is empty"),
    ):  # fmt: skip
        give(page, tmp_path / name)
        page.until(lambda name=name: page.text(".classify .problem").startswith(f"The file {name} "))
        assert sentence in page.text(".classify .problem")
        assert page.run("return document.querySelector('.sight').hidden")
        assert page.count(".classes *") == 0
        assert page.state()["image"] == "none"
        assert page.count(".photo[aria-pressed=true]") == 0
        page.click("[data-save=svg]")
        page.until(lambda: page.text("#notice") == "There is nothing to save yet.")
        page.click(".photo[data-image=ship]")
        page.until(lambda: page.texts(".classes .label")[:1] == ["ship"])
        assert page.text(".classify .problem") == ""
    page.driver.get_log("browser")  # drops the expected errors of the server


@pytest.mark.parametrize("name", one_in(3, UNUSUAL))
def test_images_of_any_mode(page, tmp_path, name):
    page.open("classify", model="vit-cifar10")
    done(page)
    path = tmp_path / f"image.{SUFFIXES.get(name, 'png')}"
    path.write_bytes(UNUSUAL[name][0])
    give(page, path)
    page.until(lambda: page.state().get("image") not in (None, "cat") or page.text(".classify .problem"))
    done(page)
    assert page.text(".classify .problem") == ""
    data = json.loads(page.saved("json", tmp_path).read_text())
    want = ch.classify(ch.load("vit-cifar10", device="cpu"), path)
    assert [p for _, p in data["classes"]] == pytest.approx([p for _, p in want], rel=1e-3)


def test_images_that_are_gone_and_answers_that_hang(page):
    """An image that the server no longer keeps is a sentence, a response that hangs can be stopped, and an expired
    result is computed again.
    """
    page.open("classify", model="vit-cifar10", image="gone")
    page.until(lambda: "no longer kept: choose an image" in page.text(".classify .problem"))
    assert page.run("return document.querySelector('.sight').hidden")
    page.click(".photo[data-image=cat]")
    page.until(lambda: page.texts(".classes .label")[:1] == ["cat"])
    page.driver.get_log("browser")  # drops the expected error

    page.go("classify", model="vit-cifar10", image="cat")
    done(page)
    hang(page, "/api/classify", ['{"progress": [3, 10]}'])
    page.click(".photo[data-image=ship]")
    page.until(lambda: "layer 3 of 10" in page.text(".classify .status"))
    assert page.run("return document.querySelector('.sight').hidden")
    page.click(".classify .stop")
    page.until(lambda: page.text(".classify .status") == "Stopped.")

    page.open("classify", model="vit-cifar10", image="cat")
    done(page)
    page.run(
        "const plain = window.fetch; let once = true; window.fetch = async (path, options) => {"
        " if (once && String(path).includes('looks/query')) { once = false;"
        " return new Response(JSON.stringify({ error: 'gone' }), { status: 404 }); } return plain(path, options); }"
    )
    page.run("document.querySelector('.picture').focus()")
    press(page, "\ue014")
    page.until(lambda: "row 0, column 0" in title(page))
    done(page)
    assert page.text(".classify .problem") == ""


def test_other_models(page, others):
    """The folder that was given opens first; attention inside a network; models without classes or a class token."""
    page.driver.get("about:blank")
    page.driver.get(f"{others[0].address}#classify")
    done(page)
    assert page.state()["model"] == "embedder"

    elsewhere(page, others, model="sagan", image="cat")
    page.until(lambda: page.count(".features button"))
    page.choose("[name=shown]", "stage1")
    page.until(lambda: title(page) == "Attention of the patch in row 9, column 12, the only head")
    assert page.run("return document.activeElement === document.body || document.activeElement.name === 'shown'")
    elsewhere(page, others, model="embedder", image="cat")
    assert "no classes" in page.text(".classes")
    assert title(page) == "Attention of the patch in row 2, column 3, mean of 4 heads"  # the one in the middle
    assert page.count(".sight .chip") == 0
    elsewhere(page, others, model="pooled", image="cat", group="pool")
    assert title(page) == "Attention of the pooling query, the only head"
    elsewhere(page, others, model="pooled", image="cat")
    assert page.texts(".sight .chip") == ["register 0", "register 1"]

"""The Caption view in a real browser."""

import json
import time
from pathlib import Path
from xml.etree import ElementTree

import browser as web
import numpy as np
import pytest
from browser import MARKUP
from page_steps import SLACK, hang, press
from PIL import Image

import clearhead as ch
from clearhead.data.images.files import FOLDER

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
SVG = "{http://www.w3.org/2000/svg}"
RIGHT, LEFT, HOME, END = "\ue014", "\ue012", "\ue011", "\ue010"
SELECTED = "[...document.querySelectorAll('.strip button')].findIndex((one) => one.ariaSelected === 'true')"


@pytest.fixture
def names(captioners):
    """The ids of the captioners, by kind."""
    return {kind: Path(folder).name for kind, folder in captioners.items()}


def done(page, pane=1):
    """Wait for the captions of a pane, the strip of the first, and the end of playing it."""
    root = f".caption .pane:nth-child({pane})"
    page.until(lambda: " ms." in page.text(f"{root} .status") and page.count(f"{root} .strip button"))
    page.until(lambda: page.text(f"{root} .play") == "Play" and page.count(f"{root} .strip .later") == 0)


def title(page, pane=1):
    return page.text(f".caption .pane:nth-child({pane}) .mapbox figcaption b")


def words(page, pane=1):
    return page.texts(f".caption .pane:nth-child({pane}) .strip button span")


def say(page, text):
    """Ask for words of one's own."""
    page.type(".own input", f"{text}\n")


def photo(image):
    return FOLDER / f"{image}.webp"


def test_images_links_words_and_the_history(page, names):
    """The example is above the fold. A link opens the same state, and what it cannot mean is as usual. Words are
    chosen by mouse and keyboard, within the caption. Back and Forward move through images and models, and the view is
    as it was left.
    """
    with page.sized(1366, 768):
        page.open("caption")
        done(page)
        page.until(lambda: page.count(".sight .heads canvas"))
        assert page.state()["model"] in names.values()
        assert page.state()["image"] == "photographer"
        page.driver.save_screenshot(str(web.SHOTS / "caption-first.png"))
        page.run("document.querySelector('.caption .remark').hidden = true")  # these captions reach the limit
        for css in (".answers li:last-child", ".strip button", ".sight .heads", ".sight .picture"):
            assert page.bottom(css) < 768

    state = {"model": names["transformer"], "image": "church", "beams": "3", "answer": "1", "shown": "evidence",
             "at": "2", "colouring": "entropy"}  # fmt: skip
    page.go("caption", **state)
    done(page)
    assert title(page).endswith("evidence at each place")
    assert page.state() == state
    assert page.run("return document.querySelector('.answers [aria-pressed=true]').dataset.at") == "1"
    for wrong in ({"layer": "9", "head": "0"}, {"layer": "x", "head": "-1"}, {"layer": "0.5", "head": "0"}):
        page.go("caption", model=state["model"], image="church", at="99", answer="40", colouring="odd", **wrong)
        done(page)
        page.until(lambda: title(page).endswith("attention, mean of 4 heads"))
    assert page.text(".caption .problem") == ""

    page.go("caption", model=names["transformer"], image="cat")
    done(page)
    all_words = words(page)
    page.click(".strip button:nth-child(2)")
    page.until(lambda: title(page).startswith(f"“{all_words[1]}”"))
    assert page.state()["at"] == "1"
    page.run("document.querySelector('.strip [aria-selected=true]').focus()")
    press(page, RIGHT)
    page.until(lambda: page.run(f"return {SELECTED}") == 2)
    press(page, HOME, LEFT)
    page.until(lambda: page.run(f"return {SELECTED}") == 0)  # it stays in the caption
    press(page, END)
    page.until(lambda: page.run(f"return {SELECTED}") == len(all_words) - 1)
    assert page.run("return document.activeElement.dataset.word") == str(len(all_words) - 1)
    assert page.run("return document.querySelectorAll('.strip [tabindex=\"0\"]').length") == 1

    page.open("caption", model=names["transformer"], image="church")
    done(page)
    first = page.texts(".answers .said")
    page.click(".photo[data-image=parachute]")
    page.until(lambda: page.state()["image"] == "parachute")
    done(page)
    page.choose(".choice select", names["rnn"])
    page.until(lambda: page.state()["model"] == names["rnn"])
    done(page)
    assert page.state()["image"] == "parachute"  # another model describes the same image
    page.driver.back()
    page.until(lambda: page.state()["model"] == names["transformer"] and page.state()["image"] == "parachute")
    page.driver.back()
    page.until(lambda: page.texts(".answers .said") == first)
    page.driver.forward()
    page.until(lambda: page.state()["image"] == "parachute")
    page.click("#nav a[href='#build']")
    page.until(lambda: page.count(".view.build"))
    page.click("#nav a[href='#caption']")
    page.until(lambda: page.state().get("image") == "parachute")  # as it was left


def test_captions_heads_and_what_is_saved(page, names, captioners, tmp_path):
    """Captions, scores, words and maps are those of the library, and so is their common scale; another head needs no
    request and is fast; a saved strip has a panel per word.
    """
    page.open("caption", model=names["transformer"], image="church", beams=3, layer=1, head=0, at=1)
    done(page)
    want = ch.caption(ch.load(captioners["transformer"], device="cpu"), photo("church"), beams=3, best=3)
    every = [want, *want.alternatives]
    assert page.texts(".answers .said") == [one.text for one in every]
    assert page.texts(".answers .score") == [f"{one.score:.2f}" for one in every]
    assert words(page) == want.words
    assert title(page) == f"“{want.words[1]}”: attention, layer 1, head 0"
    page.until(lambda: page.count(".sight .heads canvas") == 4)
    data = json.loads(page.saved("json", tmp_path).read_text())
    maps = data["maps"]
    assert (maps["of"], maps["words"], maps["chosen"], maps["grid"]) == ("attention", want.words, 1, [12, 12])
    assert np.allclose(maps["weights"], want.attention(1, 0), atol=1e-6)
    heads = np.array(maps["every_head"]["weights"]).reshape(maps["every_head"]["shape"])
    assert np.allclose(heads.mean((0, 1)).reshape(-1, 12, 12), want.maps, atol=1e-6)
    assert [one["text"] for one in data["captions"]] == [one.text for one in every]
    # One scale for all words: the smallest and the largest weight.
    weights = want.attention(1, 0)
    assert maps["range"] == pytest.approx([weights.min(), weights.max()], rel=1e-4)

    page.go("caption", model=names["transformer"], image="cat")
    done(page)
    page.until(lambda: page.count(".sight .heads canvas") == 4)
    shown, requests = page.run(
        """
        const requests = () => performance.getEntriesByType("resource").length, before = requests(), shown = [];
        const title = () => document.querySelector(".mapbox figcaption b").textContent;
        for (const at of ["0,1", "1,null", "1,0", "null,null"]) {
          const began = performance.now(), earlier = title();
          document.querySelector(`.heads [data-at="${at}"]`).click();
          while (title() === earlier && performance.now() - began < 5000) await new Promise(requestAnimationFrame);
          shown.push([performance.now() - began, title()]);
        }
        return [shown, requests() - before];
        """
    )
    assert [text.partition("attention, ")[2] for _, text in shown] == [
        "layer 0, head 1", "layer 1, mean of 2 heads", "layer 1, head 0", "mean of 4 heads"
    ]  # fmt: skip
    assert requests == 0
    web.note(caption_head=max(ms for ms, _ in shown))
    assert max(ms for ms, _ in shown) < 180 * SLACK

    page.go("caption", model=names["transformer"], image="church", layer=1, head=1)
    done(page)
    page.until(lambda: page.count(".sight .heads canvas") == 4)
    file = page.saved("svg", tmp_path)
    assert file.name == f"clearhead-caption-{names['transformer']}-church-layer1-head1.svg"
    root = ElementTree.parse(file).getroot()
    texts = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    said = page.texts(".answers .said")
    assert texts[0].startswith("Caption: church → “")
    for text in (*words(page), *said, "attention weight, one scale for all words", "Captions", "head", "layer"):
        assert text in texts
    assert f"“{said[0]}”: attention, layer 1, head 1" in texts
    images = [node.get("href") for node in root.iter(f"{SVG}image")]
    assert len(images) == 1 + len(words(page)) + 4  # the image, a panel per word, and the small maps of the heads
    assert page.saved("png", tmp_path).stat().st_size > 20_000


def test_the_panels_are_lit_where_the_words_look(page, names, captioners):
    """The brightest part of a panel of a plain image is where the map is largest."""
    page.open("caption", model=names["transformer"], image="cat")
    done(page)
    page.run(
        """
        const canvas = new OffscreenCanvas(48, 48), c = canvas.getContext("2d");
        c.fillStyle = "#888"; c.fillRect(0, 0, 48, 48);
        const items = new DataTransfer();
        items.items.add(new File([await canvas.convertToBlob()], "grey.png", { type: "image/png" }));
        document.querySelector(".caption .drop").dispatchEvent(new DragEvent("drop", { dataTransfer: items, bubbles: true, cancelable: true }));
        """  # noqa: E501
    )
    page.until(lambda: page.state().get("image") not in (None, "cat"))
    done(page)
    bundle = ch.load(captioners["transformer"], device="cpu")
    want = ch.caption(bundle, np.full((48, 48, 3), 0x88, np.uint8), beams=4)
    assert words(page) == want.words
    brightness = page.run(
        """
        return [...document.querySelectorAll(".strip canvas")].map((one) => {
          const { data } = one.getContext("2d").getImageData(0, 0, one.width, one.height);
          return Array.from({ length: one.width * one.height }, (_, i) => data[4 * i] + data[4 * i + 1]);
        })
        """
    )
    side = round(len(brightness[0]) ** 0.5)
    for found, map_ in zip(brightness, want.maps, strict=True):
        large = ch.draw.smooth_map(map_, side, side)
        assert np.corrcoef(large.ravel(), found)[0, 1] > 0.98
    most = [max(found) for found in brightness]  # on one scale: a word with small weights stays dark
    tops = [ch.draw.smooth_map(one, side, side).max() for one in want.maps]
    assert np.corrcoef(most, tops)[0, 1] > 0.98


def test_a_new_image_is_played_word_by_word(page, names):
    page.open("caption", model=names["transformer"], image="cat")
    done(page)
    page.run(
        f"""
        window.reached = [];
        const tell = (at) => {{ if (window.reached.at(-1) !== at) window.reached.push(at); }};
        new MutationObserver(() => tell({SELECTED}))
          .observe(document.querySelector(".strip"), {{ subtree: true, attributes: true, childList: true }});
        """
    )
    page.click(".photo[data-image=ship]")
    page.until(lambda: page.text(".play") == "Pause")
    assert page.count(".strip .later") > 0
    done(page)
    n = len(words(page))
    reached = page.run("return window.reached.filter((at) => at >= 0)")
    assert str(list(range(n)))[1:-1] in str(reached)  # every word in turn
    assert "at" not in page.state()  # what was played is not what was chosen
    page.click(".play")
    page.until(lambda: page.text(".play") == "Pause")
    page.click(".strip button:nth-child(2)")  # the user takes over
    page.until(lambda: page.text(".play") == "Play")
    time.sleep(0.5)
    assert (page.run(f"return {SELECTED}"), page.state()["at"]) == (1, "1")


def test_other_captioners_and_their_words(page, names, captioners):
    """The beams can be chosen, and Back leads to the first; unknown words are named, markup stays text; a caption
    that is too long is a sentence; a captioner without attention shows evidence.
    """
    page.open("caption", model=names["rnn"], image="cat")
    done(page)
    want = ch.caption(ch.load(captioners["rnn"], device="cpu"), photo("cat"), beams=4, best=4)
    page.click(".answers [data-at='2']")
    page.until(lambda: words(page) == want.alternatives[1].words)
    assert page.state()["answer"] == "2"
    assert page.run("return document.querySelector('.detail').offsetParent") is None  # there is one head only
    page.driver.back()
    page.until(lambda: words(page) == want.words)
    page.driver.forward()
    page.until(lambda: words(page) == want.alternatives[1].words)

    page.go("caption", model=names["rnn"], image="cat", text="a zebra")
    done(page)
    assert page.text(".caption .remark").startswith("The model does not know “zebra”: it reads <unk>")
    page.go("caption", model=names["rnn"], image="cat", text=MARKUP)
    page.until(lambda: page.text(".caption .remark") or page.text(".caption .problem"))
    assert "clearhead" in page.driver.title
    assert page.count(".caption .answers img, .caption .remark img, .caption script") == 0

    page.open("caption", model=names["rnn"], image="cat")
    done(page)
    say(page, "a " * 12)
    page.until(lambda: "this model writes 9 at most" in page.text(".caption .problem"))
    assert page.count(".answers li") == 0
    assert page.run("return document.querySelector('.sight').hidden")
    say(page, "a circle")  # the field is still there
    done(page)
    assert page.text(".caption .problem") == ""

    page.go("caption", model=names["bottleneck"], image="cat")
    done(page)
    assert title(page).endswith("evidence at each place")
    assert "no attention" in page.text(".caption .remark")
    assert page.count(".words .segments") == 0
    assert page.run("return document.querySelector('.detail').offsetParent") is None


def test_words_of_ones_own(page, names, captioners, tmp_path):
    page.open("caption", model=names["transformer"], image="cat")
    done(page)
    say(page, "A red circle")
    page.until(lambda: page.text(".answers .yours") == "yours")
    done(page)
    bundle = ch.load(captioners["transformer"], device="cpu")
    want = ch.caption(bundle, photo("cat"), text="a red circle")
    assert words(page) == ["a", "red", "circle"]
    assert page.texts(".answers .score")[0] == f"{want.score:.2f}"
    assert title(page).endswith("evidence at each place")
    assert page.state()["text"] == "A red circle"
    data = json.loads(page.saved("json", tmp_path).read_text())
    assert np.allclose(data["maps"]["weights"], want.evidence(), atol=1e-6)
    page.click(".words input[value=attention]")
    page.until(lambda: title(page).endswith("attention, mean of 4 heads"))
    assert page.state()["shown"] == "attention"
    page.click(".photo[data-image=ship]")  # the same words over another image
    page.until(lambda: page.state()["image"] == "ship")
    done(page)
    assert words(page) == ["a", "red", "circle"]
    say(page, "")
    page.until(lambda: page.count(".answers .yours") == 0 and page.count(".answers button") == 4)
    assert "text" not in page.state()


def test_two_captioners_side_by_side(page, names, tmp_path):
    """The second pane starts with another captioner on the same image. A word is chosen in both; the difference of
    its maps is saved; images are for both. It fits a dark phone.
    """
    page.open("caption", model=names["transformer"], image="airplane")
    done(page)
    page.click(".beside-toggle")
    page.until(lambda: page.count(".pane") == 2)
    done(page, 2)
    assert page.state()["image2"] == "airplane"
    assert page.state()["model2"] != names["transformer"]
    page.click(".beside-toggle")
    assert page.count(".pane") == 1
    assert "model2" not in page.state()

    state = {"text": "a red circle", "shown": "attention", "at": "1"}
    both = {"model": names["transformer"], "model2": names["rnn"], "image": "cat", "image2": "cat"}
    page.go("caption", **both, **state, **{f"{key}2": value for key, value in state.items()})
    done(page)
    done(page, 2)
    page.click(".pane:first-child .strip button:nth-child(3)")
    for pane in (1, 2):
        page.until(lambda pane=pane: title(page, pane).startswith("“circle”"))  # both captions have the word
    page.until(lambda: page.count(".difference:not([hidden]) .mapbox:not([hidden]) .picture"))
    page.until(lambda: "“circle”" in page.text(".difference figcaption b"))
    data = json.loads(page.saved("json", tmp_path).read_text())
    left, right = (np.array(one["maps"]["weights"])[2] for one in data["panes"])
    assert np.allclose(data["difference"], right - left, atol=1e-6)
    page.click(".pane:first-child .answers [data-at='1']")
    page.until(lambda: page.state()["answer"] == "1")
    page.click(".photo[data-image=ship]")  # for both
    page.until(lambda: page.state()["image"] == page.state()["image2"] == "ship")
    done(page)
    done(page, 2)
    web.shot(page.driver, "caption-two")

    with page.sized(400, 800):
        page.open("caption", model=names["transformer"], image="cat", model2=names["rnn"], image2="cat")
        done(page, 2)
        page.run("document.documentElement.dataset.theme = 'dark'; dispatchEvent(new Event('theme'))")
        time.sleep(0.2)
        web.shot(page.driver, "caption-narrow-two-dark")
        assert page.run("return document.documentElement.scrollWidth") <= 400


def test_an_image_of_ones_own(page, names, captioners, tmp_path):
    """An image is captioned as the library does it; one that cannot be used leaves nothing stale."""
    page.open("caption", model=names["rnn"], image="cat")
    done(page)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / "noise.png")
    page.find(".caption .pane:first-child input[type=file]").send_keys(str(tmp_path / "noise.png"))
    page.until(lambda: page.state().get("image") not in (None, "cat"))
    done(page)
    want = ch.caption(ch.load(captioners["rnn"], device="cpu"), tmp_path / "noise.png", beams=4)
    assert page.texts(".answers .said")[0] == want.text
    data = json.loads(page.saved("json", tmp_path).read_text())
    assert data["image_name"] == "noise.png"

    (tmp_path / "text.png").write_text("this is no image")
    page.go("caption", model=names["rnn"], image="cat")
    done(page)
    page.find(".caption .pane:first-child input[type=file]").send_keys(str(tmp_path / "text.png"))
    page.until(lambda: page.text(".caption .problem").startswith("The file text.png cannot be used"))
    assert page.run("return document.querySelector('.sight').hidden")
    assert page.count(".answers li") == 0
    assert page.state()["image"] == "none"
    page.click("[data-save=svg]")
    page.until(lambda: page.text("#notice") == "There is nothing to save yet.")
    page.click(".photo[data-image=ship]")
    done(page)
    assert page.text(".caption .problem") == ""
    page.driver.get_log("browser")  # drops the expected error of the server


def test_stop_and_an_expired_result(page, names, captioners):
    """What was written before Stop can be inspected; an expired result is computed again."""
    page.open("caption", model=names["transformer"], image="cat")
    done(page)
    tokens = ch.load(captioners["transformer"], device="cpu").tokens
    ids = tokens.encode("a red").tolist()
    line = {"text": "a red", "score": -1.0, "logprob": -2.0, "words": ["a", "red"], "ids": ids, "cut": True,
            "given": False, "unknown": []}  # fmt: skip
    hang(page, "/api/caption", [json.dumps({"captions": [line]})])
    page.click(".photo[data-image=ship]")
    page.until(lambda: page.texts(".answers .said") == ["a red"])
    assert page.run("return document.querySelector('.sight').hidden")
    page.click(".caption .stop")
    page.until(lambda: page.text(".caption .status") == "Stopped: what was written before can be inspected.")
    page.until(lambda: words(page) == ["a", "red"])
    assert page.text(".caption .problem") == ""

    page.open("caption", model=names["transformer"], image="cat")
    done(page)
    page.run(
        "const plain = window.fetch; let once = true; window.fetch = async (path, options) => {"
        " if (once && String(path).includes('looks/evidence')) { once = false;"
        " return new Response(JSON.stringify({ error: 'gone' }), { status: 404 }); } return plain(path, options); }"
    )
    page.click(".words input[value=evidence]")
    page.until(lambda: title(page).endswith("evidence at each place"))
    done(page)
    assert page.text(".caption .problem") == ""

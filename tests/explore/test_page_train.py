"""The Train view in a real browser: runs can be told apart, read with the keyboard, compared, saved and linked."""

import contextlib
import json
import os
import re
import shutil
import time
from xml.etree import ElementTree

import browser as web
import pytest
from browser import MARKUP
from serving import Uvicorn

import clearhead as ch
from clearhead.explore.app import make_app
from clearhead.training.run_folder import Folder

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
SVG = "{http://www.w3.org/2000/svg}"
TOKENS = {"loss": ("nats/token", "lower"), "accuracy": ("share", "higher")}
ROWS = {"loss": ("nats/row", "lower")}
GAN = {"generator_loss": ("nats/row", "lower"), "near": ("share", "higher"), "modes": ("modes", "higher")}


def write(
    folder,
    records,
    *,
    measured,
    losses=("loss",),
    objective="next-token",
    players=None,
    steps=100,
    old=True,
    facts=None,
):
    """Write a run folder; `old`: its last record was written long ago; `facts`: the content of facts.json."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "recipe.toml").write_text(f'steps = {steps}\n[model]\nname = "gpt"\n[data]\nname = "text"\n')
    setup = {
        "objective": objective, "players": players or {"model": {"model": "gpt"}}, "losses": list(losses),
        "measurements": {f"valid_{name}": {"unit": unit, "better": way} for name, (unit, way) in measured.items()},
    }  # fmt: skip
    (folder / "setup.json").write_text(json.dumps(setup))
    if facts:
        (folder / "facts.json").write_text(json.dumps({"seed": 0, "attempts": [{"step": 0}], **facts}))
    if old:
        os.utime(folder / "metrics.jsonl", (1e9, 1e9))


def language_model(last, *, every=1, loss=3.0):
    """The records of a language model: two heads, samples, and a learning rate that ends at 0."""
    for step in range(every, last + 1, every):
        yield {"step": step, "loss": loss / step**0.5, "norm": 1.0 + step % 3, "lr": 1e-3 * (1 - step / last)}
        if step % 5 == 0:
            yield {"step": step, "valid_loss": loss / step**0.5 + 0.1, "valid_accuracy": 1 - 1 / step}
            yield {"step": step, "inside": {
                "gradient": {"rest": 1.0, "blocks.0": 0.5}, "blocks.0": 1.5, "blocks.0.attn.entropy": [1.0, step / 50],
                "blocks.0.attn.distance": [3.0, 4.0], "blocks.0.attn.sink": [0.1, 0.9],
            }}  # fmt: skip
        if step % 20 == 0:
            yield {"step": step, "samples": [{"given": "The", "written": f" {step} {MARKUP}", "wanted": " cat."}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny):
    root = tmp_path_factory.mktemp("trainings")
    write(root / "alpha", language_model(40), measured=TOKENS)
    write(root / "beta", language_model(20, every=2, loss=4.0), measured=TOKENS)
    write(root / "rows", language_model(30), measured=ROWS)
    write(root / "gan", [
        *({"step": step, "discriminator_loss": 1 - step / 20, "generator_loss": step / 9, "lr_generator": step / 1e4,
           "lr_discriminator": step / 1e4, "norm_generator": 1.0, "norm_discriminator": 2.0, "blur": (8 - step) / 16}
          for step in range(1, 9)),
        {"step": 8, "valid_generator_loss": 1.5, "valid_near": 0.6, "valid_modes": 7.0},
    ], measured=GAN, losses=("discriminator_loss", "generator_loss"), objective="gan",
        players={"generator": {"model": "mlp"}, "discriminator": {"model": "mlp"}})  # fmt: skip
    write(root / "fresh", language_model(4), measured=TOKENS, old=False)
    write(root / "done", language_model(4), measured=TOKENS, steps=4, facts={"model": {"step": 4, "best": 2}})
    shutil.copytree(tiny, root / "done" / "model")
    write(root / "points", language_model(4), measured=ROWS, steps=4)
    mlp = ch.build("mlp", inputs=2, outputs=2, hidden=4)
    ch.save(ch.Bundle(mlp, None, mlp.config), root / "points" / "model")
    write(root / "growing", language_model(10), measured=TOKENS)
    return root


@pytest.fixture(scope="module")
def address(folder):
    with Uvicorn(make_app(runs=folder, device="cpu")) as found:
        yield found


class Page(web.Page):
    """The Train view of the page."""

    def open(self, **state):
        super().open("train", **state)

    def go(self, **state):
        super().go("train", **state)

    def text(self, css):
        return " ".join(self.texts(css)).strip()

    def press(self, css, *keys):
        self.find(css).send_keys(*keys)

    def drawn(self, title="Loss"):
        """Wait until a panel is drawn."""
        self.until(lambda: self.run("return document.querySelector(arguments[0]) !== null", f"{curves(title)} path"))

    def hover(self, title, share):
        """Move the pointer over a panel, at a share of its width."""
        self.run(
            "const box = arguments[0].getBoundingClientRect();"
            " arguments[0].dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + arguments[1] * box.width,"
            " clientY: box.top + 60}))",
            self.run("return document.querySelector(arguments[0])", curves(title)), share,
        )  # fmt: skip
        return self.text(f"{curves(title)} + .note")

    def strokes(self, title):
        """The colour of each line of a panel, by the line's name."""
        script = "return [...document.querySelectorAll(`${arguments[0]} .line`)].map((line) =>"
        script += " [line.dataset.name, line.querySelector('path').getAttribute('stroke')])"
        return dict(self.run(script, curves(title)))

    def dots(self):
        """The colour on the card of each chosen run, by the run's id."""
        script = "return [...document.querySelectorAll('.runs [aria-pressed=true]')].map((card) =>"
        script += " [card.dataset.run, card.querySelector('.dot').style.background])"
        return dict(self.run(script))

    def titles(self):
        return self.texts(".train .curvebox figcaption .title")

    def saved(self, kind, folder, name):
        path = super().saved(kind, folder)
        assert path.name == f"clearhead-{name}.{kind}"
        return path


def curves(title):
    return f".curves[aria-label='{title}']"


@contextlib.contextmanager
def watched(page):
    """The page; errors and warnings in its console fail the test."""
    with page.sized(1366, 768):
        yield page
    assert web.problems(page.driver) == []


@pytest.fixture
def page(chrome, address):
    with watched(Page(chrome, f"{address}/")) as found:
        yield found


def rgb(stroke):
    return "rgb({}, {}, {})".format(*(int(stroke[i : i + 2], 16) for i in (1, 3, 5)))


def test_runs_are_compared(page):
    """A run has one colour on its card, in every panel and in the note, which it keeps; one that has ended shows no
    value after its last step; the arrow keys read every step of every line; lines that coincide are both seen; runs
    with different units have panels of their own; comparing ends with the first chosen run, and Back leads there.
    """
    page.open(runs="alpha,beta")
    page.drawn()
    cards = page.dots()
    assert len(set(cards.values())) == 2
    for title in ("Loss", "Validation: loss", "Validation: accuracy", "Learning rate", "Norm of the gradient"):
        assert {name: rgb(stroke) for name, stroke in page.strokes(title).items()} == cards
        assert page.texts(f"figure:has({curves(title)}) .key") == ["alpha", "beta"]
        # The legend is above the plot, so that it covers no line.
        below = "const f = document.querySelector(arguments[0]).closest('figure'); return f.querySelector('.keys')"
        below += ".getBoundingClientRect().bottom <= f.querySelector('.curves').getBoundingClientRect().top"
        assert page.run(below, curves(title))
    assert re.match(r"step \d+: alpha [\d.]+, beta [\d.]+", page.hover("Loss", 0.3))
    dots = page.run("return [...document.querySelectorAll('.note .dot')].map((dot) => dot.style.background)")
    assert dots == list(cards.values())
    page.click("[data-run=alpha]")
    page.until(lambda: page.dots() == {"beta": cards["beta"]})  # it keeps its colour

    page.go(runs="alpha,beta")
    page.drawn()
    assert page.hover("Loss", 0.97) == "step 40: alpha 0.474"
    assert page.hover("Loss", 0.05) == "step 1: alpha 3"  # beta begins with step 2
    assert page.hover("Loss", 0.5).count("beta") == 1

    from selenium.webdriver.common.keys import Keys

    page.go(runs="beta,alpha")  # beta has every second step only
    page.drawn()
    page.press(curves("Loss"), Keys.HOME)
    read = []
    for _ in range(4):
        read.append(page.text(f"{curves('Loss')} + .note"))
        page.press(curves("Loss"), Keys.ARROW_RIGHT)
    assert [note.split(":")[0] for note in read] == ["step 1", "step 2", "step 3", "step 4"]
    assert read[1] == "step 2: beta 2.828, alpha 2.121"
    assert read[2] == "step 3: beta 2.828 (step 2), alpha 1.732"
    assert page.run("return document.querySelector(arguments[0]).ariaValueText", curves("Loss")).startswith("step 5: ")
    page.press(curves("Loss"), Keys.END)
    assert page.text(f"{curves('Loss')} + .note") == "step 40: alpha 0.474"

    page.go(runs="done,fresh")
    page.drawn()
    paths = "return [...document.querySelectorAll(`${arguments[0]} .line path`)].map((path) =>"
    paths += " ['d', 'stroke', 'stroke-dasharray', 'stroke-dashoffset'].map((name) => path.getAttribute(name)))"
    (d, a, dashes, first), (also, b, too, second) = page.run(paths, curves("Loss"))
    assert (d, dashes) == (also, too)
    assert (a != b, dashes, {first, second}) == (True, "9 9", {"0", "-9"})

    page.go(runs="alpha,rows")
    page.drawn("Loss (nats/token)")
    assert page.titles()[:4] == [
        "Loss (nats/token)", "Loss (nats/row)", "Validation: loss (nats/token)", "Validation: loss (nats/row)",
    ]  # fmt: skip
    for unit, run in (("nats/token", "alpha"), ("nats/row", "rows")):
        assert page.text(f"{curves(f'Loss ({unit})')} .unit") == unit
        assert list(page.strokes(f"Loss ({unit})")) == [run]
        assert page.texts(f"figure:has({curves(f'Loss ({unit})')}) .key") == [run]

    page.open(runs="beta,alpha")
    page.drawn()
    assert page.run("return document.getElementById('several').checked")
    page.click("#several")
    page.until(lambda: page.state() == {"runs": "beta"})
    assert list(page.dots()) == ["beta"]
    page.click("#several")
    page.click("[data-run=rows]")
    page.until(lambda: page.state()["runs"] == "beta,rows")
    page.run("history.back()")
    page.until(lambda: list(page.dots()) == ["beta"])


def test_the_states_of_runs_and_their_models(page, folder):
    """A card says whether its run is running: by its lock, or by its last record. A finished run offers its model, or
    says why not; a lost connection is shown until the server answers again.
    """
    with Folder(folder / "growing"):
        os.utime(folder / "fresh" / "metrics.jsonl")
        os.utime(folder / "growing" / "metrics.jsonl", (1e9, 1e9))  # a long pause, and the process still holds the lock
        page.open(runs="growing")
        page.drawn()
        state = "[data-run={}] .state"
        assert page.text(state.format("growing")) == "running"
        assert page.text(state.format("alpha")) == "stopped"
        assert page.text(state.format("fresh")) == "running"  # its last record is recent
        assert page.text(state.format("done")) == "finished"
    page.until(lambda: page.text(state.format("growing")) == "stopped")
    page.until(lambda: "growing stopped before its last step" in page.text(".made"))

    page.go(runs="done")
    page.until(lambda: page.texts(".made a"))
    links = page.run("return [...document.querySelectorAll('.made a')].map((a) => [a.textContent, a.hash])")
    assert ["Write with this model", "#write?model=run-done"] in links
    assert page.text(".made").startswith("The model of done is of step 2: ")
    page.click("[data-run=points]")
    page.until(lambda: "The model of points fits no view: " in page.text(".made"))

    page.go(runs="alpha")
    page.drawn()
    page.run("window.real = fetch; window.fetch = () => Promise.reject(new TypeError('gone'))")
    shown = "return getComputedStyle(document.getElementById('problem')).display !== 'none'"
    page.until(lambda: page.run(shown) and "does not answer" in page.text("#problem"))
    page.run("window.fetch = window.real")
    page.until(lambda: not page.run(shown))
    assert page.text(".train .problem") == ""
    assert page.titles()[0] == "Loss"


def test_a_run_of_two_players(page):
    """Its card has the objective and the players; panels of players, of shares and of values that end at 0; axes have
    titles and whole ticks, and no text is clipped.
    """
    page.open(runs="gan")
    page.drawn("Generator loss")
    card = page.text("[data-run=gan]")
    assert "objective gan" in card
    assert "players: generator (mlp), discriminator (mlp)" in card
    assert "step 8 of 100 · discriminator loss 0.600" in card
    assert "gpt on text · objective next-token" in page.text("[data-run=alpha]")
    assert "loss 0.474 nats/token" in page.text("[data-run=alpha]")
    assert "players" not in page.text("[data-run=alpha]")

    page.go(runs="gan")
    page.drawn("Generator loss")
    assert page.titles() == [
        "Discriminator loss", "Generator loss", "Validation: generator loss",
        "Validation: generated points near a mode", "Validation: modes with enough generated points", "Blur",
        "Learning rate (all players)", "Norm of the gradient",
    ]  # fmt: skip
    units = page.texts(".curves .unit")
    assert units[1:5] == ["nats/row", "nats/row", "share of points", "modes"]
    assert list(page.strokes("Norm of the gradient")) == ["generator", "discriminator"]
    dashes = "return [...document.querySelectorAll(`${arguments[0]} .line path`)]"
    dashes += ".map((path) => path.getAttribute('stroke-dasharray'))"
    assert len(set(page.run(dashes, curves("Norm of the gradient")))) == 2
    blur = page.texts(f"{curves('Blur')} text:not([class])")
    assert [float(tick) for tick in blur] == pytest.approx([0.1 * i for i in range(len(blur))])  # a linear axis
    page.go(runs="alpha,growing,gan")
    page.drawn()
    assert list(page.strokes("Learning rate")) == ["alpha", "growing", "gan: all players"]

    page.go(runs="gan")
    page.drawn("Generator loss")
    panels = page.run("return document.querySelectorAll('.curves').length")
    assert page.texts(".curves .label") == ["step"] * panels
    assert all(page.texts(".curves .unit"))
    assert page.run(TICKS) == []  # no text is clipped
    one = curves("Validation: generated points near a mode")
    assert page.texts(f"{one} .mark") == ["8"]
    assert page.texts(f"{one} text:not([class])") == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    modes = page.texts(f"{curves('Validation: modes with enough generated points')} text:not([class])")
    assert [float(tick) for tick in modes] == sorted({round(float(tick)) for tick in modes})
    web.size(page.driver, 400, 800)
    page.until(lambda: page.run("return document.querySelector('.curves').clientWidth") < 400)
    page.until(lambda: page.run(TICKS) == [])  # as soon as the curves are drawn anew


TICKS = """
const slack = 0.5, outside = (own, box) => own.left < box.left - slack || own.right > box.right + slack
  || own.top < box.top - slack || own.bottom > box.bottom + slack;
return [...document.querySelectorAll('.curves')].flatMap((one) => [...one.querySelectorAll('text')]
  .filter((text) => outside(text.getBoundingClientRect(), one.getBoundingClientRect()))
  .map((text) => `${one.getAttribute('aria-label')}: ${text.textContent}`));
"""


@pytest.mark.parametrize(("runs", "shown", "then"), [("nope", [], "beta"), ("alpha,nope", ["alpha"], "alpha,beta")])
def test_a_run_that_does_not_exist_is_named(page, runs, shown, then):
    page.open(runs=runs)
    page.until(lambda: page.text(".train .problem"))
    assert page.text(".train .problem") == "There is no run nope here: choose one from the list."
    assert list(page.dots()) == shown
    assert len(page.texts(".runs b")) == 8
    page.click("[data-run=beta]")
    page.until(lambda: not page.text(".train .problem"))
    page.drawn()
    assert page.state()["runs"] == then


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The address of twenty runs, of which the last has failed and the two before differ in their tokens."""
    root, gpt = tmp_path_factory.mktemp("many"), {"model": "gpt"}
    for i in range(17):
        write(root / f"run-{i:02}", language_model(2), measured=TOKENS)
        os.utime(root / f"run-{i:02}" / "metrics.jsonl", (2e9, 2e9))
    for name, vocab in (("few", 40), ("für alle", 500)):
        write(root / name, language_model(2), measured=TOKENS, players={"model": {**gpt, "options": {"vocab": vocab}}})
    write(
        root / "failed",
        language_model(2),
        measured=TOKENS,
        facts={"attempts": [{"problem": "the loss became nan in step 3"}]},
    )
    with Uvicorn(make_app(runs=root, device="cpu")) as found:
        yield found


def test_the_list_of_runs_shows_the_chosen_one_and_that_there_are_more(chrome, many):
    with watched(Page(chrome, f"{many}/")) as page:
        page.open(runs="failed")
        page.drawn()
        place = (
            "const [card, list] = ['[data-run=failed]', '.scroller'].map((css) =>"
            " document.querySelector(css).getBoundingClientRect());"
            " return card.top >= list.top && card.bottom <= list.bottom"
        )
        page.until(lambda: page.run(place))
        assert page.run("return document.querySelector('.scroller').className") == "scroller above"
        assert page.run("return scrollY") == 0
        web.shot(page.driver, "train-many")
        page.run("document.querySelector('.scroller').scrollTop = 0")
        page.until(lambda: page.run("return document.querySelector('.scroller').className") == "scroller below")
        page.run("window.asked = 0; const get = fetch; fetch = (...given) => { asked += 1; return get(...given); }")
        page.until(lambda: page.run("return asked") > 2)
        assert page.run("return document.querySelector('.scroller').scrollTop") == 0  # it stays where the user put it


def test_a_failed_run_says_why_and_runs_have_their_own_names(chrome, many):
    with watched(Page(chrome, f"{many}/")) as page:
        page.open(runs="failed")
        page.until(lambda: "failed: the loss became nan in step 3." in page.text(".made"))
        assert "resumes" not in page.text(".made")
        assert page.text("[data-run=failed] .state") == "failed"
        page.open(runs="fur-alle")
        page.drawn()
        assert page.text("[data-run=fur-alle] b") == "für alle"
        page.open(runs="gone,away,failed")
        page.until(lambda: "There are no runs gone and away here" in page.text(".problem"))


def test_losses_of_different_tokens_are_not_compared_silently(chrome, many):
    with watched(Page(chrome, f"{many}/")) as page:
        unit = ".curves[aria-label='Loss'] .unit"
        page.open(runs="few,fur-alle")
        page.drawn()
        assert page.texts(unit) == ["nats/token (different tokens: not comparable)"]
        assert page.texts(".curves[aria-label='Learning rate'] .unit") == ["learning rate"]
        assert page.texts(".key")[:2] == ["few", "für alle"]
        page.open(runs="few,run-01")  # of which the tokens are not known
        page.drawn()
        assert page.texts(unit) == ["nats/token"]


def test_the_loss_the_samples_and_the_statistics_of_a_run(page):
    """The loss is seen at once, panels are in two columns, and in one on a phone. Wording. Samples and statistics
    follow the choice of step, measure and run; the address has it; markup stays text.
    """
    page.open(runs="alpha")
    page.drawn()
    assert page.texts(".train section:not([hidden]) h2") == [
        "Samples during training", "Statistics of every head during training", "Gradients and outputs of every block",
    ]  # fmt: skip
    assert page.titles()[-3:] == [
        "blocks.0.attn, entropy of the weights", "Norm of the gradient of every block", "Output of every block",
    ]  # fmt: skip
    web.shot(page.driver, "train")

    page.go(runs="alpha")
    page.drawn()
    assert page.texts(".samples dd") == ["The", f" 40 {MARKUP}", " cat."]  # the last, as text
    earlier = "const one = document.querySelector('section:has(.samples) input'); one.value = 0;"
    page.run(earlier + " one.dispatchEvent(new Event('input'))")
    assert page.texts(".samples dd")[1] == f" 20 {MARKUP}"
    assert (page.text("section:has(.samples) output"), page.state()["sample"]) == ("20", "20")
    page.run(
        "const one = document.querySelector('section select'); one.value = 'sink';"
        " one.dispatchEvent(new Event('change'))"
    )
    page.until(lambda: "blocks.0.attn, weight on the first token" in page.titles())
    assert page.state() == {"runs": "alpha", "kind": "sink", "sample": "20"}
    page.go(runs="gan,alpha,beta", kind="sink")
    page.drawn("alpha: blocks.0.attn, weight on the first token")
    assert page.texts(".train .row option") == ["alpha", "beta"]  # the others have none
    page.run(
        "const one = document.querySelector('.train .row select'); one.value = 'beta';"
        " one.dispatchEvent(new Event('change'))"
    )
    page.until(lambda: page.texts(".samples dd")[1] == f" 20 {MARKUP}")
    assert page.state()["about"] == "beta"
    assert "beta: blocks.0.attn, weight on the first token" in page.titles()
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    assert page.driver.title == "Train · clearhead"

    page.open()
    page.drawn()
    lefts = "return [...document.querySelectorAll('.train .curvebox')].map((one) => one.getBoundingClientRect().left)"
    assert len(set(page.run(lefts))) == 2
    assert page.bottom(curves("Loss")) <= 768
    web.size(page.driver, 400, 800)
    page.until(lambda: len(set(page.run(lefts))) == 1)
    assert page.run("return document.documentElement.scrollWidth") <= 400
    web.shot(page.driver, "train-narrow")


def test_a_run_is_followed_and_keeps_the_focus_and_the_reading(page, folder):
    from selenium.webdriver.common.keys import Keys

    page.open(runs="growing")
    page.drawn()
    page.press(curves("Loss"), Keys.END)
    assert page.text(f"{curves('Loss')} + .note") == "step 10: 0.949"
    write_more(folder / "growing", {"step": 11, "loss": 0.5})
    page.until(lambda: "step 11 of 100" in page.text("[data-run=growing]"))
    page.until(lambda: page.run("return document.querySelector(arguments[0]).ariaValueMax", curves("Loss")) == "11")
    assert page.text(f"{curves('Loss')} + .note") == "step 10: 0.949"
    assert page.run("return document.activeElement.getAttribute('aria-label')") == "Loss"
    page.press(curves("Loss"), Keys.ARROW_RIGHT)
    assert page.text(f"{curves('Loss')} + .note") == "step 11: 0.500"
    page.run("document.querySelector('[data-run=growing]').focus()")
    write_more(folder / "growing", {"step": 12, "loss": 0.4})
    page.until(lambda: "step 12 of 100" in page.text("[data-run=growing]"))
    assert page.run("return document.activeElement.dataset.run") == "growing"


def write_more(folder, record):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")


CONTRASTS = """
const linear = (x) => (x <= 10 ? x / 3295 : ((x / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (node) => {
  const rgb = parts(getComputedStyle(node).backgroundColor);
  return rgb.length === 3 || rgb[3] > 0.5 ? rgb : ground(node.parentElement);
};
const low = [];
for (const node of document.querySelectorAll('.train *')) {
  const text = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
  if (!text || !node.getClientRects().length) continue;
  const own = getComputedStyle(node), rgb = parts(node instanceof SVGElement ? own.fill : own.color);
  const [a, b] = [light(rgb), light(ground(node))].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) low.push(`${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return low;
"""
NAMELESS = """
const named = (node) => node.ariaLabel || node.labels?.[0]?.textContent.trim() || node.textContent.trim();
return [...document.querySelectorAll('.train :is(button, input, select, a, [tabindex])')]
  .filter((node) => !named(node)).map((node) => node.outerHTML);
"""


def test_every_text_has_contrast_and_every_control_a_name(page):
    page.open(runs="alpha,gan")
    page.drawn()
    for _ in ("light", "dark"):
        page.hover("Loss", 0.3)
        assert page.run(CONTRASTS) == []
        page.click("#theme")
    page.click("#theme")
    web.shot(page.driver, "train-dark")
    page.click("#theme")
    assert page.run(NAMELESS) == []


def test_the_saved_files_name_their_runs(page, tmp_path):
    page.open(runs="alpha,beta")
    page.drawn()
    root = ElementTree.parse(page.saved("svg", tmp_path, "train-alpha-beta")).getroot()
    said = [text.text for text in root.iter(f"{SVG}text")]
    assert said[0] == "Training runs alpha and beta"
    assert said[1].startswith("alpha: gpt on text, objective next-token, step 40 of 100, stopped; beta: ")
    figures = root.findall(f"{SVG}g/{SVG}svg")
    assert len(figures) == len(page.titles())
    loss = [text.text for text in figures[0].iter(f"{SVG}text")]
    assert loss[:5] == ["Loss", "alpha", "beta", "nats/token", "step"]
    strokes = [one.get("stroke") for one in figures[0].findall(f"{SVG}g[1]/{SVG}line")]
    assert strokes == list(page.strokes("Loss").values())
    assert {one.get("width") for one in figures} == {"560"}
    assert len({one.get("x") for one in figures}) == 2  # two columns
    assert float(root.get("width")) < 1300
    assert page.saved("png", tmp_path, "train-alpha-beta").read_bytes().startswith(b"\x89PNG")
    data = json.loads(page.saved("json", tmp_path, "train-alpha-beta").read_text())
    assert [(run["id"], run["state"], len(run["records"])) for run in data["runs"]] == [
        ("alpha", "stopped", 40 + 8 + 8 + 2), ("beta", "stopped", 10 + 2 + 2 + 1),
    ]  # fmt: skip
    first = data["panels"][0]
    assert (first["title"], first["x"], first["y"]) == ("Loss", "step", "nats/token")
    assert [(line["name"], len(line["points"])) for line in first["lines"]] == [("alpha", 40), ("beta", 10)]


def test_the_example_that_ships_opens_without_a_folder(chrome):
    with Uvicorn(make_app(device="cpu")) as address, watched(Page(chrome, f"{address}/")) as page:
        page.open()
        page.drawn()
        assert page.texts(".runs b") == ["shakespeare-cpu"]
        assert page.text("[data-run] .state") == "finished"
        said = page.text(".shipped")
        assert "An example that ships: configs/shakespeare-cpu.toml" in said
        assert "clearhead explore --runs runs" in said
        assert {"Loss", "Validation: loss", "Validation: accuracy"} <= set(page.titles())
        assert page.texts(".samples dd.written")
        assert sum("entropy of the weights" in title for title in page.titles()) == 4
        assert page.bottom(curves("Loss")) <= 768


@pytest.mark.slow
def test_the_view_polls_only_while_it_is_open(page):
    page.open(runs="alpha")
    page.drawn()
    page.run(
        "window.asked = []; const real = fetch;"
        " window.fetch = (path, ...more) => { asked.push(path); return real(path, ...more) }"
    )
    page.until(lambda: page.run("return asked.includes('/api/runs')"))
    page.run("location.hash = '#build'")
    page.until(lambda: page.run("return document.querySelector('.view.build') !== null"))
    time.sleep(0.3)  # a request that was under way
    page.run("asked.length = 0")
    time.sleep(2.5)  # longer than the time between two requests
    assert page.run("return asked.filter((path) => path.includes('runs'))") == []
    page.run("location.hash = '#train'")
    page.until(lambda: page.run("return asked.includes('/api/runs')"))
    assert page.titles()[0] == "Loss"


@pytest.mark.parametrize("state", [{"kind": "nothing", "sample": "x", "runs": "alpha"}, {"runs": f"alpha,{MARKUP}"}])
def test_a_malformed_address_still_opens_the_view(page, state):
    page.open(**state)
    page.drawn("blocks.0.attn, entropy of the weights")
    assert page.texts(".runs [aria-pressed=true] b") == ["alpha"]
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    assert page.text("#problem") == ""


DRAW = """
const [options, lines, done] = arguments;
import('/page/figures/curves.js').then(({ Curves }) => {
  const one = new Curves(options);
  document.querySelector('main').replaceChildren(one.root);
  one.show(lines);
  done([...one.svgNode.querySelectorAll('text:not([class])')].map((node) => node.textContent));
}).catch((trouble) => done(String(trouble)));
"""


@pytest.mark.parametrize(
    ("points", "unit", "log", "ticks"),
    [
        ([[0, 3], [9, 0.004]], "nats", True, ["0.003", "0.01", "0.03", "0.1", "0.3", "1", "3"]),
        ([[0, 3], [9, 0.0]], "nats", True, ["0", "1", "2", "3"]),  # 0 is on no logarithmic axis
        ([[0, 10.0], [9, 1e-8]], "nats", True, ["1e−8", "1e−6", "0.0001", "0.01", "1", "100"]),
        ([[0, 0.3]], "nats", True, ["0", "0.1", "0.2", "0.3"]),  # one point
        ([[0, 0.0], [9, 0.0]], "", False, ["0", "1"]),
        ([[0, 5.0], [9, 5.0]], "", False, ["0", "1", "2", "3", "4", "5"]),
        ([[0, 0.2], [9, 0.97]], "share of tokens", True, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([[0, 0.0], [9, 8.0]], "modes", True, ["0", "2", "4", "6", "8"]),
        ([[0, -2e-7], [9, 3e-7]], "", False, ["−2e−7", "−1e−7", "0", "1e−7", "2e−7", "3e−7"]),
        ([[0, 12_000.0], [9, 48_000.0]], "", False, ["0", "10k", "20k", "30k", "40k", "50k"]),
    ],
)
def test_ticks_enclose_the_values(page, points, unit, log, ticks):
    page.open(runs="alpha")
    page.drawn()
    page.run("location.hash = '#start'")
    page.until(lambda: page.run("return document.querySelector('.view.start') !== null"))
    options = {"title": "drawn", "unit": unit, "log": log, "label": "guests"}
    found = page.driver.execute_async_script(DRAW, options, [{"name": "a", "points": points}])
    assert found == ticks
    heights = "return [...document.querySelectorAll('.line circle')].map((dot) => Number(dot.getAttribute('cy')))"
    assert all(26 <= y <= 170 for y in page.run(heights))  # within the axes


def test_a_long_line_is_drawn_by_means_with_the_range_of_its_values(page):
    page.open()
    page.drawn()
    points = [[step, 10.0 + step % 2] for step in range(4000)]
    page.driver.execute_async_script(DRAW, {"title": "drawn"}, [{"name": "a", "points": points}])
    assert page.text(".curvebox .means") == "means of 10 records, and their range"
    drawn = "return [...document.querySelectorAll('.line path')].map((path) => path.getAttribute('d')"
    line, band = page.run(drawn + ".match(/[\\d.]+,[\\d.]+/g).map((one) => Number(one.split(',')[1])))")
    assert (len(line), len(set(line))) == (400, 1)  # the mean of all groups is the same
    assert (len(band), len(set(band))) == (800, 2)
    assert min(band) < line[0] < max(band)

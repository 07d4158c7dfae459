"""The menus of models in a real browser: models of runs, trained again or damaged, and notes about models."""

import shutil

import browser as web
import pytest
import torch
from page_steps import settled
from serving import Uvicorn

import clearhead as ch
from clearhead.explore.app import make_app
from clearhead.tokens import Characters, Pair, Subwords, Words

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
SMALL = {"context": 32, "width": 8, "heads": 2}
LONG = "a run whose name is longer than any menu of a narrow screen can show on one line"


def finished(root, name, bundle):
    """Write a run that has saved a model."""
    (root / name).mkdir(exist_ok=True)
    (root / name / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    return ch.save(bundle, root / name / "model")


def letters(text, depth=1):
    torch.manual_seed(depth)
    return ch.Bundle(ch.build("gpt", vocab=len(text), depth=depth, **SMALL), Characters(text))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs with models of letters, of pairs and of images, and one whose weights are cut off."""
    root = tmp_path_factory.mktemp("runs")
    finished(root, "letters", letters("ab"))
    tokens = Subwords.of(["ein Hund läuft"] * 3, size=300)
    translator = ch.build("transformer", vocab=300, target_vocab=300, depth=1, **SMALL)
    finished(root, "pairs", ch.Bundle(translator, Pair(tokens, tokens)))
    vit = ch.build("vit", classes=3, size=32, patch=8, width=8, depth=1, heads=2)
    finished(root, "eyes", ch.Bundle(vit, preprocessing=ch.load("vit-cifar10", device="cpu").preprocessing))
    finished(root, LONG, letters("ab"))
    film = ch.build("bert", vocab=6, depth=1, answer="class", classes=2, **SMALL)
    finished(root, "films", ch.Bundle(film, Words(["film", "good"]), labels=("good film", "bad film")))
    weights = finished(root, "torn", letters("ab")) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return root


@pytest.fixture(scope="module")
def address(root):
    with Uvicorn(make_app(runs=root, device="cpu")) as found:
        yield f"{found}/"


@pytest.fixture
def page(chrome, address):
    yield web.Page(chrome, address)
    assert web.problems(chrome) == []


def written(page, model, text):
    """Wait for a text that a model has written or inspected."""
    page.until(lambda: page.state().get("model") == model and page.text(".flow").startswith(text) and settled(page))


def test_the_models_of_runs_are_a_group_of_the_menu_and_open_when_they_are_chosen(page, root):
    page.open("write", model="everyday", text="The man", inspect=1)
    written(page, "everyday", "The man")
    assert page.run("return document.querySelector('.choice optgroup').label") == "Trained here"
    names = [text.partition(" · ")[0] for text in page.texts(".choice optgroup option")]
    assert sorted(names) == [LONG, "letters", "torn"]
    page.choose(".choice select", "run-letters")
    written(page, "run-letters", "ab")  # its own example
    page.click(".beside-toggle")
    page.until(lambda: page.count(".pane") == 2 and page.count(".lens tr"))
    page.until(lambda: page.count(".pane:nth-child(2) .choice optgroup option") == 3)
    finished(root, "later", letters("abc"))
    try:
        page.run("location.hash = '#read'")
        page.run("location.hash = '#write?model=run-letters&text=ba&inspect=1'")
        page.until(lambda: "later" in page.text(".choice optgroup"))
    finally:
        shutil.rmtree(root / "later")


def test_a_run_that_was_trained_again_shows_its_new_model(page, root):
    page.open("write", model="run-letters", text="ab", inspect=1)
    written(page, "run-letters", "ab")
    assert page.count(".heads [role=row]") == 2
    finished(root, "letters", letters("abc", depth=2))
    try:
        page.run("location.hash = '#train'")
        page.run("location.hash = '#write?model=run-letters&text=ab&inspect=1'")
        page.until(lambda: page.count(".heads [role=row]") == 3 and settled(page))
        assert "abc" in page.texts(".chips .chip")
    finally:
        finished(root, "letters", letters("ab"))


def test_models_that_cannot_be_opened_or_have_no_examples(page):
    """A model that cannot be opened says why, and the one before stays chosen; a translator of an unknown language
    has no examples; names of classes are no tokens.
    """
    page.open("write", model="everyday", text="The man", inspect=1)
    written(page, "everyday", "The man")
    page.choose(".choice select", "run-torn")
    page.until(lambda: "The model torn cannot be opened:" in page.text(".write .problem"))
    assert page.run("return document.querySelector('.choice select').value") == "everyday"  # as before
    page.open("write", model="run-torn")
    page.until(lambda: "The model torn cannot be opened:" in page.text(".write .problem"))
    assert "model.safetensors" in page.text(".write .problem")

    page.open("translate", model="run-pairs")
    page.until(lambda: page.text(".translate .status") == "Type a sentence to translate.")
    assert page.run("return document.querySelector('.sentence').placeholder").startswith("A sentence in the language")
    assert page.count(".chips .chip") == 0
    page.choose(".choice select", "fr-en")
    page.until(lambda: page.count(".lines .token") and settled(page))
    assert page.run("return document.querySelector('.sentence').placeholder") == ""

    page.go("read", model="run-films", text="good film")
    page.until(lambda: page.count(".outputs .bars li") == 2)
    assert sorted(page.texts(".outputs .label")) == ["bad film", "good film"]


def test_long_names_fit_into_the_form(page):
    page.open("write", model="everyday", text="The man", inspect=1)
    written(page, "everyday", "The man")
    tops = "return ['.go', '.read'].map((css) => document.querySelector(`.write ${css}`).getBoundingClientRect().top)"
    assert len(set(page.run(tops))) == 1  # Write and Inspect are in one row
    with page.sized(400, 800):
        for view, model in (("write", "run-letters"), ("read", "run-films")):
            page.open(view, model=model)
            page.until(lambda: page.count(".choice optgroup") and settled(page))
            web.shot(page.driver, f"{view}-narrow")
            assert page.run("return document.documentElement.scrollWidth") <= 400


def test_a_model_of_a_run_is_compared_with_another(page):
    page.open("compare", model="run-eyes", other="run-eyes")
    page.until(lambda: "Compared in" in page.text(".compare .status"), 60)
    assert page.count(".grids figure:not([hidden])") == 1
    for menu in ("model", "other"):
        assert page.texts(f"select[name={menu}] optgroup option") == ["eyes · vision transformer"]
    assert page.state() == {"model": "run-eyes", "other": "run-eyes"}


def test_the_note_of_a_model_is_shown_below_the_form(page):
    said = """const plain = window.fetch;
    window.fetch = async (path, options) => {
      const answer = await plain(path, options);
      if (!String(path).endsWith("/api/models")) return answer;
      const note = (one) => (one.id === "cloze" ? { ...one, note: "opened with another; a tensor is not used" } : one);
      return new Response(JSON.stringify((await answer.json()).map(note)));
    };"""
    added = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": said})
    try:
        page.open("read", model="cloze")
        page.until(lambda: page.text(".read .about") == "Opened with another; a tensor is not used.")
        page.open("write", model="everyday", inspect=1)
        written(page, "everyday", "")
        assert not page.find(".write .about").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

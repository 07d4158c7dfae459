"""The Build view in a real browser: every number has its arithmetic, captions state the formula in force."""

import json
import math
import re
import time
from xml.etree import ElementTree

import browser as web
import pytest
import torch
from PIL import Image

from clearhead.explore.build import WK, WQ, WV, X, by_hand
from support.marks import one_in

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
SVG = "{http://www.w3.org/2000/svg}"
EXAMPLE = {"x": X.tolist(), "wq": WQ.tolist(), "wk": WK.tolist(), "wv": WV.tolist()}
EVEN = EXAMPLE | {name: [[*row, 1.0] for row in EXAMPLE[name]] for name in ("wq", "wk")}  # heads of width 4
TWO = {name: [[*row, *reversed(row)] for row in EVEN[name]] for name in ("wq", "wk", "wv")}  # two heads
ODD = {"x": [[0.12345, -2.5, 1.0, 3.25], [0.0, 0.0, 0.0, 0.0], [1e-5, 7.0, -1.75, 0.5]]}
RIGHT, DOWN, TAB = "\ue014", "\ue015", "\ue004"


@pytest.fixture
def build(page):
    """Opens the view with options that differ from its example."""

    def opened(panel="attention", **options):
        page.open("build", panel=panel, m=json.dumps(options))
        page.until(lambda: page.count("[aria-label^='A'] td span") if panel == "attention" else page.count("canvas"))
        return page

    return opened


def caption(page, name):
    return page.run(
        "return [...document.querySelectorAll('.matrixbox')].find((one) => one.isConnected && "
        "one.querySelector('b').textContent === arguments[0])?.querySelector('span').textContent ?? ''",
        name,
    )


def cells(page, name):
    return page.texts(f"[aria-label^='{name}:'] td[data-at] span")


def explained(page, name, i, j):
    """The explanation of a cell under the pointer: its title and its arithmetic."""
    page.run(
        "document.querySelector(arguments[0]).dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))",
        f"[aria-label^='{name}:'] td[data-at='{i},{j}'] > *",
    )
    return page.run("return [...document.querySelector('#explanation').children].map((node) => node.textContent)")


def evaluate(text):
    """The values of the two sides of "expression = result", as they are written."""
    powers = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    text = text.rpartition(": ")[2].replace("−", "-").replace("·", "*")
    text = re.sub(r"10([⁻⁰¹²³⁴-⁹]+)", lambda found: f"10.0**({found[1].translate(powers)})", text)
    text = re.sub(r"√(\d+)", r"sqrt(\1)", text)
    text = re.sub(r"e\^(\([^()]*\)|[\d.]+)", r"exp(\1)", text)
    left, sign, right = re.split(" ([=≈]) ", text)
    names = {name: getattr(math, name) for name in ("sqrt", "exp", "tanh", "sin", "cos")}
    return eval(left, {"__builtins__": {}}, names), sign, eval(right, {"__builtins__": {}})


def test_formulas_and_captions(build):
    """The captions and the sentence at the top state the formula in force: scores, masks, positions, heads,
    sharpness.
    """
    page = build()
    assert caption(page, "E") == "scores: Q Kᵀ"
    assert page.text(".lead .formula") == "softmax(Q Kᵀ) V"
    for control, value, scores, formula in (
        ("score", "scaled", "scores: Q Kᵀ / √dₖ; dₖ = 3", "softmax(Q Kᵀ / √dₖ) V"),
        ("score", "cosine", "scores: cos(Q, K)", "softmax(cos(Q, K)) V"),
        ("score", "additive", "scores: Σ tanh(q + k)", "softmax(Σ tanh(q + k)) V"),
        ("mask", "causal", "scores: Σ tanh(q + k) + M; M: −∞ for later inputs", "softmax(Σ tanh(q + k) + M) V"),
        (
            "positions",
            "alibi",
            "scores: Σ tanh(q + k) − m·|i − j| + M; m = 0.003906; M: −∞ for later inputs",
            "softmax(Σ tanh(q + k) − m·|i − j| + M) V",
        ),
        (
            "positions",
            "rotary",
            "scores: Σ tanh(q′ + k′) + M; M: −∞ for later inputs",
            "softmax(Σ tanh(q′ + k′) + M) V",
        ),
        ("score", "dot", "scores: Q′ K′ᵀ + M; M: −∞ for later inputs", "softmax(Q′ K′ᵀ + M) V"),
        ("mask", "none", "scores: Q′ K′ᵀ", "softmax(Q′ K′ᵀ) V"),
        ("positions", "none", "scores: Q Kᵀ", "softmax(Q Kᵀ) V"),
    ):
        page.choose(f"#{control}", value)
        page.until(lambda want=scores: caption(page, "E") == want)
        assert page.text(".lead .formula") == formula
        assert page.run(
            "return document.querySelector('[aria-label^=\"E:\"]').getAttribute('aria-label').slice(3)"
        ) == caption(page, "E")

    page = build()
    assert [caption(page, name) for name in ("X", "Wq", "Wk", "Wv", "Q", "Y")] == [
        "one input per row", "query projection", "key projection", "value projection", "= X Wq", "outputs: A V",
    ]  # fmt: skip
    page.choose("#positions", "sinusoid")
    page.until(lambda: caption(page, "Q") == "= (X + P) Wq")
    assert caption(page, "X + P") == "inputs plus position vectors"
    page.choose("#heads", "2")
    page.until(lambda: caption(page, "Y") == "outputs: A V of the 2 heads, side by side")
    assert caption(page, "Wv") == "value projection, 2 heads"
    assert caption(page, "E, head 1") == caption(page, "E, head 0") == "scores: Q Kᵀ"
    assert page.text(".lead").endswith("in each of 2 heads. Change any number.")
    page.choose("#positions", "none")
    page.until(lambda: caption(page, "Q") == "= X Wq")
    assert caption(page, "X + P") == ""

    page = build()
    slider = page.find("input[aria-label='sharpness']")
    page.run("arguments[0].value = 3; arguments[0].dispatchEvent(new Event('input'))", slider)
    page.until(lambda: cells(page, "E")[4] == "16000")
    assert caption(page, "E") == "scores: 1000 · Q Kᵀ"
    assert slider.get_attribute("aria-valuetext") == "1000: a dictionary lookup"
    page.choose("#score", "scaled")
    page.until(lambda: cells(page, "E")[4] == "9237.6")
    assert caption(page, "E") == "scores: 1000 · Q Kᵀ / √dₖ; dₖ = 3"
    assert explained(page, "E", 1, 1)[1] == "1000·(2·4 + 2·4 + 2·0) / √3 = 9237.6"
    page.click("#reset")
    page.until(lambda: caption(page, "E") == "scores: Q Kᵀ")
    assert page.run("return document.querySelector('#score').value") == "dot"
    assert slider.get_attribute("aria-valuetext") == "1"


@pytest.mark.parametrize(("mask", "forbidden", "reason"), [
    ("causal", {(0, 1), (0, 2), (1, 2)}, "input 3 comes after input 1"),
    ("window", {(0, 2), (2, 0)}, "input 3 is 2 positions away from input 1, outside the window of 2"),
])  # fmt: skip
def test_masked_scores_are_minus_infinity_and_their_weights_0(build, mask, forbidden, reason):
    page = build(mask=mask)
    at = [(i, j) for i in range(3) for j in range(3)]
    for name, text in (("E", "−∞"), ("A", "0")):
        shown = dict(zip(at, cells(page, name), strict=True))
        assert {place for place in at if shown[place] == text} == forbidden
        hatched = page.run(
            "return [...document.querySelectorAll(arguments[0])].filter((node) => getComputedStyle(node)"
            ".backgroundImage.includes('gradient')).map((node) => node.parentNode.dataset.at)",
            f"[aria-label^='{name}:'] td span",
        )
        assert {tuple(map(int, place.split(","))) for place in hatched} == forbidden
    assert explained(page, "E", 0, 2)[1] == f"masked: −∞, because {reason}"
    assert explained(page, "A", 0, 2)[1] == f"masked: e^(−∞) = 0, so the weight is 0, because {reason}"
    assert " + 0" in explained(page, "A", 0, 0)[1]  # a masked key adds nothing


def test_the_explanations_of_the_example(build):
    page = build()
    assert explained(page, "Q", 0, 2)[1] == "1·1 + 0·0 + 1·1 + 0·1 = 2"
    assert explained(page, "E", 0, 1) == ["E: query input 1, key input 2", "1·4 + 0·4 + 2·0 = 4"]
    assert explained(page, "A", 0, 1) == ["A: input 1 attends to input 2", "e^4 / (e^2 + e^4 + e^4) = 0.468"]
    assert explained(page, "Y", 0, 0)[1] == "0.06338·1 + 0.4683·2 + 0.4683·2 = 1.937"
    lit = page.run(
        "return [...document.querySelectorAll('td.lit[data-at]')].map((node) => "
        "node.closest('table').getAttribute('aria-label')[0] + node.dataset.at)"
    )
    assert lit == ["V0,0", "V1,0", "V2,0", "A0,0", "A0,1", "A0,2"]
    assert "change it" in explained(page, "X", 0, 0)[1]


@pytest.mark.parametrize("options", one_in(3, [
    {}, {"score": "scaled"}, {"score": "cosine", "sharpness": 10.0}, {"score": "additive"},
    {"score": "scaled", "sharpness": 1000.0, "mask": "causal"}, {"score": "cosine", **ODD},
    {"score": "additive", "sharpness": 0.5, **ODD, "mask": "window"}, {**ODD, "order": [2, 0, 1]},
    {"positions": "sinusoid", "score": "scaled"}, {"positions": "alibi", "mask": "causal"},
    {**EVEN, "positions": "rotary", "score": "scaled"}, {**EVEN, "positions": "rotary", "score": "additive"},
    {**TWO, "heads": 2, "positions": "rotary"}, {**TWO, **ODD, "heads": 2, "positions": "alibi", "sharpness": 0.1},
    {"x": [[1e6, 0, 3e5, 1]], "order": [0]},
]), ids=lambda options: " ".join(map(str, options.values()))[-40:])  # fmt: skip
def test_every_number_is_explained_by_its_own_arithmetic(build, options):
    """Evaluated as it is written, each explanation gives the number that the library computes."""
    page = build(**options)
    given = {key: value for key, value in options.items() if key != "mask"}
    mask = options.get("mask")
    want = by_hand(**EXAMPLE | given, causal=mask == "causal", window=2 if mask == "window" else None)
    side = {"Q": want.projected_q, "K": want.projected_k, "V": want.v, "Q′": want.q, "K′": want.k}
    exact = {name: torch.cat(list(part), dim=1) for name, part in side.items()} | {"X + P": want.x, "Y": want.out}
    for head in range(len(want.q)):
        end = f", head {head}" if len(want.q) > 1 else ""
        exact |= {f"E{end}": want.scores[head], f"A{end}": want.weights[head]}
    script = """
        const said = [];
        for (const cell of document.querySelectorAll("table[role=grid] td[data-at]")) {
          cell.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
          const name = cell.closest("table").getAttribute("aria-label").split(":")[0];
          const text = document.querySelector("#explanation span").textContent;
          said.push([name, ...cell.dataset.at.split(",").map(Number), text, cell.textContent]);
        }
        return said"""
    seen = page.run(script)
    assert {name for name, *_ in seen} >= {"Q", "K", "V", "Y"}
    for name, i, j, text, cell in seen:
        number = float(exact[name][i, j])
        if name[0] in "EA" and want.masked[i, j]:
            assert text.startswith("masked:")
            assert cell == ("−∞" if name[0] == "E" else "0")
            continue
        if name[0] == "E" and "length 0" in text:
            assert number == 0
            continue
        if name[0] == "A" and number == 0.0:
            assert cell == "≈ 0"
            assert text.endswith("≈ 0 (too small for a 64-bit number)")
            continue
        left, sign, right = evaluate(text)
        scale = max(abs(number), 1e-300 if name[0] == "A" else 1e-3)
        assert left == pytest.approx(number, abs=0.02 * scale), (name, text)
        assert right == pytest.approx(number, abs=max(5.1e-4 * max(1, abs(number)) * (name[0] != "A"), 0.051 * scale))
        if sign == "=" and abs(number) < 1e5:
            assert left == pytest.approx(right, abs=max(5.01e-4 * max(1, abs(right)), 1e-9)), (name, text)
        assert "e-" not in cell + text


def test_tiny_weights_are_shown_as_almost_0_and_exactly_in_the_explanation(build):
    page = build(sharpness=20)
    exact = by_hand(**EXAMPLE, sharpness=20.0).weights[0, 1, 0].item()
    assert 0 < exact < 1e-100
    assert cells(page, "A")[3] == "≈ 0"
    title, text = explained(page, "A", 1, 0)
    assert title == "A: input 2 attends to input 1"
    assert text.startswith("with the largest score, 320, subtracted: e^(−240) / (e^(−240) + e^0 + e^(−80)) = ")
    assert evaluate(text)[2] == pytest.approx(exact, rel=1e-3)


def test_numbers_are_reached_and_edited(build):
    """Results are reached with Tab and the arrow keys; arrow keys move through the inputs, past their digits; a wrong
    number is marked, and leaves the number before the edit; a tapped number stays explained, and nothing moves.
    """
    page = build()
    for name in ("X", "Wq", "Q", "E", "A", "Y"):
        assert page.count(f"[aria-label^='{name}:'] [tabindex='0']") == 1
    page.run('document.querySelector(\'[aria-label^="E:"] [tabindex="0"]\').focus()')
    first = page.text("#explanation b")
    assert first == "E: query input 1, key input 1"
    page.driver.switch_to.active_element.send_keys(RIGHT)
    page.driver.switch_to.active_element.send_keys(DOWN)
    assert page.text("#explanation b") == "E: query input 2, key input 2"
    assert page.text("#explanation span") == "2·4 + 2·4 + 2·0 = 16"
    assert page.run("return document.activeElement.dataset.at") == "1,1"
    assert page.count("[aria-label^='E:'] [tabindex='0']") == 1
    page.driver.switch_to.active_element.send_keys(TAB)
    assert page.text("#explanation b") == "A: input 1 attends to input 1"
    page.driver.switch_to.active_element.send_keys(RIGHT * 5)
    assert page.run("return document.activeElement.dataset.at") == "0,2"

    page = build()
    page.run("document.querySelector('[aria-label=\"X row 1, column 1\"]').focus()")
    page.driver.switch_to.active_element.send_keys(RIGHT + DOWN)
    node = page.driver.switch_to.active_element
    assert node.get_attribute("aria-label") == "X row 2, column 2"
    node.send_keys("x")
    assert node.get_attribute("aria-invalid") == "true"
    node.send_keys("\ue003" * 3 + "-2,5")
    assert node.get_attribute("aria-invalid") == "false"
    page.until(lambda: cells(page, "Q")[3] == "−2.500")
    assert page.run("return document.activeElement.getAttribute('aria-label')") == "X row 2, column 2"
    node.send_keys(RIGHT)  # past the last digit
    assert page.run("return document.activeElement.getAttribute('aria-label')") == "X row 2, column 3"

    page = build()
    node = page.find('[aria-label="X row 2, column 2"]')
    page.run("arguments[0].focus()", node)
    node.send_keys("1/2")
    node.send_keys("\ue004")  # Tab
    page.until(lambda: "“1/2” is not a number" in page.text(".matrixbox .wrong"))
    assert page.text(".matrixbox .wrong").endswith("the cell keeps 2.")
    page.until(lambda: node.get_attribute("value") == cells(page, "Q")[3] == "2")

    page = build()
    where = "const box = document.querySelector('.flow-groups').getBoundingClientRect(); return [box.top, box.height]"
    before = page.run(where)
    page.find("[aria-label^='Y:'] td[data-at='2,1']").click()
    page.run("document.querySelector('.flow-groups').dispatchEvent(new PointerEvent('pointerleave'))")
    assert page.text("#explanation b").startswith("Y: input 3, column 2")
    assert page.run(where) == before
    assert page.run("return document.querySelector('#explanation').getAttribute('aria-live')") == "polite"


OTHERS = ("less", "swap", "unpermute", "reset", "step-play")


@pytest.mark.parametrize(
    "button", ["more", "permute", "step-next", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_a_button_keeps_the_focus(build, button):
    page = build(order=[1, 0, 2])
    for _ in range(5):
        page.run("document.getElementById(arguments[0]).focus()", button)
        page.driver.switch_to.active_element.send_keys("\ue007")
        time.sleep(0.15)
        assert page.run("return document.activeElement.id") == button
    if button == "more":
        page.until(lambda: len(cells(page, "Y")) == 18)  # no more than six inputs
        assert page.find("#more").get_attribute("aria-disabled") == "true"
    if button == "less":
        page.until(lambda: len(cells(page, "Y")) == 3)
        assert page.text(".verdict").startswith("Move the inputs")


def test_a_choice_keeps_the_focus_and_survives_a_reload(build):
    page = build()
    for control, value in (("heads", "3"), ("positions", "rotary"), ("score", "cosine"), ("mask", "window")):
        page.run("document.getElementById(arguments[0]).focus()", control)
        before = page.texts("td[data-at] span")
        page.choose(f"#{control}", value)
        page.until(lambda c=control, v=value: json.loads(page.state()["m"]).get(c) in (v, 3))
        page.until(lambda before=before: page.texts("td[data-at] span") != before)
        assert page.run("return document.activeElement.id") == control
    shown = page.texts("td[data-at] span")
    page.driver.refresh()
    page.until(lambda: page.texts("td[data-at] span") == shown)
    chosen = "return ['heads', 'positions', 'score', 'mask'].map((id) => document.getElementById(id).value)"
    assert page.run(chosen) == ["3", "rotary", "cosine", "window"]


def test_rotary_positions_add_a_column_of_zeros_and_take_it_away_again(build):
    page = build(score="scaled")
    page.choose("#positions", "rotary")
    page.until(lambda: page.count("[aria-label^='Wq:'] tbody tr:first-child input") == 4)
    assert caption(page, "Wq") == "query projection, a column of zeros added to make pairs"
    assert caption(page, "E") == "scores: Q′ K′ᵀ / √dₖ; dₖ = 4"
    title, text = explained(page, "E", 1, 0)
    assert "q and k have been rotated by their positions" in title
    assert text == "((−0.6023)·0 + 2.000·1 + 2.764·1 + 0.02000·0) / √4 = 2.382"
    page.choose("#positions", "none")
    page.until(lambda: page.count("[aria-label^='Wq:'] tbody tr:first-child input") == 3)
    assert caption(page, "E") == "scores: Q Kᵀ / √dₖ; dₖ = 3"


def test_the_steps_and_the_order(build):
    """The softmax and the weighted sum step by step; Play walks through the steps and pauses, and with reduced motion
    nothing plays by itself. Reordered inputs: whether their outputs move with them, and why not.
    """
    page = build(mask="causal")
    page.choose("#step-query", "1")
    said = [page.text(".steptext")]
    for _ in range(8):
        page.click("#step-next")
        said.append(page.text(".steptext"))
    assert said[0] == "The scores of input 2: a row of E. Masked scores are −∞."
    assert "4 − 16 = −12" in said[1]
    assert "e^(−12) = 6.144·10⁻⁶" in said[2]
    assert "e^0 = 1" in said[2]
    assert "masked: 0" in said[2]
    assert "6.144·10⁻⁶ + 1 + 0 = 1.000" in said[3]
    assert said[4].startswith("Divide by the sum: ")
    assert said[6] == "The weight of input 2 times its value: 1.000 · [2, 8, 0] = [2.000, 8.000, 0]"
    assert said[8] == f"The sum of the weighted values is the output of input 2: [{', '.join(cells(page, 'Y')[3:6])}]"
    assert page.text(".count") == "step 9 of 9"
    assert page.find("#step-next").get_attribute("aria-disabled") == "true"
    assert page.run("return [...document.querySelectorAll('td.lit[data-at]')].at(-1).dataset.at") == "1,2"
    page.click("#step-back")
    assert page.text(".count") == "step 8 of 9"

    page = build()
    page.click("#step-play")
    assert page.text("#step-play") == "Pause"
    page.until(lambda: page.text(".count") == "step 3 of 9")
    page.click("#step-play")
    assert page.text("#step-play") == "Play"

    page = build()
    still = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": still})
    try:
        page.until(lambda: page.text("#step-play") == "Show all steps")
        page.click("#step-play")
        assert page.text(".count") == "step 9 of 9"
        assert page.text("#step-play") == "Show all steps"
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    page = build()
    assert page.text(".verdict").startswith("Move the inputs")
    page.click("#permute")
    page.until(lambda: "permutation equivariant" in page.text(".verdict"))
    assert page.texts("[aria-label^='Y:'] th") == ["input 2", "input 3", "input 1"]
    page.choose("#positions", "sinusoid")
    page.until(lambda: "positions made the order matter" in page.text(".verdict"))
    page.choose("#mask", "causal")
    page.until(lambda: "positions and the mask made the order matter" in page.text(".verdict"))


def test_back_returns_to_the_panel_before(page):
    page.open("build")
    page.until(lambda: page.count("[aria-label^='A:'] td span"))
    page.find("#panels label:nth-child(2)").click()  # by the user: Chromium skips entries that scripts have made
    page.until(lambda: page.state()["panel"] == "positions" and page.count(".panel:not([hidden]) canvas.map"))
    page.find("#panels label:nth-child(3)").click()
    page.until(lambda: page.state()["panel"] == "memory" and page.count(".curves path"))
    for panel in ("positions", "attention"):
        page.driver.back()
        page.until(lambda panel=panel: page.run("return document.querySelector('#panels :checked').value") == panel)
        assert page.count(".build > .panel:not([hidden])") == 1
    page.until(lambda: page.count(".panel:not([hidden]) [aria-label^='A:'] td span"))


def test_leaving_the_view_keeps_it(build):
    page = build()
    page.choose("#score", "cosine")
    page.until(lambda: caption(page, "E") == "scores: cos(Q, K)")
    page.click("#nav a[href='#train']")
    page.until(lambda: page.count(".view.train"))
    page.click("#nav a[href='#build']")
    page.until(lambda: caption(page, "E") == "scores: cos(Q, K)")
    assert page.run("return document.querySelector('#score').value") == "cosine"


@pytest.mark.parametrize("state", one_in(3, [
    {"panel": "nothing"}, {"m": "null"}, {"m": "{"}, {"m": "3"}, {"m": '{"words": [], "score": "guess"}'},
    {"m": '{"x": [[1, 2], [3]]}'}, {"m": '{"wq": [[1]], "heads": 2}'}, {"m": '{"order": [0, 0, 7]}'},
    {"m": '{"x": [["a", 0, 0, 0]], "sharpness": -1}'}, {"m": '{"x": [[1, 2, 3]], "positions": "rotary"}'},
]), ids=str)  # fmt: skip
def test_a_malformed_address_still_opens_the_view(page, state):
    page.open("build", **state)
    page.until(lambda: len(cells(page, "Y")) == 9)
    assert page.text(".build .problem") == ""
    used = state in ({"panel": "nothing"}, {"m": "null"})
    assert page.text(".build .status") == (
        "" if used else "Some options of this address cannot be used: their defaults are shown."
    )


def test_text_is_readable_on_every_cell(build):
    page = build(positions="alibi", mask="causal", x=[[1, -1, 0.5, -0.2], [0, 2, -2, 1], [3, 0, 1, -3]])
    script = """
        const linear = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((x) => linear(x / 255))
          .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0.05);
        return Math.min(...[...document.querySelectorAll("td[data-at] > *")].map((node) => {
          const { color, backgroundColor } = getComputedStyle(node), a = light(color), b = light(backgroundColor);
          return Math.max(a, b) / Math.min(a, b);
        }))"""
    assert page.run(script) >= 4.5
    page.click("#theme")
    try:
        assert page.run(script) >= 4.5
        web.shot(page.driver, "build-dark")
    finally:
        page.click("#theme")


def test_the_weights_are_visible_without_scrolling(build):
    page = build()
    with page.sized(1366, 768):
        for name in ("X", "Wq", "Q", "V", "E", "A", "Y"):
            assert page.bottom(f"[aria-label^='{name}:']") < 768
        web.shot(page.driver, "build")


@pytest.mark.parametrize("panel", ["attention", "positions", "memory"])
def test_a_narrow_screen_does_not_scroll_sideways(build, panel):
    with build().sized(400, 800):
        page = build(panel, **TWO, heads=2, positions="rotary", mask="causal", score="scaled")
        page.until(lambda: page.run("return document.documentElement.scrollWidth") <= 400)
        web.shot(page.driver, f"build-{panel}-narrow")


def test_positions_have_titles_axes_and_a_head(build):
    page = build("positions")
    titles = ".panel:not([hidden]) .mapbox:not([hidden]) figcaption :first-child"
    page.until(lambda: page.texts(titles)[:1] == ["Position vectors: one row per position"])
    assert page.text(".build .lead").startswith("Self-attention without positions treats its inputs as a set")
    page.run("document.querySelector('#kind').focus()")
    for kind, words in (
        ("alibi", "Bias of each query and key, head 0: −0.5 · distance"),
        ("rotary", "Score of two rotated vectors of ones / width"),
    ):
        page.choose("#kind", kind)
        page.until(lambda words=words: words in page.texts(titles))
        assert page.run("return document.activeElement.id") == "kind"
    page.choose("#kind", "alibi")
    page.until(lambda: page.count("input[aria-label='head']"))
    move = "arguments[0].value = 3; arguments[0].dispatchEvent(new Event('input'))"
    page.run(move, page.find("input[aria-label='head']"))
    page.until(lambda: "Bias of each query and key, head 3: −0.0625 · distance" in page.texts(titles))
    page.choose("#kind", "sincos2d")
    page.until(lambda: page.find(".picture").is_displayed())
    page.find(".picture").send_keys(RIGHT)
    assert page.until(lambda: page.text(".mapbox:has(.picture) .note")).startswith("row")
    web.shot(page.driver, "build-positions")


def test_the_memory_states_both_shares(build):
    page = build("memory", gamma=0.5)
    page.until(lambda: "After 24 inputs" in page.text(".panel:not([hidden]) .verdict"))
    said = page.text(".panel:not([hidden]) .verdict")
    assert "e^6 / (e^6 + 23) = 0.946 for attention" in said
    assert f"= {0.5**23 / (2 - 0.5**23):.3e} in the memory".replace("e-08", "·10⁻⁸") in said
    page.find(".panel:not([hidden]) .curves").send_keys(RIGHT)
    assert "input number 1" in page.text(".panel:not([hidden]) .curves + .note")
    web.shot(page.driver, "build-memory")


def test_a_saved_figure_and_its_data_are_complete(build, tmp_path):
    page = build(score="scaled", mask="causal", **{key: TWO[key] for key in TWO}, heads=2)
    drawn, file = (page.saved(kind, tmp_path) for kind in ("svg", "json"))
    assert file.stem == drawn.stem == "clearhead-build-attention-scaled-causal-2-heads"
    saved = json.loads(file.read_text())
    assert saved["formula"] == "softmax(Q Kᵀ / √dₖ + M) V"
    assert (
        saved["result"]["weights"]
        == by_hand(EXAMPLE["x"], **TWO, heads=2, score="scaled", causal=True).weights.tolist()
    )
    assert saved["result"]["masked"][0] == [False, True, True]
    assert saved["options"]["wq"] == TWO["wq"]
    words = [node.text for node in ElementTree.parse(drawn).getroot().iter(f"{SVG}text")]
    assert "Attention by hand: softmax(Q Kᵀ / √dₖ + M) V" in words
    assert {"X", "Wq", "Q", "E, head 1", "A, head 0", "Y", "−∞", "head 1", "Weights as lines, mean of 2 heads"} <= set(
        words
    )
    assert "scores: Q Kᵀ / √dₖ + M; dₖ = 4; M: −∞ for later inputs" in words


def test_patches_of_an_image(page, tmp_path):
    """The chosen patch is in the address, the title and beside a scale; an image can lie behind the patches."""
    page.open("build", panel="positions", m='{"kind":"sincos2d","length":8,"patch":[1,6]}')
    page.until(lambda: "row 1, column 6" in page.text(".panel .mapbox:last-child figcaption b"))
    assert page.count(".panel .mapbox:last-child .legend .bar") == 1
    canvas = page.find(".panel .mapbox:last-child canvas")
    canvas.send_keys("\ue015")  # the patch below
    page.until(lambda: "row 2, column 6" in page.text(".panel .mapbox:last-child figcaption b"))
    assert json.loads(page.state()["m"])["patch"] == [2, 6]

    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    page.go("build", panel="positions", m='{"kind":"sincos2d","length":8}')
    page.until(lambda: "row 4, column 2" in page.text(".panel .mapbox:last-child figcaption b"))
    assert page.run("return document.querySelector('.panel .mapbox:last-child > .row').hidden")  # no image, no opacity
    page.find(".panel .mapbox:last-child input[type=file]").send_keys(str(tmp_path / "red.png"))
    page.until(lambda: not page.run("return document.querySelector('.panel .mapbox:last-child > .row').hidden"))
    pixel = "return [...document.querySelector('.panel .picture').getContext('2d').getImageData(2, 2, 1, 1).data]"
    red, _, blue, _ = page.run(pixel)
    assert red > blue

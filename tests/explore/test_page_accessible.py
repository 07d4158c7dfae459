"""axe-core finds no serious violation in any view, light or dark, narrow or wide."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import browser as web
import pytest
from filelock import FileLock

pytestmark = pytest.mark.skipif(bool(web.WHY_NOT), reason=web.WHY_NOT)
AXE = "axe-core@4.14.0"
STORE = Path(__file__).parent.parent.parent / "build" / "axe"
STATES = {
    "start": ("", {}, ".example .lines .token"),
    "translate": ("translate", {}, ".heads canvas"),
    "translate-two": ("translate", {"model": "en-de", "text": "A dog.", "model2": "en-de-rnn", "text2": "A dog."},
                      ".pane:nth-child(2) .lines .token"),
    "write": ("write", {"max_new": 8, "text": "The man", "off": '{"1": [2]}', "without": '{"1": [2]}'},
              ".effect .piece"),
    "read": ("read", {}, ".heads canvas"),
    "classify": ("classify", {}, ".sight .heads canvas"),
    "classify-two": ("classify", {"model": "vit-cifar10", "image": "cat", "model2": "resnet-cifar10", "image2": "cat"},
                     ".pane:nth-child(2) .features canvas"),
    "caption": ("caption", {}, ".sight .heads canvas"),
    "caption-two": ("caption", {"model": "captioner", "image": "cat", "model2": "captioner-rnn", "image2": "cat",
                                "text": "a red circle", "text2": "a red circle"},
                    ".pane:nth-child(2) .strip button"),
    "saliency": ("classify", {"model": "vit-imagenette", "image": "church", "group": "saliency",
                              "region": "[30, 10, 90, 110]"}, ".salience .share:not(:empty)"),
    "patching": ("write", {"model": "everyday", "text": "The man", "inspect": 1, "patch": '{"open": 1}'},
                 ".patching .verdict"),
    "compare": ("compare", {}, ".compare .remark:not(:empty)"),
    "build": ("build", {"m": '{"mask": "causal"}'}, "[aria-label^='A'] td"),
    "positions": ("build", {"panel": "positions"}, "canvas.map"),
    "memory": ("build", {"panel": "memory"}, ".curves path"),
    "train": ("train", {"runs": "first"}, ".curves path"),
}  # fmt: skip


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core, fetched once by npm."""
    script = STORE / "package" / "axe.min.js"
    STORE.mkdir(parents=True, exist_ok=True)
    with FileLock(STORE / "lock"):
        if not script.is_file():
            if shutil.which("npm") is None:
                pytest.skip("no npm here: it brings axe-core")
            line = ["npm", "pack", AXE, "--silent", "--pack-destination", str(STORE)]
            done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=STORE, check=False)
            if done.returncode:
                pytest.skip(f"npm cannot fetch {AXE}: {done.stderr.strip()[-200:]}")
            with tarfile.open(next(STORE.glob("*.tgz"))) as archive:
                archive.extract("package/axe.min.js", STORE, filter="data")
    return script.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("theme", "wide", "names"),
    [
        ("light", 400, list(STATES)[::3]),
        ("dark", 1440, list(STATES)[1::3]),
        *(pytest.param(t, w, list(STATES), marks=pytest.mark.slow) for t in ("light", "dark") for w in (400, 1440)),
    ],
    ids=["light-400-some", "dark-1440-some", "light-400", "light-1440", "dark-400", "dark-1440"],
)
def test_no_serious_violation(page, axe, theme, wide, names):
    web.size(page.driver, wide, 900)
    found = {}
    try:
        for name in names:
            view, state, there = STATES[name]
            page.open(view, **state)
            page.run("document.documentElement.dataset.theme = arguments[0]; dispatchEvent(new Event('theme'))", theme)
            page.until(lambda there=there: page.count(there) and not page.all(".mapbox.busy"))
            page.run(axe)
            problems = page.driver.execute_async_script(
                "const done = arguments[arguments.length - 1]; axe.run({ resultTypes: ['violations'] }).then((r) =>"
                " done(r.violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => [v.id,"
                " v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + ' | ' + n.failureSummary)])))"
            )
            if problems:
                found[name] = problems
            web.shot(page.driver, f"{name}-{theme}-{wide}")
    finally:
        web.size(page.driver, 1280, 900)
    assert found == {}

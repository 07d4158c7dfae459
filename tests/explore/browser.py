"""A real browser and a real server, for tests of the page."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

SHOTS = Path(__file__).parent.parent.parent / "build" / "screenshots"  # kept, to be viewed
MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
WHY_NOT = "no Chromium here: `apt-get install chromium chromium-driver` brings it" if not (CHROMIUM and DRIVER) else ""


# What is left from the state before would be taken for what is waited for.
GO = """
for (const node of document.querySelectorAll(".status, .view .problem")) node.textContent = "";
for (const node of document.querySelectorAll(".picture")) node.setAttribute("aria-label", "");
for (const node of document.querySelectorAll(".train .panels")) node.replaceChildren();
location.hash = arguments[0];
"""


class Server:
    """`clearhead explore` in a process of its own."""

    def __init__(self, *words: str) -> None:
        line = [sys.executable, "-m", "clearhead", "explore", *words, "--port", "0", "--no-browser", "--device", "cpu"]
        self.began = time.monotonic()
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not re.match(r"http://127\.0\.0\.1:\d+/$", self.address):
            self.process.kill()
            raise RuntimeError(f"the server printed {self.address!r}: {self.process.communicate()[1][-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


class Page:
    """The page of the explorer at an address."""

    def __init__(self, driver, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, view="", **state):
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Page.resetNavigationHistory", {})  # a full history would drop entries of this page
        self.driver.get_log("browser")
        self.driver.get(f"{self.address}#{view}{'?' + urllib.parse.urlencode(state) if state else ''}")

    def go(self, view="", **state):
        """Open a state without loading the page anew, as a link of the page does."""
        address = f"#{view}{'?' + urllib.parse.urlencode(state) if state else ''}"
        if not self.driver.current_url.endswith(address):  # else it is open already
            self.run(GO, address)

    def find(self, css):
        return self.driver.find_element("css selector", css)

    def all(self, css):
        return self.driver.find_elements("css selector", css)

    def texts(self, css):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", css)

    def count(self, css):
        return self.run("return document.querySelectorAll(arguments[0]).length", css)

    def until(self, what, seconds=20.0):
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(lambda _: what())

    def text(self, css):
        # In one script: an element that is redrawn in between would be stale.
        script = "const node = document.querySelector(arguments[0]); return node?.innerText ?? node?.textContent ?? ''"
        return self.run(script, css).strip()

    def run(self, script, *given):
        return self.driver.execute_script(script, *given)

    def click(self, css):
        click = "const node = document.querySelector(arguments[0]); node?.click(); return node !== null"
        self.until(lambda: self.run(click, css))

    def choose(self, css, value):
        self.run(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))", self.find(css), value
        )

    def type(self, css, text):
        self.run("arguments[0].value = ''; arguments[0].focus()", self.find(css))
        self.find(css).send_keys(text)

    def slide(self, label, value):
        """Move the slider with this name."""
        slider = self.find(f"input[type=range][aria-label='{label}']")
        self.run("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", slider, value)

    def saved(self, kind, folder, css=None):
        """The file (svg, png or json) that a button saves: one of the frame, or that of a figure."""
        behaviour = {"behavior": "allow", "downloadPath": str(folder)}
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
        for file in folder.glob(f"*.{kind}"):
            file.unlink()
        self.run("document.querySelector('#notice').textContent = ''")
        self.click(css or f"[data-save={kind}]")
        self.until(lambda: f".{kind} (" in self.text("#notice"))
        return self.until(lambda: next((file for file in folder.glob(f"*.{kind}") if whole(file)), None))

    def bottom(self, css):
        """The y of the lower edge of an element."""
        return self.run("return document.querySelector(arguments[0]).getBoundingClientRect().bottom", css)

    @contextlib.contextmanager
    def sized(self, wide, tall):
        """A window of this size, for the lines of a `with`."""
        size(self.driver, wide, tall)
        try:
            yield
        finally:
            size(self.driver, 1280, 900)

    def state(self):
        return dict(urllib.parse.parse_qsl(self.driver.current_url.partition("?")[2]))


def whole(file) -> bool:
    """Whether a download has come to its end."""
    ends = {".svg": b"</svg>", ".json": b"}", ".png": b"IEND\xaeB`\x82"}
    return file.read_bytes().rstrip(b"\n").endswith(ends[file.suffix])


def problems(browser) -> list:
    """The errors and warnings in the console of the page."""
    return [one for one in browser.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]


def start(wide: int = 1280, tall: int = 900, dark: bool = False):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--no-first-run", "--disable-extensions", "--disable-background-networking"):  # fmt: skip
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    size(found, wide, tall)
    if dark:
        night = [{"name": "prefers-color-scheme", "value": "dark"}]
        found.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": night})
    return found


def size(browser, wide: int, tall: int) -> None:
    screen = {"width": wide, "height": tall, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def note(**found: float) -> None:
    """Save measured times beside the screenshots."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / "speeds.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {name: round(value, 1) for name, value in found.items()}, indent=1))


def shot(browser, name: str) -> Path:
    """Save a screenshot of the whole page."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    wide, tall, here = browser.execute_script("return [innerWidth, document.documentElement.scrollHeight, innerHeight]")
    size(browser, wide, min(tall, 4000))
    time.sleep(0.2)
    browser.save_screenshot(str(SHOTS / f"{name}.png"))
    size(browser, wide, here)
    return SHOTS / f"{name}.png"

"""A real browser and a real server, for tests of the page."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

SHOTS = Path(__file__).parent.parent.parent / "build" / "screenshots"  # kept, to be viewed
MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
WHY_NOT = "no Chromium here: `apt-get install chromium chromium-driver` brings it" if not (CHROMIUM and DRIVER) else ""


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

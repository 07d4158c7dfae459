"""Screenshots of the explorer in a real browser (Chromium and its driver), and a tour of it as an animation.

`python docs/explorer_tour.py` records the tour: docs/pictures/explorer.webp.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL.Image import Dither, Image
from PIL.Image import open as opened

PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]
TOUR = Path(__file__).parent / "pictures" / "explorer.webp"


class Page:
    """The explorer's page in a browser."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser, self.address = browser, address
        # pictures, and the milliseconds that each is shown
        self.frames: list[tuple[Image, int]] = []

    def open(self, view: str, ready: str) -> None:
        """Open a view and wait until an element matches the CSS selector `ready`."""
        self.browser.get(f"{self.address}#{view}")
        self.wait(ready)

    def wait(self, ready: str, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.browser.find_elements("css selector", ready):
            time.sleep(0.05)

    def run(self, script: str, *given: Any) -> Any:
        return self.browser.execute_script(script, *given)

    def shot(self) -> Image:
        return opened(io.BytesIO(self.browser.get_screenshot_as_png())).convert("RGB")

    def record(self, milliseconds: int, wait: float = 0.15) -> None:
        """Add the present picture to the animation."""
        time.sleep(wait)
        self.frames.append((self.shot(), milliseconds))

    def type(self, css: str, text: str, step: int = 4) -> None:
        """Type a text, with a picture for every few characters."""
        for end in range(step, len(text) + step, step):
            self.run(
                "const n = document.querySelector(arguments[0]); n.focus(); n.value = arguments[1]",
                css,
                text[:end],
            )
            self.record(90, 0.0)

    def point(self, css: str, number: int = 0) -> None:
        """Move the pointer to an element."""
        self.run(
            "const n = document.querySelectorAll(arguments[0])[arguments[1]]; n.dispatchEvent(new PointerEvent("
            "'pointerenter', { bubbles: true })); n.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))",
            css,
            number,
        )

    def click(self, css: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", css)

    def slide(self, label: str, value: float) -> None:
        self.run(
            "const n = document.querySelector(`input[type=range][aria-label='${arguments[0]}']`);"
            " n.value = arguments[1]; n.dispatchEvent(new Event('input'))",
            label,
            value,
        )


@contextmanager
def explorer(wide: int = 1120, tall: int = 760) -> Iterator[Page | None]:
    """Serve the explorer and open it in a browser; None where there is no browser."""
    if not all(PROGRAMS):
        yield None
        return
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(PROGRAMS[0])
    for word in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(word)
    line = [
        sys.executable,
        "-m",
        "clearhead",
        "explore",
        "--port",
        "0",
        "--no-browser",
        "--device",
        "cpu",
    ]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS[1]))
        try:
            screen = {"width": wide, "height": tall, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            assert server.stdout is not None
            yield Page(browser, server.stdout.readline().strip())
        finally:
            browser.quit()
            server.terminate()


def screenshot(
    view: str, ready: str, *, wide: int = 1280, tall: int = 760, act: str = "", colours: int = 96
) -> Image | None:
    """A picture of one view, after the script `act`, in so many colours; None without a browser."""
    with explorer(wide, tall) as page:
        if page is None:
            return None
        page.open(view, ready)
        page.wait("main:not(:has(.busy))")
        if act:
            page.run(act)
        time.sleep(1.0)
        # a page has few colours, so this loses little
        return page.shot().quantize(colours, dither=Dither.NONE)


def tour(page: Page) -> None:
    """Record somebody who uses the explorer."""
    page.open("start", ".example .token")
    page.record(1600, 0.6)
    page.run("document.querySelector('.steps li:nth-child(1)').scrollIntoView({ block: 'center' })")
    page.record(1000)
    page.click(".steps li:first-child a")
    page.wait(".matrix td")
    page.record(1200, 0.5)
    for name, cell in (("Q", 2), ("E", 1), ("A", 1), ("Y", 1)):
        page.point(f".matrix[aria-label^='{name}'] tbody td > *", cell)
        page.record(1300)
    page.open("translate?model=fr-en&text=Je+la+mange.", ".heads canvas")
    page.record(900, 0.5)
    page.type(".sentence", "Je ne sais pas où il habite.")
    page.click(".go")
    page.wait(".answers .said")
    page.record(250, 0.0)
    page.wait(".inside:not([hidden]) .heads canvas")
    page.record(1200, 0.5)
    for token in (11, 13, 15):
        page.point(".lines .token", token)
        page.record(900)
    page.click(".heads [data-at='1,3']")
    page.record(1200, 0.4)
    page.open(
        "write?model=everyday&text=She+told+me+that+she&max_new=12&temperature=0.7&seed=4",
        ".lens tr",
    )
    page.wait(".heads canvas")
    page.record(1400, 0.6)
    page.run("document.querySelector('.candidates').scrollIntoView({ block: 'end' })")
    page.record(900)
    for temperature in (0.3, 0.1, 1.0, 1.6):
        page.slide("temperature", temperature)
        page.record(600, 0.4)
    page.run("document.querySelector('.picker').scrollIntoView({ block: 'center' })")
    page.run(
        "const s = document.querySelector('.picker select'); s.value = 'effect'; s.dispatchEvent(new Event('change'))"
    )
    page.wait(".heads [title*=': effect ']")
    page.record(1400, 1.0)
    page.click(".heads [data-at='1,2']")
    page.click(".switch")
    page.wait(".effect .piece")
    page.run("document.querySelector('.effect').scrollIntoView({ block: 'end' })")
    page.record(2200, 0.4)


def main() -> None:
    with explorer() as page:
        if page is None:
            sys.exit("the tour is recorded in a browser: expected chromium and chromedriver")
        tour(page)
        (first, _), *others = page.frames
        small = [frame.resize((960, 651)) for frame in (first, *(frame for frame, _ in others))]
        small[0].save(
            TOUR,
            save_all=True,
            append_images=small[1:],
            duration=[ms for _, ms in page.frames],
            loop=0,
            quality=62,
            method=4,
            minimize_size=False,
            allow_mixed=True,
        )
    print(f"{TOUR.name}: {len(small)} pictures, {TOUR.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""What the tests of the page's views share."""

SLACK = 3.0  # factor by which a busy machine may be slower than promised

# A reply of the server that never ends: a stream of these lines, then silence.
HANG = """
const plain = (window.plainFetch ??= window.fetch), text = arguments[0];
window.fetch = async (path, options = {}) => {
  if (!String(path).includes(arguments_path)) return plain(path, options);
  const stream = new ReadableStream({ start(to) { to.enqueue(new TextEncoder().encode(text));
    options.signal?.addEventListener("abort", () => to.error(new DOMException("stopped", "AbortError"))); } });
  return new Response(stream);
};
"""


def hang(page, path, lines):
    """Let requests for a path answer with these lines and then hang until they are aborted."""
    page.run(HANG.replace("arguments_path", repr(path)), "".join(line + "\n" for line in lines))


def answering(page):
    """Let requests be answered by the server again."""
    page.run("window.fetch = window.plainFetch ?? window.fetch")


def altered(page, path, change):
    """Let the events of a stream be changed by JavaScript: an expression of `event`, which is left out if null."""
    page.run(
        "const plain = window.fetch;"
        " window.fetch = async (path, options) => { const answer = await plain(path, options);"
        f" if (!String(path).includes({path!r})) return answer;"
        " const events = (await answer.text()).trim().split('\\n').map((line) => JSON.parse(line));"
        f" const change = (event) => {change};"
        " const kept = events.flatMap(change).filter(Boolean);"
        " return new Response(kept.map((event) => JSON.stringify(event) + '\\n').join('')); }"
    )


def translated(page, pane=1):
    """Wait for a translation and its figures."""
    root = f".pane:nth-child({pane})"
    page.until(lambda: " ms" in page.text(f"{root} .status") and page.all(f"{root} .lines .token") and settled(page))


def written(page, many):
    """Wait for a text of `many` new tokens, with its figures."""
    page.until(lambda: f"{many} tokens written" in page.text(".write .status") and page.count(".lens tr"))
    page.until(lambda: settled(page))


def inspected(page, seconds=20.0):
    """Wait for the inspection of a text."""
    page.until(lambda: "inspected" in page.text(".write .status") and page.count(".lens tr") and settled(page), seconds)


def settled(page):
    """Whether all maps on screen are drawn, and there is one."""
    return page.run(
        "const seen = [...document.querySelectorAll('.mapbox canvas.map')].filter((one) => one.offsetParent);"
        " return !document.querySelector('.mapbox.busy') && seen.length > 0 && seen.every((one) => one.height > 0)"
    )


def press(page, *keys):
    """Press keys where the focus is."""
    page.driver.switch_to.active_element.send_keys(*keys)


def focus(page):
    """The text of the element that has the focus."""
    return page.run("return document.activeElement.textContent")

/** Measures the page: milliseconds from a click to the first feedback, and to the result. */

const node = (css) => document.querySelector(css);

const nodes = (css) => [...document.querySelectorAll(css)];
const status = () => node(".status").textContent;
const lines = () => nodes(".lines path").map((path) => path.getAttribute("opacity")).join();
const still = () => !node(".mapbox.busy");

async function wait(what) {
  const began = performance.now();
  while (!what()) {
    if (performance.now() - began > 25000) throw new Error(`waited for ${what}`);
    await new Promise(requestAnimationFrame);
  }
}

const found = { acknowledged: 0 };
async function timed(name, act, seen, shown) {
  const began = performance.now();
  act();
  await wait(seen);
  found.acknowledged = Math.max(found.acknowledged, performance.now() - began);
  await wait(shown);
  found[name] = performance.now() - began;
}

async function calm() {
  await wait(still);
  await new Promise((go) => setTimeout(go, 400));
}

async function translating() {
  node(".sentence").value = "Two dogs run across the blue field.";
  await timed(
    "word",
    () => node("form").requestSubmit(),
    () => status() === "Translating…",
    () => node(".answers .said")?.textContent.startsWith("Zwei"),
  );
  await wait(() => status().includes(" ms"));
  await calm();
  const before = lines();
  const head = () => node('.heads [data-at="2,4"]');
  await timed(
    "head",
    () => head().click(),
    () => head().classList.contains("on"),
    () => lines() !== before,
  );
}

async function writing(text, read) {
  const piece = (i) => nodes(".piece")[i];
  const head = (at) => node(`.heads [data-at="${at}"]`);
  const other = (css) => {
    const before = node(css).textContent;
    return () => node(css).textContent !== before;
  };
  const token = async (name, i, css) => {
    await timed(
      name,
      () => piece(i).click(),
      () => piece(i).classList.contains("picked"),
      other(css),
    );
    await calm();
  };
  const choose = async (name, at, shown) => {
    await timed(name, () => head(at).click(), () => head(at).classList.contains("on"), shown);
    await calm();
  };
  node(".prompt").value = text;
  if (read) {
    await timed(
      "read",
      () => node(".read").click(),
      () => status() !== "",
      () => status().includes("tokens inspected"),
    );
  } else {await timed("word", () =>
      node("form").requestSubmit(), () =>
      status() === "Writing…", () =>
      node(".piece.new"));}
  await wait(() =>
    nodes(".heads [title*=entropy]").length === 25 && /inspected|written/.test(status()) &&
    node(".lens tr")
  );
  await calm();
  await token("candidates", 3, ".candidates");
  await token("lens", 6, ".lens");
  const before = lines();
  await choose("lines", "1,2", () => lines() !== before);
  const titled = (text) => () => node(".mapbox figcaption b").textContent.includes(text) && still();
  await choose("head", "2,3", titled("layer 2, head 3"));
  await choose("layer", "3,null", titled("layer 3, mean"));
  await choose("again", "2,3", titled("layer 2, head 3"));
  for (let i = 0; i < 6; i++) {
    const began = performance.now();
    const pause = () => performance.now() - began > 100; // a tile is requested after a pause
    await timed(
      `tile${i}`,
      () => node(".zooms button").click(),
      () => true,
      () => pause() && still(),
    );
    await calm();
  }
  await timed("off", () => node(".switch").click(), () => node(".heads .off"), other(".switch"));
}

const [which, ...given] = arguments;
return ({ translating, writing })[which](...given).then(() => found);

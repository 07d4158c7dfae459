/** Elements of HTML and SVG; text always becomes a text node, never markup. */

const SVG = "http://www.w3.org/2000/svg";
// set on the node: attributes are defaults only
const PROPERTIES = ["value", "checked", "selected"];

/** A step of the arrow keys as [rows, columns]. */
export const ARROWS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

/** An HTML element: h("a", { href, class, onclick, style: {...} }, children...). */
export function h(tag, options = {}, ...children) {
  return fill(document.createElement(tag), options, children);
}

/** An SVG element, made like h(). */
export function s(tag, options = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), options, children);
}

function fill(node, options, children) {
  for (const [name, value] of Object.entries(options ?? {})) setOption(node, name, value);
  const shown = children.flat(Infinity).filter((one) => !absent(one));
  node.append(...shown);
  return node;
}

// So that a child or an option can be written as `condition && value`.
const absent = (value) => value === undefined || value === null || value === false;

function setOption(node, name, value) {
  const aria = name.startsWith("aria-"); // these need the words "true" and "false"
  if (absent(value) && !(aria && value === false)) return;
  if (name.startsWith("on")) {
    node.addEventListener(name.slice(2), value);
  } else if (name === "style") {
    for (const [key, part] of Object.entries(value)) node.style.setProperty(key, part);
  } else if (PROPERTIES.includes(name)) {
    node[name] = value;
  } else {
    const flag = value === true && !aria;
    node.setAttribute(name, flag ? "" : String(value));
  }
}

/** Run `work` once no call has come for `wait` milliseconds. */
export function later(work, wait = 60) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), wait);
  };
}

/**
 * Call a method of an object whenever the theme changes; a weak reference lets the object be freed.
 */
export function themed(one, draw) {
  const held = new WeakRef(one);
  const hear = () => {
    const still = held.deref();
    if (still) still[draw]();
    else removeEventListener("theme", hear);
  };
  addEventListener("theme", hear);
}

/** Whether an event has a modifier that belongs to the browser. */
export const modified = (event) => event.ctrlKey || event.metaKey;

/** Run `draw`, which replaces children of `box`, and focus again what had the focus by its data. */
export function keepFocus(box, key, draw) {
  const active = box.contains(document.activeElement) ? document.activeElement : null;
  const at = active?.dataset[key];
  draw();
  if (at !== undefined) box.querySelector(`[data-${key}="${at}"]`)?.focus();
}

/** Colour each pixel of a canvas: colourOf(number of the pixel) is [red, green, blue, alpha]. */
export function paintPixels(canvas, colourOf) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < canvas.width * canvas.height; i++) image.data.set(colourOf(i), 4 * i);
  context.putImageData(image, 0, 0);
  return canvas;
}

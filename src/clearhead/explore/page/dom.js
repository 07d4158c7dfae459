/** Create HTML and SVG elements; text always becomes a text node, never markup. */

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, options = {}, ...children) {
  return fill(document.createElement(tag), options, children);
}

export function s(tag, options = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), options, children);
}

function fill(node, options, children) {
  for (const [name, value] of Object.entries(options ?? {})) {
    if (value === undefined || value === null || (value === false && !name.startsWith("aria-"))) {
      continue;
    }
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    } else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
    // aria-* attributes need "true" or "false"
    else node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  node.append(
    ...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false),
  );
  return node;
}

// Controls with a name; each has .set(value), which changes what it shows without telling `change`.

/** options: ids, or [id, text], or { label, options } for a group of them */
export function choose(label, options, value, change, more = {}) {
  const option = (one) => {
    if (one.options) return h("optgroup", { label: one.label }, one.options.map(option));
    const [id, text] = Array.isArray(one) ? one : [one, one];
    return h("option", { value: id, selected: String(id) === String(value) }, text);
  };
  const select = h(
    "select",
    { onchange: () => change(select.value), ...more },
    options.map(option),
  );
  return Object.assign(h("label", { class: "field" }, h("span", {}, label), select), {
    set: (to) => {
      select.value = to;
    },
  });
}

export function slide(label, { min, max, step, value, show = (x) => x, change }) {
  const out = h("output", {});
  const input = h("input", {
    type: "range",
    min,
    max,
    step,
    value,
    "aria-label": label,
    oninput: () => {
      tell();
      change(Number(input.value));
    },
  });
  const tell = () => {
    out.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", out.textContent);
  };
  tell();
  return Object.assign(h("label", { class: "field" }, h("span", {}, label, " ", out), input), {
    set: (to) => {
      input.value = to;
      tell();
    },
  });
}

export function segments(label, options, value, change) {
  const name = `s${Math.random().toString(36).slice(2)}`;
  const field = h(
    "fieldset",
    { class: "segments" },
    h("legend", {}, label),
    h(
      "div",
      {},
      options.map(([id, text, title]) =>
        h(
          "label",
          { title },
          h("input", {
            type: "radio",
            name,
            value: id,
            checked: id === value,
            onchange: () => change(id),
          }),
          h("span", {}, text),
        )
      ),
    ),
  );
  return Object.assign(field, {
    set: (to) => {
      for (const input of field.querySelectorAll("input")) input.checked = input.value === to;
    },
  });
}

/** A button that saves one figure: as SVG, or with Shift as PNG. svg: makes the figure */
export const saver = (svg) =>
  h(
    "button",
    {
      type: "button",
      class: "save-one",
      title: "Save this figure as SVG (Shift: PNG)",
      "aria-label": "Save this figure",
      onclick: (event) =>
        dispatchEvent(
          new CustomEvent("save-figure", {
            detail: { figure: svg(), kind: event.shiftKey ? "png" : "svg" },
          }),
        ),
    },
    "⤓",
  );

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

export function visible(piece) {
  return piece.replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
}

/** A piece with visible spaces. */
export const spelt = (piece) => visible(piece).replace(/ /g, "␣");

export function later(work, wait = 60) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), wait);
  };
}

export const percent = (x) => {
  if (x === null || Number.isNaN(x)) return "–";
  if (x >= 0.9995) return "100 %";
  if (x >= 0.0995) return `${(100 * x).toFixed(0)} %`;
  if (x < 1e-4) {
    if (x > 0) return "< 0.01 %";
    return "0 %";
  }
  return `${(100 * x).toPrecision(2)} %`;
};

export function number(x) {
  if (x === null || !Number.isFinite(x)) return "–";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x).replace("-", "−");
  const size = Math.abs(x);
  if (size < 1e-6) return "≈ 0";
  return (
    size >= 1e5 || size < 1e-3
      ? x.toExponential(1)
      : x.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3)
  ).replace(/-/g, "−");
}

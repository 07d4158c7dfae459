/**
 * Controls with a name. Those of a form have .set(value), which changes what they show without
 * telling `change`.
 */

import { css } from "./colours.js";
import { h } from "./dom.js";

/** A menu; options: ids, or [id, text], or { label, options } for a group of them. */
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
  const field = h("label", { class: "field" }, h("span", {}, label), select);
  const set = (to) => {
    select.value = to;
  };
  return Object.assign(field, { set });
}

/** A slider with its value beside the label; show: the value as text. */
export function slide(label, { min, max, step, value, show = (x) => x, change }) {
  const out = h("output", {});
  const tell = () => {
    out.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", out.textContent);
  };
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
  tell();
  const field = h("label", { class: "field" }, h("span", {}, label, " ", out), input);
  const set = (to) => {
    input.value = to;
    tell();
  };
  return Object.assign(field, { set });
}

/** A few choices side by side: [id, text, title]. */
export function segments(label, options, value, change) {
  // radio buttons of one name exclude others
  const name = `s${Math.random().toString(36).slice(2)}`;
  const choices = options.map(([id, text, title]) => {
    const onchange = () => change(id);
    const input = h("input", { type: "radio", name, value: id, checked: id === value, onchange });
    return h("label", { title }, input, h("span", {}, text));
  });
  const field = h("fieldset", { class: "segments" }, h("legend", {}, label), h("div", {}, choices));
  const set = (to) => {
    for (const input of field.querySelectorAll("input")) input.checked = input.value === to;
  };
  return Object.assign(field, { set });
}

/** A button; more: other attributes. */
export const button = (text, onclick, more = {}) =>
  h("button", { type: "button", onclick, ...more }, text);

/** A form that calls `submit` and stays on the page. */
export function form(className, submit, ...children) {
  const onsubmit = (event) => {
    event.preventDefault();
    submit();
  };
  return h("form", { class: className, onsubmit }, children);
}

/** Let Enter submit a text area, and Shift with Enter begin a line. */
export function submitOnEnter(area, submit) {
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    submit();
  });
}

/** A button that saves one figure: as SVG, or with Shift as PNG. svg: makes the figure. */
export function saver(svg) {
  const save = (event) => {
    const detail = { figure: svg(), kind: event.shiftKey ? "png" : "svg" };
    dispatchEvent(new CustomEvent("save-figure", { detail }));
  };
  return button("⤓", save, {
    class: "save-one",
    title: "Save this figure as SVG (Shift: PNG)",
    "aria-label": "Save this figure",
  });
}

/** The bar of a colour scale; shadeAt: the colour at t from 0 to 1. */
export function legendBar(shadeAt) {
  const stops = Array.from({ length: 9 }, (_, i) => css(shadeAt(i / 8)));
  return h("span", {
    class: "bar",
    style: { background: `linear-gradient(90deg, ${stops.join(",")})` },
  });
}

/** The bar behind a share of a list. */
export const shareBar = (share, className = "weight") =>
  h("span", { class: className, style: { width: `${100 * share}%` } });

/** Names with bars: rows of [share, element with the name, text of the share]. */
export function shareList(rows) {
  const items = rows.map(([share, name, text]) => {
    const width = Math.max(0.005, share); // so that a share of nearly nothing is seen
    return h("li", {}, name, h("span", {}, text), shareBar(width));
  });
  return h("ul", { class: "bars" }, items);
}

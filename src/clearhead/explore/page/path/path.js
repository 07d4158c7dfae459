/** The bar of the guided path, which leads from one step to the next. */

import { button } from "../controls.js";
import { h } from "../dom.js";
import { STEPS } from "./steps.js";

const KEY = "path"; // in the browser's storage: the number of the current step
const OPENED = "path-opened"; // and those of all that were opened

/** The address of a step, which says its number. */
export const address = (i) => `${STEPS[i][1]}&step=${i + 1}`;

export class Path {
  constructor() {
    this.root = h("div", { class: "path", hidden: true });
    this.at = null; // the number of the step whose bar is shown
  }

  // A view was opened, by a step (its number, as text) or otherwise: the bar stays while the view
  // of its step is open.
  opened(view, step) {
    const number = Number(step) - 1;
    if (STEPS[number]) {
      this.at = number;
      keep(number);
    } else if (this.at !== null && !STEPS[this.at][1].startsWith(`#${view}?`)) this.at = null;
    this.draw();
  }

  draw() {
    this.root.hidden = this.at === null;
    if (this.at === null || this.drawn === this.at) return;
    this.drawn = this.at;
    const active = this.root.contains(document.activeElement) ? document.activeElement : null;
    const name = active?.textContent; // of what had the focus
    const [title, , text, task] = STEPS[this.at];
    const close = () => {
      this.at = null;
      this.draw();
    };
    const words = "Close the guided path";
    this.root.replaceChildren(
      h(
        "p",
        {},
        h("b", {}, `${this.at + 1} of ${STEPS.length}: ${title}. `),
        text,
        " ",
        h("span", { class: "try" }, h("b", {}, "Try: "), task),
      ),
      h(
        "nav",
        { "aria-label": "Steps" },
        stepLink(this.at - 1, "Back"),
        stepLink(this.at + 1, "Next"),
        button("×", close, { class: "quiet", "aria-label": words, title: words }),
      ),
    );
    if (!name) return;
    const all = [...this.root.querySelectorAll("a, button")];
    const same = all.find((node) => node.textContent === name);
    (same ?? all[0]).focus();
  }
}

// The link to a step; before the first and after the last one, to the list of all.
function stepLink(i, word) {
  if (STEPS[i]) return h("a", { class: "chip", href: address(i), title: STEPS[i][0] }, word);
  return h("a", { class: "chip", href: "#start" }, i < 0 ? "All steps" : "Finish");
}

/** The number of the last opened step, or -1. */
export function kept() {
  try {
    const at = Number(localStorage.getItem(KEY) ?? -1);
    return Number.isInteger(at) && at < STEPS.length ? at : -1;
  } catch {
    return -1;
  }
}

/** The numbers of the steps that were opened. */
export function opened() {
  try {
    const all = JSON.parse(localStorage.getItem(OPENED) ?? "[]");
    return new Set(Array.isArray(all) ? all : []);
  } catch {
    return new Set();
  }
}

function keep(at) {
  try {
    localStorage.setItem(KEY, at);
    localStorage.setItem(OPENED, JSON.stringify([...opened().add(at)]));
  } catch {
    /* no storage: the position is not kept */
  }
}

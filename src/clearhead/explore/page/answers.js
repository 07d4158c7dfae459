/**
 * Texts of a search with their scores, the best first: while they are written, and afterwards to
 * choose one.
 */

import { h } from "./dom.js";

export class Answers {
  // means: what a score is; pick: called with the number of the chosen text
  constructor(label, means, pick) {
    Object.assign(this, { means, pick });
    this.root = h("ol", { class: "answers", "aria-live": "polite", "aria-label": label });
  }

  clear() {
    this.root.replaceChildren();
  }

  // found: { text, score, given }, where given is a text of the user's own; chosen: the number of
  // one, or null while they are written
  list(found, chosen = null) {
    const best = Math.max(...found.filter((one) => !one.given).map((one) => one.score));
    const focused = this.root.contains(document.activeElement)
      ? document.activeElement.dataset.at
      : null;
    this.root.replaceChildren(
      ...found.map((one, i) => {
        const bar = h("span", { class: "weight" });
        const inner = [
          h("span", { class: "said", dir: "auto" }, one.text || "…"),
          one.given ? h("span", { class: "yours" }, "yours") : null,
          h("span", { class: "score", title: this.means }, one.score.toFixed(2)),
        ];
        bar.style.setProperty(
          "width",
          `${Math.min(100, Math.max(2, 100 * Math.exp(one.score - best)))}%`,
        );
        return h(
          "li",
          { class: i ? "" : "first" },
          chosen === null ? inner : h(
            "button",
            {
              type: "button",
              "data-at": i,
              "aria-pressed": i === chosen,
              onclick: () => this.pick(i),
            },
            inner,
          ),
          bar,
        );
      }),
    );
    if (focused !== null) this.root.querySelector(`[data-at="${focused}"]`)?.focus();
  }
}

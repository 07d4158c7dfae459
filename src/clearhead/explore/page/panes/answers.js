/**
 * Texts of a search with their scores, the best first: while they are written, and afterwards to
 * choose one.
 */

import { button, shareBar } from "../controls.js";
import { h, keepFocus } from "../dom.js";
import { clamp } from "../numbers.js";

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
    const best = Math.max(...found.filter(({ given }) => !given).map(({ score }) => score));
    const items = found.map((answer, i) => {
      const inner = [
        h("span", { class: "said", dir: "auto" }, answer.text || "…"),
        answer.given && h("span", { class: "yours" }, "yours"),
        h("span", { class: "score", title: this.means }, answer.score.toFixed(2)),
      ];
      const pick = { "data-at": i, "aria-pressed": i === chosen };
      const body = chosen === null ? inner : button(inner, () => this.pick(i), pick);
      // as likely as the best one: the full width
      const share = clamp(Math.exp(answer.score - best), 0.02, 1);
      return h("li", { class: i ? "" : "first" }, body, shareBar(share));
    });
    keepFocus(this.root, "at", () => this.root.replaceChildren(...items));
  }
}

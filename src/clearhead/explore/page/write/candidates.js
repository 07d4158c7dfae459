/**
 * The candidates in the place of a token, with the probabilities of the model and those that
 * sampling uses.
 */

import { get } from "../api.js";
import { shareBar } from "../controls.js";
import { h } from "../dom.js";
import { barsFigure } from "../figures/small_figures.js";
import { percent, spelt } from "../numbers.js";

const MANY = 8; // candidates that are shown
const FIRST = "Nothing is before the first token: the model predicts only the tokens after it.";

export class Candidates {
  constructor() {
    this.root = h("div", { class: "candidates", "aria-live": "polite" });
    this.found = null;
  }

  clear() {
    this.root.replaceChildren();
  }

  /** Request the candidates for one token of an inspection. */
  request(look, at, sampling, signal) {
    const query = { look: look.id, first: at, last: at + 1, ...sampling, top: MANY };
    return get("looks/candidates", query, signal);
  }

  showFirst() {
    this.root.replaceChildren(h("h2", {}, "Candidates"), h("p", { class: "note" }, FIRST));
  }

  // own: the token in this place; by, sampling: what the two bars are; drawn: how the text was
  // drawn, if otherwise
  show(found, { own, by, sampling, drawn }) {
    Object.assign(this, { found, own, by, sampling });
    const intro = "What the tokens before it predict here.";
    this.root.replaceChildren(
      h("h2", {}, "In place of ", h("code", {}, spelt(own))),
      h("p", { class: "note" }, `${intro} ${spelt(own)} has ${percent(found.shares[0])}.`),
      h(
        "ul",
        { class: "bars" },
        found.candidates[0].map((row) => candidateItem(row, own)),
      ),
      h(
        "p",
        { class: "note key" },
        h("span", { class: "swatch" }),
        `${by} `,
        h("span", { class: "swatch drawn" }),
        `${sampling}${drawn}`,
      ),
    );
  }

  svg() {
    const rows = this.found.candidates[0].map(([piece, ...shares]) => [spelt(piece), ...shares]);
    return barsFigure(`In place of ${spelt(this.own)}`, rows, [this.by, this.sampling]);
  }
}

function candidateItem([piece, share, drawn], own) {
  return h(
    "li",
    { class: piece === own ? "own" : "" },
    h("code", {}, spelt(piece)),
    h("span", { class: "figures" }, percent(share), h("b", {}, percent(drawn))),
    shareBar(Math.max(0.005, share)),
    shareBar(drawn, "weight drawn"),
  );
}

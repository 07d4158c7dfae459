/** The logit lens: the next token, read from the output of every block. */

import { h } from "../dom.js";
import { tableFigure } from "../figures/small_figures.js";
import { percent, spelt } from "../numbers.js";

const MANY = 3; // tokens per block

export class LogitLens {
  constructor() {
    this.root = h("div", { class: "lens" });
    this.found = null;
  }

  clear() {
    this.root.replaceChildren();
  }

  // token: after which the next one is read; lacking: the heads that are switched off, in words
  show(found, token, lacking) {
    Object.assign(this, { found, token, lacking });
    const intro = `The next token, read from every block's output (logit lens)${lacking}.`;
    this.root.replaceChildren(
      h("h2", {}, "After ", h("code", {}, spelt(token))),
      h("p", { class: "note" }, intro),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          found.layers.map((_, i) => this.row(i)),
        ),
      ),
    );
  }

  name(i) {
    return i === this.found.layers.length - 1 ? "output" : `block ${i}`;
  }

  row(i) {
    const cells = this.found.layers[i].slice(0, MANY).map(([piece, share]) => {
      const code = h("code", { title: spelt(piece) }, spelt(piece));
      return h("td", {}, h("span", {}, code, " ", h("small", {}, percent(share))));
    });
    const name = this.name(i);
    return h(
      "tr",
      { class: name === "output" ? "own" : "" },
      h("th", { scope: "row" }, name),
      cells,
    );
  }

  svg() {
    const rows = this.found.layers.map((list, i) => {
      const best = list.slice(0, MANY).map(([piece, share]) => `${spelt(piece)} ${percent(share)}`);
      return [this.name(i), ...best];
    });
    return tableFigure(
      `After ${spelt(this.token)}: the next token by each block${this.lacking}`,
      rows,
    );
  }
}

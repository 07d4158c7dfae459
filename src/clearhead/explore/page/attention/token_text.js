/** A text with each token shaded by its attention weight; a long text is shown in pages. */

import { colour, css, ink } from "../colours.js";
import { button } from "../controls.js";
import { h, themed } from "../dom.js";
import { spelt } from "../numbers.js";

export class TokenText {
  constructor({ point = null, pick = null, page = 400 } = {}) {
    Object.assign(this, { point, pick, page, first: 0, tokens: [], picked: null });
    this.flow = h("div", {
      class: "flow",
      role: "group",
      "aria-label": "The text, token by token",
      dir: "auto",
    });
    this.turner = h("div", { class: "pages", hidden: true });
    this.root = h("div", {}, this.flow, this.turner);
    themed(this, "shade");
  }

  // from: the number of the first written token; special: the set of special tokens; spaces: those
  // that follow a space which no token holds
  show(
    tokens,
    { from = tokens.length, first = null, special = new Set(), spaces = new Set() } = {},
  ) {
    Object.assign(this, { tokens, from, special, spaces, shares: null, signed: false });
    if (first !== null) this.first = first;
    if (this.first >= tokens.length) this.first = 0;
    this.draw();
  }

  append(token) {
    this.tokens.push(token);
    if (this.tokens.length - this.first > this.page) return;
    this.flow.append(this.token(this.tokens.length - 1));
    this.flow.scrollTop = this.flow.scrollHeight;
  }

  // Mark the token that the rest of the view describes; `see` scrolls or pages to it.
  choose(at, see = false) {
    this.picked = at;
    if (see && at !== null && (at < this.first || at >= this.first + this.page)) {
      this.first = Math.floor(at / this.page) * this.page;
      this.draw();
      return;
    }
    for (const node of this.flow.children) {
      const own = Number(node.dataset.at) === at;
      node.classList.toggle("picked", own);
      node.tabIndex = own ? 0 : -1;
      if (own) this.scroll(node);
    }
    if (this.flow.firstChild && !this.flow.querySelector(".picked")) {
      this.flow.firstChild.tabIndex = 0;
    }
  }

  // Scrolls the text within its own box; the page does not move.
  scroll(node) {
    const top = node.offsetTop - this.flow.offsetTop;
    const over = top + node.offsetHeight - this.flow.clientHeight;
    this.flow.scrollTop = Math.min(Math.max(this.flow.scrollTop, over), top);
  }

  draw() {
    const { tokens, first, page } = this;
    const last = Math.min(first + page, tokens.length);
    const shown = Array.from({ length: last - first }, (_, i) => this.token(first + i));
    this.flow.replaceChildren(...shown);
    this.turner.hidden = tokens.length <= page;
    const lastPage = Math.floor((tokens.length - 1) / page) * page;
    const turn = (by) => () => {
      this.first = Math.min(Math.max(0, this.first + by), lastPage);
      this.draw();
    };
    const [from, to, all] = [first + 1, last, tokens.length].map((n) => n.toLocaleString());
    this.turner.replaceChildren(
      button("earlier", turn(-page), { disabled: first === 0 }),
      h("span", {}, `tokens ${from} to ${to} of ${all}`),
      button("later", turn(page), { disabled: last === tokens.length }),
    );
    this.choose(this.picked);
    this.shade(this.shares);
  }

  token(i) {
    const piece = this.tokens[i];
    const classes = ["piece", i >= this.from && "new", this.special?.has(i) && "special"];
    const space = this.spaces?.has(i) ? " " : "";
    return h(
      "span",
      {
        class: classes.filter(Boolean).join(" "),
        "data-at": i,
        tabindex: -1,
        role: "button",
        "aria-label": `token ${i}: ${spelt(piece)}`,
        onpointerenter: () => this.point?.(i),
        onpointerleave: () => this.point?.(null),
        onclick: () => this.pick?.(i),
        onkeydown: (event) => this.key(event, i),
      },
      space + (piece === "\n" ? "⏎\n" : piece),
    );
  }

  key(event, i) {
    const by = { ArrowRight: 1, ArrowLeft: -1, Enter: 0, " ": 0 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = this.flow.querySelector(`[data-at="${i + by}"]`);
    if (!next) return;
    if (by) next.focus();
    this.pick?.(i + by);
  }

  // shares: for each token, the attention weight that the chosen token gives it; signed: numbers
  // from -1 to 1 instead
  shade(shares = this.shares, signed = this.signed) {
    Object.assign(this, { shares, signed });
    for (const node of this.flow.children) {
      const x = shares?.[Number(node.dataset.at)] ?? 0;
      if (Math.abs(x) > 0.002) {
        const fill = colour(Math.sign(x) * Math.sqrt(Math.abs(x)) * 0.9);
        node.style.setProperty("background-color", css(fill));
        node.style.setProperty("color", ink(fill));
      } else {
        node.style.removeProperty("background-color");
        node.style.removeProperty("color");
      }
    }
  }
}

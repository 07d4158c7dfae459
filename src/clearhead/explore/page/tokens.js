/**
 * Tokens: two rows of tokens with lines between them (TokenLines), and a text with shaded tokens
 * (TokenText).
 */

import { colour, css, ink, tint } from "./colours.js";
import { h, percent, s, spelt, themed, visible } from "./dom.js";

const measure = document.createElement("canvas").getContext("2d");
const FONT = 15;
const GAP = 8;
const ROOM = 26;
const LONGEST = 150; // pixels: text, between tokens, height of a token, longest token
const TOP = 18;
const LOW = 150; // y of the upper and the lower row
const MANY = 24; // more tokens than these: only the lines of one token are drawn
const RTL = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

const bare = (text) => visible(text).trim() || "␣";

/**
 * Lines from each query token (below) to the keys it attends to (above); two columns where the
 * width is too small.
 */
export class TokenLines {
  // label: what the rows are, keys first; point: called with the token under the pointer; pick:
  // with a clicked one
  constructor({ label = ["keys", "queries"], point = null, pick = null } = {}) {
    Object.assign(this, { label, point, pick, at: null, chosen: null });
    this.svgNode = s("svg", {
      class: "lines",
      role: "group",
      "aria-label": "Attention between tokens",
    });
    this.note = h("p", { class: "note", "aria-live": "polite" }, " ");
    this.box = h("div", { class: "linebox", tabindex: -1 }, this.svgNode);
    this.root = h("div", { class: "tokenlines" }, this.box, this.note);
    new ResizeObserver(() => {
      if (this.wide !== this.root.clientWidth) this.draw();
    }).observe(this.root);
    themed(this, "draw");
  }

  // special: sets of special tokens, of the keys and of the queries; chosen: a query whose lines
  // are drawn by default
  show({
    above,
    below,
    weights,
    label = this.label,
    special = [new Set(), new Set()],
    chosen = null,
  }) {
    Object.assign(this, { above, below, weights, label, special, chosen, at: null });
    if (chosen === null && this.many()) this.chosen = below.findIndex((_, i) => !special[1].has(i));
    this.draw();
  }

  clear() {
    this.above = this.below = this.paths = null;
    this.svgNode.replaceChildren();
    this.svgNode.setAttribute("height", 0);
    this.note.textContent = " ";
  }

  // The range of tokens around `at` that fit into one row, up to three of them after it; all if
  // they fit.
  fitting(names, at) {
    measure.font = `${FONT}px system-ui, sans-serif`;
    const room = this.root.clientWidth || 600;
    const wide = (i) => Math.min(measure.measureText(bare(names[i])).width, LONGEST) + 14 + GAP;
    const all = (first, last) =>
      names.slice(first, last).reduce((sum, _, i) => sum + wide(first + i), 0);
    if (names.length <= MANY && all(0, names.length) <= room) return [0, names.length];
    const last = Math.min(names.length, at + 4);
    let first = at;
    let used = all(at, last) + 110; // with room for a token that stands for the others
    while (first > 0 && used + wide(first - 1) <= room) used += wide(--first);
    return [first, last];
  }

  many() {
    return Math.max(this.above.length, this.below.length) > MANY;
  }

  // at: ["below", i] or ["above", j]
  focus(at, tell = true) {
    if (String(at) === String(this.at)) return;
    this.at = at;
    this.paint();
    if (tell) this.point?.(at);
  }

  choose(i) {
    this.chosen = i;
    this.paint();
  }

  // Each row of tokens as places { x, y, w, h, text, full }: beside each other if both rows fit,
  // else in two columns.
  layout() {
    const longest = Math.min(LONGEST, 0.4 * this.wide);
    const cut = (list) =>
      list.map((full) => {
        const text = fitted(bare(full), longest - 14);
        return { full: bare(full), text, w: measure.measureText(text).width + 14 };
      });
    const rows = [cut(this.above), cut(this.below)];
    const sum = (row) => row.reduce((total, { w }) => total + w, 0);
    const room = Math.min(this.wide, 900) - Math.max(...rows.map(sum));
    const gap = Math.min(Math.max(room / Math.max(...rows.map((row) => row.length)), GAP), 34);
    const total = (row) => sum(row) + gap * row.length;
    this.across = Math.max(...rows.map(total)) <= this.wide;
    const columns = Math.min(this.wide - 4, 460);
    return rows.map((row, side) => {
      // the first word of such a text is on the right
      const reversed = row.filter(({ text }) => RTL.test(text)).length > row.length / 2;
      let x = this.across ? (this.wide - total(row)) / 2 : 0;
      if (reversed) x = this.wide - x;
      return row.map(({ text, full, w }, i) => {
        const left = reversed ? x - gap / 2 - w : x + gap / 2;
        x += (reversed ? -1 : 1) * (w + gap);
        return this.across
          ? { text, full, x: left, y: side ? LOW : TOP, w, h: ROOM }
          : { text, full, x: side ? columns - w : 4, y: TOP + i * (ROOM + 4), w, h: ROOM };
      });
    });
  }

  draw() {
    if (!this.above || !this.root.isConnected) return;
    this.wide = this.root.clientWidth;
    if (!this.wide) return;
    measure.font = `${FONT}px system-ui, sans-serif`;
    [this.tops, this.lows] = this.layout();
    const { across, wide } = this;
    const tall = across
      ? LOW + ROOM + 20
      : TOP + Math.max(this.above.length, this.below.length) * (ROOM + 4) + 6;
    for (
      const [name, value] of Object.entries({
        width: wide,
        height: tall,
        viewBox: `0 0 ${wide} ${tall}`,
      })
    ) {
      this.svgNode.setAttribute(name, value);
    }
    this.paths = [];
    const lines = s("g", { fill: "none", "stroke-linecap": "round" });
    this.weights.forEach((row, i) => {
      const least = Math.min(0.02, 0.3 * row.reduce((a, x) => Math.max(a, x), 0));
      row.forEach((weight, j) => {
        if (!(weight > 0) || weight < least) return;
        const a = this.tops[j];
        const b = this.lows[i];
        const d = across
          ? curve(a.x + a.w / 2, a.y + a.h, b.x + b.w / 2, b.y, true)
          : curve(a.x + a.w, a.y + a.h / 2, b.x, b.y + b.h / 2, false);
        const path = s("path", { d });
        this.paths.push({ path, i, j, weight });
        lines.append(path);
      });
    });
    const words = s("g");
    this.boxes = [];
    for (
      const [side, list] of [
        ["above", this.tops],
        ["below", this.lows],
      ]
    ) {
      list.forEach((place, i) => {
        const rect = s("rect", { x: place.x, y: place.y, width: place.w, height: place.h, rx: 6 });
        const text = s(
          "text",
          { x: place.x + place.w / 2, y: place.y + 18, "text-anchor": "middle", "font-size": FONT },
          place.text,
        );
        const token = s(
          "g",
          {
            class: "token",
            tabindex: i === 0 ? 0 : -1,
            role: "button",
            "aria-label": `${side === "above" ? this.label[0] : this.label[1]} ${
              i + 1
            }: ${place.full}`,
            onpointerenter: () => this.focus([side, i]),
            onpointerleave: () => this.focus(null),
            onfocus: () => this.focus([side, i]),
            onblur: () => this.focus(null),
            onclick: () => {
              if (side === "below") this.choose(i);
              this.pick?.(side, i);
            },
            onkeydown: (event) => this.key(event, side, i),
          },
          rect,
          text,
          place.text === place.full ? null : s("title", {}, place.full),
        );
        this.boxes.push({ side, i, rect, text, token });
        words.append(token);
      });
    }
    const names = s(
      "g",
      { "font-size": 12, fill: tint("soft") },
      s(
        "text",
        { x: across ? Math.max(0, Math.min(...this.tops.map(({ x }) => x))) : 4, y: 11 },
        this.label[0],
      ),
      across
        ? s(
          "text",
          { x: Math.max(0, Math.min(...this.lows.map(({ x }) => x))), y: LOW + ROOM + 15 },
          this.label[1],
        )
        : s("text", { x: Math.min(wide - 4, 460), y: 11, "text-anchor": "end" }, this.label[1]),
    );
    this.svgNode.replaceChildren(lines, words, names);
    this.paint();
  }

  key(event, side, i) {
    const list = side === "above" ? this.above : this.below;
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    let next = null;
    if (this.across && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      const other = event.key === "ArrowUp" ? "above" : "below";
      next = [other, Math.min(i, (other === "above" ? this.above : this.below).length - 1)];
    } else if (by) next = [side, Math.min(Math.max(i + by, 0), list.length - 1)];
    else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (side === "below") this.choose(i);
      this.pick?.(side, i);
      return;
    }
    if (!next) return;
    event.preventDefault();
    this.boxes.find((one) => one.side === next[0] && one.i === next[1])?.token.focus();
  }

  paint() {
    if (!this.paths) return;
    const [side, at] = this.at ?? (this.chosen === null ? [null, null] : ["below", this.chosen]);
    const many = this.many();
    const mine = ({ i, j }) => side === null || (side === "below" ? i === at : j === at);
    for (const one of this.paths) {
      const lit = mine(one);
      one.path.setAttribute("visibility", lit || !many ? "visible" : "hidden");
      one.path.setAttribute("stroke", lit ? tint("accent") : tint("hair"));
      one.path.setAttribute("stroke-width", (0.7 + 7 * one.weight).toFixed(2));
      one.path.setAttribute("opacity", lit ? (0.1 + 0.9 * one.weight ** 0.7).toFixed(3) : 0.25);
    }
    const share = (box) => {
      if (side === null || box.side === side) return box.side === side && box.i === at ? 1 : 0;
      return side === "below" ? (this.weights[at]?.[box.i] ?? 0) : (this.weights[box.i]?.[at] ?? 0);
    };
    for (const box of this.boxes) {
      const x = share(box);
      const own = box.side === side && box.i === at;
      box.rect.setAttribute(
        "fill",
        own ? tint("accent") : x > 0.005 ? css(colour(x)) : tint("well"),
      );
      box.text.setAttribute(
        "fill",
        own
          ? tint("paper")
          : x > 0.005
          ? ink(colour(x))
          : tint(this.special[box.side === "above" ? 0 : 1].has(box.i) ? "soft" : "ink"),
      );
    }
    this.tell(side, at);
  }

  tell(side, at) {
    if (side === null) {
      this.note.textContent = " ";
      return;
    }
    const all = side === "below"
      ? [...(this.weights[at] ?? [])]
      : this.weights.map((row) => row[at]);
    const names = side === "below" ? this.above : this.below;
    const own = (side === "below" ? this.below : this.above)[at] ?? "";
    const best = all
      .map((weight, i) => [weight, names[i]])
      .sort((a, b) => b[0] - a[0])
      .slice(0, 3)
      .filter(([weight]) => weight > 0);
    const said = best
      .map(([weight, name]) => `${bare(name ?? "")} (${percent(weight)})`)
      .join(", ");
    this.note.textContent = side === "below"
      ? `${bare(own)} attends to ${said}`
      : `${bare(own)} receives attention from ${said}`;
  }

  svg(title = "") {
    if (!this.paths) return null;
    const root = this.svgNode.cloneNode(true);
    const tall = Number(root.getAttribute("height"));
    for (const node of root.querySelectorAll("[tabindex]")) {
      for (const name of ["tabindex", "class", "role"]) node.removeAttribute(name);
    }
    for (const name of ["class", "role"]) root.removeAttribute(name);
    root.setAttribute("y", 24);
    return s(
      "svg",
      { width: this.across ? this.wide : 470, height: tall + 24 },
      s("text", { y: 14, "font-size": 14, "font-weight": 600, fill: tint("ink") }, title),
      root,
    );
  }
}

/**
 * A text that is no wider than `most` pixels in the font of a canvas, with an ellipsis where it was
 * cut.
 */
export function fitted(text, most, canvas = measure) {
  if (canvas.measureText(text).width <= most) return text;
  const letters = [...text.replace(/…$/, "")];
  while (letters.length > 1 && canvas.measureText(`${letters.join("")}…`).width > most) {
    letters.pop();
  }
  return `${letters.join("")}…`;
}

function curve(x0, y0, x1, y1, across) {
  return across
    ? `M${x0},${y0}C${x0},${(y0 + y1) / 2} ${x1},${(y0 + y1) / 2} ${x1},${y1}`
    : `M${x0},${y0}C${(x0 + x1) / 2},${y0} ${(x0 + x1) / 2},${y1} ${x1},${y1}`;
}

/** A text with each token shaded by its attention weight; a long text is shown in pages. */
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
    const last = Math.min(this.first + this.page, this.tokens.length);
    this.flow.replaceChildren(
      ...Array.from({ length: last - this.first }, (_, i) => this.token(this.first + i)),
    );
    this.turner.hidden = this.tokens.length <= this.page;
    const turn = (by) => {
      this.first = Math.min(
        Math.max(0, this.first + by),
        Math.floor((this.tokens.length - 1) / this.page) * this.page,
      );
      this.draw();
    };
    this.turner.replaceChildren(
      h(
        "button",
        { type: "button", disabled: this.first === 0, onclick: () => turn(-this.page) },
        "earlier",
      ),
      h(
        "span",
        {},
        `tokens ${
          (this.first + 1).toLocaleString()
        } to ${last.toLocaleString()} of ${this.tokens.length.toLocaleString()}`,
      ),
      h(
        "button",
        { type: "button", disabled: last === this.tokens.length, onclick: () => turn(this.page) },
        "later",
      ),
    );
    this.choose(this.picked);
    this.shade(this.shares);
  }

  token(i) {
    const piece = this.tokens[i];
    const go = (by) => {
      const next = this.flow.querySelector(`[data-at="${i + by}"]`);
      if (next) {
        next.focus();
        this.pick?.(i + by);
      }
    };
    return h(
      "span",
      {
        class: `piece${i >= this.from ? " new" : ""}${this.special?.has(i) ? " special" : ""}`,
        "data-at": i,
        tabindex: -1,
        role: "button",
        "aria-label": `token ${i}: ${spelt(piece)}`,
        onpointerenter: () => this.point?.(i),
        onpointerleave: () => this.point?.(null),
        onclick: () => this.pick?.(i),
        onkeydown: (event) => {
          const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (by) {
            event.preventDefault();
            go(by);
          } else if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            this.pick?.(i);
          }
        },
      },
      (this.spaces?.has(i) ? " " : "") + (piece === "\n" ? "⏎\n" : piece),
    );
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
